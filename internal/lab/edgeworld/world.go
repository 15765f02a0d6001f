// Package edgeworld makes throw-away worlds for the edge: replicas that share a virtual
// address, and the backends behind it.
//
//	client ----- front ----- r1 r2 r3 ----- back ----- a b …
//	gap.Client   a bridge    shunt runs     a bridge   servers (package backend)
//
// Each is a network namespace inside a cage. The replicas are routers; one of them holds
// the virtual address towards the clients and the gateway's address towards the backends.
// The bridges stand for switches: a backend whose port goes down there is a dead host.
package edgeworld

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/wire"
)

// The addresses of a world.
const (
	VIP4     = "10.10.0.50"
	VIP6     = "fd10::50"
	FrontNet = "10.10.0.0/24"
	Client4  = "10.10.0.2"
	Client6  = "fd10::2"
	BackNet  = "10.20.0.0/24"

	// The backends' gateway, at the replica that holds the virtual address.
	gateway4 = "10.20.0.1"
	gateway6 = "fd20::1"

	// Interface names at a replica and a backend.
	FrontInterface = "front0"
	BackInterface  = "back0"
)

// Options shape a world. The zero value is one replica and two backends.
type Options struct {
	Replicas int           // 0 = 1
	Backends int           // 0 = 2; named a, b, c …
	Delay    time.Duration // added to the start of each transport to another replica
	Dir      string        // work folder, which exists
	Binary   string        // the product, and the servers; "" = /proc/self/exe
	// BinaryArg is put before the product's arguments, and those of servers.
	BinaryArg []string
}

// World is a world that is up.
type World struct {
	Dir      string
	Logs     string // what background processes write
	Client   *cage.Namespace
	Replicas []*Replica
	Backends []*Backend
	Took     time.Duration // to build
	IPv6     bool          // the kernel has it

	o           Options
	front, back *cage.Namespace
	spaces      []*cage.Namespace
}

// Build makes a world. It works only in a cage, one world at a time. The first replica
// holds the virtual address; no server runs yet.
func Build(ctx context.Context, o Options) (*World, error) {
	began := time.Now()
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Backends == 0 {
		o.Backends = 2
	}
	if o.Binary == "" {
		o.Binary = "/proc/self/exe"
	}
	if o.Dir == "" || o.Replicas > 9 || o.Backends > 9 {
		return nil, errors.New("edge world: want a work folder, at most 9 replicas and 9 backends")
	}
	w := &World{Dir: o.Dir, Logs: filepath.Join(o.Dir, "log"), IPv6: wire.HasIPv6(), o: o}
	if err := w.build(); err != nil {
		return nil, fmt.Errorf("edge world: %w", errors.Join(err, w.Close()))
	}
	w.Took = time.Since(began)
	return w, ctx.Err()
}

func (w *World) build() error {
	names := []string{"client", "front", "back"}
	for i := range w.o.Replicas {
		names = append(names, fmt.Sprintf("r%d", i+1))
	}
	for i := range w.o.Backends {
		names = append(names, string(rune('a'+i)))
	}
	spaces, err := cage.New(names...)
	if err != nil {
		return err
	}
	w.spaces = spaces
	w.Client, w.front, w.back = spaces[0], spaces[1], spaces[2]
	for _, d := range []string{w.Logs, filepath.Join(w.Dir, "bin"), filepath.Join(w.Dir, "tmp")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return err
		}
	}
	for i, ns := range spaces[3 : 3+w.o.Replicas] {
		w.Replicas = append(w.Replicas, w.replica(i, ns))
	}
	for i, ns := range spaces[3+w.o.Replicas:] {
		b, err := w.backend(i, ns)
		if err != nil {
			return err
		}
		w.Backends = append(w.Backends, b)
	}
	if err := w.topology(); err != nil {
		return err
	}
	for _, r := range w.Replicas {
		if err := r.files(); err != nil {
			return err
		}
	}
	return errors.Join(w.Configure(Config{}), w.Hold(w.Replicas[0]))
}

