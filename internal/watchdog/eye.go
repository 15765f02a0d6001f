package watchdog

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// wires are the tripwires; *tripwire.Set.
type wires interface {
	Arm(targets []tripwire.Target)
	Renew()
	Hints() <-chan tripwire.Hint
	Status() []tripwire.Status
	Crowd(at time.Time) bool
	Died(addr netip.AddrPort)
	Close()
}

func realWires() (wires, error) {
	s, err := tripwire.New(tripwire.Options{})
	if err != nil {
		return nil, err
	}
	return s, nil
}

const (
	saveEvery  = 2 * time.Second
	learnEvery = 2 * time.Second
	armEvery   = 10 * time.Second // addresses of this machine come and go
	retryEvery = time.Second      // to open what can't be opened
	lateEvery  = time.Second
)

// eye watches the candidates of the edge.
type eye struct {
	w       *Watchdog
	ctx     context.Context // never ends: what is begun has deadlines of its own
	session *edge.Session
	wires   wires // nil = none could be made: only probes
	probes  *probes
	judges  *judges
	hints   *hints

	watched map[netip.AddrPort][]*candidate // by what a tripwire of theirs is armed at
	byKey   map[edge.Key]*candidate
	dirty   atomic.Uint64 // counts what a successor must know and the disk does not yet

	mu    sync.Mutex
	state map[netip.AddrPort]tripwire.Status // as it was told last
}

// candidate is one key with what decides about its hints.
type candidate struct {
	key      edge.Key
	name     string // front/proxy-01
	probe    edge.Probe
	divert   bool
	siblings []*candidate // of its service and family, itself included
	diverted atomic.Bool  // its traffic was led away, and nobody knows yet
	hinted   atomic.Int64 // when, unix nanoseconds
	buried   atomic.Bool  // a hint of its death was confirmed, and it has not answered since
}

// openEye opens the session and arms the tripwires. It decides nothing.
func (w *Watchdog) openEye(ctx context.Context) (*eye, error) {
	s, err := w.o.Edge.Open(ctx)
	if err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	e := &eye{w: w, ctx: context.WithoutCancel(ctx), session: s, state: map[netip.AddrPort]tripwire.Status{}}
	e.index(w.o.Edge.Config)
	most := w.o.Edge.Config.MaxConcurrent
	e.judges = &judges{ctx: e.ctx, judge: s.Judge, done: w.decided, changed: e.changed}
	e.probes = newProbes(s.Targets(), most, e.ask, e.heard)
	if len(e.watched) > 0 {
		if e.wires, err = w.o.arm(); err != nil {
			w.clerk.trouble("tripwires", err)
		} else {
			e.wires.Arm(e.targets())
		}
	}
	e.hints = newHints(e, most)
	return e, nil
}

// index finds what the configuration says of each key.
func (e *eye) index(c edge.Config) {
	e.watched, e.byKey = map[netip.AddrPort][]*candidate{}, map[edge.Key]*candidate{}
	asked := map[edge.Key]netip.AddrPort{}
	for _, t := range e.session.Targets() {
		asked[t.Key] = t.Addr
	}
	for i := range c.Services {
		s := &c.Services[i]
		for _, family := range []int{4, 6} {
			var group []*candidate
			for _, cand := range s.Candidates {
				k := edge.KeyOf(*s, cand, family)
				probed, known := asked[k]
				if _, twice := e.byKey[k]; k == "" || twice || !known {
					continue // nobody asks it, so nothing may say that it is dead
				}
				x := &candidate{key: k, name: s.Name + "/" + edge.CandidateName(cand), probe: s.Probe, divert: s.OnHint == edge.OnHintDivert}
				e.byKey[k] = x
				group = append(group, x)
				if at := wireAt(s, cand, family, probed); s.Tripwire && at.IsValid() {
					e.watched[at] = append(e.watched[at], x)
				}
			}
			for _, x := range group {
				x.siblings = group
			}
		}
	}
}

