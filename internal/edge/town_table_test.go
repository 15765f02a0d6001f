package edge

import (
	"context"
	"slices"
	"time"
)

// fakeTable is one replica's table. Leases run out by the clock.
type fakeTable struct {
	w       *town
	name    string
	absent  bool
	drift   []string
	table   Table
	until   map[string]time.Time
	down    error         // no exchange
	stiff   error         // it can be read and not be written
	slow    time.Duration // each exchange
	hangs   bool          // whatever the context says
	applies int
	sneak   func(*Table) // changes it right after a look
	meddle  func(*Table) // changes it right after a write
}

func (f *fakeTable) pass(ctx context.Context) error {
	f.w.mu.Lock()
	down, slow, hangs := f.down, f.slow, f.hangs
	f.w.mu.Unlock()
	if hangs {
		time.Sleep(time.Minute)
	}
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return down
}

func (f *fakeTable) Observe(ctx context.Context) (View, error) {
	if err := f.pass(ctx); err != nil {
		return View{}, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.view()
	if f.sneak != nil {
		f.sneak(&f.table)
	}
	return v, nil
}

func (f *fakeTable) view() View {
	t := f.table
	t.Targets, t.Nodes, t.Services = slices.Clone(t.Targets), slices.Clone(t.Nodes), slices.Clone(t.Services)
	t.Leases = nil
	for _, l := range f.table.Leases {
		if l.Left = time.Until(f.until[l.Node]); l.Left > 0 {
			t.Leases = append(t.Leases, l)
		}
	}
	return View{Absent: f.absent, Drift: slices.Clone(f.drift), Table: t}
}

// Apply sends the difference between was and want, like the real one.
func (f *fakeTable) Apply(ctx context.Context, was View, want Table) (View, error) {
	if err := f.pass(ctx); err != nil {
		return View{}, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.stiff != nil {
		return View{}, f.stiff
	}
	f.applies++
	t := &f.table
	t.Targets = changed(t.Targets, was.Table.Targets, want.Targets, func(e Element) Endpoint { return e.From })
	t.Nodes = changed(t.Nodes, was.Table.Nodes, want.Nodes, func(e Element) Endpoint { return e.From })
	t.Services, t.Addresses, t.Backends, t.Always, t.OnLink = want.Services, want.Addresses, want.Backends, want.Always, want.OnLink
	if f.until == nil {
		f.until = map[string]time.Time{}
	}
	for _, l := range want.Leases {
		i := slices.IndexFunc(was.Table.Leases, func(o Lease) bool { return o.Node == l.Node })
		if i >= 0 && sameLease(was.Table.Leases[i], l) && l.Left <= was.Table.Leases[i].Left {
			continue
		}
		t.Leases = slices.DeleteFunc(slices.Clone(t.Leases), func(o Lease) bool { return o.Node == l.Node })
		t.Leases = append(t.Leases, l)
		f.until[l.Node] = time.Now().Add(l.Left)
	}
	f.absent, f.drift = false, nil
	if f.meddle != nil {
		f.meddle(t)
	}
	t.Sort()
	return f.view(), nil
}

// changed applies the difference of two lists to a third.
func changed[K, E comparable](have, was, want []E, key func(E) K) []E {
	before, after, gone := setOf(was), setOf(want), map[K]bool{}
	for _, e := range was {
		if !after[e] {
			gone[key(e)] = true
		}
	}
	var more []E
	for _, e := range want {
		if !before[e] {
			gone[key(e)] = true
			more = append(more, e)
		}
	}
	return append(slices.DeleteFunc(slices.Clone(have), func(e E) bool { return gone[key(e)] }), more...)
}

func (f *fakeTable) Close() error { return nil }
