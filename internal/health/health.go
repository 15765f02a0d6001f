// Package health turns samples of a lane into a verdict. It is pure: no I/O, no clock.
package health

import "time"

// Verdict is what is known of a lane after a round.
type Verdict string

// The verdicts. The zero value is unknown.
const (
	Unknown Verdict = ""
	Up      Verdict = "up"      // the round passed
	Loaded  Verdict = "loaded"  // pings were lost, but bytes arrived meanwhile: busy, not dead
	Suspect Verdict = "suspect" // failed, but not often enough in a row
	Down    Verdict = "down"    // failed `threshold` times in a row
	Rising  Verdict = "rising"  // was down and passes again, not yet often enough in a row
	Frozen  Verdict = "frozen"  // failed while the uplink itself was down: it says nothing of the lane
)

// Reason is the code of the rung that failed.
type Reason string

// The reasons, from the lowest rung to the highest.
const (
	ReasonNone     Reason = ""
	ReasonNoDevice Reason = "no_device" // the interface is gone, down or unreadable
	ReasonNoPeer   Reason = "no_peer"   // no peer carries traffic
	ReasonSilent   Reason = "silent"    // bound pings were not answered
	ReasonNoData   Reason = "no_data"   // pings pass, TLS to no target completes
	ReasonMTU      Reason = "mtu"       // smaller packets pass, a full-size one does not
	ReasonChoked   Reason = "choked"    // small packets pass, neither TLS nor a packet of half the size does
)

// VetoBytes is how much must arrive during a failed ping round for it not to count:
// more than a handshake response and a keepalive (92 + 32 bytes), less than a full packet.
const VetoBytes = 256

// Sample is one look at a lane.
type Sample struct {
	Device    bool  // interface present and up
	Peer      bool  // a peer carries traffic
	Pings     bool  // the ping round passed
	RxGrew    int64 // bytes received during the round
	Deep      bool  // the deeper rungs were tried
	TLS       bool  // at least one TLS target completed, or none is configured
	FullSize  bool  // a full-size packet came back, or is not asked for
	HalfSize  bool  // one of half the size did; looked at where the full-size one did not
	Handshake time.Duration
}

// Memory is what a verdict needs of earlier rounds.
type Memory struct {
	Misses     int    `json:"misses,omitempty"`      // failed rounds in a row
	Goods      int    `json:"goods,omitempty"`       // good rounds in a row
	DeepMisses int    `json:"deep_misses,omitempty"` // failed deep rungs in a row
	Reason     Reason `json:"reason,omitempty"`      // of the last failure
	Down       bool   `json:"down,omitempty"`
}

// Policy says how often is enough.
type Policy struct {
	Threshold int // failed rounds in a row
	Rise      int // good rounds in a row until a lane that was down counts as up
}

// Judge takes one sample and yields the verdict, and what to remember. Received bytes
// veto a failed ping round, never a failed TLS or full-size rung.
func Judge(m Memory, s Sample, p Policy) (Verdict, Memory) {
	if r := rung(s); r != ReasonNone {
		if r == ReasonSilent && s.RxGrew >= VetoBytes {
			m.Misses = 0
			if s.Deep && !s.TLS { // pings of every size may be lost under load
				return m.failDeep(deepRung(s), p)
			}
			if s.Deep {
				m.DeepMisses = 0
			}
			return rise(m, p, Loaded)
		}
		m.Goods = 0
		m.Reason = r
		m.Misses++
		if m.Misses >= p.Threshold || m.Down {
			m.Down = true
			return Down, m
		}
		return Suspect, m
	}
	m.Misses = 0
	if s.Deep {
		if r := deepRung(s); r != ReasonNone {
			return m.failDeep(r, p)
		}
		m.DeepMisses = 0
	}
	return rise(m, p, Up)
}

// failDeep counts a failed deeper rung.
func (m Memory) failDeep(r Reason, p Policy) (Verdict, Memory) {
	m.Goods = 0
	m.Reason = r
	m.DeepMisses++
	if m.DeepMisses >= p.Threshold || m.Down {
		m.Down = true
		return Down, m
	}
	return Suspect, m
}

// rise counts a good round; a lane that was down, or whose deeper rung failed and was not
// tried again, is not up yet.
func rise(m Memory, p Policy, v Verdict) (Verdict, Memory) {
	if m.DeepMisses > 0 {
		if m.Down {
			return Rising, m
		}
		return Suspect, m
	}
	m.Goods++
	if m.Down {
		if m.Goods < p.Rise {
			return Rising, m
		}
		m.Down = false
	}
	m.Reason = ReasonNone
	return v, m
}

func rung(s Sample) Reason {
	switch {
	case !s.Device:
		return ReasonNoDevice
	case !s.Peer:
		return ReasonNoPeer
	case !s.Pings:
		return ReasonSilent
	}
	return ReasonNone
}

func deepRung(s Sample) Reason {
	switch {
	case !s.TLS && !s.FullSize && !s.HalfSize: // a small path stops TLS as well: its packets are large
		return ReasonChoked
	case !s.FullSize:
		return ReasonMTU
	case !s.TLS:
		return ReasonNoData
	}
	return ReasonNone
}

// DeepDue says whether the deeper rungs are to be tried now: while they fail, each round.
func DeepDue(m Memory, last, now time.Time, every time.Duration) bool {
	since := now.Sub(last)
	// A timer comes a hair early now and then, and the next round would be late.
	return m.DeepMisses > 0 || m.Down || last.IsZero() || since >= every-every/10 || since < 0
}
