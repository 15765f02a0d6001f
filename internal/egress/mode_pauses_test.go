package egress

import (
	"fmt"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// steadily plays a machine that sees the same each second, and returns when it asked for an
// attempt, in seconds; each one ends at once, and fails.
func steadily(s ModeState, o ModeObservation, seconds int) (ModeState, []int) {
	p := testPolicy()
	p.RetryMax = 10 * time.Minute
	var asked []int
	for i := range seconds {
		now := noon.Add(time.Duration(i) * time.Second)
		next, acts := NextMode(s, o, p, now)
		for _, a := range acts {
			if a.Kind == ActRefresh {
				asked = append(asked, i)
				ended := o
				ended.Ended = &AttemptEnd{Reason: "a dead list"}
				next, _ = NextMode(next, ended, p, now)
			}
		}
		s = next
	}
	return s, asked
}

// longDirect is direct since hours, with the longest pause between attempts; the last one
// failed so long ago.
func longDirect(ago time.Duration) ModeState {
	return ModeState{Mode: state.ModeDirect, ModeMemory: ModeMemory{
		Declared: true, Guarded: true, Failed: 12, RetryIn: 10 * time.Minute, Tried: noon.Add(-ago), Emergency: noon.Add(-3 * time.Hour),
	}}
}

func TestPausesBeginAnewWithNews(t *testing.T) {
	degraded := longDirect(10 * time.Second)
	degraded.Mode, degraded.Declared = state.ModeDegraded, false
	lured := longDirect(10 * time.Second)
	lured.Lured = true
	nothing := ModeObservation{Uplink: true}
	passes := ModeObservation{Uplink: true, Healthy: 1}
	for name, tt := range map[string]struct {
		s     ModeState
		first ModeObservation // seen once
		then  ModeObservation // seen from then on
		want  []int
	}{
		"nothing is new": {longDirect(10 * time.Second), nothing, nothing, []int{590}},
		"a lane passes again, the last try is old":  {longDirect(5 * time.Minute), passes, passes, []int{0, 30, 90, 210, 450}},
		"a lane passes again, the last try is not":  {longDirect(10 * time.Second), passes, passes, []int{20, 50, 110, 230, 470}},
		"a lane has passed all the time":            {lured, passes, passes, []int{590}},
		"a lane passed once, and has fallen silent": {longDirect(10 * time.Second), passes, nothing, []int{20, 50, 110, 230, 470}},
		"the uplink returns, users are direct":      {longDirect(10 * time.Second), ModeObservation{Uplink: true, Returned: true}, nothing, []int{20, 50, 110, 230, 470}},
		"the uplink returns, users are on lanes":    {degraded, ModeObservation{Uplink: true, Returned: true, Healthy: 1}, passes, []int{20, 50, 110, 230, 470}},
		"the uplink is not looked at":               {lured, ModeObservation{}, passes, []int{590}},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := NextMode(tt.s, tt.first, testPolicyLong(), noon)
			if s.Attempt != nil { // it is made in the loop
				s = tt.s
			}
			_, asked := steadily(s, tt.then, 600)
			if fmt.Sprint(asked) != fmt.Sprint(tt.want) {
				t.Errorf("attempts after %v s, want %v", asked, tt.want)
			}
		})
	}
}

func testPolicyLong() ModePolicy {
	p := testPolicy()
	p.RetryMax = 10 * time.Minute
	return p
}

func TestWhateverIsWrittenAPauseIsWithinItsSettings(t *testing.T) {
	p := testPolicyLong()
	for _, in := range []time.Duration{-time.Hour, 0, time.Millisecond, time.Minute, 24 * time.Hour, 1 << 62, -1 << 63} {
		s := longDirect(time.Hour)
		s.RetryIn = in
		if got := s.pause(p); got < p.RetryMin || got > p.RetryMax {
			t.Errorf("retry_in %s: a pause of %s", in, got)
		}
		m := machine{s: s, p: p, now: noon}
		m.backOff()
		if m.s.RetryIn < p.RetryMin || m.s.RetryIn > p.RetryMax {
			t.Errorf("retry_in %s: doubled to %s", in, m.s.RetryIn)
		}
	}
}

// A pool that can't be placed is followed by another refresh, and not at once.
func TestAPoolOfNoUsePausesToo(t *testing.T) {
	p := testPolicyLong()
	s := longDirect(time.Hour)
	s.RetryIn, s.Failed = 0, 0
	var asked []int
	for i := range 600 {
		now := noon.Add(time.Duration(i) * time.Second)
		o := ModeObservation{Uplink: true}
		next, acts := NextMode(s, o, p, now)
		for _, a := range acts {
			switch a.Kind {
			case ActRefresh:
				asked = append(asked, i)
				o.Ended = &AttemptEnd{OK: true, Began: now}
			case ActRebuild:
				o.Placed = &RebuildEnd{Reason: "no lane passes"}
			case ActDirect, ActLeave, ActUnknown:
			}
		}
		if o.Ended != nil || o.Placed != nil {
			next, _ = NextMode(next, o, p, now)
		}
		s = next
	}
	if want := []int{0, 31, 92, 213, 454}; fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("refreshes after %v s, want %v", asked, want)
	}
}

// What was placed while users were direct may die before they come back: another refresh is
// due, and they do not come back by the old one.
func TestANewExhaustionInDirectNeedsANewPool(t *testing.T) {
	s := longDirect(time.Hour)
	s.Refreshed, s.Rebuilt = true, true
	next, acts := NextMode(s, ModeObservation{Uplink: true, Exhausted: true, Ready: true}, testPolicyLong(), noon)
	if next.Refreshed || next.Rebuilt || len(acts) != 1 || acts[0].Kind != ActRefresh {
		t.Errorf("%+v, %+v", next, acts)
	}
	s.Rebuilt, s.Rebuild = false, true // it is not placed yet
	next, acts = NextMode(s, ModeObservation{Uplink: true, Exhausted: true, Ready: true}, testPolicyLong(), noon)
	if !next.Refreshed || len(acts) != 1 || acts[0].Kind != ActRebuild {
		t.Errorf("before it is placed: %+v, %+v", next, acts)
	}
}
