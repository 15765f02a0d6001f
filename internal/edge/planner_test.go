package edge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// verdict is what a case wants of a plan.
type verdict struct {
	to    string     // candidate; "" = nobody
	steps []StepKind // in their order
	held  []string
	notes []string
}

type planCase struct {
	candidates int // 0 = 3
	config     func(*Config)
	given      func(*scene)
	want       verdict
}

func (tt planCase) run(t *testing.T) {
	t.Helper()
	n := tt.candidates
	if n == 0 {
		n = 3
	}
	c := testConfig(n, 0)
	if tt.config != nil {
		tt.config(&c)
	}
	s := atRest(c)
	s.later(time.Second)
	if tt.given != nil {
		tt.given(s)
	}
	before := s.Input
	p := PlanRetarget(s.Input)
	got := verdict{to: p.Choices[0].Candidate, steps: stepKinds(p), held: heldCodes(p), notes: noteCodes(p)}
	if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(verdict{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, planText(p))
	}
	invariants(t, before, p)
}

func planText(p Plan) string {
	var b strings.Builder
	p.Text(&b)
	return b.String()
}

// invariants hold for every plan.
func invariants(t *testing.T, in Input, p Plan) {
	t.Helper()
	moved := map[string]bool{}
	for _, s := range p.Steps {
		if s.Kind == StepMove {
			moved[s.Service] = true
		}
		if s.Reason == "" {
			t.Errorf("step %s of %s has no reason", s.Kind, s.Service)
		}
	}
	for _, c := range p.Choices {
		if !moved[c.Service] && c.Target != c.Was {
			t.Errorf("%s goes from %s to %s without a step", c.Service, c.Was, c.Target)
		}
	}
	for name, table := range p.Tables {
		if !table.Equal(table.sorted()) {
			t.Errorf("table of %s is not in order", name)
		}
		for _, e := range table.Targets {
			if !slices.Contains(table.Services, e.From) || !slices.Contains(table.Addresses, e.From.Addr.Addr()) {
				t.Errorf("table of %s: %v is answered and in no set", name, e.From)
			}
		}
	}
	again, err := ReplayInput(in)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "planned again", asJSON(t, p), asJSON(t, again))
}

