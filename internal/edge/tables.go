package edge

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

// tables makes what each reachable replica's table shall hold.
func (p *planner) tables() {
	own, leases := p.lease()
	sweep := p.sweeps()
	for i := range p.in.Views {
		v := &p.in.Views[i]
		if v.Error != "" {
			continue
		}
		b := &builder{planner: p, at: i, view: v, local: i == p.self, sweep: sweep}
		for ri := range p.pre.replicas {
			if p.pre.replicas[ri].Name == v.Replica {
				b.replica = &p.pre.replicas[ri]
			}
		}
		b.build()
		b.want.Leases = p.leases(v, own, leases && (b.local || p.writers.any))
		p.plan.Tables[v.Replica] = b.want
	}
}

// sweeps says whether what configuration does not have goes: only where this machine
// writes, and no live node acts on another configuration, which may have it.
func (p *planner) sweeps() bool {
	if !p.writers.any {
		return false
	}
	for _, l := range p.writers.leases {
		if l.Config != p.pre.digest {
			return false
		}
	}
	return true
}

// builder makes one replica's table.
type builder struct {
	*planner
	at      int
	view    *View
	replica *Replica
	local   bool
	sweep   bool
	blank   bool // no table, or nothing in it
	want    Table
	claimed map[Endpoint]bool
	filled  int // elements that a blank table gets
}

func (b *builder) build() {
	t := &b.view.Table
	b.blank = b.view.Absent || len(t.Targets)+len(t.Nodes)+len(t.Services) == 0
	b.claimed = make(map[Endpoint]bool, len(t.Targets)+len(t.Nodes))
	b.want.Targets = make([]Element, 0, len(t.Targets))
	for si := range b.pre.services {
		s := &b.pre.services[si]
		for fi := range s.families {
			b.targetsOf(s, &s.families[fi], &b.decided[si][fi])
			b.nodesOf(s, &s.families[fi], &b.decided[si][fi])
		}
	}
	b.orphans()
	slices.SortFunc(b.want.Targets, compareElements)
	slices.SortFunc(b.want.Nodes, compareElements)
	b.collectSets()
	b.tableStep()
}

// targetsOf puts the elements of one virtual address there. Found ones that are right stay
// as they are, whoever wrote them: two machines that agree must not undo each other.
func (b *builder) targetsOf(s *service, f *family, d *decision) {
	synced := false
	for _, from := range f.from {
		b.claimed[from] = true
		found := b.index[b.at].targets[from]
		if !d.mine {
			b.leave(s, found, from, d)
			continue
		}
		if !d.to.IsValid() {
			continue
		}
		if found != nil && found.To == d.to && found.Claim.Epoch == d.epoch && found.Claim.Service == s.Name {
			b.want.Targets = append(b.want.Targets, *found)
			continue
		}
		b.want.Targets = append(b.want.Targets, Element{From: from, To: d.to, Claim: Claim{Service: s.Name, Epoch: d.epoch, By: b.in.Node}})
		if d.moves || synced {
			continue
		}
		synced = true
		b.sync(s, f, found, d)
	}
}

// leave keeps what another machine writes. This machine's own table is filled where it has
// nothing, so that the address is answered if it comes here.
func (b *builder) leave(s *service, found *Element, from Endpoint, d *decision) {
	switch {
	case found != nil:
		b.want.Targets = append(b.want.Targets, *found)
	case b.local && b.scope(s.Name) && d.seen.to.IsValid():
		e := Element{From: from, To: d.seen.to, Claim: Claim{Service: s.Name, Epoch: d.seen.epoch, By: cmp.Or(d.seen.by, b.in.Node)}}
		b.want.Targets = append(b.want.Targets, e)
		b.sync(s, &family{from: []Endpoint{from}}, nil, d)
	}
}

