package tunnel

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// The bounds of a profile's MTU, in bytes: the least that IPv4 hosts accept, and what a UDP datagram can hold.
const (
	minMTU = 576
	maxMTU = 65000
)

// subject is a target with what its profile says.
type subject struct {
	target      egress.TestTarget
	unsupported string // reason, or ""
	pair        string // the target's fingerprint
	private     profile.Key
	public      profile.Key // the server's
	preshared   profile.Key
	endpoint    netip.AddrPort
	params      amnezia.Params // zero = WireGuard itself
	mtu         int            // bytes
	pings       []path         // in turn
	witnesses   []witness
}

// codec is what turns WireGuard's messages into the server's; nil = nothing has to.
func (s *subject) codec() (*amnezia.Codec, error) {
	if s.params.Plain() {
		return nil, nil //nolint:nilnil // nothing has to
	}
	return amnezia.NewCodec(s.params, amnezia.Options{
		Self: s.private.Public(), Peers: []profile.Key{s.public},
		Now: time.Now, //nolint:forbidigo // a tag in junk that nobody reads
	})
}

// path is where a ping goes inside the tunnel.
type path struct{ from, to netip.Addr }

func (s *subject) result(reason string) egress.TestResult {
	return egress.TestResult{Endpoint: s.target.Endpoint, Path: s.target.Path, Reason: reason}
}

// load reads the profiles. It also says which address families the endpoints have.
func load(targets []egress.TestTarget, c egress.TestConfig) ([]*subject, map[string]bool) {
	subjects := make([]*subject, len(targets))
	families := map[string]bool{}
	for i, t := range targets {
		s := &subject{target: t, pair: t.Pair}
		subjects[i] = s
		if err := s.read(c); err != nil {
			s.unsupported = fmt.Sprintf("%s: %v", ReasonUnsupported, err)
			continue
		}
		if s.endpoint.Addr().Is4() {
			families["udp4"] = true
		} else {
			families["udp6"] = true
		}
	}
	return subjects, families
}

func (s *subject) read(c egress.TestConfig) error {
	p, err := profile.ParseFile(s.target.Path)
	if err != nil {
		return err
	}
	if err := p.Check(); err != nil {
		return err
	}
	if p.Obfuscated() {
		if s.params, err = amnezia.FromProfile(p); err != nil {
			return err
		}
	}
	ap, err := p.EndpointAddr()
	if err != nil {
		return err
	}
	s.endpoint = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	// The file may have been replaced since the target was made of it.
	if want, err := netip.ParseAddrPort(s.target.Endpoint); err == nil && want != ap {
		return fmt.Errorf("%s holds endpoint %s now, not %s", s.target.Path, ap, want)
	}
	s.private, s.public, s.preshared = p.PrivateKey, p.Peers[0].PublicKey, p.Peers[0].PresharedKey
	s.mtu = s.params.Inside(p.MTU, DefaultMTU)
	if s.mtu < minMTU || s.mtu > maxMTU {
		return fmt.Errorf("mtu %d", s.mtu)
	}
	for _, to := range c.Targets {
		for _, a := range p.Addresses {
			if a.Addr().Unmap().Is4() == to.Is4() {
				s.pings = append(s.pings, path{a.Addr().Unmap(), to})
				break
			}
		}
	}
	if len(c.Targets) > 0 && len(s.pings) == 0 {
		return fmt.Errorf("no address of the family of any target")
	}
	if s.witnesses = witnesses(p.Addresses, s.mtu, c.TLS); len(c.TLS) > 0 && len(s.witnesses) == 0 {
		return fmt.Errorf("no address of the family of any TLS target")
	}
	return nil
}

// pairKeys is what decides whether two tests take each other's session.
type pairKeys struct{ private, public profile.Key }

// byPair puts the subjects of one pair into one group; order is kept.
func byPair(subjects []*subject) [][]*subject {
	var groups [][]*subject
	index := map[pairKeys]int{}
	for _, s := range subjects {
		if s.unsupported != "" {
			groups = append(groups, []*subject{s})
			continue
		}
		k := pairKeys{s.private, s.public}
		i, ok := index[k]
		if !ok {
			i = len(groups)
			index[k] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	return groups
}

// keyUses counts the groups of each client key.
func keyUses(groups [][]*subject) map[profile.Key]int {
	uses := map[profile.Key]int{}
	for _, g := range groups {
		if g[0].unsupported == "" {
			uses[g[0].private]++
		}
	}
	return uses
}
