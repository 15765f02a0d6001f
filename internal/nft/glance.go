package nft

import (
	"context"
	"slices"

	"github.com/shunt-net/shunt/internal/edge"
)

// memo is what the table was at a generation of the namespace's rules: as long as nobody
// commits anything, nothing of it can have changed but the time that leases have left.
type memo struct {
	gen   uint32
	found found
}

// glance is a look that asks for the generation only, when it still is that of the memo.
func (l *local) glance(ctx context.Context) (found, bool) {
	if l.last == nil || l.open(ctx) != nil {
		return found{}, false
	}
	gen, err := generation(l.raw)
	if err != nil {
		l.drop()
		return found{}, false
	}
	if gen != l.last.gen {
		return found{}, false
	}
	f := l.last.found.clone()
	if len(f.table.Leases) > 0 {
		s, err := l.read(ctx, []kind{kindLease})
		if err != nil || !s.whole || s.gen != gen {
			return found{}, false
		}
		f.table.Leases = s.table.Leases
	}
	return f, true
}

// keep remembers what a whole read has found.
func (l *local) keep(s snapshot, f found) {
	l.last = nil
	if s.whole && !f.absent {
		l.last = &memo{s.gen, f.clone()}
	}
}

// moved remembers what a transaction of ours has changed, when it was the only one since.
func (l *local) moved(s snapshot, only []kind) {
	if l.last == nil || !s.whole || s.gen != l.last.gen+1 {
		l.last = nil
		return
	}
	l.last.gen = s.gen
	t := clone(s.table)
	for _, k := range only {
		copyList(&l.last.found.table, t, k)
	}
}

func (f found) clone() found {
	f.drift, f.table = slices.Clone(f.drift), clone(f.table)
	return f
}

func clone(t edge.Table) edge.Table {
	t.Targets, t.Nodes, t.Services = slices.Clone(t.Targets), slices.Clone(t.Nodes), slices.Clone(t.Services)
	t.Addresses, t.Backends, t.Always = slices.Clone(t.Addresses), slices.Clone(t.Backends), slices.Clone(t.Always)
	t.OnLink, t.Leases = slices.Clone(t.OnLink), slices.Clone(t.Leases)
	return t
}
