package edge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// commit moves this machine's table, under the edge lock and nothing slow: look again, plan
// again where something changed meanwhile, write, read back.
func (p *turn) commit(ctx context.Context) (err error) {
	me := p.self()
	if me < 0 || !p.plan.behind(p.in.Views[me]) {
		return nil
	}
	lock, err := p.State.Lock(ctx, edgeLock, p.Holder, lockWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	for range maxTries {
		if done, err := p.tryCommit(ctx, p.lines[me], me); done || err != nil {
			return err
		}
	}
	p.partly(fmt.Errorf("table of %s: somebody else changed it while it was written, %d times", p.Node, maxTries))
	return nil
}

// tryCommit is one attempt. False: the table is not what was written.
func (p *turn) tryCommit(ctx context.Context, l *line, me int) (done bool, err error) {
	p.lookAgain(ctx, l, me)
	want := p.plan.Tables[l.name]
	if v := p.in.Views[me]; v.Error != "" {
		p.failed(l.name, errors.New(v.Error))
		return true, ctx.Err()
	} else if !p.plan.behind(v) {
		return true, nil
	}
	after, err := l.apply(ctx, p.in.Views[me], want)
	if err != nil {
		p.failed(l.name, err)
		return true, nil
	}
	run.Point(ctx, "edge.committed")
	p.wrote = true
	p.after = &after
	p.note(p.plan.Steps, p.Now())
	if after.Table.Equal(want) {
		return true, nil
	}
	p.steps = append(p.steps, p.plan.Steps...)
	p.flushes = append(p.flushes, p.plan.Flushes...)
	p.in.Memory, p.in.Answers, p.in.Confirmed, p.in.Holds = p.plan.Next.clone(), nil, nil, p.plan.Holds
	p.in.Views = slices.Clone(p.in.Views)
	p.in.Views[me] = after
	p.decide()
	return false, nil
}

// lookAgain sees the table under the lock, and the operator's word with it. What was planned
// on something else is planned again.
func (p *turn) lookAgain(ctx context.Context, l *line, me int) {
	v := l.observe(ctx)
	was := p.in.Views[me]
	p.in.Views = slices.Clone(p.in.Views)
	p.in.Views[me] = v
	same := v.Error == was.Error && v.Absent == was.Absent && slices.Equal(v.Drift, was.Drift) && v.Table.Equal(was.Table)
	if p.holdsAgain() || !same {
		p.tick(&p.in)
		p.decide()
	}
}

// holdsAgain takes in what other operators said meanwhile, and tells whether that is news.
// Who changes holds in this run has just written them.
func (p *turn) holdsAgain() bool {
	if p.in.Command == CommandDrain || p.in.Command == CommandEnable || p.in.HoldsAre != HoldsWhole {
		return false
	}
	now, are, _ := p.readHolds()
	if are != HoldsWhole || sameHolds(now, p.held, p.in.Now) {
		return false
	}
	for _, s := range p.plan.Steps {
		if p.worded && (s.Kind == StepHold || s.Kind == StepRelease) {
			p.steps = append(p.steps, s)
		}
	}
	p.in.Holds, p.held = now, now
	return true
}

// failed notes a replica that did not take its table.
func (p *turn) failed(replica string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == nil {
		p.lost = map[string]error{}
	}
	p.lost[replica] = err
	p.partly(fmt.Errorf("table of %s: %w", replica, err))
	if slices.ContainsFunc(p.plan.Held, func(h Held) bool { return h.Object == replica && h.Code == HeldUnreachable }) {
		return
	}
	p.plan.Held = append(p.plan.Held, Held{Object: replica, Code: HeldUnreachable, Reason: err.Error()})
}

// note keeps the moves of a commit with the time that each took.
func (p *turn) note(steps []Step, at time.Time) {
	for _, s := range steps {
		if s.Kind != StepMove {
			continue
		}
		m := Move{Service: s.Service, Address: s.Address, From: s.From, To: s.To, Epoch: s.Epoch, Reason: s.Reason, began: p.began}
		f := p.familyAt(s)
		if f != nil {
			m.Family, m.first = f.n, f.from[0]
			for _, c := range f.candidates {
				if text(c.addr) != s.From {
					continue
				}
				if hint, ok := p.missed[c.key]; ok {
					m.began = hint
				}
			}
		}
		m.Commit = at.Sub(m.began)
		p.out.Moves = append(p.out.Moves, m)
	}
}

func (p *turn) familyAt(s Step) *family {
	si, ok := p.pre.byName[s.Service]
	if !ok {
		return nil
	}
	for fi := range p.pre.services[si].families {
		if f := &p.pre.services[si].families[fi]; len(f.from) > 0 && addressOf(f.from) == s.Address {
			return f
		}
	}
	return nil
}

// flush deletes what new packets must not follow any longer. It comes after the commit, or
// the entries would be made again as they were.
func (p *turn) flush(ctx context.Context) {
	list := slices.Concat(p.flushes, p.plan.Flushes)
	if len(list) == 0 || p.Flows == nil || p.lost[p.Node] != nil {
		return
	}
	bound, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	n, err := p.Flows.Flush(bound, list)
	if err != nil {
		p.unflushed = true
		p.partly(fmt.Errorf("conntrack: %w", err))
		return
	}
	run.Point(ctx, "edge.flushed")
	services := map[string]bool{}
	for _, f := range list {
		services[f.Service] = true
	}
	p.flushed = n
	for i, m := range p.out.Moves {
		switch {
		case !services[m.Service]:
		case len(services) == 1:
			p.out.Moves[i].Flushed = n
		default:
			p.out.Moves[i].Flushed = -1
		}
	}
}

type spreading struct {
	at      int // of the line
	replica string
	view    View
	err     error
	wrote   bool
}

// spread begins to write the other replicas, all at once, each within its own deadline. One
// that does not answer is held, and a later run finds it behind. What it returns takes the
// results in; once enough is done the slow ones go on alone, and late is told of each; nil
// waits for all of them.
func (p *turn) spread(ctx context.Context) (gather func(enough <-chan time.Time, late func(spreading))) {
	results := make(chan spreading, len(p.lines))
	plan := p.plan // what follows adds to it
	n := 0
	for i, l := range p.lines {
		if !l.local && plan.behind(p.in.Views[i]) {
			n++
			go func() { results <- p.spreadTo(ctx, plan, i, l) }()
		}
	}
	return func(enough <-chan time.Time, late func(spreading)) {
		for ; n > 0; n-- {
			select {
			case r := <-results:
				p.collect(ctx, r)
				if late != nil {
					late(r)
				}
			case <-enough:
				p.aside(func() {
					for range n {
						late(<-results)
					}
				})
				return
			}
		}
	}
}

// collect takes in what became of one replica. Where this machine has no table of its own,
// or can't write it, the first other one that moved is when the address moved.
func (p *turn) collect(ctx context.Context, r spreading) {
	if r.err != nil {
		p.failed(r.replica, r.err)
		return
	}
	if !r.wrote {
		return
	}
	run.Point(ctx, "edge.replicated")
	me := p.self()
	if !p.wrote && !p.elsewhere && (me < 0 || p.in.Views[me].Error != "" || p.lost[p.Node] != nil) {
		p.elsewhere = true
		p.note(p.plan.Steps, p.Now())
	}
}

// spreadTo looks again before it writes: what this machine planned on may be old by now.
// One change of a replica is under way at a time: one that was overtaken finds its epoch
// surpassed.
func (p *turn) spreadTo(ctx context.Context, plan Plan, i int, l *line) spreading {
	leave, err := l.enter(ctx)
	if err != nil {
		return spreading{at: i, replica: l.name, view: l.named(View{}, err), err: err}
	}
	defer leave()
	v := l.observe(ctx)
	if v.Error != "" {
		return spreading{at: i, replica: l.name, view: v, err: errors.New(v.Error)}
	}
	if was := p.in.Views[i]; v.Absent != was.Absent || !slices.Equal(v.Drift, was.Drift) || !v.Table.Equal(was.Table) {
		in := p.in
		in.Views = slices.Clone(in.Views)
		in.Views[i] = v
		if me := p.self(); me >= 0 && p.after != nil {
			in.Views[me] = *p.after
		}
		plan = planWith(in, p.pre)
	}
	if !plan.behind(v) {
		return spreading{at: i, replica: l.name, view: v}
	}
	after, err := l.apply(ctx, v, plan.Tables[l.name])
	return spreading{at: i, replica: l.name, view: after, err: err, wrote: err == nil}
}

// reaching begins to measure what has moved until now; what it returns takes the moves of
// the whole turn, waits, and gives them with their times.
func (p *turn) reaching(ctx context.Context, background func(func())) func([]Move) []Move {
	first := slices.Clone(p.out.Moves)
	done := make(chan struct{})
	background(func() {
		defer close(done)
		p.reach(ctx, first)
	})
	return func(moves []Move) []Move {
		<-done
		for i, m := range first {
			moves[i].Reached = m.Reached
		}
		p.reach(ctx, moves[len(first):]) // of another machine's table, which moved later
		return moves
	}
}

// reach measures until the first connection through the table, for what moved; where the
// address is not, nothing can be said.
func (p *turn) reach(ctx context.Context, moves []Move) {
	if p.Way == nil {
		return
	}
	bound, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	own := setOf(p.in.Host.Addresses)
	var wg sync.WaitGroup
	for i := range moves {
		m := &moves[i]
		if m.first.Protocol != TCP || !own[m.first.Addr.Addr()] || m.To == "" {
			continue
		}
		wg.Go(func() {
			if p.Way.Reach(bound, m.first) == nil {
				m.Reached = p.Now().Sub(m.began)
			}
		})
	}
	wg.Wait()
}
