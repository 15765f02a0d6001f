package egress

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones of the tests, whatever the machine has

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/state"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// night is an hour before a change of a zone's clocks.
type night struct {
	name, zone string
	begin      time.Time // UTC
	change     time.Duration
}

func nights() []night {
	utc := func(month time.Month, day, hour, minute int) time.Time {
		return time.Date(2026, month, day, hour, minute, 0, 0, time.UTC)
	}
	return []night{
		{"Berlin springs forward", "Europe/Berlin", utc(3, 29, 0, 0), time.Hour},
		{"Berlin falls back", "Europe/Berlin", utc(10, 25, 0, 0), -time.Hour},
		{"Cairo springs forward over midnight", "Africa/Cairo", utc(4, 23, 21, 0), time.Hour},
		{"Cairo falls back over midnight", "Africa/Cairo", utc(10, 29, 20, 0), -time.Hour},
		{"Lord Howe falls back by half an hour", "Australia/Lord_Howe", utc(4, 4, 14, 0), -30 * time.Minute},
	}
}

// The machine's zone names the day's file, and decides nothing else: the same night, with
// its cooldown, hold-downs, pauses and modes, is the same to the second wherever it is played.
func TestAChangeOfClocksChangesNothingButTheDay(t *testing.T) {
	for _, n := range nights() {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			loc := zone(t, n.zone)
			_, before := n.begin.In(loc).Zone()
			_, after := n.begin.Add(2 * time.Hour).In(loc).Zone()
			if got := time.Duration(after-before) * time.Second; got != n.change {
				t.Fatalf("the clocks change by %s, want %s: another night", got, n.change)
			}
			want, got := longNight(t, n.begin), longNight(t, n.begin.In(loc))
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("the night (-in UTC +in %s):\n%s", n.zone, d)
			}
			for _, kind := range []string{"mode normal emergency_refresh", "mode slot_repair emergency_refresh", "degraded_no_fresh_pool", "direct_failopen", " leave "} {
				if !strings.Contains(strings.Join(got, "\n"), kind) {
					t.Errorf("nothing of %q happened", kind)
				}
			}
		})
	}
}

// longNight plays three hours from an hour before the change on: a lane dies every ten
// minutes until there was an emergency refresh and its cooldown is over; the list dies; then
// everything does, for half an hour. It returns what happened when, and what is left.
func longNight(t *testing.T, begin time.Time) []string {
	t.Helper()
	w := newWorld(t, 3, 14)
	w.env.Config.Modes.Threshold, w.env.Config.Modes.Cooldown = 3, time.Hour
	w.now = begin
	w.morning(t)
	list := w.list
	rounds := func(d time.Duration) { // three at once, then one in each 20 seconds
		w.repairs(t, 3)
		for until := w.now.Add(d); w.now.Before(until); {
			w.pass(19 * time.Second)
			w.repair(t)
		}
	}
	for i := range 12 {
		dead := w.carries["egress2"]
		w.alive[dead] = false
		rounds(3 * time.Minute)
		w.alive[dead] = true
		rounds(7 * time.Minute)
		if i == 6 {
			w.list = nil
		}
		if i == 9 {
			w.list = list
		}
	}
	w.everything(false)
	rounds(30 * time.Minute)
	w.everything(true)
	rounds(15 * time.Minute)
	return w.happened(t, begin)
}

// happened is the journal, with seconds since the begin for times, and the files.
func (w *world) happened(t *testing.T, begin time.Time) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(w.read(t, "events.jsonl")) {
		var ev journal.Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatal(err)
		}
		if ev.Kind == "pool" {
			continue // is named by a path
		}
		out = append(out, fmt.Sprintf("%6.0f s %s %s %s %s", ev.Time.Sub(begin).Seconds(), ev.Kind, ev.Object, ev.From, ev.To))
	}
	m := w.modes(t)
	out = append(out, fmt.Sprintf("replaced %d, failed %d, pause %s, tried after %s, emergency after %s", len(m.Replaced), m.Failed, m.RetryIn, m.Tried.Sub(begin), m.Emergency.Sub(begin)))
	var mem Memory
	if err := w.env.State.ReadJSON(memoryFile, &mem); err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Sorted(mapsKeys(mem.Holds)) {
		h := mem.Holds[e]
		out = append(out, fmt.Sprintf("hold %s %d failures, %s from %s on", e, h.Failures, h.For, h.Since.Sub(begin)))
	}
	total := 0
	for _, n := range w.counters(t) {
		total += n
	}
	out = append(out, fmt.Sprintf("%d counted", total))
	return append(out, strings.Split(w.read(t, "quarantine.tsv"), "\n")...)
}

