package egress

import (
	"fmt"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// NextMode decides modes. It is pure: an action's result comes back in the next
// observation, and a run that was killed left either the state before or the one after.
// What it returns is to be written before the action is done, except for ActLeave: users
// are only undeclared once none of them is direct any more.
func NextMode(s ModeState, o ModeObservation, p ModePolicy, now time.Time) (ModeState, []Action) {
	m := machine{s: s.clone(), o: o, p: p, now: now}
	m.tidy()
	m.count()
	m.ended()
	m.placed()
	m.news()
	if m.direct() {
		m.inDirect()
	} else {
		m.inVPN()
	}
	m.astray()
	return m.s, m.acts
}

type machine struct {
	s    ModeState
	o    ModeObservation
	p    ModePolicy
	now  time.Time
	acts []Action
}

func (m *machine) byHand() bool { return m.s.ByHand(m.p.Classes) }

// direct says whether users are, or are about to be, direct.
func (m *machine) direct() bool {
	return isDirect(m.s.Mode) || m.byHand()
}

func (m *machine) to(mode state.Mode, format string, a ...any) {
	if m.s.Mode != mode {
		m.s.Mode, m.s.Reason = mode, fmt.Sprintf(format, a...)
	}
}

func (m *machine) act(kind ActionKind, format string, a ...any) {
	m.acts = append(m.acts, Action{Kind: kind, Reason: fmt.Sprintf(format, a...)})
}

// tidy brings stamps from the future back to now, so that no wait is ever longer than its
// setting, and forgets what is no longer true in this mode.
func (m *machine) tidy() {
	s := &m.s
	for _, t := range []*time.Time{&s.Emergency, &s.Tried} {
		if t.After(m.now.Add(futureSlack)) {
			*t = m.now
		}
	}
	kept := s.Replaced[:0]
	for _, t := range s.Replaced {
		if t.After(m.now.Add(futureSlack)) {
			t = m.now
		}
		if m.now.Sub(t) < m.p.Window {
			kept = append(kept, t)
		}
	}
	if s.Replaced = kept; len(kept) == 0 {
		s.Replaced = nil
	}
	if !m.direct() { // also after a kill between the two files
		s.forgetDirect()
	}
}

// count takes over what was added to the day's file: by repairs, or by hand. A day that
// is over is read to its end, so that midnight forgets nothing.
func (m *machine) count() {
	for _, c := range m.o.Counts {
		for range min(max(c.N-m.s.counted(c.Day), 0), 2*m.p.Threshold) { // more would change nothing
			m.s.Replaced = append(m.s.Replaced, m.now)
		}
		m.s.Replaced = m.s.Replaced[max(len(m.s.Replaced)-4*m.p.Threshold, 0):]
		m.s.count(c)
	}
}

// cooldown is what is left of the pause between emergency refreshes.
func (m *machine) cooldown() time.Duration {
	return max(m.p.Cooldown-max(m.now.Sub(m.s.Emergency), 0), 0)
}

// retryDue says whether the next retry's time has come.
func (m *machine) retryDue() bool {
	return m.now.Sub(m.s.Tried) >= m.s.pause(m.p)
}

// backOff doubles the pause before the next retry, counted from now.
func (m *machine) backOff() {
	m.s.RetryIn, m.s.Tried = min(max(2*m.s.RetryIn, m.p.RetryMin), m.p.RetryMax), m.now
}

// news lets the pauses begin anew: what an attempt failed for may be over when the uplink
// has returned, or when a lane passes again while users are direct. It is remembered, for
// the shortest pause may not be over yet.
func (m *machine) news() {
	passes := m.direct() && m.o.Healthy > 0
	if m.o.Returned || passes && !m.s.Lured {
		m.s.RetryIn = 0
	}
	if passes || m.o.Uplink { // without the uplink, or without a look at it, silent lanes show nothing
		m.s.Lured = passes
	}
}

// attempt begins a guarded refresh.
func (m *machine) attempt(kind AttemptKind, reason string) {
	a := &OpenAttempt{Kind: kind, Began: m.now, Prior: m.s.Emergency}
	if kind == AttemptEmergency || kind == AttemptExhaustion {
		m.s.Emergency = m.now
	}
	switch kind {
	case AttemptExhaustion:
		m.s.Guarded = true
	case AttemptEmergency: // the cooldown is this one's: exhaustion has its own refresh beside it
		m.s.Guarded = false
	case AttemptRetry, AttemptRecovery, AttemptUnknown:
	}
	m.s.Attempt, m.s.Tried = a, m.now
	m.acts = append(m.acts, Action{Kind: ActRefresh, For: kind, Reason: reason})
}

// ended books how an attempt ended: by itself, or by a kill.
func (m *machine) ended() {
	a, e := m.s.Attempt, m.o.Ended
	switch {
	case e != nil && e.OK:
		m.s.Attempt = nil
		m.fresh(*e)
		return
	case e != nil && e.Plain: // the pool of the last good refresh is still there
		e = nil
	}
	if a == nil || m.o.Attempting {
		return
	}
	m.s.Attempt = nil
	if e != nil && (e.Busy || !m.o.Uplink) { // an outage of the uplink does not count
		m.uncount(*a)
		m.rest("the attempt was not made: " + first(e.Reason, "the uplink is down"))
		return
	}
	reason := "the run that made it was killed"
	if e != nil {
		reason = e.Reason
	} else if a.Kind == AttemptExhaustion { // it showed nothing yet
		m.s.Guarded = false
	}
	m.s.Failed++
	m.backOff()
	if m.exhausted(a, e) {
		m.goDirect("VPN exhausted and no fresh pool: " + reason)
		return
	}
	m.rest("no fresh pool: " + reason)
}

// exhausted says whether an attempt's failure leaves users without a VPN: it was made
// because no slot passed and no candidate was left, and still no slot passes. The uplink is
// up, or the attempt would not count.
func (m *machine) exhausted(a *OpenAttempt, e *AttemptEnd) bool {
	return a.Kind == AttemptExhaustion && e != nil && m.o.Healthy == 0 && m.p.MayDirect && !m.direct()
}

// spent says whether VPN is exhausted now.
func (m *machine) spent() bool { return m.o.Exhausted && m.o.Uplink && m.o.Healthy == 0 }

func (m *machine) uncount(a OpenAttempt) {
	m.s.Emergency = a.Prior
	if a.Kind == AttemptExhaustion {
		m.s.Guarded = false
	}
	m.s.RetryIn = 0
}

// rest is the mode between attempts.
func (m *machine) rest(reason string) {
	switch {
	case m.direct():
		m.to(state.ModeDirect, "%s", reason)
	case m.s.Failed > 0:
		m.to(state.ModeDegraded, "%s", reason)
	case m.s.Mode == state.ModeEmergencyRefresh && m.o.AllUp:
		m.to(state.ModeNormal, "%s", reason)
	case m.s.Mode == state.ModeEmergencyRefresh:
		m.to(state.ModeSlotRepair, "%s", reason)
	}
}

// fresh books a good refresh: the count begins anew, and the pool waits to be placed.
func (m *machine) fresh(e AttemptEnd) {
	s := &m.s
	s.Replaced = slices.DeleteFunc(s.Replaced, func(t time.Time) bool { return !t.After(e.Began) })
	s.Failed = 0
	s.Guarded = s.Guarded && !e.Plain // one of the machine's own has to be placed first
	if m.direct() {
		s.Refreshed, s.Rebuilt, s.Rebuild = true, false, true
		return // the pauses go on: its endpoints may be of no use to lanes
	}
	s.RetryIn = 0
	s.Rebuild = s.Rebuild || !e.Plain
	switch s.Mode {
	case state.ModeDegraded, state.ModeEmergencyRefresh:
		s.Rebuild = true
		m.to(state.ModeNormal, "fresh pool")
	case state.ModeUnknown:
		m.to(state.ModeNormal, "first pool")
	case state.ModeNormal, state.ModeSlotRepair, state.ModeDirect, state.ModeExternalRecovery:
	}
}

// placed books the placing of a fresh pool.
func (m *machine) placed() {
	r := m.o.Placed
	if r == nil || !m.s.Rebuild || r.Busy {
		return
	}
	m.s.Rebuild = false
	switch {
	case r.OK: // the next exhaustion has a refresh of its own
		m.s.Guarded, m.s.Rebuilt = false, m.direct()
	case m.direct(): // nothing of the pool could be used: it takes another one
		m.s.Refreshed = false
		m.backOff()
		m.rest("the fresh pool could not be placed: " + r.Reason)
	}
}

// emergencyDue is asked where the uplink is up.
func (m *machine) emergencyDue() bool {
	return m.p.Threshold > 0 && len(m.s.Replaced) >= m.p.Threshold && m.cooldown() == 0
}

func (m *machine) tooMany() string {
	return fmt.Sprintf("%d replacements since the last good refresh", len(m.s.Replaced))
}

// inVPN is while users are on lanes.
func (m *machine) inVPN() {
	if m.o.Failing != "" && (m.s.Mode == state.ModeNormal || m.s.Mode == state.ModeUnknown) {
		m.to(state.ModeSlotRepair, "%s", m.o.Failing)
	}
	if m.o.Attempting || m.o.Refreshing { // an open attempt is one that is under way
		return
	}
	switch {
	case m.s.Rebuild:
		m.act(ActRebuild, "a fresh pool waits to be placed")
	case m.spent():
		m.exhaustion()
	case !m.o.Uplink:
	case m.o.Force:
		m.attempt(AttemptRetry, "an operator asked for it")
	case m.s.Mode == state.ModeDegraded && m.retryDue():
		m.attempt(AttemptRetry, fmt.Sprintf("no fresh pool yet; attempt %d", m.s.Failed+1))
	case m.s.Mode != state.ModeDegraded && m.emergencyDue():
		m.to(state.ModeEmergencyRefresh, "%s", m.tooMany())
		m.attempt(AttemptEmergency, m.tooMany())
	default:
		m.settle()
	}
}

// exhaustion is when no slot passes and nothing is left to try: one refresh beside the
// cooldown, and if that was made already, direct.
func (m *machine) exhaustion() {
	const why = "VPN exhausted: no slot passes and no candidate is left"
	switch {
	case !m.s.Guarded || m.cooldown() == 0:
		m.to(state.ModeEmergencyRefresh, why)
		m.attempt(AttemptExhaustion, why)
	case m.p.MayDirect:
		m.goDirect(why + ", also after a refresh")
	case m.s.Mode != state.ModeDegraded:
		m.to(state.ModeDegraded, "%s, and no class may go direct", why)
	case m.retryDue():
		m.attempt(AttemptRetry, why)
	}
}

// settle ends modes that only last as long as what they are named for, also where the run
// that was to write so was killed between the two files.
func (m *machine) settle() {
	switch {
	case m.s.Mode == state.ModeEmergencyRefresh || m.s.Failed > 0:
		m.rest("no attempt is under way")
	case m.s.Mode == state.ModeSlotRepair && m.o.AllUp:
		m.to(state.ModeNormal, "every lane passes")
	}
}

// astray brings classes to direct that belong there and are elsewhere: after a boot, or
// after a kill before they were moved. Whatever else moves users does so along with it.
func (m *machine) astray() {
	if m.o.Astray && !slices.ContainsFunc(m.acts, func(a Action) bool { return a.Kind == ActDirect || a.Kind == ActLeave }) {
		m.act(ActDirect, "a class that belongs on direct is elsewhere")
	}
}
