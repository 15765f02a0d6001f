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
