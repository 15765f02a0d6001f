package config

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

func (r *reader) checkWatchdog(w Watchdog) {
	const at = "watchdog."
	r.span(at, "interval", w.Interval, 10*time.Millisecond, time.Hour)
	r.span(at, "for", w.For, time.Second, 24*time.Hour)
	if w.Interval > w.For && w.For >= time.Second {
		r.complain(at+"for", fmt.Sprintf("%s ends before the second round, at %s", durationText(w.For), durationText(w.Interval)), "write several times the interval")
	}
}

func (r *reader) checkEdge(e *edge.Config) {
	const at = "edge."
	r.between(at, "max_concurrent", e.MaxConcurrent, 1, 4096)
	r.span(at, "veto_for", e.VetoFor, time.Second, time.Hour)
	r.span(at, "deadline", e.Deadline, 10*time.Millisecond, time.Minute)
	replicas := r.checkReplicas(e)
	names := map[string]int{}
	taken := map[edge.Endpoint]int{}
	for i := range e.Services {
		s := &e.Services[i]
		key := entry("edge.services", i)
		r.name(key, s.Name, names, i)
		r.checkService(key, s, e.VetoFor)
		r.checkEndpoints(key, e, i, taken)
		r.checkProbe(key+".probe", s)
		r.checkCandidates(key, s, replicas)
	}
	r.checkParity(e.Parity)
}

// checkReplicas returns the replicas' names.
func (r *reader) checkReplicas(e *edge.Config) []string {
	const at = "edge.replicas"
	names, marks, owner := map[string]int{}, map[uint32]string{}, map[netip.Addr]string{}
	var list, here []string
	for i, p := range e.Replicas {
		key := fmt.Sprintf("%s[%d]", at, i)
		r.name(key, p.Name, names, i)
		h := fnv.New32a()
		_, _ = h.Write([]byte(p.Name))
		if other := marks[h.Sum32()]; other != "" && other != p.Name {
			r.complain(key+".name", fmt.Sprintf("%s has the same mark (FNV-1a) as %s", quote(p.Name), quote(other)), "choose another name: leases are told apart by it")
		}
		marks[h.Sum32()] = p.Name
		r.argv(key+".transport", p.Transport)
		if len(p.Transport) == 0 {
			here = append(here, p.Name)
			r.checkHere(key, e.Node, here)
		}
		for j, a := range p.Addresses {
			path := fmt.Sprintf("%s.addresses[%d]", key, j)
			if f := hostFault(a); f != nil {
				r.complain(path, f.msg, f.hint)
				continue
			}
			if other, dup := owner[a]; dup {
				r.complain(path, fmt.Sprintf("%s is an address of replica %s too", a, other), "each address belongs to one machine")
			}
			owner[a] = p.Name
		}
		list = append(list, p.Name)
	}
	if e.Node != "" && len(list) > 0 && !slices.Contains(list, e.Node) {
		r.complain("edge.node", quote(e.Node)+" is not the name of a replica", nearestHint(e.Node, list))
	}
	if e.Writer == edge.WriterAlways && len(list) > 1 {
		r.warn("edge.writer", "always, and there are several replicas", "only where shunt runs on this machine alone: two that always write undo each other's moves")
	}
	return list
}

// checkHere judges a replica without a transport, which is this machine: here are all of
// that kind so far.
func (r *reader) checkHere(key, node string, here []string) {
	name := here[len(here)-1]
	switch {
	case node != "" && node != name:
		r.complain(key, fmt.Sprintf("replica %s has no transport, and edge.node says that this machine is %s", quote(name), node), "write its transport, such as [ssh, "+name+", nft, -i]")
	case node == "" && len(here) > 1:
		r.complain(key, fmt.Sprintf("replica %s has no transport, and %s has none either", quote(name), here[0]), "only this machine needs none: write [ssh, "+name+", nft, -i], or name this machine in edge.node")
	}
}

