package cli

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/shunt-net/shunt/internal/egress"
)

// background makes the attempt that a round asks for while the rounds go on.
type background struct {
	env  *egressEnv
	runs atomic.Bool
	done sync.WaitGroup
}

// take is true when the attempt is taken over.
func (b *background) take(ctx context.Context, out egress.Outcome) bool {
	if !out.Pending() || !b.runs.CompareAndSwap(false, true) {
		return false
	}
	b.done.Go(func() {
		defer b.runs.Store(false)
		if _, err := b.env.Follow(ctx, out); err != nil {
			b.env.log.Warn("attempt", "error", err)
		}
	})
	return true
}

func (b *background) busy() bool { return b.runs.Load() }

func (b *background) wait() { b.done.Wait() }
