package lane

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// kernelFamily is the generic netlink family of AmneziaWG's kernel module. Its messages are
// those of WireGuard's with more attributes.
const kernelFamily = "amneziawg"

// kernel is the way to devices of the kernel module.
type kernel struct {
	conn   *genetlink.Conn
	family genetlink.Family
	err    error           // why there is none; os.ErrNotExist without the module
	of     amnezia.Version // the module's generation, once it took a set
}

// openKernel looks for the module in the network namespace of the calling thread.
func openKernel(limit time.Duration) *kernel {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return &kernel{err: fmt.Errorf("generic netlink: %w", err)}
	}
	_ = c.SetDeadline(time.Now().Add(10 * limit)) //nolint:forbidigo // a last resort: each call has its own bound
	return newKernel(c)
}

func newKernel(c *genetlink.Conn) *kernel {
	k := &kernel{conn: c}
	if k.family, k.err = c.GetFamily(kernelFamily); k.err != nil {
		k.err = fmt.Errorf("kernel module amneziawg: %w", k.err)
	}
	return k
}

func (k *kernel) close() {
	if k.conn != nil {
		_ = k.conn.Close()
	}
}

func (k *kernel) device(name string) (*wgtypes.Device, amnezia.Params, error) {
	if k.err != nil {
		return nil, amnezia.Params{}, k.err
	}
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.WGDEVICE_A_IFNAME, name)
	b, err := ae.Encode()
	if err != nil {
		return nil, amnezia.Params{}, err
	}
	got, err := k.conn.Execute(k.message(unix.WG_CMD_GET_DEVICE, b), k.family.ID, netlink.Request|netlink.Dump)
	if err != nil {
		return nil, amnezia.Params{}, absent(err)
	}
	return decodeKernel(got)
}

func (k *kernel) message(command uint8, data []byte) genetlink.Message {
	return genetlink.Message{Header: genetlink.Header{Command: command, Version: k.family.Version}, Data: data}
}

// absent gives the kernel's words for a device that is not there, or is of another kind,
// the meaning that all ways have.
func absent(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return os.ErrNotExist
	}
	return err
}

// kernelGenerations are what a module with that version of the family may be of.
func kernelGenerations(family uint8) []amnezia.Version {
	switch family {
	case 1:
		return []amnezia.Version{amnezia.V15, amnezia.V10}
	case 2:
		return []amnezia.Version{amnezia.V20}
	}
	return []amnezia.Version{amnezia.V31, amnezia.V30}
}

// configure sends all in one message, which the module applies as a whole.
func (k *kernel) configure(name string, cfg wgtypes.Config, p amnezia.Params) error {
	if k.err != nil {
		return k.err
	}
	var last error
	for _, g := range kernelGenerations(k.family.Version) {
		if k.of != amnezia.VersionUnknown && g > k.of {
			continue
		}
		b, err := encodeKernel(name, cfg, p, g, k.family.Version)
		if err != nil {
			return err
		}
		_, last = k.conn.Execute(k.message(unix.WG_CMD_SET_DEVICE, b), k.family.ID, netlink.Request|netlink.Acknowledge)
		if last == nil {
			k.of = g
			return nil
		}
		if !errors.Is(last, unix.EINVAL) && !errors.Is(last, unix.ERANGE) {
			break
		}
	}
	return absent(last)
}
