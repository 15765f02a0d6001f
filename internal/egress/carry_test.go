package egress

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// need makes endpoints need AmneziaWG.
func (in *Input) need(ns ...int) {
	for i := range in.Pools {
		in.Pools[i].Rows = slices.Clone(in.Pools[i].Rows)
		for j := range in.Pools[i].Rows {
			for _, n := range ns {
				if in.Pools[i].Rows[j].Endpoint == endpoint(n) {
					in.Pools[i].Rows[j].Needs = NeedsAmneziaWG
				}
			}
		}
	}
}

// drive gives lanes the driver amneziawg.
func (in *Input) drive(lanes ...int) {
	in.Config.Lanes = slices.Clone(in.Config.Lanes)
	for i := range in.Config.Lanes {
		in.Config.Lanes[i].Driver = DriverWireGuard
	}
	for _, n := range lanes {
		in.Config.Lanes[n-1].Driver = DriverAmneziaWG
	}
}

func TestLanesCarryWhatTheirDriverCan(t *testing.T) {
	own := func(argv ...string) Lane { return Lane{Driver: DriverCommands, Commands: Commands{Apply: argv}} }
	for _, tt := range []struct {
		name   string
		lane   Lane
		hidden bool
	}{
		{"wireguard", Lane{Driver: DriverWireGuard}, false},
		{"amneziawg", Lane{Driver: DriverAmneziaWG}, true},
		{"wg-quick", Lane{Driver: DriverCommands, Commands: Commands{Template: "wg-quick"}}, false},
		{"awg-quick", Lane{Driver: DriverCommands, Commands: Commands{Template: "awg-quick"}}, true},
		{"own commands that call wg", own("/usr/bin/wg", "syncconf", "awg0"), false},
		{"own commands that call awg", own("/usr/bin/awg", "syncconf", "vpn1"), true},
		{"no driver", Lane{}, false},
	} {
		if !tt.lane.Carries("") || tt.lane.Carries("pigeons") || tt.lane.Carries(NeedsAmneziaWG) != tt.hidden {
			t.Errorf("%s: plain %v, amneziawg %v, pigeons %v", tt.name, tt.lane.Carries(""), tt.lane.Carries(NeedsAmneziaWG), tt.lane.Carries("pigeons"))
		}
	}
}

func TestPlansPutOnALaneWhatItCanCarry(t *testing.T) {
	e := endpoint
	prove := func(ns ...int) string {
		s := fmt.Sprintf("prove %d endpoints:", len(ns))
		if len(ns) == 1 {
			s = "prove endpoint"
		}
		for _, n := range ns {
			s += " " + e(n)
		}
		return s
	}
	swap := func(lane, from, to int) string {
		return fmt.Sprintf("swap lane egress%d: %s -> %s ?", lane, e(from), e(to))
	}
	for name, tt := range map[string]struct {
		change func(*Input)
		steps  []string
	}{
		"no lane carries it: the next in rank is placed": {
			func(in *Input) { in.carries(2, 8); in.need(2) }, []string{prove(6), swap(2, 8, 6)},
		},
		"the lane carries it": {
			func(in *Input) { in.carries(2, 8); in.need(2); in.drive(2) }, []string{prove(2), swap(2, 8, 2)},
		},
		"only another lane could, and that one is content": {
			func(in *Input) { in.carries(2, 8); in.need(2); in.drive(3) }, []string{prove(6), swap(2, 8, 6)},
		},
		"two lanes move: each gets what it can carry": {
			func(in *Input) { in.carries(1, 8); in.carries(2, 9); in.need(1); in.drive(2) },
			[]string{prove(2, 1), swap(1, 8, 2), swap(2, 9, 1)},
		},
		"the lane that can carry both leaves the plain one to the other": {
			func(in *Input) { in.carries(1, 8); in.carries(2, 9); in.need(2); in.drive(1) },
			[]string{prove(2, 1), swap(1, 8, 2), swap(2, 9, 1)},
		},
		"more of them than lanes: the best ones, then plain ones": {
			func(in *Input) { in.carries(1, 8); in.carries(2, 9); in.need(1, 2); in.drive(2) },
			[]string{prove(6, 1), swap(1, 8, 6), swap(2, 9, 1)},
		},
		"a lane that carries one keeps it, also beside better ones": {
			func(in *Input) { in.need(1, 2, 3, 4, 5); in.drive(1, 2, 3, 4, 5) }, nil,
		},
	} {
		t.Run("rebalance, "+name, func(t *testing.T) {
			in := healthy("rebalance")
			in.drive()
			tt.change(&in)
			if d := cmp.Diff(tt.steps, brief(PlanRebalance(in))); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
	for name, tt := range map[string]struct {
		change func(*Input)
		want   map[string]string // lane -> endpoint
	}{
		"what the lane cannot carry is no candidate": {func(in *Input) { in.silence(1, 2); in.need(6, 7) }, map[string]string{"egress2": e(8)}},
		"what it can is": {func(in *Input) { in.silence(1, 2); in.need(6, 7); in.drive(2) }, map[string]string{"egress2": e(6)}},
		"two lanes: each takes its first": {
			func(in *Input) { in.silence(1, 1, 2); in.need(6); in.drive(2) }, map[string]string{"egress1": e(7), "egress2": e(6)},
		},
		"no candidate for one, and the other is served": {
			func(in *Input) { in.silence(1, 1, 2); in.need(6, 7, 8, 9); in.drive(2) }, map[string]string{"egress2": e(6)},
		},
	} {
		t.Run("repair, "+name, func(t *testing.T) {
			in := healthy("repair")
			in.drive()
			tt.change(&in)
			for _, proven := range []bool{false, true} { // as a dry run shows it, and with the proofs in
				if proven {
					in.prove(true, 6, 7, 8, 9)
				}
				got := map[string]string{}
				for _, s := range PlanRepair(in).Steps {
					if s.Kind == StepSwap {
						got[s.Lane] = s.To
					}
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("proven %v: (-want +got)\n%s", proven, d)
				}
			}
		})
	}
}

// Whatever needs what: nothing lands where it cannot be carried, nothing lands twice, and
// a plan that was carried out changes nothing more.
func TestPlacementHoldsWithMixedDrivers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := healthy("rebalance")
		in.drive(rapid.SliceOfNDistinct(rapid.IntRange(1, 5), 0, 5, rapid.ID).Draw(t, "amneziawg lanes")...)
		in.need(rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, 9, rapid.ID).Draw(t, "amneziawg endpoints")...)
		perm := rapid.Permutation([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "lanes")
		for i := range in.Lanes {
			in.carries(i+1, perm[i])
		}
		in.prove(true, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		p := PlanRebalance(in)
		placed := map[string]string{}
		for _, l := range in.Lanes {
			placed[l.Endpoint] = l.Name
		}
		for _, s := range p.Steps {
			if s.Kind != StepSwap {
				continue
			}
			r, _ := (&rebalance{in: &in}).row(s.To)
			if !in.laneCarries(s.Lane, r) {
				t.Fatalf("%s cannot carry %s: %v", s.Lane, s.To, brief(p))
			}
			if other, twice := placed[s.To]; twice {
				t.Fatalf("%s is on %s already: %v", s.To, other, brief(p))
			}
			placed[s.To] = s.Lane
			in.Swaps = append(in.Swaps, SwapOutcome{Lane: s.Lane, From: s.From, Endpoint: s.To, OK: true})
		}
		if again := PlanRebalance(in); len(again.Steps) > len(p.Steps)+5 {
			t.Fatalf("a plan that was carried out plans more: %v after %v", brief(again), brief(p))
		}
	})
}
