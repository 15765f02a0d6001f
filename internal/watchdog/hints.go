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
		burst: e.burst,
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
	h.take(ctx, kept(from)...)
	for {
		select {
		case hint, ok := <-from:
			if !ok {
				return
			}
			// What breaks at once is moved at once, like both families of one server.
			list := []tripwire.Hint{hint}
			for len(from) > 0 && len(list) < h.max {
				list = append(list, <-from)
			}
			h.take(ctx, list...)
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

// take begins to ask after hints. One that comes while its server is being asked counts
// when that is over.
func (h *hints) take(ctx context.Context, list ...tripwire.Hint) {
	begun := make([]tripwire.Hint, 0, len(list))
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hint := range list {
		if len(h.e.watched[hint.Addr]) == 0 {
			continue
		}
		h.e.w.sum.hinted()
		if h.busy[hint.Addr] {
			h.again[hint.Addr] = hint
			continue
		}
		h.busy[hint.Addr] = true
		h.asking++
		if h.running >= h.max {
			h.queue = append(h.queue, hint)
			continue
		}
		h.running++
		begun = append(begun, hint)
	}
	if len(begun) > 0 {
		h.work.Add(1)
		go h.begin(ctx, begun)
	}
}

// begin leads traffic away where a hint is enough for that, and asks after each hint. Nothing
// comes before the move, and what the asking finds must not overtake it.
func (h *hints) begin(ctx context.Context, list []tripwire.Hint) {
	defer h.work.Done()
	over := make(chan struct{})
	ask := func(list []tripwire.Hint) {
		for _, hint := range list {
			h.work.Add(1)
			go h.serve(ctx, hint, over)
		}
	}
	if group := h.divertible(list); len(group) > 0 {
		h.divert(ctx, group, func() { ask(list) })
		close(over)
		return
	}
	close(over)
	ask(list[1:])
	h.work.Add(1)
	h.serve(ctx, list[0], over) // here: waking another thread takes longer than the question
}

// serve asks after one hint, and leaves its place to one that had to wait.
func (h *hints) serve(ctx context.Context, hint tripwire.Hint, diverted <-chan struct{}) {
	defer h.work.Done()
	v := h.burst(ctx, hint.Addr)
	h.asked()
	<-diverted
	h.act(ctx, hint, v, h.e.watched[hint.Addr])
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.busy, hint.Addr)
	if late, ok := h.again[hint.Addr]; ok {
		delete(h.again, hint.Addr)
		h.busy[hint.Addr] = true
		h.asking++
		h.queue = append(h.queue, late)
	}
	if len(h.queue) == 0 || ctx.Err() != nil {
		h.running--
		return
	}
	next := h.queue[0]
	h.queue = h.queue[1:]
	h.work.Add(1)
	go h.begin(ctx, []tripwire.Hint{next})
}

// suspicion is a candidate with the hint that points at it.
type suspicion struct {
	*candidate
	at time.Time
}

// divertible are the candidates from which a hint alone leads traffic away.
func (h *hints) divertible(list []tripwire.Hint) []suspicion {
	var out []suspicion
	for _, hint := range list {
		if hint.Expected || hint.Suspicious || clock().Sub(hint.At) >= stale {
			continue
		}
		for _, c := range h.e.watched[hint.Addr] {
			if h.diverts(c) {
				out = append(out, suspicion{c, hint.At})
			}
		}
	}
	return out
}

// diverts says whether a hint alone leads traffic away from a candidate.
func (h *hints) diverts(c *candidate) bool {
	return c.divert && h.e.alive(c) && slices.ContainsFunc(c.siblings, func(s *candidate) bool { return s != c && h.e.alive(s) })
}

// divert leads traffic away from candidates; moved is called when that is done for all of
// them, before it is recorded.
func (h *hints) divert(ctx context.Context, group []suspicion, moved func()) {
	h.e.changed()
	keys, at := make([]edge.Key, len(group)), group[0].at
	for i, c := range group {
		keys[i] = c.key
		c.hinted.Store(clock().UnixNano())
		if c.at.Before(at) {
			at = c.at
		}
	}
	res, err := h.e.session.Divert(context.WithoutCancel(ctx), at, moved, keys...)
	for i, c := range group {
		if !slices.ContainsFunc(res.Plan.Held, func(x edge.Held) bool { return x.Code == edge.HeldNoSecond && x.Object == keys[i].Object() }) {
			c.diverted.Store(true) // also after an error: it may be tried again from within
		}
	}
	h.e.w.decided(res, err)
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
	h.condemn(c)
	defer h.pardon(c)
	// What needs the session's memory waits for a decision that is under way, and what is
	// found here is to be decided with the next: so it is asked only where it counts.
	if h.e.wires.Crowd(hint.At) && h.last(c) {
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
	if !c.buried.Swap(true) { // a refusal follows the close of the same death
		h.e.w.sum.confirmed(v.Word)
	}
	h.e.w.decided(h.e.session.Confirmed(context.WithoutCancel(ctx), a, hint.At))
}

// condemn notes that a candidate was found dead.
func (h *hints) condemn(c *candidate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.condemned[c] = true
}

// last says whether no other of the candidate's service and family is left.
func (h *hints) last(c *candidate) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
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
