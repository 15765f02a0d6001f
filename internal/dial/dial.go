// Package dial makes connections by a way that is chosen and not left to the routing
// table: directly, bound to an interface, with a mark, or through a proxy. Names are asked
// for by the same way. It changes no route and no rule.
//
// The way through a tunnel in process is package tunnel's Way, which has the same form.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// connectWait bounds one connection. It is short next to the time of a source: that a
// deadline passed says less than why.
const connectWait = 5 * time.Second

// Func makes a connection: network is tcp, tcp4 or tcp6, address is host:port.
type Func func(ctx context.Context, network, address string) (net.Conn, error)

// Options say how the sockets of a way differ from plain ones. The zero value is the
// system's own way.
type Options struct {
	Interface string       // SO_BINDTODEVICE; "" = none. No capability is needed (Linux 5.7)
	Mark      egress.Mark  // SO_MARK, for an `ip rule fwmark`; 0 = none. Needs CAP_NET_ADMIN
	Resolvers []netip.Addr // asked by the same way; none = those of the system
	// Proc is where rp_filter is read, to explain what failed; "" = /proc.
	Proc string
}

// New returns the way of the options.
func New(o Options) Func {
	d := &net.Dialer{Timeout: connectWait, Control: o.control}
	d.SetMultipathTCP(false)
	if o.Interface != "" || o.Mark != 0 || len(o.Resolvers) > 0 {
		d.Resolver = o.resolver()
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, address)
		if err == nil {
			return c, nil
		}
		if o.Interface != "" {
			err = fmt.Errorf("bound to %s: %w", o.Interface, err)
		}
		if o.Mark != 0 {
			err = fmt.Errorf("marked %s: %w", o.Mark, err)
		}
		if hint := o.strict(err); hint != "" {
			err = fmt.Errorf("%w; %s", err, hint)
		}
		return nil, err
	}
}

func (o Options) control(_, _ string, c syscall.RawConn) error {
	var err error
	cerr := c.Control(func(fd uintptr) {
		if o.Interface != "" {
			err = unix.BindToDevice(int(fd), o.Interface)
		}
		if err == nil && o.Mark != 0 {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(o.Mark))
		}
	})
	return errors.Join(cerr, err)
}

// resolver asks by the same way as connections go. A resolver of this machine's own
// (127.0.0.53) has no way that could be chosen, and cannot be reached through an
// interface: it is asked only where no other is configured.
func (o Options) resolver() *net.Resolver {
	var mu sync.Mutex
	next := 0
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		d := &net.Dialer{Timeout: connectWait, Control: o.control}
		if len(o.Resolvers) > 0 {
			mu.Lock()
			address = netip.AddrPortFrom(o.Resolvers[next%len(o.Resolvers)], 53).String()
			next++
			mu.Unlock()
		} else if a, err := netip.ParseAddrPort(address); err == nil && a.Addr().IsLoopback() {
			d.Control = nil
		}
		return d.DialContext(ctx, network, address)
	}}
}

// strict explains a connection that got no answer where the kernel throws answers away:
// with rp_filter 1 a packet that came in by an interface must also be one that the main
// routing would send out there.
func (o Options) strict(err error) string {
	var timeout net.Error
	if o.Interface == "" && o.Mark == 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		return ""
	}
	name := o.Interface
	if name == "" {
		name = "all"
	}
	v, rerr := ReversePath(o.Proc, name)
	if rerr != nil || v != 1 {
		return ""
	}
	return fmt.Sprintf("net.ipv4.conf.%s.rp_filter is 1 (strict), with which the kernel may drop the answers: 2 (loose) lets them in", name)
}

// ReversePath is the rp_filter that holds for an interface: the greater of its own and
// that of all. 0 = off, 1 = strict, 2 = loose. proc is "" for /proc.
func ReversePath(proc, iface string) (int, error) {
	if proc == "" {
		proc = "/proc"
	}
	most := 0
	for _, name := range []string{"all", iface} {
		if name == "" || name == ".." || strings.Contains(name, "/") {
			return 0, fmt.Errorf("rp_filter: %q is no interface", name)
		}
		b, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv4/conf", name, "rp_filter"))
		if err != nil {
			return 0, fmt.Errorf("rp_filter of %s: %w", name, err)
		}
		v, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			return 0, fmt.Errorf("rp_filter of %s: %w", name, err)
		}
		most = max(most, v)
	}
	return most, nil
}
