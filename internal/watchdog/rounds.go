package watchdog

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// rounds calls the egress side at each interval until bound ends. A round that takes longer
// is followed by the next at its end. What it has begun when the run ends goes on to its
// own limit, or until ctx ends: a repair is not cut off in the middle.
func (w *Watchdog) rounds(ctx, bound context.Context) {
	for bound.Err() == nil {
		began := clock()
		err := w.round(ctx)
		if ctx.Err() == nil {
			w.clerk.trouble("egress", err)
		}
		if run.Pause(bound, w.o.Interval-clock().Sub(began)) != nil {
			return
		}
	}
}

// round is one. A fault in it is its own: nothing else of the watchdog ends with it.
func (w *Watchdog) round(ctx context.Context) (err error) {
	bound, cancel := context.WithTimeout(ctx, w.o.EgressLimit)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("egress: panic: %v\n%s", r, debug.Stack())
		}
		w.sum.round(err)
	}()
	return w.o.Egress(bound)
}

// decided takes what a decision of the edge gave.
func (w *Watchdog) decided(r edge.Result, err error) {
	w.sum.decided(r)
	w.clerk.trouble("edge decision", err)
	if e := w.eye.Load(); e != nil && slices.ContainsFunc(r.Plan.Steps, e.madeTable) {
		e.rearm()
	}
	if len(r.Moves) > 0 || r.Plan.Changes() || r.Partial != nil {
		w.tell(Event{Kind: EventDecided, Result: &r, Err: r.Partial})
	}
}

// tally counts what a run does.
type tally struct {
	mu  sync.Mutex
	sum Summary
}

func (t *tally) count(f func(*Summary)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.sum)
}

func (t *tally) get() Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sum
	s.Moves = slices.Clone(s.Moves)
	return s
}

func (t *tally) hinted() { t.count(func(s *Summary) { s.Hints++ }) }

func (t *tally) probed(o edge.Outcome) {
	t.count(func(s *Summary) {
		s.Probes++
		if o == edge.OutcomeUnknown {
			s.Late++
		}
	})
}

func (t *tally) confirmed(w tripwire.Word) {
	t.count(func(s *Summary) {
		switch w {
		case tripwire.WordDead:
			s.Dead++
		case tripwire.WordAlive:
			s.Alive++
		case tripwire.WordUnknown:
		}
	})
}

func (t *tally) round(err error) {
	t.count(func(s *Summary) {
		s.Egress++
		if err != nil {
			s.Failed++
		}
	})
}

func (t *tally) decided(r edge.Result) {
	if len(r.Moves) == 0 && r.Partial == nil {
		return
	}
	t.count(func(s *Summary) {
		s.Moves = append(s.Moves, r.Moves...)
		if r.Partial != nil {
			s.Partial = r.Partial
		}
	})
}
