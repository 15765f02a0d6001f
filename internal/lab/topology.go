package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/server"
)

// The addresses of a world. All are from ranges that the real Internet does not route.
const (
	LANInterface = "lan0" // the router's interface to the users
	WANInterface = "wan0" // the router's interface to its provider of access
	ispInterface = "cust0"

	RouterLAN4 = "10.20.0.1"
	RouterLAN6 = "fd20::1"
	LANNet4    = "10.20.0.0/24"
	LANNet6    = "fd20::/64"
	RouterWAN4 = "192.0.2.2"
	RouterWAN6 = "2001:db8:2::2"
	Gateway4   = "192.0.2.1"
	Gateway6   = "2001:db8:2::1"
	WANNet4    = "192.0.2.0/24"
	WANNet6    = "2001:db8:2::/64"

	// Services, reached through tunnels and directly alike.
	Service4a = "203.0.113.10"
	Service4b = "203.0.113.11"
	Service6a = "2001:db8:203::10"
	Service6b = "2001:db8:203::11"
	// Uplink targets answer pings; they are meant to be asked directly.
	Uplink4a = "203.0.113.53"
	Uplink4b = "203.0.113.54"
	Uplink6a = "2001:db8:203::53"
	Uplink6b = "2001:db8:203::54"

	coreISP4      = "198.51.100.1"
	coreISP6      = "2001:db8:51::1"
	coreProvider4 = "198.51.100.2"
	coreProvider6 = "2001:db8:51::2"
	servicesNet4  = "203.0.113.0/24"
	servicesNet6  = "2001:db8:203::/64"

	// Users is the number of addresses that the users' namespace has; see World.User.
	Users = 40
)

// User4 is the IPv4 address of user i, from 0.
func User4(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, 0, byte(10 + i)}) }

// User6 is the IPv6 address of user i, from 0.
func User6(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd20::%x", 16+i)) }

// wire connects two namespaces.
type wire struct {
	a, b   *cage.Namespace
	ia, ib string
}

// site is what one namespace gets.
type site struct {
	ns     *cage.Namespace
	addrs  []string // "interface address/bits"
	routes []string // "destination gateway", "destination dev interface" or "local destination"
	sysctl map[string]string
}

// topology makes the wires, addresses and routes of a world.
func (w *World) topology() error {
	base := map[string]string{"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0"}
	if w.o.IPv6 {
		for _, d := range []string{"all", "default"} {
			c := "net/ipv6/conf/" + d + "/"
			base[c+"accept_dad"], base[c+"dad_transmits"], base[c+"router_solicitations"] = "0", "0", "0"
			base[c+"accept_ra"], base[c+"keep_addr_on_down"] = "0", "1"
		}
	}
	sites := w.sites()
	for _, s := range sites {
		if err := s.ns.Sysctl(base); err != nil {
			return err
		}
		if err := s.ns.Sysctl(s.sysctl); err != nil {
			return err
		}
	}
	for _, x := range []wire{
		{w.LAN, w.Router, "eth0", LANInterface},
		{w.Router, w.ISP, WANInterface, ispInterface},
		{w.ISP, w.Provider, "core0", "eth0"},
	} {
		if err := x.connect(); err != nil {
			return err
		}
	}
	for _, s := range sites {
		if err := s.addresses(w.o.IPv6); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) sites() []site {
	lan := site{ns: w.LAN, addrs: []string{"eth0 10.20.0.2/24", "eth0 fd20::2/64"}, routes: []string{"0.0.0.0/0 " + RouterLAN4, "::/0 " + RouterLAN6}}
	for i := range Users {
		lan.addrs = append(lan.addrs, "eth0 "+User4(i).String()+"/24", "eth0 "+User6(i).String()+"/64")
	}
	forward := map[string]string{"net/ipv4/ip_forward": "1"}
	router := map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "2", "net/ipv4/conf/default/rp_filter": "2"}
	if w.o.IPv6 {
		forward["net/ipv6/conf/all/forwarding"], router["net/ipv6/conf/all/forwarding"] = "1", "1"
	}
	return []site{
		lan,
		{
			ns: w.Router, sysctl: router,
			addrs:  []string{LANInterface + " " + RouterLAN4 + "/24", LANInterface + " " + RouterLAN6 + "/64", WANInterface + " " + RouterWAN4 + "/24", WANInterface + " " + RouterWAN6 + "/64"},
			routes: []string{"0.0.0.0/0 " + Gateway4, "::/0 " + Gateway6},
		},
		{
			ns: w.ISP, sysctl: forward,
			addrs:  []string{ispInterface + " " + Gateway4 + "/24", ispInterface + " " + Gateway6 + "/64", "core0 " + coreISP4 + "/24", "core0 " + coreISP6 + "/64"},
			routes: []string{server.EndpointNet + " " + coreProvider4, servicesNet4 + " " + coreProvider4, servicesNet6 + " " + coreProvider6},
		},
		{
			ns:     w.Provider,
			addrs:  append([]string{"eth0 " + coreProvider4 + "/24", "eth0 " + coreProvider6 + "/64"}, serviceAddrs()...),
			routes: []string{"0.0.0.0/0 " + coreISP4, "::/0 " + coreISP6, "local " + server.EndpointNet},
		},
	}
}

func serviceAddrs() []string {
	var out []string
	for _, a := range []string{Service4a, Service4b, Uplink4a, Uplink4b, List4, server.Inside4} {
		out = append(out, "lo "+a+"/32")
	}
	for _, a := range []string{Service6a, Service6b, Uplink6a, Uplink6b, server.Inside6} {
		out = append(out, "lo "+a+"/128")
	}
	return out
}

func (x wire) connect() error {
	h, err := handle(x.a)
	if err != nil {
		return err
	}
	defer h.Close()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: x.ia}, PeerName: x.ib, PeerNamespace: netlink.NsFd(x.b.FD())}
	if err := h.LinkAdd(v); err != nil {
		return fmt.Errorf("wire %s %s - %s %s: %w", x.a.Name, x.ia, x.b.Name, x.ib, err)
	}
	return nil
}

