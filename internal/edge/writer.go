package edge

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	leaseLife  = 30 * time.Second
	leaseRenew = 20 * time.Second // a lease with less left is renewed
	holdsAll   = "*"              // in Lease.Holds: and more that did not fit
	holdsBytes = 44               // of the names in a lease: they travel in a comment of 128 bytes
)

// writers says who moves what.
type writers struct {
	p       *planner
	own     map[netip.Addr]bool
	leases  map[string]Lease // live ones of other nodes
	heldBy  map[netip.Addr]string
	starred string // lowest-named node that holds more than its lease says
	lowest  string // lowest-named replica that is at work
	any     bool   // this machine writes something
}

func (p *planner) findWriters() *writers {
	w := &writers{p: p, own: map[netip.Addr]bool{}, leases: map[string]Lease{}, heldBy: map[netip.Addr]string{}}
	for _, a := range p.in.Host.Addresses {
		w.own[a.Unmap()] = true
	}
	reached := map[string]bool{}
	for i := range p.in.Views {
		v := &p.in.Views[i]
		if v.Error != "" {
			continue
		}
		reached[v.Replica] = true
		for _, l := range v.Table.Leases {
			if l.Node != p.in.Node && l.Left > w.leases[l.Node].Left {
				w.leases[l.Node] = l
			}
		}
	}
	for _, l := range w.leases {
		w.holder(l)
	}
	for _, r := range p.pre.replicas {
		_, leased := w.leases[r.Name]
		self := r.Name == p.in.Node && p.in.Config.Writer != WriterNever
		if reached[r.Name] && (self || leased) && (w.lowest == "" || r.Name < w.lowest) {
			w.lowest = r.Name
		}
	}
	for si := range p.pre.services {
		for fi := range p.pre.services[si].families {
			if _, mine := w.of(&p.pre.services[si].families[fi]); mine {
				w.any = true
				return w
			}
		}
	}
	if len(p.pre.services) == 0 { // what is left of removed ones is still somebody's
		w.any = w.lowest == p.in.Node || p.pre.alone
	}
	return w
}

// holder notes which addresses a lease says its node has: all of each service that it
// names, and with them those of every service on the same address.
func (w *writers) holder(l Lease) {
	for _, name := range l.Holds {
		if name == holdsAll {
			if w.starred == "" || l.Node < w.starred {
				w.starred = l.Node
			}
			continue
		}
		si, ok := w.p.pre.byName[name]
		if !ok {
			continue
		}
		for _, f := range w.p.pre.services[si].families {
			if by, ok := w.heldBy[f.vip]; f.vip.IsValid() && (!ok || l.Node < by) {
				w.heldBy[f.vip] = l.Node
			}
		}
	}
}

// of says which node moves a service's family, and whether that is this one.
func (w *writers) of(f *family) (string, bool) {
	self := w.p.in.Node
	never := w.p.in.Config.Writer == WriterNever
	switch {
	case w.p.in.Config.Writer == WriterAlways:
		return self, true
	case !never && (w.p.pre.alone || f.vip.IsValid() && w.own[f.vip]):
		return self, true
	}
	if by, ok := w.heldBy[f.vip]; ok && f.vip.IsValid() {
		return by, false
	}
	if w.starred != "" && f.vip.IsValid() {
		return w.starred, false
	}
	return w.lowest, w.lowest == self && !never && self != ""
}

// lease is what this machine says of itself. Only one who would write says that it is at
// work: others must not wait for one who never does. Without a look at itself it says
// nothing new.
func (p *planner) lease() (Lease, bool) {
	if p.pre.alone || p.in.Config.Writer == WriterNever || len(p.in.Host.Addresses) == 0 {
		return Lease{}, false
	}
	l := Lease{Node: p.in.Node, Config: p.pre.digest, Opinion: p.opinion(), Left: leaseLife}
	left := holdsBytes
	for _, a := range slices.SortedFunc(mapKeys(p.pre.byVIP), netip.Addr.Compare) {
		if !p.writers.own[a] {
			continue
		}
		name := p.pre.services[p.pre.byVIP[a][0]].Name // one stands for all of an address
		if slices.Contains(l.Holds, name) {
			continue
		}
		if left -= len(name) + 1; left < 0 {
			l.Holds = append(l.Holds, holdsAll)
			break
		}
		l.Holds = append(l.Holds, name)
	}
	slices.Sort(l.Holds)
	return l, true
}

// leases is what a replica's table shall hold of them: those of others as they are, and
// this machine's where it may write it.
func (p *planner) leases(v *View, own Lease, write bool) []Lease {
	var out []Lease
	found := false
	for _, l := range v.Table.Leases {
		if l.Node == p.in.Node && write {
			found = true
			if l.Left < leaseRenew || !sameLease(l, own) {
				l = own
			}
		}
		out = append(out, l)
	}
	if !found && write {
		out = append(out, own)
	}
	slices.SortFunc(out, compareLeases)
	return out
}

// opinion is a digest of who is out by this machine's word: vetoes and holds.
func (p *planner) opinion() string {
	var b strings.Builder
	for _, v := range p.vetoes {
		b.WriteString(string(v.Key) + "\n")
	}
	b.WriteByte('\n')
	var held []string
	for k := range p.holds {
		held = append(held, k.service+"/"+k.candidate)
	}
	slices.Sort(held)
	for _, h := range held {
		b.WriteString(h + "\n")
	}
	return short([]byte(b.String()))
}
