package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

// The methods that a SwapReport names.
const (
	methodMakeBeforeBreak = "make-before-break"
	methodInPlace         = "in-place"
	methodCommands        = "commands"
)

// pollEvery is the time between two looks for a handshake.
const pollEvery = 5 * time.Millisecond

var errSilent = errors.New("no answer")

// swapDevice makes the WireGuard device carry t.
func (d *Devices) swapDevice(ctx context.Context, l egress.Lane, t target) (egress.SwapReport, error) {
	k, err := findLinkAddrs(l.Interface)
	if err != nil {
		return egress.SwapReport{}, err
	}
	c, err := d.open(l)
	if err != nil {
		return egress.SwapReport{}, err
	}
	defer c.close()
	dev, err := c.read(ctx)
	if err != nil {
		return egress.SwapReport{}, err
	}
	if err := k.setUp(ctx); err != nil {
		return egress.SwapReport{}, err
	}
	snap := snapshot{dev: dev, params: c.have, addrs: slices.Clone(k.addrs), mtu: k.mtu}
	c.want = t.params
	// Obfuscation is the interface's: two peers with different ones cannot be up at once.
	if c.obfuscated(t.params) && dev.PrivateKey == t.key && k.holds(t.addresses) && !carries(dev, t.server) {
		return d.makeBeforeBreak(ctx, c, &k, snap, t)
	}
	return d.inPlace(ctx, c, &k, snap, t)
}

// carries says whether the lane's traffic goes to that server now.
func carries(dev *wgtypes.Device, server wgtypes.Key) bool {
	return slices.ContainsFunc(dev.Peers, func(p wgtypes.Peer) bool {
		return p.PublicKey == server && len(p.AllowedIPs) > 0
	})
}

// has says whether the device knows that server.
func has(dev *wgtypes.Device, server wgtypes.Key) bool {
	return slices.ContainsFunc(dev.Peers, func(p wgtypes.Peer) bool { return p.PublicKey == server })
}

// makeBeforeBreak proves the new peer beside the old one, then moves the traffic.
func (d *Devices) makeBeforeBreak(ctx context.Context, c *control, k *link, snap snapshot, t target) (egress.SwapReport, error) {
	r := egress.SwapReport{Method: methodMakeBeforeBreak}
	// A peer of that key may be left of a killed swap; only a new one starts a handshake now.
	anew := wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: t.server, Remove: true}, t.warm()}}
	begin := d.o.Now()
	err := c.set(ctx, anew)
	if err == nil {
		run.Point(ctx, "lane.peer-added")
		err = d.awaitHandshake(ctx, c, t.server, anew)
		r.Handshake = d.o.Now().Sub(begin)
	}
	if err != nil {
		r.Handshake = 0
		return r, d.giveUp(ctx, c, snap, t, err)
	}
	if err := d.move(ctx, c, k, snap, t); err != nil {
		return r, failed(err, snap.restore(ctx, c, k))
	}
	return r, nil
}

// giveUp takes the new peer away again; the old one was never touched.
func (d *Devices) giveUp(ctx context.Context, c *control, snap snapshot, t target, cause error) error {
	back, cancel := detached(ctx)
	defer cancel()
	err := c.set(back, wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: t.server, Remove: true}}})
	run.Point(ctx, "lane.restored")
	if err == nil {
		err = snap.others(back, c, t.server)
	}
	if errors.Is(cause, errSilent) && err == nil {
		return fmt.Errorf("endpoint %s: %w", t.endpoint, egress.ErrNoHandshake)
	}
	return failed(fmt.Errorf("endpoint %s: %w", t.endpoint, cause), err)
}

// others checks that the peers other than server are as they were.
func (s snapshot) others(ctx context.Context, c *control, server wgtypes.Key) error {
	now, err := c.read(ctx)
	if err != nil {
		return err
	}
	not := func(in []wgtypes.Peer) (out []wgtypes.Peer) {
		for _, p := range in {
			if p.PublicKey != server {
				out = append(out, p)
			}
		}
		return out
	}
	before, after := *s.dev, *now
	before.Peers, after.Peers = not(s.dev.Peers), not(now.Peers)
	if same := (snapshot{dev: &before}).same(&after); !same || len(after.Peers) != len(now.Peers) {
		return fmt.Errorf("interface %s: changed by someone else meanwhile", c.name)
	}
	return nil
}

// move gives the proven peer the lane's traffic and removes every other peer in one call.
func (d *Devices) move(ctx context.Context, c *control, k *link, snap snapshot, t target) error {
	up := t.full()
	up.Endpoint, up.PresharedKey, up.UpdateOnly = nil, nil, true
	cfg := wgtypes.Config{Peers: []wgtypes.PeerConfig{up}}
	for _, p := range snap.dev.Peers {
		if p.PublicKey != t.server {
			cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: p.PublicKey, Remove: true})
		}
	}
	if t.mtu < k.mtu { // before packets that the new path could not carry
		if err := k.setMTU(ctx, t.mtu); err != nil {
			return err
		}
	}
	if err := c.set(ctx, cfg); err != nil {
		return err
	}
	run.Point(ctx, "lane.peer-moved")
	if err := k.setMTU(ctx, t.mtu); err != nil {
		return err
	}
	// UpdateOnly says nothing when the peer is gone: a device that began anew meanwhile
	// would carry nothing.
	return d.verify(ctx, c, t)
}

