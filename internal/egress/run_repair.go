package egress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/health"
	"github.com/shunt-net/shunt/internal/journal"
)

// maxSteps bounds one pass, whatever a plan says.
const maxSteps = 256

// Repair is one pass: look at every lane, and where one is down lend its users, record its
// endpoint, find a better one and put it in place. With dryRun it only looks and plans.
func (e *Env) Repair(ctx context.Context, dryRun bool) (Outcome, error) {
	p, err := e.begin("repair", !dryRun)
	if err != nil {
		return Outcome{}, err
	}
	if err := p.loadState(true); err != nil {
		return Outcome{}, err
	}
	if !dryRun {
		if err := p.recoverIntents(ctx, true); err != nil {
			p.out.Partial = errors.Join(p.out.Partial, err)
		}
	}
	if err := p.observePlane(ctx, !dryRun); err != nil {
		p.out.Partial = errors.Join(p.out.Partial, err)
	}
	p.lookAtLanes(ctx)
	p.plan = PlanRepair(p.in)
	p.noteVerdicts()
	if !dryRun {
		p.loans(ctx)
	}
	if needsPools(p.plan) {
		p.loadPools()
		p.plan = PlanRepair(p.in)
	}
	p.watch()
	if dryRun {
		p.out.Input, p.out.Plan = p.in, p.plan
		return p.out, nil
	}
	err = p.apply(ctx, func() Plan { return PlanRepair(p.in) })
	p.strictInDirect(ctx)
	err = errors.Join(err, p.modes(ctx, true, func() Plan { return PlanRepair(p.in) }))
	out, ferr := p.finish(ctx)
	if err = errors.Join(err, ferr); err != nil || ctx.Err() != nil {
		out.release()
		return out, err
	}
	if e.Later != nil && e.Later(ctx, out) {
		return out, nil
	}
	after, err := e.follow(ctx, out)
	out.Applied, out.Partial = after.Applied, after.Partial
	return out, err
}

// strictInDirect is the look that the way back from direct needs.
func (p *pass) strictInDirect(ctx context.Context) {
	s := p.in.modeState()
	if !isDirect(s.Mode) || s.ByHand(p.Config.modePolicy().Classes) || s.Declared && (!s.Refreshed || !s.Rebuilt) {
		return
	}
	p.loadPools()
	for i, l := range p.Config.Lanes {
		why := "no round passed"
		if v := p.in.Lanes[i]; v.Round != nil && v.Round.Pass {
			why = p.strict(ctx, l)
		}
		p.in.Lanes[i].Strict = &why
	}
}

// loans serves users first: classes move before a pool is read or a byte is written to
// the disk. A dead lane's replacement can wait that long, its users need not.
func (p *pass) loans(ctx context.Context) {
	for range maxSteps {
		steps := p.ready()
		if len(steps) == 0 || steps[0].Kind != StepLend && steps[0].Kind != StepReturn || ctx.Err() != nil {
			return
		}
		if err := p.execute(ctx, steps); err != nil {
			p.out.Partial = errors.Join(p.out.Partial, err)
			p.event(journal.Event{Kind: "failed", Object: steps[0].Class, Reason: err.Error()})
		}
		p.plan = PlanRepair(p.in)
	}
}

func needsPools(plan Plan) bool {
	for _, v := range plan.Lanes {
		switch health.Verdict(v.Verdict) {
		case health.Down, health.Suspect, health.Frozen:
			return true
		case health.Up, health.Loaded, health.Rising, health.Unknown:
		}
	}
	return false
}

// lookAtLanes makes a round through every lane, and looks at the uplink meanwhile.
func (p *pass) lookAtLanes(ctx context.Context) {
	p.observeLanes(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		u := p.Prober.Uplink(ctx, p.Config.Uplink)
		p.in.Uplink = &u
	})
	for i, l := range p.Config.Lanes {
		wg.Go(func() { p.lookAtLane(ctx, l, &p.in.Lanes[i]) })
	}
	wg.Wait()
}

