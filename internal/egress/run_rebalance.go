package egress

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Rebalance is one pass: place the best endpoints, touching only lanes that carry none of
// them. A run that changes nothing probes nothing.
func (e *Env) Rebalance(ctx context.Context, dryRun bool) (Outcome, error) {
	p, err := e.begin("rebalance", !dryRun)
	if err != nil {
		return Outcome{}, err
	}
	if err := p.loadState(false); err != nil {
		return Outcome{}, err
	}
	if !dryRun {
		if err := p.recoverIntents(ctx, false); err != nil {
			return Outcome{}, err
		}
	}
	p.observeLanes(ctx)
	p.loadPools()
	if p.damaged != nil {
		return Outcome{}, fmt.Errorf("a pool is damaged, and placing by what is left of it could move lanes wrongly: %w", p.damaged)
	}
	p.plan = PlanRebalance(p.in)
	if p.plan.Changes() || p.Config.Rebalance.Hysteresis != (Hysteresis{}) {
		if err := p.observePlane(ctx, !dryRun); err != nil {
			p.out.Partial = errors.Join(p.out.Partial, err)
		}
		p.roundLanes(ctx)
		p.plan = PlanRebalance(p.in)
	}
	p.watch()
	if dryRun {
		p.out.Input, p.out.Plan = p.in, p.plan
		return p.out, nil
	}
	err = p.apply(ctx, func() Plan { return PlanRebalance(p.in) })
	out, ferr := p.finish(ctx)
	return out, errors.Join(err, ferr)
}

// roundLanes makes one round through each lane, for lenders and hysteresis, and looks at
// the uplink meanwhile.
func (p *pass) roundLanes(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		u := p.Prober.Uplink(ctx, p.Config.Uplink)
		p.in.Uplink = &u
	})
	for i, l := range p.Config.Lanes {
		if _, ok := p.in.Lanes[i].Device.Active(); !ok {
			continue
		}
		wg.Go(func() {
			r := p.Prober.Round(ctx, l, p.Config.Check, p.Config.Check.Count, p.Config.Check.Need)
			p.in.Lanes[i].Round = &r
		})
	}
	wg.Wait()
}
