package egress

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

// exhaustedNow is when the refresh that exhaustion had asked for has failed.
func exhaustedNow(in *Input) {
	in.allSilent(3)
	in.word(state.ModeEmergencyRefresh)
	in.Memory.Modes.Attempt, in.Memory.Modes.Guarded = &OpenAttempt{Kind: AttemptExhaustion, Began: noon}, true
	in.Ended = &AttemptEnd{Reason: "a dead list"}
}

// allHold is when every criterion of leaving direct holds.
func allHold(in *Input) {
	in.word(state.ModeDirect)
	in.Memory.Modes = ModeMemory{Declared: true, Refreshed: true, Rebuilt: true}
	in.strict("", "", "", "", "")
	for _, l := range in.Config.Lanes {
		in.Plane.Classes[l.Name] = direct
	}
}

func why(p Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, s.Reason)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestWhereModesMoveUsers(t *testing.T) {
	off := func(in *Input, classes ...string) {
		in.Options.Direct = &DirectOrder{Classes: classes, By: "alice", Reason: "over"}
	}
	const holds = "all criteria hold: 5 of 5 slots with fresh endpoints pass the strict check"
	for name, tt := range map[string]struct {
		change func(*Input)
		steps  []string
		why    []string
		mode   *ModeChange
		lends  map[string]Lend
		held   []string
	}{
		"to direct, but for those who must not, and those who are there": {
			func(in *Input) {
				exhaustedNow(in)
				in.Config.Lanes[3].FailMode, in.Config.Lanes[4].FailMode = FailOtherLane, FailClosed
				in.Plane.Classes["egress2"] = direct
				in.Memory.Lends = map[string]Lend{"egress1": {To: "egress3"}, "egress4": {To: "egress3"}}
			},
			[]string{"direct class egress1: egress1 -> direct", "direct class egress3: egress3 -> direct"},
			[]string{"VPN exhausted and no fresh pool: a dead list"},
			&ModeChange{"emergency_refresh", "direct_failopen", "VPN exhausted and no fresh pool: a dead list"},
			map[string]Lend{"egress4": {To: "egress3"}},
			nil,
		},
		"to direct by hand": {
			func(in *Input) {
				in.Options.Direct = &DirectOrder{On: true, Classes: []string{"egress2"}, By: "alice", Reason: "a call"}
			},
			[]string{"direct class egress2: egress2 -> direct"},
			[]string{"by hand, by alice: a call"},
			nil, nil, nil,
		},
		"to direct by hand; nobody else is moved along with it": {
			func(in *Input) {
				in.word(state.ModeNormal)
				in.Memory.Modes.Manual = map[string]Manual{"egress2": {Reason: "a call"}}
				in.Plane.Classes["egress4"] = direct
			},
			[]string{"direct class egress2: egress2 -> direct"},
			[]string{"by hand: a call"},
			nil, nil, nil,
		},
		"home, where the home lane passes": {
			allHold,
			[]string{
				"leave class egress1: direct -> egress1", "leave class egress2: direct -> egress2", "leave class egress3: direct -> egress3",
				"leave class egress4: direct -> egress4", "leave class egress5: direct -> egress5",
			},
			[]string{holds},
			&ModeChange{"direct_failopen", "normal", holds}, nil, nil,
		},
		"home, but for who is direct by hand, who is home, and who has to be lent": {
			func(in *Input) {
				allHold(in)
				in.Memory.Modes.Manual = map[string]Manual{"egress5": {}}
				in.Plane.Classes["egress4"] = "egress4"
				in.silence(0, 1)
				in.Lanes[0].Strict = nil
				in.Lanes[1].Strict = nil
			},
			[]string{"leave class egress1: direct -> egress3", "leave class egress2: direct -> egress2", "leave class egress3: direct -> egress3"},
			[]string{"all criteria hold: 3 of 3 slots with fresh endpoints pass the strict check"},
			&ModeChange{"direct_failopen", "normal", "all criteria hold: 3 of 3 slots with fresh endpoints pass the strict check"},
			map[string]Lend{
				"egress1": {To: "egress3", Since: noon, Reason: "its own lane does not pass yet"},
			},
			nil,
		},
		"home; one who belongs on direct goes there along with it": {
			func(in *Input) {
				allHold(in)
				in.Memory.Modes.Manual = map[string]Manual{"egress5": {Reason: "a test"}}
				for _, l := range in.Config.Lanes {
					in.Plane.Classes[l.Name] = l.Name
				}
			},
			[]string{"direct class egress5: egress5 -> direct"},
			[]string{"by hand: a test"},
			&ModeChange{"direct_failopen", "normal", holds}, nil, nil,
		},
		"a lender passes its round and its strict check": {
			func(in *Input) {
				allHold(in)
				in.Plane.Classes = map[string]string{"egress1": direct, "egress4": direct}
				in.silence(0, 1, 2) // the second's strict check was before
				in.Lanes[0].Strict = nil
				in.carries(3, 20)
				*in.Lanes[2].Strict = "5 of 5 pings lost"
				in.Lanes[3].Round = nil
			},
			[]string{"leave class egress1: direct -> egress5", "leave class egress4: direct -> egress5"},
			[]string{"all criteria hold: 3 of 3 slots with fresh endpoints pass the strict check"},
			&ModeChange{"direct_failopen", "normal", "all criteria hold: 3 of 3 slots with fresh endpoints pass the strict check"},
			map[string]Lend{
				"egress1": {To: "egress5", Since: noon, Reason: "its own lane does not pass yet"},
				"egress4": {To: "egress5", Since: noon, Reason: "its own lane does not pass yet"},
			},
			nil,
		},
		"an attempt": {
			func(in *Input) { in.word(state.ModeNormal); in.Options.Force = true },
			[]string{"refresh retry"},
			[]string{"an operator asked for it"},
			nil, nil, nil,
		},
		"a pool to be placed": {
			func(in *Input) { in.word(state.ModeNormal); in.Memory.Modes.Rebuild = true },
			[]string{"rebuild "},
			[]string{"a fresh pool waits to be placed"},
			nil, nil, nil,
		},
		"by hand no longer, and nothing else keeps it there": {
			func(in *Input) {
				in.word(state.ModeNormal)
				in.Memory.Modes.Manual = map[string]Manual{"egress2": {}, "egress3": {}}
				for _, c := range []string{"egress2", "egress3", "egress4"} {
					in.Plane.Classes[c] = direct // the fourth is not in the order: another's business
				}
				off(in, "egress1", "egress2")
			},
			[]string{"leave class egress2: direct -> egress2"},
			[]string{"by hand, by alice: over"},
			nil, nil, nil,
		},
		"by hand no longer, and direct is declared": {
			func(in *Input) {
				allHold(in)
				in.Memory.Modes.Refreshed = false
				in.Memory.Modes.Tried = noon
				in.Memory.Modes.Manual = map[string]Manual{"egress2": {}}
				off(in, "egress2")
			},
			nil, nil, nil, nil,
			[]string{"users stay direct until a refresh has succeeded by a way that recovery found"},
		},
		"by hand no longer, and the mode is still direct": {
			func(in *Input) {
				allHold(in)
				in.Memory.Modes = ModeMemory{Manual: map[string]Manual{"egress2": {}}}
				in.Plane.Ready = false
				off(in, "egress2")
			},
			nil, nil, nil, nil,
			[]string{"users stay direct until rules, routes and uplink are as they should be"},
		},
		"by hand no longer, and every criterion holds": {
			func(in *Input) {
				allHold(in)
				in.Plane.Classes = map[string]string{"egress2": direct}
				in.Memory.Modes.Manual = map[string]Manual{"egress2": {}}
				off(in, "egress2")
			},
			[]string{"leave class egress2: direct -> egress2"},
			[]string{holds},
			&ModeChange{"direct_failopen", "normal", holds}, nil, nil,
		},
		"by hand from now on, in direct mode": {
			func(in *Input) {
				allHold(in)
				in.Memory.Modes.Refreshed, in.Memory.Modes.Tried = false, noon
				in.Options.Direct = &DirectOrder{On: true, Classes: []string{"egress2"}}
			},
			nil, nil, nil, nil, nil,
		},
		"a pool that recovery found could not be placed": {
			func(in *Input) {
				allHold(in)
				in.word(state.ModeExternalRecovery)
				in.Memory.Modes.Rebuild, in.Memory.Modes.Rebuilt = true, false
				in.Placed = &RebuildEnd{Reason: "none passed"}
			},
			nil, nil, &ModeChange{"external_hmn_access_recovery", "direct_failopen", "the fresh pool could not be placed: none passed"}, nil, nil,
		},
		"every lane passes when an attempt was not made": {
			func(in *Input) {
				in.word(state.ModeEmergencyRefresh)
				in.Memory.Modes.Attempt, in.Ended = &OpenAttempt{Kind: AttemptEmergency}, &AttemptEnd{Busy: true, Reason: "busy"}
			},
			nil, nil, &ModeChange{"emergency_refresh", "normal", "the attempt was not made: busy"}, nil, nil,
		},
		"one lane does not": {
			func(in *Input) {
				in.word(state.ModeEmergencyRefresh)
				in.silence(1, 2)
				in.Memory.Modes.Attempt, in.Ended = &OpenAttempt{Kind: AttemptEmergency}, &AttemptEnd{Busy: true, Reason: "busy"}
			},
			nil, nil, &ModeChange{"emergency_refresh", "slot_repair", "the attempt was not made: busy"}, nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy("recover")
			tt.change(&in)
			p := PlanRecover(in)
			if p.Command != "recover" || p.Next.Lanes["egress1"].State == "" {
				t.Errorf("the plan is not of this input: %+v", p)
			}
			if _, attempt := p.wants(); attempt != (p.Next.Modes.Attempt != nil) {
				t.Errorf("an attempt that is not remembered: %+v", p.Next.Modes)
			}
			if len(p.Next.Lends) == 0 {
				p.Next.Lends = nil
			}
			var held []string
			for _, h := range p.Held {
				held = append(held, h.Reason)
			}
			for _, d := range []string{
				cmp.Diff(tt.steps, brief(p)), cmp.Diff(tt.why, why(p)), cmp.Diff(tt.mode, p.Mode), cmp.Diff(tt.lends, p.Next.Lends), cmp.Diff(tt.held, held),
			} {
				if d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			}
		})
	}
}

