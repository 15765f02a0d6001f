package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/server"
)

// Uplink counts what came out of the router towards the world, in packets, as the gateway
// saw it. Every packet is in exactly one of Tunnel, Checks, Errors and Clear; neighbour
// discovery is in none. Users, Marked, List and Names look at the same packets in other ways.
type Uplink struct {
	Tunnel uint64 `json:"tunnel"` // UDP to endpoints
	Checks uint64 `json:"checks"` // the router's own pings to the gateway and to uplink targets
	Errors uint64 `json:"errors"` // ICMP errors of the router itself, to endpoints
	Clear  uint64 `json:"clear"`  // anything else: what must not be there
	Users  uint64 `json:"users"`  // from users' own addresses
	Marked uint64 `json:"marked"` // numbered packets of users' UDP flows outside any tunnel, whatever their address
	List   uint64 `json:"list"`   // to the provider's site, outside any tunnel
	Names  uint64 `json:"names"`  // questions to resolvers, outside any tunnel
}

// Sub is what came between an earlier reading and this one.
func (u Uplink) Sub(was Uplink) Uplink {
	return Uplink{u.Tunnel - was.Tunnel, u.Checks - was.Checks, u.Errors - was.Errors, u.Clear - was.Clear, u.Users - was.Users, u.Marked - was.Marked, u.List - was.List, u.Names - was.Names}
}

const (
	countTable = "count"
	cutTable   = "cut"
)

// counterRule is one line of the counting chain.
type counterRule struct {
	name  string // field of Uplink; "" = not counted
	match []expr.Any
	stop  bool // nothing after it sees the packet
}

// counterRules are, in nft's words, all after `iifname "cust0"`:
//
//	ip saddr 10.20.0.0/24 counter            users
//	ip6 saddr fd20::/64 counter              users
//	meta l4proto udp @th,64,64 MAGIC counter marked
//	ip daddr 203.0.113.80 counter            list
//	meta l4proto udp|tcp @th,16,16 53 counter names
//	icmpv6 type 130-136, 143 accept          neighbour discovery and multicast groups
//	ip daddr 198.18.0.0/15 udp dport 42000-42999 counter accept   tunnel
//	ip saddr 192.0.2.2 ip daddr TARGET icmp type echo-request counter accept   checks (each target)
//	ip saddr 192.0.2.2 ip daddr 198.18.0.0/15 icmp type destination-unreachable counter accept   errors
//	counter                                  clear
func counterRules() []counterRule {
	prefix := netip.MustParsePrefix
	rules := []counterRule{
		{"users", inNet(prefix(LANNet4), false), false},
		{"users", inNet(prefix(LANNet6), false), false},
		{"marked", append(proto(unix.IPPROTO_UDP), equal(expr.PayloadBaseTransportHeader, 8, []byte(server.Magic))...), false},
		{"list", inNet(prefix(List4+"/32"), true), false},
		{"names", append(proto(unix.IPPROTO_UDP), equal(expr.PayloadBaseTransportHeader, 2, []byte{0, 53})...), false},
		{"names", append(proto(unix.IPPROTO_TCP), equal(expr.PayloadBaseTransportHeader, 2, []byte{0, 53})...), false},
		{"", append(proto(unix.IPPROTO_ICMPV6), between(130, 136)...), true},
		{"", append(proto(unix.IPPROTO_ICMPV6), equal(expr.PayloadBaseTransportHeader, 0, []byte{143})...), true},
		{"tunnel", join(
			inNet(prefix(server.EndpointNet), true), proto(unix.IPPROTO_UDP),
			[]expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binaryutil.BigEndian.PutUint16(server.FirstPort), ToData: binaryutil.BigEndian.PutUint16(server.FirstPort + server.PortCount - 1)},
			}), true},
	}
	for _, t := range []string{Gateway4, Uplink4a, Uplink4b} {
		rules = append(rules, counterRule{"checks", join(inNet(prefix(RouterWAN4+"/32"), false), inNet(prefix(t+"/32"), true), icmp(unix.IPPROTO_ICMP, 8)), true})
	}
	for _, t := range []string{Gateway6, Uplink6a, Uplink6b} {
		rules = append(rules, counterRule{"checks", join(inNet(prefix(RouterWAN6+"/128"), false), inNet(prefix(t+"/128"), true), icmp(unix.IPPROTO_ICMPV6, 128)), true})
	}
	return append(rules,
		counterRule{"errors", join(inNet(prefix(RouterWAN4+"/32"), false), inNet(prefix(server.EndpointNet), true), icmp(unix.IPPROTO_ICMP, 3)), true},
		counterRule{"clear", nil, true})
}

// installCounters makes the counting table at the gateway.
func (w *World) installCounters() error {
	c, err := w.nft()
	if err != nil {
		return err
	}
	defer c.CloseLasting() //nolint:errcheck // read only from here on
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: countTable})
	chain := c.AddChain(&nftables.Chain{
		Name: "in", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-400),
	})
	for _, r := range counterRules() {
		e := append(iif(ispInterface), r.match...)
		if r.name != "" {
			e = append(e, &expr.Counter{})
		}
		if r.stop {
			e = append(e, &expr.Verdict{Kind: expr.VerdictAccept})
		}
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: e, UserData: []byte(r.name)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("isp: counters: %w", err)
	}
	return nil
}

// Uplink reads the gateway's counters.
func (w *World) Uplink() (Uplink, error) {
	c, err := w.nft()
	if err != nil {
		return Uplink{}, err
	}
	defer c.CloseLasting() //nolint:errcheck // nothing was written
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: countTable}
	rules, err := c.GetRules(t, &nftables.Chain{Name: "in", Table: t})
	if err != nil {
		return Uplink{}, fmt.Errorf("isp: counters: %w", err)
	}
	var u Uplink
	fields := map[string]*uint64{"tunnel": &u.Tunnel, "checks": &u.Checks, "errors": &u.Errors, "clear": &u.Clear, "users": &u.Users, "marked": &u.Marked, "list": &u.List, "names": &u.Names}
	for _, r := range rules {
		f := fields[strings.TrimRight(string(r.UserData), "\x00")]
		for _, e := range r.Exprs {
			if k, ok := e.(*expr.Counter); ok && f != nil {
				*f += k.Packets
			}
		}
	}
	return u, nil
}

// nft opens nftables at the gateway.
func (w *World) nft() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(w.ISP.FD()), nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("isp: nftables: %w", err)
	}
	return c, nil
}

func iif(name string) []expr.Any {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: b}}
}

func join(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func proto(p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{p}}}
}

func equal(base expr.PayloadBase, offset uint32, want []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(want))}, //nolint:gosec // short
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: want},
	}
}

func icmp(p, kind byte) []expr.Any {
	return append(proto(p), equal(expr.PayloadBaseTransportHeader, 0, []byte{kind})...)
}

// between matches an ICMP type from lo to hi.
func between(lo, hi byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{lo}, ToData: []byte{hi}},
	}
}

// inNet matches the source or the destination address.
func inNet(p netip.Prefix, dst bool) []expr.Any {
	n := uint32(p.Addr().BitLen() / 8) //nolint:gosec // 4 or 16
	family, offset := byte(unix.NFPROTO_IPV4), uint32(12)
	if n == 16 {
		family, offset = unix.NFPROTO_IPV6, 8
	}
	if dst {
		offset += n
	}
	mask := make([]byte, n)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: n, Mask: mask, Xor: make([]byte, n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// be16 reads a port from a packet.
func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
