// Package host looks at this machine as a holder of addresses: which are its own, which
// networks it is connected to, and the kernel's settings that decide whether forwarding to
// candidates works. It changes nothing.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

const (
	deadline = 2 * time.Second // of one exchange with the kernel
	tries    = 3               // of a listing that a change interrupted
	settings = "/proc/sys"
)

// Sight implements edge.Sight. It keeps its netlink socket, which belongs to the network
// namespace of the first call.
type Sight struct {
	mu     sync.Mutex
	handle *netlink.Handle
}

// New returns a Sight that has not opened its socket yet.
func New() *Sight { return &Sight{} }

// Look reads addresses, connected prefixes and settings; lists are sorted. An address counts
// when its interface is up and it is past duplicate address detection; link-local ones are
// left out. Sysctl has ip_forward and forwarding, conntrack's tcp_loose and tcp_be_liberal,
// and rp_filter, arp_ignore and arp_announce of "all" and of each interface that has an
// address, with the names of their files below /proc/sys; what can't be read is absent.
func (s *Sight) Look(ctx context.Context, c edge.Config) (edge.Host, error) {
	if err := ctx.Err(); err != nil {
		return edge.Host{}, fmt.Errorf("addresses of this machine: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := s.addresses()
	if err != nil {
		return edge.Host{}, fmt.Errorf("addresses of this machine: %w", err)
	}
	links, err := newLinks()
	if err != nil {
		return edge.Host{}, fmt.Errorf("interfaces of this machine: %w", err)
	}
	defer links.close()
	var h edge.Host
	var names []string
	for _, a := range list {
		own, prefix, ok := read(a)
		l := links.get(a.LinkIndex)
		if !ok || !l.up {
			continue
		}
		h.Addresses = append(h.Addresses, own)
		if prefix.IsValid() && !l.loopback {
			h.Links = append(h.Links, prefix)
		}
		names = append(names, l.name)
	}
	h.Addresses, h.Links, names = sorted(h.Addresses, netip.Addr.Compare), sorted(h.Links, comparePrefix), sorted(names, cmp.Compare[string])
	h.Local = local(c, h.Addresses)
	h.Sysctl = sysctl(names)
	return h, nil
}

// Close closes the socket. A later call opens another one.
func (s *Sight) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

func (s *Sight) drop() {
	if s.handle != nil {
		s.handle.Close()
		s.handle = nil
	}
}

func (s *Sight) addresses() (list []netlink.Addr, err error) {
	if s.handle == nil {
		if s.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return nil, err
		}
		if err = s.handle.SetSocketTimeout(deadline); err != nil {
			s.drop()
			return nil, err
		}
	}
	for range tries {
		list, err = s.handle.AddrList(nil, netlink.FAMILY_ALL)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		s.drop() // what comes in later belongs to no request
	}
	return list, err
}

// read returns an address and the prefix that it connects to, which is invalid for a single
// host.
func read(a netlink.Addr) (own netip.Addr, prefix netip.Prefix, ok bool) {
	if a.IPNet == nil || a.Flags&(unix.IFA_F_DADFAILED|unix.IFA_F_TENTATIVE) != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0 {
		return own, prefix, false
	}
	own, ok = netip.AddrFromSlice(a.IP)
	own = own.Unmap()
	if !ok || own.IsLinkLocalUnicast() {
		return own, prefix, false
	}
	far := a.IPNet
	if a.Peer != nil { // the other end's network is what is connected
		far = a.Peer
	}
	return own, connected(far), true
}

func connected(n *net.IPNet) netip.Prefix {
	ip, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	ip = ip.Unmap()
	if !ok || ones == ip.BitLen() {
		return netip.Prefix{}
	}
	p, err := ip.Prefix(ones)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func sorted[T comparable](list []T, compare func(a, b T) int) []T {
	slices.SortFunc(list, compare)
	return slices.Compact(list)
}

// local returns the candidates' addresses that are this machine's own.
func local(c edge.Config, own []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, s := range c.Services {
		for _, cand := range s.Candidates {
			for _, a := range cand.Addresses {
				if _, found := slices.BinarySearchFunc(own, a.Unmap(), netip.Addr.Compare); found {
					out = append(out, a.Unmap())
				}
			}
		}
	}
	return sorted(out, netip.Addr.Compare)
}

// sysctl reads the settings of the machine and of the named interfaces.
func sysctl(names []string) map[string]int {
	keys := []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
		"net/netfilter/nf_conntrack_tcp_loose", "net/netfilter/nf_conntrack_tcp_be_liberal",
	}
	for _, name := range append([]string{"all"}, names...) {
		for _, key := range []string{"rp_filter", "arp_ignore", "arp_announce"} {
			keys = append(keys, "net/ipv4/conf/"+name+"/"+key)
		}
	}
	out := make(map[string]int, len(keys))
	for _, key := range keys {
		b, err := os.ReadFile(filepath.Join(settings, key))
		if err != nil {
			continue // no such module, no such family
		}
		if v, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			out[key] = v
		}
	}
	return out
}
