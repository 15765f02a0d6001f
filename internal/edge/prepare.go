package edge

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// prepared is the configuration as the planner walks it. A session makes it once.
type prepared struct {
	config   Config
	digest   string
	services []service
	replicas []Replica // in order; without any configured this machine
	alone    bool      // no replicas are configured
	homes    map[Key]home
	byName   map[string]int // service -> index
	byVIP    map[netip.Addr][]int
	known    map[Endpoint]bool // of every virtual and node address
	sets     map[string]sets   // by replica, with its own addresses
	behind   []netip.Addr      // of every candidate, in order
}

// home is where a key belongs.
type home struct{ service, family, candidate int }

type service struct {
	*Service
	families []family
}

// family is one service in one address family: what is moved as one.
type family struct {
	n          int        // 4 or 6
	vip        netip.Addr // invalid = none
	from       []Endpoint // of the virtual address, one for each protocol
	candidates []candidate
}

type candidate struct {
	name, node string
	addr       netip.AddrPort
	key        Key
	asked      netip.AddrPort // where its probe goes
}

// sets are the lists of a table that follow from configuration alone.
type sets struct {
	services  []Endpoint
	addresses []netip.Addr
	backends  []Endpoint
	always    []Endpoint
}

func prepare(c Config, node string) *prepared {
	p := &prepared{
		config: c, digest: configDigest(c), replicas: c.Replicas, homes: map[Key]home{}, byName: map[string]int{},
		byVIP: map[netip.Addr][]int{}, known: map[Endpoint]bool{},
	}
	if len(p.replicas) == 0 {
		p.alone = true
		p.replicas = []Replica{{Name: node}}
	}
	p.services = make([]service, 0, len(c.Services))
	for i := range c.Services {
		p.add(&c.Services[i])
	}
	p.collect()
	return p
}

func (p *prepared) add(s *Service) {
	if _, twice := p.byName[s.Name]; twice {
		return
	}
	at := len(p.services)
	p.byName[s.Name] = at
	sv := service{Service: s}
	for _, n := range []int{4, 6} {
		f := family{n: n}
		for _, a := range s.VIP {
			if !f.vip.IsValid() && familyOf(a) == n {
				f.vip = a.Unmap()
				p.byVIP[f.vip] = append(p.byVIP[f.vip], at)
			}
		}
		if !f.vip.IsValid() && !p.nodesOf(s, n) {
			continue
		}
		if f.vip.IsValid() {
			f.from = p.claim(f.vip, s)
		}
		for ci := range s.Candidates {
			c := &s.Candidates[ci]
			cand := candidate{name: CandidateName(*c), node: c.Node, addr: c.Reached(s, n)}
			if !cand.addr.IsValid() {
				continue
			}
			cand.asked = netip.AddrPortFrom(cand.addr.Addr(), probePort(s, c))
			cand.key = keyOf(s, c, cand.addr, n)
			if _, twice := p.homes[cand.key]; twice {
				continue
			}
			p.homes[cand.key] = home{at, len(sv.families), len(f.candidates)}
			f.candidates = append(f.candidates, cand)
		}
		sv.families = append(sv.families, f)
	}
	p.services = append(p.services, sv)
}

// claim makes the endpoints of one address of a service. What an earlier service has is
// not given twice.
func (p *prepared) claim(a netip.Addr, s *Service) []Endpoint {
	var out []Endpoint
	for _, proto := range protocols(s) {
		e := Endpoint{Protocol: proto, Addr: netip.AddrPortFrom(a, port(s.Port, 0))}
		if !p.known[e] {
			p.known[e] = true
			out = append(out, e)
		}
	}
	return out
}

func (p *prepared) nodesOf(s *Service, n int) bool {
	return s.Nodes && slices.ContainsFunc(p.replicas, func(r Replica) bool {
		return slices.ContainsFunc(r.Addresses, func(a netip.Addr) bool { return familyOf(a) == n })
	})
}

// collect makes the lists that follow from configuration, for each replica.
func (p *prepared) collect() {
	var all sets
	for i := range p.services {
		s := &p.services[i]
		for _, f := range s.families {
			all.services = append(all.services, f.from...)
			if len(f.from) > 0 {
				all.addresses = append(all.addresses, f.vip)
			}
			for _, c := range f.candidates {
				for _, proto := range protocols(s.Service) {
					e := Endpoint{Protocol: proto, Addr: c.addr}
					all.backends = append(all.backends, e)
					if s.SNAT == SNATAlways {
						all.always = append(all.always, e)
					}
				}
			}
		}
	}
	all.backends, all.always = sortedEndpoints(all.backends), sortedEndpoints(all.always)
	for _, e := range all.backends {
		p.behind = append(p.behind, e.Addr.Addr())
	}
	p.behind = slices.Compact(p.behind)
	p.sets = make(map[string]sets, len(p.replicas))
	for ri := range p.replicas {
		own := all
		own.services, own.addresses = slices.Clone(all.services), slices.Clone(all.addresses)
		for i := range p.services {
			for fi := range p.services[i].families {
				for _, e := range nodeEndpoints(&p.services[i], &p.services[i].families[fi], &p.replicas[ri]) {
					own.services, own.addresses = append(own.services, e), append(own.addresses, e.Addr.Addr())
				}
			}
		}
		own.services, own.addresses = sortedEndpoints(own.services), sortedAddrs(own.addresses)
		p.sets[p.replicas[ri].Name] = own
	}
}

