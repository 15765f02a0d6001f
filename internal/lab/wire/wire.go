// Package wire connects network namespaces and gives them addresses and routes.
package wire

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

// Wire is a virtual cable between two namespaces.
type Wire struct {
	A, B   *cage.Namespace
	IA, IB string // the interface at each end
}

// Site is what one namespace gets.
type Site struct {
	NS     *cage.Namespace
	Addrs  []string // "interface address/bits"
	Routes []string // "destination gateway" or "local destination"
	Sysctl map[string]string
}

// Connect makes the cable.
func (x Wire) Connect() error {
	h, err := Handle(x.A)
	if err != nil {
		return err
	}
	defer h.Close()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: x.IA}, PeerName: x.IB, PeerNamespace: netlink.NsFd(x.B.FD())}
	if err := h.LinkAdd(v); err != nil {
		return fmt.Errorf("wire %s %s - %s %s: %w", x.A.Name, x.IA, x.B.Name, x.IB, err)
	}
	return nil
}

// Handle opens rtnetlink in a namespace.
func Handle(ns *cage.Namespace) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("%s: netlink: %w", ns.Name, err)
	}
	return h, nil
}

// Apply brings all interfaces of the namespace up and adds addresses and routes; those of
// IPv6 only where v6 is true.
func (s Site) Apply(v6 bool) error {
	h, err := Handle(s.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("%s: links: %w", s.NS.Name, err)
	}
	by := map[string]netlink.Link{}
	for _, l := range links {
		by[l.Attrs().Name] = l
		if err := h.LinkSetUp(l); err != nil {
			return fmt.Errorf("%s: %s up: %w", s.NS.Name, l.Attrs().Name, err)
		}
	}
	for _, line := range s.Addrs {
		var dev, text string
		_, _ = fmt.Sscan(line, &dev, &text)
		a := netip.MustParsePrefix(text)
		if a.Addr().Is6() && !v6 {
			continue
		}
		na := &netlink.Addr{IPNet: IPNet(a)}
		if a.Addr().Is6() {
			na.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(by[dev], na); err != nil {
			return fmt.Errorf("%s: address %s: %w", s.NS.Name, line, err)
		}
	}
	for _, line := range s.Routes {
		if err := addRoute(h, by["lo"], line, v6); err != nil {
			return fmt.Errorf("%s: route %s: %w", s.NS.Name, line, err)
		}
	}
	return nil
}

// Settings are the kernel settings that every namespace of a world begins with.
func Settings(v6 bool) map[string]string {
	base := map[string]string{"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0"}
	if v6 {
		for _, d := range []string{"all", "default"} {
			c := "net/ipv6/conf/" + d + "/"
			base[c+"accept_dad"], base[c+"dad_transmits"], base[c+"router_solicitations"] = "0", "0", "0"
			base[c+"accept_ra"], base[c+"keep_addr_on_down"] = "0", "1"
		}
	}
	return base
}

// Prepare writes kernel settings: those that every namespace begins with, then its own. It
// comes before the namespace has interfaces.
func (s Site) Prepare(v6 bool) error {
	if err := s.NS.Sysctl(Settings(v6)); err != nil {
		return err
	}
	return s.NS.Sysctl(s.Sysctl)
}

func addRoute(h *netlink.Handle, lo netlink.Link, line string, v6 bool) error {
	var first, second string
	_, _ = fmt.Sscan(line, &first, &second)
	if first == "local" {
		p := netip.MustParsePrefix(second)
		return h.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: IPNet(p), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST})
	}
	p := netip.MustParsePrefix(first)
	if p.Addr().Is6() && !v6 {
		return nil
	}
	return h.RouteAdd(&netlink.Route{Dst: IPNet(p), Gw: net.IP(netip.MustParseAddr(second).AsSlice())})
}

// IPNet is a prefix in the form that netlink wants, with its host bits.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// HasIPv6 says whether the kernel knows IPv6.
func HasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