func TestWhereAServiceLeads(t *testing.T) {
	unsticky := func(c *Config) { c.Services[0].Sticky = false }
	moveAndFlush := []StepKind{StepVeto, StepMove, StepFlush}
	for name, tt := range map[string]planCase{
		"all healthy: it stays where it is": {want: verdict{to: "proxy-01"}},
		"one missed probe moves nothing": {
			given: func(s *scene) { s.answer(s.key(1), Miss) },
			want:  verdict{to: "proxy-01"},
		},
		"a miss, a good answer and a miss move nothing": {
			given: func(s *scene) { s.answer(s.key(1), Miss); s.good(1); s.answer(s.key(1), Miss) },
			want:  verdict{to: "proxy-01"},
		},
		"two misses in a row: the next one": {
			given: func(s *scene) { s.dies(1) },
			want:  verdict{to: "proxy-02", steps: moveAndFlush},
		},
		"the second is dead too: the third": {
			given: func(s *scene) { s.dies(1, 2) },
			want:  verdict{to: "proxy-03", steps: []StepKind{StepVeto, StepVeto, StepMove, StepFlush, StepFlush}},
		},
		"the second has just missed one: the third": {
			given: func(s *scene) { s.dies(1); s.answer(s.key(2), Miss) },
			want:  verdict{to: "proxy-03", steps: moveAndFlush},
		},
		"one confirmed miss is enough": {
			given: func(s *scene) { s.answer(s.key(1), Miss); s.Confirmed = []Key{s.key(1)} },
			want:  verdict{to: "proxy-02", steps: moveAndFlush},
		},
		"unknown outcomes are no misses": {
			given: func(s *scene) {
				for range 9 {
					s.answer(s.key(1), OutcomeUnknown)
				}
			},
			want: verdict{to: "proxy-01"},
		},
		"the first recovers: sticky stays": {
			given: func(s *scene) { s.dies(1); s.run(); s.later(time.Second); s.good(1) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"the first recovers: without sticky it comes back": {
			config: unsticky,
			given:  func(s *scene) { s.dies(1); s.run(); s.later(time.Second); s.good(1) },
			want:   verdict{to: "proxy-01", steps: []StepKind{StepClear, StepMove}},
		},
		"without sticky a blip of the first moves nothing": {
			config: unsticky,
			given:  func(s *scene) { s.answer(s.key(1), Miss) },
			want:   verdict{to: "proxy-01"},
		},
		"a standby dies: its old entries go, nothing moves": {
			given: func(s *scene) { s.dies(3) },
			want:  verdict{to: "proxy-01", steps: []StepKind{StepVeto, StepFlush}},
		},
		"all dead: the incumbent stays, loudly": {
			given: func(s *scene) { s.dies(1, 2, 3) },
			want: verdict{
				to: "proxy-01", steps: []StepKind{StepVeto, StepVeto, StepVeto, StepFlush, StepFlush},
				held: []string{HeldNoTarget}, notes: []string{NoteLastResort},
			},
		},
		"all dead, one is back: it is taken, and what was left there is flushed": {
			given: func(s *scene) { s.dies(1, 2, 3); s.run(); s.later(time.Second); s.good(2) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear, StepMove, StepFlush}},
		},
		"the incumbent is drained: the next one, nothing is cut": {
			given: func(s *scene) { s.held(1) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepMove}},
		},
		"the hold ends: sticky stays": {
			given: func(s *scene) { s.held(1); s.run(); s.Holds = nil },
			want:  verdict{to: "proxy-02"},
		},
		"a hold runs out": {
			given: func(s *scene) { s.held(2); s.Holds[0].Until = s.Now / 1000 },
			want:  verdict{to: "proxy-01", steps: []StepKind{StepRelease}},
		},
		"a good answer ends no hold": {
			given: func(s *scene) { s.held(1); s.run(); s.good(1) },
			want:  verdict{to: "proxy-02"},
		},
		"all drained: the incumbent goes on, loudly": {
			given: func(s *scene) { s.held(1); s.held(2); s.held(3) },
			want:  verdict{to: "proxy-01", notes: []string{NoteDrainedServes}},
		},
		"dead and drained: the drained one does not serve": {
			given: func(s *scene) { s.held(2); s.held(3); s.dies(1) },
			want: verdict{
				to: "proxy-01", steps: []StepKind{StepVeto}, held: []string{HeldNoTarget}, notes: []string{NoteLastResort},
			},
		},
		"the incumbent is drained and the others are dead: the first dead one is the last resort": {
			given: func(s *scene) { s.held(1); s.dies(2, 3) },
			want: verdict{
				to: "proxy-02", steps: []StepKind{StepVeto, StepVeto, StepMove, StepFlush},
				held: []string{HeldNoTarget}, notes: []string{NoteLastResort},
			},
		},
		"the target left the configuration: it is no incumbent": {
			given: func(s *scene) { s.Config.Services[0].Candidates = s.Config.Services[0].Candidates[1:] },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepTable, StepMove, StepFlush}},
		},
		"no candidate is left: nobody, and its entries go": {
			given: func(s *scene) { s.Config.Services[0].Candidates = nil },
			want: verdict{
				steps: []StepKind{StepTable, StepMove, StepFlush}, held: []string{HeldNoTarget}, notes: []string{NoteNoCandidate},
			},
		},
		"the tables are gone: what was remembered": {
			given: func(s *scene) { s.dies(1); s.run(); s.good(1); s.Views = newScene(s.Config).Views },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear, StepTable}},
		},
		"candidates on one node": {
			candidates: 2,
			config:     func(c *Config) { c.Services[0].Candidates[1].Node = "core-01" },
			want:       verdict{to: "proxy-01", notes: []string{NoteOneNode}},
		},
		"never asked is not down": {
			given: func(s *scene) { s.Memory.Health = nil },
			want:  verdict{to: "proxy-01"},
		},
		"a candidate that is never asked takes no misses": {
			config: func(c *Config) { c.Services[0].Probe = Probe{Type: ProbeNone} },
			given:  func(s *scene) { s.dies(1); s.Confirmed = []Key{s.key(1)} },
			want:   verdict{to: "proxy-01"},
		},
	} {
		t.Run(name, tt.run)
	}
}

