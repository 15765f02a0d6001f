package egress

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// modesLines are what status says of modes to people.
func (w *world) modesLines(t *testing.T) []string {
	t.Helper()
	var out bytes.Buffer
	w.env.Status(t.Context()).modesText(&out)
	if out.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestStatusTellsWhatModesWaitFor(t *testing.T) {
	const good = "2026-11-30T12:00:00Z" // the morning's refresh
	for _, tt := range []struct {
		name string
		make func(*world)
		want []string
	}{
		{"nothing", func(*world) {}, nil},
		{"two replacements", func(w *world) {
			for range 2 {
				w.alive[w.carries["egress2"]] = false
				w.repairs(t, 3)
			}
		}, []string{"replacements since then: 2, and 5 ask for an emergency refresh"}},
		{"a counter raised by hand, not seen by a run yet", func(w *world) {
			if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 3); err != nil {
				t.Fatal(err)
			}
		}, []string{"replacements since then: 3, and 5 ask for an emergency refresh"}},
		{"a dead list", func(w *world) {
			w.list = nil
			if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
				t.Fatal(err)
			}
			w.repairs(t, 40)
		}, []string{
			"attempts: 2 without a fresh pool since the last good refresh (" + good + "), the last one at 2026-11-30T12:00:33Z; the next one (retry) is due at 2026-11-30T12:01:33Z",
			"replacements since then: 5, and 5 ask for an emergency refresh",
		}},
		{"users are direct", func(w *world) { w.onDirect(t, 0) }, []string{
			"attempts: 1 without a fresh pool since the last good refresh (" + good + "), the last one at 2026-11-30T12:00:04Z; the next one (recovery) is due at 2026-11-30T12:00:34Z",
			"replacements since then: 5, and 5 ask for an emergency refresh",
		}},
		{"an attempt was killed", func(w *world) {
			w.diesAt(t, "attempt.begun", 1)
			w.pass(time.Second)
			w.unlocked(t)
		}, []string{
			"attempts: 0 without a fresh pool since the last good refresh (" + good + "), the last one at 2026-11-30T12:00:04Z; the run that made one (exhaustion) was killed, and the next one goes on",
			"replacements since then: 5, and 5 ask for an emergency refresh",
		}},
		{"two classes are direct by hand", func(w *world) {
			for _, d := range []DirectOrder{{On: true, Classes: []string{"egress4"}, By: "alice", Reason: "a call"}, {On: true, Classes: []string{"egress2"}, Reason: "a test"}} {
				if _, err := w.env.Direct(t.Context(), d, false); err != nil {
					t.Fatal(err)
				}
				w.pass(time.Minute)
			}
		}, []string{
			"direct by hand: class egress2 since 2026-11-30T12:01:03Z: a test",
			"direct by hand: class egress4 since 2026-11-30T12:00:03Z, by alice: a call",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			tt.make(w)
			if d := cmp.Diff(tt.want, w.modesLines(t)); d != "" {
				t.Errorf("status (-want +got):\n%s", d)
			}
		})
	}
}

// The journal has the operator's word for each class that it moved.
func TestAnOperatorsWordIsInTheJournal(t *testing.T) {
	w := newWorld(t, 2, 4)
	w.morning(t)
	for _, on := range []bool{true, false} {
		if _, err := w.env.Direct(t.Context(), DirectOrder{On: on, Classes: []string{"egress2"}, By: "alice", Reason: "a call"}, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"direct", "leave"} {
		if !strings.Contains(w.read(t, "events.jsonl"), `"kind":"`+kind+`","object":"egress2"`) {
			t.Errorf("no line of %s", kind)
		}
	}
	if n := strings.Count(w.read(t, "events.jsonl"), `"reason":"by hand, by alice: a call"`); n != 2 {
		t.Errorf("%d lines have the operator's word:\n%s", n, w.read(t, "events.jsonl"))
	}
}
