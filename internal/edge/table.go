package edge

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Endpoint is a transport address.
type Endpoint struct {
	Protocol Protocol       `json:"protocol"`
	Addr     netip.AddrPort `json:"addr"` // 10.0.0.50:25565
}

// Element is one element of a target map: traffic to From goes to To.
type Element struct {
	From  Endpoint       `json:"from"`
	To    netip.AddrPort `json:"to"`
	Claim Claim          `json:"claim"` // written into the element's comment
}

// Claim is what a table itself remembers of an element.
type Claim struct {
	Service string `json:"service"` // front
	Epoch   uint64 `json:"epoch"`   // raised by each move
	By      string `json:"by"`      // replica that moved it
}

// OnLink says that clients in Prefix reach Addr without the holder, so that its answers
// would not come back through the holder.
type OnLink struct {
	Prefix netip.Prefix `json:"prefix"` // 10.0.0.0/24
	Addr   netip.Addr   `json:"addr"`
}

// Lease says that shunt is at work on a replica; it runs out by itself.
type Lease struct {
	Node    string        `json:"node"`
	Holds   []string      `json:"holds,omitempty"` // services whose address the node has
	Config  string        `json:"config"`          // digest of the node's edge configuration
	Opinion string        `json:"opinion"`         // digest of its vetoes and holds
	Left    time.Duration `json:"left"`
}

// Table is what runs move in table inet shunt_edge of one replica. All lists are sorted.
type Table struct {
	Targets   []Element    `json:"targets,omitempty"`   // virtual addresses: sticky
	Nodes     []Element    `json:"nodes,omitempty"`     // the node's own addresses: local candidate first
	Services  []Endpoint   `json:"services,omitempty"`  // everything in Targets and Nodes that is answered, also without a target
	Addresses []netip.Addr `json:"addresses,omitempty"` // of Services
	Backends  []Endpoint   `json:"backends,omitempty"`  // every candidate
	Always    []Endpoint   `json:"always,omitempty"`    // candidates whose clients' addresses are replaced
	OnLink    []OnLink     `json:"on_link,omitempty"`
	Leases    []Lease      `json:"leases,omitempty"`
}

// Sort puts every list of the table into its order: by address, port, protocol; leases by node.
func (t *Table) Sort() {
	slices.SortFunc(t.Targets, compareElements)
	slices.SortFunc(t.Nodes, compareElements)
	slices.SortFunc(t.Services, compareEndpoints)
	slices.SortFunc(t.Addresses, netip.Addr.Compare)
	slices.SortFunc(t.Backends, compareEndpoints)
	slices.SortFunc(t.Always, compareEndpoints)
	slices.SortFunc(t.OnLink, compareOnLink)
	slices.SortFunc(t.Leases, compareLeases)
}

// Equal says whether two sorted tables hold the same, but for the time that leases have left.
func (t Table) Equal(o Table) bool {
	return slices.Equal(t.Targets, o.Targets) && slices.Equal(t.Nodes, o.Nodes) && slices.Equal(t.Services, o.Services) &&
		slices.Equal(t.Addresses, o.Addresses) && slices.Equal(t.Backends, o.Backends) && slices.Equal(t.Always, o.Always) &&
		slices.Equal(t.OnLink, o.OnLink) && slices.EqualFunc(t.Leases, o.Leases, sameLease)
}

// sorted is the table in order; lists that are not are copied first.
func (t Table) sorted() Table {
	t.Targets = inOrder(t.Targets, compareElements)
	t.Nodes = inOrder(t.Nodes, compareElements)
	t.Services = inOrder(t.Services, compareEndpoints)
	t.Addresses = inOrder(t.Addresses, netip.Addr.Compare)
	t.Backends = inOrder(t.Backends, compareEndpoints)
	t.Always = inOrder(t.Always, compareEndpoints)
	t.OnLink = inOrder(t.OnLink, compareOnLink)
	t.Leases = inOrder(t.Leases, compareLeases)
	return t
}

func inOrder[T any](list []T, by func(a, b T) int) []T {
	if slices.IsSortedFunc(list, by) {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, by)
	return list
}

func compareEndpoints(a, b Endpoint) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol))
}

func compareElements(a, b Element) int { return compareEndpoints(a.From, b.From) }

func compareOnLink(a, b OnLink) int {
	return cmp.Or(a.Addr.Compare(b.Addr), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
}

func compareLeases(a, b Lease) int { return strings.Compare(a.Node, b.Node) }

func sameLease(a, b Lease) bool {
	return a.Node == b.Node && a.Config == b.Config && a.Opinion == b.Opinion && slices.Equal(a.Holds, b.Holds)
}

// View is one replica's table as it was found.
type View struct {
	Replica string        `json:"replica"`
	Local   bool          `json:"local,omitempty"`
	Error   string        `json:"error,omitempty"`  // "" = reached
	Absent  bool          `json:"absent,omitempty"` // reached, no table there
	Drift   []string      `json:"drift,omitempty"`  // what of the static part is not as it should be
	Table   Table         `json:"table"`
	Took    time.Duration `json:"took"`
}

// Host is what this machine itself is seen to be.
type Host struct {
	Addresses []netip.Addr   `json:"addresses"`        // its own, on any interface that is up
	Links     []netip.Prefix `json:"links"`            // connected prefixes
	Local     []netip.Addr   `json:"local,omitempty"`  // candidates' addresses that are its own
	Sysctl    map[string]int `json:"sysctl,omitempty"` // net/ipv4/ip_forward …; absent = not readable
}
