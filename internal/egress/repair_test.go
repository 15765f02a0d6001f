package egress

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPlanRepair(t *testing.T) {
	e := endpoint
	tests := map[string]struct {
		change func(*Input)
		steps  []string
		held   []string
	}{
		"every lane passes": {func(*Input) {}, nil, nil},
		"one silent round is only suspicion": {
			func(in *Input) { in.silence(0, 2) }, nil, nil,
		},
		"a full lane that loses its pings is alive (gluetun#2942)": {
			func(in *Input) {
				in.silence(1, 2)
				in.Lanes[1].Round.RxBefore, in.Lanes[1].Round.RxAfter = 1000, 900_000
			}, nil, nil,
		},
		"a dead lane: lend first, record, prove several at once": {
			func(in *Input) { in.silence(1, 2) },
			[]string{
				"lend class egress2: egress2 -> egress1",
				"quarantine endpoint " + e(2) + " of lane egress2",
				"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9),
				"swap lane egress2: " + e(2) + " -> " + e(6) + " ?",
				"return class egress2: egress1 -> egress2 ?",
			},
			nil,
		},
		"the first of the pool's order that passes is taken": {
			func(in *Input) {
				in.silence(1, 2)
				in.prove(false, 6)
				in.prove(true, 7, 8, 9)
			},
			[]string{
				"lend class egress2: egress2 -> egress1",
				"quarantine endpoint " + e(2) + " of lane egress2",
				"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9),
				"swap lane egress2: " + e(2) + " -> " + e(7),
				"return class egress2: egress1 -> egress2 ?",
			},
			nil,
		},
		"a candidate that fails on the lane is followed by the next": {
			func(in *Input) {
				in.silence(1, 2)
				in.prove(true, 6, 7, 8, 9)
				in.swapped(2, 6, false)
				in.swapped(2, 7, true)
			},
			[]string{
				"lend class egress2: egress2 -> egress1",
				"quarantine endpoint " + e(2) + " of lane egress2",
				"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9),
				"swap lane egress2: " + e(2) + " -> " + e(6),
				"swap lane egress2: " + e(2) + " -> " + e(7),
				"return class egress2: egress1 -> egress2",
			},
			nil,
		},
		"nothing is touched when no candidate passes": {
			func(in *Input) {
				in.silence(1, 2)
				in.prove(false, 6, 7, 8, 9)
			},
			[]string{
				"lend class egress2: egress2 -> egress1",
				"quarantine endpoint " + e(2) + " of lane egress2",
				"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9),
			},
			[]string{"egress2 no_candidate"},
		},
		"a cut uplink burns nothing (dae#739)": {
			func(in *Input) {
				in.silence(1, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{Targets: map[string]bool{"203.0.113.53": false}}
			}, nil,
			[]string{"egress1 uplink_down", "egress2 uplink_down", "egress3 uplink_down", "egress4 uplink_down", "egress5 uplink_down"},
		},
		"the gateway answers and nothing behind it: a proof must show the way out first": {
			func(in *Input) {
				in.silence(1, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
			},
			[]string{"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9)},
			nil,
		},
		"the gateway answers, no candidate does: the uplink is down": {
			func(in *Input) {
				in.silence(1, 1, 2, 3, 4, 5)
				in.Uplink = &UplinkView{GatewayOK: true, Targets: map[string]bool{"203.0.113.53": false}}
				in.prove(false, 6, 7, 8, 9)
			},
			[]string{"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9)},
			[]string{"egress1 uplink_down", "egress2 uplink_down", "egress3 uplink_down", "egress4 uplink_down", "egress5 uplink_down"},
		},
		"what lies behind the gateway comes back: nothing is held against a lane that passes": {
			func(in *Input) {
				for _, l := range in.Config.Lanes { // as left by a run that had called them down
					m := in.Memory.Lanes[l.Name]
					m.Down, m.Misses, m.State = true, 3, "down"
					in.Memory.Lanes[l.Name] = m
				}
			}, nil, nil,
		},
		"an old handshake: the peer is added anew before the verdict": {
			func(in *Input) {
				in.silence(0, 2)
				in.Lanes[1].Device.Peers[0].Handshake = noon.Add(-150 * time.Second)
			},
			[]string{"renew lane egress2: peer " + e(2)},
			nil,
		},
		"after a cut the peer is added anew although its handshake is young": {
			func(in *Input) {
				in.silence(1, 2)
				m := in.Memory.Lanes["egress2"]
				m.Cut = true
				in.Memory.Lanes["egress2"] = m
			},
			[]string{"renew lane egress2: peer " + e(2)},
			nil,
		},
		"a gone interface is no server's fault": {
			func(in *Input) {
				in.silence(1, 2)
				in.Lanes[1].Device = DeviceView{}
				in.Lanes[1].Renewed = true
			},
			[]string{"renew lane egress2: peer " + e(2), "lend class egress2: egress2 -> egress1"},
			[]string{"egress2 no_candidate"},
		},
		"two dead lanes share one proof": {
			func(in *Input) {
				in.silence(1, 2, 3)
				in.prove(true, 6, 7, 8, 9)
				in.swapped(2, 6, true)
			},
			[]string{
				"lend class egress2: egress2 -> egress1",
				"lend class egress3: egress3 -> egress4",
				"quarantine endpoint " + e(2) + " of lane egress2",
				"quarantine endpoint " + e(3) + " of lane egress3",
				"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9),
				"swap lane egress2: " + e(2) + " -> " + e(6),
				"return class egress2: egress1 -> egress2",
				"swap lane egress3: " + e(3) + " -> " + e(7),
				"return class egress3: egress4 -> egress3 ?",
			},
			nil,
		},
		"an empty lane is filled without a quarantine": {
			func(in *Input) {
				in.silence(0, 2)
				l := &in.Lanes[1]
				l.Endpoint, l.Pair, l.Path, l.Device.Peers = "", "", "", nil
				in.prove(true, 2, 6, 7, 8)
			},
			[]string{
				"lend class egress2: egress2 -> egress1",
				"prove 4 endpoints: " + e(2) + " " + e(6) + " " + e(7) + " " + e(8),
				"swap lane egress2: (none) -> " + e(2),
				"return class egress2: egress1 -> egress2 ?",
			},
			nil,
		},
		"closed after a boot until the first verdict": {
			func(in *Input) {
				for c := range in.Plane.Classes {
					in.Plane.Classes[c] = ""
				}
				in.silence(0, 3)
			},
			[]string{
				"return class egress1: (none) -> egress1", "return class egress2: (none) -> egress2",
				"return class egress4: (none) -> egress4", "return class egress5: (none) -> egress5",
			},
			nil,
		},
		"a lender that dies passes its guests on": {
			func(in *Input) {
				in.Plane.Classes["egress2"] = "egress1"
				in.silence(1, 1, 2)
				m := in.Memory.Lanes["egress2"]
				m.Down, m.SearchedAt = true, noon.Add(-5*time.Second)
				in.Memory.Lanes["egress2"] = m
				in.Quarantine = nil
				in.prove(false, 6, 7, 8, 9)
			},
			[]string{
				"lend class egress1: egress1 -> egress3",
				"lend class egress2: egress1 -> egress4",
				"quarantine endpoint " + e(1) + " of lane egress1",
				"quarantine endpoint " + e(2) + " of lane egress2",
				"prove 4 endpoints: " + e(6) + " " + e(7) + " " + e(8) + " " + e(9),
			},
			[]string{"egress2 waiting", "egress1 no_candidate"},
		},
		"a lane that another run changes is left alone, its users are not": {
			func(in *Input) {
				in.silence(1, 2)
				in.Busy["egress2"] = "pid 7 shunt egress repair"
			}, []string{"lend class egress2: egress2 -> egress1"}, []string{"egress2 lock_busy"},
		},
		"the endpoint that just failed is no candidate": {
			func(in *Input) {
				in.silence(1, 2)
				in.Pools[0].Rows = []Row{row(2), row(6)}
				in.Pools[1].Rows, in.Pools[2].Rows = nil, nil
			},
			[]string{
				"lend class egress2: egress2 -> egress1",
				"quarantine endpoint " + e(2) + " of lane egress2",
				"prove endpoint " + e(6),
				"swap lane egress2: " + e(2) + " -> " + e(6) + " ?",
				"return class egress2: egress1 -> egress2 ?",
			},
			nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := healthy("repair")
			tt.change(&in)
			before, _ := json.Marshal(in)
			p := PlanRepair(in)
			if d := cmp.Diff(tt.steps, brief(p)); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.held, codes(p)); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
			after, _ := json.Marshal(in)
			if d := cmp.Diff(string(before), string(after)); d != "" {
				t.Errorf("the plan changed its input:\n%s", d)
			}
			replayed(t, in, p)
		})
	}
}

// replayed checks that an input that went through a file plans the identical plan.
func replayed(t *testing.T, in Input, want Plan) {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var again Input
	if err := json.Unmarshal(b, &again); err != nil {
		t.Fatal(err)
	}
	got, err := Replan(again)
	if err != nil {
		t.Fatal(err)
	}
	wb, _ := json.Marshal(want)
	gb, _ := json.Marshal(got)
	if d := cmp.Diff(string(wb), string(gb)); d != "" {
		t.Errorf("a replay plans something else (-want +got):\n%s", d)
	}
}

// Whatever happens: one step follows from what is known, the steps that were there stay,
// no lane is swapped to what another carries or to what is quarantined, no class is lent
// to a lane that is down, and a dead uplink leads to no step at all.
func TestPlanRepairHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := healthy("repair")
		for i := range in.Lanes {
			if rapid.Bool().Draw(rt, "silent") {
				in.silence(rapid.IntRange(0, 2).Draw(rt, "misses"), i+1)
				if rapid.Bool().Draw(rt, "old handshake") {
					in.Lanes[i].Device.Peers[0].Handshake = noon.Add(-time.Hour)
				}
			}
		}
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 9), 0, 4).Draw(rt, "quarantined") {
			in.Quarantine = append(in.Quarantine, quarantined(n, at("11:00:00"), "egress1"))
		}
		if rapid.Bool().Draw(rt, "uplink down") {
			in.Uplink = &UplinkView{Targets: map[string]bool{"203.0.113.53": false}}
		}
		truth := map[string]bool{}
		for n := 1; n <= 9; n++ {
			truth[endpoint(n)] = rapid.Bool().Draw(rt, "alive")
		}
		anyUp := slices.ContainsFunc(in.Lanes, func(l LaneView) bool { return l.Round.Pass })
		live(rt, in, truth, anyUp)
	})
}

