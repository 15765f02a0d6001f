package edge

import (
	"cmp"
	"fmt"
	"time"
)

// Probe results become verdicts here. Nothing else raises or clears a veto.

// defaults of what a configuration may leave out.
const (
	defaultVetoFor  = 30 * time.Second
	defaultDeadline = 2 * time.Second
)

func (c Config) vetoFor() time.Duration {
	if c.VetoFor <= 0 {
		return defaultVetoFor
	}
	return c.VetoFor
}

// deadline bounds one exchange with one replica.
func (c Config) deadline() time.Duration {
	if c.Deadline <= 0 {
		return defaultDeadline
	}
	return c.Deadline
}

// vetoLife is how long a veto holds without a fresh miss: at least two intervals, else a
// slow probe would let it lapse between two misses. Its end is kept in whole seconds.
func vetoLife(p Probe, vetoFor time.Duration) time.Duration {
	return max(vetoFor, 2*p.Interval+time.Second)
}

// freshFor is how long an answer is worth another probe.
func freshFor(p Probe) time.Duration { return max(3*p.Interval, 5*time.Second) }

// staleAfter is when earlier misses are no longer in a row with the next.
func staleAfter(p Probe, vetoFor time.Duration) time.Duration {
	return max(3*p.Interval, vetoLife(p, vetoFor))
}

// standing is what is known of one key: the fold of its answers.
type standing struct {
	health Health
	veto   *Veto
}

// judgment is how standings are made.
type judgment struct {
	now     int64 // unix milliseconds
	vetoFor time.Duration
	by      string
}

func (j judgment) live(v *Veto) bool { return v != nil && v.Until*1000 > j.now }

// fold takes one answer in. An unknown outcome, or one that is older than what is known,
// says nothing. With confirmed a single miss is enough.
func (j judgment) fold(s standing, p Probe, a Answer, confirmed bool) standing {
	at := a.At
	if at == 0 || at > j.now {
		at = j.now
	}
	h := s.health
	ahead := h.Asked > j.now // the clock was set back: nothing can be newer
	if a.Outcome == OutcomeUnknown || at < h.Asked && !ahead && !confirmed {
		return s
	}
	if stale := staleAfter(p, j.vetoFor).Milliseconds(); at-h.Asked > stale || ahead {
		h.Misses, h.Goods, h.Refusals, h.Logins = 0, 0, 0, 0
		if s.veto != nil && !j.live(s.veto) {
			s.veto = nil
		}
	}
	h.Asked = at
	switch a.Outcome {
	case Good:
		h.Misses, h.Reason, h.RTT = 0, "", a.RTT
		h.Goods = count(h.Goods)
		h = logins(h, p, a)
		if s.veto != nil && h.Goods >= p.Rise {
			s.veto = nil
		}
	case Miss:
		h.Goods, h.Logins, h.Reason = 0, 0, a.Reason
		h.Misses = count(h.Misses)
		counted := h
		if confirmed {
			h.Misses = max(h.Misses, p.Misses)
		}
		if s.veto != nil || h.Misses >= p.Misses {
			s.veto = j.renew(s.veto, counted, p, confirmed)
		}
	case OutcomeUnknown:
	}
	s.health = h
	return s
}

// count stops where no threshold can be.
func count(n int) int { return min(max(n, 0)+1, 1000) }

// logins keeps whether it takes logins apart from whether it lives.
func logins(h Health, p Probe, a Answer) Health {
	if a.Accepts || !p.Login {
		h.Refusals = 0
		if h.Logins = count(h.Logins); h.Logins >= p.Rise {
			h.Refusing = false
		}
		return h
	}
	h.Logins, h.Reason = 0, a.Reason
	if h.Refusals = count(h.Refusals); h.Refusals >= p.Misses {
		h.Refusing = true
	}
	return h
}

func (j judgment) renew(v *Veto, h Health, p Probe, confirmed bool) *Veto {
	n := Veto{Since: j.now / 1000, By: j.by, Reason: missReason(h)}
	if confirmed && h.Misses < p.Misses { // that is no row of misses
		n.Reason = cmp.Or(h.Reason, "no answer")
	}
	if v != nil {
		n.Key, n.Since = v.Key, v.Since
	}
	n.Until = (j.now + vetoLife(p, j.vetoFor).Milliseconds()) / 1000
	return &n
}

func missReason(h Health) string {
	what := h.Reason
	if what == "" {
		what = "no answer"
	}
	if h.Misses == 1 {
		return "1 miss: " + what
	}
	return fmt.Sprintf("%d misses in a row: %s", h.Misses, what)
}

// bounded cuts what a clock that was set back would make last: no veto outlives its life.
func (j judgment) bounded(v Veto, p Probe) *Veto {
	v.Until = min(v.Until, (j.now+vetoLife(p, j.vetoFor).Milliseconds())/1000)
	return &v
}
