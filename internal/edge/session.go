package edge

import (
	"context"
	"slices"
	"sync"
	"time"
)

// patience is how long a session waits for replicas. A slower one goes on behind its back.
const patience = 250 * time.Millisecond

// Session is the watchdog's way to the domain: it keeps tables, memory and holds between
// rounds, so that a move costs no disk and no process before the commit. Its methods may
// be called from several goroutines.
type Session struct {
	*world

	mu       sync.Mutex // all of the following; held during a local commit, never while waiting for others
	in       Input      // Memory is what is known now
	vetoes   map[Key]Veto
	disk     Memory // edge.json as it was last read or written
	seen     fileID // … and which file that was
	damaged  error
	missed   map[Key]time.Time
	diverted map[Key]bool // true = its traffic was moved
	left     []Answer     // that could not be acted on
	sure     []Key        // of them the confirmed ones
	dirty    bool         // what was planned last is not in place

	asking sync.Mutex
	wishes []*wish // of callers that wait for mu: the next one decides for all of them

	paper   sync.Mutex // one writes records at a time
	showing sync.Mutex // one is shown to Env.Watch at a time
	work    sync.WaitGroup
}

// Open loads the state and looks at every replica. What of the state is damaged is salvaged,
// and said by each result.
func (e *Env) Open(ctx context.Context) (*Session, error) {
	s := &Session{world: e.world(), missed: map[Key]time.Time{}, diverted: map[Key]bool{}}
	s.seen = idOf(s.State.Path(memoryFile))
	s.in, s.damaged = s.input(CommandWatchdog)
	s.disk = s.in.Memory.clone()
	if err := s.look(ctx, &s.in); err != nil {
		return nil, err
	}
	s.adoptMemory(s.in.Memory)
	return s, ctx.Err()
}

// Targets is what is to be probed, each at its own interval.
func (s *Session) Targets() []ProbeTarget {
	var out []ProbeTarget
	for i := range s.pre.services {
		out = append(out, s.pre.services[i].targets()...)
	}
	return out
}

// Health is what is known of one key.
func (s *Session) Health(k Key) Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in.Memory.Health[k]
}

// Learn keeps what a tripwire learned of a server: after which time it closes an idle
// connection (0 = not known), and how many lives in a row were too short.
func (s *Session) Learn(k Key, lifetime time.Duration, short int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pre.homes[k]; !ok {
		return
	}
	h := s.in.Memory.Health[k]
	h.Lifetime, h.Short = lifetime, short
	s.in.Memory.Health[k] = h
}

// Judge feeds answers and, where they say so, moves. Answers that change no verdict cost
// next to nothing.
func (s *Session) Judge(ctx context.Context, answers []Answer) (Result, error) {
	return s.act(ctx, &wish{prepare: func(in *Input) bool {
		for _, a := range answers {
			s.clock(a)
		}
		return s.fold(in, answers)
	}})
}

// clock keeps when a candidate was first missed: what a move is measured from.
func (s *Session) clock(a Answer) {
	switch a.Outcome {
	case Good:
		delete(s.missed, a.Key)
	case Miss:
		if _, ok := s.missed[a.Key]; !ok {
			s.missed[a.Key] = s.Now()
		}
	case OutcomeUnknown:
	}
}

// fold takes answers in that change no verdict. True: a plan is needed, and takes them in.
func (s *Session) fold(in *Input, answers []Answer) (decides bool) {
	// A good answer beside a death that is confirmed in the same decision was asked before:
	// that it came a moment later takes nothing back.
	died := in.Confirmed[len(s.sure):]
	answers = slices.DeleteFunc(slices.Clone(answers), func(a Answer) bool {
		return a.Outcome == Good && slices.Contains(died, a.Key)
	})
	defer func() {
		if decides {
			in.Answers = append(in.Answers, answers...)
		}
	}()
	if s.dirty || len(in.Answers)+len(in.Confirmed) > 0 { // answers are taken in one after the other
		return true
	}
	j := judgment{now: in.Now, vetoFor: s.Config.vetoFor(), by: CommandWatchdog + " on " + s.Node}
	next := map[Key]standing{}
	for _, a := range answers {
		h, ok := s.pre.homes[a.Key]
		if !ok {
			continue
		}
		st, ok := next[a.Key]
		if !ok {
			st = s.standing(a.Key)
		}
		now := j.fold(st, s.pre.services[h.service].Probe, a, false)
		if matters(j, st, now) {
			return true
		}
		next[a.Key] = now
	}
	for k, st := range next {
		s.in.Memory.Health[k] = st.health
		if st.veto != nil {
			s.vetoes[k] = *st.veto
		}
	}
	return false
}

func (s *Session) standing(k Key) standing {
	st := standing{health: s.in.Memory.Health[k]}
	if v, ok := s.vetoes[k]; ok {
		st.veto = &v
	}
	return st
}

// matters says whether a choice can depend on the difference.
func matters(j judgment, was, now standing) bool {
	return (was.veto == nil) != (now.veto == nil) || j.live(was.veto) != j.live(now.veto) ||
		was.health.Refusing != now.health.Refusing || (was.health.Misses > 0) != (now.health.Misses > 0) ||
		(was.health.Goods > 0) != (now.health.Goods > 0)
}

// Confirmed takes a miss that a burst of connects confirmed: a veto at once. hint is when
// the tripwire closed; its monotonic reading is what the move is measured from. An answer
// that is no miss takes a diversion back.
func (s *Session) Confirmed(ctx context.Context, a Answer, hint time.Time) (Result, error) {
	if a.Outcome != Miss {
		s.mu.Lock()
		_, diverted := s.diverted[a.Key]
		s.mu.Unlock()
		if diverted && a.Outcome == Good {
			return s.undo(ctx, a.Key, []Answer{a})
		}
		return s.Judge(ctx, []Answer{a})
	}
	return s.act(ctx, &wish{prepare: func(in *Input) bool {
		s.missed[a.Key] = hint
		delete(s.diverted, a.Key)
		in.Answers = append(in.Answers, a)
		in.Confirmed = append(in.Confirmed, a.Key)
		return true
	}})
}