// live plays a run against a world in which only the endpoints of truth work.
func live(t *rapid.T, in Input, truth map[string]bool, anyUp bool) {
	done := map[string]bool{}
	var walked []string
	carries := map[string]string{}
	for _, l := range in.Lanes {
		carries[l.Name] = l.Endpoint
	}
	for range 100 {
		p := PlanRepair(in)
		stays(t, &walked, p)
		if !anyUp && in.Uplink.Targets["203.0.113.53"] == false && len(p.Steps) > 0 {
			t.Fatalf("steps although the uplink is down: %v", brief(p))
		}
		i := slices.IndexFunc(p.Steps, func(s Step) bool { return !done[s.ID()] })
		if i < 0 || p.Steps[i].If != "" {
			return
		}
		s := p.Steps[i]
		done[s.ID()] = true
		walked = append(walked, s.ID())
		switch s.Kind {
		case StepProve:
			for _, e := range s.Endpoints {
				for lane, c := range carries {
					if c == e && truth[e] {
						t.Fatalf("%s is probed while %s carries it", e, lane)
					}
				}
				r := TestResult{Endpoint: e, Handshake: time.Millisecond, Sent: 3, Got: 3}
				if !truth[e] {
					r = TestResult{Endpoint: e, Reason: "no handshake"}
				}
				in.Proofs[e] = r
			}
		case StepSwap:
			for lane, c := range carries {
				if c == s.To && lane != s.Lane {
					t.Fatalf("%s placed on %s although %s carries it", s.To, s.Lane, lane)
				}
			}
			for _, q := range in.Quarantine {
				if q.Endpoint == s.To {
					t.Fatalf("quarantined %s placed", s.To)
				}
			}
			ok := truth[s.To]
			in.Swaps = append(in.Swaps, SwapOutcome{Lane: s.Lane, From: s.From, Endpoint: s.To, OK: ok})
			if ok {
				carries[s.Lane] = s.To
			}
		case StepLend:
			if l, _ := in.lane(s.To); !l.Round.Pass && !slices.ContainsFunc(in.Swaps, func(o SwapOutcome) bool { return o.Lane == s.To && o.OK }) {
				t.Fatalf("class %s lent to %s, which is down", s.Class, s.To)
			}
		case StepRenew:
			for i := range in.Lanes {
				if in.Lanes[i].Name != s.Lane {
					continue
				}
				in.Lanes[i].Renewed = true
				if truth[in.Lanes[i].Endpoint] { // one lost initiation, no more
					in.Lanes[i].Round = &Round{Sent: 2, Got: 2, Pass: true}
					anyUp = true
				}
			}
		case StepQuarantine, StepReturn, StepTest, StepPublish, StepRefresh, StepRebuild, StepDirect, StepLeave, StepUnknown:
		}
	}
	t.Fatal("the run did not come to an end")
}