func (p *pass) lookAtLane(ctx context.Context, l Lane, v *LaneView) {
	mem := p.in.Memory.Lanes[l.Name]
	if _, ok := v.Device.Active(); !ok { // certain without a packet
		v.Round = &Round{Error: "no peer carries traffic"}
		return
	}
	r := p.Prober.Round(ctx, l, p.Config.Check, p.Config.Check.Count, p.Config.Check.Need)
	v.Round = &r
	deep := p.Config.Check.FullSize || len(p.Config.Check.TLS) > 0
	busy := r.RxAfter-r.RxBefore >= health.VetoBytes // it vetoes silence, and no deeper rung
	if (r.Pass || busy) && deep && health.DeepDue(mem.Memory, mem.DeepAt, p.in.Now, p.Config.Check.DeepEvery) {
		d := p.Prober.Deep(ctx, l, p.Config.Check)
		v.Deep = &d
	}
}

// noteVerdicts writes a lane's change of state to the journal, with the time of the verdict.
func (p *pass) noteVerdicts() {
	for _, v := range p.plan.Lanes {
		was := p.in.Memory.Lanes[v.Lane].State
		if v.Verdict == was || v.Verdict == string(health.Up) && was == "" {
			continue
		}
		p.event(journal.Event{
			Kind: "verdict", Object: v.Lane, From: was, To: v.Verdict, Reason: v.Reason,
			Figures: map[string]float64{"rtt": v.RTT, "loss_share": v.Loss},
		})
	}
	if p.plan.Next.UplinkDown != p.in.Memory.UplinkDown {
		to := "up"
		if p.plan.Next.UplinkDown {
			to = "down"
		}
		p.event(journal.Event{Kind: "uplink", Object: "uplink", To: to, Reason: "gateway and direct targets"})
	}
}

