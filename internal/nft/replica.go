package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// tries bounds how often a commit is begun anew from what a fresh look shows, because
// others changed the table meanwhile or a lease ran out in between.
const tries = 3

// patience bounds an exchange whose context has no deadline.
const patience = 10 * time.Second

// Options of a replica's table. The zero value is useful.
type Options struct {
	Name      string           // Local: of this machine among the replicas; its views carry it
	Now       func() time.Time // measures View.Took; nil = it stays 0
	Namespace string           // Local: path of a network namespace; "" = the calling thread's
}

// found is what a look at the table showed.
type found struct {
	absent bool
	drift  []string
	table  edge.Table
}

// door is one way to a table.
type door interface {
	// look reads everything.
	look(ctx context.Context) (found, error)
	// move makes all changes in one transaction and returns their lists as they are then.
	move(ctx context.Context, changes []change) (edge.Table, error)
	// load replaces the table by one that holds want, in one transaction, and looks.
	load(ctx context.Context, want edge.Table) (found, error)
}

// replica is one replica's table behind a door; it implements edge.Replicated.
type replica struct {
	name  string
	local bool
	now   func() time.Time
	door  door
	close func() error

	turn      chan struct{} // holds one token; whoever has it may use what follows and the door
	tolerated []string      // what a table that we had just made was said to differ in
}

func newReplica(name string, o Options, d door, closed func() error) *replica {
	r := &replica{name: name, now: o.Now, door: d, close: closed, turn: make(chan struct{}, 1)}
	r.turn <- struct{}{}
	return r
}

// enter waits for the replica's turn and bounds ctx.
func (r *replica) enter(ctx context.Context) (context.Context, func(), error) {
	cancel := context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	select {
	case <-r.turn:
		return ctx, func() { r.turn <- struct{}{}; cancel() }, nil
	case <-ctx.Done():
		err := ctx.Err()
		cancel()
		return ctx, nil, fmt.Errorf("%s: waiting for an earlier exchange: %w", r.object(), err)
	}
}

func (r *replica) object() string {
	if r.name == "" {
		return tableTitle
	}
	return "replica " + r.name
}

// Observe implements edge.Replicated. The view of a replica that could not be reached has
// its Error set, beside the error itself.
func (r *replica) Observe(ctx context.Context) (edge.View, error) {
	begin := r.clock()
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return r.failed(err, begin)
	}
	defer leave()
	f, err := r.look(ctx)
	if err != nil {
		return r.failed(err, begin)
	}
	return r.view(f, begin), nil
}

// Apply implements edge.Replicated. A transaction that fails changes nothing. What the
// kernel can't hold (see Check) is an error before anything is done.
func (r *replica) Apply(ctx context.Context, was edge.View, want edge.Table) (edge.View, error) {
	begin := r.clock()
	want, err := canonical(want)
	if err != nil {
		return r.failed(fmt.Errorf("%s: %w", r.object(), err), begin)
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return r.failed(err, begin)
	}
	defer leave()
	f := found{absent: was.Absent, drift: was.Drift, table: was.Table}
	for n := 1; ; n++ {
		now, err := r.apply(ctx, f, want)
		if err == nil {
			return r.view(now, begin), nil
		}
		if n == tries || ctx.Err() != nil {
			return r.failed(err, begin)
		}
		var lost error
		if f, lost = r.look(ctx); lost != nil {
			return r.failed(errors.Join(err, lost), begin)
		}
	}
}

// Close implements edge.Replicated. It waits for an exchange that is under way.
func (r *replica) Close() error {
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	return r.close()
}

func (r *replica) clock() time.Time {
	if r.now == nil {
		return time.Time{}
	}
	return r.now()
}

func (r *replica) view(f found, begin time.Time) edge.View {
	return edge.View{
		Replica: r.name, Local: r.local, Absent: f.absent, Drift: f.drift, Table: f.table, Took: r.clock().Sub(begin),
	}
}

func (r *replica) failed(err error, begin time.Time) (edge.View, error) {
	v := r.view(found{}, begin)
	v.Error = err.Error()
	return v, err
}

func (r *replica) look(ctx context.Context) (found, error) {
	f, err := r.door.look(ctx)
	if err != nil {
		return f, fmt.Errorf("%s: %w", r.object(), err)
	}
	if slices.Equal(f.drift, r.tolerated) {
		f.drift = nil
	}
	return f, nil
}

// apply makes one attempt.
func (r *replica) apply(ctx context.Context, was found, want edge.Table) (found, error) {
	if was.absent || len(was.drift) > 0 {
		return r.load(ctx, want)
	}
	changes := diff(was.table, want)
	if len(changes) == 0 {
		return was, nil
	}
	if heavy(changes, was.table, want) {
		return r.load(ctx, want)
	}
	part, err := r.door.move(ctx, changes)
	if err != nil {
		return was, fmt.Errorf("%s: move elements: %w", r.object(), err)
	}
	for _, c := range changes {
		if why := c.missing(part, want); why != "" {
			return was, fmt.Errorf("%s: read back: %s: somebody else writes it too", r.object(), why)
		}
		copyList(&was.table, part, c.kind)
	}
	return was, nil
}

func (r *replica) load(ctx context.Context, want edge.Table) (found, error) {
	f, err := r.door.load(ctx, want)
	if err != nil {
		return f, fmt.Errorf("%s: load: %w", r.object(), err)
	}
	if f.absent {
		return f, fmt.Errorf("%s: read back: no table", r.object())
	}
	for _, k := range kinds() {
		if why := (change{kind: k, add: items(want, k)}).missing(f.table, want); why != "" {
			return f, fmt.Errorf("%s: read back: %s", r.object(), why)
		}
	}
	// A table fresh from our hands that is said to differ is only printed in other words than
	// we know. Mending it again would give the same.
	r.tolerated = f.drift
	return f, nil
}

// copyList takes one list over.
func copyList(to *edge.Table, from edge.Table, k kind) {
	switch k {
	case kindTarget:
		to.Targets = from.Targets
	case kindNode:
		to.Nodes = from.Nodes
	case kindService, kindBackend, kindAlways:
		*endpoints(to, k) = *endpoints(&from, k)
	case kindAddress:
		to.Addresses = from.Addresses
	case kindOnLink:
		to.OnLink = from.OnLink
	case kindLease:
		to.Leases = from.Leases
	}
}
