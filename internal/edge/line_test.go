package edge

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestALineNeverKeepsACallerBeyondItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &town{t: t}
		table := &fakeTable{w: w, name: "core-02", hangs: true}
		l := newLine("core-02", false, table, 2*time.Second)
		for range 2 { // the second one meets the first, which never ended
			began := time.Now()
			v := l.observe(t.Context())
			if v.Error == "" || time.Since(began) > 2100*time.Millisecond {
				t.Errorf("%q after %s", v.Error, time.Since(began))
			}
		}
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		table.hangs = false
		w.mu.Unlock()
		if v := l.observe(t.Context()); v.Error != "" || v.Replica != "core-02" {
			t.Errorf("when it answers again: %+v", v)
		}
	})
}

func TestOneChangeOfAReplicaAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine("core-02", false, nil, 2*time.Second)
		leave, err := l.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.enter(t.Context()); err == nil || !strings.Contains(err.Error(), "earlier change") {
			t.Errorf("two at once: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.enter(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		leave()
		if leave, err = l.enter(t.Context()); err != nil {
			t.Errorf("after it: %v", err)
		} else {
			leave()
		}
		if v := l.observe(t.Context()); v.Error == "" {
			t.Error("there is no way to it, and that is no error")
		}
	})
}
