package egress

import (
	"slices"

	"github.com/shunt-net/shunt/internal/state"
)

// judgeMemory asserts what is true of a step whatever the truth is.
func (x *explorer) judgeMemory(n node, s, next ModeState, did *step) {
	fail := func(principle string) { x.fail(principle, n, did) }
	d, o := x.disks[did.next], did.o
	if !d.direct() && (d.declared || d.refreshed || d.rebuilt || next.Lured) {
		fail("nothing of direct is remembered once it has ended")
	}
	if s.Attempt != nil && !o.Attempting && next.Attempt != nil && next.Attempt.Began.Equal(s.Attempt.Began) {
		fail("5 an attempt that was killed, or has ended, blocks nothing")
	}
	if s.Attempt != nil && o.Attempting && (o.Ended == nil || !o.Ended.OK) && next.Attempt == nil {
		fail("an attempt that is under way is not booked as another")
	}
	if s.Mode != next.Mode && (next.Reason == "" || next.Reason == s.Reason) {
		fail("6 every transition is logged with its reason")
	}
	if a := next.Attempt; did.kind != AttemptUnknown && (a == nil || a.Kind != did.kind || !a.Began.Equal(noon)) {
		fail("5 an attempt is on disk before it is made")
	}
	if next.Counted != o.Counts[len(o.Counts)-1] {
		fail("the day's file is read once")
	}
	if e := o.Ended; e != nil && e.OK {
		other, end := *o, *e
		end.Strategy, other.Ended = "another", &end
		s2, acts := x.next(s, other, x.policy, noon)
		if s2.Mode != next.Mode || slices.ContainsFunc(acts, func(a Action) bool { return a.Kind == ActRefresh && a.For != did.kind }) {
			fail("7 the machine does not know strategies")
		}
	}
}

// judge asserts the principles and the criteria on one step; t is the truth after what the
// run saw.
func (x *explorer) judge(n node, d durable, t truth, s *step) {
	fail := func(principle string) { x.fail(principle, n, s) }
	x.judgeDirect(n, d, t, s)
	x.judgeAttempt(n, d, t, s)
	x.judgeMode(n, d, t, s)
	idle := !s.leaves && !busy(s.o)
	if s.rebuild && (!t.owed || !idle) {
		fail("1 nothing is placed again from a stale pool")
	}
	if t.owed && idle && !s.rebuild {
		fail("5 a fresh pool is placed, however often the placing was killed or busy")
	}
	if s.leaves && (s.kind != AttemptUnknown || s.rebuild || s.enters) {
		fail("4 users and recovery never move in one step")
	}
	if s.o.Astray && !s.enters && !s.leaves {
		fail("5 what failed or was killed is made good by the next run")
	}
}

// busy says whether a refresh is under way: an attempt, or another run's.
func busy(o *ModeObservation) bool { return o.Attempting || o.Refreshing }

// judgeDirect asserts who goes direct, when, and that nobody stays by mistake.
func (x *explorer) judgeDirect(n node, d durable, t truth, s *step) {
	fail := func(principle string) { x.fail(principle, n, s) }
	o, after := s.o, x.disks[s.next]
	at := x.failed(n, d, s)
	again := spent(o) && t.bypassed && t.cooling && !t.owed && !busy(s.o) // and a later one has none
	enters := !d.direct() && after.direct()
	switch {
	case enters && (!o.Uplink || o.Healthy != 0):
		fail("2 direct needs a live uplink and no slot that passes")
	case enters && !x.policy.MayDirect:
		fail("2 a class that must not go direct does not")
	case enters && !spent(o) && !at:
		fail("2 direct needs exhaustion, not only a failed refresh")
	case enters && !t.fruitless:
		fail("2 direct needs a guarded refresh that gave no lane")
	case enters && (!s.enters || !after.declared):
		fail("2 direct is declared, and users move")
	case !enters && !d.direct() && x.policy.MayDirect && (at || again):
		fail("users go direct once VPN is exhausted and the guarded refresh has failed")
	case s.enters && !enters && !o.Astray:
		fail("2 nobody moves who is where they belong")
	}
	if isDirect(d.mode) && !isDirect(after.mode) && !s.leaves {
		fail("direct ends by moving users, never by the word alone")
	}
	x.judgeLeaving(n, d, t, s)
}

// failed says whether the refresh for exhaustion has just failed, and nothing passes.
func (x *explorer) failed(n node, d durable, s *step) bool {
	e := s.o.Ended
	return d.attempt == AttemptExhaustion && e != nil && !e.OK && !e.Busy && !e.Plain && s.o.Uplink && n.despair && s.o.Healthy == 0
}

// judgeLeaving asserts that users come back by all six criteria, and as soon as they hold.
func (x *explorer) judgeLeaving(n node, d durable, t truth, s *step) {
	o := s.o
	declared := t.exhausted || !t.said
	criteria := [...]struct {
		name  string
		holds bool
	}{
		{"criterion 1 to 3: access, refresh and a fresh pool", t.fresh || !declared},
		{"criterion 4: the fresh pool is placed", t.placed || !declared},
		{"criterion 5: the slots it fills pass strictly", o.Filled > 0 && o.Strict == o.Filled},
		{"criterion 6: users can return safely", o.Ready && o.Uplink},
	}
	byHand := d.hand == len(bothClasses)
	all := d.direct() && !byHand
	for _, c := range criteria {
		if s.leaves && !c.holds {
			x.fail(c.name, n, s)
		}
		all = all && c.holds
	}
	if s.leaves && byHand {
		x.fail("direct by hand is never left automatically", n, s)
	}
	if all && !s.leaves {
		x.fail("users come back once all criteria hold", n, s)
	}
}

