package edge

import (
	"context"
	"slices"
)

// Divert moves away from a candidate on a mere hint. Without a healthy second it does
// nothing (Held no_second).
func (s *Session) Divert(ctx context.Context, k Key) (Result, error) {
	held := false
	res, err := s.act(ctx, func(in *Input) bool {
		if held = !s.second(k, in.Now); held {
			return false
		}
		s.missed[k] = s.Now()
		s.diverted[k] = false
		in.Answers = slices.Clone(s.left)
		return true
	})
	if held {
		service, name := splitKey(k)
		res.Plan.Held = append(res.Plan.Held, Held{
			Object: service + "/" + name, Code: HeldNoSecond, Reason: "no other candidate is known to be healthy: waits for the confirmation",
		})
	}
	if len(res.Moves) > 0 {
		s.mu.Lock()
		if _, ok := s.diverted[k]; ok {
			s.diverted[k] = true
		}
		s.mu.Unlock()
	}
	return res, err
}

// second says whether another candidate beside this one is known to be healthy.
func (s *Session) second(k Key, now int64) bool {
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
		if v := p.look(sv, c); c.key != k && v.eligible && v.good && !v.diverted {
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
	return s.act(ctx, func(in *Input) bool {
		moved, ok := s.diverted[k]
		in.Answers = slices.Concat(s.left, answers)
		if !ok {
			return s.fold(in)
		}
		delete(s.diverted, k)
		delete(s.missed, k)
		if moved {
			in.Back = []Key{k}
		}
		return true
	})
}