// apply carries the plan out, step by step; after each step the plan is made again with
// what the step showed.
func (p *pass) apply(ctx context.Context, replan func() Plan) error {
	if unplaced(&p.in) {
		if err := p.sequence(ctx); err != nil {
			return err
		}
		p.plan = replan()
	}
	for range maxSteps {
		steps := p.ready()
		if len(steps) == 0 {
			return ctx.Err()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.opened(ctx, steps[0]); err != nil {
			return err
		}
		if err := p.execute(ctx, steps); err != nil {
			p.out.Partial = errors.Join(p.out.Partial, err)
			p.event(journal.Event{Kind: "failed", Object: steps[0].Lane + steps[0].Class, Reason: err.Error()})
		}
		p.plan = replan()
		p.watch()
	}
	return fmt.Errorf("%s: the plan did not come to an end in %d steps", p.in.Command, maxSteps)
}

// opened gives the run its place in the sequence, and the journal what happened so far,
// before the first step that is not only a move of users.
func (p *pass) opened(ctx context.Context, s Step) error {
	if s.Kind == StepLend || s.Kind == StepReturn {
		return nil
	}
	if err := p.sequence(ctx); err != nil {
		return err
	}
	if err := p.flushEvents(ctx); err != nil { // a journal that can't be written keeps no lane from its repair
		p.out.Partial = errors.Join(p.out.Partial, err)
	}
	return nil
}

// ready is the next step that was not carried out yet; neighbouring moves of classes come
// together, since they are one transaction.
func (p *pass) ready() []Step {
	var out []Step
	for _, s := range p.plan.Steps {
		if p.carriedOut(s) || s.If != "" {
			if len(out) > 0 {
				return out
			}
			if s.If != "" {
				return nil // what follows was only assumed
			}
			continue
		}
		if s.Kind != StepLend && s.Kind != StepReturn {
			if len(out) == 0 {
				out = append(out, s)
			}
			return out
		}
		if len(out) > 0 && out[0].Kind != s.Kind {
			return out
		}
		out = append(out, s)
	}
	return out
}

// carriedOut says whether a step is done: by this pass, or by what is known already.
func (p *pass) carriedOut(s Step) bool {
	if p.done[s.ID()] {
		return true
	}
	switch s.Kind {
	case StepProve:
		return !slices.ContainsFunc(s.Endpoints, func(e string) bool { _, ok := p.in.Proofs[e]; return !ok })
	case StepSwap:
		return slices.ContainsFunc(p.in.Swaps, func(o SwapOutcome) bool { return o.Lane == s.Lane && o.Endpoint == s.To })
	case StepRefresh, StepRebuild, StepDirect: // see modes
		return true
	case StepLeave:
		return false
	case StepRenew, StepLend, StepReturn, StepQuarantine, StepTest, StepPublish, StepUnknown:
	}
	return false
}

func (p *pass) execute(ctx context.Context, steps []Step) error {
	s := steps[0]
	for _, s := range steps {
		p.done[s.ID()] = true
	}
	before := len(p.in.Busy)
	var err error
	if s.Kind == StepProve || s.Kind == StepSwap {
		ok, err := p.lockForSearch(ctx)
		if !ok || err != nil {
			delete(p.done, s.ID())
			return err
		}
	}
	switch s.Kind {
	case StepLend, StepReturn:
		err = p.move(ctx, steps)
	case StepRenew:
		err = p.renew(ctx, s)
	case StepQuarantine:
		if err = p.quarantine(ctx, s); err != nil {
			p.in.Lost[s.Lane] = err.Error()
		}
	case StepProve:
		err = p.prove(ctx, s)
	case StepSwap:
		err = p.swap(ctx, s)
	case StepLeave:
		err = p.move(ctx, steps)
	case StepTest, StepPublish, StepRefresh, StepRebuild, StepDirect, StepUnknown:
		err = fmt.Errorf("step %q is not for this pass", s.Kind)
	}
	if err == nil && len(p.in.Busy) == before {
		p.out.Applied += len(steps)
	}
	return err
}

// lockForSearch takes what a search for endpoints needs: the right to choose, and every
// lane that waits for one. False: something is another run's; the plan is made again
// without it.
func (p *pass) lockForSearch(ctx context.Context) (bool, error) {
	ok, err := p.lockCandidates(ctx)
	if !ok || err != nil {
		return false, err
	}
	for _, s := range p.plan.Steps {
		if s.Kind != StepSwap || p.carriedOut(s) {
			continue
		}
		if got, err := p.lockLane(ctx, s.Lane); err != nil {
			return false, err
		} else if !got {
			ok = false
		}
	}
	return ok, nil
}

// move puts classes onto other lanes in one transaction. What a loan leaves behind on the
// dead lane is deleted after it, and only that: class and lane. Coming home moves new flows only.
func (p *pass) move(ctx context.Context, steps []Step) error {
	moves := map[string]string{}
	for _, s := range steps {
		moves[s.Class] = s.To
	}
	began := time.Now() //nolint:forbidigo // measures a duration
	if err := p.locked(ctx, "plane", func() error { return p.Plane.Move(ctx, p.Config, moves) }); err != nil {
		return fmt.Errorf("moving classes: %w", err)
	}
	moved := time.Since(began) //nolint:forbidigo // measures a duration
	var errs error
	for _, s := range steps {
		fig := map[string]float64{"move": ms(moved)}
		leaves := s.Kind == StepLend || s.Kind == StepDirect || s.Kind == StepLeave
		if leaves && s.From != "" && p.Config.Plane.FlushFlows {
			n, err := p.Flows.Flush(ctx, p.Config, s.Class, s.From)
			errs = errors.Join(errs, err)
			fig["flows_deleted"] = float64(n)
		}
		p.event(journal.Event{Kind: string(s.Kind), Object: s.Class, From: s.From, To: s.To, Reason: s.Reason, Figures: fig})
	}
	return errs // the journal follows: its disk must not come before users
}

// renew adds a lane's peer anew and looks again.
func (p *pass) renew(ctx context.Context, s Step) error {
	l, _ := p.Config.Lane(s.Lane)
	if ok, err := p.lockLane(ctx, s.Lane); !ok || err != nil {
		return err
	}
	err := p.Devices.Settle(ctx, l, s.Path, true)
	i := p.index(s.Lane)
	p.in.Lanes[i].Renewed = true
	if d, oerr := p.Devices.Observe(ctx, l); oerr == nil {
		p.in.Lanes[i].Device = d
	}
	if err != nil && !p.in.Lanes[i].Device.Present {
		return nil // said by the plan, each round; the journal has the verdict
	}
	if err != nil {
		return fmt.Errorf("lane %s: renewing its peer: %w", s.Lane, err)
	}
	if err := p.mendPlane(ctx); err != nil { // a lane whose interface came back has lost its routes
		return err
	}
	p.lookAtLane(ctx, l, &p.in.Lanes[i])
	p.event(journal.Event{Kind: "renew", Object: s.Lane, To: s.From, Reason: s.Reason})
	return nil
}

func (p *pass) index(lane string) int {
	for i, l := range p.in.Lanes {
		if l.Name == lane {
			return i
		}
	}
	return -1
}

func unix(s int64) time.Time { return time.Unix(s, 0).UTC() }

// refreshRuns says whether a refresh is testing endpoints now.
func (p *pass) refreshRuns() bool { return p.State.Holder("pool") != "" }
