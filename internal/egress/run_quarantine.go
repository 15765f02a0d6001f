package egress

import (
	"context"
	"errors"

	"github.com/shunt-net/shunt/internal/journal"
)

// quarantine records the failed endpoint and counts it, behind an intent, so that a kill
// between the files is made good by the next run.
func (p *pass) quarantine(ctx context.Context, s Step) error {
	l, _ := p.Config.Lane(s.Lane)
	if ok, err := p.lockLane(ctx, s.Lane); !ok || err != nil {
		return err
	}
	seq, err := p.State.NextSeq(ctx) // a refresh that began after this run did, but before now, must not clear it
	if err != nil {
		return err
	}
	now := p.Now()
	it := Intent{
		Command: "repair", Run: p.in.Seed, Began: now, Lane: s.Lane, From: s.From, FromPath: p.Installed(s.Lane),
		FailedAt: now.Unix(), Reason: s.Reason, Day: Day(now), PoolMtime: p.poolMtime(),
	}
	left, err := p.readIntent(s.Lane)
	again := err == nil && left.FailedAt != 0 && left.From == s.From && left.To == ""
	if again { // counted by a run that could not write the record
		it = left
	}
	err = p.locked(ctx, "count", func() error {
		if !again {
			n, err := p.dayCount(ctx, it.Day)
			if err != nil {
				return err
			}
			it.Count = n + 1
			if err := p.writeIntent(ctx, it); err != nil {
				return err
			}
		}
		_, err := p.raiseCount(ctx, it)
		return err
	})
	if err != nil {
		return err
	}
	var m Memory
	err = p.State.UpdateJSON(ctx, memoryFile, &m, func() error {
		m = m.clone()
		m.Failures[s.From] = Failure{FailedAt: it.FailedAt, Seq: seq}
		return nil
	})
	if err != nil {
		return err
	}
	p.event(journal.Event{Kind: "quarantine", Object: s.From, From: s.Lane, Reason: s.Reason})
	if err := p.recordFailure(ctx, l, it); err != nil {
		return err
	}
	p.failed[s.Lane] = it.FailedAt
	return errors.Join(p.leftBehind(ctx, s.Lane), p.dropIntent(ctx, s.Lane)) // all of it is recorded; a swap writes its own
}

// leftBehind deletes the flows of a class on its own dead lane that a run may have left
// there which lent the class and was killed.
func (p *pass) leftBehind(ctx context.Context, lane string) error {
	if at := p.in.Plane.Classes[lane]; at == "" || at == lane || !p.Config.Plane.FlushFlows {
		return nil
	}
	_, err := p.Flows.Flush(ctx, p.Config, lane, lane)
	return err
}

// poolMtime is that of the best pool there was.
func (p *pass) poolMtime() int64 {
	for _, pool := range p.in.Pools {
		if pool.Error == "" {
			return pool.Mtime.Unix()
		}
	}
	return 0
}
