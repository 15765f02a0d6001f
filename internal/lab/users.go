package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// user fills in what a flow of a lane's class leaves open: user i is that of lane i.
func (w *World) user(lane string, o traffic.Options) traffic.Options {
	l := w.Lane(lane)
	i := 0
	for i < len(w.Lanes) && w.Lanes[i].Name != lane {
		i++
	}
	if !o.To.Addr().IsValid() {
		o.To = netip.AddrPortFrom(netip.MustParseAddr(Service4a), o.To.Port())
	}
	if !o.From.IsValid() {
		o.From = User4(i)
		if o.To.Addr().Is6() {
			o.From = User6(i)
		}
	}
	if o.DSCP == 0 {
		o.DSCP = uint8(l.DSCP)
	}
	if o.ID == 0 {
		o.ID = uint32(i + 1) //nolint:gosec // small
	}
	return o
}

// UDP starts numbered packets of a user of that lane's class; what o leaves open is filled in.
func (w *World) UDP(ctx context.Context, lane string, o traffic.Options) (*traffic.UDP, error) {
	return traffic.StartUDP(ctx, w.LAN, w.user(lane, o))
}

// TCP starts a long-lived connection of a user of that lane's class.
func (w *World) TCP(ctx context.Context, lane string, o traffic.Options) (*traffic.TCP, error) {
	return traffic.StartTCP(ctx, w.LAN, w.user(lane, o))
}

// Bulk starts a download of a user of that lane's class.
func (w *World) Bulk(ctx context.Context, lane string, o traffic.Options) (*traffic.Bulk, error) {
	return traffic.StartBulk(ctx, w.LAN, w.user(lane, o))
}

// Exit asks, as a user of that lane's class, through which endpoint traffic goes now. An
// answer through none (in clear) is an error.
func (w *World) Exit(ctx context.Context, lane string) (*server.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	a, err := traffic.Exit(ctx, w.LAN, w.user(lane, traffic.Options{}))
	if err != nil {
		return nil, err
	}
	e := w.Far.ByExit(a)
	if e == nil {
		return nil, fmt.Errorf("users of %s go out as %s: through no endpoint", lane, a)
	}
	return e, nil
}

// StartLane starts the service that owns a lane's device and waits until it answers.
func (w *World) StartLane(ctx context.Context, lane string) (*Proc, error) {
	l := w.Lane(lane)
	p, err := w.Start("lane-"+lane, w.o.LaneCommand(lane)...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for {
		if _, err := os.Stat("/run/wireguard/" + l.Interface + ".sock"); err == nil {
			if _, err = w.Device(l.Interface); err == nil && w.up(l.Interface) { // it answers before it is up
				return p, nil
			}
		}
		select {
		case <-p.Done():
			return nil, fmt.Errorf("lab: lane %s ended: %s", lane, p.Tail())
		case <-ctx.Done():
			return nil, fmt.Errorf("lab: lane %s: not ready: %w: %s", lane, ctx.Err(), p.Tail())
		case <-t.C:
		}
	}
}

// StartLanes starts the services of all lanes, by the lane's name.
func (w *World) StartLanes(ctx context.Context) (map[string]*Proc, error) {
	out := map[string]*Proc{}
	for _, l := range w.Lanes {
		p, err := w.StartLane(ctx, l.Name)
		if err != nil {
			return nil, err
		}
		out[l.Name] = p
	}
	return out, nil
}

// up says whether an interface of the router is up.
func (w *World) up(iface string) bool {
	up := false
	_ = w.Router.Do(func() error {
		dev, err := net.InterfaceByName(iface)
		up = err == nil && dev.Flags&net.FlagUp != 0
		return err
	})
	return up
}

// Device reads a WireGuard device of the router, kernel or userspace.
func (w *World) Device(iface string) (*wgtypes.Device, error) {
	var d *wgtypes.Device
	err := w.Router.Do(func() error {
		c, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer c.Close()
		d, err = c.Device(iface)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lab: device %s: %w", iface, err)
	}
	return d, nil
}

// ErrEmptyLane says that no peer of a lane's device carries traffic.
var ErrEmptyLane = errors.New("the lane carries no endpoint")

// Carrying is the endpoint that a lane's device sends traffic to now, as the device says.
func (w *World) Carrying(lane string) (*server.Endpoint, error) {
	d, err := w.Device(w.Lane(lane).Interface)
	if err != nil {
		return nil, err
	}
	for _, p := range d.Peers {
		if len(p.AllowedIPs) == 0 {
			continue
		}
		for _, e := range w.Endpoints() {
			if e.PublicKey() == p.PublicKey.String() {
				return e, nil
			}
		}
		return nil, fmt.Errorf("lab: lane %s carries %s, which is none of the world's", lane, p.Endpoint)
	}
	return nil, fmt.Errorf("lab: lane %s: %w", lane, ErrEmptyLane)
}