func (d *Devices) verify(ctx context.Context, c *control, t target) error {
	now, err := c.read(ctx)
	if err != nil {
		return err
	}
	now.ListenPort = t.port // settled elsewhere
	for i, p := range now.Peers {
		if p.PublicKey == t.server {
			now.Peers[i].Endpoint = t.full().Endpoint // it may roam
		}
	}
	if _, differs, _ := t.differences(now, false); differs || !c.obfuscated(t.params) {
		return fmt.Errorf("interface %s: changed by someone else meanwhile", c.name)
	}
	return nil
}

// inPlace changes key, addresses, MTU and peer under the running interface, and puts
// everything back when the new peer does not answer.
func (d *Devices) inPlace(ctx context.Context, c *control, k *link, snap snapshot, t target) (egress.SwapReport, error) {
	r := egress.SwapReport{Method: methodInPlace}
	begin := d.o.Now()
	err := d.replace(ctx, c, k, snap.dev, t)
	if err == nil {
		again := wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: t.server, Remove: true}, t.kicked()}}
		err = d.awaitHandshake(ctx, c, t.server, again)
		r.Handshake = d.o.Now().Sub(begin)
	}
	if err == nil {
		err = d.calm(ctx, c, t)
	}
	if err == nil {
		err = d.verify(ctx, c, t)
	}
	if err != nil {
		r.Handshake = 0
		return r, failed(fmt.Errorf("endpoint %s: %w", t.endpoint, err), snap.restore(ctx, c, k))
	}
	return r, nil
}

// replace puts t into the device with a new peer. New addresses come before old ones go,
// and old ones go as soon as the peer changed: until then they are the source that the
// kernel gives to masqueraded packets, and the new server would drop those.
func (d *Devices) replace(ctx context.Context, c *control, k *link, dev *wgtypes.Device, t target) error {
	addrs := wanted(t.addresses)
	if t.mtu < k.mtu {
		if err := k.setMTU(ctx, t.mtu); err != nil {
			return err
		}
	}
	if err := k.addAddrs(ctx, addrs); err != nil {
		return err
	}
	if dev.PrivateKey != t.key && has(dev, t.server) {
		// Keys come before peers in one call, and a packet between the two would make the
		// old peer begin a handshake with the new key: the server then drops ours, for it
		// hears no two of one key within 20 ms.
		if err := c.set(ctx, wgtypes.Config{ReplacePeers: true}); err != nil {
			return err
		}
		run.Point(ctx, "lane.replaced")
	}
	cfg, _, _ := t.differences(dev, true)
	if err := c.set(ctx, cfg); err != nil {
		return err
	}
	run.Point(ctx, "lane.replaced")
	if err := k.dropAddrs(ctx, addrs); err != nil {
		return err
	}
	return k.setMTU(ctx, t.mtu)
}

// calm takes back the keepalive that began the handshake, where the profile has none.
func (d *Devices) calm(ctx context.Context, c *control, t target) error {
	if t.keepalive != 0 {
		return nil
	}
	if err := c.set(ctx, wgtypes.Config{Peers: []wgtypes.PeerConfig{t.calm()}}); err != nil {
		return err
	}
	run.Point(ctx, "lane.settled")
	return nil
}

// awaitHandshake waits until the server's peer has completed one. A device repeats a lost
// initiation only after 5 s, so the peer is added anew meanwhile, with growing waits:
// each new initiation makes an answer to the last one worthless, and a far server needs
// its time. errSilent when there was none within the bound.
func (d *Devices) awaitHandshake(ctx context.Context, c *control, server wgtypes.Key, again wgtypes.Config) error {
	begin := d.o.Now()
	wait, next := d.o.HandshakeRetry, d.o.HandshakeRetry
	for {
		dev, err := c.read(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(dev.Peers, func(p wgtypes.Peer) bool { return p.PublicKey == server })
		switch {
		case i < 0:
			return fmt.Errorf("interface %s: the new peer was removed by someone else", c.name)
		case !dev.Peers[i].LastHandshakeTime.IsZero():
			return nil
		}
		passed := d.o.Now().Sub(begin)
		if passed >= d.o.HandshakeBound {
			return errSilent
		}
		if passed >= next && d.o.HandshakeBound-passed >= d.o.HandshakeRetry {
			if err := c.set(ctx, again); err != nil {
				return err
			}
			run.Point(ctx, "lane.peer-added")
			wait *= 2
			next = passed + wait
		}
		if err := run.Pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}
