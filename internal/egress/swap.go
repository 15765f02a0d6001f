package egress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/run"
)

// letGo is how long a refresh that probes the same server gets to see the intent and to
// close its tunnel, before the lane's handshake begins.
const letGo = 150 * time.Millisecond

// prove tests candidates in process, all at once, and stops soon after enough have passed.
func (p *pass) prove(ctx context.Context, s Step) error {
	c := p.Config.Test
	r := p.Config.Repair
	c.Parallel, c.Rate = max(len(s.Endpoints), 1), 0
	c.TLS = nil // users wait: the strict check on the lane does TLS before the swap counts
	c.HandshakeTimeout = min(c.HandshakeTimeout, r.ProveFor/2)
	c.PingTimeout = min(c.PingTimeout, r.ProveFor/3)
	c.Deadline = r.ProveFor
	var targets []TestTarget
	for _, e := range s.Endpoints {
		if _, ok := p.in.Proofs[e]; ok {
			continue
		}
		if row, ok := p.row(e); ok {
			targets = append(targets, TestTarget{Endpoint: e, Path: row.Path, Pair: row.Pair})
		}
	}
	began := time.Now() //nolint:forbidigo // measures a duration
	err := p.test(ctx, c, targets, p.wanted())
	passed := 0
	for _, e := range s.Endpoints {
		if t, ok := p.in.Proofs[e]; !ok {
			p.in.Proofs[e] = TestResult{Endpoint: e, Reason: "not proven in time"}
		} else if t.Reason == "" {
			passed++
		}
	}
	p.event(journal.Event{
		Kind: "prove", Object: join(s.Endpoints), Reason: s.Reason,
		Figures: map[string]float64{"took": ms(time.Since(began)), "passed": float64(passed), "tested": float64(len(targets))}, //nolint:forbidigo // measures a duration
	})
	return err
}

// wanted is how many lanes wait for an endpoint.
func (p *pass) wanted() int {
	lanes := map[string]bool{}
	for _, s := range p.plan.Steps {
		if s.Kind == StepSwap && s.If != "" {
			lanes[s.Lane] = true
		}
	}
	return max(len(lanes), 1)
}

// test fills in.Proofs. Once `enough` have passed, the others get a short grace: a dead
// candidate must not hold a lane up for its whole timeout.
func (p *pass) test(ctx context.Context, c TestConfig, targets []TestTarget, enough int) error {
	if len(targets) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.Deadline+500*time.Millisecond)
	defer cancel()
	passed := 0
	err := p.Tester.Test(ctx, c, targets, func(string) bool { return false }, func(t TestResult) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if ctx.Err() != nil && t.Reason != "" {
			return
		}
		p.in.Proofs[t.Endpoint] = t
		if t.Reason == "" {
			if passed++; passed == enough {
				time.AfterFunc(letGo, cancel)
			}
		}
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("proving candidates: %w", err)
	}
	return nil
}

func (p *pass) row(endpoint string) (Row, bool) {
	for _, pool := range p.in.Pools {
		for _, r := range pool.Rows {
			if r.Endpoint == endpoint && r.Pair != "" {
				return r, true
			}
		}
	}
	return Row{}, false
}

// swap gives a lane another endpoint: intent, new path live, strict check, installed; only
// then are the flows of the old path deleted. What does not pass is undone at once.
func (p *pass) swap(ctx context.Context, s Step) error {
	l, _ := p.Config.Lane(s.Lane)
	if ok, err := p.lockLane(ctx, s.Lane); !ok || err != nil {
		return err
	}
	it := Intent{Command: p.in.Command, Run: p.in.Seed, Began: p.Now(), Lane: s.Lane, From: s.From, FailedAt: p.failed[s.Lane]}
	if s.From != "" {
		it.FromPath = p.Installed(s.Lane)
	}
	if p.in.Command == "repair" && it.FailedAt == 0 {
		it.FailedAt = p.recordedAt(s) // counted then: the intent names no count
	}
	it.To, it.ToPath, it.ToPair = s.To, s.Path, s.Pair
	if err := p.writeIntent(ctx, it); err != nil {
		return err
	}
	if p.refreshRuns() {
		_ = run.Pause(ctx, letGo)
	}
	out := SwapOutcome{Lane: s.Lane, From: s.From, Endpoint: s.To}
	began := time.Now() //nolint:forbidigo // measures a duration
	var err error
	out.Method, out.Reason, err = p.swapAndCheck(ctx, l, it)
	out.Took = time.Since(began) //nolint:forbidigo // measures a duration
	out.OK = err == nil && out.Reason == ""
	if err != nil && out.Reason == "" {
		out.Reason = err.Error()
	}
	p.in.Swaps = append(p.in.Swaps, out)
	kind := "swap"
	if !out.OK {
		kind = "rollback"
	}
	p.event(journal.Event{
		Kind: kind, Object: s.Lane, From: s.From, To: s.To, Reason: first(out.Reason, s.Reason),
		Figures: map[string]float64{"took": ms(out.Took)},
	})
	if out.OK {
		err = p.flushLane(ctx, l)
	}
	if err == nil {
		err = p.dropIntent(ctx, s.Lane)
	}
	return errors.Join(err, p.flushEvents(ctx))
}

