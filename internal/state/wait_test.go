package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWaitHandsOverAtOnce(t *testing.T) {
	d := open(t, t.TempDir())
	type taken struct {
		lock *Lock
		err  error
		at   time.Time
	}
	got := make(chan taken)
	var took []time.Duration
	for range 50 {
		first, err := d.Lock(t.Context(), "watchdog", "first", 0)
		must(t, err)
		go func() {
			l, err := d.Wait(t.Context(), "watchdog", "second")
			got <- taken{l, err, time.Now()}
		}()
		asleep(t, d)
		begin := time.Now()
		must(t, first.Unlock())
		next := <-got
		must(t, next.err)
		took = append(took, next.at.Sub(begin))
		if h := d.Holder("watchdog"); !strings.HasPrefix(h, "second (pid ") {
			t.Errorf("holder %q", h)
		}
		must(t, next.lock.Unlock())
	}
	slices.Sort(took)
	t.Logf("hand-over: median %v, worst of %d %v", took[len(took)/2], len(took), took[len(took)-1])
	// Looking every few milliseconds would take half of that at the median.
	if took[len(took)/2] > lockPoll/2 {
		t.Errorf("hand-over took %v at the median", took[len(took)/2])
	}
}

// asleep waits until the kernel has someone in the queue for the lock "watchdog".
func asleep(t *testing.T, d *Dir) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if waiters(t, d) > 0 {
			return
		}
	}
	t.Fatal("nobody waits in the kernel")
}

func waiters(t *testing.T, d *Dir) int {
	t.Helper()
	fi, err := os.Stat(d.Path("locks", "watchdog.lock"))
	must(t, err)
	n := 0
	for line := range strings.Lines(read(t, "/proc/locks")) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, fmt.Sprintf(":%d ", fi.Sys().(*syscall.Stat_t).Ino)) {
			n++
		}
	}
	return n
}

func TestWaitFindsAFreeLock(t *testing.T) {
	d := open(t, t.TempDir())
	for range 3 { // again, after it was let go
		l, err := d.Wait(t.Context(), "watchdog", "only")
		must(t, err)
		if _, err := d.Lock(t.Context(), "watchdog", "other", 0); !errors.As(err, new(*BusyError)) {
			t.Errorf("a second holder: %v", err)
		}
		must(t, l.Unlock())
	}
}

func TestWaitEndsWhenTheHolderIsKilled(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	c := startHelper(t, "hold", dir, nil, nil)
	c.line()
	got := make(chan error)
	go func() {
		l, err := d.Wait(t.Context(), "watchdog", "next")
		got <- errors.Join(err, l.Unlock())
	}()
	asleep(t, d)
	c.kill()
	must(t, <-got)
}

func TestWaitIsBoundedByItsContext(t *testing.T) {
	d := open(t, t.TempDir())
	first, err := d.Lock(t.Context(), "watchdog", "egress repair", 0)
	must(t, err)

	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = d.Wait(short, "watchdog", "next")
	var busy *BusyError
	if !errors.As(err, &busy) || !strings.HasPrefix(busy.Holder, "egress repair (pid ") {
		t.Errorf("at the deadline: %v, want the holder", err)
	}
	called, stop := context.WithCancel(t.Context())
	go func() {
		for waiters(t, d) < 2 { // the one that gave up above sleeps on
			if t.Context().Err() != nil {
				return
			}
		}
		stop()
	}()
	if _, err = d.Wait(called, "watchdog", "next"); !errors.Is(err, context.Canceled) {
		t.Errorf("when cancelled: %v", err)
	}
	if _, err = d.Wait(called, "watchdog", "next"); !errors.Is(err, context.Canceled) {
		t.Errorf("when cancelled before: %v", err)
	}

	// Those that gave up get their turn and hand it on.
	must(t, first.Unlock())
	l, err := d.Wait(t.Context(), "watchdog", "patient")
	must(t, err)
	if n := waiters(t, d); n != 0 {
		t.Errorf("%d still wait", n)
	}
	must(t, l.Unlock())
}

func TestWaitNeedsAFolderToWriteAndAPlainName(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	if _, err := d.Wait(t.Context(), "../x", "x"); err == nil {
		t.Error("a lock outside the folder was taken")
	}
	r, err := OpenRead(dir)
	must(t, err)
	if _, err := r.Wait(t.Context(), "watchdog", "status"); !errors.Is(err, ErrReadOnly) {
		t.Errorf("read only: %v", err)
	}
}

func TestWaitTakesTheFileThatIsThere(t *testing.T) {
	d := open(t, t.TempDir())
	first, err := d.Lock(t.Context(), "watchdog", "first", 0)
	must(t, err)
	got := make(chan *Lock)
	go func() {
		l, err := d.Wait(t.Context(), "watchdog", "second")
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	asleep(t, d)
	must(t, os.Remove(d.Path("locks", "watchdog.lock")))
	must(t, first.Unlock())
	l := <-got
	if _, err := d.Lock(t.Context(), "watchdog", "third", 0); !errors.As(err, new(*BusyError)) {
		t.Errorf("two holders: %v", err)
	}
	must(t, l.Unlock())
}
