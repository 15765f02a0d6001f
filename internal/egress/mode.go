package egress

import (
	"fmt"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// ModeState is where the machine of modes is: the word in state.kv, and what that file
// has no key for.
type ModeState struct {
	Mode   state.Mode `json:"mode"`
	Reason string     `json:"reason,omitempty"` // of the last change
	ModeMemory
}

// ModeMemory is the part of egress.json that the machine owns. A zero value is that of a
// machine on which nothing has gone wrong yet.
type ModeMemory struct {
	Manual    map[string]Manual `json:"manual,omitempty"`    // class -> by whom it is direct by hand; never left automatically
	Replaced  []time.Time       `json:"replaced,omitempty"`  // replacements since the last good refresh, oldest first
	Counted   DayCount          `json:"counted,omitzero"`    // as much of the day's file is in Replaced already
	Attempt   *OpenAttempt      `json:"attempt,omitempty"`   // guarded refresh that was begun and not ended
	Emergency time.Time         `json:"emergency,omitzero"`  // the last emergency refresh began: its cooldown
	Tried     time.Time         `json:"tried,omitzero"`      // the last attempt of any kind
	Failed    int               `json:"failed,omitempty"`    // attempts without a fresh pool since the last good refresh
	RetryIn   time.Duration     `json:"retry_in,omitempty"`  // after Tried
	Guarded   bool              `json:"guarded,omitempty"`   // exhaustion has had its one refresh beside the cooldown
	Declared  bool              `json:"declared,omitempty"`  // direct is because of exhaustion, not only by hand
	Refreshed bool              `json:"refreshed,omitempty"` // criteria 1 to 3: access, refresh and fresh pool since direct was declared
	Rebuilt   bool              `json:"rebuilt,omitempty"`   // criterion 4
	Rebuild   bool              `json:"rebuild,omitempty"`   // a fresh pool waits to be placed
	Lured     bool              `json:"lured,omitempty"`     // a lane that passes while users are direct has led to an attempt already
}

// Manual is why a class is direct by hand.
type Manual struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// DayCount is the content of one day's counter file.
type DayCount struct {
	Day string `json:"day"`
	N   int    `json:"n"`
}

// AttemptKind is what a guarded refresh is made for.
type AttemptKind string

// The kinds of attempts.
const (
	AttemptUnknown    AttemptKind = ""
	AttemptEmergency  AttemptKind = "emergency"  // too many replacements
	AttemptRetry      AttemptKind = "retry"      // of degraded mode, or an operator asked
	AttemptExhaustion AttemptKind = "exhaustion" // before users go direct
	AttemptRecovery   AttemptKind = "recovery"   // while users are direct
)

// OpenAttempt is a guarded refresh that is under way.
type OpenAttempt struct {
	Kind  AttemptKind `json:"kind"`
	Began time.Time   `json:"began"`
	Prior time.Time   `json:"prior,omitzero"` // Emergency before it: given back when the attempt does not count
}

// AttemptEnd is how a refresh ended.
type AttemptEnd struct {
	OK       bool      `json:"ok"`
	Busy     bool      `json:"busy,omitempty"` // another refresh was at it: this one was not made
	Began    time.Time `json:"began,omitzero"` // of its tests
	Strategy string    `json:"strategy,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Plain    bool      `json:"plain,omitempty"` // not asked for by the machine
}

// RebuildEnd is how the placing of a fresh pool ended.
type RebuildEnd struct {
	OK     bool   `json:"ok"` // applied, or confirmed that nothing is to be done, and a slot carries an endpoint of it
	Busy   bool   `json:"busy,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// ModeObservation is what a run saw that modes depend on.
type ModeObservation struct {
	Uplink     bool        // certainly up
	Returned   bool        // it was down in the last run
	Healthy    int         // slots that pass
	AllUp      bool        // every slot passes
	Exhausted  bool        // no slot passes, and every eligible candidate failed in this run or none is left
	Failing    string      // the slot that is being repaired, and why
	Counts     []DayCount  // the day's counter file, and that of ModeMemory.Counted where it is another day's
	Refreshing bool        // another run's refresh holds the lock
	Attempting bool        // an attempt is alive
	Ended      *AttemptEnd // an attempt of this run, or a refresh, has just ended
	Placed     *RebuildEnd
	Filled     int  // slots that carry an endpoint of the fresh pool
	Strict     int  // of those, slots that pass the strict check now
	Ready      bool // rules and routes are as they should be
	Astray     bool // a class that belongs on direct is elsewhere
	Force      bool // an operator asks for an attempt now
}

// ModePolicy is what modes are set to.
type ModePolicy struct {
	Threshold int           // replacements that ask for an emergency refresh
	Window    time.Duration // in which they count
	Cooldown  time.Duration // between emergency refreshes
	RetryMin  time.Duration // after the first failed attempt
	RetryMax  time.Duration // doubling up to it
	Classes   []string      // home lanes with users
	MayDirect bool          // the fail mode of some class is direct
}

// ActionKind is what a change of modes asks for.
type ActionKind string

// The kinds of actions.
const (
	ActUnknown ActionKind = ""
	ActRefresh ActionKind = "refresh" // a guarded refresh, by a recovery strategy where need be
	ActRebuild ActionKind = "rebuild" // place the fresh pool
	ActDirect  ActionKind = "direct"  // users go direct: state first, then one transaction
	ActLeave   ActionKind = "leave"   // users come back: one transaction first, then state
)

// Action is one thing to be done.
type Action struct {
	Kind   ActionKind  `json:"kind"`
	For    AttemptKind `json:"for,omitempty"`
	Reason string      `json:"reason"`
}

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
	if m.direct() {
		m.inDirect()
	} else {
		m.inVPN()
	}
	return m.s, m.acts
}

type machine struct {
	s    ModeState
	o    ModeObservation
	p    ModePolicy
	now  time.Time
	acts []Action
}

func (s ModeState) clone() ModeState {
	s.ModeMemory = s.ModeMemory.clone()
	return s
}

func (m ModeMemory) clone() ModeMemory {
	m.Replaced = slices.Clone(m.Replaced)
	if m.Manual != nil {
		m.Manual = cloneMap(m.Manual)
	}
	if m.Attempt != nil {
		a := *m.Attempt
		m.Attempt = &a
	}
	return m
}

// ByHand says whether every class is direct by an operator's word.
func (m ModeMemory) ByHand(classes []string) bool {
	for _, c := range classes {
		if _, ok := m.Manual[c]; !ok {
			return false
		}
	}
	return len(classes) > 0
}

func (m *machine) byHand() bool { return m.s.ByHand(m.p.Classes) }

// direct says whether users are, or are about to be, direct.
func (m *machine) direct() bool {
	return isDirect(m.s.Mode) || m.byHand()
}

func isDirect(mode state.Mode) bool {
	return mode == state.ModeDirect || mode == state.ModeExternalRecovery
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
		s.Declared, s.Refreshed, s.Rebuilt, s.Lured = false, false, false, false
	}
}

