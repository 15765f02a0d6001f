package edge

import (
	"errors"
	"testing"
	"time"
)

// Nobody is left and one comes back: what was kept toward the dead one goes then.
func TestATargetReturnsAfterNone(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		w.config.Services[0].ResetDead = true
		e := w.begin(1)
		w.entry(UDP, true)
		w.entry(TCP, true)
		w.is(dead, 1, 2)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		if n := w.entries(1); n != 2 {
			t.Errorf("%d entries, and nobody else to go to", n)
		}
		w.is(alive, 2)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		w.wantLeads("one is back", "proxy-02")
		if n := w.entries(1); n != 0 {
			t.Errorf("%d entries still lead to the dead one", n)
		}
	})
}

func TestFlushesAreAsWideAsTheyMustBe(t *testing.T) {
	for name, tt := range map[string]struct {
		reset bool
		kill  func(*town, *Env)
		left  int // of UDP replied, TCP replied, TCP pending
	}{
		"a veto": {kill: func(w *town, _ *Env) { w.is(dead, 1) }, left: 1},
		"a veto with reset_dead": {
			reset: true, kill: func(w *town, _ *Env) { w.is(dead, 1) }, left: 0,
		},
		"a drain cuts nothing": {
			reset: true, left: 3,
			kill: func(w *town, e *Env) {
				if _, err := e.Drain(w.t.Context(), Ask{Candidate: "proxy-01", Owner: "ada"}, Options{}); err != nil {
					w.t.Fatal(err)
				}
				w.wantLeads("drained", "proxy-02")
			},
		},
		"it takes no logins: nothing is cut": {
			reset: true, left: 3, kill: func(w *town, _ *Env) { w.is(locked, 1) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, 0, func(t *testing.T, w *town) {
				w.config.Services[0].ResetDead = tt.reset
				w.config.Services[0].Probe.Login = true
				e := w.begin(1)
				w.entry(UDP, true)
				w.entry(TCP, true)
				w.entry(TCP, false)
				tt.kill(w, e)
				time.Sleep(10 * time.Second)
				w.retarget(e)
				w.wantLeads(name, "proxy-02")
				if n := w.entries(1); n != tt.left {
					t.Errorf("%d of 3 entries are left, want %d", n, tt.left)
				}
			})
		})
	}
}

// A dead candidate that is asked anew when its veto has run out is still dead, nothing has
// led to it since, and there is nothing to do.
func TestADeadCandidateIsFlushedOnce(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		res := w.retarget(e)
		if len(res.Plan.Flushes) == 0 || w.entries(1) != 0 {
			t.Errorf("at its death: %d entries, %s", w.entries(1), planText(res.Plan))
		}
		for _, pause := range []time.Duration{10 * time.Second, 31 * time.Second, 2 * time.Minute} {
			time.Sleep(pause)
			res, err := e.Retarget(t.Context(), Options{DryRun: true})
			if err != nil || res.Plan.Changes() || len(res.Plan.Flushes) > 0 {
				t.Errorf("after %s: %v\n%s", pause, err, planText(res.Plan))
			}
		}
		w.noSteps("carried out", e)
	})
}

// What is not known is left out of the journal.
func TestDeletedEntriesInTheJournal(t *testing.T) {
	for name, tt := range map[string]struct {
		step    StepKind
		flushed int
		want    map[string]float64
	}{
		"a move, some":      {StepMove, 3, map[string]float64{"epoch": 7, "commit": 2, "flows_deleted": 3}},
		"a move, none":      {StepMove, 0, map[string]float64{"epoch": 7, "commit": 2, "flows_deleted": 0}},
		"a move, not known": {StepMove, -1, map[string]float64{"epoch": 7, "commit": 2}},
		"a flush, some":     {StepFlush, 3, map[string]float64{"flows_deleted": 3}},
		"a flush, unknown":  {StepFlush, -1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := &turn{flushed: tt.flushed}
			p.out.Moves = []Move{{Service: "front", Epoch: 7, Commit: 2 * time.Millisecond, Flushed: tt.flushed}}
			same(t, "figures", tt.want, p.eventOf(Step{Kind: tt.step, Service: "front", Epoch: 7}).Figures)
		})
	}
}

func TestAFlushThatFailedIsMadeGood(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		w.flush = func([]Flush) error { return errors.New("netlink: no buffer space") }
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		if res := w.retarget(e); res.Partial == nil {
			t.Error("the failure is not said")
		}
		w.wantLeads("moved all the same", "proxy-02")
		w.flush = nil
		time.Sleep(10 * time.Second)
		w.retarget(e)
		if n := w.entries(1); n != 0 {
			t.Errorf("%d entries still lead to the dead one", n)
		}
		w.noSteps("then", e)
	})
}
