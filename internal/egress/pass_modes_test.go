package egress

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

func (w *world) mode(t *testing.T) state.Mode {
	t.Helper()
	kv, err := w.env.State.KV()
	if err != nil {
		t.Fatal(err)
	}
	return kv.Mode()
}

func (w *world) modes(t *testing.T) ModeMemory {
	t.Helper()
	var m Memory
	if err := w.env.State.ReadJSON(memoryFile, &m); err != nil {
		t.Fatal(err)
	}
	return m.Modes
}

func (w *world) everything(alive bool) {
	for e := range w.alive {
		w.alive[e] = alive
	}
}

func (w *world) refreshes(t *testing.T) int {
	return strings.Count(w.read(t, "events.jsonl"), `"kind":"refresh"`)
}

// repairs makes rounds, one a second.
func (w *world) repairs(t *testing.T, n int) {
	t.Helper()
	for range n {
		w.repair(t)
	}
}

func (w *world) allOn(t *testing.T, where string) {
	t.Helper()
	for _, l := range w.env.Config.Lanes {
		want := where
		if want == "home" {
			want = l.Name
		}
		if w.classes[l.Name] != want {
			t.Errorf("the class of %s is on %q, want %s", l.Name, w.classes[l.Name], want)
		}
	}
}

func TestFiveReplacementsGiveOneRefresh(t *testing.T) {
	w := newWorld(t, 5, 20)
	w.morning(t)
	before := w.refreshes(t)
	w.now = time.Date(2026, 11, 30, 23, 59, 40, 0, time.UTC)
	for n := range 5 { // midnight passes meanwhile
		if w.refreshes(t) != before {
			t.Fatalf("a refresh after %d replacements", n)
		}
		w.alive[w.carries["egress2"]] = false
		w.repairs(t, 6)
	}
	if got := w.refreshes(t) - before; got != 1 {
		t.Errorf("%d refreshes for five replacements", got)
	}
	if w.now.Day() == 30 {
		t.Error("midnight did not pass")
	}
	w.repairs(t, 30)
	if got := w.refreshes(t) - before; got != 1 || w.mode(t) != state.ModeNormal || len(w.modes(t).Replaced) != 0 {
		t.Errorf("afterwards: %d refreshes, mode %s, %d replacements", got, w.mode(t), len(w.modes(t).Replaced))
	}
}

func TestACountRaisedByHandAsksForARefresh(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	before := w.refreshes(t)
	if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
		t.Fatal(err)
	}
	w.repairs(t, 5)
	if got := w.refreshes(t) - before; got != 1 {
		t.Errorf("%d refreshes", got)
	}
	if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
		t.Fatal(err)
	}
	w.repairs(t, 5)
	if got := w.refreshes(t) - before; got != 1 {
		t.Errorf("%d refreshes within the cooldown", got)
	}
	w.pass(2 * time.Hour)
	w.repairs(t, 2)
	if got := w.refreshes(t) - before; got != 2 {
		t.Errorf("%d refreshes after the cooldown", got)
	}
}

func TestDegradedIsRetriedAndLeftByAGoodRefresh(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	list := w.list
	w.list = nil
	if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
		t.Fatal(err)
	}
	before := w.refreshes(t)
	w.repair(t)
	if w.mode(t) != state.ModeDegraded {
		t.Fatalf("mode %s", w.mode(t))
	}
	w.repairs(t, 600)
	if got := w.refreshes(t) - before; got != 5 { // at once, then after 30, 60, 120 and 240 s
		t.Errorf("%d attempts in ten minutes", got)
	}
	w.allOn(t, "home")
	w.uplink = false
	w.repairs(t, 60)
	tried := w.refreshes(t)
	w.uplink = true
	w.repairs(t, 2)
	if w.refreshes(t) != tried+1 {
		t.Errorf("%d attempts when the uplink returned", w.refreshes(t)-tried)
	}
	w.list = list
	w.pass(10 * time.Minute)
	w.repair(t)
	if w.mode(t) != state.ModeNormal || w.modes(t).Failed != 0 {
		t.Errorf("after a good refresh: mode %s", w.mode(t))
	}
}

// An operator's direct interrupts degraded mode and does not end it: only a good refresh does.
func TestDegradedOutlivesDirectByHand(t *testing.T) {
	w := newWorld(t, 2, 5)
	w.morning(t)
	list := w.list
	w.list = nil
	if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
		t.Fatal(err)
	}
	w.repair(t)
	for _, on := range []bool{true, false} {
		if _, err := w.env.Direct(t.Context(), DirectOrder{On: on, Classes: []string{"egress1", "egress2"}, Reason: "a test"}, false); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
		w.repairs(t, 5)
		if want := map[bool]state.Mode{true: state.ModeDirect, false: state.ModeDegraded}[on]; w.mode(t) != want {
			t.Fatalf("mode %s, want %s", w.mode(t), want)
		}
	}
	w.allOn(t, "home")
	w.list = list
	w.pass(10 * time.Minute)
	w.repair(t)
	if w.mode(t) != state.ModeNormal {
		t.Errorf("after a good refresh: mode %s, %+v", w.mode(t), w.modes(t))
	}
}

