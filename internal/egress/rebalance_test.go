package egress

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/state"
)

// carries puts endpoint n on a lane.
func (in *Input) carries(lane, n int) {
	l := &in.Lanes[lane-1]
	r := row(n)
	l.Endpoint, l.Pair, l.Identity = r.Endpoint, r.Pair, r.Identity
	l.Device.Peers[0].Pair = r.Pair
}

func TestPlanRebalance(t *testing.T) {
	e := endpoint
	tests := map[string]struct {
		change func(*Input)
		steps  []string
		held   []string
	}{
		"the best five are in place": {func(*Input) {}, nil, nil},
		"in place, but in another order: nobody moves": {
			func(in *Input) { in.carries(1, 5); in.carries(5, 1) }, nil, nil,
		},
		"only the lane that carries a worse one moves": {
			func(in *Input) { in.carries(2, 8) },
			[]string{"prove endpoint " + e(2), "swap lane egress2: " + e(8) + " -> " + e(2) + " ?"},
			nil,
		},
		"an endpoint that failed after its pool's tests does not come back": {
			func(in *Input) {
				in.carries(2, 6)
				in.Quarantine = []state.Quarantined{quarantined(2, at("09:00:00"), "egress2")}
			}, nil, nil,
		},
		"it comes back once a later refresh lists it": {
			func(in *Input) {
				in.carries(2, 6)
				in.Quarantine = []state.Quarantined{quarantined(2, at("04:00:00"), "egress2")}
			},
			[]string{"prove endpoint " + e(2), "swap lane egress2: " + e(6) + " -> " + e(2) + " ?"},
			nil,
		},
		"a working pool clears nothing": {
			func(in *Input) {
				in.carries(2, 6)
				in.Quarantine = []state.Quarantined{quarantined(2, at("09:00:00"), "egress2")}
				in.Pools[2].Mtime = at("11:00:00")
			}, nil, nil,
		},
		"what doesn't answer is never placed, the next in rank is (sing-box#3399)": {
			func(in *Input) {
				in.carries(2, 8)
				in.prove(false, 2)
				in.prove(true, 6)
			},
			[]string{"prove 2 endpoints: " + e(2) + " " + e(6), "swap lane egress2: " + e(8) + " -> " + e(6)},
			nil,
		},
		"a lane on the sixth keeps it when one of the five is dead": {
			func(in *Input) { in.carries(2, 6); in.prove(false, 2) },
			[]string{"prove endpoint " + e(2)},
			nil,
		},
		"a filter that matches nothing changes nothing (mihomo#1215)": {
			func(in *Input) { in.carries(2, 8); in.Config.Rebalance.Allow = []string{"atlantis*"} },
			nil,
			[]string{"pool filter_empty"},
		},
		"a dead uplink moves nobody": {
			func(in *Input) {
				in.carries(2, 8)
				for i := range in.Lanes {
					in.Lanes[i].Round = silent()
				}
				in.Uplink = &UplinkView{Targets: map[string]bool{"203.0.113.53": false}}
			}, nil, []string{"lanes uplink_down"},
		},
		"no pool": {
			func(in *Input) { in.Pools = nil }, nil, []string{"pool no_pool"},
		},
		"a pinned lane stays": {
			func(in *Input) { in.carries(2, 8); in.carries(5, 2); in.Config.Lanes[1].Pin = e(8) }, nil, nil,
		},
		"an endpoint that left the pool is replaced": {
			func(in *Input) { in.carries(3, 42) },
			[]string{"prove endpoint " + e(3), "swap lane egress3: " + e(42) + " -> " + e(3) + " ?"},
			nil,
		},
		"another key: the users travel elsewhere meanwhile": {
			func(in *Input) {
				in.carries(2, 8)
				in.Lanes[1].Identity = "other"
				in.prove(true, 2)
			},
			[]string{
				"prove endpoint " + e(2), "lend class egress2: egress2 -> egress1",
				"swap lane egress2: " + e(8) + " -> " + e(2), "return class egress2: egress1 -> egress2",
			},
			nil,
		},
		"hysteresis keeps what works and is hardly slower": {
			func(in *Input) {
				in.carries(2, 8)
				in.Config.Rebalance.Hysteresis = Hysteresis{Gain: 10 * time.Millisecond, Ratio: 0.33}
			}, nil, []string{"egress2 hysteresis"},
		},
		"hysteresis doesn't keep what is dead": {
			func(in *Input) {
				in.carries(2, 8)
				in.Lanes[1].Round = silent()
				in.Config.Rebalance.Hysteresis = Hysteresis{Gain: 10 * time.Millisecond, Ratio: 0.33}
			},
			[]string{"prove endpoint " + e(2), "swap lane egress2: " + e(8) + " -> " + e(2) + " ?"},
			nil,
		},
		"fewer endpoints than lanes: the rest keep theirs": {
			func(in *Input) {
				in.carries(5, 42)
				in.Pools = []Pool{{Name: PoolForeign, Mtime: at("04:20:00"), Rows: []Row{row(1), row(2), row(3), row(4)}}}
			},
			nil,
			[]string{"egress5 no_candidate"},
		},
		"a swap that fails is rolled back and the next one tried": {
			func(in *Input) {
				in.carries(2, 8)
				in.prove(true, 2, 6)
				in.swapped(2, 2, false)
			},
			[]string{
				"prove 2 endpoints: " + e(2) + " " + e(6),
				"swap lane egress2: " + e(8) + " -> " + e(2), "swap lane egress2: " + e(8) + " -> " + e(6),
			},
			[]string{"egress2 swap_failed"},
		},
		"one server never carries two lanes (docker-wireguard-pia#154)": {
			func(in *Input) {
				in.carries(2, 8)
				r := row(2)
				r.Pair = "pair1" // another address of the server that lane 1 uses
				in.Pools[0].Rows[1] = r
			},
			[]string{"prove endpoint " + e(6), "swap lane egress2: " + e(8) + " -> " + e(6) + " ?"},
			nil,
		},
		"not more than one lane in a /24": {
			func(in *Input) {
				in.carries(2, 8)
				in.Config.Rebalance.MaxPerPrefix = 1
				r := row(2)
				r.Endpoint = "198.18.1.99:51820"
				in.Pools[0].Rows[1] = r
			},
			[]string{"prove endpoint " + e(6), "swap lane egress2: " + e(8) + " -> " + e(6) + " ?"},
			nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := healthy("rebalance")
			tt.change(&in)
			p := PlanRebalance(in)
			if d := cmp.Diff(tt.steps, brief(p)); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.held, codes(p)); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
			replayed(t, in, p)
		})
	}
}