// count takes over what was added to the day's file: by repairs, or by hand. A day that
// is over is read to its end, so that midnight forgets nothing.
func (m *machine) count() {
	for _, c := range m.o.Counts {
		from := 0
		if c.Day == m.s.Counted.Day {
			from = m.s.Counted.N
		}
		for range min(max(c.N-from, 0), 2*m.p.Threshold) { // more would change nothing
			m.s.Replaced = append(m.s.Replaced, m.now)
		}
		if n := len(m.s.Replaced) - 4*m.p.Threshold; n > 0 {
			m.s.Replaced = m.s.Replaced[n:]
		}
		m.s.Counted = c
	}
}

// cooldown is what is left of the pause between emergency refreshes.
func (m *machine) cooldown() time.Duration {
	if m.s.Emergency.IsZero() {
		return 0
	}
	return max(m.p.Cooldown-max(m.now.Sub(m.s.Emergency), 0), 0)
}

// retryDue says whether the next retry's time has come. What ends an outage asks at once,
// but never sooner after an attempt than the shortest pause.
func (m *machine) retryDue(atOnce bool) bool {
	if m.s.Tried.IsZero() {
		return true
	}
	wait := m.s.RetryIn
	if atOnce {
		wait = min(wait, m.p.RetryMin)
	}
	return m.now.Sub(m.s.Tried) >= min(wait, m.p.RetryMax)
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
	if a == nil || e == nil && m.o.Attempting {
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
	m.s.RetryIn = m.p.RetryMin
	for i := 1; i < min(m.s.Failed, 64) && m.s.RetryIn < m.p.RetryMax; i++ {
		m.s.RetryIn *= 2
	}
	m.s.RetryIn, m.s.Tried = min(m.s.RetryIn, m.p.RetryMax), m.now
	if m.exhausted(a, e) {
		m.goDirect("VPN exhausted and no fresh pool: " + reason)
		return
	}
	m.rest("no fresh pool: " + reason)
}

// exhausted says whether an attempt's failure leaves users without a VPN: it was made
// because no slot passed and no candidate was left, and still no slot passes.
func (m *machine) exhausted(a *OpenAttempt, e *AttemptEnd) bool {
	return a.Kind == AttemptExhaustion && e != nil && m.o.Uplink && m.o.Healthy == 0 && m.p.MayDirect && !m.direct()
}

func (m *machine) uncount(a OpenAttempt) {
	if a.Kind == AttemptEmergency || a.Kind == AttemptExhaustion {
		m.s.Emergency = a.Prior
	}
	if a.Kind == AttemptExhaustion {
		m.s.Guarded = false
	}
	m.s.RetryIn = m.p.RetryMin
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
	s.Failed, s.RetryIn = 0, 0
	s.Guarded = s.Guarded && !e.Plain // the next exhaustion has a refresh of its own
	if m.direct() {
		s.Refreshed, s.Rebuilt, s.Rebuild = true, false, true
		return
	}
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
	case r.OK && m.direct():
		m.s.Rebuilt = true
	case r.OK:
		m.s.Guarded = false
	case m.direct(): // nothing of the pool could be used: it takes another one
		m.s.Refreshed = false
		m.rest("the fresh pool could not be placed: " + r.Reason)
	}
}