// wireAt is the address that a tripwire is armed at: where clients connect, or, where they
// send datagrams, the port that is asked.
func wireAt(s *edge.Service, c edge.Candidate, family int, probed netip.AddrPort) netip.AddrPort {
	if len(s.Protocols) > 0 && !slices.Contains(s.Protocols, edge.TCP) {
		if s.Probe.Type == edge.ProbeExec {
			return netip.AddrPort{}
		}
		return probed
	}
	if at := c.Reached(s, family); at.Port() > 0 {
		return at
	}
	return netip.AddrPort{}
}

func (e *eye) targets() []tripwire.Target {
	list := make([]tripwire.Target, 0, len(e.watched))
	for addr, c := range e.watched {
		h := e.session.Health(c[0].key)
		list = append(list, tripwire.Target{Addr: addr, Lifetime: h.Lifetime, Short: h.Short, Greeting: c[0].probe.Greeting()})
	}
	return list
}

// burst asks after a hint.
func (e *eye) burst(ctx context.Context, addr netip.AddrPort) tripwire.Verdict {
	if e.w.o.burst != nil {
		return e.w.o.burst(ctx, addr)
	}
	greeting := ""
	if c := e.watched[addr]; len(c) > 0 {
		greeting = c[0].probe.Greeting()
	}
	return tripwire.Confirm(ctx, addr, tripwire.ConfirmOptions{Greeting: greeting})
}

// madeTable says whether a step made or mended this machine's table.
func (e *eye) madeTable(s edge.Step) bool {
	return s.Kind == edge.StepTable && s.Replica == e.w.o.Edge.Node
}

// rearm makes all tripwires anew. Connection tracking may begin with the table: it takes the
// end of a connection that it has not seen before for invalid, which a firewall may drop.
func (e *eye) rearm() {
	if e.wires != nil {
		e.wires.Renew()
	}
}

// alive says whether a candidate is not known to be dead.
func (e *eye) alive(c *candidate) bool {
	return e.session.Health(c.key).Misses < max(c.probe.Misses, 1)
}

func (e *eye) changed() { e.dirty.Add(1) }

// ask is one probe.
func (e *eye) ask(ctx context.Context, t edge.ProbeTarget) edge.Answer {
	bound, cancel := context.WithTimeout(ctx, t.Probe.Cap+time.Second)
	defer cancel()
	a := e.w.o.Edge.Prober.Probe(bound, t)
	a.Key = t.Key
	if a.At == 0 {
		a.At = e.w.o.Now().UnixMilli()
	}
	return a
}

// heard takes an answer that counts.
func (e *eye) heard(a edge.Answer, began time.Time) {
	e.w.sum.probed(a.Outcome)
	if a.Outcome == edge.Miss {
		e.changed()
	}
	c := e.byKey[a.Key]
	if c != nil && a.Outcome == edge.Good {
		c.buried.Store(false)
	}
	if c != nil && c.diverted.Load() && e.settle(c, a, began) {
		return
	}
	e.judges.hear(a)
}

// settle ends a diversion that a burst left open, because nothing at all answered.
func (e *eye) settle(c *candidate, a edge.Answer, began time.Time) bool {
	switch a.Outcome {
	case edge.Good:
		if began.UnixNano() <= c.hinted.Load() {
			return false // it was asked before it may have died
		}
	case edge.Miss:
		if e.session.Health(c.key).Misses+1 < max(c.probe.Misses, 1) {
			return false
		}
	case edge.OutcomeUnknown:
		return false
	}
	if c.diverted.CompareAndSwap(true, false) {
		e.w.decided(e.session.Confirmed(e.ctx, a, clock()))
		return true
	}
	return false
}

// watchEdge works until bound ends and then brings to its end what is under way; ctx lasts longer.
func (w *Watchdog) watchEdge(ctx, bound context.Context, opening error) {
	if opening != nil && !w.reopen(bound, opening) {
		return
	}
	w.eye.Load().watch(ctx, bound)
}

func (w *Watchdog) open(ctx context.Context) error {
	e, err := w.openEye(ctx)
	if err != nil {
		return err
	}
	w.eye.Store(e)
	return nil
}

