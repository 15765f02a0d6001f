package edgeworld

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/wire"
)

// Port is the service's port, at the virtual address and at the backends alike.
const Port = 80

// Backend is a host behind the virtual address, and the server that runs on it.
type Backend struct {
	Name         string // a
	NS           *cage.Namespace
	Addr4, Addr6 netip.Addr

	w       *World
	machine lab.Machine
	link    string // executable under a name of its own
	o       backend.Options
	proc    *lab.Proc
	starts  int
}

func (w *World) backend(i int, ns *cage.Namespace) (*Backend, error) {
	b := &Backend{
		Name: ns.Name, NS: ns, w: w, link: filepath.Join(w.Dir, "bin", "backend-"+ns.Name),
		Addr4: netip.AddrFrom4([4]byte{10, 20, 0, byte(11 + i)}), Addr6: netip.MustParseAddr(fmt.Sprintf("fd20::%x", 0x11+i)),
	}
	b.machine = w.machine(ns)
	// A process is known by the name of the file that it was started as.
	exe, err := filepath.EvalSymlinks(w.o.Binary)
	if err != nil {
		return nil, err
	}
	return b, os.Symlink(exe, b.link)
}

// Process is the name under which the server's process is known.
func (b *Backend) Process() string { return filepath.Base(b.link) }

// Addr is the backend's address of a family, with the service's port.
func (b *Backend) Addr(family int) netip.AddrPort {
	if family == 6 {
		return netip.AddrPortFrom(b.Addr6, Port)
	}
	return netip.AddrPortFrom(b.Addr4, Port)
}

// Start starts a server and waits until it listens. Name and port are the backend's own
// unless said.
func (b *Backend) Start(ctx context.Context, o backend.Options) error {
	if b.Alive() {
		return fmt.Errorf("backend %s: its server runs already", b.Name)
	}
	if o.Name == "" {
		o.Name = b.Name
	}
	if o.Port == 0 {
		o.Port = Port
	}
	b.o = o
	b.starts++
	p, err := b.machine.Spawn(fmt.Sprintf("backend-%s-%d", b.Name, b.starts), b.link, append(append([]string(nil), b.w.o.BinaryArg...), o.Args()...)...)
	if err != nil {
		return err
	}
	b.proc = p
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for !strings.Contains(b.Output(), backend.Ready+"\n") {
		select {
		case <-ctx.Done():
			return fmt.Errorf("backend %s: its server does not listen: %w: %s", b.Name, ctx.Err(), p.Tail())
		case <-p.Done():
			return fmt.Errorf("backend %s: its server ended: %s", b.Name, p.Tail())
		case <-t.C:
		}
	}
	return nil
}

// Restart starts the server again as it was.
func (b *Backend) Restart(ctx context.Context) error { return b.Start(ctx, b.o) }

// Alive says whether the server's process is there.
func (b *Backend) Alive() bool {
	if b.proc == nil {
		return false
	}
	select {
	case <-b.proc.Done():
		return false
	default:
		return true
	}
}

// Output is what the present server has written: that it listens, and its complaints.
func (b *Backend) Output() string {
	if b.proc == nil {
		return ""
	}
	t, err := os.ReadFile(b.proc.Log)
	if err != nil {
		return ""
	}
	return string(t)
}

// Complaints is the number of connections of which the present server complained.
func (b *Backend) Complaints() int { return strings.Count(b.Output(), "complaint: ") }

// Kill ends the server by kill -9 and returns the time just before it.
func (b *Backend) Kill() time.Time {
	at := time.Now()
	b.proc.Kill()
	return at
}

// Signal sends a signal to the server's process.
func (b *Backend) Signal(sig unix.Signal) error { return unix.Kill(b.proc.Pid(), sig) }

// Unplug takes the host's port at the switch down: the host is dead, and silent. It
// returns the time just before it.
func (b *Backend) Unplug() (time.Time, error) { return b.port(false) }

// Plug brings the port back, and lets the replicas find the host at once.
func (b *Backend) Plug() error {
	_, err := b.port(true)
	return errors.Join(err, b.w.Forget(), forget(b.NS))
}

func (b *Backend) port(up bool) (time.Time, error) {
	h, err := wire.Handle(b.w.back)
	if err != nil {
		return time.Time{}, err
	}
	defer h.Close()
	l, err := h.LinkByName(b.Name)
	if err != nil {
		return time.Time{}, fmt.Errorf("switch: port %s: %w", b.Name, err)
	}
	at := time.Now()
	if up {
		err = h.LinkSetUp(l)
	} else {
		err = h.LinkSetDown(l)
	}
	if err != nil {
		return at, fmt.Errorf("switch: port %s: %w", b.Name, err)
	}
	return at, nil
}

