package edge

import (
	"testing"
	"time"
)

func TestLogins(t *testing.T) {
	logins := func(c *Config) {
		c.Services[0].Probe = Probe{Type: ProbeStatusPing, Login: true, Interval: time.Second, Cap: time.Second, Misses: 2, Rise: 1}
	}
	refuses := func(s *scene, n int) {
		for range 2 {
			s.answer(s.key(n), Good)
			a := &s.Answers[len(s.Answers)-1]
			a.Accepts, a.Reason = false, "unable to verify player details"
		}
	}
	for name, tt := range map[string]planCase{
		"the incumbent takes no logins, another does": {
			config: logins,
			given:  func(s *scene) { refuses(s, 1) },
			want:   verdict{to: "proxy-02", steps: []StepKind{StepMove}, notes: []string{NoteRefuses}},
		},
		"one refused login is a blip": {
			config: logins,
			given:  func(s *scene) { refuses(s, 1); s.Answers = s.Answers[:1] },
			want:   verdict{to: "proxy-01"},
		},
		"nobody takes logins: it stays": {
			config: logins,
			given:  func(s *scene) { refuses(s, 1); refuses(s, 2); refuses(s, 3) },
			want:   verdict{to: "proxy-01", notes: []string{NoteRefuses, NoteRefuses, NoteRefuses}},
		},
		"the others are not known to be well: it stays": {
			config: logins,
			given:  func(s *scene) { s.Memory.Health = nil; refuses(s, 1) },
			want:   verdict{to: "proxy-01", notes: []string{NoteRefuses}},
		},
		"it takes logins again: no flap back": {
			config: logins,
			given:  func(s *scene) { refuses(s, 1); s.run(); s.later(time.Second); s.good(1) },
			want:   verdict{to: "proxy-02"},
		},
		"one that takes no logins is better than a dead one": {
			config: logins,
			given:  func(s *scene) { refuses(s, 2); refuses(s, 3); s.dies(1) },
			want: verdict{
				to: "proxy-02", steps: []StepKind{StepVeto, StepMove, StepFlush}, notes: []string{NoteRefuses, NoteRefuses},
			},
		},
	} {
		t.Run(name, tt.run)
	}
}

func TestSuspicion(t *testing.T) {
	for name, tt := range map[string]planCase{
		"a closed tripwire moves to one that is well": {
			given: func(s *scene) { s.Diverted = []Key{s.key(1)} },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepMove}},
		},
		"nobody is known to be well: it stays": {
			given: func(s *scene) { s.Memory.Health = nil; s.Diverted = []Key{s.key(1)} },
			want:  verdict{to: "proxy-01"},
		},
		"it was alive: back, though sticky": {
			given: func(s *scene) { s.Diverted = []Key{s.key(1)}; s.run(); s.Diverted, s.Back = nil, []Key{s.key(1)} },
			want:  verdict{to: "proxy-01", steps: []StepKind{StepMove}},
		},
		"it was dead: the entries go": {
			given: func(s *scene) {
				s.Diverted = []Key{s.key(1)}
				s.run()
				s.Diverted = nil
				s.answer(s.key(1), Miss)
				s.Confirmed = []Key{s.key(1)}
			},
			want: verdict{to: "proxy-02", steps: []StepKind{StepVeto, StepFlush}},
		},
	} {
		t.Run(name, tt.run)
	}
}

func TestTheOperatorsWord(t *testing.T) {
	ask := func(command, candidate, owner string, force bool) func(*scene) {
		return func(s *scene) {
			s.Command, s.Only = command, []string{"front"}
			s.Ask = Ask{Candidate: candidate, Owner: owner, Reason: "upgrade", For: time.Hour, Force: force}
		}
	}
	both := func(a, b func(*scene)) func(*scene) { return func(s *scene) { a(s); b(s) } }
	drain := ask(CommandDrain, "proxy-01", "ada", false)
	for name, tt := range map[string]planCase{
		"a drain with a healthy sibling": {
			given: drain,
			want:  verdict{to: "proxy-02", steps: []StepKind{StepHold, StepMove}},
		},
		"a drain without a sibling is refused": {
			candidates: 1,
			given:      drain,
			want:       verdict{to: "proxy-01", held: []string{HeldLast}},
		},
		"a drain with siblings that are dead is refused": {
			given: both(func(s *scene) { s.dies(2, 3) }, drain),
			want:  verdict{to: "proxy-01", steps: []StepKind{StepVeto, StepVeto, StepFlush, StepFlush}, held: []string{HeldLast}},
		},
		"a drain with siblings that nobody asked is refused": {
			given: both(func(s *scene) { s.Memory.Health = nil }, drain),
			want:  verdict{to: "proxy-01", held: []string{HeldLast}},
		},
		"a drain with siblings that are drained is refused": {
			given: both(func(s *scene) { s.held(2); s.held(3) }, drain),
			want:  verdict{to: "proxy-01", held: []string{HeldLast}},
		},
		"a drain by force leaves the last one serving, loudly": {
			candidates: 1,
			given:      ask(CommandDrain, "proxy-01", "ada", true),
			want:       verdict{to: "proxy-01", steps: []StepKind{StepHold}, notes: []string{NoteForced, NoteDrainedServes}},
		},
		"the same drain again is nothing new": {
			given: both(func(s *scene) { drain(s); s.run() }, drain),
			want:  verdict{to: "proxy-02"},
		},
		"taken back by its owner": {
			given: both(func(s *scene) { drain(s); s.run() }, ask(CommandEnable, "proxy-01", "ada", false)),
			want:  verdict{to: "proxy-02", steps: []StepKind{StepRelease}},
		},
		"not taken back by another": {
			given: both(func(s *scene) { drain(s); s.run() }, ask(CommandEnable, "proxy-01", "bob", false)),
			want:  verdict{to: "proxy-02", held: []string{HeldOwner}},
		},
		"taken back by another with force": {
			given: both(func(s *scene) { drain(s); s.run() }, ask(CommandEnable, "proxy-01", "bob", true)),
			want:  verdict{to: "proxy-02", steps: []StepKind{StepRelease}},
		},
		"a hold of what is no candidate is told": {
			given: func(s *scene) { s.held(9) },
			want:  verdict{to: "proxy-01", notes: []string{NoteUnknownHold}},
		},
		"holds from the last good copy: no move that need not be": {
			given: func(s *scene) { s.held(1); s.HoldsAre = HoldsSalvaged },
			want:  verdict{to: "proxy-01", held: []string{HeldDamage, HeldDamage}},
		},
		"holds that can't be read: away from a dead one all the same": {
			given: func(s *scene) { s.dies(1); s.HoldsAre = HoldsLost },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepVeto, StepMove, StepFlush}, held: []string{HeldDamage}},
		},
	} {
		t.Run(name, tt.run)
	}
}
