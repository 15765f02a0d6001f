package config

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

func (r *reader) checkCandidates(at string, s *edge.Service, replicas []string) {
	if len(s.Candidates) == 0 {
		r.complain(at+".candidates", "names none", "write at least two servers that can answer, such as [10.0.0.29:25565, 10.0.0.17:25565]")
		return
	}
	list := at + ".candidates"
	names, nodes, addrs := map[string]int{}, map[string]int{}, map[netip.AddrPort]int{}
	var answered [2]bool
	for i := range s.Candidates {
		c := &s.Candidates[i]
		key := entry(list, i)
		r.checkCandidate(key, s, c, replicas)
		r.checkName(key, c, names, i)
		if j, dup := nodes[c.Node]; dup && c.Node != "" {
			r.warn(key+".node", fmt.Sprintf("a decorative second: candidate %d runs on %s too, and both are gone with it", j+1, c.Node), "put it on another node")
		}
		nodes[c.Node] = i
		port := c.Port
		if port == 0 {
			port = s.Port
		}
		for j, a := range c.Addresses {
			k := netip.AddrPortFrom(a, uint16(port)) //nolint:gosec // a port out of range has its complaint
			if other, dup := addrs[k]; dup && other != i {
				r.complain(entry(key+".addresses", j), fmt.Sprintf("%s is that of candidate %d too", k, other+1), "each candidate is a server of its own")
			}
			if slices.Contains(s.VIP, a) && port == s.Port {
				r.complain(entry(key+".addresses", j), fmt.Sprintf("%s is the service's own address", k), "write the address that the server itself has")
			}
			addrs[k] = i
			answered[family(a)/6] = true
		}
	}
	for i, a := range s.VIP {
		if a.IsValid() && !answered[family(a)/6] {
			r.complain(fmt.Sprintf("%s.vip[%d]", at, i), fmt.Sprintf("no candidate has an IPv%d address: nobody could answer %s", family(a), a),
				"give a candidate one, or remove the virtual address")
		}
	}
}

// checkName judges a candidate's name, which is its first address where none is written.
func (r *reader) checkName(at string, c *edge.Candidate, names map[string]int, i int) {
	if c.Name != "" {
		r.name(at, c.Name, names, i)
		return
	}
	if len(c.Addresses) == 0 {
		return
	}
	name := c.Addresses[0].String()
	if j, dup := names[name]; dup {
		r.complain(at+".name", fmt.Sprintf("is missing, and candidate %d is called %s already", j+1, name), "name them: they have one address")
		return
	}
	names[name] = i
}

func (r *reader) checkCandidate(at string, s *edge.Service, c *edge.Candidate, replicas []string) {
	if len(c.Addresses) == 0 {
		r.complain(at+".addresses", "is missing", "write the server's address, such as [10.0.0.29]")
	}
	r.families(at+".addresses", c.Addresses, "a candidate has")
	for i, a := range c.Addresses {
		if a.IsLoopback() {
			r.warn(entry(at+".addresses", i), fmt.Sprintf("%s is not reached from other machines", a), "let the server listen on an address of an interface")
		}
		if a.IsValid() && !s.Nodes && len(s.VIP) > 0 && !slices.ContainsFunc(s.VIP, func(v netip.Addr) bool { return family(v) == family(a) }) {
			r.unanswered(entry(at+".addresses", i), s, c, a)
		}
	}
	r.between(at, ".port", c.Port, 0, 65535)
	r.between(at, ".probe_port", c.ProbePort, 0, 65535)
	r.between(at, ".weight", c.Weight, 1, 1000)
	if c.Weight > 1 && s.Strategy == edge.StrategyFirstAvailable {
		r.warn(at+".weight", fmt.Sprintf("means nothing to strategy %s", s.Strategy), "the order of the list says who is first")
	}
	if c.ProbePort != 0 && s.Probe.Type == edge.ProbeNone {
		r.warn(at+".probe_port", "means nothing: the service's candidates are not asked", "remove it, or choose another probe.type")
	}
	if c.Node != "" && len(replicas) > 0 && !slices.Contains(replicas, c.Node) {
		r.complain(at+".node", quote(c.Node)+" is not the name of a replica", nearestHint(c.Node, replicas))
	}
}

// unanswered complains about a candidate's address that no virtual address leads to.
func (r *reader) unanswered(path string, s *edge.Service, c *edge.Candidate, a netip.Addr) {
	used := slices.ContainsFunc(c.Addresses, func(b netip.Addr) bool { return family(b) == family(s.VIP[0]) })
	msg := fmt.Sprintf("%s is never used: the service has no IPv%d address", a, family(a))
	if used {
		r.warn(path, msg, "remove it, or give the service such an address")
		return
	}
	r.complain(path, msg, fmt.Sprintf("write the candidate's IPv%d address, as that of %s is", family(s.VIP[0]), s.Name))
}

// probeKeys are the keys that only some probes have.
func probeKeys(p edge.Probe) []struct {
	key string
	set bool
	by  []edge.ProbeType
} {
	const tcp, tls, http, ping, exec = edge.ProbeTCP, edge.ProbeTLS, edge.ProbeHTTP, edge.ProbeStatusPing, edge.ProbeExec
	return []struct {
		key string
		set bool
		by  []edge.ProbeType
	}{
		{"port", p.Port != 0, []edge.ProbeType{tcp, tls, http, ping, exec}},
		{"server_name", p.ServerName != "", []edge.ProbeType{tls, http, ping}},
		{"tls", p.TLS, []edge.ProbeType{http}},
		{"verify", p.Verify, []edge.ProbeType{tls, http}},
		{"path", p.Path != "", []edge.ProbeType{http}},
		{"status", !slices.Equal(p.Status, probe().Status), []edge.ProbeType{http}},
		{"body", p.Body != "", []edge.ProbeType{http}},
		{"proxy_v2", p.ProxyV2, []edge.ProbeType{tcp, tls, http, ping}},
		{"login", p.Login, []edge.ProbeType{ping}},
		{"command", len(p.Command) > 0, []edge.ProbeType{exec}},
	}
}

