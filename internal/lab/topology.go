package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/wire"
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

// topology makes the wires, addresses and routes of a world.
func (w *World) topology() error {
	sites := w.sites()
	for _, s := range sites {
		if err := s.Prepare(w.o.IPv6); err != nil {
			return err
		}
	}
	for _, x := range []wire.Wire{
		{A: w.LAN, B: w.Router, IA: "eth0", IB: LANInterface},
		{A: w.Router, B: w.ISP, IA: WANInterface, IB: ispInterface},
		{A: w.ISP, B: w.Provider, IA: "core0", IB: "eth0"},
	} {
		if err := x.Connect(); err != nil {
			return err
		}
	}
	for _, s := range sites {
		if err := s.Apply(w.o.IPv6); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) sites() []wire.Site {
	lan := wire.Site{NS: w.LAN, Addrs: []string{"eth0 10.20.0.2/24", "eth0 fd20::2/64"}, Routes: []string{"0.0.0.0/0 " + RouterLAN4, "::/0 " + RouterLAN6}}
	for i := range Users {
		lan.Addrs = append(lan.Addrs, "eth0 "+User4(i).String()+"/24", "eth0 "+User6(i).String()+"/64")
	}
	forward := map[string]string{"net/ipv4/ip_forward": "1"}
	router := map[string]string{"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "2", "net/ipv4/conf/default/rp_filter": "2"}
	if w.o.IPv6 {
		forward["net/ipv6/conf/all/forwarding"], router["net/ipv6/conf/all/forwarding"] = "1", "1"
	}
	return []wire.Site{
		lan,
		{
			NS: w.Router, Sysctl: router,
			Addrs:  []string{LANInterface + " " + RouterLAN4 + "/24", LANInterface + " " + RouterLAN6 + "/64", WANInterface + " " + RouterWAN4 + "/24", WANInterface + " " + RouterWAN6 + "/64"},
			Routes: []string{"0.0.0.0/0 " + Gateway4, "::/0 " + Gateway6},
		},
		{
			NS: w.ISP, Sysctl: forward,
			Addrs:  []string{ispInterface + " " + Gateway4 + "/24", ispInterface + " " + Gateway6 + "/64", "core0 " + coreISP4 + "/24", "core0 " + coreISP6 + "/64"},
			Routes: []string{server.EndpointNet + " " + coreProvider4, servicesNet4 + " " + coreProvider4, servicesNet6 + " " + coreProvider6},
		},
		{
			NS:     w.Provider,
			Addrs:  append([]string{"eth0 " + coreProvider4 + "/24", "eth0 " + coreProvider6 + "/64"}, serviceAddrs()...),
			Routes: []string{"0.0.0.0/0 " + coreISP4, "::/0 " + coreISP6, "local " + server.EndpointNet},
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

// exitLink brings the provider's shared exit up and routes the exits' addresses to it.
func (w *World) exitLink() error {
	h, err := wire.Handle(w.Provider)
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
		if err := h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: wire.IPNet(p), Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("provider: route %s: %w", n, err)
		}
	}
	return nil
}
