package egress

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// Recover makes an attempt now: a guarded refresh, by a recovery strategy where need be,
// the placing of what it found, and users' way back when all criteria hold. With dryRun it
// says what would be done.
func (e *Env) Recover(ctx context.Context, dryRun bool) (Outcome, error) {
	return e.recover(ctx, Options{Force: true}, dryRun)
}

// RefreshIfDue makes an attempt if the mode asks for one now, and a plain look otherwise.
func (e *Env) RefreshIfDue(ctx context.Context, dryRun bool) (Outcome, error) {
	return e.recover(ctx, Options{}, dryRun)
}

// Direct takes an operator's word about direct.
func (e *Env) Direct(ctx context.Context, order DirectOrder, dryRun bool) (Outcome, error) {
	return e.recover(ctx, Options{Direct: &order}, dryRun)
}

func (e *Env) recover(ctx context.Context, opts Options, dryRun bool) (Outcome, error) {
	p, err := e.begin("recover", !dryRun)
	if err != nil {
		return Outcome{}, err
	}
	p.in.Options = opts
	if err := p.loadState(false); err != nil {
		return Outcome{}, err
	}
	if err := p.observePlane(ctx, !dryRun); err != nil {
		return Outcome{}, err
	}
	if opts.Force || opts.Direct == nil || !opts.Direct.On {
		p.look(ctx)
	} else {
		p.observeLanes(ctx) // users go first, and nothing is asked of lanes
	}
	plan := func() Plan { return PlanRecover(p.in) }
	if dryRun {
		err := p.loadModes(false)
		p.plan = plan()
		p.watch()
		p.out.Input, p.out.Plan = p.in, p.plan
		if err == nil && opts.Direct == nil {
			p.out.Tried, err = p.wouldTry(ctx)
		}
		return p.out, err
	}
	err = p.modes(ctx, false, plan)
	p.out.Input, p.out.Plan = p.in, p.plan
	if err == nil && opts.Direct == nil {
		p.out, err = e.follow(ctx, p.out)
	}
	return p.out, err
}

// wouldTry asks the strategies what they would do; nothing is sent or run.
func (p *pass) wouldTry(ctx context.Context) ([]StrategyTry, error) {
	if p.Recovery == nil {
		return nil, nil
	}
	in, err := p.recoveryInput()
	if err != nil {
		return nil, err
	}
	in.DryRun = true
	res, err := p.Recovery.Recover(ctx, in)
	return res.Tried, err
}

// look makes a round and, where endpoints pass, a strict check through every lane.
func (p *pass) look(ctx context.Context) {
	p.loadPools()
	p.lookAtLanes(ctx)
	var wg sync.WaitGroup
	for i, l := range p.Config.Lanes {
		v := &p.in.Lanes[i]
		if v.Round == nil || !v.Round.Pass {
			why := "no round passed"
			v.Strict = &why
			continue
		}
		wg.Go(func() { s := p.strict(ctx, l); v.Strict = &s })
	}
	wg.Wait()
}

// Follow does what a plan's modes ask for and what takes long: the attempt, the rebuild, and
// what follows from them. The lanes' locks are not held meanwhile: repairs go on.
//
// Follow is for a repair that left them to its caller (see Later).
func (e *Env) Follow(ctx context.Context, out Outcome) (Outcome, error) { return e.follow(ctx, out) }

func (e *Env) follow(ctx context.Context, out Outcome) (Outcome, error) {
	for range 4 { // refresh, rebuild, and what they lead to
		kind, wanted := out.Plan.wants()
		rebuild := out.Plan.rebuilds()
		if !wanted && !rebuild {
			return out, nil
		}
		p, err := e.begin("recover", true)
		if err != nil {
			out.release()
			return out, err
		}
		p.out.lock = out.lock
		if wanted {
			p.attempt(ctx, kind)
		} else {
			p.place(ctx)
		}
		err = p.conclude(ctx)
		applied, partial := out.Applied, out.Partial
		out = Outcome{Input: p.in, Plan: p.plan, Applied: applied + p.out.Applied, Partial: errors.Join(partial, p.out.Partial), lock: p.out.lock}
		if _, again := out.Plan.wants(); !again || err != nil {
			out.release()
		}
		if err != nil {
			return out, err
		}
	}
	out.release()
	return out, nil
}

// Pending says whether an attempt or a rebuild is asked for.
func (o Outcome) Pending() bool {
	_, wanted := o.Plan.wants()
	return wanted || o.Plan.rebuilds()
}

// release ends what keeps other runs from making an attempt.
func (o *Outcome) release() {
	if o.lock != nil {
		_ = o.lock.Unlock()
		o.lock = nil
	}
}

// attempt is one guarded refresh.
func (p *pass) attempt(ctx context.Context, kind AttemptKind) {
	var busy *state.BusyError
	run.Point(ctx, "attempt.begun")
	out, err := p.Refresh(ctx, Options{Guarded: true, Any: kind != AttemptEmergency}, false)
	end := AttemptEnd{OK: err == nil && !out.Plan.HeldBack(), Busy: errors.As(err, &busy)}
	switch {
	case err != nil:
		end.Reason = err.Error()
	case out.Plan.HeldBack():
		end.Reason = out.Plan.Held[0].Reason
	}
	if out.Input.Listing != nil {
		end.Began, end.Strategy = out.Input.Listing.Began, out.Input.Listing.Via
	}
	p.out.Partial = out.Partial
	p.in.Ended = &end
	run.Point(ctx, "attempt.ended")
}

// place puts the fresh pool onto lanes.
func (p *pass) place(ctx context.Context) {
	out, err := p.Rebalance(ctx, false)
	var busy *state.BusyError
	end := RebuildEnd{Busy: errors.As(err, &busy) || out.Plan.Busy()}
	p.out.Applied = out.Applied
	switch {
	case err != nil:
		end.Reason = err.Error()
	case out.Partial != nil:
		end.Reason = out.Partial.Error()
	}
	p.in.Placed = &end
	run.Point(ctx, "pool.placed")
}

// conclude tells the machine how an attempt or a rebuild ended, with a look at the lanes
// and the uplink as they are now.
func (p *pass) conclude(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	p.in.Now = p.Now()
	if p.in.Ended == nil && p.in.Placed == nil {
		return nil
	}
	if err := p.loadState(false); err != nil {
		return err
	}
	if err := p.observePlane(ctx, true); err != nil {
		return err
	}
	p.look(ctx)
	if r := p.in.Placed; r != nil && r.Reason == "" && !r.Busy {
		for _, l := range p.in.Lanes {
			r.OK = r.OK || l.Strict != nil && *l.Strict == ""
		}
		if !r.OK {
			r.Reason = "no lane passes the strict check"
		}
	}
	if err := p.modes(ctx, false, func() Plan { return PlanRecover(p.in) }); err != nil {
		return fmt.Errorf("modes: %w", err)
	}
	return nil
}
