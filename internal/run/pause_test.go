package run_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := run.Pause(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("a minute's pause: %v after %s", err, time.Since(began))
		}
		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := run.Pause(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("one that ctx ends: %v after %s", err, time.Since(began))
		}
		if err := run.Pause(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("none, with a ctx that has ended: %v", err)
		}
		if err := run.Pause(t.Context(), -time.Second); err != nil {
			t.Errorf("less than none: %v", err)
		}
	})
}