func (r *reader) checkProbe(at string, s *edge.Service) {
	p := &s.Probe
	if p.Type == edge.ProbeUnknown {
		r.complain(at+".type", "is missing", "write tcp, tls, http, status_ping, exec or none")
		return
	}
	for _, k := range probeKeys(*p) {
		if k.set && !slices.Contains(k.by, p.Type) {
			r.complain(at+"."+k.key, fmt.Sprintf("a probe of type %s has no %s", p.Type, k.key), "remove it, or change the type")
		}
	}
	r.span(at, ".interval", p.Interval, 10*time.Millisecond, time.Hour)
	r.span(at, ".cap", p.Cap, time.Millisecond, time.Minute)
	r.between(at, ".misses", p.Misses, 1, 100)
	r.between(at, ".rise", p.Rise, 1, 100)
	r.between(at, ".port", p.Port, 0, 65535)
	if most := p.Interval * time.Duration(p.Misses); p.Misses > 0 && p.Misses <= 100 && p.Cap > most {
		r.complain(at+".cap", fmt.Sprintf("%s is more than %d intervals: a verdict would wait for it", durationText(p.Cap), p.Misses), "make it "+durationText(most)+" at most, or the interval longer")
	}
	switch p.Type {
	case edge.ProbeTCP, edge.ProbeTLS, edge.ProbeHTTP, edge.ProbeStatusPing:
		r.checkUDPOnly(at, s)
	case edge.ProbeExec:
		if len(p.Command) == 0 {
			r.complain(at+".command", "is missing", "write the command, such as [/usr/local/bin/ask, \"{address}\", \"{port}\"]")
		}
		r.argv(at+".command", p.Command)
	case edge.ProbeNone, edge.ProbeUnknown:
	}
	if strings.ContainsAny(p.ServerName, " /:") {
		r.complain(at+".server_name", quote(p.ServerName)+" is not a host name", "write the name only, such as play.example.org")
	}
	if p.Path != "" && p.Path[0] != '/' {
		r.complain(at+".path", quote(p.Path)+" does not begin with /", "write it such as /healthz")
	}
	if p.Verify && p.Type == edge.ProbeHTTP && !p.TLS {
		r.warn(at+".verify", "means nothing without TLS", "write tls: true")
	}
	for i, w := range p.Status {
		if !statusRange(w) {
			r.complain(fmt.Sprintf("%s.status[%d]", at, i), quote(w)+" is not a status", "write a number or a range, such as 200 or 200-399")
		}
	}
}

// checkUDPOnly judges that there is a TCP port to ask where the service itself has none.
func (r *reader) checkUDPOnly(at string, s *edge.Service) {
	if slices.Contains(s.Protocols, edge.TCP) || len(s.Protocols) == 0 || s.Probe.Port != 0 {
		return
	}
	if slices.ContainsFunc(s.Candidates, func(c edge.Candidate) bool { return c.ProbePort == 0 }) {
		r.complain(at+".port", fmt.Sprintf("is missing: the service is UDP only, and a probe of type %s needs a TCP port", s.Probe.Type),
			"write the TCP port that tells of the server's health, or choose type exec or none")
	}
}

func statusRange(w string) bool {
	low, high, ranged := strings.Cut(w, "-")
	a, err := strconv.Atoi(low)
	b := a
	if ranged && err == nil {
		b, err = strconv.Atoi(high)
	}
	return err == nil && a >= 100 && a <= b && b <= 599
}

func (r *reader) checkParity(groups []edge.ParityGroup) {
	names := map[string]int{}
	for i, g := range groups {
		at := fmt.Sprintf("edge.parity[%d]", i)
		r.name(at, g.Name, names, i)
		r.span(at, ".every", g.Every, time.Second, 24*time.Hour)
		r.span(at, ".timeout", g.Timeout, 10*time.Millisecond, 5*time.Minute)
		if h, err := hex.DecodeString(g.Reference); g.Reference != "" && (err != nil || len(h) != 32) {
			// What stands there may be the secret itself: it is not repeated.
			r.complain(at+".reference", "is not a SHA-256 in hex", "write the 64 digits that sha256sum prints for the file")
		}
		if least := 2; g.Reference == "" && len(g.Members) < least {
			r.complain(at+".members", "one member has nothing to be compared with", "name two members, or write the reference")
		} else if len(g.Members) == 0 {
			r.complain(at+".members", "names none", "name whose copies are compared")
		}
		members := map[string]int{}
		for j, m := range g.Members {
			r.checkMember(fmt.Sprintf("%s.members[%d]", at, j), m, members, j)
		}
	}
}

func (r *reader) checkMember(at string, m edge.ParityMember, names map[string]int, i int) {
	r.name(at, m.Name, names, i)
	switch {
	case m.Path == "" && len(m.Command) == 0:
		r.complain(at+".path", "is missing", "write the file's path on this machine, or the command that prints it, such as [ssh, core-02, cat, /opt/secret]")
	case m.Path != "" && len(m.Command) > 0:
		r.complain(at+".command", "a member has a path or a command, not both", "remove one of them")
	case m.Path != "" && !filepath.IsAbs(m.Path):
		r.complain(at+".path", quote(m.Path)+" is not an absolute path", "")
	}
	r.argv(at+".command", m.Command)
}