// nodeEndpoints are those of one replica's own addresses for one service and family.
func nodeEndpoints(s *service, f *family, r *Replica) []Endpoint {
	if !s.Nodes {
		return nil
	}
	var out []Endpoint
	for _, a := range r.Addresses {
		if familyOf(a) != f.n {
			continue
		}
		for _, proto := range protocols(s.Service) {
			out = append(out, Endpoint{Protocol: proto, Addr: netip.AddrPortFrom(a.Unmap(), port(s.Port, 0))})
		}
	}
	return out
}

func protocols(s *Service) []Protocol {
	if len(s.Protocols) == 0 {
		return []Protocol{TCP}
	}
	return s.Protocols
}

func familyOf(a netip.Addr) int {
	switch {
	case a.Unmap().Is4():
		return 4
	case a.Is6():
		return 6
	}
	return 0
}

func port(own, other int) uint16 {
	if own == 0 {
		own = other
	}
	if own < 0 || own > 65535 {
		return 0
	}
	return uint16(own)
}

// CandidateName is the name of a candidate: its own, or its first address.
func CandidateName(c Candidate) string {
	if c.Name == "" && len(c.Addresses) > 0 {
		return c.Addresses[0].String()
	}
	return c.Name
}

// Reached is where a service reaches a candidate in one family (4 or 6): its first address of
// that family with its own port, else the service's. Invalid: it has none.
func (c *Candidate) Reached(s *Service, family int) netip.AddrPort {
	for _, a := range c.Addresses {
		if familyOf(a) == family {
			return netip.AddrPortFrom(a.Unmap(), port(c.Port, s.Port))
		}
	}
	return netip.AddrPort{}
}

// KeyOf is the key of a candidate's address of one family (4 or 6); "" when it has none.
func KeyOf(s Service, c Candidate, family int) Key {
	if at := c.Reached(&s, family); at.IsValid() {
		return keyOf(&s, &c, at, family)
	}
	return ""
}

// keyOf names what an answer speaks of: a candidate's address, and the question. Intervals
// and thresholds are not in it: they say how often is enough, not what was asked.
func keyOf(s *Service, c *Candidate, addr netip.AddrPort, family int) Key {
	b := make([]byte, 0, 128)
	b = addr.AppendTo(b)
	text := func(t string) {
		b = strconv.AppendInt(b, int64(len(t)), 10)
		b = append(b, ':')
		b = append(b, t...)
	}
	p := &s.Probe
	text(string(p.Type))
	b = strconv.AppendInt(b, int64(probePort(s, c)), 10)
	text(p.ServerName)
	text(p.Path)
	text(p.Body)
	for _, t := range p.Status {
		text(t)
	}
	b = append(b, '|')
	for _, t := range p.Command {
		text(t)
	}
	for _, is := range []bool{p.TLS, p.Verify, p.ProxyV2, p.Login} {
		b = strconv.AppendBool(b, is)
	}
	h := fnv.New32a()
	_, _ = h.Write(b)
	sum := strconv.FormatUint(uint64(h.Sum32()), 16)
	sum = strings.Repeat("0", 8-len(sum)) + sum
	return Key(s.Name + "/" + CandidateName(*c) + "/" + strconv.Itoa(family) + "/" + sum)
}

func probePort(s *Service, c *Candidate) uint16 {
	for _, p := range []int{c.ProbePort, s.Probe.Port, c.Port} {
		if p != 0 {
			return port(p, 0)
		}
	}
	return port(s.Port, 0)
}

// ProbeTargets is everything that is to be asked, in the order of the configuration.
func ProbeTargets(c Config) []ProbeTarget {
	var out []ProbeTarget
	p := prepare(c, "")
	for i := range p.services {
		out = append(out, p.services[i].targets()...)
	}
	return out
}

func (s *service) targets() []ProbeTarget {
	if s.Probe.Type == ProbeNone {
		return nil
	}
	var out []ProbeTarget
	for _, f := range s.families {
		for _, c := range f.candidates {
			out = append(out, ProbeTarget{Key: c.key, Service: s.Name, Candidate: c.name, Addr: c.asked, Probe: s.Probe})
		}
	}
	return out
}

// configDigest tells whether two machines act on the same words. What differs between
// machines by its nature is left out: their names, their ways to each other.
func configDigest(c Config) string {
	shared := struct {
		VetoFor  time.Duration
		Replicas []Replica
		Services []Service
	}{VetoFor: c.VetoFor, Services: c.Services}
	for _, r := range c.Replicas {
		shared.Replicas = append(shared.Replicas, Replica{Name: r.Name, Addresses: r.Addresses})
	}
	b, err := json.Marshal(shared)
	if err != nil { // a value that JSON has no word for: not from a configuration file
		return ""
	}
	return short(b)
}

func short(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:4])
}

func sortedEndpoints(list []Endpoint) []Endpoint {
	slices.SortFunc(list, compareEndpoints)
	return slices.Compact(list)
}

func sortedAddrs(list []netip.Addr) []netip.Addr {
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}