// Freshness is told by the run sequence where both ends have one, by the stamps else.
func TestFreshness(t *testing.T) {
	pool := at("04:20:00")
	tests := map[string]struct {
		failed time.Time
		seqs   [2]uint64 // of the failure and of the pool's tests; 0 = not known
		now    time.Time
		want   bool
	}{
		"tested after the failure":                                   {at("04:00:00"), [2]uint64{}, noon, true},
		"failed after the tests began":                               {at("04:20:05"), [2]uint64{}, noon, false},
		"in the same second: not proven to be after":                 {at("04:20:00"), [2]uint64{}, noon, false},
		"a stamp of 1970 with a later sequence":                      {time.Unix(100, 0), [2]uint64{9, 5}, noon, false},
		"a stamp of 1970 with an earlier sequence":                   {time.Unix(100, 0), [2]uint64{4, 5}, noon, true},
		"a stamp two years ahead, no sequence":                       {noon.AddDate(2, 0, 0), [2]uint64{}, noon, false},
		"a stamp two years ahead blocks nothing after a refresh":     {noon.AddDate(2, 0, 0), [2]uint64{4, 5}, noon, true},
		"a pool from the future is not fresh, whatever the sequence": {at("04:00:00"), [2]uint64{4, 5}, at("01:00:00"), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := healthy("rebalance")
			in.Now = tt.now
			if tt.seqs[0] != 0 {
				in.Memory.Failures[endpoint(2)] = Failure{FailedAt: tt.failed.Unix(), Seq: tt.seqs[0]}
				in.Memory.PoolSeqs[pool.Unix()] = tt.seqs[1]
			}
			got := newEligibility(&in).clears(in.Pools[0], quarantined(2, tt.failed, "egress2"))
			if got != tt.want {
				t.Errorf("cleared: %v, want %v", got, tt.want)
			}
		})
	}
}