// judgeAttempt asserts which attempt is begun: by the truth, there is always one answer.
func (x *explorer) judgeAttempt(n node, d durable, t truth, s *step) {
	fail := func(principle string) { x.fail(principle, n, s) }
	if s.kind != AttemptUnknown && (busy(s.o) || !s.o.Uplink) {
		fail("no two refreshes at once, and none without an uplink")
	}
	want := x.due(n, d, t, s)
	if s.kind == want {
		return
	}
	for _, kind := range []AttemptKind{want, s.kind} {
		switch kind {
		case AttemptUnknown:
		case AttemptEmergency:
			fail("as many replacements as the threshold give one emergency refresh in a cooldown")
		case AttemptExhaustion:
			fail("the cooldown is bypassed once, and by exhaustion only")
		case AttemptRetry:
			fail("degraded is retried after its pause, and when an operator asks")
		case AttemptRecovery:
			fail("3 recovery never stops because users are direct, and keeps its pause")
		}
	}
}

// due is the attempt that has to be begun.
func (x *explorer) due(n node, d durable, t truth, s *step) AttemptKind {
	o := s.o
	emergency := t.replaced >= testThreshold && !t.cooling
	direct := d.direct() || x.policy.MayDirect && x.failed(n, d, s)
	switch {
	case t.owed, busy(s.o), !o.Uplink, s.leaves:
		return AttemptUnknown
	case direct && o.Force:
		return AttemptRecovery
	case direct && t.exhausted && !t.fresh && !t.tried:
		return AttemptRecovery
	case direct:
		if emergency && !t.exhausted && d.direct() {
			return AttemptEmergency
		}
		return AttemptUnknown
	case spent(o) && (!t.bypassed || !t.cooling):
		return AttemptExhaustion
	case spent(o) && x.policy.MayDirect: // users go direct first
		return AttemptUnknown
	case o.Force && !spent(o):
		return AttemptRetry
	case x.degraded(d, t, s):
		if !t.tried {
			return AttemptRetry
		}
	case emergency && !spent(o):
		return AttemptEmergency
	}
	return AttemptUnknown
}

// degraded says whether the mode is degraded once what ended has been booked.
func (x *explorer) degraded(d durable, t truth, s *step) bool {
	switch {
	case s.o.Ended != nil && s.o.Ended.OK:
		return false
	case d.attempt != "" && !s.o.Attempting:
		return t.failed || d.mode == state.ModeDegraded
	}
	return d.mode == state.ModeDegraded
}

// judgeMode asserts that each mode lasts as long as what it is named for.
func (x *explorer) judgeMode(n node, d durable, t truth, s *step) {
	fail := func(principle string) { x.fail(principle, n, s) }
	o, after := s.o, x.disks[s.next]
	idle := !busy(s.o) && !t.owed && s.kind == AttemptUnknown
	entered := after.mode != d.mode
	switch after.mode {
	case state.ModeEmergencyRefresh:
		if entered && s.kind != AttemptEmergency && s.kind != AttemptExhaustion || idle && o.Uplink {
			fail("emergency_refresh lasts as long as its refresh")
		}
	case state.ModeExternalRecovery:
		ended := d.attempt != "" && after.attempt == "" && (o.Ended == nil || !o.Ended.OK)
		if entered && s.kind != AttemptRecovery || idle || ended {
			fail("recovery lasts as long as its attempt")
		}
	case state.ModeDegraded:
		if entered && !t.failed && (!spent(o) || x.policy.MayDirect) {
			fail("degraded needs a refresh that failed")
		}
	case state.ModeSlotRepair:
		if entered && o.Failing == "" && (d.mode != state.ModeEmergencyRefresh || o.AllUp) || idle && o.AllUp && o.Uplink && !o.Exhausted {
			fail("slot_repair lasts as long as a slot is not up")
		}
	case state.ModeNormal, state.ModeUnknown:
		if o.Failing != "" && !after.direct() {
			fail("a slot that fails is under repair")
		}
		if !s.leaves && entered && t.failed {
			fail("degraded lasts until a refresh succeeds")
		}
	case state.ModeDirect:
	}
	if (s.kind == AttemptEmergency || s.kind == AttemptExhaustion) && !d.direct() && after.mode != state.ModeEmergencyRefresh {
		fail("an emergency refresh is told as the mode")
	}
	if d.mode == state.ModeExternalRecovery && after.attempt == AttemptRecovery && after.mode != d.mode && !s.leaves {
		fail("recovery lasts as long as its attempt")
	}
	if s.kind == AttemptRecovery && after.mode != state.ModeExternalRecovery {
		fail("recovery is told as the mode")
	}
	if after.hand == len(bothClasses) && !isDirect(after.mode) {
		fail("direct by hand is the mode, too")
	}
	if d.mode == state.ModeDegraded && entered && !after.direct() && s.kind != AttemptExhaustion && (o.Ended == nil || !o.Ended.OK) {
		fail("degraded lasts until a refresh succeeds")
	}
	if !after.direct() && idle && o.Uplink && t.failed && !spent(o) && after.mode != state.ModeDegraded {
		fail("a refresh that failed is degraded mode, whatever was killed")
	}
	if e := o.Ended; e != nil && e.OK && !after.direct() && (after.mode == state.ModeDegraded || after.mode == state.ModeUnknown) {
		fail("a good refresh ends degraded mode")
	}
}
