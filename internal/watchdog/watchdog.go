// Package watchdog looks every few milliseconds to seconds, in runs that are bounded: each
// ends by itself after about a minute, and the next one takes over without a gap. It
// decides that it is time, and calls the code that the commands call.
package watchdog

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// LockName is the lock that excludes a second watchdog.
const LockName = "watchdog"

// Options say what is watched, how often and how long. Edge and Egress may each be nil.
type Options struct {
	// Started is when the process began, with its monotonic reading: For counts from it.
	// Zero = the call of Run.
	Started  time.Time
	Interval time.Duration // between the beginnings of two rounds of Egress, and of looks at the machine (at most 5 s); 0 = 1 s
	For      time.Duration // life of the run, the wait for a predecessor included; 0 = 65 s
	Once     bool          // one round of everything; a running watchdog is a *state.BusyError

	State  *state.Dir
	Holder string           // names this run in locks
	Now    func() time.Time // the clock of records

	// Edge is the domain to watch. Its Prober, Flows, Way and Alerts are used from several
	// goroutines. The caller closes its Replicas after Run.
	Edge *edge.Env
	// Egress is one round of the egress side. It is called again only after it returned.
	Egress      func(context.Context) error
	EgressLimit time.Duration // of one round; 0 = 20 s

	// Told hears what happens, from several goroutines. It must not block. nil = nobody.
	Told func(Event)

	lock func(context.Context) (func() error, error) // nil = the state's
	arm  func() (wires, error)                       // nil = real connections
	// note keeps events; nil = the journal.
	note func(context.Context, []journal.Event) error
	// burst asks after a hint; nil = tripwire.Confirm.
	burst func(context.Context, netip.AddrPort) tripwire.Verdict
}

// EventKind names what happened.
type EventKind string

// The kinds of events. The zero value is unknown.
const (
	EventUnknown EventKind = ""
	EventWaiting EventKind = "waiting" // for the predecessor to let go
	EventBegan   EventKind = "began"   // this run watches now
	EventHint    EventKind = "hint"    // a tripwire closed; Verdict is what the burst found
	EventDecided EventKind = "decided" // Result changed something, or could not
	EventLate    EventKind = "late"    // this process did not run for a while: misses of that time don't count
	EventFailed  EventKind = "failed"  // Object (edge, egress, a group) can't be watched; told once
	EventBack    EventKind = "back"    // … and works again
	EventGivenUp EventKind = "given_up"
	EventEnded   EventKind = "ended"
)

// Event is one thing that happened.
type Event struct {
	Kind   EventKind
	At     time.Time
	Object string        // front/proxy-01, egress
	Text   string        // one line; "" = Kind says it
	Took   time.Duration // hint: to the verdict; waiting: for the lock; late: how long
	Result *edge.Result  // decided
	Err    error         // failed
}

// Summary is what a run did.
type Summary struct {
	Waited  time.Duration `json:"waited"` // for the predecessor
	Probes  uint64        `json:"probes"`
	Late    uint64        `json:"late"` // misses that were not counted
	Hints   uint64        `json:"hints"`
	Dead    uint64        `json:"dead"`  // hints that were confirmed
	Alive   uint64        `json:"alive"` // hints that were not
	Moves   []edge.Move   `json:"moves,omitempty"`
	Egress  uint64        `json:"egress"`           // rounds
	Failed  uint64        `json:"failed,omitempty"` // of them
	Partial error         `json:"-"`                // the last decision of the edge that was carried out in part
}

const (
	defaultInterval = time.Second
	defaultFor      = 65 * time.Second
	defaultLimit    = 20 * time.Second
	slowestLook     = 5 * time.Second // leases and holds are looked at no more seldom
	fastestLook     = time.Second
	endLimit        = 3 * time.Second // for what a run that ends still waits for
)

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.State == nil || o.Now == nil:
		return o, errors.New("watchdog: wants a state folder and a clock")
	case o.Edge == nil && o.Egress == nil:
		return o, errors.New("watchdog: nothing to watch")
	case o.Interval < 0 || o.For < 0:
		return o, fmt.Errorf("watchdog: interval %s for %s: want positive times", o.Interval, o.For)
	}
	if o.Started.IsZero() {
		o.Started = clock()
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Interval, defaultInterval)
	def(&o.For, defaultFor)
	def(&o.EgressLimit, defaultLimit)
	if o.lock == nil {
		o.lock = func(ctx context.Context) (func() error, error) {
			l, err := o.State.Wait(ctx, LockName, o.Holder)
			return l.Unlock, err
		}
		if o.Once {
			o.lock = func(ctx context.Context) (func() error, error) {
				l, err := o.State.Lock(ctx, LockName, o.Holder, 0)
				return l.Unlock, err
			}
		}
	}
	if o.arm == nil {
		o.arm = realWires
	}
	if o.note == nil {
		o.note = func(ctx context.Context, list []journal.Event) error { return appendTo(ctx, o.State, list) }
	}
	return o, nil
}