// topology makes the cables, bridges, addresses and routes.
func (w *World) topology() error {
	sites := w.sites()
	for _, s := range sites {
		if err := s.Prepare(w.IPv6); err != nil {
			return err
		}
	}
	cables := []wire.Wire{{A: w.Client, B: w.front, IA: FrontInterface, IB: "client"}}
	for _, r := range w.Replicas {
		cables = append(cables, wire.Wire{A: r.NS, B: w.front, IA: FrontInterface, IB: r.Name}, wire.Wire{A: r.NS, B: w.back, IA: BackInterface, IB: r.Name})
	}
	for _, b := range w.Backends {
		cables = append(cables, wire.Wire{A: b.NS, B: w.back, IA: BackInterface, IB: b.Name})
	}
	for _, x := range cables {
		if err := x.Connect(); err != nil {
			return err
		}
	}
	for _, ns := range []*cage.Namespace{w.front, w.back} {
		if err := bridge(ns); err != nil {
			return err
		}
	}
	for _, s := range sites {
		if err := s.Apply(w.IPv6); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) sites() []wire.Site {
	// The client also reaches the backends' network, where keepalived has its address.
	client := wire.Site{
		NS: w.Client, Addrs: []string{FrontInterface + " " + Client4 + "/24", FrontInterface + " " + Client6 + "/64"},
		Routes: []string{"0.0.0.0/0 " + w.Replicas[0].Front4.String(), "::/0 " + w.Replicas[0].Front6.String()},
		Sysctl: map[string]string{"net/ipv4/ip_local_port_range": "10000 65000"},
	}
	out := []wire.Site{client, {NS: w.front}, {NS: w.back}}
	for _, r := range w.Replicas {
		s := wire.Site{NS: r.NS, Sysctl: map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/ip_local_port_range": "10000 65000"}}
		if w.IPv6 {
			s.Sysctl["net/ipv6/conf/all/forwarding"] = "1"
		}
		for dev, addrs := range map[string][]netip.Addr{FrontInterface: {r.Front4, r.Front6}, BackInterface: {r.Back4, r.Back6}} {
			s.Addrs = append(s.Addrs, dev+" "+addrs[0].String()+"/24", dev+" "+addrs[1].String()+"/64")
		}
		out = append(out, s)
	}
	for _, b := range w.Backends {
		out = append(out, wire.Site{
			NS: b.NS, Addrs: []string{BackInterface + " " + b.Addr4.String() + "/24", BackInterface + " " + b.Addr6.String() + "/64"},
			Routes: []string{"0.0.0.0/0 " + gateway4, "::/0 " + gateway6},
		})
	}
	return out
}

// bridge makes a switch of all that is plugged into a namespace.
func bridge(ns *cage.Namespace) error {
	h, err := wire.Handle(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := h.LinkAdd(br); err != nil {
		return fmt.Errorf("%s: bridge: %w", ns.Name, err)
	}
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("%s: links: %w", ns.Name, err)
	}
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		if err := h.LinkSetMaster(l, br); err != nil {
			return fmt.Errorf("%s: %s: %w", ns.Name, l.Attrs().Name, err)
		}
	}
	return nil
}

// Knows says whether an address is one of this world's: a virtual one, a replica's, a
// backend's, or that of their network.
func (w *World) Knows(a netip.Addr) bool {
	known := []netip.Addr{w.VIP(4).Addr(), w.VIP(6).Addr(), netip.MustParsePrefix(BackNet).Addr(), netip.MustParsePrefix(FrontNet).Addr()}
	for _, r := range w.Replicas {
		known = append(known, r.Front4, r.Front6, r.Back4, r.Back6)
	}
	for _, b := range w.Backends {
		known = append(known, b.Addr4, b.Addr6)
	}
	known = append(known, netip.MustParseAddr("fd10::"), netip.MustParseAddr("fd20::"))
	return slices.Contains(known, a)
}

// VIP is the virtual address of a family, with the service's port.
func (w *World) VIP(family int) netip.AddrPort {
	a := netip.MustParseAddr(VIP4)
	if family == 6 {
		a = netip.MustParseAddr(VIP6)
	}
	return netip.AddrPortFrom(a, Port)
}

// Hold makes one replica the holder of the virtual address and the gateway's, and nobody
// else: what keepalived does when it promotes one.
func (w *World) Hold(holder *Replica) error {
	for _, r := range w.Replicas {
		if r != holder {
			if err := r.Claim(false); err != nil {
				return err
			}
		}
	}
	if err := holder.Claim(true); err != nil {
		return err
	}
	for _, ns := range append([]*cage.Namespace{w.Client}, w.backendSpaces()...) {
		if err := forget(ns); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) backendSpaces() []*cage.Namespace {
	var out []*cage.Namespace
	for _, b := range w.Backends {
		out = append(out, b.NS)
	}
	return out
}

// forget empties a namespace's neighbour tables, as gratuitous ARP does for one address.
func forget(ns *cage.Namespace) error {
	h, err := wire.Handle(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := h.NeighList(0, family)
		if err != nil {
			return fmt.Errorf("%s: neighbours: %w", ns.Name, err)
		}
		for _, n := range list {
			if n.State&(netlink.NUD_NOARP|netlink.NUD_PERMANENT) == 0 {
				_ = h.NeighDel(&n) // it may have gone by itself
			}
		}
	}
	return nil
}

// Forget empties the holder's neighbour tables: a host that came back is found at once.
func (w *World) Forget() error {
	for _, r := range w.Replicas {
		if err := forget(r.NS); err != nil {
			return err
		}
	}
	return nil
}

// Backend is the backend of that name; it panics where there is none.
func (w *World) Backend(name string) *Backend {
	for _, b := range w.Backends {
		if b.Name == name {
			return b
		}
	}
	panic("edge world: no backend " + name)
}

// Close takes the world down: processes and namespaces. The files stay.
func (w *World) Close() error {
	var err error
	for _, r := range w.Replicas {
		r.StopAll()
	}
	for _, b := range w.Backends {
		b.machine.StopAll()
	}
	for _, n := range w.spaces {
		err = errors.Join(err, n.Close())
	}
	w.spaces = nil
	return err
}

// machine is a namespace with the world's product in it.
func (w *World) machine(ns *cage.Namespace, env ...string) lab.Machine {
	return lab.Machine{
		NS: ns, Dir: w.Dir, Logs: w.Logs, Binary: w.o.Binary, BinaryArg: w.o.BinaryArg,
		Env: append([]string{
			"PATH=" + filepath.Join(w.Dir, "bin") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME=" + w.Dir, "LANG=C.UTF-8", "TMPDIR=" + filepath.Join(w.Dir, "tmp"), "SHUNT_LAB_DIR=" + w.Dir,
		}, env...),
	}
}
