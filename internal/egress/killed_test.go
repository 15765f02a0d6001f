package egress

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

// failure is a lane's failure as the world shows it afterwards.
type failure struct {
	Records     int
	Replacement string
	Counted     int
	Carries     string
}

func (w *world) failure(t *testing.T, lane, dead string) failure {
	t.Helper()
	rows, err := w.env.State.Quarantine()
	if err != nil {
		t.Fatal(err)
	}
	f := failure{Carries: w.carries[lane]}
	for _, q := range rows {
		if q.Endpoint == dead {
			f.Records++
			f.Replacement = q.Replacement
		}
	}
	if f.Counted, err = w.env.State.Count(Day(noon)); err != nil {
		t.Fatal(err)
	}
	return f
}

// A repair that is killed has recorded and counted its failure, or has not, or has swapped
// already: the next one ends with one record, one count and a replacement.
func TestAFailureIsCountedOnceAcrossAKill(t *testing.T) {
	const lane, spare = "egress2", 6
	tests := map[string]struct {
		counted, recorded, swapped, installed bool
		count                                 int  // in the intent; 0 = an earlier run counted
		shaky                                 bool // the new endpoint fails its first check after the kill
	}{
		"killed behind the intent":                      {count: 1},
		"killed when it was counted":                    {count: 1, counted: true},
		"killed when it was recorded":                   {count: 1, counted: true, recorded: true},
		"killed after the swap":                         {count: 1, counted: true, recorded: true, swapped: true},
		"killed when the new one was installed":         {count: 1, counted: true, recorded: true, swapped: true, installed: true},
		"the same, and its first check fails":           {count: 1, counted: true, recorded: true, swapped: true, installed: true, shaky: true},
		"an earlier run had counted, killed in a swap":  {counted: true, recorded: true},
		"an earlier run had counted, killed after that": {counted: true, recorded: true, swapped: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			dead := w.carries[lane]
			w.alive[dead] = false
			w.repair(t) // the first failed round is remembered
			it := Intent{
				Command: "repair", Lane: lane, From: dead, FromPath: w.env.Installed(lane), FailedAt: w.env.Now().Unix(), Reason: "silent",
				Count: tt.count, Day: Day(noon),
			}
			if tt.count == 0 {
				it.Day = ""
			}
			if tt.swapped || tt.count == 0 {
				it.To, it.ToPath, it.ToPair = endpoint(spare), filepath.Join(t.TempDir(), "new.conf"), "pair "+endpoint(spare)
				if err := os.WriteFile(it.ToPath, []byte(it.To), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w.killedAt(t, it, tt.counted, tt.recorded, tt.swapped, tt.installed)
			if tt.shaky {
				w.alive[it.To] = false
				w.repair(t)
				w.alive[it.To] = true
			}
			for range 3 {
				w.repair(t)
			}
			if d := cmp.Diff(failure{1, endpoint(spare), 1, endpoint(spare)}, w.failure(t, lane, dead)); d != "" {
				t.Errorf("failure (-want +got):\n%s", d)
			}
			if list, err := os.ReadDir(w.env.State.Path("intents")); err != nil || len(list) > 0 {
				t.Errorf("intents left: %v %v", list, err)
			}
			if w.classes[lane] != lane || !strings.Contains(w.read(t, "state.kv"), "mode=normal\n") {
				t.Errorf("the class is on %q, state.kv:\n%s", w.classes[lane], w.read(t, "state.kv"))
			}
		})
	}
}

// killedAt leaves what a repair leaves that is killed at some point.
func (w *world) killedAt(t *testing.T, it Intent, counted, recorded, swapped, installed bool) {
	t.Helper()
	p, err := w.env.begin("repair", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.writeIntent(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	if counted {
		_, err = w.env.State.AddCount(t.Context(), Day(noon), 1)
	}
	if recorded && err == nil {
		err = w.env.State.AppendQuarantine(t.Context(), state.Quarantined{Endpoint: it.From, FailedAt: unix(it.FailedAt), Slot: it.Lane, Iface: "vpn2", Reason: it.Reason})
	}
	if swapped {
		w.carries[it.Lane] = it.To
	}
	if installed && err == nil {
		err = os.WriteFile(w.env.Installed(it.Lane), []byte(it.To), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// picky is a world in which one endpoint passes its proof and never a swap.
type picky struct {
	*world
	but string
}

func (p picky) Swap(ctx context.Context, l Lane, from, to string) (SwapReport, error) {
	if b, err := os.ReadFile(to); err == nil && strings.TrimSpace(string(b)) == p.but {
		return SwapReport{}, ErrNoHandshake
	}
	return p.world.Swap(ctx, l, from, to)
}

func TestTheSecondChoiceIsRecordedAsTheReplacement(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	w.env.Devices = picky{w, endpoint(6)}
	dead := w.carries["egress2"]
	w.alive[dead] = false
	w.repair(t)
	w.repair(t)
	if d := cmp.Diff(failure{1, endpoint(7), 1, endpoint(7)}, w.failure(t, "egress2", dead)); d != "" {
		t.Errorf("failure (-want +got):\n%s", d)
	}
}

func TestARebalanceLooksAtTheUplinkBeforeItHoldsAMoveBack(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.refresh(t)
	w.uplink = false
	if out, err := w.env.Rebalance(t.Context(), false); err != nil || out.Applied > 0 || !out.Plan.Guarded() {
		t.Errorf("with a dead uplink: applied %d, held %v, %v", out.Applied, out.Plan.Held, err)
	}
	w.uplink = true
	if out, err := w.env.Rebalance(t.Context(), false); err != nil || out.Plan.Guarded() || w.carries["egress5"] == "" {
		t.Errorf("with a live one: held %v, %v, lanes %v", out.Plan.Held, err, w.carries)
	}
}