// Watchdog is one run.
type Watchdog struct {
	o     Options
	until time.Time
	sum   tally
	clerk *clerk
	eye   atomic.Pointer[eye] // nil = not opened (yet)
}

// Run watches until o.For is over: nil. It waits for a predecessor first, with its
// tripwires armed already: when that one does not let go in time the error is a
// *state.BusyError. When ctx ends sooner, so does the run, and the error is ctx's. Whatever
// fails on the way is told, retried and never ends the run.
func Run(ctx context.Context, o Options) (Summary, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Summary{}, err
	}
	w := &Watchdog{o: o, until: o.Started.Add(o.For)}
	w.clerk = newClerk(w)
	if o.Once {
		err = w.once(ctx)
	} else {
		err = w.run(ctx)
	}
	w.clerk.close()
	return w.sum.get(), err
}

func (w *Watchdog) run(ctx context.Context) error {
	bound, cancel := context.WithDeadline(ctx, w.until)
	defer cancel()
	var opening error
	if w.o.Edge != nil {
		opening = w.open(bound)
		defer func() { w.eye.Load().close() }()
	}
	began := clock()
	w.tell(Event{Kind: EventWaiting})
	unlock, err := w.o.lock(bound)
	if err != nil {
		return w.ending(ctx, err)
	}
	waited := clock().Sub(began)
	w.sum.count(func(s *Summary) { s.Waited = waited })
	w.tell(Event{Kind: EventBegan, Took: waited})
	var sending chan struct{}
	if w.o.Egress != nil {
		sending = background(func() { w.rounds(ctx, bound) })
	}
	w.watch(bound, opening)
	err = unlock() // the next one works from here on
	w.tell(Event{Kind: EventEnded})
	if sending != nil {
		<-sending // a round has its own limit, and its own locks
	}
	return errors.Join(ctx.Err(), err)
}

// ending is what a run returns that never had its turn.
func (w *Watchdog) ending(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	return err
}

// watch works until bound ends. When it returns nothing of this run decides any more.
func (w *Watchdog) watch(bound context.Context, opening error) {
	// What works on while this run ends is not cut off by its deadline.
	ctx, cancel := context.WithCancel(context.WithoutCancel(bound))
	defer cancel()
	b := newBeats(w)
	beating := background(func() { b.run(ctx) })
	watching := background(func() { <-bound.Done() })
	if w.o.Edge != nil {
		watching = background(func() { w.watchEdge(ctx, bound, opening) })
	}
	<-bound.Done()
	limit := time.NewTimer(endLimit)
	defer limit.Stop()
	select {
	case <-watching:
	case <-limit.C:
	}
	cancel()
	<-beating
	b.last()
}

// once is one round of everything.
func (w *Watchdog) once(ctx context.Context) error {
	unlock, err := w.o.lock(ctx)
	if err != nil {
		return err
	}
	var errs [2]error
	var done [2]chan struct{}
	if w.o.Edge != nil {
		done[0] = background(func() { errs[0] = w.onceEdge(ctx) })
	}
	if w.o.Egress != nil {
		done[1] = background(func() { errs[1] = w.round(ctx) })
	}
	for _, d := range done {
		if d != nil {
			<-d
		}
	}
	return errors.Join(errs[0], errs[1], unlock())
}

// background runs f and tells when it has ended.
func background(f func()) chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

func (w *Watchdog) tell(e Event) {
	if w.o.Told != nil {
		e.At = w.o.Now()
		w.o.Told(e)
	}
}

// clock is read where durations are measured, never to decide what day it is.
func clock() time.Time {
	return time.Now() //nolint:forbidigo // measures durations: intervals, delays, the run's own life
}
