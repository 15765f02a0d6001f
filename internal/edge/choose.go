package edge

import (
	"fmt"
	"math"
	"net/netip"
)

// seen is what the tables that could be reached, or the memory, say of one service and family.
type seen struct {
	to       netip.AddrPort // invalid = nothing
	epoch    uint64         // highest
	by       string
	where    string // replica; "" = remembered
	conflict bool   // one epoch, two targets
}

// better orders what is seen so that every machine finds the same one: the highest epoch,
// then names.
func (s seen) better(o seen) bool {
	if s.epoch != o.epoch || !o.to.IsValid() {
		return !o.to.IsValid() || s.epoch > o.epoch
	}
	if s.by != o.by {
		return s.by < o.by
	}
	return s.to.Compare(o.to) < 0
}

// newest is the element of the highest epoch.
func (p *planner) newest(f *family, mem *Target) seen {
	var best seen
	for vi := range p.in.Views {
		if p.in.Views[vi].Error != "" {
			continue
		}
		for _, from := range f.from {
			e, ok := p.index[vi].targets[from]
			if !ok {
				continue
			}
			s := seen{to: e.To, epoch: e.Claim.Epoch, by: e.Claim.By, where: p.in.Views[vi].Replica}
			conflict := best.to.IsValid() && best.epoch == s.epoch && best.to != s.to
			if s.better(best) {
				conflict = conflict || best.conflict && best.epoch == s.epoch
				best = s
				best.conflict = conflict
			} else if conflict {
				best.conflict = true
			}
		}
	}
	if mem != nil && (!best.to.IsValid() || mem.Epoch > best.epoch) {
		best = seen{to: mem.To, epoch: mem.Epoch}
	}
	return best
}

func raised(e uint64) uint64 {
	if e == math.MaxUint64 { // nobody moves so often: it was written by hand
		return e
	}
	return e + 1
}

// view of one candidate in one family, for choosing.
type view struct {
	state    State
	eligible bool // neither vetoed nor held
	held     bool
	vetoed   bool
	diverted bool
	rank     int  // 0 well or not known, 1 suspect, 2 takes no logins
	good     bool // known to be well by an answer of its own
	why      string
}

// The ranks of eligible candidates.
const (
	rankWell    = 0
	rankSuspect = 1
	rankRefuses = 2
)

func (p *planner) look(s *service, c *candidate) view {
	st := p.standings[c.key]
	v := view{state: StateUnknown, held: p.holdOf(s.Name, c.name) != nil}
	h := st.health
	v.vetoed = p.judge.live(st.veto)
	v.diverted = p.diverted[c.key]
	fresh := p.in.Now-h.Asked <= max(freshFor(s.Probe), p.judge.vetoFor).Milliseconds()
	switch {
	case s.Probe.Type == ProbeNone:
		v.state, v.good = StateUp, true
	case v.vetoed && h.Goods > 0:
		v.state = StateRising
	case v.vetoed:
		v.state = StateVetoed
	case h.Misses > 0:
		v.state, v.rank = StateSuspect, rankSuspect
	case h.Goods > 0 && fresh:
		v.state = StateUp
		v.good = true
	}
	if h.Refusing && !v.vetoed {
		v.rank, v.good = rankRefuses, false
	}
	if v.held {
		v.state = StateHeld
		if h := p.holdOf(s.Name, c.name); h != nil {
			v.why = " by " + h.Owner + inBrackets(h.Reason)
		}
	} else if v.vetoed {
		v.why = inBrackets(st.veto.Reason)
	}
	v.eligible = !v.vetoed && !v.held
	return v
}

// choice is what one service and family shall lead to.
type choice struct {
	at         int // index of the candidate; -1 = none
	reason     string
	lastResort bool
	drained    bool // a held one serves
}

