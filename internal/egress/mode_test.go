package egress

import (
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// unlessShort leaves the exploration to the run without -short: the race detector makes it
// ten times slower and has nothing to find in a pure function. `make test` does both.
func unlessShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("millions of transitions: without -short")
	}
}

func TestModesOnEveryPath(t *testing.T) {
	unlessShort(t)
	for name, may := range map[string]bool{"a class may go direct": true, "no class may": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testPolicy()
			p.MayDirect = may
			x := explore(NextMode, p)
			for principle, where := range x.broken {
				t.Errorf("%s: broken in\n  %s", principle, where)
			}
			t.Logf("%d states, %d transitions, %d changes of mode", len(x.nodes), x.done, len(x.moves))
			states := x.states()
			for _, m := range state.Modes() {
				if states[m] == 0 {
					t.Errorf("mode %s is never reached", m)
				}
				t.Logf("  %s: %d states", m, states[m])
			}
		})
	}
}

// Each guard of the machine is broken in turn, by what it is made to believe: the same
// exploration must find a path on which a principle or a criterion no longer holds.
func TestABrokenGuardIsFound(t *testing.T) {
	unlessShort(t)
	type lie func(*ModeState, *ModeObservation, *ModePolicy)
	guards := map[string]lie{
		"a failed refresh alone is exhaustion": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) {
			if s.Attempt != nil {
				s.Attempt.Kind = AttemptExhaustion
			}
		},
		"no look at the uplink":            func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Uplink = true },
		"no guarded refresh before direct": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Guarded, s.Emergency = true, noon },
		"no cooldown":                      func(_ *ModeState, _ *ModeObservation, p *ModePolicy) { p.Cooldown = 0 },
		"no threshold":                     func(_ *ModeState, _ *ModeObservation, p *ModePolicy) { p.Threshold = 1 },
		"any class may go direct":          func(_ *ModeState, _ *ModeObservation, p *ModePolicy) { p.MayDirect = true },
		"a refresh is not needed to leave": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Refreshed = true },
		"a rebuild is not needed to leave": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Rebuilt = true },
		"one good slot is enough to leave": func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Filled = o.Strict },
		"rules are not looked at to leave": func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Ready = true },
		"an operator's word is forgotten":  func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Manual = nil },
		"a pool is placed again and again": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Rebuild = true },
		"a killed attempt is waited for":   func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Attempting = o.Ended == nil },
		"recovery waits while users are direct": func(s *ModeState, o *ModeObservation, _ *ModePolicy) {
			o.Refreshing = o.Refreshing || isDirect(s.Mode)
		},
		"two refreshes at once":          func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Refreshing = false },
		"users astray are not put right": func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Astray = false },
	}
	for name, lie := range guards {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := func(s ModeState, o ModeObservation, p ModePolicy, now time.Time) (ModeState, []Action) {
				s = s.clone()
				lie(&s, &o, &p)
				return NextMode(s, o, p, now)
			}
			var found []string
			for _, may := range []bool{true, false} {
				p := testPolicy()
				p.MayDirect = may
				if len(found) == 0 {
					for principle := range explore(broken, p).broken {
						found = append(found, principle)
					}
				}
			}
			if len(found) == 0 {
				t.Error("nothing noticed it")
			}
			t.Logf("breaks: %q", found)
		})
	}
}
