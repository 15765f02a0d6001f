package lane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
)

// DefaultMTU of a lane whose profile says none, bytes: 1500 less IPv6, UDP and WireGuard.
const DefaultMTU = 1420

// socketDir is where WireGuard's tools look for the control sockets of userspace devices.
const socketDir = "/var/run/wireguard"

// ServeOptions say which lane's device a service owns.
type ServeOptions struct {
	Interface  string
	ConfigPath string           // profile to begin with; "" or a missing file = an empty device
	MTU        int              // bytes, where the profile says none; 0 = DefaultMTU
	AmneziaWG  bool             // the device can be given AmneziaWG's parameters
	Fwmark     uint32           // of the encrypted packets; 0 = none
	Now        func() time.Time // clock
	Ready      func()           // called once the device takes packets and its socket answers; may be nil
	Logf       func(format string, args ...any)
	Delay      time.Duration // each encrypted packet is held that long, in order: a WAN for labs
}

// Serve owns a lane's userspace device: it makes the interface and the control socket,
// applies the profile and runs until ctx ends (nil) or the device dies (an error). A
// profile that cannot be applied is logged and leaves an empty device, so that a repair
// can put another one onto the lane. The socket's mode and owner must stay as they are:
// wireguard-go takes any change of them as its end.
func Serve(ctx context.Context, o ServeOptions) error {
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.MTU == 0 {
		o.MTU = DefaultMTU
	}
	if err := unserved(ctx, o.Interface); err != nil {
		return fmt.Errorf("lane service %s: %w", o.Interface, err)
	}
	td, err := tun.CreateTUN(o.Interface, o.MTU)
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("the interface exists already and belongs to another program: %w", err)
	}
	if err != nil {
		return fmt.Errorf("lane service %s: tun: %w", o.Interface, err)
	}
	bind, hidden := newDelay(newBind(), o.Delay), (*amnezia.Bind)(nil)
	if o.AmneziaWG {
		if hidden, err = amnezia.Wrap(bind, amnezia.Params{}, amnezia.Options{Now: o.Now}); err != nil {
			_ = td.Close()
			return fmt.Errorf("lane service %s: %w", o.Interface, err)
		}
		bind = hidden
	}
	dev := device.NewDevice(td, bind, &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf:   func(f string, a ...any) { o.Logf("lane service "+o.Interface+": "+f, a...) },
	})
	defer dev.Close()
	if err := serve(ctx, o, dev, hidden); err != nil {
		return fmt.Errorf("lane service %s: %w", o.Interface, err)
	}
	return nil
}

// unserved makes sure that no live process answers for that name. A socket that a killed
// one left behind is taken over later.
func unserved(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", socketDir+"/"+name+".sock")
	if err != nil {
		return nil //nolint:nilerr // nobody answers
	}
	_ = c.Close()
	return fmt.Errorf("a live process serves it already (%s/%s.sock)", socketDir, name)
}

func serve(ctx context.Context, o ServeOptions, dev *device.Device, hidden *amnezia.Bind) error {
	if o.Fwmark != 0 {
		if err := dev.IpcSet(fmt.Sprintf("fwmark=%d\n", o.Fwmark)); err != nil {
			return fmt.Errorf("fwmark: %w", err)
		}
	}
	f, err := ipc.UAPIOpen(o.Interface)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	l, err := ipc.UAPIListen(o.Interface, f)
	_ = f.Close()
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	defer l.Close()
	broken := make(chan error, 1)
	handle := dev.IpcHandle
	if hidden != nil {
		handle = (&front{device: dev, codec: hidden.Codec}).handle
	}
	go accept(l, handle, broken)
	if err := begin(ctx, o, dev); err != nil {
		return err
	}
	if o.Ready != nil {
		o.Ready()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-broken:
		return fmt.Errorf("control socket removed or its mode changed: %w", err)
	case <-dev.Wait():
		return errors.New("the device died (was the interface deleted?)")
	}
}

func accept(l net.Listener, handle func(net.Conn), broken chan<- error) {
	for {
		c, err := l.Accept()
		if err != nil {
			broken <- err
			return
		}
		go handle(c)
	}
}

// begin brings the device up and gives it its first profile.
func begin(ctx context.Context, o ServeOptions, dev *device.Device) error {
	k, err := findLinkAddrs(o.Interface)
	if err != nil {
		return err
	}
	if err := k.setUp(ctx); err != nil {
		return err
	}
	if err := dev.Up(); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	if o.ConfigPath == "" {
		return nil
	}
	if _, err := os.Stat(o.ConfigPath); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	l := egress.Lane{Name: o.Interface, Interface: o.Interface, Driver: egress.DriverWireGuard}
	if o.AmneziaWG {
		l.Driver = egress.DriverAmneziaWG
	}
	t, err := load(o.ConfigPath, l)
	if err == nil {
		err = New(Options{Now: o.Now}).settleDevice(ctx, l, t, false)
	}
	if err != nil {
		o.Logf("lane service %s: begins empty: %v", o.Interface, err)
	}
	return nil
}

// newBind is the socket of a lane's device: wireguard-go's own one. Its batches of 128 make
// a busy lane grow from 15 MB to some 55 MB; one packet at a time would stay at 25 MB, but
// without the kernel's segmentation and without a reply's source address.
func newBind() conn.Bind { return conn.NewDefaultBind() }
