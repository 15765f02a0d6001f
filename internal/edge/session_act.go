package edge

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// breath is left to what is urgent after a move, before what takes the processor for
// milliseconds: the first connections, and other candidates that died with this one.
const breath = 4 * time.Millisecond

// wish is what one caller wants decided. Those that come while a decision is under way are
// decided together by the next one: the candidates of a host that died cost two commits,
// however many they are, and none of them waits for the records of another.
type wish struct {
	// prepare runs under the session's lock and says whether a plan is needed. It adds to
	// what others have added to the input.
	prepare func(*Input) bool
	// moved is told, still under the lock, when this machine's table is as it was decided;
	// nil = nobody.
	moved func([]Move)

	taken bool // guarded by Session.mu
	over  chan struct{}
	moves []Move
	res   Result
	err   error
}

// act is one decision of the session, and what follows from it.
func (s *Session) act(ctx context.Context, w *wish) (Result, error) {
	w.over = make(chan struct{})
	s.asking.Lock()
	s.wishes = append(s.wishes, w)
	s.asking.Unlock()
	s.mu.Lock()
	if w.taken {
		s.mu.Unlock()
		<-w.over
		return w.res, w.err
	}
	in, list := s.take()
	if len(list) == 0 {
		s.mu.Unlock()
		return w.res, w.err
	}
	if len(list) > 1 || list[0] != w {
		ctx = context.WithoutCancel(ctx) // the others have contexts of their own
	}
	p, err := s.decideAndCommit(ctx, in)
	for _, d := range list {
		if d.moved != nil {
			d.moved(p.out.Moves)
		}
	}
	s.mu.Unlock()
	runtime.Gosched() // whoever waits for the table comes before our records
	s.showing.Lock()
	p.show()
	s.showing.Unlock()
	if err == nil {
		s.follow(context.WithoutCancel(ctx), p)
	}
	for i, d := range list {
		d.moves, d.err = slices.Clone(p.out.Moves), err
		d.res = Result{Plan: nothing(), Joined: true}
		if d == w || i == 0 && !slices.Contains(list, w) {
			d.res = p.end() // one of them has it all
		}
		close(d.over)
	}
	return w.res, w.err
}

// take prepares all that was wished so far, and returns what needs a plan. The rest is
// answered. The caller holds mu.
func (s *Session) take() (in Input, list []*wish) {
	s.asking.Lock()
	all := s.wishes
	s.wishes = nil
	s.asking.Unlock()
	in = s.in
	s.tick(&in)
	in.Answers, in.Confirmed = slices.Clone(s.left), slices.Clone(s.sure)
	for _, w := range all {
		w.taken = true
		if w.prepare(&in) {
			list = append(list, w)
			continue
		}
		w.res = Result{Plan: nothing(), Partial: s.damaged}
		close(w.over)
	}
	return in, list
}

// nothing is a plan that changes nothing.
func nothing() Plan { return Plan{Command: CommandWatchdog, Steps: []Step{}} }

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
func (s *Session) follow(ctx context.Context, p *turn) {
	reached := p.reaching(ctx, s.work.Go)
	enough := time.After(patience)
	gather := p.spread(ctx)
	if len(p.out.Moves) > 0 {
		_ = run.Pause(ctx, breath)
	}
	p.flush(ctx)
	if p.unflushed {
		s.mu.Lock()
		s.in.Memory = p.kept(s.in.Memory)
		s.mu.Unlock()
	}
	gather(enough, s.late)
	s.paper.Lock()
	if p.plan.Changes() || len(p.newNotes())+len(p.settled()) > 0 {
		p.partly(p.keepWord(ctx))
		p.partly(s.persist(ctx))
		p.journal(ctx)
	}
	s.paper.Unlock()
	moves := slices.Clone(p.out.Moves)
	s.work.Go(func() { p.tell(reached(moves)) })
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
