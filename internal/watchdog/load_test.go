package watchdog

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// A thousand services with four candidates each: no storm of goroutines, and a death among
// them moves as one alone does, but for the longer plan.
func TestAThousandServices(t *testing.T) {
	services := 1000
	if testing.Short() {
		services = 100
	}
	c := edge.Config{Writer: edge.WriterAlways, MaxConcurrent: 64, VetoFor: 30 * time.Second, Deadline: 2 * time.Second}
	for i := range services {
		s := config(1, nil).Services[0]
		s.Name, s.VIP = fmt.Sprintf("s%d", i), []netip.Addr{netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)})}
		s.Candidates = nil
		for k := range 4 {
			s.Candidates = append(s.Candidates, edge.Candidate{Name: string(rune('a' + k)), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(20 + k), byte(i >> 8), byte(i)})}})
		}
		s.Probe.Interval, s.Probe.Cap = time.Second, 700*time.Millisecond
		c.Services = append(c.Services, s)
	}
	s := newScene(t, c)
	s.o.note = nil
	var mu sync.Mutex
	var moved []time.Time
	s.o.burst = func(context.Context, netip.AddrPort) tripwire.Verdict { return dead() }
	s.o.Edge.Prober = instant{}
	s.o.Told = func(ev Event) {
		if ev.Result != nil && len(ev.Result.Moves) == 1 {
			mu.Lock()
			moved = append(moved, time.Now())
			mu.Unlock()
			t.Logf("a death: commit %v after the hint", ev.Result.Moves[0].Commit.Round(10*time.Microsecond))
		}
	}
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	done := background(func() { _, _ = Run(ctx, s.o) })
	eventually(t, "all services have a target", func() bool {
		s.table.mu.Lock()
		defer s.table.mu.Unlock()
		return len(s.table.view.Table.Targets) == services
	})
	t.Logf("all have a target after %v", time.Since(began).Round(time.Millisecond))
	top := 0
	for range 5 {
		time.Sleep(400 * time.Millisecond)
		top = max(top, runtime.NumGoroutine()-before)
	}
	t.Logf("%d goroutines at most", top)
	if top > 64+benches+30 {
		t.Errorf("%d goroutines", top)
	}
	for i := range 3 {
		s.wires.hints <- tripwire.Hint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 20, 0, byte(i)}), 80), At: clock(), Kind: tripwire.KindClosed}
		eventually(t, "it moves", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(moved) == i+1
		})
	}
	cancel()
	<-done
}

// instant answers at once, and well.
type instant struct{}

func (instant) Probe(context.Context, edge.ProbeTarget) edge.Answer {
	return edge.Answer{Outcome: edge.Good, Answers: true, Speaks: true, Accepts: true}
}
