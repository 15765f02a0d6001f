package egress

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

func TestARepairFromDeathToNormal(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	dead := w.carries["egress2"]
	w.alive[dead] = false
	if out := w.repair(t); out.Applied != 0 {
		t.Fatalf("one failed round already led to %v", brief(out.Plan))
	}
	out := w.repair(t)
	if out.Plan.Guarded() || w.carries["egress2"] != endpoint(6) {
		t.Fatalf("egress2 carries %s, plan %v, held %v", w.carries["egress2"], brief(out.Plan), out.Plan.Held)
	}
	if d := cmp.Diff([]string{"egress2 on egress2", " on egress2"}, w.flushed[len(w.flushed)-2:]); d != "" {
		t.Errorf("flows deleted: those of the class on the dead lane, then, after the swap, those of the old path (-want +got):\n%s", d)
	}
	if w.classes["egress2"] != "egress2" {
		t.Errorf("the class is on %q", w.classes["egress2"])
	}
	q := strings.Split(w.read(t, "quarantine.tsv"), "\n")
	want := []string{dead, fmt.Sprint(noon.Unix() + 4), "2026-11-30T12:00:04Z", "egress2", "vpn2", "silent", fmt.Sprint(noon.Unix()), endpoint(6)}
	if d := cmp.Diff(want, strings.Split(q[1], "\t")); d != "" {
		t.Errorf("quarantine.tsv (-want +got):\n%s", d)
	}
	if n := w.read(t, "fail-counter/2026-11-30.count"); strings.TrimSpace(n) != "1" {
		t.Errorf("counted %q", n)
	}
	kv := w.read(t, "state.kv")
	for _, line := range []string{"mode=normal", "daily_failure_count=1", "last_refresh_rc=0", fmt.Sprint("last_successful_pool_mtime_epoch=", noon.Unix())} {
		if !strings.Contains(kv, line+"\n") {
			t.Errorf("state.kv has no line %q:\n%s", line, kv)
		}
	}
	if list, err := os.ReadDir(w.env.State.Path("intents")); err != nil || len(list) > 0 {
		t.Errorf("intents left: %v %v", list, err)
	}
	events := w.read(t, "events.jsonl")
	for _, kind := range []string{"verdict", "lend", "quarantine", "prove", "swap", "return", "mode"} {
		if !strings.Contains(events, `"kind":"`+kind+`"`) {
			t.Errorf("no %s in the journal", kind)
		}
	}
	w.alive[dead] = true
	if out, err := w.env.Rebalance(t.Context(), false); err != nil || out.Applied > 0 {
		t.Fatalf("a rebalance brought %s back by a stale pool: %v %v", dead, err, brief(out.Plan))
	}
	w.refresh(t)
	if _, err := w.env.Rebalance(t.Context(), false); err != nil || !slices.Contains(slices.Collect(values(w.carries)), dead) {
		t.Errorf("a fresh pool did not bring %s back: %v", dead, w.carries)
	}
}