// counters are the files of fail-counter.
func (w *world) counters(t *testing.T) map[string]int {
	t.Helper()
	files, err := filepath.Glob(w.env.State.Path("fail-counter", "*.count"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		if _, err := fmt.Sscan(string(b), &n); err != nil {
			t.Fatal(f, err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".count")] = n
	}
	return out
}

// A failure is counted in the file of the local day on which it happened: also in a night
// of 23 or 25 hours, where midnight does not exist, and where an hour comes twice.
func TestTheDaysFileIsThatOfTheLocalDay(t *testing.T) {
	for _, tt := range []struct {
		name, zone string
		at         []string // of failures, UTC
		want       map[string]int
	}{
		{"an ordinary midnight east of Greenwich", "Asia/Tokyo", []string{"2026-06-01T14:59:58Z", "2026-06-01T15:00:02Z"}, map[string]int{"2026-06-01": 1, "2026-06-02": 1}},
		{"an ordinary midnight west of it", "America/New_York", []string{"2026-06-02T03:59:58Z", "2026-06-02T04:00:02Z"}, map[string]int{"2026-06-01": 1, "2026-06-02": 1}},
		{
			"a day of 23 hours", "Europe/Berlin",
			[]string{"2026-03-28T22:59:50Z", "2026-03-28T23:00:10Z", "2026-03-29T00:59:50Z", "2026-03-29T01:00:10Z", "2026-03-29T21:59:50Z", "2026-03-29T22:00:10Z"},
			map[string]int{"2026-03-28": 1, "2026-03-29": 4, "2026-03-30": 1},
		},
		{
			"a day of 25 hours", "Europe/Berlin",
			[]string{"2026-10-24T21:59:50Z", "2026-10-24T22:00:10Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T22:59:50Z", "2026-10-25T23:00:10Z"},
			map[string]int{"2026-10-24": 1, "2026-10-25": 4, "2026-10-26": 1},
		},
		{"a midnight that does not exist", "Africa/Cairo", []string{"2026-04-23T21:59:50Z", "2026-04-23T22:00:10Z"}, map[string]int{"2026-04-23": 1, "2026-04-24": 1}},
		{
			"an hour before midnight that comes twice", "Africa/Cairo",
			[]string{"2026-10-29T20:30:00Z", "2026-10-29T21:30:00Z", "2026-10-29T22:00:10Z"},
			map[string]int{"2026-10-29": 2, "2026-10-30": 1},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			loc := zone(t, tt.zone)
			first, err := time.Parse(time.RFC3339, tt.at[0])
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, 3, 14)
			w.now = first.Add(-time.Hour).In(loc)
			w.morning(t)
			for _, s := range tt.at {
				at, err := time.Parse(time.RFC3339, s)
				if err != nil {
					t.Fatal(err)
				}
				w.alive[w.carries["egress2"]] = false
				w.now = at.Add(-time.Second).In(loc)
				w.repairs(t, 2) // the second one, at that time, records it
			}
			if d := cmp.Diff(tt.want, w.counters(t)); d != "" {
				t.Errorf("fail-counter (-want +got):\n%s", d)
			}
			known := 0 // a window is 24 hours, however long the day is
			for _, s := range tt.at {
				if at, err := time.Parse(time.RFC3339, s); err == nil && w.now.Sub(at) < w.env.Config.Modes.Window {
					known++
				}
			}
			if n := len(w.modes(t).Replaced); w.refreshes(t) == 1 && n != known || w.refreshes(t) > 1 && known < w.env.Config.Modes.Threshold {
				t.Errorf("%d replacements are known, want %d; %d refreshes", n, known, w.refreshes(t))
			}
		})
	}
}

