package edge

import (
	"context"
	"maps"
	"slices"
	"time"
)

// act is one decision of the session, and what follows from it. prepare runs under the
// session's lock and says whether a plan is needed.
func (s *Session) act(ctx context.Context, prepare func(*Input) bool) (Result, error) {
	s.mu.Lock()
	in := s.in
	s.tick(&in)
	if !prepare(&in) {
		res := Result{Plan: Plan{Command: CommandWatchdog, Steps: []Step{}}, Partial: s.damaged}
		s.mu.Unlock()
		return res, nil
	}
	p, err := s.decideAndCommit(ctx, in)
	s.mu.Unlock()
	s.showing.Lock()
	p.show()
	s.showing.Unlock()
	if err != nil {
		return p.end(), err
	}
	return s.follow(context.WithoutCancel(ctx), p), nil
}

// decideAndCommit plans and moves this machine's table. The caller holds mu. With an error
// nothing of it is so, and nobody was told: the same answers count again.
func (s *Session) decideAndCommit(ctx context.Context, in Input) (*turn, error) {
	s.syncVetoes()
	in.Memory = s.in.Memory.clone()
	in.Diverted = slices.Sorted(maps.Keys(s.diverted))
	p := &turn{
		world: s.world, in: in, stored: s.in.Memory.clone(), held: in.Holds, missed: maps.Clone(s.missed), began: s.Now(),
		aside: s.work.Go, quiet: true,
	}
	p.partly(s.damaged)
	err := reached(in.Views)
	if err == nil {
		p.decide()
		err = p.commit(ctx)
	}
	if err != nil {
		s.dirty = true
		s.left, s.sure = tail(in.Answers, 4096), in.Confirmed
		return p, err
	}
	s.dirty, s.left, s.sure = p.lost[s.Node] != nil, nil, nil
	s.adoptMemory(p.kept(p.plan.Next))
	if s.in.HoldsAre == HoldsWhole {
		s.in.Holds = p.plan.Holds
	}
	s.in.Views = slices.Clone(s.in.Views)
	if me := s.self(); me >= 0 {
		s.in.Views[me] = p.in.Views[me]
		if p.after != nil {
			s.in.Views[me] = *p.after
		}
	}
	return p, nil
}

func tail[T any](list []T, n int) []T { return list[max(0, len(list)-n):] }

// follow is what comes after a commit, while others may commit already.
func (s *Session) follow(ctx context.Context, p *turn) Result {
	p.flush(ctx)
	if p.unflushed {
		s.mu.Lock()
		s.in.Memory = p.kept(s.in.Memory)
		s.mu.Unlock()
	}
	p.spread(ctx, time.After(patience), s.late)
	s.paper.Lock()
	if p.plan.Changes() || len(p.newNotes())+len(p.settled()) > 0 {
		p.partly(p.keepWord(ctx))
		p.partly(s.persist(ctx))
		p.journal(ctx)
	}
	s.paper.Unlock()
	moves := slices.Clone(p.out.Moves)
	s.work.Go(func() {
		p.reach(ctx, moves)
		p.tell(moves)
	})
	return p.end()
}

// late takes what a replica became.
func (s *Session) late(r spreading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in.Views = slices.Clone(s.in.Views)
	s.in.Views[r.at] = r.view
}

// adoptMemory makes what a plan wants remembered what is known. The caller holds mu.
func (s *Session) adoptMemory(m Memory) {
	s.in.Memory = m.clone()
	s.vetoes = make(map[Key]Veto, len(m.Vetoes))
	for _, v := range m.Vetoes {
		s.vetoes[v.Key] = v
	}
}

// syncVetoes writes the map of vetoes back. The caller holds mu.
func (s *Session) syncVetoes() {
	s.in.Memory.Vetoes = nil
	for _, k := range slices.Sorted(maps.Keys(s.vetoes)) {
		s.in.Memory.Vetoes = append(s.in.Memory.Vetoes, s.vetoes[k])
	}
}
