package egress

import (
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// boot takes all away that a kernel holds: the user plane, flows and handshakes. The state
// folder stays. The lanes' services begin with the profiles that are installed, or, where
// others make the devices, with none.
func (w *world) boot(t *testing.T, empty bool) {
	t.Helper()
	w.unlocked(t)
	w.classes, w.flows = nil, nil
	clear(w.shaken)
	for _, l := range w.env.Config.Lanes {
		delete(w.carries, l.Name)
		if d, err := w.Describe(w.env.Installed(l.Name)); err == nil && !empty {
			w.carries[l.Name] = d.Endpoint
		}
	}
}

// unlocked waits until the locks of a killed run are given up.
func (w *world) unlocked(t *testing.T) {
	t.Helper()
	for began := time.Now(); w.env.State.Holder(attemptLock) != "" || w.env.State.Holder(modeLock) != ""; runtime.GC() {
		if time.Since(began) > 10*time.Second {
			t.Fatal("the locks of the killed run are held")
		}
	}
}

// undeclared are the classes that are direct, and should not be.
func (w *world) undeclared(t *testing.T) []string {
	t.Helper()
	s := ModeState{Mode: w.mode(t), ModeMemory: w.modes(t)}
	in := Input{Config: w.env.Config}
	var out []string
	for _, l := range w.env.Config.Lanes {
		if w.classes[l.Name] == direct && !in.belongsDirect(s, l) {
			out = append(out, l.Name)
		}
	}
	return out
}

// diesAt kills the run that notices that everything is dead, at a point of it.
func (w *world) diesAt(t *testing.T, point string, n int) {
	t.Helper()
	w.everything(false)
	w.repair(t)
	defer func() {
		if r := recover(); r != errKilled { //nolint:errorlint // the very value
			t.Fatalf("not killed at %s: %v", point, r)
		}
	}()
	_, _ = w.env.Repair(run.WithPoints(t.Context(), func(name string) {
		if name == point {
			if n--; n == 0 {
				panic(errKilled)
			}
		}
	}), false)
}

// A reboot changes nothing of what was decided: after a few rounds users are where they
// were, none was direct in between who should not be, and nothing is recorded or counted anew.
func TestAReboot(t *testing.T) {
	hand := func(classes ...string) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			t.Helper()
			if _, err := w.env.Direct(t.Context(), DirectOrder{On: true, Classes: classes, Reason: "a test"}, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name      string
		situation func(*testing.T, *world)
		exhausted bool // it was about to be noticed
	}{
		{"of a healthy router", func(*testing.T, *world) {}, false},
		{"with a class that is lent", func(t *testing.T, w *world) {
			t.Helper()
			for n := 5; n <= 9; n++ {
				w.alive[endpoint(n)] = false
			}
			w.repairs(t, 3)
		}, false},
		{"without a list", func(t *testing.T, w *world) {
			t.Helper()
			w.list = nil
			if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
				t.Fatal(err)
			}
			w.repairs(t, 2)
		}, false},
		{"while all users are direct", func(t *testing.T, w *world) { t.Helper(); w.onDirect(t, 5) }, false},
		{"while all users are direct by hand", hand("egress1", "egress2", "egress3", "egress4", "egress5"), false},
		{"while one class is direct by hand", hand("egress2"), false},
		{"during an attempt", func(t *testing.T, w *world) { t.Helper(); w.diesAt(t, "attempt.begun", 1) }, true},
		{"while direct is declared", func(t *testing.T, w *world) { t.Helper(); w.diesAt(t, "mode.written", 2) }, true},
		{"while users go direct", func(t *testing.T, w *world) { t.Helper(); w.diesAt(t, "users.moved", 1) }, true},
	} {
		for _, empty := range []bool{false, true} {
			for _, later := range []string{"a minute later", "a day later", "with a clock that begins in 1970"} {
				t.Run(fmt.Sprintf("%s, %s, devices empty %v", tt.name, later, empty), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, 5, 9)
					w.morning(t)
					tt.situation(t, w)
					w.rebooted(t, empty, later, tt.exhausted)
				})
			}
		}
	}
}

func (w *world) rebooted(t *testing.T, empty bool, later string, exhausted bool) {
	t.Helper()
	want, mode := maps.Clone(w.classes), w.mode(t)
	if exhausted {
		mode = state.ModeDirect
		for class := range want {
			want[class] = direct
		}
	}
	files := func() string {
		rows, err := w.env.State.Quarantine()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%+v\n%v", rows, w.counters(t))
	}
	before := files()
	w.boot(t, empty)
	rounds := func(n int) {
		for range n {
			w.repair(t)
			if bad := w.undeclared(t); len(bad) > 0 {
				t.Fatalf("direct, and not declared: %v", bad)
			}
			w.pass(39 * time.Second)
		}
	}
	right := w.now.Add(time.Minute)
	switch later {
	case "a day later":
		right = w.now.AddDate(0, 0, 1)
	case "with a clock that begins in 1970":
		w.now = time.Unix(20, 0).UTC()
		rounds(1)
	}
	w.now = right
	rounds(6)
	if d := cmp.Diff(want, w.classes); d != "" || w.mode(t) != mode {
		t.Errorf("mode %s, was %s; users (-before the reboot +after it):\n%s", w.mode(t), mode, d)
	}
	if after := files(); after != before && !exhausted {
		t.Errorf("quarantine and counters before:\n%s\nafter:\n%s", before, after)
	}
}