// A stamp from the future gets a place in the sequence, so that the next refresh clears it.
func TestFutureStampsAreSetAside(t *testing.T) {
	in := healthy("rebalance")
	in.carries(2, 6)
	in.Quarantine = []state.Quarantined{quarantined(2, noon.AddDate(2, 0, 0), "egress2")}
	p := PlanRebalance(in)
	if len(p.Steps) > 0 {
		t.Fatalf("offered although its failure may be newer: %v", brief(p))
	}
	in.Memory, in.Seed = p.Next, 200
	for i := range in.Pools { // the next refresh
		in.Pools[i].Mtime = at("11:30:00")
	}
	in.Memory.PoolSeqs[at("11:30:00").Unix()] = 150
	if p = PlanRebalance(in); len(p.Steps) == 0 {
		t.Error("a stamp of a wrong clock still blocks the endpoint after a refresh")
	}
}

// Whatever the pool and the lanes: what a lane has that is wanted stays; no endpoint and no
// key pair is placed twice; a quarantined endpoint isn't placed; a second plan with all
// swaps done changes nothing.
func TestPlanRebalanceHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := healthy("rebalance")
		perm := rapid.Permutation([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "lanes")
		for i := range in.Lanes {
			in.carries(i+1, perm[i])
		}
		bad := rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, 4, rapid.ID).Draw(t, "quarantined")
		for _, n := range bad {
			in.Quarantine = append(in.Quarantine, quarantined(n, at("09:00:00"), "egress1"))
		}
		for n := 1; n <= 9; n++ {
			if rapid.Bool().Draw(t, "proven") {
				in.prove(rapid.Bool().Draw(t, "passes"), n)
			}
		}
		p := PlanRebalance(in)
		placed := map[string]string{}
		for _, l := range in.Lanes {
			placed[l.Name] = l.Endpoint
		}
		for _, s := range p.Steps {
			if s.Kind != StepSwap {
				continue
			}
			if slices.ContainsFunc(bad, func(n int) bool { return endpoint(n) == s.To }) {
				t.Fatalf("quarantined %s placed", s.To)
			}
			placed[s.Lane] = s.To
			if s.If == "" {
				in.Swaps = append(in.Swaps, SwapOutcome{Lane: s.Lane, From: s.From, Endpoint: s.To, OK: true})
			}
		}
		seen := map[string]bool{}
		for lane, e := range placed {
			if seen[e] {
				t.Fatalf("%s on two lanes (%s): %v", e, lane, brief(p))
			}
			seen[e] = true
		}
		if again := PlanRebalance(in); len(again.Steps) > len(p.Steps) {
			t.Fatalf("a plan that was carried out plans more: %v after %v", brief(again), brief(p))
		}
	})
}

// An endpoint that answers pings and carries no data passes each test in process; trying it
// at each rebalance would silence the lane's users each time.
func TestAnEndpointThatFailedOnALaneIsHeldDown(t *testing.T) {
	in := healthy("rebalance")
	in.carries(1, 7)
	in.prove(true, 1, 6)
	in.swapped(1, 1, false)
	next := PlanRebalance(in).Next
	hold := next.Holds[endpoint(1)]
	if hold.For < in.Config.Repair.HoldMin || hold.For > 2*in.Config.Repair.HoldMin {
		t.Fatalf("hold %+v, want a short hold-down", hold)
	}
	later := healthy("rebalance")
	later.carries(1, 6)
	later.Memory, later.Now = next, in.Now.Add(time.Minute)
	if p := PlanRebalance(later); len(p.Steps) != 0 {
		t.Errorf("a minute later: %v, want nothing", brief(p))
	}
	later.Now = in.Now.Add(hold.For + time.Second)
	if p := PlanRebalance(later); !slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Kind == StepSwap && s.To == endpoint(1) }) {
		t.Errorf("after the hold-down: %v, want another try", brief(p))
	}
	in.Swaps[0].Reason = "lane egress1: its socket does not answer"
	if h := PlanRebalance(in).Next.Holds; len(h) != 0 {
		t.Errorf("held down for the router's own failure: %+v", h)
	}
}
