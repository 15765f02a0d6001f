package edge

import (
	"net/netip"
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
