package tunnel

import (
	"context"
	"sync"
	"time"
)

// watch asks, for each pair under test, whether a lane has taken it, and ends the test
// of one that has.
type watch struct {
	asking sync.Mutex // one question at a time
	busy   func(pair string) bool

	mu     sync.Mutex
	next   int
	active map[int]watched

	stop    chan struct{}
	stopped chan struct{}
}

type watched struct {
	pair   string
	cancel context.CancelCauseFunc
}

func newWatch(busy func(pair string) bool) *watch {
	w := &watch{busy: busy, active: map[int]watched{}, stop: make(chan struct{}), stopped: make(chan struct{})}
	if busy == nil {
		close(w.stopped)
		return w
	}
	go w.run()
	return w
}

func (w *watch) run() {
	defer close(w.stopped)
	tick := time.NewTicker(busyEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		list := make([]watched, 0, len(w.active))
		for _, a := range w.active {
			list = append(list, a)
		}
		w.mu.Unlock()
		for _, a := range list {
			if w.ask(a.pair) {
				a.cancel(errBusy)
			}
		}
	}
}

// ask says whether a lane uses the pair now.
func (w *watch) ask(pair string) bool {
	if w.busy == nil {
		return false
	}
	w.asking.Lock()
	defer w.asking.Unlock()
	return w.busy(pair)
}

// add watches a pair until the returned function is called.
func (w *watch) add(pair string, cancel context.CancelCauseFunc) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	n := w.next
	w.active[n] = watched{pair, cancel}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.active, n)
	}
}

func (w *watch) close() {
	close(w.stop)
	<-w.stopped
}
