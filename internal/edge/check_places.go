package edge

import (
	"fmt"
	"net/netip"
	"slices"
)

// wayBackSample is the number of connections from which one says something of the way back.
const wayBackSample = 5

// places judges where a service's candidates run.
func (l *findings) places(f Facts, s *Service) {
	if len(s.Candidates) == 1 {
		l.warn(s.Name, "one_candidate", "add a second one on another machine", "has one candidate: there is nobody to go to")
	}
	nodes, here := map[string]string{}, ""
	for _, c := range s.Candidates {
		name := nameOf(c)
		if other, dup := nodes[c.Node]; dup && c.Node != "" {
			l.warn(s.Name+"/"+name, NoteOneNode, "move it to another node", "a decorative second: it runs on %s, as %s does, and both are gone with it", c.Node, other)
		} else if c.Node != "" {
			nodes[c.Node] = name
		}
		if c.Node != "" || !slices.ContainsFunc(c.Addresses, func(a netip.Addr) bool { return slices.Contains(f.Host.Local, a) }) {
			continue
		}
		if here != "" {
			l.warn(s.Name+"/"+name, NoteOneNode, "move it to another machine", "a decorative second: it runs on this machine, as %s does, and both are gone with it", here)
		} else {
			here = name
		}
	}
}

func nameOf(c Candidate) string {
	if c.Name != "" || len(c.Addresses) == 0 {
		return c.Name
	}
	return c.Addresses[0].String()
}

// wayBack finds candidates behind a router, whose answers go its way and not through the
// holder.
func (l *findings) wayBack(f Facts, s *Service) {
	if s.SNAT == SNATAlways || len(f.Host.Links) == 0 {
		return
	}
	for _, c := range s.Candidates {
		for _, a := range c.Addresses {
			near := slices.ContainsFunc(f.Host.Links, func(p netip.Prefix) bool { return p.Contains(a) })
			if near || slices.Contains(f.Host.Local, a) || slices.Contains(f.Host.Addresses, a) {
				continue
			}
			l.warn(s.Name+"/"+nameOf(c), "way_back", fmt.Sprintf("snat: always for service %s, or a route on %s that leads clients' addresses through the holder", s.Name, a),
				"%s is on no network of this machine: its answers to clients take its router's way, and come back through the holder only if that leads here", a)
		}
	}
}

// flows finds candidates whose answers do not come back through this machine.
func (l *findings) flows(f Facts) {
	for _, x := range f.Flows {
		if x.All < wayBackSample || x.Pending < x.All {
			continue
		}
		l.add(x.Service, "way_back", fmt.Sprintf("snat: always for service %s, or a default route on %s through the holder", x.Service, x.Candidate.Addr()),
			"%d connections went on to %s, and none of their answers came back through this machine", x.All, x.Candidate)
	}
}

// holder finds a virtual address that nobody has.
func (l *findings) holder(f Facts, s *Service) {
	for _, v := range s.VIP {
		if slices.Contains(f.Host.Addresses, v) {
			continue
		}
		if len(f.Config.Replicas) < 2 {
			l.add(s.Name, "not_held", fmt.Sprintf("ip address add %s/%d dev INTERFACE, at each boot", v, v.BitLen()), "this machine does not have %s: nothing that is sent to it gets here", v)
			return
		}
		for _, r := range f.Status.Replicas {
			if slices.ContainsFunc(r.Leases, func(x Lease) bool {
				return x.Node != f.Node && (slices.Contains(x.Holds, s.Name) || slices.Contains(x.Holds, holdsAll))
			}) {
				return
			}
		}
		l.warn(s.Name, "not_held", "`shunt edge keepalived` prints what makes one of them hold it", "no replica that shunt hears of has %s", v)
		return
	}
}

func (l *findings) replicas(f Facts) {
	for _, r := range f.Status.Replicas {
		reason := ""
		if r.Reason != "" {
			reason = ": " + r.Reason
		}
		switch r.State {
		case FindUnreachable:
			l.add(r.Name, FindUnreachable, "try its transport by hand; each run tries again, and brings it up to date", "can't be reached%s", reason)
		case FindAbsent:
			l.add(r.Name, FindAbsent, "shunt edge retarget", "has no table inet shunt_edge: it would answer nobody%s", reason)
		case FindDrifted:
			l.add(r.Name, FindDrifted, "shunt edge retarget", "the fixed part of its table was changed%s", reason)
		case FindDiffers:
			l.add(r.Name, FindDiffers, "shunt edge retarget, on the machine that writes", "leads elsewhere than the others (%s)%s", someOf(r.Differs), reason)
		}
	}
}

func (l *findings) clock(f Facts) {
	if f.Synced == SyncedNo {
		l.warn("clock", "clock", "timedatectl set-ntp true", "this machine's clock follows no other: times of vetoes, holds and events can't be compared with those of replicas")
	}
}
