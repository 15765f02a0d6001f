package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// Sleep waits, or less when ctx ends.
func Sleep(ctx context.Context, d time.Duration) { _ = run.Pause(ctx, d) }

// Await polls until f is true, for at most d.
func Await(ctx context.Context, d time.Duration, what string, f func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not happen within %s", what, d)
		case <-t.C:
		}
	}
	return nil
}
