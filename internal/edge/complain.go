package edge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// What may be passing is loud only when it lasts: opinions differ for as long as each needs
// to find out, a lease outlives its node by its own life.
const (
	opinionGrace = 60 * time.Second
	holderGrace  = leaseLife + 5*time.Second
	replicaGrace = 30 * time.Second
	remindAfter  = time.Hour
)

// complain says what is wrong and nothing is done about, and what the choices are.
func (p *planner) complain() {
	for si := range p.pre.services {
		s := &p.pre.services[si]
		for fi := range s.families {
			f, d := &s.families[fi], &p.decided[si][fi]
			p.plan.Choices = append(p.plan.Choices, p.choiceOf(s, f, d))
			p.complainOf(s, f, d)
		}
		p.oneNode(s)
	}
	p.disagreements()
	p.twoHolders()
	p.parity()
	for _, h := range p.plan.Holds {
		if _, ok := p.pre.byName[h.Service]; !ok || !slices.Contains(candidateNames(p.in.Config, h.Service), h.Candidate) {
			p.note(h.Service+"/"+h.Candidate, NoteUnknownHold, false, "%s holds it and configuration has no such candidate", h.Owner)
		}
	}
	for _, d := range p.in.Damage {
		p.note("state", NoteDamage, true, "%s", d)
	}
	if p.in.HoldsAre != HoldsWhole {
		p.hold(holdsFile, HeldDamage, "it could not be read whole (%s): nobody is moved who need not be", p.in.HoldsAre)
	}
}

func (p *planner) choiceOf(s *service, f *family, d *decision) Choice {
	c := Choice{
		Service: s.Name, Family: f.n, Address: addressOf(f.from), Target: d.to, Was: d.seen.to, Epoch: d.epoch, Writer: d.writer,
		Reason: d.choice.reason, LastResort: d.choice.lastResort, Candidates: make([]Standing, 0, len(f.candidates)),
	}
	if !d.mine && d.choice.at != d.was {
		c.Reason = "as its writer says"
	}
	for i := range f.candidates {
		cand := &f.candidates[i]
		if cand.addr == d.to {
			c.Candidate = cand.name
		}
		st := p.standings[cand.key]
		one := Standing{
			Candidate: cand.name, Node: cand.node, Addr: cand.addr, Key: cand.key, State: d.views[i].state,
			RTT: st.health.RTT, Veto: st.veto, Hold: p.holdOf(s.Name, cand.name),
		}
		switch {
		case one.Veto != nil:
			one.Reason = one.Veto.Reason
		case st.health.Misses > 0:
			one.Reason = missReason(st.health)
		case st.health.Refusing:
			one.Reason = "answers, takes no logins" + inBrackets(st.health.Reason)
		case d.views[i].diverted:
			one.Reason = "its tripwire closed: under suspicion"
		}
		c.Candidates = append(c.Candidates, one)
	}
	return c
}

func (p *planner) complainOf(s *service, f *family, d *decision) {
	switch {
	case len(f.candidates) == 0:
		p.hold(s.Name, HeldNoTarget, "%s", d.choice.reason)
		p.note(s.Name, NoteNoCandidate, d.writes, "%s", d.choice.reason)
	case d.choice.lastResort:
		p.hold(s.Name, HeldNoTarget, "%s", d.choice.reason)
		p.note(s.Name, NoteLastResort, d.writes, "%s", d.choice.reason)
	case d.choice.drained:
		p.note(s.Name, NoteDrainedServes, d.writes, "%s", d.choice.reason)
	}
	if d.writer == "" {
		p.note(s.Name, NoteNoWriter, true, "no machine that can be reached is its writer: set edge.writer, or run shunt on a replica")
	}
	for i := range f.candidates {
		if d.views[i].rank == rankRefuses {
			c := &f.candidates[i]
			p.note(s.Name+"/"+c.name, NoteRefuses, d.writes, "it answers and takes no logins%s: others come first", inBrackets(p.standings[c.key].health.Reason))
		}
	}
	if d.writes && d.seen.conflict {
		p.note(s.Name, NoteDisagree, true, "tables had two targets of epoch %d: two machines moved it at once", d.seen.epoch)
	}
}

func (p *planner) oneNode(s *service) {
	if len(s.Candidates) < 2 || s.Candidates[0].Node == "" {
		return
	}
	node := s.Candidates[0].Node
	if !slices.ContainsFunc(s.Candidates, func(c Candidate) bool { return c.Node != node }) {
		p.note(s.Name, NoteOneNode, false, "all %d candidates run on %s: the second is decorative", len(s.Candidates), node)
	}
}