func TestHoldDown(t *testing.T) {
	c := testConfig(1).Repair
	var h Hold
	var got []time.Duration
	for range 10 {
		h = failedAgain(h, 0, noon, c)
		got = append(got, h.For)
	}
	m := time.Minute
	want := []time.Duration{10 * m, 20 * m, 40 * m, 80 * m, 160 * m, 320 * m, 640 * m, 1280 * m, 1440 * m, 1440 * m}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("hold-downs (-want +got):\n%s", d)
	}
	if h = failedAgain(h, 48*time.Hour, noon, c); h.Failures != 3 {
		t.Errorf("two days of good service leave %d failures, want 3", h.Failures)
	}
	for name, now := range map[string]time.Time{"two years back": noon.AddDate(-2, 0, 0), "in 1970": time.Unix(60, 0)} {
		if left := holdLeft(Hold{Since: noon, For: 20 * m}, now, c.HoldMax); left > 20*m {
			t.Errorf("a clock %s holds an endpoint down for %s", name, left)
		}
	}
}

// stays checks that the steps a run carried out are still the beginning of its plan.
func stays(t *rapid.T, walked *[]string, p Plan) {
	for i, id := range *walked {
		if i >= len(p.Steps) || p.Steps[i].ID() != id {
			t.Fatalf("step %d was %s and is no more in the plan: %v", i, id, brief(p))
		}
	}
}