func values(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// What finds no replacement is recorded and counted once, its users stay lent, and the
// search is made again after retry_after, not each second.
func TestNoCandidate(t *testing.T) {
	w := newWorld(t, 5, 6)
	w.morning(t)
	dead := w.carries["egress2"]
	w.alive[dead], w.alive[endpoint(6)] = false, false
	for range 12 {
		w.repair(t)
	}
	if n := strings.Count(w.read(t, "quarantine.tsv"), dead); n != 1 {
		t.Errorf("recorded %d times", n)
	}
	if n := strings.TrimSpace(w.read(t, "fail-counter/2026-11-30.count")); n != "1" {
		t.Errorf("counted %s times", n)
	}
	if n := count(w.probed, endpoint(6)); n != 2 { // once by the refresh
		t.Errorf("the dead candidate was probed %d times in 12 seconds", n)
	}
	if w.classes["egress2"] == "egress2" || w.classes["egress2"] == "" {
		t.Errorf("the users are on %q", w.classes["egress2"])
	}
	w.pass(30 * time.Second)
	w.alive[endpoint(6)] = true
	w.repair(t)
	if w.carries["egress2"] != endpoint(6) {
		t.Errorf("the lane was not repaired when a candidate came back: %s", w.carries["egress2"])
	}
	if !strings.Contains(w.read(t, "quarantine.tsv"), "\t"+endpoint(6)+"\n") {
		t.Error("the earlier record has no replacement_endpoint")
	}
}

func count(list []string, s string) (n int) {
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}

// All lanes and the whole pool die; when endpoints answer again every lane comes back
// without hands (openwrt/packages#3885).
func TestEverythingDiesAndComesBack(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	for e := range w.alive {
		w.alive[e] = false
	}
	for range 5 {
		w.repair(t)
	}
	w.pass(10 * time.Minute)
	for e := range w.alive {
		w.alive[e] = true
	}
	w.repair(t)
	w.pass(time.Minute)
	w.repair(t)
	for _, l := range w.env.Config.Lanes {
		if !w.up(l.Name) || w.classes[l.Name] != l.Name {
			t.Errorf("%s is not back: carries %s, class on %q", l.Name, w.carries[l.Name], w.classes[l.Name])
		}
	}
}

// Ten minutes without an uplink: nothing recorded, counted or replaced, and green at once
// after it (dae#739).
func TestUplinkCut(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	before := fmt.Sprint(w.carries)
	w.uplink = false
	for range 600 {
		w.repair(t)
	}
	w.uplink = true
	out := w.repair(t)
	for _, v := range out.Plan.Lanes {
		if v.Verdict != "up" {
			t.Errorf("%s is %s", v.Lane, v.Verdict)
		}
	}
	if _, err := os.Stat(w.env.State.Path("quarantine.tsv")); err == nil {
		t.Error("something was quarantined")
	}
	if fmt.Sprint(w.carries) != before {
		t.Errorf("replaced: %v, was %s", w.carries, before)
	}
}

// A clock that starts in 1970, jumps two years ahead and back blocks nothing for long and
// brings no dead endpoint back (openmptcprouter#4192).
func TestClockJumps(t *testing.T) {
	for name, when := range map[string]time.Time{"1970": time.Unix(3600, 0).UTC(), "two years ahead": noon.AddDate(2, 0, 0)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			dead := w.carries["egress2"]
			w.now = when
			w.alive[dead] = false
			for range 3 {
				w.repair(t)
			}
			if w.carries["egress2"] == dead {
				t.Fatal("no repair while the clock is wrong")
			}
			w.alive[dead] = true
			w.now = noon.Add(time.Hour)
			if out, err := w.env.Rebalance(t.Context(), false); err != nil || out.Applied > 0 {
				t.Fatalf("a wrong clock's failure is forgotten by a stale pool: %v %v", err, brief(out.Plan))
			}
			w.refresh(t)
			if out, err := w.env.Rebalance(t.Context(), false); err != nil || !slices.Contains(slices.Collect(values(w.carries)), dead) {
				t.Errorf("after a refresh the endpoint is still out: %v %v %v", err, brief(out.Plan), out.Plan.Held)
			}
		})
	}
}