func (m *machine) goDirect(reason string) {
	m.to(state.ModeDirect, "%s", reason)
	m.s.Declared, m.s.Refreshed, m.s.Rebuilt, m.s.Rebuild = true, false, false, false
	m.act(ActDirect, "%s", reason)
}

// criteria are the six of leaving direct. Where direct was never because of exhaustion,
// the operator's word ends it, and only the last two are left to be true.
func (m *machine) criteria() bool {
	four := m.s.Refreshed && m.s.Rebuilt || !m.s.Declared
	return four && m.o.Filled > 0 && m.o.Strict == m.o.Filled && m.o.Ready && m.o.Uplink
}

// inDirect is while users are direct: recovery goes on, users stay.
func (m *machine) inDirect() {
	if m.byHand() && !isDirect(m.s.Mode) {
		m.to(state.ModeDirect, "by hand: %s", m.s.Manual[m.p.Classes[0]].Reason)
	}
	if m.o.Exhausted && m.o.Uplink {
		m.s.Declared = true // also under an operator's word: recovery has to begin
	}
	if !m.byHand() && m.criteria() {
		m.leave()
		return
	}
	if m.o.Astray && len(m.acts) == 0 {
		m.act(ActDirect, "direct is declared and a class is elsewhere")
	}
	if m.s.Attempt != nil || m.o.Attempting || m.o.Refreshing {
		return
	}
	if m.s.Rebuild {
		m.act(ActRebuild, "a fresh pool waits to be placed")
		return
	}
	m.retryInDirect()
	if m.s.Attempt == nil {
		m.to(state.ModeDirect, "no attempt is under way")
	}
}

func (m *machine) retryInDirect() {
	lured := m.o.Healthy > 0 && !m.s.Lured
	if m.o.Healthy == 0 {
		m.s.Lured = false
	}
	switch {
	case !m.o.Uplink:
	case m.o.Force:
		m.recover("an operator asked for it")
	case m.s.Declared && !m.s.Refreshed && m.retryDue(m.o.Returned || lured):
		m.s.Lured = m.o.Healthy > 0
		m.recover(fmt.Sprintf("users are direct; attempt %d", m.s.Failed+1))
	case !m.s.Declared && m.emergencyDue():
		m.attempt(AttemptEmergency, m.tooMany())
	}
}

func (m *machine) recover(reason string) {
	m.to(state.ModeExternalRecovery, "%s", reason)
	m.attempt(AttemptRecovery, reason)
}

func (m *machine) leave() {
	m.to(state.ModeNormal, "all criteria hold: %d of %d slots with fresh endpoints pass the strict check", m.o.Strict, m.o.Filled)
	m.s.Declared, m.s.Refreshed, m.s.Rebuilt, m.s.Guarded, m.s.Lured = false, false, false, false, false
	m.act(ActLeave, "%s", m.s.Reason)
}

func (m *machine) emergencyDue() bool {
	return m.p.Threshold > 0 && len(m.s.Replaced) >= m.p.Threshold && m.cooldown() == 0 && m.o.Uplink
}

func (m *machine) tooMany() string {
	return fmt.Sprintf("%d replacements since the last good refresh", len(m.s.Replaced))
}

// inVPN is while users are on lanes.
func (m *machine) inVPN() {
	if m.o.Astray {
		m.act(ActDirect, "a class that is direct by hand is elsewhere")
	}
	if m.o.Failing != "" && (m.s.Mode == state.ModeNormal || m.s.Mode == state.ModeUnknown) {
		m.to(state.ModeSlotRepair, "%s", m.o.Failing)
	}
	if m.s.Attempt != nil || m.o.Attempting || m.o.Refreshing {
		return
	}
	switch {
	case m.s.Rebuild:
		m.act(ActRebuild, "a fresh pool waits to be placed")
	case m.o.Exhausted && m.o.Uplink && m.o.Healthy == 0:
		m.exhaustion()
	case !m.o.Uplink:
	case m.o.Force:
		m.attempt(AttemptRetry, "an operator asked for it")
	case m.s.Mode == state.ModeDegraded && m.retryDue(m.o.Returned):
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
	case m.retryDue(m.o.Returned):
		m.attempt(AttemptRetry, why)
	}
}

// settle ends modes that only last as long as what they are named for.
func (m *machine) settle() {
	switch {
	case m.s.Mode == state.ModeEmergencyRefresh:
		m.rest("the emergency refresh is over")
	case m.s.Mode == state.ModeSlotRepair && m.o.AllUp:
		m.to(state.ModeNormal, "every lane passes")
	}
}
