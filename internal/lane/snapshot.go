package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/run"
)

// snapshot is a lane as it was found: what a failed swap puts back.
type snapshot struct {
	dev    *wgtypes.Device
	params amnezia.Params // obfuscation
	addrs  []netlink.Addr
	mtu    int
}

// peers are the peers as they were, ready to be set.
func (s snapshot) peers() []wgtypes.PeerConfig {
	out := make([]wgtypes.PeerConfig, 0, len(s.dev.Peers))
	for _, p := range s.dev.Peers {
		psk, keep := p.PresharedKey, p.PersistentKeepaliveInterval
		out = append(out, wgtypes.PeerConfig{
			PublicKey: p.PublicKey, PresharedKey: &psk, Endpoint: p.Endpoint,
			PersistentKeepaliveInterval: &keep, ReplaceAllowedIPs: true, AllowedIPs: p.AllowedIPs,
		})
	}
	return out
}

// same says whether the device holds what it held: keys, port and peers. Handshakes and
// counters are not part of that.
func (s snapshot) same(now *wgtypes.Device) bool {
	if s.dev.PrivateKey != now.PrivateKey || s.dev.ListenPort != now.ListenPort || len(s.dev.Peers) != len(now.Peers) {
		return false
	}
	for _, p := range s.dev.Peers {
		i := slices.IndexFunc(now.Peers, func(q wgtypes.Peer) bool { return q.PublicKey == p.PublicKey })
		if i < 0 || !samePeer(p, now.Peers[i]) {
			return false
		}
	}
	return true
}

func samePeer(a, b wgtypes.Peer) bool {
	return a.PresharedKey == b.PresharedKey && endpointOf(a) == endpointOf(b) &&
		a.PersistentKeepaliveInterval == b.PersistentKeepaliveInterval &&
		slices.Equal(prefixes(a.AllowedIPs), prefixes(b.AllowedIPs))
}

// restore puts the lane back as it was found and checks that it is. It runs to its end
// also when ctx has ended.
func (s snapshot) restore(ctx context.Context, c *control, k *link) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	// Old addresses come before new ones go; the rest is one call.
	errAddrs := k.addAddrs(ctx, s.addrs)
	errPeers := s.restorePeers(ctx, c)
	if errAddrs == nil {
		errAddrs = k.dropAddrs(ctx, s.addrs)
	}
	err := errors.Join(errAddrs, errPeers, k.setMTU(ctx, s.mtu))
	run.Point(ctx, "lane.restored")
	return err
}

func (s snapshot) restorePeers(ctx context.Context, c *control) error {
	now, err := c.read(ctx)
	if err != nil {
		return err
	}
	c.want = s.params
	if s.same(now) && c.have.Same(s.params) {
		return nil
	}
	key := s.dev.PrivateKey
	cfg := wgtypes.Config{PrivateKey: &key, ReplacePeers: true, Peers: s.peers()}
	if now.ListenPort != s.dev.ListenPort {
		port := s.dev.ListenPort
		cfg.ListenPort = &port
	}
	if err := c.set(ctx, cfg); err != nil {
		return err
	}
	if now, err = c.read(ctx); err != nil {
		return err
	}
	if !s.same(now) || !c.obfuscated(s.params) {
		return fmt.Errorf("interface %s: the device does not hold what was put back", c.name)
	}
	return nil
}

// failed joins a swap's error with what became of the lane.
func failed(cause, restore error) error {
	if restore != nil {
		return fmt.Errorf("%w; not restored: %w", cause, restore)
	}
	return fmt.Errorf("%w; the lane was put back", cause)
}
