package egress

import (
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
	Earlier   []DayCount        `json:"earlier,omitempty"`   // the same of days before it, latest first: a clock may go back to one
	Attempt   *OpenAttempt      `json:"attempt,omitempty"`   // guarded refresh that was begun and not ended
	Emergency time.Time         `json:"emergency,omitzero"`  // the last emergency refresh began: its cooldown
	Tried     time.Time         `json:"tried,omitzero"`      // the last attempt of any kind
	Failed    int               `json:"failed,omitempty"`    // attempts without a fresh pool since the last good refresh
	RetryIn   time.Duration     `json:"retry_in,omitempty"`  // after Tried; see pause
	Guarded   bool              `json:"guarded,omitempty"`   // exhaustion has had its one refresh beside the cooldown
	Declared  bool              `json:"declared,omitempty"`  // direct is because of exhaustion, not only by hand
	Refreshed bool              `json:"refreshed,omitempty"` // criteria 1 to 3: access, refresh and fresh pool since direct was declared
	Rebuilt   bool              `json:"rebuilt,omitempty"`   // criterion 4
	Rebuild   bool              `json:"rebuild,omitempty"`   // a fresh pool waits to be placed
	Moving    bool              `json:"moving,omitempty"`    // users were being moved to direct or back: flows of theirs may be left where they were
	Lured     bool              `json:"lured,omitempty"`     // a lane passes while users are direct: no news any more
}

// Manual is why a class is direct by hand.
type Manual struct {
	Since  time.Time `json:"since"`
	By     string    `json:"by,omitempty"` // who said so; "" = not known
	Reason string    `json:"reason"`
}

func (m Manual) text() string {
	if m.By == "" {
		return "by hand: " + m.Reason
	}
	return "by hand, by " + m.By + ": " + m.Reason
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

func (s ModeState) clone() ModeState {
	s.ModeMemory = s.ModeMemory.clone()
	return s
}

func (m ModeMemory) clone() ModeMemory {
	m.Replaced = slices.Clone(m.Replaced)
	m.Earlier = slices.Clone(m.Earlier)
	if m.Manual != nil {
		m.Manual = cloneMap(m.Manual)
	}
	if m.Attempt != nil {
		a := *m.Attempt
		m.Attempt = &a
	}
	return m
}

// counted is how much of a day's file is in Replaced already.
func (m ModeMemory) counted(day string) int {
	for _, c := range append([]DayCount{m.Counted}, m.Earlier...) {
		if c.Day == day {
			return c.N
		}
	}
	return 0
}

// count notes that so much of a day's file is in Replaced. The days that a clock which is set
// or a zone that is changed may go back to are kept beside it.
func (m *ModeMemory) count(c DayCount) {
	const most = 3
	earlier := slices.DeleteFunc(append([]DayCount{m.Counted}, m.Earlier...), func(e DayCount) bool { return e.Day == c.Day || e.Day == "" })
	if m.Counted, m.Earlier = c, earlier[:min(len(earlier), most)]; len(m.Earlier) == 0 {
		m.Earlier = nil
	}
}

// pause is how long after Tried the next retry follows: never sooner than the shortest
// pause, never later than the longest, whatever was written.
func (m ModeMemory) pause(p ModePolicy) time.Duration {
	return min(max(m.RetryIn, p.RetryMin), p.RetryMax)
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

// forgetDirect forgets what is only true while users are direct.
func (m *ModeMemory) forgetDirect() {
	m.Declared, m.Refreshed, m.Rebuilt, m.Lured = false, false, false, false
}

func isDirect(mode state.Mode) bool {
	return mode == state.ModeDirect || mode == state.ModeExternalRecovery
}