// reopen tries again until it succeeds or bound ends.
func (w *Watchdog) reopen(bound context.Context, err error) bool {
	for {
		w.clerk.trouble("edge", err)
		if run.Pause(bound, retryEvery) != nil {
			return false
		}
		if err = w.open(bound); err == nil {
			w.clerk.trouble("edge", nil)
			return true
		}
	}
}

// watch is the eye's life between a predecessor and a successor.
func (e *eye) watch(ctx, bound context.Context) {
	e.session.Reload() // what the predecessor knew: it may have changed since we opened
	acting, stop := context.WithCancel(ctx)
	defer stop()
	hinting := background(func() { e.hints.run(acting) })
	probing := background(func() { e.probes.run(acting) })
	keeping := e.keep(bound)
	<-bound.Done()

	// All works on while the rest of what is known goes to the disk.
	saved := e.dirty.Load()
	e.save(ctx)
	e.probes.finish()
	<-keeping
	e.hints.settled(ctx, lastBursts)
	stop()
	<-probing
	<-hinting
	e.judges.wait()
	if e.dirty.Load() != saved {
		e.save(ctx)
	}
}

// keep does what is done every few seconds, each apart: a slow disk keeps no look waiting.
// What it returns is closed when all have ended, soon after ctx.
func (e *eye) keep(ctx context.Context) chan struct{} {
	var all sync.WaitGroup
	every := func(d time.Duration, f func()) {
		all.Go(func() {
			for run.Pause(ctx, d) == nil {
				f()
			}
		})
	}
	look := func() {
		res, err := e.session.Look(ctx)
		if ctx.Err() == nil { // else it is the run's end that it tells of
			e.w.clerk.trouble("edge look", err)
		}
		e.w.decided(res, nil)
	}
	all.Go(func() {
		look() // the first at once: tables are made, and what changed since is seen
		for run.Pause(ctx, min(max(e.w.o.Interval, fastestLook), slowestLook)) == nil {
			look()
		}
	})
	every(saveEvery, func() { e.save(ctx) })
	every(lateEvery, e.lateness)
	if e.wires != nil {
		every(learnEvery, e.learn)
		every(armEvery, func() { e.wires.Arm(e.targets()) })
	}
	for _, g := range e.w.o.Edge.Config.Parity {
		all.Go(func() {
			for ok := true; ok; ok = run.Pause(ctx, max(time.Second, g.Every/10)) == nil {
				res, err := e.session.Compare(ctx, g)
				if ctx.Err() == nil {
					e.w.clerk.trouble("parity "+g.Name, err)
				}
				e.w.decided(res, nil)
			}
		})
	}
	return background(all.Wait)
}

func (e *eye) save(ctx context.Context) {
	bound, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	e.w.clerk.trouble("edge state", e.session.Save(bound))
}

// lateness tells when this process did not run for a while.
func (e *eye) lateness() {
	if d := e.probes.news(); d > 0 {
		e.w.clerk.late(d)
	}
}

// learn keeps what the tripwires learned, and tells of those that were given up.
func (e *eye) learn() {
	for _, s := range e.wires.Status() {
		e.mu.Lock()
		was := e.state[s.Addr]
		e.state[s.Addr] = s
		e.mu.Unlock()
		for _, c := range e.watched[s.Addr] {
			if s.Lifetime != was.Lifetime || s.Short != was.Short {
				e.session.Learn(c.key, s.Lifetime, s.Short)
				e.changed()
			}
			if given := s.State == tripwire.StateGivenUp; given != (was.State == tripwire.StateGivenUp) {
				e.w.clerk.givenUp(c.name, given, s.Reason)
			}
		}
	}
}

// close lets connections go. It is called when nothing decides any more.
func (e *eye) close() {
	if e == nil {
		return
	}
	if e.wires != nil {
		e.wires.Close()
	}
	bound, cancel := context.WithTimeout(e.ctx, endLimit)
	defer cancel()
	if err := e.session.Close(bound); err != nil && !errors.Is(err, context.Canceled) {
		e.w.clerk.trouble("edge state", err)
	}
}
