package edge

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

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
			proxy(3), 9,
			[]StepKind{StepSync, StepSync, StepSync},
		},
		"one epoch, two targets: one more epoch": {
			func(s *scene) { s.leads(proxy(2), 7, "core-02"); s.leads(proxy(3), 7, "core-03", "core-03") },
			proxy(2), 8,
			[]StepKind{StepSync, StepSync, StepSync},
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
