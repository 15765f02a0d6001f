package egress

import (
	"fmt"
	"io"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// ManualStatus is a class that an operator sent direct.
type ManualStatus struct {
	Class  string    `json:"class"` // home lane
	Since  time.Time `json:"since"`
	By     string    `json:"by,omitempty"` // "" = not known
	Reason string    `json:"reason"`
}

// AttemptStatus is what is tried to get a fresh pool, and what asks for it.
type AttemptStatus struct {
	Since        time.Time   `json:"since,omitzero"`     // the last good refresh: the figures below are counted from it
	Failed       int         `json:"failed"`             // attempts without a fresh pool
	Last         time.Time   `json:"last,omitzero"`      // the last attempt
	Open         AttemptKind `json:"open,omitempty"`     // what an attempt that was begun and has not ended is for
	Killed       bool        `json:"killed,omitempty"`   // nobody makes the open one any more: the next run books it
	NextDue      time.Time   `json:"next_due,omitzero"`  // zero = nothing asks for one
	NextFor      string      `json:"next_for,omitempty"` // retry, recovery, emergency or placing
	Replacements int         `json:"replacements"`       // since then, within modes.window
	Threshold    int         `json:"threshold"`          // of them, for an emergency refresh
}

func (p *pass) manualStatus() []ManualStatus {
	var out []ManualStatus
	for _, l := range p.Config.Lanes {
		if m, ok := p.in.Memory.Modes.Manual[l.Name]; ok {
			out = append(out, ManualStatus{Class: l.Name, Since: m.Since, By: m.By, Reason: m.Reason})
		}
	}
	return out
}

// attemptStatus takes stamps of a wrong clock as a run would.
func (p *pass) attemptStatus() AttemptStatus {
	m := machine{s: p.in.modeState().clone(), p: p.Config.modePolicy(), now: p.in.Now}
	day := Day(p.in.Now)
	m.o.Counts = []DayCount{{day, max(p.in.Count, m.s.counted(day))}}
	m.tidy()
	m.count()
	s := AttemptStatus{
		Since: epoch(p.in.KV[state.KeyLastPoolMtime]), Failed: m.s.Failed, Last: m.s.Tried,
		Replacements: len(m.s.Replaced), Threshold: m.p.Threshold,
	}
	if m.s.Attempt != nil {
		s.Open, s.Killed = m.s.Attempt.Kind, p.State.Holder(attemptLock) == ""
		return s
	}
	retry := m.s.Tried.Add(m.s.pause(m.p))
	if m.s.Tried.IsZero() {
		retry = p.in.Now
	}
	switch {
	case m.s.Rebuild:
		s.NextDue, s.NextFor = p.in.Now, "placing"
	case m.s.Mode == state.ModeDegraded:
		s.NextDue, s.NextFor = retry, string(AttemptRetry)
	case isDirect(m.s.Mode) && m.s.Declared && !m.s.Refreshed:
		s.NextDue, s.NextFor = retry, string(AttemptRecovery)
	case len(m.s.Replaced) >= m.p.Threshold:
		s.NextDue, s.NextFor = p.in.Now.Add(m.cooldown()), string(AttemptEmergency)
	}
	return s
}

// modesText is one line for each class and one for attempts; nothing where there is nothing to say.
func (s Status) modesText(w io.Writer) {
	for _, m := range s.Manual {
		by := ""
		if m.By != "" {
			by = ", by " + m.By
		}
		fmt.Fprintf(w, "direct by hand: class %s since %s%s: %s\n", m.Class, stamp(m.Since), by, m.Reason)
	}
	a := s.Attempts
	if a.Failed > 0 || a.Open != "" || !a.NextDue.IsZero() {
		fmt.Fprintf(w, "attempts: %d without a fresh pool since the last good refresh (%s), the last one at %s; %s\n", a.Failed, stamp(a.Since), stamp(a.Last), a.next(s.Time))
	}
	if a.Replacements > 0 {
		fmt.Fprintf(w, "replacements since then: %d, and %d ask for an emergency refresh\n", a.Replacements, a.Threshold)
	}
}

func (a AttemptStatus) next(now time.Time) string {
	switch {
	case a.Killed:
		return "the run that made one (" + string(a.Open) + ") was killed, and the next one goes on"
	case a.Open != "":
		return "one is under way (" + string(a.Open) + ")"
	case a.NextDue.IsZero():
		return "none is due"
	case !a.NextDue.After(now):
		return "the next one (" + a.NextFor + ") is due now"
	}
	return fmt.Sprintf("the next one (%s) is due at %s", a.NextFor, stamp(a.NextDue))
}
