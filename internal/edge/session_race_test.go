package edge

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// Everything at once, as a watchdog does it, beside passes of other processes. In the end
// all tables lead to one living candidate, and the memory says the same. It runs on the
// real clock: on a bubble's no mutex may be waited for.
func TestASessionUnderConcurrentUse(t *testing.T) {
	w := newTown(t, 4, 3)
	w.config.Services[0].Nodes = true
	e := w.begin(1)
	s := w.open(e)
	for n := 2; n <= 3; n++ {
		w.table(n).slow = time.Duration(n) * time.Millisecond
	}
	other := func() *Env {
		o := w.envAt(1, e.State)
		o.again = time.Millisecond
		return o
	}
	crowd(t, w, s, other)

	w.is(alive, 1, 2, 3, 4)
	for n := 1; n <= 4; n++ {
		if _, err := other().Enable(t.Context(), Ask{Candidate: proxyName(n), Owner: "ada"}, Options{}); err != nil {
			t.Error(err)
		}
	}
	for _, q := range s.Targets() {
		if _, err := s.Undo(t.Context(), q.Key); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := s.Refresh(t.Context()); err != nil {
			t.Error(err)
		}
		w.round(s)
	}
	w.close(s)
	if leads := w.leads(); len(leads) != len("proxy-01") {
		t.Errorf("leads to %s", leads)
	}
	m := w.memory(e)
	if len(m.Targets) != 1 || m.Targets[0].Epoch != w.epoch(1) || len(m.Vetoes) != 0 {
		t.Errorf("epoch %d in the table; remembered %+v, vetoes %+v", w.epoch(1), m.Targets, m.Vetoes)
	}
	w.noSteps("then", other())
}

// crowd does everything at once, many times.
func crowd(t *testing.T, w *town, s *Session, other func() *Env) {
	t.Helper()
	var all sync.WaitGroup
	times := func(seed uint64, n int, f func(*rand.Rand) error) {
		rng := rand.New(rand.NewPCG(seed, 1))
		all.Go(func() {
			for range n {
				var busy *state.BusyError
				if err := f(rng); err != nil && !errors.As(err, &busy) {
					t.Error(err)
				}
			}
		})
	}
	ask := func(q ProbeTarget) Answer { return s.Prober.Probe(t.Context(), q) }
	for i, q := range s.Targets() {
		times(uint64(i), 40, func(*rand.Rand) error {
			_, err := s.Judge(t.Context(), []Answer{ask(q)})
			return err
		})
		times(uint64(10+i), 10, func(rng *rand.Rand) error {
			_, err := s.Divert(t.Context(), time.Now(), func() {}, q.Key)
			var settled error
			if rng.IntN(2) == 0 {
				_, settled = s.Undo(t.Context(), q.Key)
			} else {
				_, settled = s.Confirmed(t.Context(), ask(q), time.Now())
			}
			_ = s.Health(q.Key)
			s.Learn(q.Key, time.Duration(rng.IntN(30))*time.Second, 0)
			return errors.Join(err, settled)
		})
	}
	times(20, 10, func(*rand.Rand) error { return s.Refresh(t.Context()) })
	times(21, 10, func(*rand.Rand) error { return s.Save(t.Context()) })
	times(22, 20, func(*rand.Rand) error { s.Reload(); return nil })
	times(23, 5, func(*rand.Rand) error {
		_, err := other().Retarget(t.Context(), Options{})
		return err
	})
	times(24, 200, func(rng *rand.Rand) error {
		w.is([]mind{alive, dead, starving}[rng.IntN(3)], 1+rng.IntN(4))
		return nil
	})
	times(25, 3, func(rng *rand.Rand) error {
		_, err := other().Drain(t.Context(), Ask{Candidate: proxyName(1 + rng.IntN(4)), Owner: "ada"}, Options{})
		return err
	})
	all.Wait()
}
