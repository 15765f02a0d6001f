// Package profile reads and writes tunnel profiles: the `.conf` dialect of wg-quick
// with the keys of AmneziaWG. It knows nothing of lanes, pools or the kernel.
package profile

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Profile is one `.conf` file. Absent settings are zero or nil.
type Profile struct {
	PrivateKey  Key
	Addresses   []netip.Prefix // host bits kept; a bare address is a /32 or /128
	DNS         []string       // addresses and search domains, as written
	MTU         int            // bytes; 0 = not said
	ListenPort  int            // 0 = not said
	Obfuscation []KeyValue     // AmneziaWG keys of [Interface] in file order (Jc, S1, H1, I1 …)
	Extra       []KeyValue     // Table, FwMark, SaveConfig, PreUp, PostUp, PreDown, PostDown in file order; never run
	Peers       []Peer
}

// Peer is one [Peer] section.
type Peer struct {
	PublicKey    Key            // never zero
	PresharedKey Key            // zero = none
	Endpoint     string         // canonical host:port or [v6]:port; "" = none
	AllowedIPs   []netip.Prefix // host bits cleared
	Keepalive    time.Duration  // whole seconds; 0 = off; the low end of a range
	Obfuscation  []KeyValue     // AdvancedSecurity, and PersistentKeepalive where it is a range (22-30)
}

// KeyValue is a setting kept as text, with the canonical spelling of its key.
type KeyValue struct {
	Key   string // Jc
	Value string // 4
}

// ErrUnsupported is wrapped by the *SyntaxError of a key that is not known: the
// profile may be of a newer generation, and without that key it would be a silently
// dead tunnel.
var ErrUnsupported = errors.New("unsupported profile")

// SyntaxError says where and why a profile does not parse. No text of it holds the
// value of a key.
type SyntaxError struct {
	File string // as handed to Parse
	Line int    // from 1; 0 = the file as a whole
	Msg  string
	Hint string // what to do; may be ""
	Err  error  // ErrUnsupported or nil
}

// Error writes `file:line: message`.
func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Msg)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
}

// Unwrap returns ErrUnsupported for an unknown key, else nil.
func (e *SyntaxError) Unwrap() error { return e.Err }

// Endpoint is the first peer's endpoint as host:port; "" without one.
func (p Profile) Endpoint() string {
	if len(p.Peers) == 0 {
		return ""
	}
	return p.Peers[0].Endpoint
}

// EndpointAddr is the first peer's endpoint as an address and a port from 1 to 65535.
// A host name is an error: what a name means changes with who resolves it.
func (p Profile) EndpointAddr() (netip.AddrPort, error) {
	e := p.Endpoint()
	if e == "" {
		return netip.AddrPort{}, errors.New("no endpoint")
	}
	ap, err := netip.ParseAddrPort(e)
	switch {
	case err != nil:
		return netip.AddrPort{}, fmt.Errorf("endpoint %s: not a literal address", e)
	case ap.Port() == 0:
		return netip.AddrPort{}, fmt.Errorf("endpoint %s: port 0", e)
	case ap.Addr().Zone() != "":
		return netip.AddrPort{}, fmt.Errorf("endpoint %s: an address with a zone", e)
	case ap.Addr().IsUnspecified():
		return netip.AddrPort{}, fmt.Errorf("endpoint %s: the unspecified address", e)
	case ap.Addr().IsMulticast() || ap.Addr() == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.AddrPort{}, fmt.Errorf("endpoint %s: not a unicast address", e)
	}
	return ap, nil
}

// Check tells why the profile cannot be one lane's tunnel: it must have a private
// key, an address, and exactly one peer with a literal endpoint. It says nothing of
// obfuscation.
func (p Profile) Check() error {
	if p.PrivateKey.IsZero() {
		return errors.New("no private key")
	}
	if len(p.Addresses) == 0 {
		return errors.New("no address")
	}
	if len(p.Peers) != 1 {
		return fmt.Errorf("%d peers, want exactly one", len(p.Peers))
	}
	_, err := p.EndpointAddr()
	return err
}