// strictCheck begins the reasons of endpoints that failed on the lane.
const strictCheck = "strict check: "

// swapAndCheck returns the reason why the endpoint did not pass. An error means that the
// lane could not be put back: the intent stays for the next run.
func (p *pass) swapAndCheck(ctx context.Context, l Lane, it Intent) (method, reason string, err error) {
	rep, err := p.Devices.Swap(ctx, l, it.FromPath, it.ToPath)
	if errors.Is(err, ErrNoHandshake) {
		return rep.Method, "no handshake", nil // nothing was touched
	}
	if err != nil {
		return rep.Method, err.Error(), p.undo(ctx, l, it)
	}
	if reason = p.strict(ctx, l); reason != "" {
		return rep.Method, reason, p.undo(ctx, l, it)
	}
	if rep.Method != "make-before-break" { // addresses may have changed, and routes with them
		if err := p.mendPlane(ctx); err != nil {
			return rep.Method, "", err
		}
	}
	return rep.Method, "", p.install(ctx, l, it)
}

// undo puts the saved profile back. A lane that was healthy gets it back without a gap
// where that is possible; a dead one at once, since its endpoint can't answer.
func (p *pass) undo(ctx context.Context, l Lane, it Intent) error {
	if it.FromPath == "" {
		return nil
	}
	if _, err := os.Stat(it.FromPath); err != nil {
		return fmt.Errorf("lane %s: its saved profile: %w", l.Name, err)
	}
	if it.FailedAt == 0 {
		if _, err := p.Devices.Swap(ctx, l, it.ToPath, it.FromPath); err == nil {
			how := first(p.strict(ctx, l), "passes")
			p.event(journal.Event{Kind: "restored", Object: l.Name, To: it.From, Reason: "the saved profile is back: " + how})
			return nil
		}
	}
	if err := p.Devices.Settle(ctx, l, it.FromPath, false); err != nil {
		return fmt.Errorf("lane %s: rolling back to %s: %w", l.Name, it.From, err)
	}
	return nil
}

// strict is the strict check: no ping lost, over a young handshake, and every deeper rung
// that is configured. It returns what failed, "" when all is well.
func (p *pass) strict(ctx context.Context, l Lane) string {
	c := p.Config.Check
	r := p.Prober.Round(ctx, l, c, c.StrictCount, c.StrictCount)
	if r.Got < c.StrictCount {
		reason := fmt.Sprintf(strictCheck+"%d of %d pings lost", c.StrictCount-r.Got, c.StrictCount)
		if r.Error != "" {
			reason += ": " + r.Error
		}
		return reason
	}
	d, err := p.Devices.Observe(ctx, l)
	if err != nil {
		return err.Error()
	}
	peer, ok := d.Active()
	if age := p.Now().Sub(peer.Handshake); !ok || peer.Handshake.IsZero() || age > c.MaxHandshake {
		return strictCheck + "no young handshake"
	}
	return p.deep(ctx, l)
}

// deep does the deeper rungs that are configured and returns what failed.
func (p *pass) deep(ctx context.Context, l Lane) string {
	c := p.Config.Check
	if !c.FullSize && len(c.TLS) == 0 {
		return ""
	}
	d := p.Prober.Deep(ctx, l, c)
	s := sample(LaneView{Round: &Round{}, Deep: &d}, p.Now())
	switch {
	case !s.FullSize && !s.TLS && !s.HalfSize:
		return strictCheck + "data stops (choked)"
	case !s.FullSize:
		return strictCheck + "a full-size packet does not pass (mtu)"
	case !s.TLS:
		return strictCheck + "no TLS target completes (no_data)"
	}
	return ""
}

// recordedAt is when the endpoint that is now replaced was quarantined, by an earlier run or
// by this one before a candidate that did not pass. The last record counts.
func (p *pass) recordedAt(s Step) (at int64) {
	rows, _ := p.State.QuarantineUnion()
	for _, q := range rows {
		if q.Endpoint == s.From && q.Slot == s.Lane && q.Replacement == "" {
			at = q.FailedAt.Unix()
		}
	}
	return at
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
