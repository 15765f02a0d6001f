package watchdog

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/tripwire"
)

const (
	stale      = 500 * time.Millisecond // an older hint moves nothing before it is confirmed: a predecessor has seen it too
	crowdPause = 50 * time.Millisecond  // before the last of a service is asked again, when many broke at once
	crowdLimit = 500 * time.Millisecond // for the others of a crowd to be confirmed
	lastBursts = 20 * time.Millisecond  // for those under way when the run ends: a death is clear sooner, and a successor asks anew
)

// hints asks after each closed tripwire and acts on what it finds. Candidates don't wait
// for each other; at most max bursts are under way.
type hints struct {
	e     *eye
	max   int
	burst func(context.Context, netip.AddrPort) tripwire.Verdict

	mu        sync.Mutex
	busy      map[netip.AddrPort]bool          // being asked after, or waiting for it
	again     map[netip.AddrPort]tripwire.Hint // came meanwhile
	queue     []tripwire.Hint
	running   int
	asking    int                 // bursts that are not over, with those that wait
	calm      chan struct{}       // closed when there are none; nil = nobody waits for that
	condemned map[*candidate]bool // found dead, and not recorded yet
	work      sync.WaitGroup
}

func newHints(e *eye, limit int) *hints {
	if limit <= 0 {
		limit = defaultConcurrent
	}
	return &hints{
		e: e, max: limit, busy: map[netip.AddrPort]bool{}, again: map[netip.AddrPort]tripwire.Hint{}, condemned: map[*candidate]bool{},
		burst: e.w.o.burst,
	}
}

// run takes hints until ctx ends, and then waits for what was begun. Those that came while
// a predecessor still worked wait in the channel, and each is asked after like any other.
func (h *hints) run(ctx context.Context) {
	defer h.work.Wait()
	if h.e.wires == nil {
		return
	}
	from := h.e.wires.Hints()
	for _, hint := range kept(from) {
		h.take(ctx, hint)
	}
	for {
		select {
		case hint, ok := <-from:
			if !ok {
				return
			}
			h.take(ctx, hint)
		case <-ctx.Done():
			return
		}
	}
}

// kept is what came before our turn: of each server the last, for only how things are now
// counts. A refusal follows a close, and the moment of the close is that of the death.
func kept(from <-chan tripwire.Hint) []tripwire.Hint {
	var list []tripwire.Hint
	at := map[netip.AddrPort]int{}
	for {
		select {
		case hint, ok := <-from:
			if !ok {
				return list
			}
			if i, known := at[hint.Addr]; !known {
				at[hint.Addr] = len(list)
				list = append(list, hint)
			} else if hint.Kind != tripwire.KindRefused {
				list[i] = hint
			}
		default:
			return list
		}
	}
}

// take begins to ask after a hint. One that comes while its server is being asked counts
// when that is over.
func (h *hints) take(ctx context.Context, hint tripwire.Hint) {
	if len(h.e.watched[hint.Addr]) == 0 {
		return
	}
	h.e.w.sum.hinted()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy[hint.Addr] {
		h.again[hint.Addr] = hint
		return
	}
	h.busy[hint.Addr] = true
	h.asking++
	if h.running >= h.max {
		h.queue = append(h.queue, hint)
		return
	}
	h.running++
	h.work.Add(1)
	go h.serve(ctx, hint)
}

// serve asks after one hint, and then after those that had to wait for a place.
func (h *hints) serve(ctx context.Context, hint tripwire.Hint) {
	defer h.work.Done()
	for {
		h.follow(ctx, hint)
		h.mu.Lock()
		delete(h.busy, hint.Addr)
		if late, ok := h.again[hint.Addr]; ok {
			delete(h.again, hint.Addr)
			h.busy[hint.Addr] = true
			h.asking++
			h.queue = append(h.queue, late)
		}
		if len(h.queue) == 0 || ctx.Err() != nil {
			h.running--
			h.mu.Unlock()
			return
		}
		hint, h.queue = h.queue[0], h.queue[1:]
		h.mu.Unlock()
	}
}

// follow is one hint from the first suspicion to the end of what it causes.
func (h *hints) follow(ctx context.Context, hint tripwire.Hint) {
	group := h.e.watched[hint.Addr]
	sudden := !hint.Expected && !hint.Suspicious && clock().Sub(hint.At) < stale
	if !sudden || !slices.ContainsFunc(group, h.diverts) {
		v := h.burst(ctx, hint.Addr)
		h.asked()
		h.act(ctx, hint, v, group)
		return
	}
	verdict := make(chan tripwire.Verdict, 1)
	go func() {
		verdict <- h.burst(ctx, hint.Addr)
		h.asked()
	}()
	h.divert(ctx, group) // what follows must not overtake it
	h.act(ctx, hint, <-verdict, group)
}

