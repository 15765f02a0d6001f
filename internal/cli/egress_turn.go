package cli

import (
	"context"
	"sync"

	"github.com/shunt-net/shunt/internal/state"
)

// roundsLock belongs to the one program that looks at the lanes again and again. With two of
// them the misses of both would count, and a lane would be down in half the time.
const roundsLock = "rounds"

// laneTurn is a run's right to make rounds.
type laneTurn struct {
	env  *egressEnv
	mu   sync.Mutex
	lock *state.Lock // nil = not (yet) ours
}

// take says whether the next round is this run's. Another's is a *state.BusyError: it is
// asked for again with each round, so that one that ends is followed within a round.
func (t *laneTurn) take(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lock != nil {
		return nil
	}
	l, err := t.env.State.Lock(ctx, roundsLock, t.env.Holder, 0)
	if err != nil {
		return err
	}
	t.lock = l
	return nil
}

// end leaves the rounds to others.
func (t *laneTurn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lock != nil {
		if err := t.lock.Unlock(); err != nil {
			t.env.log.Debug("lock", "name", roundsLock, "error", err)
		}
		t.lock = nil
	}
}
