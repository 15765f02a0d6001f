package egress

import (
	"fmt"

	"github.com/shunt-net/shunt/internal/state"
)

func (m *machine) goDirect(reason string) {
	m.to(state.ModeDirect, "%s", reason)
	m.s.Declared = true
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
	if !isDirect(m.s.Mode) { // by hand
		m.to(state.ModeDirect, "%s", m.s.Manual[m.p.Classes[0]].text())
	}
	if m.spent() {
		m.s.Declared = true // also under an operator's word: recovery has to begin
		if !m.s.Rebuild {   // what was placed since then is dead too: it takes another pool
			m.s.Refreshed, m.s.Rebuilt = false, false
		}
	}
	if !m.byHand() && m.criteria() {
		m.leave()
		return
	}
	if m.o.Attempting || m.o.Refreshing {
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
	switch {
	case !m.o.Uplink:
	case m.o.Force:
		m.recover("an operator asked for it")
	case m.s.Declared && !m.s.Refreshed && m.retryDue():
		m.recover(fmt.Sprintf("users are direct; attempt %d", m.s.Failed+1))
	case !m.s.Declared && m.emergencyDue():
		m.attempt(AttemptEmergency, m.tooMany())
	}
}

func (m *machine) recover(reason string) {
	m.to(state.ModeExternalRecovery, "%s", reason)
	m.attempt(AttemptRecovery, reason)
}

// leave ends direct. Where no good refresh came after a failed attempt, as when direct was
// only by hand, users come back to degraded mode: its retries go on.
func (m *machine) leave() {
	mode := state.ModeNormal
	if m.s.Failed > 0 {
		mode = state.ModeDegraded
	}
	m.to(mode, "all criteria hold: %d of %d slots with fresh endpoints pass the strict check", m.o.Strict, m.o.Filled)
	m.s.forgetDirect()
	m.s.RetryIn = 0
	m.act(ActLeave, "%s", m.s.Reason)
}