// diverts says whether a hint alone leads traffic away from a candidate.
func (h *hints) diverts(c *candidate) bool {
	return c.divert && h.e.alive(c) && slices.ContainsFunc(c.siblings, func(s *candidate) bool { return s != c && h.e.alive(s) })
}

func (h *hints) divert(ctx context.Context, group []*candidate) {
	each(group, func(c *candidate) {
		if !h.diverts(c) {
			return
		}
		h.e.changed()
		c.hinted.Store(clock().UnixNano())
		res, err := h.e.session.Divert(context.WithoutCancel(ctx), c.key)
		if !slices.ContainsFunc(res.Plan.Held, func(x edge.Held) bool { return x.Code == edge.HeldNoSecond }) {
			c.diverted.Store(true) // also after an error: it may be tried again from within
		}
		h.e.w.decided(res, err)
	})
}

// each calls f for all, at the same time where there are several.
func each(group []*candidate, f func(*candidate)) {
	var wg sync.WaitGroup
	for _, c := range group[1:] {
		wg.Go(func() { f(c) })
	}
	f(group[0])
	wg.Wait()
}

// act does what a verdict asks for. What was begun is not cut off by ctx.
func (h *hints) act(ctx context.Context, hint tripwire.Hint, v tripwire.Verdict, group []*candidate) {
	took := clock().Sub(hint.At)
	switch v.Word {
	case tripwire.WordDead:
		h.e.wires.Died(hint.Addr)
		each(group, func(c *candidate) { h.bury(ctx, hint, v, c) })
	case tripwire.WordAlive:
		h.e.w.sum.confirmed(v.Word)
		each(group, func(c *candidate) {
			h.back(ctx, c)
			h.e.probes.now(c.key) // that somebody accepts says little of what else it should do
		})
	case tripwire.WordUnknown: // nothing but silence: the probes know it soon
		each(group, func(c *candidate) {
			if ctx.Err() != nil {
				h.back(ctx, c) // a run that ends leaves no suspicion behind
				return
			}
			h.e.probes.now(c.key)
		})
	}
	h.e.w.tell(Event{Kind: EventHint, Object: group[0].name, Text: verdictText(hint, v), Took: took})
}

func verdictText(hint tripwire.Hint, v tripwire.Verdict) string {
	word := "nothing certain"
	if v.Word != tripwire.WordUnknown {
		word = string(v.Word)
	}
	return fmt.Sprintf("%s, then %s: %s (%d connections, %.1f ms)", hint.Kind, word, v.Reason, v.Tries, float64(v.Took.Microseconds())/1000)
}

// back ends a diversion from a candidate that lives.
func (h *hints) back(ctx context.Context, c *candidate) {
	if c.diverted.CompareAndSwap(true, false) {
		h.e.changed()
		h.e.w.decided(h.e.session.Undo(context.WithoutCancel(ctx), c.key))
	}
}

// bury declares a candidate dead. Where it is the last one of its service and many broke at
// once, it is rather we who are cut off: the others are asked to the end first, and it once more.
func (h *hints) bury(ctx context.Context, hint tripwire.Hint, v tripwire.Verdict, c *candidate) {
	last := h.condemn(c)
	defer h.pardon(c)
	if last && h.e.wires.Crowd(hint.At) {
		h.settled(ctx, crowdLimit)
		if run.Pause(ctx, crowdPause) == nil {
			v = h.burst(ctx, hint.Addr)
		}
		if v.Word != tripwire.WordDead || ctx.Err() != nil {
			h.back(ctx, c)
			return
		}
	}
	a := edge.Answer{
		Key: c.key, Outcome: edge.Miss, Refused: v.Refused, At: h.e.w.o.Now().UnixMilli(),
		Reason: fmt.Sprintf("tripwire %s, then %s", hint.Kind, v.Reason),
	}
	h.e.changed()
	c.diverted.Store(false)
	if h.e.alive(c) { // a refusal follows the close of the same death
		h.e.w.sum.confirmed(v.Word)
	}
	h.e.w.decided(h.e.session.Confirmed(context.WithoutCancel(ctx), a, hint.At))
}

// condemn notes a candidate and says whether no other of its service and family is left.
func (h *hints) condemn(c *candidate) (last bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.condemned[c] = true
	return !slices.ContainsFunc(c.siblings, func(s *candidate) bool { return !h.condemned[s] && h.e.alive(s) })
}

func (h *hints) pardon(c *candidate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.condemned, c)
}

// asked counts a burst that came to its end.
func (h *hints) asked() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asking--
	if h.asking == 0 && h.calm != nil {
		close(h.calm)
		h.calm = nil
	}
}

// settled waits until no burst is under way, at most for a time.
func (h *hints) settled(ctx context.Context, limit time.Duration) {
	h.mu.Lock()
	if h.asking == 0 {
		h.mu.Unlock()
		return
	}
	if h.calm == nil {
		h.calm = make(chan struct{})
	}
	calm := h.calm
	h.mu.Unlock()
	bound, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-calm:
	case <-bound.Done():
	}
}
