package lane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
)

// control is one open way to a lane's device, kernel or userspace.
type control struct {
	name  string
	way   way
	limit time.Duration
	stuck bool // a call never came back; the way is left to it

	have amnezia.Params // obfuscation, as last read
	want amnezia.Params // written whole with each set: nothing of an earlier one survives
}

// way reads and writes devices by name. A device that is not there is os.ErrNotExist.
type way interface {
	device(name string) (*wgtypes.Device, amnezia.Params, error)
	configure(name string, cfg wgtypes.Config, p amnezia.Params) error
	close()
}

// open finds the way to the device; it does not look whether the device exists.
func (d *Devices) open(l egress.Lane) (*control, error) {
	v := &control{name: l.Interface, limit: d.o.CallTimeout}
	if l.Carries(egress.NeedsAmneziaWG) {
		v.way = newAmneziaWay(l.Interface, d.o.CallTimeout)
		return v, nil
	}
	c, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("interface %s: wireguard control: %w", l.Interface, err)
	}
	v.way = plainWay{c}
	return v, nil
}

// plainWay is for devices of WireGuard itself. What carries obfuscation never gets here.
type plainWay struct{ c *wgctrl.Client }

func (w plainWay) device(name string) (*wgtypes.Device, amnezia.Params, error) {
	dev, err := w.c.Device(name)
	return dev, amnezia.Params{}, err
}

func (w plainWay) configure(name string, cfg wgtypes.Config, _ amnezia.Params) error {
	return w.c.ConfigureDevice(name, cfg)
}

func (w plainWay) close() { _ = w.c.Close() }

func (v *control) close() {
	if !v.stuck {
		v.way.close()
	}
}

// obfuscated says whether the device speaks p, as far as devices of its generation can.
func (v *control) obfuscated(p amnezia.Params) bool { return speaks(v.have, p) }

func speaks(have, p amnezia.Params) bool {
	if have.Same(p) {
		return true
	}
	for _, g := range generations() {
		lines, err := p.UAPI(g)
		if err != nil {
			break
		}
		if q, err := amnezia.ParseControl(strings.Join(lines, "\n") + "\n"); err == nil && q.Same(have) {
			return true
		}
	}
	return false
}

// generations are those that a device may be of, the newest first.
func generations() []amnezia.Version {
	return []amnezia.Version{amnezia.V31, amnezia.V30, amnezia.V20, amnezia.V15, amnezia.V10}
}

// read returns what the device holds, keys included.
func (v *control) read(ctx context.Context) (*wgtypes.Device, error) {
	var dev *wgtypes.Device
	var have amnezia.Params
	err := v.call(ctx, func() (err error) {
		dev, have, err = v.way.device(v.name)
		return err
	})
	if err != nil {
		return nil, err
	}
	v.have = have
	return dev, nil
}

// set applies cfg. It is no transaction on a userspace device: after an error the device
// holds some part of cfg.
func (v *control) set(ctx context.Context, cfg wgtypes.Config) error {
	want := v.want
	return v.call(ctx, func() error { return v.way.configure(v.name, cfg, want) })
}

// call bounds one call: a stopped daemon accepts the connection and never answers, and
// wgctrl has no deadline of its own. Once begun it is waited for, also when ctx ends
// meanwhile: else nobody could tell what is to be put back, or do it, since the way is
// the unanswered call's.
func (v *control) call(ctx context.Context, fn func() error) error {
	if v.stuck {
		return fmt.Errorf("interface %s: the device does not answer", v.name)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interface %s: %w", v.name, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("interface %s: %w", v.name, ErrNoDevice)
		case err != nil:
			return fmt.Errorf("interface %s: %w", v.name, err)
		}
		return nil
	case <-ctx.Done():
		v.stuck = true
		return fmt.Errorf("interface %s: the device does not answer: %w", v.name, ctx.Err())
	}
}

// detached is a context for putting things back: an ended ctx does not stop it, and it
// keeps what ctx carries.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}