// choose applies the rules. was is the incumbent's index, or -1.
func choose(s *service, f *family, views []view, was int, back map[Key]bool) choice {
	if len(f.candidates) == 0 {
		return choice{at: -1, reason: fmt.Sprintf("no candidate has an IPv%d address", f.n)}
	}
	for i, c := range f.candidates {
		if back[c.key] && views[i].eligible && i != was {
			return choice{at: i, reason: c.name + " is alive: the hint was wrong"}
		}
	}
	best := first(views, was)
	if best < 0 {
		return resort(f, views, was)
	}
	if was < 0 && !views[best].good {
		return choice{at: best, reason: "first that may be healthy: none has answered yet"}
	}
	if was < 0 {
		return choice{at: best, reason: "first that is healthy"}
	}
	w := views[was]
	switch {
	case was == best && !w.good:
		return choice{at: was, reason: "keeps it: nothing better is known"}
	case was == best:
		return choice{at: was, reason: "keeps it: it is the first that is healthy"}
	case !w.eligible:
		return choice{at: best, reason: out(f.candidates[was].name, w)}
	case w.diverted && views[best].good:
		return choice{at: best, reason: f.candidates[was].name + " closed its tripwire: moved until it is known why"}
	case w.rank == rankRefuses && views[best].good:
		return choice{at: best, reason: fmt.Sprintf("%s takes no logins, %s does", f.candidates[was].name, f.candidates[best].name)}
	case s.Sticky || w.diverted:
		return choice{at: was, reason: "keeps it: it is healthy, and sticky"}
	}
	return choice{at: best, reason: f.candidates[best].name + " comes first in the configuration"}
}

// first is the first candidate of the best rank in the order of the configuration. One that
// missed a probe is taken later, unless it serves already: one blip moves nothing.
func first(views []view, was int) int {
	best, bestRank := -1, 0
	for i, v := range views {
		if !v.eligible {
			continue
		}
		rank := v.rank
		if i == was && rank == rankSuspect {
			rank = rankWell
		}
		if v.diverted {
			rank += rankRefuses + 1
		}
		if best < 0 || rank < bestRank {
			best, bestRank = i, rank
		}
	}
	return best
}

// resort is what is left when no candidate is eligible.
func resort(f *family, views []view, was int) choice {
	open := -1
	for i, v := range views {
		if !v.held && open < 0 {
			open = i
		}
	}
	switch {
	case open < 0 && was >= 0:
		return choice{at: was, drained: true, reason: "all candidates are drained: the last one goes on serving"}
	case open < 0:
		return choice{at: 0, drained: true, reason: "all candidates are drained: the first one serves"}
	case was >= 0 && !views[was].held:
		return choice{at: was, lastResort: true, reason: "all candidates are out: keeps it as the last resort"}
	}
	return choice{at: open, lastResort: true, reason: "all candidates that are not drained are out: " + f.candidates[open].name + " is the last resort"}
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

func out(name string, v view) string {
	if v.held {
		return name + " is drained" + v.why
	}
	return name + " is dead" + v.why
}

// chooseNode is the candidate for a node's own address: the local one, else the one of the
// virtual address, else any.
func chooseNode(f *family, views []view, node string, vip, was int) (int, string) {
	local := -1
	for i, c := range f.candidates {
		if c.node == node && node != "" {
			local = i
			break
		}
	}
	order := make([]int, 0, len(views)+2)
	if local >= 0 {
		order = append(order, local)
	}
	if vip >= 0 {
		order = append(order, vip)
	}
	for i := range views {
		order = append(order, i)
	}
	best, bestRank := -1, 0
	for _, i := range order {
		if v := views[i]; v.eligible {
			rank := v.rank
			if (i == was || i == vip) && rank == rankSuspect {
				rank = rankWell
			}
			if v.diverted {
				rank += rankRefuses + 1
			}
			if best < 0 || rank < bestRank {
				best, bestRank = i, rank
			}
		}
	}
	switch {
	case best < 0:
		return vip, "no candidate is eligible: as the virtual address"
	case best == local:
		return best, "its own candidate"
	case best == vip && local >= 0:
		return best, f.candidates[local].name + " is out: as the virtual address"
	case best == vip:
		return best, "as the virtual address"
	}
	return best, "first that is healthy"
}

// holdsNow says whether a hold is in force at a moment (unix milliseconds).
func (h Hold) holdsNow(now int64) bool { return h.Until == 0 || h.Until*1000 > now }
