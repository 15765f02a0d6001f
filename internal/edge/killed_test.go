package edge

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// killed is what a run panics with at a point.
type killed struct{ point string }

// killedAt runs f and ends it at its nth point; "" = it came to its end before.
func killedAt(ctx context.Context, n int, f func(context.Context)) (point string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case killed:
			point = r.point
		default:
			panic(r)
		}
	}()
	f(run.WithPoints(ctx, func(name string) {
		if n--; n == 0 {
			panic(killed{name})
		}
	}))
	return ""
}

// wantWhole is what must be so when a run after a kill has ended, and nothing more to do.
func (w *town) wantWhole(when string, e *Env, leads string, epoch uint64, entries int) {
	w.t.Helper()
	w.retarget(e)
	w.wantLeads(when, leads)
	for n := 1; n <= len(w.tables); n++ {
		if got := w.epoch(n); got != epoch {
			w.t.Errorf("%s: epoch %d on %s, want %d", when, got, nodeName(n), epoch)
		}
		if got := len(w.table(n).table.Targets); got != 2 {
			w.t.Errorf("%s: %d elements on %s", when, got, nodeName(n))
		}
	}
	if got := w.entries(1); got != entries {
		w.t.Errorf("%s: %d entries to the old target, want %d", when, got, entries)
	}
	w.noSteps(when, e)
}

// A run is killed at every point that it passes. The next one brings everything to where
// the first would have brought it, with one move.
func TestKilledAtEachPoint(t *testing.T) {
	for name, tt := range map[string]struct {
		before  func(*town)
		run     func(*town, *Env, context.Context)
		entries int
		points  []string // that must be among those passed
	}{
		"a failover by retarget": {
			before: func(w *town) { w.is(dead, 1) },
			run:    func(_ *town, e *Env, ctx context.Context) { _, _ = e.Retarget(ctx, Options{}) },
			points: []string{"edge.committed", "edge.flushed", "edge.replicated", "edge.remembered", "journal.appended"},
		},
		"a failover by the watchdog": {
			before: func(w *town) { w.is(dead, 1) },
			run: func(w *town, e *Env, ctx context.Context) {
				s, err := e.Open(ctx)
				if err != nil {
					w.t.Fatal(err)
				}
				for range 3 {
					time.Sleep(time.Second)
					for _, q := range s.Targets() {
						if _, err := s.Judge(ctx, []Answer{s.Prober.Probe(ctx, q)}); err != nil {
							w.t.Error(err)
						}
					}
				}
				_ = s.Close(ctx)
			},
			points: []string{"edge.committed", "edge.flushed", "edge.replicated", "edge.remembered", "journal.appended"},
		},
		"a drain": {
			before: func(*town) {},
			run: func(_ *town, e *Env, ctx context.Context) {
				_, _ = e.Drain(ctx, Ask{Candidate: "proxy-01", Owner: "ada"}, Options{})
			},
			entries: 2,
			points:  []string{"edge.held", "edge.committed", "edge.replicated", "edge.remembered"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			passed := []string{}
			for n := 1; ; n++ {
				point := ""
				bubble(t, 2, 3, func(t *testing.T, w *town) {
					e := w.begin(1)
					w.entry(UDP, true)
					w.entry(TCP, false)
					tt.before(w)
					time.Sleep(10 * time.Second)
					point = killedAt(t.Context(), n, func(ctx context.Context) { tt.run(w, e, ctx) })
					time.Sleep(10 * time.Second)
					if tt.entries > 0 { // the operator's word may not have come to the disk: he says it again
						if _, err := w.envAt(1, e.State).Drain(t.Context(), Ask{Candidate: "proxy-01", Owner: "ada"}, Options{}); err != nil {
							t.Fatal(err)
						}
					}
					w.wantWhole(fmt.Sprintf("killed at point %d, %s", n, point), w.envAt(1, e.State), "proxy-02", 2, tt.entries)
					if m := w.memory(e); len(m.Targets) != 1 || m.Targets[0].To != proxy(2) {
						t.Errorf("killed at %s: remembers %+v", point, m.Targets)
					}
				})
				if point == "" || t.Failed() {
					break
				}
				passed = append(passed, point)
			}
			for _, p := range tt.points {
				if !slices.Contains(passed, p) {
					t.Errorf("never at %s: %v", p, passed)
				}
			}
			t.Logf("%d points", len(passed))
		})
	}
}

// A table that was filled by half, by a machine that was killed, is mended and not kept.
func TestOrphansAreSwept(t *testing.T) {
	bubble(t, 2, 2, func(t *testing.T, w *town) {
		old := w.config.Services[0]
		voice := old
		voice.Name, voice.Port = "voice", 24454
		w.config.Services = []Service{old, voice}
		e := w.begin(1)
		w.flows = append(w.flows,
			flow{from: Endpoint{UDP, netipAddrPort(vip, 24454)}, to: proxy(1), replied: true},
			flow{from: Endpoint{TCP, netipAddrPort(vip, 24454)}, to: proxy(1), replied: true},
			flow{from: Endpoint{TCP, netipAddrPort(vip, 24454)}, to: proxy(1)})
		w.config.Services = []Service{old}
		next := w.envAt(1, e.State)
		w.retarget(next)
		for n := 1; n <= 2; n++ {
			same(t, "elements", 2, len(w.table(n).table.Targets))
			same(t, "services", 2, len(w.table(n).table.Services))
		}
		same(t, "entries of the service that was removed", 1, len(w.flows))
		same(t, "what is remembered of it", 1, len(w.memory(e).Targets))
		w.noSteps("then", next)
	})
}
