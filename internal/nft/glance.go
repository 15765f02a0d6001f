package nft

import (
	"context"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// memo is what the table was at a generation of the namespace's rules: as long as nobody
// commits anything, nothing of it can have changed but the time that leases have left.
type memo struct {
	gen   uint32
	found found
	at    time.Time // when the leases were seen; zero = there is no clock
}

// nearEnd is how near its end a lease may be to be taken for one that has run out, or not
// yet: the kernel counts in ticks of its own.
const nearEnd = 100 * time.Millisecond

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
	var sure bool
	if f.table.Leases, sure = l.aged(); !sure {
		s, err := l.read(ctx, []kind{kindLease})
		if err != nil || !s.whole || s.gen != gen {
			return found{}, false
		}
		f.table.Leases = s.table.Leases
	}
	return f, true
}

// aged are the memo's leases as they are now. Not sure: they have to be read.
func (l *local) aged() (list []edge.Lease, sure bool) {
	if len(l.last.found.table.Leases) == 0 {
		return nil, true
	}
	if l.last.at.IsZero() {
		return nil, false
	}
	past := l.now().Sub(l.last.at)
	for _, x := range l.last.found.table.Leases {
		if x.Left -= past; x.Left.Abs() < nearEnd {
			return nil, false
		}
		if x.Left > 0 {
			x.Holds = slices.Clone(x.Holds)
			list = append(list, x)
		}
	}
	return list, past >= 0
}

func (l *local) now() time.Time {
	if l.o.Now == nil {
		return time.Time{}
	}
	return l.o.Now()
}

// keep remembers what a whole read that began at a time has found. What may be otherwise
// without a transaction is not built on: elements that are none of ours (a lease among them
// runs out), and rules that nobody could vouch for just now.
func (l *local) keep(s snapshot, f found, at time.Time) {
	l.last = nil
	if s.whole && !f.absent && len(s.odd) == 0 && (f.drift != nil || l.known[s.bones.sum]) {
		l.last = &memo{s.gen, f.clone(), at}
	}
}

// moved remembers what a transaction of ours has changed, when it was the only one since.
func (l *local) moved(s snapshot, only []kind, at time.Time) {
	if l.last == nil || !s.whole || s.gen != l.last.gen+1 || len(s.odd) > 0 {
		l.last = nil
		return
	}
	l.last.gen = s.gen
	t := clone(s.table)
	for _, k := range only {
		copyList(&l.last.found.table, t, k)
		if k == kindLease {
			l.last.at = at
		}
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
	for i := range t.Leases {
		t.Leases[i].Holds = slices.Clone(t.Leases[i].Holds)
	}
	return t
}