func TestLogins(t *testing.T) {
	logins := func(c *Config) { c.Services[0].Probe = Probe{Type: ProbeStatusPing, Login: true, Interval: time.Second, Cap: time.Second, Misses: 2, Rise: 1} }
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

func TestVetoes(t *testing.T) {
	dead := func(s *scene) { s.dies(1); s.run() }
	for name, tt := range map[string]planCase{
		"kept by a further miss": {
			given: func(s *scene) { dead(s); s.later(20 * time.Second); s.answer(s.key(1), Miss); s.run(); s.later(20 * time.Second) },
			want:  verdict{to: "proxy-02"},
		},
		"runs out without a fresh probe, the address stays": {
			given: func(s *scene) { dead(s); s.later(31 * time.Second) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"ran out, and misses again: counted anew": {
			given: func(s *scene) { dead(s); s.later(35 * time.Second); s.answer(s.key(1), Miss) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"ran out, and misses again and again: it was never in": {
			given: func(s *scene) { dead(s); s.later(35 * time.Second); s.dies(1) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepFlush}},
		},
		"no veto outlives its life because the clock was set back": {
			given: func(s *scene) {
				dead(s)
				s.Memory.Vetoes[0].Until += 86400
				s.run()
				s.later(31 * time.Second)
			},
			want: verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"of an address that configuration does not have any more: forgotten": {
			given: func(s *scene) { dead(s); s.Config.Services[0].Candidates[0].Port = 9 },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepTable}},
		},
		"another question: what the old one said says nothing": {
			given: func(s *scene) { dead(s); s.Config.Services[0].Probe.Port = 9 },
			want:  verdict{to: "proxy-02"},
		},
		"rises only after enough good answers": {
			config: func(c *Config) { c.Services[0].Probe.Rise = 2 },
			given:  func(s *scene) { dead(s); s.later(time.Second); s.good(1) },
			want:   verdict{to: "proxy-02"},
		},
		"forgotten on request": {
			given: func(s *scene) { dead(s); s.Command, s.Ask = CommandReset, Ask{Service: "front", Candidate: "proxy-01", Owner: "ada"} },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"forgotten on request, and dead still": {
			given: func(s *scene) {
				dead(s)
				s.later(time.Second)
				s.Command, s.Ask = CommandReset, Ask{Service: "front", Owner: "ada"}
				s.dies(1)
			},
			want: verdict{to: "proxy-02", steps: []StepKind{StepFlush}},
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

func TestWhoMoves(t *testing.T) {
	lease := func(s *scene, node, replica string, holds ...string) {
		for i := range s.Views {
			if v := &s.Views[i]; v.Replica == replica {
				v.Table.Leases = append(slices.Clone(v.Table.Leases), Lease{
					Node: node, Holds: holds, Config: configDigest(s.Config), Opinion: opinionOf(s.Input), Left: 20 * time.Second,
				})
				slices.SortFunc(v.Table.Leases, compareLeases)
			}
		}
	}
	gone := func(s *scene, replica string) {
		for i := range s.Views {
			if s.Views[i].Replica == replica {
				s.Views[i] = View{Replica: replica, Local: s.Views[i].Local, Error: "no answer within 2s"}
			}
		}
	}
	for name, tt := range map[string]struct {
		given  func(*scene)
		writer string
		moves  bool
	}{
		"who has the address": {func(*scene) {}, "core-01", true},
		"who has it, by its lease": {
			func(s *scene) { s.as(2) }, "core-01", false,
		},
		"its lease ran out: the lowest-named at work": {
			func(s *scene) { s.as(2); s.later(31 * time.Second) }, "core-02", true,
		},
		"nobody has it: the lowest-named that is at work": {
			func(s *scene) { s.as(3); s.later(31 * time.Second); lease(s, "core-02", "core-03") }, "core-02", false,
		},
		"… which can't be reached any more: this one": {
			func(s *scene) { s.as(3); s.later(31 * time.Second); lease(s, "core-02", "core-03"); gone(s, "core-02") }, "core-03", true,
		},
		"a replica without a lease is not at work": {
			func(s *scene) { s.as(3); s.later(31 * time.Second) }, "core-03", true,
		},
		"configured to be: always": {
			func(s *scene) { s.as(3); s.Config.Writer = WriterAlways }, "core-03", true,
		},
		"configured never to be, with the address": {
			func(s *scene) { s.later(31 * time.Second); s.Config.Writer = WriterNever }, "", false,
		},
		"holds more than its lease can say": {
			func(s *scene) { s.as(3); s.later(31 * time.Second); lease(s, "core-02", "core-02", "*") }, "core-02", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := atRest(testConfig(3, 3))
			tt.given(s)
			s.dies(1)
			p := PlanRetarget(s.Input)
			if got := p.Choices[0].Writer; got != tt.writer {
				t.Errorf("writer %q, want %q", got, tt.writer)
			}
			if got := slices.Contains(stepKinds(p), StepMove); got != tt.moves {
				t.Errorf("moves: %v, want %v\n%s", got, tt.moves, planText(p))
			}
			if got := slices.Contains(heldCodes(p), HeldNotWriter); got == tt.moves {
				t.Errorf("held back: %v\n%s", got, planText(p))
			}
			for _, v := range s.Views {
				if !tt.moves && !v.Local && p.behind(v) {
					t.Errorf("one who moves nothing writes the table of %s", v.Replica)
				}
			}
			invariants(t, s.Input, p)
		})
	}
}

// opinionOf is what a node that knows the same would say in its lease.
func opinionOf(in Input) string {
	for _, l := range PlanRetarget(in).Tables[in.Node].Leases {
		if l.Node == in.Node {
			return l.Opinion
		}
	}
	return ""
}

func TestOneWhoWritesNothingMendsNothingElsewhere(t *testing.T) {
	for name, spoil := range map[string]func(*View){
		"no table":  func(v *View) { *v = View{Replica: v.Replica, Absent: true} },
		"drift":     func(v *View) { v.Drift = []string{"chain forward: rule 1"} },
		"a stray":   func(v *View) { v.Table.Targets = v.Table.Targets[:1] },
		"no backup": func(v *View) { v.Table.Backends = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := atRest(testConfig(3, 3))
			writer := *s
			writer.Views = slices.Clone(s.Views)
			spoil(&writer.Views[2])
			if !PlanRetarget(writer.Input).behind(writer.Views[2]) {
				t.Error("its writer leaves it as it is")
			}
			s.as(2)
			s.run()
			spoil(&s.Views[2])
			p := PlanRetarget(s.Input)
			if p.behind(s.Views[2]) {
				t.Errorf("it is written:\n%s", planText(p))
			}
		})
	}
}

func TestTheHighestEpochWins(t *testing.T) {
	for name, tt := range map[string]struct {
		given func(*scene)
		to    netip.AddrPort
		epoch uint64
		steps []StepKind
	}{
		"another table is ahead": {
			func(s *scene) { s.leads(proxy(2), 7, "core-02", "core-02") }, proxy(2), 7, []StepKind{StepSync, StepSync},
		},
		"the memory is ahead of all tables": {
			func(s *scene) { s.Memory.Targets[0].To, s.Memory.Targets[0].Epoch = proxy(3), 9 },
			proxy(3), 9, []StepKind{StepSync, StepSync, StepSync},
		},
		"one epoch, two targets: one more epoch": {
			func(s *scene) { s.leads(proxy(2), 7, "core-02"); s.leads(proxy(3), 7, "core-03", "core-03") },
			proxy(2), 8, []StepKind{StepSync, StepSync, StepSync},
		},
		"the highest can't be reached": {
			func(s *scene) {
				s.leads(proxy(2), 7, "core-02", "core-02")
				s.Views[1] = View{Replica: "core-02", Error: "no answer"}
			}, proxy(1), 1, nil,
		},
		"the highest leads to a dead one": {
			func(s *scene) { s.leads(proxy(2), 7, "core-02", "core-02"); s.dies(2) }, proxy(1), 8, []StepKind{StepVeto, StepMove, StepFlush},
		},
		"an epoch at its end": {
			func(s *scene) { s.leads(proxy(1), ^uint64(0), "core-01"); s.dies(1) }, proxy(2), ^uint64(0), []StepKind{StepVeto, StepMove, StepFlush},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := atRest(testConfig(3, 3))
			s.leads(proxy(1), 1, "core-01")
			tt.given(s)
			p := PlanRetarget(s.Input)
			if c := p.Choices[0]; c.Target != tt.to || c.Epoch != tt.epoch {
				t.Errorf("leads to %s, epoch %d; want %s, epoch %d", c.Target, c.Epoch, tt.to, tt.epoch)
			}
			if diff := cmp.Diff(tt.steps, stepKinds(p), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("steps (-want +got):\n%s\n%s", diff, planText(p))
			}
			for name, table := range p.Tables {
				if got := target(t, table); got != tt.to.String() {
					t.Errorf("%s leads to %s", name, got)
				}
			}
			invariants(t, s.Input, p)
		})
	}
}
