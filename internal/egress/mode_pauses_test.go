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

// A stamp from a clock that was set back is taken for one of now: no wait is longer than its
// setting, and none ends before.
func TestStampsOfAnotherClock(t *testing.T) {
	const slack = futureSlack
	p := testPolicyLong()
	for name, tt := range map[string]struct {
		s    ModeState
		tell func(ModeState) time.Time
		at   time.Time
		want time.Time
	}{
		"an attempt, far ahead":            {tell: func(s ModeState) time.Time { return s.Tried }, at: noon.Add(time.Hour), want: noon},
		"an attempt, a moment ahead":       {tell: func(s ModeState) time.Time { return s.Tried }, at: noon.Add(slack), want: noon.Add(slack)},
		"an attempt, before":               {tell: func(s ModeState) time.Time { return s.Tried }, at: noon.Add(-time.Hour), want: noon.Add(-time.Hour)},
		"an emergency refresh, far ahead":  {tell: func(s ModeState) time.Time { return s.Emergency }, at: noon.Add(time.Hour), want: noon},
		"a replacement, far ahead":         {tell: func(s ModeState) time.Time { return s.Replaced[0] }, at: noon.Add(time.Hour), want: noon},
		"a replacement, a moment ahead":    {tell: func(s ModeState) time.Time { return s.Replaced[0] }, at: noon.Add(slack), want: noon.Add(slack)},
		"a replacement, within the window": {tell: func(s ModeState) time.Time { return s.Replaced[0] }, at: noon.Add(time.Second - p.Window), want: noon.Add(time.Second - p.Window)},
	} {
		t.Run(name, func(t *testing.T) {
			s := ModeState{Mode: state.ModeNormal, ModeMemory: ModeMemory{Tried: tt.at, Emergency: tt.at, Replaced: []time.Time{tt.at}}}
			next, _ := NextMode(s, ModeObservation{Uplink: true}, p, noon)
			if got := tt.tell(next); !got.Equal(tt.want) {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
	s := ModeState{ModeMemory: ModeMemory{Replaced: []time.Time{noon.Add(-p.Window)}}}
	if next, _ := NextMode(s, ModeObservation{}, p, noon); next.Replaced != nil {
		t.Errorf("what has left the window is remembered: %v", next.Replaced)
	}
}

// The cooldown ends when it is over, and is never longer than its setting, also where the
// stamp is a moment ahead.
func TestTheCooldown(t *testing.T) {
	p := testPolicyLong()
	for ago, want := range map[time.Duration]time.Duration{
		-time.Second: p.Cooldown, 0: p.Cooldown, time.Hour: time.Hour, p.Cooldown - time.Second: time.Second, p.Cooldown: 0, p.Cooldown + time.Hour: 0,
	} {
		m := machine{s: ModeState{ModeMemory: ModeMemory{Emergency: noon.Add(-ago)}}, p: p, now: noon}
		if got := m.cooldown(); got != want {
			t.Errorf("%s after an emergency refresh: %s left, want %s", ago, got, want)
		}
	}
	if got := (&machine{p: p, now: noon}).cooldown(); got != 0 {
		t.Errorf("there never was one, and %s are left", got)
	}
}

// A counter that is raised by a million is no more than one that asks for a refresh, and a
// bad month no more than a bad night.
func TestReplacementsAreBounded(t *testing.T) {
	p := testPolicyLong()
	day := func(n int) ModeObservation { return ModeObservation{Counts: []DayCount{{today, n}}} }
	s := ModeState{Mode: state.ModeNormal}
	for _, tt := range []struct{ n, want int }{{1, 1}, {1_000_000, 5}, {999_999, 5}, {1_000_000, 6}, {1_000_003, 8}, {1_000_005, 8}} {
		s, _ = NextMode(s, day(tt.n), p, noon)
		if len(s.Replaced) != tt.want || s.Counted != (DayCount{today, tt.n}) {
			t.Errorf("a counter of %d: %d replacements, want %d; counted %+v", tt.n, len(s.Replaced), tt.want, s.Counted)
		}
	}
	s.Replaced[0] = noon.Add(-time.Hour) // the oldest goes first
	s, _ = NextMode(s, day(1_000_006), p, noon)
	if len(s.Replaced) != 8 || s.Replaced[0] != noon {
		t.Errorf("the oldest is kept: %v", s.Replaced)
	}
	p.Threshold = 0 // off
	if _, acts := NextMode(ModeState{Mode: state.ModeNormal}, ModeObservation{Uplink: true, AllUp: true, Healthy: 1, Counts: []DayCount{{today, 3}}}, p, noon); len(acts) != 0 {
		t.Errorf("no threshold, and %+v", acts)
	}
}

func TestByHandIsEveryClass(t *testing.T) {
	m := ModeMemory{Manual: map[string]Manual{"egress1": {}}}
	for _, tt := range []struct {
		classes []string
		want    bool
	}{{nil, false}, {[]string{"egress1"}, true}, {[]string{"egress1", "egress2"}, false}, {[]string{"egress2"}, false}} {
		if got := m.ByHand(tt.classes); got != tt.want {
			t.Errorf("%v: %t", tt.classes, got)
		}
	}
}

// The days that a clock may go back to are known; the oldest is forgotten.
func TestDaysThatWereCounted(t *testing.T) {
	var m ModeMemory
	for i, tt := range []struct {
		see     DayCount
		earlier []DayCount
	}{
		{DayCount{"1", 1}, nil},
		{DayCount{"1", 2}, nil},
		{DayCount{"2", 5}, []DayCount{{"1", 2}}},
		{DayCount{"1", 3}, []DayCount{{"2", 5}}},
		{DayCount{"2", 5}, []DayCount{{"1", 3}}},
		{DayCount{"3", 0}, []DayCount{{"2", 5}, {"1", 3}}},
		{DayCount{"4", 0}, []DayCount{{"3", 0}, {"2", 5}, {"1", 3}}},
		{DayCount{"5", 7}, []DayCount{{"4", 0}, {"3", 0}, {"2", 5}}},
	} {
		m.count(tt.see)
		if m.Counted != tt.see || fmt.Sprint(m.Earlier) != fmt.Sprint(tt.earlier) || len(tt.earlier) == 0 && m.Earlier != nil {
			t.Errorf("step %d: %+v, earlier %+v, want %+v", i, m.Counted, m.Earlier, tt.earlier)
		}
	}
	for day, want := range map[string]int{"5": 7, "2": 5, "1": 0, "": 0} {
		if got := m.counted(day); got != want {
			t.Errorf("day %q: %d counted, want %d", day, got, want)
		}
	}
}

// A pause begins anew where what it waited for is over, and grows where it is not.
func TestWhatEndsAPause(t *testing.T) {
	p := testPolicyLong()
	open := func(mode state.Mode, kind AttemptKind) ModeState {
		s := longDirect(10 * time.Second)
		s.Mode, s.Declared, s.Attempt = mode, isDirect(mode), &OpenAttempt{Kind: kind, Began: noon}
		return s
	}
	up := ModeObservation{Uplink: true}
	ended := func(e AttemptEnd) ModeObservation { o := up; o.Ended = &e; return o }
	waiting := longDirect(10 * time.Second)
	waiting.Rebuild, waiting.Refreshed = true, true
	home := waiting
	home.Rebuild, home.Rebuilt, home.Lured = false, true, true
	for name, tt := range map[string]struct {
		s    ModeState
		o    ModeObservation
		want time.Duration
	}{
		"a retry failed":                                {open(state.ModeDegraded, AttemptRetry), ended(AttemptEnd{Reason: "a dead list"}), 10 * time.Minute},
		"a retry was not made":                          {open(state.ModeDegraded, AttemptRetry), ended(AttemptEnd{Busy: true}), 0},
		"a retry succeeded":                             {open(state.ModeDegraded, AttemptRetry), ended(AttemptEnd{OK: true}), 0},
		"recovery succeeded: its pool may be of no use": {open(state.ModeExternalRecovery, AttemptRecovery), ended(AttemptEnd{OK: true}), 10 * time.Minute},
		"its pool could not be placed":                  {waiting, ModeObservation{Uplink: true, Placed: &RebuildEnd{Reason: "none passed"}}, 10 * time.Minute},
		"users come back":                               {home, ModeObservation{Uplink: true, Ready: true, Filled: 1, Strict: 1, Healthy: 1}, 0},
		"nothing happens":                               {longDirect(10 * time.Second), up, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			next, _ := NextMode(tt.s, tt.o, p, noon)
			if next.RetryIn != tt.want {
				t.Errorf("the next pause is %s, want %s", next.RetryIn, tt.want)
			}
		})
	}
}

// That a lane passes is news once, also where it is so loaded that the uplink's targets do
// not answer beside it; that it is silent while the uplink is down is none.
func TestALaneThatPassesIsNewsOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		mode         state.Mode
		o            ModeObservation
		before, want bool
	}{
		"it passes":                      {state.ModeDirect, ModeObservation{Uplink: true, Healthy: 1}, false, true},
		"it passes, beside dead targets": {state.ModeDirect, ModeObservation{Healthy: 1}, false, true},
		"it is silent":                   {state.ModeDirect, ModeObservation{Uplink: true}, true, false},
		"the uplink is down":             {state.ModeDirect, ModeObservation{}, true, true},
		"users are on lanes":             {state.ModeDegraded, ModeObservation{Uplink: true, Healthy: 1}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := longDirect(time.Second)
			s.Mode, s.Lured = tt.mode, tt.before
			if next, _ := NextMode(s, tt.o, testPolicyLong(), noon); next.Lured != tt.want {
				t.Errorf("remembered: %t", next.Lured)
			}
		})
	}
}

// What is said of attempts is right: the number of the next one, and what it is made for.
func TestReasonsOfAttempts(t *testing.T) {
	degraded := longDirect(time.Hour)
	degraded.Mode, degraded.Declared = state.ModeDegraded, false
	for want, s := range map[string]ModeState{"users are direct; attempt 13": longDirect(time.Hour), "no fresh pool yet; attempt 13": degraded} {
		if _, acts := NextMode(s, ModeObservation{Uplink: true}, testPolicyLong(), noon); len(acts) != 1 || acts[0].Reason != want {
			t.Errorf("%+v, want %q", acts, want)
		}
	}
}
