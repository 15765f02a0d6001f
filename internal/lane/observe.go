package lane

import (
	"cmp"
	"context"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
)

// observe reads what there is; what cannot be read is told in Error.
func (d *Devices) observe(ctx context.Context, l egress.Lane) egress.DeviceView {
	k, err := findLink(l.Interface)
	if err != nil {
		return egress.DeviceView{Error: err.Error()}
	}
	v := egress.DeviceView{Present: true, Up: k.up, MTU: k.mtu}
	dev, _, err := d.readDevice(ctx, l)
	if err != nil {
		v.Error = err.Error()
		return v
	}
	v.Userspace = dev.Type == wgtypes.Userspace
	for _, p := range dev.Peers {
		v.Peers = append(v.Peers, egress.PeerView{
			Pair: d.pair(p.PublicKey, dev.PublicKey), Endpoint: endpointOf(p), Handshake: p.LastHandshakeTime,
			Rx: p.ReceiveBytes, Tx: p.TransmitBytes, Allowed: len(p.AllowedIPs),
		})
	}
	// A device lists its peers in no order; a view has one.
	slices.SortFunc(v.Peers, func(a, b egress.PeerView) int {
		return cmp.Or(cmp.Compare(b.Allowed, a.Allowed), cmp.Compare(a.Pair, b.Pair))
	})
	return v
}

// readDevice reads a device, and its obfuscation, once.
func (d *Devices) readDevice(ctx context.Context, l egress.Lane) (*wgtypes.Device, amnezia.Params, error) {
	c, err := d.open(l)
	if err != nil {
		return nil, amnezia.Params{}, err
	}
	defer c.close()
	dev, err := c.read(ctx)
	return dev, c.have, err
}
