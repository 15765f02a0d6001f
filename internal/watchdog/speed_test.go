package watchdog

import (
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// How long a death takes until the survivor serves, and what of it goes where. The figures
// are printed, and only a machine that stands still fails the test.
func TestDeathToFirstConnection(t *testing.T) {
	for _, way := range []edge.OnHint{edge.OnHintConfirm, edge.OnHintDivert} {
		t.Run(string(way), func(t *testing.T) {
			w := newWorld(t)
			reps := 6
			if n, err := strconv.Atoi(os.Getenv("WATCHDOG_REPS")); err == nil {
				reps = n
			}
			var commits stamps
			ctx := run.WithPoints(t.Context(), commits.hit)
			c := config(2, func(s *edge.Service) { s.OnHint = way })
			procs := map[string]*server{}
			for _, name := range []string{"a", "b"} {
				procs[name] = w.serve(t, backend.Options{Name: name})
			}
			var set keptSet
			d := w.watch(t, ctx, fresh(t), c, func(o *Options) {
				o.arm = set.arm
			})
			d.moved("a")
			var split [5][]time.Duration
			failed := 0
			for i := range reps {
				dies, lives := "a", "b"
				if i%2 == 1 {
					dies, lives = "b", "a"
				}
				eventually(t, "both are watched", func() bool { return set.armed() == 2 })
				client := w.connect(t)
				steady(t, client, dies, 40*time.Millisecond)
				d.mark()
				began := procs[dies].shoot(t)
				hint := d.await("a hint", func(ev Event) bool { return ev.Kind == EventHint })
				steady(t, client, lives, 20*time.Millisecond)
				g := client.Stop().After(began, lives)
				move, at := d.moved(lives), commits.after(began)
				split[0] = append(split[0], at.Add(-move.Commit).Sub(began)) // kill -> hint (or the diversion's beginning)
				split[1] = append(split[1], hint.Took)
				split[2] = append(split[2], move.Commit)
				split[3] = append(split[3], at.Sub(began))
				split[4] = append(split[4], g.Gap)
				failed += g.Failed
				procs[dies].kill()
				procs[dies] = w.serve(t, backend.Options{Name: dies})
				d.cleared(dies)
			}
			d.end()
			for i, name := range []string{"kill -> hint", "hint -> verdict", "hint -> commit", "kill -> commit", "kill -> first connection"} {
				slices.Sort(split[i])
				t.Logf("%-25s median %8s  worst of %d %8s", name, split[i][reps/2].Round(10*time.Microsecond), reps, split[i][reps-1].Round(10*time.Microsecond))
			}
			t.Logf("failed connections: %.1f for each death", float64(failed)/float64(reps))
			if m := split[4][reps/2]; m > time.Second {
				t.Errorf("median %v", m)
			}
		})
	}
}

// keptSet is the set of tripwires of a watchdog, for the test to look at.
type keptSet struct{ set atomic.Pointer[tripwire.Set] }

func (k *keptSet) arm() (wires, error) {
	s, err := tripwire.New(tripwire.Options{})
	if err != nil {
		return nil, err
	}
	k.set.Store(s)
	return s, nil
}

// armed counts those that stand.
func (k *keptSet) armed() int {
	n := 0
	if s := k.set.Load(); s != nil {
		for _, x := range s.Status() {
			if x.State == tripwire.StateArmed || x.State == tripwire.StateLocal {
				n++
			}
		}
	}
	return n
}

// stamps keep when each commit was done.
type stamps struct {
	mu sync.Mutex
	at []time.Time
}

func (s *stamps) hit(point string) {
	if point == "edge.committed" {
		s.mu.Lock()
		s.at = append(s.at, time.Now())
		s.mu.Unlock()
	}
}

func (s *stamps) after(t time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.at {
		if at.After(t) {
			return at
		}
	}
	return time.Time{}
}