// handle opens rtnetlink in a namespace.
func handle(ns *cage.Namespace) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("%s: netlink: %w", ns.Name, err)
	}
	return h, nil
}

func (s site) addresses(v6 bool) error {
	h, err := handle(s.ns)
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("%s: links: %w", s.ns.Name, err)
	}
	by := map[string]netlink.Link{}
	for _, l := range links {
		by[l.Attrs().Name] = l
		if err := h.LinkSetUp(l); err != nil {
			return fmt.Errorf("%s: %s up: %w", s.ns.Name, l.Attrs().Name, err)
		}
	}
	for _, line := range s.addrs {
		var dev, text string
		_, _ = fmt.Sscan(line, &dev, &text)
		a := netip.MustParsePrefix(text)
		if a.Addr().Is6() && !v6 {
			continue
		}
		na := &netlink.Addr{IPNet: ipnet(a)}
		if a.Addr().Is6() {
			na.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(by[dev], na); err != nil {
			return fmt.Errorf("%s: address %s: %w", s.ns.Name, line, err)
		}
	}
	for _, line := range s.routes {
		if err := addRoute(h, by["lo"], line, v6); err != nil {
			return fmt.Errorf("%s: route %s: %w", s.ns.Name, line, err)
		}
	}
	return nil
}

func addRoute(h *netlink.Handle, lo netlink.Link, line string, v6 bool) error {
	var first, second string
	_, _ = fmt.Sscan(line, &first, &second)
	if first == "local" {
		p := netip.MustParsePrefix(second)
		return h.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipnet(p), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST})
	}
	p := netip.MustParsePrefix(first)
	if p.Addr().Is6() && !v6 {
		return nil
	}
	return h.RouteAdd(&netlink.Route{Dst: ipnet(p), Gw: net.IP(netip.MustParseAddr(second).AsSlice())})
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// exitLink brings the provider's shared exit up and routes the exits' addresses to it.
func (w *World) exitLink() error {
	h, err := handle(w.Provider)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(server.ExitInterface)
	if err != nil {
		return fmt.Errorf("provider: %s: %w", server.ExitInterface, err)
	}
	if err := h.LinkSetMTU(l, server.MTUInside); err != nil {
		return fmt.Errorf("provider: %s: mtu: %w", server.ExitInterface, err)
	}
	if err := h.LinkSetTxQLen(l, 4096); err != nil {
		return fmt.Errorf("provider: %s: queue: %w", server.ExitInterface, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("provider: %s up: %w", server.ExitInterface, err)
	}
	for _, n := range []string{server.ExitNet4, server.ExitNet6} {
		p := netip.MustParsePrefix(n)
		if p.Addr().Is6() && !w.o.IPv6 {
			continue
		}
		if err := h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipnet(p), Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("provider: route %s: %w", n, err)
		}
	}
	return nil
}

// hasIPv6 says whether the kernel knows IPv6.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
