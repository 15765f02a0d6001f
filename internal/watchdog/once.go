package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// onceEdge asks each candidate once and acts on the answers.
func (w *Watchdog) onceEdge(ctx context.Context) error {
	s, err := w.o.Edge.Open(ctx)
	if err != nil {
		return fmt.Errorf("edge: %w", err)
	}
	e := &eye{w: w, ctx: context.WithoutCancel(ctx), session: s}
	e.index(w.o.Edge.Config)
	defer e.close()
	var mu sync.Mutex
	var answers []edge.Answer
	p := newProbes(s.Targets(), w.o.Edge.Config.MaxConcurrent, e.ask, func(a edge.Answer, _ time.Time) {
		w.sum.probed(a.Outcome)
		mu.Lock()
		defer mu.Unlock()
		answers = append(answers, a)
	})
	p.runOnce(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	res, err := s.Judge(ctx, answers)
	w.decided(res, err)
	res, lerr := s.Look(ctx)
	w.decided(res, lerr)
	err = errors.Join(err, lerr)
	for _, g := range w.o.Edge.Config.Parity {
		res, cerr := s.Compare(ctx, g)
		w.decided(res, cerr)
		err = errors.Join(err, cerr)
	}
	return err
}