// A server that passes one round in ten must not swing a lane: after its first death it
// stays away until fresh tests list it, and each later death keeps it away longer.
func TestAFlappingServerDoesNotSwingALane(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.env.Config.Lanes = w.env.Config.Lanes[:1]
	w.morning(t)
	bad := w.carries["egress1"]
	changes, on := 0, 0
	last := bad
	for s := range 3600 {
		w.alive[bad] = s%10 == 9
		w.repair(t)
		if s%600 == 599 { // a refresh happens upon a good moment, and lists it again
			w.alive[bad] = true
			w.refresh(t)
			if _, err := w.env.Rebalance(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
		if w.carries["egress1"] != last {
			if last == bad || w.carries["egress1"] == bad {
				changes++
			}
			last = w.carries["egress1"]
		}
		if w.carries["egress1"] == bad {
			on++
		}
	}
	if changes > 5 || on > 180 { // away, and twice back and away
		t.Errorf("%d changes and %d s on the bad server in an hour", changes, on)
	}
}

func TestAKilledRunIsSettled(t *testing.T) {
	tests := map[string]struct {
		device string // what the kernel holds
		alive  bool   // whether the new endpoint answers
		want   string
	}{
		"killed before the swap":               {endpoint(2), true, endpoint(2)},
		"killed after it, the new one passes":  {endpoint(7), true, endpoint(7)},
		"killed after it, the new one is dead": {endpoint(7), false, endpoint(2)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			p, err := w.env.begin("rebalance", true)
			if err != nil {
				t.Fatal(err)
			}
			to := t.TempDir() + "/7.conf"
			if err := os.WriteFile(to, []byte(endpoint(7)), 0o600); err != nil {
				t.Fatal(err)
			}
			it := Intent{
				Command: "rebalance", Lane: "egress2", From: endpoint(2), FromPath: w.env.Installed("egress2"),
				To: endpoint(7), ToPath: to, ToPair: "pair " + endpoint(7),
			}
			if err := p.writeIntent(t.Context(), it); err != nil {
				t.Fatal(err)
			}
			w.carries["egress2"], w.alive[endpoint(7)] = tt.device, tt.alive
			w.repair(t)
			if w.carries["egress2"] != tt.want || strings.TrimSpace(w.read(t, "lanes/egress2.conf")) != tt.want {
				t.Errorf("the device carries %s, the installed profile is %s, want %s", w.carries["egress2"], w.read(t, "lanes/egress2.conf"), tt.want)
			}
			if _, err := os.Stat(w.env.intentPath("egress2")); err == nil {
				t.Error("the intent is left")
			}
		})
	}
}

// A damaged quarantine stops a rebalance, and a repair goes on with what is certain.
func TestDamagedQuarantine(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	dead := w.carries["egress2"]
	w.alive[dead] = false
	w.repair(t)
	w.repair(t)
	path := w.env.State.Path("quarantine.tsv")
	if err := os.WriteFile(path, []byte("endpoint\tfailed"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := w.env.Rebalance(t.Context(), false); err == nil || !strings.Contains(err.Error(), "quarantine.tsv:1") {
		t.Errorf("rebalance on a damaged quarantine: %v", err)
	}
	w.alive[dead] = true
	now := w.carries["egress3"]
	w.alive[now] = false
	w.pass(time.Second)
	for range 2 {
		if _, err := w.env.Repair(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
	}
	if w.carries["egress3"] == dead || !w.up("egress3") {
		t.Errorf("egress3 carries %s", w.carries["egress3"])
	}
	rows, err := w.env.State.Quarantine()
	if err != nil || len(rows) != 2 {
		t.Errorf("after the repair: %d records, %v", len(rows), err)
	}
	if left, _ := os.ReadDir(w.env.State.Path()); !slices.ContainsFunc(left, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "quarantine.tsv.damaged-") }) {
		t.Error("the damaged file was not kept")
	}
}

func TestAFailedRefreshChangesNothing(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	before := w.read(t, "pools/foreign.tsv")
	for name, list := range map[string][]string{"empty": nil, "shrunk": w.list[:4]} {
		whole := w.list
		w.list = list
		out, err := w.env.Refresh(t.Context(), Options{}, false)
		w.list = whole
		if err != nil || !out.Plan.Guarded() {
			t.Errorf("%s: %v, held %v", name, err, out.Plan.Held)
		}
		if w.read(t, "pools/foreign.tsv") != before {
			t.Errorf("%s: the pool changed", name)
		}
	}
	if kv := w.read(t, "state.kv"); !strings.Contains(kv, "last_refresh_rc=4\n") {
		t.Errorf("state.kv:\n%s", kv)
	}
	rows, mtime, err := state.ReadPool(w.env.State.Path("pools", "foreign.tsv"))
	if err != nil || len(rows) != 9 || !mtime.Equal(noon) {
		t.Errorf("pool of %s with %d rows: %v", mtime, len(rows), err)
	}
}

// The provider's line is cut behind a gateway that goes on answering: no endpoint pays for
// it, neither while it lasts nor when all lanes pass again.
func TestOutageBehindTheGateway(t *testing.T) {
	for _, seconds := range []int{4, 34, 200} {
		t.Run(fmt.Sprintf("%d seconds", seconds), func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			before := fmt.Sprint(w.carries)
			probed := len(w.probed)
			w.uplink, w.gateway = false, true
			for range seconds {
				w.repair(t)
			}
			if n := len(w.probed) - probed; n == 0 || n > 4*(1+seconds/30) {
				t.Errorf("%d probes to find a way out", n)
			}
			w.uplink = true
			for range 5 {
				w.repair(t)
			}
			if _, err := os.Stat(w.env.State.Path("quarantine.tsv")); err == nil {
				t.Errorf("quarantined:\n%s", w.read(t, "quarantine.tsv"))
			}
			if fmt.Sprint(w.carries) != before {
				t.Errorf("replaced: %v, was %s", w.carries, before)
			}
			dead := w.carries["egress2"] // and a real death is repaired at once
			w.alive[dead] = false
			w.repair(t)
			w.repair(t)
			if w.carries["egress2"] == dead {
				t.Error("a death after the outage is not repaired")
			}
		})
	}
}
