package lane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/run"
)

// link is a lane's interface as netlink shows it.
type link struct {
	nl    netlink.Link
	name  string
	index int
	up    bool
	mtu   int
	addrs []netlink.Addr // global ones; fe80:: is the kernel's
}

// findLink reads the interface; ErrNoDevice when there is none.
func findLink(name string) (link, error) {
	nl, err := netlink.LinkByName(name)
	var gone netlink.LinkNotFoundError
	switch {
	case errors.As(err, &gone):
		return link{}, fmt.Errorf("interface %s: not there: %w", name, ErrNoDevice)
	case err != nil:
		return link{}, fmt.Errorf("interface %s: %w", name, err)
	}
	a := nl.Attrs()
	return link{nl: nl, name: name, index: a.Index, up: a.Flags&net.FlagUp != 0, mtu: a.MTU}, nil
}

// findLinkAddrs reads the interface and its addresses.
func findLinkAddrs(name string) (link, error) {
	k, err := findLink(name)
	if err != nil {
		return k, err
	}
	return k, k.readAddrs()
}

func (k *link) readAddrs() error {
	all, err := netlink.AddrList(k.nl, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("interface %s: addresses: %w", k.name, err)
	}
	k.addrs = slices.DeleteFunc(all, func(a netlink.Addr) bool { return a.Scope == unix.RT_SCOPE_LINK })
	return nil
}

func (k *link) prefixes() []netip.Prefix {
	out := make([]netip.Prefix, 0, len(k.addrs))
	for _, a := range k.addrs {
		out = append(out, prefix(a.IPNet))
	}
	return out
}

// holds says whether every wanted address is there.
func (k *link) holds(want []netip.Prefix) bool {
	have := k.prefixes()
	return !slices.ContainsFunc(want, func(p netip.Prefix) bool { return !slices.Contains(have, p) })
}

// wanted turns prefixes into addresses to be added.
func wanted(in []netip.Prefix) []netlink.Addr {
	out := make([]netlink.Addr, 0, len(in))
	for _, p := range in {
		out = append(out, netlink.Addr{IPNet: ipNet(p)})
	}
	return out
}

// addAddrs adds what is missing of want.
func (k *link) addAddrs(ctx context.Context, want []netlink.Addr) error {
	have := k.prefixes()
	for _, a := range want {
		if slices.Contains(have, prefix(a.IPNet)) {
			continue
		}
		if err := k.addAddr(ctx, a); err != nil {
			return err
		}
	}
	return k.readAddrs()
}

func (k *link) addAddr(ctx context.Context, a netlink.Addr) error {
	// What the kernel decides by itself is left to it.
	a.Flags &^= unix.IFA_F_SECONDARY | unix.IFA_F_PERMANENT | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	a.LinkIndex = 0
	if err := netlink.AddrAdd(k.nl, &a); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("interface %s: add address %s: %w", k.name, a.IPNet, err)
	}
	run.Point(ctx, "lane.address")
	return nil
}

// dropAddrs removes every address that is not in want, which must be there already.
// Two things would take the lane's routes with them: the last IPv4 address of a link
// leaving (the kernel then flushes all its routes), and a primary address leaving whose
// secondaries go with it. So a wanted address in the subnet of one that goes is held by
// a /32 of its own meanwhile.
func (k *link) dropAddrs(ctx context.Context, want []netlink.Addr) error {
	keep := make([]netip.Prefix, 0, len(want))
	for _, a := range want {
		keep = append(keep, prefix(a.IPNet))
	}
	var stale []netlink.Addr
	for _, a := range k.addrs {
		if !slices.Contains(keep, prefix(a.IPNet)) {
			stale = append(stale, a)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	held := heldAddrs(stale, keep)
	// A holder that a killed run left is needed once more, and goes last too.
	stale = slices.DeleteFunc(stale, func(a netlink.Addr) bool {
		return slices.ContainsFunc(held, func(h netlink.Addr) bool { return prefix(h.IPNet) == prefix(a.IPNet) })
	})
	for _, a := range held {
		if err := k.addAddr(ctx, a); err != nil {
			return err
		}
	}
	for _, a := range stale {
		if err := k.dropAddr(ctx, a); err != nil {
			return err
		}
	}
	if len(held) == 0 {
		return k.readAddrs()
	}
	if err := k.readAddrs(); err != nil {
		return err
	}
	if err := k.addAddrs(ctx, want); err != nil { // what went with the stale ones
		return err
	}
	for _, a := range held {
		if err := k.dropAddr(ctx, a); err != nil {
			return err
		}
	}
	return k.readAddrs()
}

func (k *link) dropAddr(ctx context.Context, a netlink.Addr) error {
	err := netlink.AddrDel(k.nl, &netlink.Addr{IPNet: a.IPNet, Peer: a.Peer})
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("interface %s: remove address %s: %w", k.name, a.IPNet, err)
	}
	run.Point(ctx, "lane.address")
	return nil
}

func heldAddrs(stale []netlink.Addr, keep []netip.Prefix) []netlink.Addr {
	var held []netlink.Addr
	for _, p := range keep {
		if !p.Addr().Is4() || p.Bits() == 32 {
			continue
		}
		same := func(a netlink.Addr) bool { return prefix(a.IPNet).Masked() == p.Masked() }
		if slices.ContainsFunc(stale, same) {
			held = append(held, netlink.Addr{IPNet: ipNet(netip.PrefixFrom(p.Addr(), 32))})
		}
	}
	return held
}

// setMTU sets the MTU in bytes where it differs; 0 leaves it.
func (k *link) setMTU(ctx context.Context, mtu int) error {
	if mtu == 0 || mtu == k.mtu {
		return nil
	}
	if err := netlink.LinkSetMTU(k.nl, mtu); err != nil {
		return fmt.Errorf("interface %s: mtu %d: %w", k.name, mtu, err)
	}
	k.mtu = mtu
	run.Point(ctx, "lane.mtu")
	return nil
}

func (k *link) setUp(ctx context.Context) error {
	if k.up {
		return nil
	}
	if err := netlink.LinkSetUp(k.nl); err != nil {
		return fmt.Errorf("interface %s: up: %w", k.name, err)
	}
	k.up = true
	run.Point(ctx, "lane.up")
	return nil
}