func TestWhatKeepsUsersOnDirect(t *testing.T) {
	const (
		access = "a refresh has succeeded by a way that recovery found"
		pool   = "the fresh pool is placed"
		strict = "every lane with a fresh endpoint, at least one, passes the strict check"
		safely = "rules, routes and uplink are as they should be"
	)
	good := ModeObservation{Uplink: true, Ready: true, Filled: 2, Strict: 2}
	declared := ModeMemory{Declared: true, Refreshed: true, Rebuilt: true}
	for name, tt := range map[string]struct {
		change func(*ModeMemory, *ModeObservation)
		want   []string
	}{
		"nothing":                        {func(*ModeMemory, *ModeObservation) {}, nil},
		"no refresh":                     {func(m *ModeMemory, _ *ModeObservation) { m.Refreshed = false }, []string{access}},
		"no rebuild":                     {func(m *ModeMemory, _ *ModeObservation) { m.Rebuilt = false }, []string{pool}},
		"by hand only, neither is asked": {func(m *ModeMemory, _ *ModeObservation) { *m = ModeMemory{} }, nil},
		"no slot is filled":              {func(_ *ModeMemory, o *ModeObservation) { o.Filled, o.Strict = 0, 0 }, []string{strict}},
		"one fails the strict check":     {func(_ *ModeMemory, o *ModeObservation) { o.Strict = 1 }, []string{strict}},
		"rules are away":                 {func(_ *ModeMemory, o *ModeObservation) { o.Ready = false }, []string{safely}},
		"the uplink is down":             {func(_ *ModeMemory, o *ModeObservation) { o.Uplink = false }, []string{safely}},
		"all":                            {func(m *ModeMemory, o *ModeObservation) { m.Refreshed, m.Rebuilt = false, false; *o = ModeObservation{} }, []string{access, pool, strict, safely}},
	} {
		t.Run(name, func(t *testing.T) {
			m, o := declared, good
			tt.change(&m, &o)
			if d := cmp.Diff(tt.want, missing(ModeState{ModeMemory: m}, o)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if leaves := (&machine{s: ModeState{ModeMemory: m}, o: o}).criteria(); leaves != (len(tt.want) == 0) {
				t.Errorf("the criteria hold: %t", leaves)
			}
		})
	}
}
