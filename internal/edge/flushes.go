package edge

import (
	"net/netip"
	"slices"
)

// flushes says which conntrack entries of this machine are deleted after the commit: those
// of a candidate that is dead, never those of one that is drained or that a recovery left.
func (p *planner) flushes() {
	if p.self < 0 || p.in.Views[p.self].Error != "" {
		return
	}
	for si := range p.pre.services {
		s := &p.pre.services[si]
		if !p.scope(s.Name) {
			continue
		}
		for fi := range s.families {
			p.flushFamily(s, &s.families[fi], &p.decided[si][fi])
		}
	}
	for _, e := range p.gone {
		p.flush(Flush{Service: e.Claim.Service, From: e.From, To: e.To, Pending: e.From.Protocol == TCP, Reason: "the service was removed"})
	}
}

func (p *planner) flushFamily(s *service, f *family, d *decision) {
	was := p.targets[targetKey{s.Name, f.n}]
	for i := range f.candidates {
		c := &f.candidates[i]
		v := d.views[i]
		left := d.moves && d.was == i || was != nil && was.To == c.addr
		if v.vetoed && (p.fresh[c.key] || left) {
			p.flushDead(s, f, d, c)
		}
	}
	if d.moves && d.was < 0 && d.seen.to.IsValid() {
		p.flushFrom(s, f.from, d.seen.to, "it is no candidate any more")
	}
	p.flushEarlier(s, f)
}

// flushDead deletes what a dead candidate served, by every address that leads elsewhere now.
func (p *planner) flushDead(s *service, f *family, d *decision, c *candidate) {
	why := c.name + " is dead"
	if d.to.IsValid() && d.to != c.addr {
		p.flushFrom(s, f.from, c.addr, why)
	}
	if !s.Nodes {
		return
	}
	for _, from := range p.ownNodes(s, f) {
		if e := find(p.plan.Tables[p.in.Views[p.self].Replica].Nodes, from); e != nil && e.To != c.addr {
			p.flushFrom(s, []Endpoint{from}, c.addr, why)
		}
	}
}

// ownNodes are the endpoints of this machine's own addresses.
func (p *planner) ownNodes(s *service, f *family) []Endpoint {
	for ri := range p.pre.replicas {
		if p.pre.replicas[ri].Name == p.in.Views[p.self].Replica {
			return nodeEndpoints(s, f, &p.pre.replicas[ri])
		}
	}
	return nil
}

// find is the element of an endpoint in a sorted list, or nil.
func find(list []Element, from Endpoint) *Element {
	i, ok := slices.BinarySearchFunc(list, from, func(e Element, from Endpoint) int { return compareEndpoints(e.From, from) })
	if !ok {
		return nil
	}
	return &list[i]
}

func (p *planner) flushFrom(s *service, from []Endpoint, dead netip.AddrPort, why string) {
	if len(from) == 0 {
		return
	}
	for _, e := range from {
		p.flush(Flush{Service: s.Name, From: e, To: dead, Pending: e.Protocol == TCP && !s.ResetDead, Reason: why})
	}
	p.step(Step{Kind: StepFlush, Service: s.Name, Address: addressOf(from), From: dead.String(), Reason: why})
}

// flushEarlier deletes entries that were made while an address had no element: they would
// never be translated. Where the address is not, there are none.
func (p *planner) flushEarlier(s *service, f *family) {
	t := p.plan.Tables[p.in.Views[p.self].Replica]
	early := func(from Endpoint, had bool, list []Element) {
		if !had && p.writers.own[from.Addr.Addr()] && find(list, from) != nil {
			p.flush(Flush{Service: s.Name, From: from, Untrans: true, Reason: "there was no target before"})
		}
	}
	for _, from := range f.from {
		early(from, p.index[p.self].targets[from] != nil, t.Targets)
	}
	for _, from := range p.ownNodes(s, f) {
		early(from, p.index[p.self].nodes[from] != nil, t.Nodes)
	}
}

func (p *planner) flush(f Flush) {
	once := f
	once.Reason = ""
	if p.flushed[once] {
		return
	}
	if p.flushed == nil {
		p.flushed = map[Flush]bool{}
	}
	p.flushed[once] = true
	p.plan.Flushes = append(p.plan.Flushes, f)
}