// The tables of the lab in a backend's namespace.
const (
	silentTable = "silent"
	countTable  = "count"
)

// Silence makes the host drop everything that comes and that it would send, from now on or
// no longer. Its processes and its neighbours' knowledge of it stay as they are.
func (b *Backend) Silence(on bool) error {
	c, err := nftables.New(nftables.WithNetNSFd(b.NS.FD()), nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("backend %s: nftables: %w", b.Name, err)
	}
	defer c.CloseLasting() //nolint:errcheck // Flush has said all
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: silentTable})
	if !on {
		c.DelTable(t)
	} else {
		drop := nftables.ChainPolicyDrop
		for name, hook := range map[string]*nftables.ChainHook{"in": nftables.ChainHookPrerouting, "out": nftables.ChainHookOutput} {
			c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(-450), Policy: &drop})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("backend %s: silence: %w", b.Name, err)
	}
	return nil
}

// Count begins to count what clients begin with this host: SYN packets, and datagrams,
// from the clients' network to the service's port.
func (b *Backend) Count() error {
	c, err := nftables.New(nftables.WithNetNSFd(b.NS.FD()), nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("backend %s: nftables: %w", b.Name, err)
	}
	defer c.CloseLasting() //nolint:errcheck // Flush has said all
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: countTable})
	c.FlushTable(t)
	chain := c.AddChain(&nftables.Chain{Name: "in", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRef(-400)})
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: clientBegins(proto)})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("backend %s: count: %w", b.Name, err)
	}
	return nil
}

// clientBegins is, in nft's words, of both families:
//
//	ip saddr 10.10.0.0/24 tcp dport 80 tcp flags & (syn | ack) == syn counter
//	ip saddr 10.10.0.0/24 udp dport 80 counter
func clientBegins(proto byte) []expr.Any {
	e := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 3},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{10, 10, 0}},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, Port}},
	}
	if proto == unix.IPPROTO_TCP {
		const syn, ack = 0x02, 0x10
		e = append(e,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}})
	}
	return append(e, &expr.Counter{})
}

// Begun is how many connections and datagrams of clients have come to this host since
// Count.
func (b *Backend) Begun() (int, error) {
	c, err := nftables.New(nftables.WithNetNSFd(b.NS.FD()), nftables.AsLasting())
	if err != nil {
		return 0, fmt.Errorf("backend %s: nftables: %w", b.Name, err)
	}
	defer c.CloseLasting() //nolint:errcheck // nothing was written
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: countTable}
	rules, err := c.GetRules(t, &nftables.Chain{Name: "in", Table: t})
	if err != nil {
		return 0, fmt.Errorf("backend %s: count: %w", b.Name, err)
	}
	n := uint64(0)
	for _, r := range rules {
		for _, e := range r.Exprs {
			if k, ok := e.(*expr.Counter); ok {
				n += k.Packets
			}
		}
	}
	return int(n), nil //nolint:gosec // far below
}

// Held is how many connections to the server are established from an address.
func (b *Backend) Held(from netip.Addr) (int, error) {
	ports, err := b.HeldPorts(from)
	return len(ports), err
}

// HeldPorts are the ports of an address from which connections to the server are
// established: a connection that was made anew has another one.
func (b *Backend) HeldPorts(from netip.Addr) ([]uint16, error) {
	var ports []uint16
	err := b.NS.Do(func() error {
		for _, file := range []string{"tcp", "tcp6"} {
			t, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			ports = append(ports, established(string(t), from)...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("backend %s: sockets: %w", b.Name, err)
	}
	return ports, nil
}

// established finds the lines of /proc/net/tcp or tcp6 that are connections from an address
// to the service's port, and returns the ports that they come from.
func established(table string, from netip.Addr) []uint16 {
	const state = "01"
	local := fmt.Sprintf(":%04X", Port)
	var ports []uint16
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != state || !strings.HasSuffix(f[1], local) {
			continue
		}
		addr, hex, _ := strings.Cut(f[2], ":")
		var port uint16
		_, _ = fmt.Sscanf(hex, "%X", &port)
		if procAddr(addr) == from {
			ports = append(ports, port)
		}
	}
	return ports
}

// procAddr reads an address as /proc/net/tcp has it: 32-bit words in the host's order.
func procAddr(hex string) netip.Addr {
	b := make([]byte, 0, 16)
	for i := 0; i+8 <= len(hex); i += 8 {
		var word uint32
		_, _ = fmt.Sscanf(hex[i:i+8], "%X", &word)
		b = append(b, byte(word), byte(word>>8), byte(word>>16), byte(word>>24)) // as it lies in memory, little end first
	}
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}
