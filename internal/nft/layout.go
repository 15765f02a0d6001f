package nft

import (
	"fmt"
	"strings"
)

const (
	tableName  = "shunt_edge"
	tableTitle = "table inet " + tableName
)

// kind is one list of edge.Table. All but the leases have a set for each family.
type kind string

const (
	kindTarget  kind = "target"
	kindNode    kind = "node"
	kindLease   kind = "lease"
	kindService kind = "service"
	kindAddress kind = "address"
	kindBackend kind = "backend"
	kindAlways  kind = "always"
	kindOnLink  kind = "onlink"
)

func kinds() []kind {
	return []kind{kindTarget, kindNode, kindLease, kindService, kindAddress, kindBackend, kindAlways, kindOnLink}
}

// set describes one named set or map.
type set struct {
	name   string
	kind   kind
	family int      // 4 or 6; 0 = none
	key    []string // types of its key
	data   []string // types of what it maps to; nil = not a map
	flags  string   // "" = none
}

// size bounds each of the kind's sets. A set that has a bound is of a sort that lists
// completely also while it changes, and replaces an element at the same cost however many
// there are; but its room is taken at once and walked through whenever it is listed.
func (k kind) size() int {
	switch k {
	case kindBackend, kindAlways, kindOnLink: // some for each service
		return 65536
	case kindTarget, kindNode, kindLease, kindService, kindAddress:
	}
	return 16384
}

// in is the name of the kind's set for a family.
func (k kind) in(family int) string {
	if k == kindLease {
		return string(k)
	}
	return fmt.Sprintf("%s%d", k, family)
}

// sets are the kind's.
func (k kind) sets() []set {
	if k == kindLease {
		return []set{{name: k.in(0), kind: k, key: []string{"mark"}, flags: "timeout"}}
	}
	var out []set
	for _, family := range []int{4, 6} {
		addr := fmt.Sprintf("ipv%d_addr", family)
		s := set{name: k.in(family), kind: k, family: family, key: []string{addr, "inet_proto", "inet_service"}}
		switch k {
		case kindTarget, kindNode:
			s.data = []string{addr, "inet_service"}
		case kindAddress:
			s.key = []string{addr}
		case kindOnLink:
			s.key, s.flags = []string{addr, addr}, "interval"
		case kindService, kindBackend, kindAlways, kindLease:
		}
		out = append(out, s)
	}
	return out
}

func sets() []set {
	var out []set
	for _, k := range kinds() {
		out = append(out, k.sets()...)
	}
	return out
}

// head is how nft begins the set's definition.
func (s set) head() string {
	if s.data != nil {
		return "map " + s.name
	}
	return "set " + s.name
}

// typeText is the set's type as nft prints it.
func (s set) typeText() string {
	t := strings.Join(s.key, " . ")
	if s.data != nil {
		t += " : " + strings.Join(s.data, " . ")
	}
	return t
}

// chain is a base chain whose policy is accept.
type chain struct {
	name     string
	typ      string // nat
	hook     string // prerouting
	hooknum  uint32
	priority int32
	prio     string // as nft 1.0 prints it
	rules    []string
}

// chains are guarded by the local address or look at flows that were guarded so: on a
// replica that does not hold the address no rule matches, neither for its own packets nor
// for those that it passes on. The packet's mark is never touched: lanes route by it.
func chains() []chain {
	return []chain{
		{name: "prerouting", typ: "nat", hook: "prerouting", hooknum: 0, priority: -100, prio: "dstnat", rules: dnat()},
		{name: "output", typ: "nat", hook: "output", hooknum: 3, priority: -100, prio: "-100", rules: dnat()},
		{name: "postrouting", typ: "nat", hook: "postrouting", hooknum: 4, priority: 100, prio: "srcnat", rules: snat()},
		{name: "forward", typ: "filter", hook: "forward", hooknum: 2, priority: 0, prio: "filter", rules: strays(late, "saddr", "tcp sport", kindBackend)},
		{name: "input", typ: "filter", hook: "input", hooknum: 1, priority: 0, prio: "filter", rules: strays("", "daddr", "th dport", kindService)},
		{name: "resets", typ: "filter", hook: "output", hooknum: 3, priority: 0, prio: "filter", rules: resets()},
	}
}

func dnat() []string {
	var rules []string
	for _, k := range []kind{kindTarget, kindNode} {
		rules = append(rules,
			"fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @"+k.in(4),
			"fib daddr type local dnat ip6 to ip6 daddr . meta l4proto . th dport map @"+k.in(6))
	}
	return rules
}

// snat hides a client only where the way back would miss us: the holder's own connections,
// clients that the candidate reaches without us, and services that ask for it.
func snat() []string {
	var rules []string
	for _, f := range []struct {
		family int
		ip     string
	}{{4, "ip"}, {6, "ip6"}} {
		ours := fmt.Sprintf("ct status dnat ct original %s daddr @%s ", f.ip, kindAddress.in(f.family))
		rules = append(rules,
			ours+"fib saddr type local masquerade",
			ours+fmt.Sprintf("%s saddr . %[1]s daddr @%s masquerade", f.ip, kindOnLink.in(f.family)),
			ours+fmt.Sprintf("%s daddr . meta l4proto . th dport @%s masquerade", f.ip, kindAlways.in(f.family)))
	}
	return rules
}

// late are packets of a connection that has begun. An answer to a connection's first packet
// is never out of place: where we have not seen that one, it went another way than the
// answers, and is none of our business.
const late = "tcp flags != syn,ack / syn,ack "

// strays drops packets of our flows that connection tracking can't place, say with a
// sequence number of long ago. Nobody would translate them, and whoever got them would
// reset a healthy connection.
func strays(which, addr, port string, k kind) []string {
	return []string{
		fmt.Sprintf("ct state invalid %sip %s . meta l4proto . %s @%s counter drop", which, addr, port, k.in(4)),
		fmt.Sprintf("ct state invalid %sip6 %s . meta l4proto . %s @%s counter drop", which, addr, port, k.in(6)),
	}
}

// resets drops what this machine itself answers to such a packet from a candidate when no
// socket of its own wants it. The packet is let in: it may as well be the end of a
// connection of this machine that is older than connection tracking here, like a tripwire.
func resets() []string {
	return []string{
		fmt.Sprintf("ct state invalid tcp flags rst ip daddr . meta l4proto . tcp dport @%s counter drop", kindBackend.in(4)),
		fmt.Sprintf("ct state invalid tcp flags rst ip6 daddr . meta l4proto . tcp dport @%s counter drop", kindBackend.in(6)),
	}
}