func (r *reader) checkService(at string, s *edge.Service, veto time.Duration) {
	if len(s.VIP) == 0 {
		r.complain(at+".vip", "is missing", "write the virtual address, such as [10.0.0.50], with one of each family at most")
	}
	r.families(at+".vip", s.VIP, "a service has")
	for i, a := range s.VIP {
		if a.IsLoopback() {
			r.complain(fmt.Sprintf("%s.vip[%d]", at, i), fmt.Sprintf("%s is never seen on a network", a), "write the address that clients connect to")
		}
	}
	if s.Port == 0 {
		r.complain(at+".port", "is missing", "write the port that clients connect to")
	}
	r.between(at, ".port", s.Port, 1, 65535)
	if len(s.Protocols) == 0 {
		r.complain(at+".protocols", "names none", "write [tcp], [udp] or both")
	}
	for i, p := range s.Protocols {
		if slices.Index(s.Protocols, p) < i {
			r.complain(fmt.Sprintf("%s.protocols[%d]", at, i), fmt.Sprintf("%s stands there twice", p), "remove one")
		}
	}
	if !slices.Contains(s.Protocols, edge.TCP) && s.ResetDead {
		r.warn(at+".reset_dead", "means nothing without TCP", "entries of UDP are always deleted on a veto")
	}
	if s.OnHint == edge.OnHintDivert && !s.Tripwire {
		r.warn(at+".on_hint", "means nothing without a tripwire", "remove it, or write tripwire: true")
	}
	if p := s.Probe; p.Type != edge.ProbeNone && veto > 0 && veto <= p.Interval+p.Cap {
		r.complain(at+".probe.interval", fmt.Sprintf("a veto (edge.veto_for, %s) would end before the next probe (%s, and %s for its answer)",
			durationText(veto), durationText(p.Interval), durationText(p.Cap)), "ask more often, or raise edge.veto_for")
	}
}

// checkEndpoints judges that no two services answer the same address, port and protocol.
func (r *reader) checkEndpoints(at string, e *edge.Config, i int, taken map[edge.Endpoint]int) {
	s := &e.Services[i]
	claim := func(a netip.Addr, path func() string) {
		for _, p := range s.Protocols {
			k := edge.Endpoint{Protocol: p, Addr: netip.AddrPortFrom(a, uint16(s.Port))} //nolint:gosec // a port out of range has its complaint
			if j, dup := taken[k]; dup && j != i {
				r.complain(path(), fmt.Sprintf("%s/%s is answered by service %s too", k.Addr, p, e.Services[j].Name), "one of them needs another address or port")
				return
			}
			taken[k] = i
		}
	}
	for j, a := range s.VIP {
		claim(a, func() string { return entry(at+".vip", j) })
	}
	if !s.Nodes {
		return
	}
	if len(e.Replicas) == 0 {
		r.warn(at+".nodes", "there are no replicas whose addresses could answer", "list this machine and its addresses in edge.replicas")
	}
	for _, p := range e.Replicas {
		for _, a := range p.Addresses {
			if slices.Contains(s.VIP, a) {
				r.complain(at+".nodes", fmt.Sprintf("%s is the virtual address and an address of replica %s", a, p.Name), "remove it from one of them")
				continue
			}
			claim(a, func() string { return at + ".nodes" })
		}
	}
}

// families judges addresses of which there is one of each family at most.
func (r *reader) families(path string, as []netip.Addr, whose string) {
	var seen [2]bool
	for i, a := range as {
		if f := hostFault(a); f != nil {
			r.complain(entry(path, i), f.msg, f.hint)
			continue
		}
		f := family(a)
		if seen[f/6] {
			r.complain(entry(path, i), fmt.Sprintf("%s is a second IPv%d address", a, f), whose+" one of each family at most")
		}
		seen[f/6] = true
	}
}

// hostFault is what is wrong with the address of one machine; nil = nothing.
func hostFault(a netip.Addr) *fault {
	switch {
	case !a.IsValid():
		return &fault{"is missing", "write an address"}
	case a.Is4In6():
		return &fault{fmt.Sprintf("%s is an IPv4 address written as IPv6", a), "write " + a.Unmap().String()}
	case a.Zone() != "":
		return &fault{fmt.Sprintf("%s has a zone, which no table can hold", a), "write an address that is not of one link only"}
	case useless(a):
		return &fault{fmt.Sprintf("%s is not the address of one machine", a), ""}
	}
	return nil
}

// family is 4 or 6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func nearestHint(word string, known []string) string {
	if n := Nearest(word, known); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	if len(known) > 10 {
		return fmt.Sprintf("known: %s and %d more", known[0], len(known)-1)
	}
	return "known: " + strings.Join(known, ", ")
}

// span judges a duration that has bounds.
func (r *reader) span(at, key string, d, low, high time.Duration) {
	if d < low || d > high {
		r.complain(at+key, durationText(d)+" is out of range", fmt.Sprintf("write %s to %s", durationText(low), durationText(high)))
	}
}
