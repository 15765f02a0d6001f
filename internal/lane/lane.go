// Package lane drives the tunnel devices of lanes: it observes them, swaps the profile
// they carry without an interface flap, and settles them after a killed swap. The
// device itself is a kernel interface, or belongs to a service of its own (Serve).
//
// Reads: the lane's interface (netlink), its device (generic netlink, or NAME.sock in
// /var/run/wireguard or /var/run/amneziawg), profiles. Writes: the same device; for the driver
// `commands` also the installed file, its saved copy and what the commands change.
package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// ErrNoDevice says that a lane's interface does not exist, or is no WireGuard device
// that answers.
var ErrNoDevice = errors.New("no wireguard device")

// Options shape how devices are driven. Zero durations mean the default.
type Options struct {
	Salt     []byte           // of the fingerprints in views
	Now      func() time.Time // clock; durations are differences of its readings
	StateDir string           // folder for saved installed files and for stripped ones while a command runs; needed by driver commands

	HandshakeRetry time.Duration // wait before the first new initiation; doubles with each (400ms)
	HandshakeBound time.Duration // bound of the whole wait for a handshake (2.5s)
	CallTimeout    time.Duration // bound of one call to a device (2s)
	CommandTimeout time.Duration // of one command where the lane says none (30s)
}

// Devices implements egress.Devices for the drivers `wireguard`, `amneziawg` and `commands`.
// Its methods act in the network and mount namespace of the process.
type Devices struct{ o Options }

var _ egress.Devices = (*Devices)(nil)

// New returns the devices. Options.Now must be set.
func New(o Options) *Devices {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.HandshakeRetry, 400*time.Millisecond)
	def(&o.HandshakeBound, 2500*time.Millisecond)
	def(&o.CallTimeout, 2*time.Second)
	def(&o.CommandTimeout, 30*time.Second)
	return &Devices{o: o}
}

// Observe reads a lane's device. A missing interface and a device that does not answer
// are views with Error; an error is only returned for an unknown driver or an ended ctx.
func (d *Devices) Observe(ctx context.Context, l egress.Lane) (egress.DeviceView, error) {
	if err := known(l); err != nil {
		return egress.DeviceView{}, err
	}
	v := d.observe(ctx, l)
	if err := ctx.Err(); err != nil {
		return egress.DeviceView{}, fmt.Errorf("lane %s: observe: %w", l.Name, err)
	}
	return v, nil
}

// Swap makes the lane carry the profile at to. The device itself decides how: when its
// private key and addresses are those of the new profile, the new peer is proven before
// the old one is touched, and egress.ErrNoHandshake then means that nothing was taken
// from it. Any other error of a swap comes after the lane was put back as it was, and
// says so; `not restored` in it means that Settle has to be called.
// from is the profile that the lane should carry now ("" = unknown); only the driver
// `commands` reads it, and only where the device cannot be read.
func (d *Devices) Swap(ctx context.Context, l egress.Lane, from, to string) (egress.SwapReport, error) {
	if err := known(l); err != nil {
		return egress.SwapReport{}, err
	}
	t, err := load(to, l)
	if err != nil {
		return egress.SwapReport{}, fmt.Errorf("lane %s: %w", l.Name, err)
	}
	start := d.o.Now()
	var r egress.SwapReport
	if l.Driver == egress.DriverCommands {
		r, err = d.swapCommands(ctx, l, from, t)
	} else {
		r, err = d.swapDevice(ctx, l, t)
	}
	r.Took = d.o.Now().Sub(start)
	if err != nil {
		return r, fmt.Errorf("lane %s: %w", l.Name, err)
	}
	return r, nil
}

// Settle makes the device hold exactly the profile at path: its key, its one peer, its
// addresses, its MTU and listen port where it states them. Nothing is called when
// nothing differs, unless renew asks for a fresh handshake.
func (d *Devices) Settle(ctx context.Context, l egress.Lane, path string, renew bool) error {
	if err := known(l); err != nil {
		return err
	}
	t, err := load(path, l)
	if err != nil {
		return fmt.Errorf("lane %s: %w", l.Name, err)
	}
	if l.Driver == egress.DriverCommands {
		err = d.settleCommands(ctx, l, t, renew)
	} else {
		err = d.settleDevice(ctx, l, t, renew)
	}
	if err != nil {
		return fmt.Errorf("lane %s: settle: %w", l.Name, err)
	}
	return nil
}

func known(l egress.Lane) error {
	switch l.Driver {
	case egress.DriverWireGuard, egress.DriverCommands, egress.DriverAmneziaWG:
		return nil
	case egress.DriverUnknown:
	}
	return fmt.Errorf("lane %s: unknown driver %q", l.Name, l.Driver)
}

// pair is the fingerprint that views carry instead of keys.
func (d *Devices) pair(server, client [32]byte) string {
	return profile.PairOf(d.o.Salt, profile.Key(server), profile.Key(client))
}
