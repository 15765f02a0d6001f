package edge

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// spoil damages a state file, and its last good copy too.
func (w *town) spoil(e *Env, file string, copies bool) {
	w.t.Helper()
	paths := []string{e.State.Path(file)}
	if copies {
		paths = append(paths, e.State.Path("last-good", file))
	}
	for _, p := range paths {
		if err := os.WriteFile(p, []byte(`{"holds": [{"serv`), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestDamagedState(t *testing.T) {
	for name, tt := range map[string]struct {
		file   string
		copies bool
		dies   bool
		want   string // where it leads then
	}{
		"edge.json, its target lives":                           {memoryFile, false, false, "proxy-02"},
		"edge.json and its copy, its target lives":              {memoryFile, true, false, "proxy-02"},
		"edge.json and its copy, its target is dead":            {memoryFile, true, true, "proxy-03"},
		"edge-holds.json: from the copy, its target lives":      {holdsFile, false, false, "proxy-02"},
		"edge-holds.json: from the copy, its target is dead":    {holdsFile, false, true, "proxy-03"},
		"edge-holds.json and its copy, its target lives":        {holdsFile, true, false, "proxy-02"},
		"edge-holds.json and its copy: away from a dead target": {holdsFile, true, true, "proxy-01"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, 0, func(t *testing.T, w *town) {
				e := w.begin(1)
				if _, err := e.Drain(t.Context(), Ask{Candidate: "proxy-01", Owner: "ada"}, Options{}); err != nil {
					t.Fatal(err)
				}
				w.wantLeads("drained", "proxy-02")
				w.spoil(e, tt.file, tt.copies)
				if tt.dies {
					w.is(dead, 2)
				}
				time.Sleep(10 * time.Second)
				res := w.retarget(w.envAt(1, e.State))
				var damage *state.DamageError
				if !errors.As(res.Partial, &damage) || !strings.Contains(damage.File, tt.file) {
					t.Errorf("the damage is not told: %v", res.Partial)
				}
				w.wantLeads("damaged", tt.want)
				same(t, "alerts", 1, len(w.told("edge.damaged_state")))

				_, err := w.envAt(1, e.State).Drain(t.Context(), Ask{Candidate: "proxy-03", Owner: "ada", Force: true}, Options{})
				if lost := tt.file == holdsFile; lost != (err != nil) {
					t.Errorf("a word onto holds that can't be read: %v", err)
				}
			})
		})
	}
}

// A session read the holds whole once. What it knows is better than a damaged file.
func TestHoldsAreDamagedUnderASession(t *testing.T) {
	for name, copies := range map[string]bool{"the file": false, "its copy too": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, 0, func(t *testing.T, w *town) {
				e := w.begin(1)
				if _, err := e.Drain(t.Context(), Ask{Candidate: "proxy-01", Owner: "ada"}, Options{}); err != nil {
					t.Fatal(err)
				}
				s := w.open(e)
				w.spoil(e, holdsFile, copies)
				if err := s.Refresh(t.Context()); err == nil {
					t.Error("the damage is not told")
				}
				w.is(dead, 2)
				w.round(s)
				w.round(s)
				w.wantLeads("the first one is drained", "proxy-03")
				w.close(s)
			})
		})
	}
}

func TestAFullDiskUndoesNoMove(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		full := &reading{t: t, d: e.State}
		full.begin()
		w.is(dead, 1)
		moves := []Move{}
		for range 2 {
			for _, q := range s.Targets() {
				res, _ := s.Judge(t.Context(), []Answer{s.Prober.Probe(t.Context(), q)})
				moves = append(moves, res.Moves...)
				if len(res.Moves) > 0 && res.Partial == nil {
					t.Error("nothing is said of the records")
				}
			}
		}
		w.wantLeads("moved", "proxy-02")
		same(t, "moves", 1, len(moves))
		full.end()
		w.close(s)
		if m := w.memory(e); len(m.Targets) != 1 || m.Targets[0].To != proxy(2) || len(m.Vetoes) != 1 {
			t.Errorf("the disk is well again: %+v", m)
		}
	})
}
