package edge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// line is the way to one replica's table. One exchange is under way at a time; a caller
// never waits for longer than the deadline, whatever the transport does.
type line struct {
	name   string
	local  bool
	to     Replicated
	free   chan struct{}
	writer chan struct{} // whoever has it may look and write
	limit  time.Duration
}

func newLine(name string, local bool, to Replicated, limit time.Duration) *line {
	l := &line{name: name, local: local, to: to, free: make(chan struct{}, 1), writer: make(chan struct{}, 1), limit: limit}
	l.free <- struct{}{}
	l.writer <- struct{}{}
	return l
}

// enter waits until no other change of the table is under way.
func (l *line) enter(ctx context.Context) (leave func(), err error) {
	bound, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	select {
	case <-l.writer:
		return func() { l.writer <- struct{}{} }, nil
	case <-bound.Done():
		return nil, fmt.Errorf("an earlier change has not ended: %w", late(ctx, l.limit))
	}
}

type exchange struct {
	view   View
	err    error
	reason any // of a panic
}

// do runs one exchange. What is too slow goes on alone, and keeps the line until it ends.
func (l *line) do(ctx context.Context, f func(context.Context) (View, error)) (View, error) {
	if l.to == nil {
		return View{}, errors.New("there is no way to it")
	}
	bound, cancel := context.WithTimeout(ctx, l.limit)
	select {
	case <-l.free:
	case <-bound.Done():
		cancel()
		return View{}, fmt.Errorf("an earlier exchange has not ended: %w", late(ctx, l.limit))
	}
	done := make(chan exchange, 1)
	go func() {
		defer cancel()
		defer func() { l.free <- struct{}{} }()
		defer func() {
			if r := recover(); r != nil {
				done <- exchange{reason: r}
			}
		}()
		v, err := f(bound)
		done <- exchange{view: v, err: err}
	}()
	select {
	case x := <-done:
		return x.unpack()
	case <-bound.Done():
	}
	grace := time.NewTimer(10 * time.Millisecond) // what ends by its deadline says more than we can
	defer grace.Stop()
	select {
	case x := <-done:
		return x.unpack()
	case <-grace.C:
		return View{}, late(ctx, l.limit)
	}
}

func (x exchange) unpack() (View, error) {
	if x.reason != nil {
		panic(x.reason)
	}
	return x.view, x.err
}

func late(ctx context.Context, limit time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return fmt.Errorf("no answer within %s", limit)
}

// observe reads the table. An error is a view too.
func (l *line) observe(ctx context.Context) View {
	v, err := l.do(ctx, func(ctx context.Context) (View, error) { return l.to.Observe(ctx) })
	return l.named(v, err)
}

func (l *line) apply(ctx context.Context, was View, want Table) (View, error) {
	v, err := l.do(ctx, func(ctx context.Context) (View, error) { return l.to.Apply(ctx, was, want) })
	return l.named(v, err), err
}

func (l *line) named(v View, err error) View {
	if err != nil {
		v = View{Error: err.Error()}
	}
	v.Replica, v.Local = l.name, l.local
	v.Table = v.Table.sorted()
	return v
}

// behind says whether a replica's table must be written.
func (p Plan) behind(v View) bool {
	want, ok := p.Tables[v.Replica]
	switch {
	case v.Error != "" || !ok:
		return false
	case !v.Table.Equal(want):
		return true
	case v.Absent || len(v.Drift) > 0: // one who writes nothing there mends nothing there
		return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Kind == StepTable && s.Replica == v.Replica })
	}
	for i, l := range want.Leases { // equal tables have the same nodes in the same order
		if l.Left > v.Table.Leases[i].Left {
			return true
		}
	}
	return false
}
