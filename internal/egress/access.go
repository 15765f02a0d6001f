package egress

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/state"
)

// access runs the strategies and gives the sources by the way that the winner found, with
// its name. The winner is remembered and tried first the next time. The caller ends the
// way by closing; nil sources mean that no strategy has access, which is in the result.
func (p *pass) access(ctx context.Context) (s Sources, res RecoveryResult, closing func(), err error) {
	closing = func() {}
	via, ok := p.Sources.(SourcesVia)
	if p.Recovery == nil || !ok {
		return nil, res, closing, nil
	}
	in, err := p.recoveryInput()
	if err != nil {
		return nil, res, closing, err
	}
	res, err = p.Recovery.Recover(ctx, in)
	for _, t := range res.Tried {
		to := "no access"
		if t.Success {
			to = "access"
		}
		p.event(journal.Event{
			Kind: "strategy", Object: t.Strategy, To: to, Reason: t.Reason,
			Figures: map[string]float64{"took": float64(t.Took) / float64(time.Millisecond)},
		})
	}
	if err != nil || !res.Success {
		return nil, res, closing, err
	}
	if res.Close != nil {
		closing = func() { _ = res.Close() } // a way that is given up has nothing left to lose
	}
	if err := p.rememberWinner(ctx, res.Strategy); err != nil {
		return nil, res, closing, err
	}
	return via.Via(res.Access), res, closing, nil
}

// rememberWinner is written at once: it is worth the same whatever becomes of the refresh.
func (p *pass) rememberWinner(ctx context.Context, name string) error {
	if p.in.Memory.Winner == name {
		return nil
	}
	var m Memory
	err := p.State.UpdateJSON(ctx, memoryFile, &m, func() error {
		m.Winner = name
		return nil
	})
	if err != nil {
		return fmt.Errorf("winning strategy: %w", err)
	}
	p.in.Memory.Winner = name
	return nil
}

// recoveryInput is what strategies may know. The pools are read beside the pass: what a
// refresh decides does not depend on them.
func (p *pass) recoveryInput() (RecoveryInput, error) {
	q, err := p.begin("recover", false)
	if err != nil {
		return RecoveryInput{}, err
	}
	q.in.Lanes, q.in.Memory, q.in.Quarantine = p.in.Lanes, p.in.Memory, p.in.Quarantine
	q.loadPools()
	in := RecoveryInput{State: p.in.KV, Pools: q.in.Pools, Winner: p.in.Memory.Winner, Quarantine: []state.Quarantined{}}
	e := newEligibility(&q.in)
	for _, r := range p.in.Quarantine {
		if !e.cleared(r) {
			in.Quarantine = append(in.Quarantine, r)
		}
	}
	if l := p.in.Listing; l != nil && len(l.Entries) > 0 { // what a folder of one's own gave helps to get the rest
		own := Pool{Name: PoolSources}
		for i, x := range l.Entries {
			own.Rows = append(own.Rows, Row{Rank: i + 1, File: x.File, Endpoint: x.Endpoint, Path: x.Path, Pair: x.Pair, Reason: x.Reason})
		}
		in.Pools = append(in.Pools, own)
	}
	for i, v := range p.in.Lanes {
		l := p.Config.Lanes[i]
		in.Interfaces = append(in.Interfaces, RecoveryInterface{
			Lane: l.Name, Interface: l.Interface, Table: l.Table, Mark: l.Mark,
			Endpoint: v.Endpoint, Pair: v.Pair, Healthy: !p.in.Memory.Lanes[l.Name].Down && v.Endpoint != "",
		})
	}
	return in, nil
}

// PoolSources stands, in what strategies are told, for what sources on this machine gave.
const PoolSources = "sources"

// cleared says whether some pool lists the endpoint of a record and was tested after it.
func (e eligibility) cleared(q state.Quarantined) bool {
	for _, p := range e.in.Pools {
		for _, r := range p.Rows {
			if r.Endpoint == q.Endpoint && e.clears(p, q) {
				return true
			}
		}
	}
	return false
}

// BusyPairs answers whether a lane has a pair of keys now, or is about to: devices and
// intents are looked at a few times a second until ctx ends.
func (e *Env) BusyPairs(ctx context.Context) func(pair string) bool {
	return (&pass{Env: e}).busyPairs(ctx)
}

// fetchAnother tries to get the list by a strategy after no remote source could be read
// plainly. Users' packets travel, or are held back, as before.
func (p *pass) fetchAnother(ctx context.Context, work string) error {
	s, res, closing, err := p.access(ctx)
	defer closing()
	if err != nil {
		return err
	}
	plain := p.in.Listing
	if s == nil {
		for _, t := range res.Tried {
			plain.Failed = append(plain.Failed, fmt.Sprintf("strategy %s: %s", t.Strategy, t.Reason))
		}
		return nil
	}
	l, _, err := p.list(ctx, s, p.Config.Sources, filepath.Join(work, "again"))
	if len(l.Entries) >= len(plain.Entries) {
		p.in.Listing = l
		l.Via = res.Strategy
	}
	return err
}

// fetchInDirect gets the list while users are direct: by a way that recovery found, and not
// one packet of it beside that. What lies on this machine helps to find one, and is no list
// of its own as long as a source is remote. Commands that no way leads to anything may need
// none: where nothing is remote they are run once more, as they are, or users would be direct
// for good.
func (p *pass) fetchInDirect(ctx context.Context, work string) error {
	own := &Listing{}
	if local := slices.DeleteFunc(slices.Clone(p.Config.Sources), func(s Source) bool { return !s.local() }); len(local) > 0 {
		var err error
		if own, _, err = p.list(ctx, p.Sources, local, work); err != nil {
			return err
		}
	}
	p.in.Listing = own
	err := p.fetchAnother(ctx, work)
	if err != nil || p.in.Listing.Via != "" {
		return err
	}
	tried := p.in.Listing.Failed
	p.in.Listing = &Listing{}
	if !slices.ContainsFunc(p.Config.Sources, Source.Remote) {
		p.in.Listing, _, err = p.list(ctx, p.Sources, p.Config.Sources, filepath.Join(work, "plain"))
	}
	p.in.Listing.Failed = append(tried, p.in.Listing.Failed...)
	return err
}

// list fetches from some of the sources; it also returns why which of them failed.
func (p *pass) list(ctx context.Context, s Sources, from []Source, work string) (*Listing, []error, error) {
	entries, skipped, failed, err := s.Fetch(ctx, from, work)
	l := &Listing{Entries: entries, Skipped: skipped}
	for _, f := range failed {
		l.Failed = append(l.Failed, f.Error())
	}
	if err != nil {
		l.Failed = append(l.Failed, err.Error())
	}
	return l, failed, ctx.Err()
}