// disagreements are tables that differ where this machine may not mend them, and nodes that
// act on another configuration or hold others out.
func (p *planner) disagreements() {
	for vi := range p.in.Views {
		v := &p.in.Views[vi]
		if v.Error != "" {
			p.doubt("reach of "+v.Replica, replicaGrace, func(loud bool) {
				if loud {
					p.note(v.Replica, NoteUnreachable, true, "no answer from it: %s", v.Error)
				}
			})
			continue
		}
		var differ []string
		for si := range p.pre.services {
			s := &p.pre.services[si]
			for fi := range s.families {
				d := &p.decided[si][fi]
				if d.writes || !d.seen.to.IsValid() {
					continue
				}
				for _, from := range s.families[fi].from {
					if e := p.index[vi].targets[from]; e == nil && vi != p.self || e != nil && e.To != d.seen.to {
						differ = append(differ, s.Name)
						break
					}
				}
			}
		}
		if len(differ) > 0 {
			differ = slices.Compact(differ)
			p.note(v.Replica, NoteDisagree, true, "its table differs for %s, and this machine is not the writer", some(differ, 3))
		}
	}
	opinion := p.opinion()
	for _, node := range slices.Sorted(maps.Keys(p.writers.leases)) {
		l := p.writers.leases[node]
		if l.Config != p.pre.digest {
			p.note(node, NoteDisagree, true, "it acts on configuration %s, this machine on %s", l.Config, p.pre.digest)
		}
		if l.Opinion != opinion {
			p.doubt("opinion of "+node, opinionGrace, func(loud bool) {
				p.note(node+" opinion", NoteDisagree, loud, "its vetoes or holds (%s) are not those of this machine (%s)", l.Opinion, opinion)
			})
		}
	}
}

func (p *planner) twoHolders() {
	for _, f := range p.families() {
		by, ok := p.writers.heldBy[f.vip]
		if ok && f.vip.IsValid() && p.writers.own[f.vip] {
			p.doubt("holder of "+f.vip.String(), holderGrace, func(loud bool) {
				p.note(f.vip.String(), NoteTwoHolders, loud, "both %s and %s have it", min(by, p.in.Node), max(by, p.in.Node))
			})
		}
	}
}

func (p *planner) families() []*family {
	var out []*family
	for si := range p.pre.services {
		for fi := range p.pre.services[si].families {
			out = append(out, &p.pre.services[si].families[fi])
		}
	}
	return out
}

// doubt keeps since when something is so, and tells whether it has lasted.
func (p *planner) doubt(what string, grace time.Duration, say func(loud bool)) {
	since, ok := p.in.Memory.Doubts[what]
	if !ok || since > p.in.Now/1000 {
		since = p.in.Now / 1000
	}
	if p.plan.Next.Doubts == nil {
		p.plan.Next.Doubts = map[string]int64{}
	}
	p.plan.Next.Doubts[what] = since
	say(p.in.Now/1000-since >= int64(grace/time.Second))
}

func (p *planner) parity() {
	for _, g := range p.in.Config.Parity {
		found, ok := p.in.Parity[g.Name]
		if !ok {
			if found, ok = p.in.Memory.Parity[g.Name]; !ok {
				continue
			}
		}
		if p.plan.Next.Parity == nil {
			p.plan.Next.Parity = map[string]Parity{}
		}
		p.plan.Next.Parity[g.Name] = found
		switch {
		case !found.Equal:
			p.note(g.Name, NoteParity, true, "members differ: %s; nothing is changed by this tool", islands(found.Hashes))
		case len(found.Errors) > 0:
			p.note(g.Name, NoteParity, false, "%s could not be read", some(slices.Sorted(maps.Keys(found.Errors)), 3))
		}
	}
}

// islands groups members by what they have: a b = 1f2e…, c = 9d8c….
func islands(hashes map[string]string) string {
	by := map[string][]string{}
	for m, h := range hashes {
		by[h] = append(by[h], m)
	}
	var out []string
	for _, h := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[h])
		out = append(out, fmt.Sprintf("%s = %s", some(by[h], 4), cmp.Or(h, "?")))
	}
	if len(out) == 0 {
		return "no member could be read"
	}
	return strings.Join(out, ", ")
}
