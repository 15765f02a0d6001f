package egress

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// spoil puts in the place of a file of the state something that can be neither read nor
// written over, and returns the way back to no file at all.
func (w *world) spoil(t *testing.T, name string) (mend func()) {
	t.Helper()
	path := w.env.State.Path(name)
	for _, f := range []string{path, w.env.State.Path("last-good", filepath.Base(name))} {
		if err := os.RemoveAll(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// An endpoint whose failure can't be recorded is not replaced: with no record of it, the
// next rebalance would bring it back. Its users are lent, and once the record can be
// written all of it happens, once.
func TestNothingIsReplacedBeforeItsRecord(t *testing.T) {
	const lane, spare = "egress2", 6
	for _, name := range []string{"quarantine.tsv", "fail-counter/2026-11-30.count"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			dead := w.carries[lane]
			w.alive[dead] = false
			mend := w.spoil(t, name)
			for range 4 {
				out, err := w.env.Repair(t.Context(), false)
				if err != nil || out.Partial == nil {
					t.Fatalf("the damage was not said: %v", err)
				}
				w.pass(time.Second)
			}
			if w.carries[lane] != dead || w.classes[lane] == lane || w.classes[lane] == "" {
				t.Errorf("the lane carries %s, its class is on %q", w.carries[lane], w.classes[lane])
			}
			mend()
			for range 3 {
				w.repair(t)
			}
			if f := w.failure(t, lane, dead); f != (failure{1, endpoint(spare), 1, endpoint(spare)}) {
				t.Errorf("after the repair of the file: %+v", f)
			}
			out, err := w.env.Repair(t.Context(), true)
			if h := out.Plan.Next.Holds[dead]; err != nil || h.Failures > 1 {
				t.Errorf("the endpoint failed once, and is held down for %d failures (%v)", h.Failures, err)
			}
		})
	}
}

func TestADamagedCountGoesOnFromItsCopy(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	if _, err := w.env.State.AddCount(t.Context(), Day(noon), 3); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.env.State.Path("fail-counter", Day(noon)+".count"), []byte("three\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dead := w.carries["egress2"]
	w.alive[dead] = false
	for range 3 {
		if _, err := w.env.Repair(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
	}
	if f := w.failure(t, "egress2", dead); f != (failure{1, endpoint(6), 4, endpoint(6)}) {
		t.Errorf("failure: %+v", f)
	}
}

// A repair goes on with what it can read, and says what it can't, in the order of the lanes.
func TestRepairSaysEachDamage(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	names := []string{"state.kv", "fail-counter/2026-11-30.count"}
	for _, l := range w.env.Config.Lanes {
		names = append(names, "lanes/"+l.Name+".conf")
	}
	for _, n := range names {
		w.spoil(t, n)
	}
	out, err := w.env.Repair(t.Context(), false)
	if err != nil || out.Partial == nil || len(out.Input.Damage) != len(names) {
		t.Fatalf("damage %q, %v", out.Input.Damage, err)
	}
	for i, n := range names {
		if !strings.Contains(out.Input.Damage[i], n) {
			t.Errorf("damage %d is %q, want that of %s", i, out.Input.Damage[i], n)
		}
	}
}

// The server that a lane's device uses is not given to another lane, nor probed with the
// same key, when the file that says what the lane carries is damaged.
func TestRebalanceLeavesWhatDevicesCarry(t *testing.T) {
	in := healthy("rebalance")
	for i := range 2 {
		in.Lanes[i].Endpoint, in.Lanes[i].Pair, in.Lanes[i].Identity = "", "", ""
	}
	var to []string
	for _, s := range PlanRebalance(in).Steps {
		to = append(to, s.To)
		to = append(to, s.Endpoints...)
	}
	if slices.Contains(to, endpoint(1)) || slices.Contains(to, endpoint(2)) {
		t.Errorf("endpoints 1 and 2 are in use: %q", brief(PlanRebalance(in)))
	}
}

// A device whose key or peer somebody changed gets its profile back before its endpoint,
// which can't know the key, is called dead.
func TestAStrangePairIsSettledBeforeTheVerdict(t *testing.T) {
	in := healthy("repair")
	in.silence(1, 2)
	in.Lanes[1].Device.Peers[0].Pair = "somebody's"
	steps := PlanRepair(in).Steps
	if len(steps) != 1 || steps[0].Kind != StepRenew || steps[0].Lane != "egress2" || !strings.Contains(steps[0].Reason, "another pair") {
		t.Errorf("steps: %q", brief(PlanRepair(in)))
	}
	in.Lanes[1].Renewed = true
	if s := PlanRepair(in).Steps; !slices.ContainsFunc(s, func(s Step) bool { return s.Kind == StepQuarantine }) {
		t.Errorf("a renewal that did not help ends in a verdict: %q", brief(PlanRepair(in)))
	}
}

// Users of a dead lane are lent although nothing can be written: the rounds of one process
// remember what the disk does not take.
func TestADeadLaneIsLentOnAFullDisk(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	mend := w.spoil(t, "egress.json")
	w.alive[w.carries["egress2"]] = false
	for range 2 {
		_, _ = w.env.Repair(t.Context(), false)
		w.pass(time.Second)
	}
	if at := w.classes["egress2"]; at == "egress2" || at == "" {
		t.Errorf("the class is on %q", at)
	}
	mend()
	for range 3 {
		w.repair(t)
	}
	if !w.up("egress2") || w.classes["egress2"] != "egress2" {
		t.Errorf("the lane carries %s, its class is on %q", w.carries["egress2"], w.classes["egress2"])
	}
}
