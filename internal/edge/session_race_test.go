package edge

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Everything at once, as a watchdog does it, beside passes of other processes. In the end
// all tables lead to one living candidate, and the memory says the same.
func TestASessionUnderConcurrentUse(t *testing.T) {
	bubble(t, 4, 3, func(t *testing.T, w *town) {
		w.config.Services[0].Nodes = true
		e := w.begin(1)
		s := w.open(e)
		for n := 1; n <= 3; n++ {
			w.table(n).slow = time.Duration(n) * time.Millisecond
		}
		targets := s.Targets()
		var all sync.WaitGroup
		every := func(seed uint64, d time.Duration, f func(*rand.Rand)) {
			rng := rand.New(rand.NewPCG(seed, 1))
			all.Go(func() {
				for range 60 {
					time.Sleep(time.Duration(rng.Int64N(int64(2 * d))))
					f(rng)
				}
			})
		}
		for i, q := range targets {
			every(uint64(i), 50*time.Millisecond, func(*rand.Rand) {
				_, _ = s.Judge(t.Context(), []Answer{s.Prober.Probe(t.Context(), q)})
			})
			every(uint64(10+i), 300*time.Millisecond, func(rng *rand.Rand) {
				if a := s.Prober.Probe(t.Context(), q); rng.IntN(2) == 0 {
					_, _ = s.Confirmed(t.Context(), a, time.Now())
				}
				if _, err := s.Divert(t.Context(), q.Key); err == nil && rng.IntN(2) == 0 {
					_, _ = s.Undo(t.Context(), q.Key)
				} else {
					_, _ = s.Confirmed(t.Context(), s.Prober.Probe(t.Context(), q), time.Now())
				}
				_ = s.Health(q.Key)
				s.Learn(q.Key, time.Duration(rng.IntN(30))*time.Second, 0)
			})
		}
		every(20, 200*time.Millisecond, func(*rand.Rand) { _ = s.Refresh(t.Context()) })
		every(21, 300*time.Millisecond, func(*rand.Rand) { _ = s.Save(t.Context()) })
		every(22, 400*time.Millisecond, func(*rand.Rand) { s.Reload() })
		every(23, time.Second, func(*rand.Rand) { w.retarget(w.envAt(1, e.State)) })
		every(24, 100*time.Millisecond, func(rng *rand.Rand) {
			n := 1 + rng.IntN(4)
			w.is([]mind{alive, dead, starving}[rng.IntN(3)], n)
		})
		every(25, 2*time.Second, func(rng *rand.Rand) {
			ask := Ask{Candidate: proxyName(1 + rng.IntN(4)), Owner: "ada", For: time.Second}
			_, _ = w.envAt(1, e.State).Drain(t.Context(), ask, Options{})
		})
		all.Wait()
		w.is(alive, 1, 2, 3, 4)
		for _, q := range targets {
			_, _ = s.Undo(t.Context(), q.Key)
		}
		w.rounds(s, 5)
		w.close(s)
		leads := w.leads()
		if len(leads) != len("proxy-01") {
			t.Errorf("leads to %s", leads)
		}
		m := w.memory(e)
		if len(m.Targets) != 1 || m.Targets[0].Epoch != w.epoch(1) || len(m.Vetoes) != 0 {
			t.Errorf("epoch %d in the table; remembered %+v, vetoes %+v", w.epoch(1), m.Targets, m.Vetoes)
		}
		w.noSteps("then", w.envAt(1, e.State))
	})
}