func (b *builder) sync(s *service, f *family, found *Element, d *decision) {
	if b.blank {
		b.filled++
		return
	}
	st := Step{
		Kind: StepSync, Service: s.Name, Replica: b.view.Replica, Address: addressOf(f.from), To: text(d.to), Epoch: d.epoch,
		Reason: "its table had no element for it",
	}
	if !d.mine {
		st.Epoch = d.seen.epoch
	}
	if found != nil {
		st.From = text(found.To)
		switch {
		case d.seen.conflict:
			st.Reason = fmt.Sprintf("tables had two targets of epoch %d", d.seen.epoch)
		case found.Claim.Epoch < d.epoch:
			st.Reason = fmt.Sprintf("its table was behind: epoch %d of %d", found.Claim.Epoch, d.epoch)
		default:
			st.Reason = "its element was changed by hand"
		}
	}
	b.step(st)
}

// nodesOf puts the elements of the replica's own addresses there.
func (b *builder) nodesOf(s *service, f *family, d *decision) {
	if b.replica == nil || !s.Nodes {
		return
	}
	all := nodeEndpoints(s, f, b.replica)
	for len(all) > 0 { // those of one address are moved as one
		n := 1
		for n < len(all) && all[n].Addr == all[0].Addr {
			n++
		}
		b.nodeAddress(s, f, d, all[:n])
		all = all[n:]
	}
}

func (b *builder) nodeAddress(s *service, f *family, d *decision, from []Endpoint) {
	var free []Endpoint
	var found []*Element // of free; nil = none
	have := 0
	for _, e := range from {
		if b.claimed[e] || b.pre.known[e] {
			continue
		}
		b.claimed[e] = true
		is := b.index[b.at].nodes[e]
		free, found = append(free, e), append(found, is)
		if is != nil {
			have++
		}
	}
	switch {
	case len(free) == 0:
	case d.mine, b.local && have == 0 && b.scope(s.Name):
		b.node(s, f, d, free, found)
	default:
		for _, e := range found {
			if e != nil {
				b.want.Nodes = append(b.want.Nodes, *e)
			}
		}
	}
}

// node decides on one address of a node. The first element that is there tells the incumbent.
func (b *builder) node(s *service, f *family, d *decision, from []Endpoint, found []*Element) {
	was, old := -1, Element{}
	for _, e := range found {
		if e != nil && !old.To.IsValid() {
			old = *e
			was = slices.IndexFunc(f.candidates, func(c candidate) bool { return c.addr == e.To })
		}
		if e != nil {
			old.Claim.Epoch = max(old.Claim.Epoch, e.Claim.Epoch)
		}
	}
	vip := slices.IndexFunc(f.candidates, func(c candidate) bool { return c.addr == d.to })
	at, why := chooseNode(f, d.views, b.view.Replica, vip, was)
	if at != was && was >= 0 && b.in.HoldsAre != HoldsWhole && !d.views[was].vetoed {
		at = was
	}
	st := Step{Kind: StepNode, Service: s.Name, Replica: b.view.Replica, Address: addressOf(from), From: text(old.To), Reason: why}
	if at < 0 {
		if old.To.IsValid() {
			st.Reason = "there is no candidate"
			b.step(st)
		}
		return
	}
	to := f.candidates[at].addr
	st.Candidate, st.To, st.Epoch = f.candidates[at].name, text(to), raised(old.Claim.Epoch)
	if was >= 0 && !d.views[was].eligible {
		st.Reason = out(f.candidates[was].name, d.views[was]) + ": " + why
	}
	changed := false
	for i, e := range found {
		if e != nil && e.To == to && e.Claim.Service == s.Name {
			b.want.Nodes = append(b.want.Nodes, *e)
			continue
		}
		changed = true
		b.want.Nodes = append(b.want.Nodes, Element{From: from[i], To: to, Claim: Claim{Service: s.Name, Epoch: st.Epoch, By: b.in.Node}})
	}
	switch {
	case changed && b.blank:
		b.filled++
	case changed:
		b.step(st)
	}
}

