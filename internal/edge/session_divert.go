package edge

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Divert moves away from candidates on a mere hint, all of them at once; its time counts
// from the hint. For one without a healthy second it does nothing (Held no_second). moved is
// called as soon as new connections go elsewhere, or it is known that they will not: records
// come after it.
func (s *Session) Divert(ctx context.Context, hint time.Time, moved func(), keys ...Key) (Result, error) {
	told := sync.OnceFunc(moved)
	defer told()
	var held []Held
	w := &wish{
		prepare: func(in *Input) (decides bool) {
			suspects := setOf(keys)
			for _, k := range keys {
				if !s.second(k, suspects, in.Now) {
					held = append(held, Held{
						Object: k.Object(), Code: HeldNoSecond, Reason: "no other candidate is known to be healthy: waits for the confirmation",
					})
					continue
				}
				s.missed[k], s.diverted[k], decides = hint, false, true
			}
			return decides
		},
		moved: func(moves []Move) {
			s.ledAway(keys, moves)
			told()
		},
	}
	res, err := s.act(ctx, w)
	res.Plan.Held = slices.Concat(res.Plan.Held, held)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledAway(keys, w.moves) // where only another machine's table has moved
	return res, err
}

// Object is the service and the candidate of a key: front/proxy-01.
func (k Key) Object() string {
	service, name := splitKey(k)
	return service + "/" + name
}

// ledAway notes which diverted candidates had traffic, which comes back if they live. The
// caller holds mu.
func (s *Session) ledAway(keys []Key, moves []Move) {
	for _, k := range keys {
		h, ok := s.pre.homes[k]
		if _, diverted := s.diverted[k]; !ok || !diverted {
			continue
		}
		sv := &s.pre.services[h.service]
		c := &sv.families[h.family].candidates[h.candidate]
		if slices.ContainsFunc(moves, func(m Move) bool { return m.Service == sv.Name && m.From == text(c.addr) }) {
			s.diverted[k] = true
		}
	}
}

// second says whether another candidate beside this one, and those under suspicion, is known
// to be healthy.
func (s *Session) second(k Key, suspects map[Key]bool, now int64) bool {
	h, ok := s.pre.homes[k]
	if !ok {
		return false
	}
	in := s.in
	in.Now = now
	p := &planner{in: &in, pre: s.pre, judge: judgment{now: now, vetoFor: s.Config.vetoFor()}, standings: map[Key]standing{}}
	p.setHolds(slices.DeleteFunc(slices.Clone(in.Holds), func(h Hold) bool { return !h.holdsNow(now) }))
	p.diverted = s.diverted0()
	sv := &s.pre.services[h.service]
	f := &sv.families[h.family]
	for i := range f.candidates {
		c := &f.candidates[i]
		p.standings[c.key] = s.standing(c.key)
		if v := p.look(sv, c); c.key != k && !suspects[c.key] && v.eligible && v.good && !v.diverted {
			return true
		}
	}
	return false
}

func (s *Session) diverted0() map[Key]bool {
	out := map[Key]bool{}
	for k := range s.diverted {
		out[k] = true
	}
	return out
}

// Undo takes a diversion back: the candidate was found alive.
func (s *Session) Undo(ctx context.Context, k Key) (Result, error) { return s.undo(ctx, k, nil) }

func (s *Session) undo(ctx context.Context, k Key, answers []Answer) (Result, error) {
	return s.act(ctx, &wish{prepare: func(in *Input) bool {
		moved, ok := s.diverted[k]
		if !ok {
			return s.fold(in, answers)
		}
		delete(s.diverted, k)
		delete(s.missed, k)
		in.Answers = append(in.Answers, answers...)
		if moved {
			in.Back = append(in.Back, k)
		}
		return true
	}})
}
