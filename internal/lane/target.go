package lane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// kickKeepalive is the keepalive that a new peer has until its handshake: turning one on
// is what makes a device send an initiation at once, without any user traffic.
const kickKeepalive = 25 * time.Second

// target is a profile as a device holds it.
type target struct {
	path      string
	profile   profile.Profile
	key       wgtypes.Key
	server    wgtypes.Key
	preshared wgtypes.Key
	endpoint  netip.AddrPort
	allowed   []netip.Prefix // masked, sorted, unique
	addresses []netip.Prefix // as written, unique
	keepalive time.Duration
	params    amnezia.Params // obfuscation; zero = WireGuard itself
	mtu       int            // 0 = whatever the device has
	port      int            // 0 = whatever the device has
}

// load reads and validates the profile at path completely, for that lane: what it returns
// can be set.
func load(path string, l egress.Lane) (target, error) {
	p, err := profile.ParseFile(path)
	if err != nil {
		return target{}, err
	}
	t, err := newTarget(p, l)
	if err != nil {
		return target{}, fmt.Errorf("profile %s: %w", path, err)
	}
	t.path = path
	return t, nil
}

func newTarget(p profile.Profile, l egress.Lane) (target, error) {
	if p.Obfuscated() && !l.Carries(egress.NeedsAmneziaWG) {
		return target{}, fmt.Errorf("amneziawg profile: the lane's driver %q cannot carry it", l.Driver)
	}
	if err := p.Check(); err != nil {
		return target{}, err
	}
	params, err := amnezia.FromProfile(p)
	if err != nil {
		return target{}, err
	}
	mtu := p.MTU
	if !params.Plain() || l.Driver == egress.DriverAmneziaWG { // a plain one follows one with a smaller MTU
		mtu = params.Inside(p.MTU, DefaultMTU)
	}
	peer := p.Peers[0]
	ep, err := p.EndpointAddr()
	if err != nil {
		return target{}, err
	}
	t := target{
		profile: p, key: clamped(p.PrivateKey), server: wgtypes.Key(peer.PublicKey), preshared: wgtypes.Key(peer.PresharedKey),
		endpoint: netip.AddrPortFrom(ep.Addr().Unmap(), ep.Port()), keepalive: peer.Keepalive, mtu: mtu, params: params, port: p.ListenPort,
		allowed: masked(peer.AllowedIPs), addresses: unique(p.Addresses),
	}
	has6 := slices.ContainsFunc(t.addresses, func(a netip.Prefix) bool { return a.Addr().Is6() })
	switch {
	case peer.PublicKey.IsZero():
		return target{}, errors.New("peer without PublicKey")
	case peer.PublicKey == p.PrivateKey.Public():
		return target{}, errors.New("the peer's PublicKey is the lane's own")
	case len(t.allowed) == 0:
		return target{}, errors.New("peer without AllowedIPs carries nothing")
	case t.keepalive < 0 || t.keepalive > 65535*time.Second:
		return target{}, fmt.Errorf("PersistentKeepalive %s: want 0 to 65535 seconds", t.keepalive)
	case t.mtu != 0 && (t.mtu < 576 || t.mtu > 65535):
		return target{}, fmt.Errorf("MTU %d: want 576 to 65535", t.mtu)
	case t.mtu != 0 && t.mtu < 1280 && has6:
		return target{}, fmt.Errorf("MTU %d: the kernel takes IPv6 addresses from a link below 1280", t.mtu)
	}
	return t, nil
}

// clamped is the private key as a device gives it back: the form that Curve25519 uses.
func clamped(k profile.Key) wgtypes.Key {
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return wgtypes.Key(k)
}

func unique(in []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(in))
	for _, p := range in {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func masked(in []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(in))
	for _, p := range in {
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, comparePrefix)
	return slices.Compact(out)
}

func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

// full is the whole peer, with allowed prefixes and its own keepalive.
func (t target) full() wgtypes.PeerConfig {
	k, psk := t.keepalive, t.preshared
	return wgtypes.PeerConfig{
		PublicKey: t.server, PresharedKey: &psk, Endpoint: net.UDPAddrFromAddrPort(t.endpoint),
		PersistentKeepaliveInterval: &k, ReplaceAllowedIPs: true, AllowedIPs: ipNets(t.allowed),
	}
}

// kicked is the whole peer with a keepalive that starts its handshake at once.
func (t target) kicked() wgtypes.PeerConfig {
	p := t.full()
	if t.keepalive == 0 {
		k := kickKeepalive
		p.PersistentKeepaliveInterval = &k
	}
	return p
}

// warm is the peer before it carries anything.
func (t target) warm() wgtypes.PeerConfig {
	p := t.kicked()
	p.AllowedIPs = nil
	return p
}

// calm sets the profile's own keepalive on a peer that was kicked.
func (t target) calm() wgtypes.PeerConfig {
	k := t.keepalive
	return wgtypes.PeerConfig{PublicKey: t.server, UpdateOnly: true, PersistentKeepaliveInterval: &k}
}

func ipNets(in []netip.Prefix) []net.IPNet {
	out := make([]net.IPNet, 0, len(in))
	for _, p := range in {
		out = append(out, *ipNet(p))
	}
	return out
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// prefix is the inverse of ipNet; the zero Prefix where n is not one.
func prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

func prefixes(in []net.IPNet) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(in))
	for i := range in {
		out = append(out, prefix(&in[i]))
	}
	return masked(out)
}

func endpointOf(p wgtypes.Peer) netip.AddrPort {
	if p.Endpoint == nil {
		return netip.AddrPort{}
	}
	ap := p.Endpoint.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// differences is what a device needs to hold exactly t and nothing else.
// The second value says whether anything differs; fresh says whether the peer is made
// anew, so that its handshake has to begin.
func (t target) differences(dev *wgtypes.Device, renew bool) (cfg wgtypes.Config, differs, fresh bool) {
	if t.port != 0 && t.port != dev.ListenPort {
		port := t.port
		cfg.ListenPort, differs = &port, true
	}
	if dev.PrivateKey != t.key {
		key := t.key
		cfg.PrivateKey, cfg.ReplacePeers = &key, true
		cfg.Peers = []wgtypes.PeerConfig{t.kicked()}
		return cfg, true, true
	}
	found, stray := false, []wgtypes.PeerConfig(nil)
	for _, p := range dev.Peers {
		if p.PublicKey != t.server {
			stray = append(stray, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
			continue
		}
		found = true
		switch {
		case renew || endpointOf(p) != t.endpoint || p.PresharedKey != t.preshared:
			// Changing the endpoint of a live peer does not move it: a late reply of the old
			// address roams it back. So it is made anew.
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: t.server, Remove: true}, t.kicked())
			fresh = true
		case p.PersistentKeepaliveInterval != t.keepalive || !slices.Equal(prefixes(p.AllowedIPs), t.allowed):
			u := t.full()
			u.Endpoint, u.PresharedKey, u.UpdateOnly = nil, nil, true
			cfg.Peers = append(cfg.Peers, u)
		}
	}
	if !found {
		cfg.Peers = append(cfg.Peers, t.kicked())
		fresh = true
	}
	// The strays go last: their prefixes are the wanted peer's by then, so no packet meets
	// a device without a peer for it.
	cfg.Peers = append(cfg.Peers, stray...)
	return cfg, differs || len(cfg.Peers) > 0, fresh
}