// A refresh that nobody asked for fails during an attempt: the attempt is not booked as one
// that was killed, and a good one leaves the placing to the next run.
func TestAPlainRefreshDuringAnAttempt(t *testing.T) {
	for _, good := range []bool{true, false} {
		w := newWorld(t, 5, 9)
		w.morning(t)
		open := OpenAttempt{Kind: AttemptExhaustion, Began: w.now}
		var m Memory
		if err := w.env.State.UpdateJSON(t.Context(), memoryFile, &m, func() error {
			m.Modes.Attempt, m.Modes.Guarded, m.Modes.Emergency = &open, true, w.now
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		lock, err := w.env.State.Lock(t.Context(), attemptLock, "another run", 0)
		if err != nil {
			t.Fatal(err)
		}
		if !good {
			w.list = nil
		}
		out, err := w.env.Refresh(t.Context(), Options{}, false)
		if err != nil || out.Plan.HeldBack() == good {
			t.Fatal("refresh:", out.Plan.Held, err)
		}
		got := w.modes(t)
		if good && (got.Attempt != nil || got.Guarded) || !good && (got.Attempt == nil || *got.Attempt != open || !got.Guarded) || got.Failed != 0 {
			t.Errorf("after a refresh that was good (%t): %+v", good, got)
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDirectAndBack(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.env.Config.Lanes[3].FailMode, w.env.Config.Lanes[4].FailMode = FailOtherLane, FailClosed
	w.morning(t)
	w.everything(false)
	w.repairs(t, 3)
	if w.mode(t) != state.ModeDirect || w.classes["egress1"] != direct || w.classes["egress4"] == direct || w.classes["egress5"] == direct {
		t.Fatalf("mode %s, classes %v", w.mode(t), w.classes)
	}
	w.repairs(t, 120)
	w.alive[endpoint(8)] = true // one lane can be filled
	w.repairs(t, 90)
	if isDirect(w.mode(t)) { // the other lanes go on being repaired
		t.Fatalf("mode %s with a lane that passes and a fresh pool: %+v", w.mode(t), w.modes(t))
	}
	for class, at := range w.classes {
		if at == direct || at == "" {
			t.Errorf("the class of %s is on %q", class, at)
		}
	}
	journal := w.read(t, "events.jsonl")
	for _, to := range []state.Mode{state.ModeEmergencyRefresh, state.ModeDirect, state.ModeExternalRecovery, state.ModeNormal} {
		if !strings.Contains(journal, `"to":"`+string(to)+`"`) {
			t.Errorf("no line of %s in the journal", to)
		}
	}
}

func TestAFailedRefreshAloneIsNeverDirect(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	w.list = nil
	for n := 2; n <= 9; n++ {
		w.alive[endpoint(n)] = false
	}
	w.repairs(t, 300)
	if isDirect(w.mode(t)) {
		t.Error("direct with a lane that passes")
	}
	w.allOn(t, "egress1")
}

func TestDirectByHandIsNeverLeftAutomatically(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	all := []string{"egress1", "egress2", "egress3", "egress4", "egress5"}
	order := func(on bool, classes ...string) {
		t.Helper()
		if _, err := w.env.Direct(t.Context(), DirectOrder{On: on, Classes: classes, Reason: "a test"}, false); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Second)
	}
	order(true, "egress2")
	w.repairs(t, 5)
	if w.classes["egress2"] != direct || w.classes["egress1"] != "egress1" || w.mode(t) != state.ModeNormal {
		t.Errorf("one class: %v, mode %s", w.classes, w.mode(t))
	}
	order(true, all...)
	w.repairs(t, 50)
	w.refresh(t)
	w.classes = nil // a reboot
	w.repairs(t, 5)
	w.allOn(t, direct)
	if w.mode(t) != state.ModeDirect {
		t.Errorf("mode %s", w.mode(t))
	}
	order(false, all...)
	w.repairs(t, 2)
	w.allOn(t, "home")
	if w.mode(t) != state.ModeNormal {
		t.Errorf("mode %s after off", w.mode(t))
	}
}

var errKilled = errors.New("killed")

// killedRepair runs until a point is reached for the n-th time, and dies there.
func (w *world) killedRepair(t *testing.T, n int) (died bool) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			if r != errKilled { //nolint:errorlint // the very value
				panic(r)
			}
			died = true
		}
	}()
	reached := 0
	ctx := run.WithPoints(t.Context(), func(string) {
		if reached++; reached == n {
			panic(errKilled)
		}
	})
	_, _ = w.env.Repair(ctx, false)
	return false
}

// A run that is killed at any instant of the way to direct and back is made good: users are
// direct once everything is dead, and home once it answers.
func TestModesSurviveAKillAtAnyInstant(t *testing.T) {
	const shards = 8
	for first := 1; first <= shards; first++ {
		t.Run(fmt.Sprintf("every %d-th from %d", shards, first), func(t *testing.T) {
			t.Parallel()
			for n := first; killedAndBack(t, n); n += shards {
				if n > 1000 {
					t.Fatal("the passes do not come to an end")
				}
			}
		})
	}
}

// killedAndBack kills a run on the way to direct and one on the way back, each at its n-th
// instant; false when both had ended before.
func killedAndBack(t *testing.T, n int) bool {
	w := newWorld(t, 2, 4)
	w.morning(t)
	w.everything(false)
	w.repair(t)
	killed := w.killedRepair(t, n)
	w.settle(t)
	w.allOn(t, direct)
	w.flowsFollow(t, n)
	if w.mode(t) != state.ModeDirect {
		t.Fatalf("killed at point %d: mode %s", n, w.mode(t))
	}
	w.everything(true)
	back := w.killedRepair(t, n)
	w.settle(t)
	w.allOn(t, "home")
	w.flowsFollow(t, n)
	if w.mode(t) != state.ModeNormal {
		t.Fatalf("killed at point %d on the way back: mode %s, %+v", n, w.mode(t), w.modes(t))
	}
	return killed || back
}

// flowsFollow wants the flows of each class where the class is: none that is older was left
// where it was.
func (w *world) flowsFollow(t *testing.T, n int) {
	t.Helper()
	for class, at := range w.classes {
		if w.flows[class] != at {
			t.Errorf("killed at point %d: the class of %s is on %s, and its flow goes on on %s", n, class, at, w.flows[class])
		}
	}
	if w.modes(t).Moving {
		t.Errorf("killed at point %d: users are still on the move", n)
	}
}

// A run that lent a class and was killed before it deleted the class's flows leaves them to
// the next one, also where nothing replaces the dead endpoint.
func TestALoanThatIsKilledLeavesNoFlowOnTheDeadLane(t *testing.T) {
	for n := 1; ; n++ {
		w := newWorld(t, 2, 2)
		w.morning(t)
		w.alive[w.carries["egress2"]] = false
		w.repair(t)
		if !w.killedRepair(t, n) {
			if n < 10 {
				t.Errorf("only %d points", n)
			}
			return
		}
		w.settle(t)
		if w.classes["egress2"] != "egress1" {
			t.Fatalf("killed at point %d: the class is on %q", n, w.classes["egress2"])
		}
		w.flowsFollow(t, n)
	}
}

// settle lets ten minutes pass with some rounds in each.
func (w *world) settle(t *testing.T) {
	t.Helper()
	runtime.GC() // the dead run's locks are given up as the kernel would
	for range 6 {
		w.repairs(t, 3)
		w.pass(100 * time.Second)
	}
}

func TestModesWithAClockThatJumps(t *testing.T) {
	for _, years := range []int{2, -2} {
		t.Run(fmt.Sprint(years), func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			w.everything(false)
			w.repairs(t, 3)
			w.now = w.now.AddDate(years, 0, 0)
			w.repairs(t, 3)
			w.allOn(t, direct)
			w.now = w.now.AddDate(-years, 0, 0)
			w.everything(true)
			w.repairs(t, 11*60)
			w.allOn(t, "home")
			if w.mode(t) != state.ModeNormal {
				t.Errorf("mode %s, %+v", w.mode(t), w.modes(t))
			}
		})
	}
}

func TestARecordedRunOfModesPlansAgain(t *testing.T) {
	w := newWorld(t, 5, 9)
	var seen []string
	w.env.Watch = func(in Input, p Plan) {
		again, err := Replan(in)
		if err != nil || fmt.Sprint(brief(again), again.Mode) != fmt.Sprint(brief(p), p.Mode) {
			if in.Command != "refresh" {
				t.Errorf("%s planned again to %v, was %v (%v)", in.Command, brief(again), brief(p), err)
			}
		}
		for _, s := range p.Steps {
			seen = append(seen, string(s.Kind))
		}
	}
	w.morning(t)
	w.everything(false)
	w.repairs(t, 3)
	w.everything(true)
	w.repairs(t, 90)
	for _, kind := range []StepKind{StepRefresh, StepRebuild, StepDirect, StepLeave} {
		if !slices.Contains(seen, string(kind)) {
			t.Errorf("no step %s in any plan", kind)
		}
	}
}
