package edge

import (
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

func TestVetoes(t *testing.T) {
	dead := func(s *scene) { s.dies(1); s.run() }
	for name, tt := range map[string]planCase{
		"kept by a further miss": {
			given: func(s *scene) {
				dead(s)
				s.later(20 * time.Second)
				s.answer(s.key(1), Miss)
				s.run()
				s.later(20 * time.Second)
			},
			want: verdict{to: "proxy-02"},
		},
		"runs out without a fresh probe, the address stays": {
			given: func(s *scene) { dead(s); s.later(31 * time.Second) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"ran out, and misses again: counted anew": {
			given: func(s *scene) { dead(s); s.later(35 * time.Second); s.answer(s.key(1), Miss) },
			want:  verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"ran out, and misses again and again: it was never in, and nothing is left to delete": {
			given: func(s *scene) { dead(s); s.later(35 * time.Second); s.dies(1) },
			want:  verdict{to: "proxy-02"},
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
			given: func(s *scene) {
				dead(s)
				s.Command, s.Ask = CommandReset, Ask{Service: "front", Candidate: "proxy-01", Owner: "ada"}
			},
			want: verdict{to: "proxy-02", steps: []StepKind{StepClear}},
		},
		"forgotten on request, and dead still": {
			given: func(s *scene) {
				dead(s)
				s.later(time.Second)
				s.Command, s.Ask = CommandReset, Ask{Service: "front", Owner: "ada"}
				s.dies(1)
			},
			want: verdict{to: "proxy-02"},
		},
	} {
		t.Run(name, tt.run)
	}
}
