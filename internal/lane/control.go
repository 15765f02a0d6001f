package lane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// control is one open way to a WireGuard device, kernel or userspace.
type control struct {
	name   string
	client *wgctrl.Client
	limit  time.Duration
	stuck  bool // a call never came back; the client is left to it
}

// open finds the way to the device; it does not look whether the device exists.
func (d *Devices) open(name string) (*control, error) {
	c, err := wgctrl.New()
	if err != nil {
		return nil, fmt.Errorf("interface %s: wireguard control: %w", name, err)
	}
	return &control{name: name, client: c, limit: d.o.CallTimeout}, nil
}

func (v *control) close() {
	if !v.stuck {
		_ = v.client.Close()
	}
}

// read returns what the device holds, keys included.
func (v *control) read(ctx context.Context) (*wgtypes.Device, error) {
	var dev *wgtypes.Device
	err := v.call(ctx, func() (err error) {
		dev, err = v.client.Device(v.name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// set applies cfg. It is no transaction on a userspace device: after an error the device
// holds some part of cfg. Once begun it is waited for, also when ctx ends meanwhile: else
// nobody could tell what is to be put back.
func (v *control) set(ctx context.Context, cfg wgtypes.Config) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interface %s: %w", v.name, err)
	}
	return v.call(context.WithoutCancel(ctx), func() error { return v.client.ConfigureDevice(v.name, cfg) })
}

// call bounds one call: a stopped daemon accepts the connection and never answers, and
// wgctrl has no deadline of its own.
func (v *control) call(ctx context.Context, fn func() error) error {
	if v.stuck {
		return fmt.Errorf("interface %s: the device does not answer", v.name)
	}
	ctx, cancel := context.WithTimeout(ctx, v.limit)
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

// pause waits for d unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// detached is a context for putting things back: an ended ctx does not stop it, and it
// keeps what ctx carries.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}
