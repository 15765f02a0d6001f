package egress

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

const today = "2026-11-30"

// strict says what each lane's strict check found; lanes beyond are not checked.
func (in *Input) strict(found ...string) {
	for i, f := range found {
		in.Lanes[i].Strict = &f
	}
}

// word writes the mode, as a run before this one did.
func (in *Input) word(mode state.Mode) { in.KV[state.KeyMode] = string(mode) }

func (in *Input) allSilent(misses int) { in.silence(misses, 1, 2, 3, 4, 5) }

func TestWhatModesSeeOfARun(t *testing.T) {
	dead := &UplinkView{Targets: map[string]bool{"203.0.113.53": false}}
	for name, tt := range map[string]struct {
		change func(*Input)
		want   func(*ModeObservation)
	}{
		"every lane passes":                  {func(*Input) {}, func(*ModeObservation) {}},
		"no lane passes, the targets answer": {func(in *Input) { in.allSilent(0) }, func(o *ModeObservation) { o.Healthy = 0 }},
		"a lane was not looked at":           {func(in *Input) { in.Lanes[1].Round = nil }, func(o *ModeObservation) { o.Healthy = 4 }},
		"nobody looked at the uplink":        {func(in *Input) { in.allSilent(0); in.Uplink = nil }, func(o *ModeObservation) { o.Healthy, o.Uplink = 0, false }},
		"the uplink returned":                {func(in *Input) { in.Memory.UplinkDown = true }, func(o *ModeObservation) { o.Returned = true }},
		"the uplink is still down": {
			func(in *Input) { in.allSilent(0); in.Uplink, in.Memory.UplinkDown = dead, true },
			func(o *ModeObservation) { o.Healthy, o.Uplink = 0, false },
		},
		"another run's refresh":           {func(in *Input) { in.Refreshing = true }, func(o *ModeObservation) { o.Refreshing = true }},
		"another run's attempt":           {func(in *Input) { in.Attempting = true }, func(o *ModeObservation) { o.Attempting = true }},
		"an operator asks":                {func(in *Input) { in.Options.Force = true }, func(o *ModeObservation) { o.Force = true }},
		"rules are not as they should be": {func(in *Input) { in.Plane.Ready = false }, func(o *ModeObservation) { o.Ready = false }},
		"an attempt ended, and its pool was placed": {
			func(in *Input) { in.Ended, in.Placed = &AttemptEnd{OK: true}, &RebuildEnd{OK: true} },
			func(o *ModeObservation) { o.Ended, o.Placed = &AttemptEnd{OK: true}, &RebuildEnd{OK: true} },
		},
		"the day's counter": {func(in *Input) { in.Count = 1 }, func(o *ModeObservation) { o.Counts = []DayCount{{today, 1}} }},
		"a new day without a replacement is no news": {
			func(in *Input) { in.Memory.Modes.Counted = DayCount{"2026-11-29", 3} }, func(*ModeObservation) {},
		},
		"a day that is over is read to its end": {
			func(in *Input) {
				in.Memory.Modes.Counted = DayCount{"2026-11-29", 3}
				in.DayBefore, in.Count = &DayCount{"2026-11-29", 4}, 2
			},
			func(o *ModeObservation) { o.Counts = []DayCount{{"2026-11-29", 4}, {today, 2}} },
		},
		"a counter that an operator set back": {
			func(in *Input) { in.Memory.Modes.Counted = DayCount{today, 3} }, func(o *ModeObservation) { o.Counts = []DayCount{{today, 0}} },
		},
		"slots with fresh endpoints": {
			func(in *Input) {
				in.strict("", "5 of 5 pings lost", "", "")
				in.Lanes[2].Device.Present = false
				in.carries(4, 20)
			},
			func(o *ModeObservation) { o.Filled, o.Strict = 2, 1 },
		},
		"an endpoint that failed after the pool's tests is not a fresh one": {
			func(in *Input) {
				in.strict("", "")
				in.Quarantine = []state.Quarantined{quarantined(2, at("09:00:00"), "egress2")}
			},
			func(o *ModeObservation) { o.Filled, o.Strict = 1, 1 },
		},
		"one that failed before them is": {
			func(in *Input) {
				in.strict("", "")
				in.Quarantine = []state.Quarantined{quarantined(2, at("04:00:00"), "egress2")}
			},
			func(o *ModeObservation) { o.Filled, o.Strict = 2, 2 },
		},
		"the working pool fills nothing": {
			func(in *Input) { in.strict("", ""); in.Pools = in.Pools[2:] }, func(*ModeObservation) {},
		},
		"a damaged pool fills nothing": {
			func(in *Input) { in.strict("", ""); in.Pools[0].Error = "line 3"; in.Pools[1].Error = "line 3" }, func(*ModeObservation) {},
		},
		"a healthy pool beside a damaged one does": {
			func(in *Input) { in.strict("", ""); in.Pools[0].Error = "line 3" }, func(o *ModeObservation) { o.Filled, o.Strict = 2, 2 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy("recover")
			tt.change(&in)
			want := ModeObservation{Uplink: true, Healthy: 5, Ready: true}
			tt.want(&want)
			if d := cmp.Diff(want, in.observe(in.modeState())); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestWhoIsAstray(t *testing.T) {
	onDirect := func(in *Input) {
		in.word(state.ModeDirect)
		in.Memory.Modes.Declared = true
		for _, l := range in.Config.Lanes {
			in.Plane.Classes[l.Name] = direct
		}
	}
	for name, tt := range map[string]struct {
		change func(*Input)
		want   bool
	}{
		"users are at home": {func(*Input) {}, false},
		"users are direct":  {onDirect, false},
		"one is not":        {func(in *Input) { onDirect(in); in.Plane.Classes["egress3"] = "egress3" }, true},
		"recovery is under way and one is not": {func(in *Input) {
			onDirect(in)
			in.word(state.ModeExternalRecovery)
			in.Plane.Classes["egress3"] = "egress3"
		}, true},
		"where one is, is not known": {func(in *Input) { onDirect(in); delete(in.Plane.Classes, "egress3") }, false},
		"one must not go direct": {func(in *Input) {
			onDirect(in)
			in.Config.Lanes[2].FailMode = FailClosed
			in.Plane.Classes["egress3"] = ""
		}, false},
		"one may, by its own word": {func(in *Input) {
			onDirect(in)
			in.Config.Lanes[2].FailMode = FailDirect
			in.Plane.Classes["egress3"] = ""
		}, true},
		"the word alone declares nothing":  {func(in *Input) { in.word(state.ModeDirect) }, false},
		"its cause alone declares nothing": {func(in *Input) { in.Memory.Modes.Declared = true }, false},
		"one that goes by hand":            {func(in *Input) { in.Memory.Modes.Manual = map[string]Manual{"egress2": {Reason: "a call"}} }, true},
		"one that goes by hand, and is there": {func(in *Input) {
			in.Memory.Modes.Manual = map[string]Manual{"egress2": {}}
			in.Plane.Classes["egress2"] = direct
		}, false},
		"an operator's word that is given now": {func(in *Input) { in.Options.Direct = &DirectOrder{On: true, Classes: []string{"egress2"}} }, true},
		"one that is withdrawn now": {func(in *Input) {
			in.Memory.Modes.Manual = map[string]Manual{"egress2": {}}
			in.Options.Direct = &DirectOrder{Classes: []string{"egress2"}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy("recover")
			tt.change(&in)
			if got := in.observe(in.modeState()).Astray; got != tt.want {
				t.Errorf("astray: %t", got)
			}
		})
	}
}

func TestAnOperatorsWordIsTakenIn(t *testing.T) {
	in := healthy("recover")
	in.KV[state.KeyReason] = "lane egress2: silent"
	in.word(state.ModeSlotRepair)
	old := Manual{Since: at("09:00:00"), By: "bob", Reason: "a test"}
	in.Memory.Modes = ModeMemory{Failed: 2, Manual: map[string]Manual{"egress1": old, "egress2": old}}
	in.Options.Direct = &DirectOrder{On: true, Classes: []string{"egress2", "egress3"}, By: "alice", Reason: "a call"}
	said := Manual{Since: noon, By: "alice", Reason: "a call"}
	want := ModeState{Mode: state.ModeSlotRepair, Reason: "lane egress2: silent", ModeMemory: ModeMemory{
		Failed: 2, Manual: map[string]Manual{"egress1": old, "egress2": said, "egress3": said},
	}}
	if d := cmp.Diff(want, in.modeState()); d != "" {
		t.Errorf("on (-want +got):\n%s", d)
	}
	in.Options.Direct.On = false
	delete(want.Manual, "egress2")
	delete(want.Manual, "egress3")
	if d := cmp.Diff(want, in.modeState()); d != "" {
		t.Errorf("off (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]Manual{"egress1": old, "egress2": old}, in.Memory.Modes.Manual); d != "" {
		t.Errorf("the input has changed:\n%s", d)
	}
}

func TestThePolicyIsTheConfiguration(t *testing.T) {
	c := testConfig(2)
	want := ModePolicy{
		Threshold: 5, Window: 24 * time.Hour, Cooldown: 2 * time.Hour, RetryMin: 30 * time.Second, RetryMax: 10 * time.Minute,
		Classes: []string{"egress1", "egress2"}, MayDirect: true,
	}
	for _, tt := range []struct {
		first, second FailMode
		may           bool
	}{
		{FailUnknown, FailUnknown, true},
		{FailDirect, FailClosed, true},
		{FailOtherLane, FailDirect, true},
		{FailOtherLane, FailClosed, false},
	} {
		c.Lanes[0].FailMode, c.Lanes[1].FailMode = tt.first, tt.second
		want.MayDirect = tt.may
		if d := cmp.Diff(want, c.modePolicy()); d != "" {
			t.Errorf("%q and %q (-want +got):\n%s", tt.first, tt.second, d)
		}
	}
}