// A clock that goes back over midnight, or a zone that is changed, counts no replacement twice.
func TestADayThatComesAgainIsNotCountedTwice(t *testing.T) {
	w := newWorld(t, 3, 14)
	w.now = time.Date(2026, 11, 30, 23, 58, 0, 0, time.UTC)
	w.morning(t)
	before := w.refreshes(t)
	fails := func() {
		w.alive[w.carries["egress2"]] = false
		w.repairs(t, 4)
	}
	fails()
	fails()
	w.now = time.Date(2026, 12, 1, 0, 0, 5, 0, time.UTC)
	fails()
	for range 3 { // the clock is set back, and runs on over midnight again
		w.now = time.Date(2026, 11, 30, 23, 59, 30, 0, time.UTC)
		w.repairs(t, 2)
		w.now = time.Date(2026, 12, 1, 0, 0, 30, 0, time.UTC)
		w.repairs(t, 2)
		w.now = w.now.In(zone(t, "Pacific/Kiritimati")) // it is the next day there already
		w.repairs(t, 2)
	}
	if got := len(w.modes(t).Replaced); got != 3 || w.refreshes(t) != before {
		t.Errorf("%d replacements known, %d refreshes: %+v", got, w.refreshes(t)-before, w.modes(t))
	}
	w.now = time.Date(2026, 12, 1, 1, 0, 0, 0, time.UTC)
	fails()
	fails()
	if w.refreshes(t) != before+1 {
		t.Errorf("%d refreshes for five replacements", w.refreshes(t)-before)
	}
}

// Whatever a clock did, no pause is longer than its setting once it is right again.
func TestNoWaitOutlivesAClockThatJumped(t *testing.T) {
	for name, jump := range map[string]func(time.Time) time.Time{
		"two years ahead and back": func(t time.Time) time.Time { return t.AddDate(2, 0, 0) },
		"two years back and ahead": func(t time.Time) time.Time { return t.AddDate(-2, 0, 0) },
		"to 1970 and back":         func(t time.Time) time.Time { return time.Unix(t.Unix()%86400, 0).UTC() },
		"a day ahead and back":     func(t time.Time) time.Time { return t.AddDate(0, 0, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 5, 20)
			w.morning(t)
			list := w.list
			right := w.now
			w.now = jump(w.now)
			w.list = nil
			for range 5 { // the emergency refresh fails under the wrong clock
				w.alive[w.carries["egress2"]] = false
				w.repairs(t, 4)
			}
			if w.mode(t) != state.ModeDegraded {
				t.Fatalf("mode %s under the wrong clock", w.mode(t))
			}
			bad := w.carries["egress3"]
			for range 2 { // it fails twice, and is held down
				w.alive[bad] = false
				w.repairs(t, 4)
				w.alive[bad] = true
				w.list = list
				w.refresh(t)
				w.list = nil
				if _, err := w.env.Rebalance(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
			w.now = right.Add(time.Minute)
			w.list = list
			w.pass(w.env.Config.Modes.RetryMax)
			w.repairs(t, 3)
			if w.mode(t) != state.ModeNormal {
				t.Errorf("mode %s a pause after the clock was right again: %+v", w.mode(t), w.modes(t))
			}
			if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
				t.Fatal(err)
			}
			w.repair(t)
			w.pass(w.env.Config.Modes.Cooldown)
			n := w.refreshes(t)
			w.repairs(t, 3)
			if w.refreshes(t) < n+1 && len(w.modes(t).Replaced) > 0 {
				t.Errorf("no emergency refresh a cooldown after the clock was right again: %+v", w.modes(t))
			}
			w.pass(w.env.Config.Repair.HoldMax)
			w.refresh(t)
			var m Memory
			if err := w.env.State.ReadJSON(memoryFile, &m); err != nil {
				t.Fatal(err)
			}
			if left := holdLeft(m.Holds[bad], w.now, w.env.Config.Repair.HoldMax); left > 0 {
				t.Errorf("the endpoint is held down for %s more: %+v", left, m.Holds[bad])
			}
		})
	}
}
