package egress

import (
	"net/netip"
	"time"
)

// DeviceView is what a lane's device holds now.
type DeviceView struct {
	Present   bool       `json:"present"` // the interface exists
	Up        bool       `json:"up"`
	Peers     []PeerView `json:"peers,omitempty"`
	Userspace bool       `json:"userspace,omitempty"`
	MTU       int        `json:"mtu,omitempty"` // bytes
	Error     string     `json:"error,omitempty"`
}

// PeerView is one peer of a device. Keys never leave the adapter: Pair is a salted
// fingerprint of (server public key, client public key).
type PeerView struct {
	Pair      string         `json:"pair"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	Handshake time.Time      `json:"handshake,omitzero"` // last completed; zero = never
	Rx        int64          `json:"rx"`                 // bytes
	Tx        int64          `json:"tx"`                 // bytes
	Allowed   int            `json:"allowed"`            // number of allowed prefixes; 0 = carries nothing
}

// Active returns the peer that carries the lane's traffic.
func (d DeviceView) Active() (PeerView, bool) {
	for _, p := range d.Peers {
		if p.Allowed > 0 {
			return p, true
		}
	}
	return PeerView{}, false
}

// Round is one round of bound pings through a lane, with what was received meanwhile.
type Round struct {
	Sent     int           `json:"sent"`
	Got      int           `json:"got"`
	Pass     bool          `json:"pass"` // Got reached the need
	RTT      time.Duration `json:"rtt"`  // least seen
	Took     time.Duration `json:"took"`
	RxBefore int64         `json:"rx_before"` // bytes of the active peer
	RxAfter  int64         `json:"rx_after"`
	Error    string        `json:"error,omitempty"` // certain at once: no such device, network unreachable
}

// Deep is the slower rungs of the ladder: TLS to unrelated targets and a full-size packet.
type Deep struct {
	TLS      []TLSResult   `json:"tls,omitempty"`
	FullSize bool          `json:"full_size"`           // a packet of the lane's MTU came back; true when not asked for
	HalfSize bool          `json:"half_size,omitempty"` // one of half the size came back; tried when the full-size one did not
	Took     time.Duration `json:"took"`
}

// TLSResult is one TLS handshake through a lane.
type TLSResult struct {
	Address string        `json:"address"`
	OK      bool          `json:"ok"`
	Took    time.Duration `json:"took"`
	Error   string        `json:"error,omitempty"`
}

// UplinkView is what the direct path to the gateway and to independent targets said.
type UplinkView struct {
	Interface string          `json:"interface,omitempty"`
	Gateway   netip.Addr      `json:"gateway,omitzero"`
	GatewayOK bool            `json:"gateway_ok"`
	Targets   map[string]bool `json:"targets,omitempty"` // address -> answered
	Error     string          `json:"error,omitempty"`
}

// TestTarget is an endpoint to be tested in process. Profile is opaque to the domain.
type TestTarget struct {
	Endpoint string // host:port, the identity
	Path     string // of its .conf
	Pair     string // fingerprint; never tested while a lane uses it
}

// TestResult is what one endpoint's test showed.
type TestResult struct {
	Endpoint  string        `json:"endpoint"`
	Path      string        `json:"path,omitempty"`
	Handshake time.Duration `json:"handshake"` // 0 = none
	Sent      int           `json:"sent"`
	Got       int           `json:"got"`
	Avg       time.Duration `json:"avg"`    // of the pings
	Jitter    time.Duration `json:"jitter"` // mean difference of neighbours
	FullSize  bool          `json:"full_size"`
	TestedAt  time.Time     `json:"tested_at"`
	Via       string        `json:"via,omitempty"`    // lane that measured it, "" = in process
	Reason    string        `json:"reason,omitempty"` // why it is not usable; "" = it is
}

// SwapReport is what a swap did.
type SwapReport struct {
	Method    string        `json:"method"`    // make-before-break | in-place | commands
	Handshake time.Duration `json:"handshake"` // of the new peer
	Took      time.Duration `json:"took"`
}

// PlaneView is which lane each class of users travels through now, and whether the
// static part (table, rules, routes) is as it should be.
type PlaneView struct {
	Ready   bool              `json:"ready"`
	Drift   []string          `json:"drift,omitempty"` // what differs from the wanted state
	Classes map[string]string `json:"classes"`         // home lane -> lane that carries its class; "" = none (closed); "direct"
}
