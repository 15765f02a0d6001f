package egress

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// slowList is a source that gives its list when it is told to.
type slowList struct {
	*world
	asked chan struct{}
	give  chan struct{}
}

func (s slowList) Fetch(ctx context.Context, from []Source, dir string) ([]Entry, int, []error, error) {
	s.asked <- struct{}{}
	select {
	case <-s.give:
	case <-ctx.Done():
		return nil, 0, nil, ctx.Err()
	}
	return s.world.Fetch(ctx, from, dir)
}

// background makes attempts beside the repairs, as `repair --rounds` does.
type background struct {
	env   *Env
	runs  atomic.Bool
	taken atomic.Int32
	err   error
	done  sync.WaitGroup
}

func (b *background) take(ctx context.Context, out Outcome) bool {
	if !out.Pending() || !b.runs.CompareAndSwap(false, true) {
		return false
	}
	b.taken.Add(1)
	b.done.Go(func() {
		defer b.runs.Store(false)
		_, err := b.env.Follow(ctx, out)
		b.err = errors.Join(b.err, err)
	})
	return true
}

// alongside makes rounds until nothing is made beside them any more.
func (b *background) alongside(t *testing.T, w *world) {
	t.Helper()
	for n := 0; b.runs.Load(); n++ {
		if w.repair(t); n > 2000 {
			t.Fatal("the attempt does not come to an end")
		}
	}
	w.repairs(t, 2)
	b.done.Wait()
	if b.err != nil {
		t.Error(b.err)
	}
}

// While an attempt waits for its list, the next rounds go on: a lane that dies meanwhile is
// lent, recorded and replaced, and no second attempt begins.
func TestRepairsGoOnDuringAnAttempt(t *testing.T) {
	w := newWorld(t, 5, 12)
	w.morning(t)
	list := slowList{w, make(chan struct{}), make(chan struct{})}
	w.env.Sources = list
	b := &background{env: w.env}
	w.env.Later = b.take
	if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
		t.Fatal(err)
	}
	w.repair(t)
	select {
	case <-list.asked:
	case <-time.After(10 * time.Second):
		t.Fatal("the attempt did not begin")
	}
	if !b.runs.Load() || w.mode(t) != state.ModeEmergencyRefresh {
		t.Fatalf("mode %s, an attempt beside: %v", w.mode(t), b.runs.Load())
	}
	dead := w.carries["egress2"]
	w.mu.Lock()
	w.alive[dead] = false
	w.mu.Unlock()
	w.repairs(t, 4)
	w.mu.Lock()
	now, at := w.carries["egress2"], w.classes["egress2"]
	w.mu.Unlock()
	if now == dead || at != "egress2" {
		t.Errorf("during the attempt egress2 carries %s, and its class is on %s", now, at)
	}
	if b.taken.Load() != 1 || !b.runs.Load() || w.mode(t) != state.ModeEmergencyRefresh {
		t.Errorf("%d attempts were begun, mode %s", b.taken.Load(), w.mode(t))
	}
	close(list.give)
	b.alongside(t, w)
	if w.mode(t) != state.ModeNormal || w.refreshes(t) != 2 || w.modes(t).Attempt != nil || len(w.modes(t).Replaced) != 0 {
		t.Errorf("mode %s, %d refreshes, %+v", w.mode(t), w.refreshes(t), w.modes(t))
	}
	w.allOn(t, "home")
}

// The same while users are direct: they stay so, and come home by what the attempt found.
func TestRepairsGoOnDuringARecovery(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	w.onDirect(t, 0)
	list := slowList{w, make(chan struct{}), make(chan struct{})}
	w.env.Sources = list
	b := &background{env: w.env}
	w.env.Later = b.take
	w.pass(time.Minute)
	w.repair(t)
	<-list.asked
	w.mu.Lock()
	for e := range w.alive {
		w.alive[e] = true
	}
	w.mu.Unlock()
	w.repairs(t, 5)
	w.allOn(t, direct)
	if w.mode(t) != state.ModeExternalRecovery {
		t.Errorf("mode %s during the attempt", w.mode(t))
	}
	close(list.give)
	b.alongside(t, w)
	if w.mode(t) != state.ModeNormal || b.err != nil {
		t.Errorf("mode %s, %v", w.mode(t), b.err)
	}
	w.allOn(t, "home")
}