// orphans are elements that configuration does not have.
func (b *builder) orphans() {
	var gone []string
	keep := func(list []Element, into *[]Element) {
		for _, e := range list {
			switch {
			case b.claimed[e.From]:
			case b.sweep && b.only == nil:
				gone = append(gone, fmt.Sprintf("%s (%s)", addressOf([]Endpoint{e.From}), e.Claim.Service))
				if b.local {
					b.gone = append(b.gone, e)
				}
			default:
				*into = append(*into, e)
			}
		}
	}
	keep(b.view.Table.Targets, &b.want.Targets)
	keep(b.view.Table.Nodes, &b.want.Nodes)
	if len(gone) > 0 {
		b.step(Step{
			Kind: StepTable, Replica: b.view.Replica, Reason: "not in the configuration any more: " + some(gone, 4),
		})
	}
}

func some(list []string, n int) string {
	if len(list) <= n {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:n], ", "), len(list)-n)
}

// collectSets makes the lists that follow from configuration. One who writes nothing leaves
// them to those who do, but for its own blank table and its own links.
func (b *builder) collectSets() {
	t, w := &b.view.Table, &b.want
	if !b.writers.any && (!b.local || !b.blank) {
		w.Services, w.Addresses, w.Backends, w.Always = t.Services, t.Addresses, t.Backends, t.Always
	} else {
		s := b.pre.sets[b.view.Replica]
		w.Services, w.Addresses, w.Backends, w.Always = s.services, s.addresses, s.backends, s.always
		if !b.sweep {
			w.Services = sortedEndpoints(slices.Concat(w.Services, t.Services))
			w.Addresses = sortedAddrs(slices.Concat(w.Addresses, t.Addresses))
			w.Backends = sortedEndpoints(slices.Concat(w.Backends, t.Backends))
			w.Always = sortedEndpoints(slices.Concat(w.Always, t.Always))
		}
	}
	// Links are a machine's own knowledge: another that is at work keeps its own.
	w.OnLink = t.OnLink
	_, atWork := b.writers.leases[b.view.Replica]
	if len(b.in.Host.Links) > 0 && (b.local || !atWork && b.writers.any) {
		w.OnLink = b.onLink()
	}
}

// onLink pairs each candidate with the links on which clients reach it without this
// machine, and with itself: none of these answers would come back this way.
func (p *planner) onLink() []OnLink {
	if p.links == nil {
		p.links = make([]OnLink, 0, len(p.pre.behind))
		for _, a := range p.pre.behind { // in order, each once: so is the list
			p.links = append(p.links, OnLink{Prefix: widest(a, p.in.Host.Links), Addr: a})
		}
	}
	return p.links
}

// widest is the widest link that an address is on, else the address alone: a set of
// intervals takes none that lies in another.
func widest(a netip.Addr, links []netip.Prefix) netip.Prefix {
	best := netip.PrefixFrom(a, a.BitLen())
	for _, l := range links {
		if l = l.Masked(); l.Bits() > 0 && l.Contains(a) && l.Bits() < best.Bits() {
			best = l
		}
	}
	return best
}

// tableStep says what of a table is made or mended, beside the elements of services.
func (b *builder) tableStep() {
	var why []string
	switch {
	case b.view.Absent:
		why = append(why, "it is not there")
	case b.blank && b.filled > 0:
		why = append(why, "it is empty")
	}
	if len(b.view.Drift) > 0 {
		why = append(why, "its static part was changed: "+some(b.view.Drift, 2))
	}
	t, w := &b.view.Table, &b.want
	if !b.blank {
		for _, d := range []string{
			diff("services", t.Services, w.Services), diff("addresses", t.Addresses, w.Addresses),
			diff("backends", t.Backends, w.Backends), diff("always", t.Always, w.Always), diff("on-link", t.OnLink, w.OnLink),
		} {
			if d != "" {
				why = append(why, d)
			}
		}
	}
	if len(why) > 0 && (b.local || b.writers.any) {
		b.step(Step{Kind: StepTable, Replica: b.view.Replica, Reason: strings.Join(why, "; ")})
	}
}

// diff counts what comes into a list and what goes; "" = nothing.
func diff[T comparable](name string, have, want []T) string {
	if slices.Equal(have, want) {
		return ""
	}
	old, more := setOf(have), 0
	for _, w := range want {
		if !old[w] {
			more++
		}
		delete(old, w)
	}
	return fmt.Sprintf("%s +%d -%d", name, more, len(old))
}
