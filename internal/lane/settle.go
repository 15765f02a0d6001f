package lane

import (
	"context"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

// settleDevice makes the interface and its device hold exactly t.
func (d *Devices) settleDevice(ctx context.Context, l egress.Lane, t target, renew bool) error {
	k, err := findLinkAddrs(l.Interface)
	if err != nil {
		return err
	}
	c, err := d.open(l)
	if err != nil {
		return err
	}
	defer c.close()
	dev, err := c.read(ctx)
	if err != nil {
		return err
	}
	return d.settle(ctx, c, &k, dev, t, renew)
}

func (d *Devices) settle(ctx context.Context, c *control, k *link, dev *wgtypes.Device, t target, renew bool) error {
	c.want = t.params
	addrs := wanted(t.addresses)
	if err := k.addAddrs(ctx, addrs); err != nil {
		return err
	}
	// Before the peer: a run that is killed after that leaves a lane that works, and nobody
	// would look at its MTU again.
	if err := k.setMTU(ctx, t.mtu); err != nil {
		return err
	}
	// A session that began with other obfuscation is none with this.
	cfg, differs, fresh := t.differences(dev, renew || !c.obfuscated(t.params))
	if differs {
		if err := c.set(ctx, cfg); err != nil {
			return err
		}
		run.Point(ctx, "lane.settled")
	}
	if err := k.dropAddrs(ctx, addrs); err != nil {
		return err
	}
	// A peer begins no handshake while the link is down, so the keepalive that starts it
	// is taken back only after that.
	if err := k.setUp(ctx); err != nil {
		return err
	}
	if fresh {
		return d.calm(ctx, c, t)
	}
	return nil
}
