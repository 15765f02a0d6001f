package egress

import (
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// durable is what is on disk, as far as the machine tells situations apart by it. A stamp is
// just now or long ago, which is as good as never.
type durable struct {
	mode                                           state.Mode
	replaced                                       int // up to the threshold
	hand                                           int // classes that are direct by hand, of two
	attempt                                        AttemptKind
	failed, emergency, prior, tried                bool
	guarded, declared, refreshed, rebuilt, rebuild bool
}

// node is one situation: what is on disk, where users are, and what is true of the world
// whatever the machine believes.
type node struct {
	disk    int32 // the durable's number
	users   int8  // classes that travel direct, of two; the first is the one that goes by hand
	alive   bool  // the run that makes the open attempt
	despair bool  // of the attempt: exhaustion was seen when it began
	truth   truth
}

// truth is what the principles speak of. It is kept by what happened alone, and never read
// from what the machine wrote.
type truth struct {
	replaced  int8 // since the last good refresh, up to the threshold
	failed    bool // attempts, since then
	tried     bool // an attempt, within the pause
	cooling   bool // the cooldown of emergency refreshes runs
	before    bool // and ran before the open attempt
	bypassed  bool // exhaustion had its refresh beside it, and no pool was placed since
	owed      bool // a good refresh's pool is to be placed
	fruitless bool // a refresh that exhaustion had asked for ended without giving users a lane, in this cooldown
	exhausted bool // direct came of exhaustion
	fresh     bool // a refresh succeeded since then, and was not found useless
	placed    bool // and its pool was placed
	said      bool // an operator ended direct by hand
}

const (
	testThreshold = 2
	testCounted   = 3 // of the day's file, before the machine looks
)

var bothClasses = []string{"egress1", "egress2"}

// testPolicy has a small threshold and one pause: what is beyond them is only more of the same.
func testPolicy() ModePolicy {
	return ModePolicy{
		Threshold: testThreshold, Window: 24 * time.Hour, Cooldown: 2 * time.Hour, RetryMin: 30 * time.Second, RetryMax: 30 * time.Second,
		Classes: bothClasses, MayDirect: true,
	}
}

func clockOf(now bool) time.Time {
	if now {
		return noon.Add(-time.Second)
	}
	return time.Time{}
}

func justNow(t time.Time) bool { return !t.IsZero() && noon.Sub(t) < time.Hour }

func (d durable) state() ModeState {
	s := ModeState{Mode: d.mode, Reason: "another run's", ModeMemory: ModeMemory{
		Emergency: clockOf(d.emergency), Tried: clockOf(d.tried), Guarded: d.guarded,
		Declared: d.declared, Refreshed: d.refreshed, Rebuilt: d.rebuilt, Rebuild: d.rebuild,
		Lured:   true, // it only matters to pauses
		Counted: DayCount{Day: "today", N: testCounted},
	}}
	if d.failed {
		s.Failed, s.RetryIn = 1, 30*time.Second
	}
	for range d.replaced {
		s.Replaced = append(s.Replaced, noon.Add(-time.Minute))
	}
	if d.attempt != "" {
		s.Attempt = &OpenAttempt{Kind: d.attempt, Began: noon.Add(-time.Second), Prior: clockOf(d.prior)}
	}
	for _, c := range bothClasses[:d.hand] {
		if s.Manual == nil {
			s.Manual = map[string]Manual{}
		}
		s.Manual[c] = Manual{Since: noon, Reason: "a test"}
	}
	return s
}

// written is what two files say; a kill leaves the word of one step and the memory of another.
func written(mode state.Mode, m ModeMemory) durable {
	d := durable{
		mode: mode, replaced: min(len(m.Replaced), testThreshold), hand: len(m.Manual), failed: m.Failed > 0,
		emergency: justNow(m.Emergency), tried: justNow(m.Tried),
		guarded: m.Guarded, declared: m.Declared, refreshed: m.Refreshed, rebuilt: m.Rebuilt, rebuild: m.Rebuild,
	}
	if m.Attempt != nil {
		d.attempt, d.prior = m.Attempt.Kind, justNow(m.Attempt.Prior)
	}
	return d
}

// direct says whether users are, or are about to be, direct.
func (d durable) direct() bool { return isDirect(d.mode) || d.hand == len(bothClasses) }

// belong is how many classes belong on direct.
func (d durable) belong(p ModePolicy) int8 {
	if isDirect(d.mode) && d.declared && p.MayDirect {
		return int8(len(bothClasses))
	}
	return int8(d.hand) //nolint:gosec // two at most
}

// more is how many replacements an observation adds.
func more(o *ModeObservation) int8 {
	return int8(o.Counts[0].N - testCounted) //nolint:gosec // one at most
}

// spent says whether VPN is exhausted: no slot passes, nothing is left to try, and the
// uplink is not what is missing.
func spent(o *ModeObservation) bool { return o.Exhausted && o.Uplink && o.Healthy == 0 }

// saw is the truth after what a run saw, and before what it does about it.
func (t truth) saw(n node, d durable, o *ModeObservation) truth {
	if !d.direct() {
		t.exhausted, t.fresh, t.placed, t.said = false, false, false, false
	}
	t.replaced = min(t.replaced+more(o), testThreshold)
	t = t.ended(n, d, o)
	if r := o.Placed; r != nil && !r.Busy && t.owed {
		t.owed = false
		switch {
		case r.OK:
			t.bypassed, t.fruitless, t.placed = false, false, d.direct()
		case d.direct(): // it takes another pool
			t.fresh, t.tried = false, true
		}
	}
	if d.direct() && spent(o) {
		t.exhausted = true
		if !t.owed { // what was placed is dead too
			t.fresh, t.placed = false, false
		}
	}
	return t
}

func (t truth) ended(n node, d durable, o *ModeObservation) truth {
	e := o.Ended
	asked := d.attempt == AttemptEmergency || d.attempt == AttemptExhaustion
	switch {
	case e != nil && e.OK:
		t.replaced, t.failed = more(o), false // what came after the tests had begun is not undone by them
		t.owed = t.owed || !e.Plain || d.direct() || d.mode == state.ModeDegraded || d.mode == state.ModeEmergencyRefresh
		if e.Plain {
			t.bypassed = false
		}
		t.fruitless = t.fruitless || n.despair
		if d.direct() {
			t.fresh, t.placed = true, false
		}
	case d.attempt == "" || o.Attempting: // nothing of an attempt is known
	case e != nil && !e.Plain && (e.Busy || !o.Uplink): // it was not made
		if asked {
			t.cooling = t.before
		}
		if d.attempt == AttemptExhaustion {
			t.bypassed = false
		}
	case e != nil && !e.Plain:
		t.failed, t.tried = true, true
		t.fruitless = t.fruitless || n.despair
	default: // the run that made it was killed
		t.failed, t.tried = true, true
		if d.attempt == AttemptExhaustion {
			t.bypassed = false
		}
	}
	return t
}

// did is the truth after what a run does.
func (t truth) did(s *step, d durable) truth {
	if s.goes && !d.direct() {
		t.exhausted, t.fresh, t.placed = true, false, false
	}
	switch s.kind {
	case AttemptExhaustion:
		t.before, t.cooling, t.bypassed = t.cooling, true, true
	case AttemptEmergency:
		t.before, t.cooling, t.bypassed = t.cooling, true, false
	case AttemptRetry, AttemptRecovery, AttemptUnknown:
	}
	if s.kind != AttemptUnknown {
		t.tried = true
	}
	if s.leaves {
		t.exhausted, t.fresh, t.placed, t.said = false, false, false, false
	}
	return t
}
