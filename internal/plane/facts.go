package plane

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// readLinks reads the lanes' interfaces; one that is missing is not in the map.
func (p *Plane) readLinks(c egress.Config) (map[string]link, error) {
	links := map[string]link{}
	byIndex := map[int]string{}
	for _, l := range c.Lanes {
		got, err := p.route.LinkByName(l.Interface)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", l.Interface, err)
		}
		a := got.Attrs()
		links[l.Interface] = link{index: a.Index, up: a.RawFlags&unix.IFF_UP != 0, mtu: a.MTU}
		byIndex[a.Index] = l.Interface
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return p.route.AddrList(nil, unix.AF_INET6) })
	if err != nil {
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			return links, nil
		}
		return nil, fmt.Errorf("addresses: %w", err)
	}
	for _, a := range addrs {
		if name, ok := byIndex[a.LinkIndex]; ok && a.IP.IsGlobalUnicast() {
			l := links[name]
			l.v6 = true
			links[name] = l
		}
	}
	return links, nil
}

// retry repeats a listing that was interrupted by a change.
func retry[T any](list func() ([]T, error)) (out []T, err error) {
	for range readTries {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}

// learn finds out what the rules depend on. What the table in the kernel was made for counts
// too: an interface that is down for a moment must not make the rules weaker, nor have the
// table loaded anew.
func (p *Plane) learn(s *seen) (Facts, error) {
	var f Facts
	if s.c.Uplink.Interface != "" {
		f.Uplinks = []string{s.c.Uplink.Interface}
	} else {
		ups, err := p.defaults(s)
		if err != nil {
			return f, err
		}
		for _, up := range append(ups, s.table.names["uplinks"]...) {
			lane := slices.ContainsFunc(s.c.Lanes, func(l egress.Lane) bool { return l.Interface == up })
			if !lane && !slices.Contains(s.c.Plane.Inputs, up) {
				f.Uplinks = append(f.Uplinks, up)
			}
		}
		slices.Sort(f.Uplinks)
		f.Uplinks = slices.Compact(f.Uplinks)
	}
	if s.c.Plane.ClampMSS {
		f.MTU = leastLaneMTU(s)
	}
	return f, nil
}

// leastLaneMTU is the least MTU of the lanes; while one is away, what was least before stands.
func leastLaneMTU(s *seen) int {
	least := 0
	lower := func(mtu int) {
		if mtu >= leastMTU && (least == 0 || mtu < least) {
			least = mtu
		}
	}
	for _, l := range s.links {
		lower(l.mtu)
	}
	if len(s.links) < len(s.c.Lanes) {
		lower(s.table.mtu)
	}
	if least == 0 {
		return defaultMTU
	}
	return least
}

// defaults are the interfaces of the default routes in the main table.
func (p *Plane) defaults(s *seen) ([]string, error) {
	var names []string
	for _, family := range s.families {
		routes, err := p.readRoutes(family, unix.RT_TABLE_MAIN)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			hops := []int{r.LinkIndex}
			for _, h := range r.MultiPath {
				hops = append(hops, h.LinkIndex)
			}
			for _, index := range hops {
				if index == 0 || !isDefault(r) || r.Type != unix.RTN_UNICAST {
					continue
				}
				l, err := p.route.LinkByIndex(index)
				if err != nil {
					continue // gone since
				}
				names = append(names, l.Attrs().Name)
			}
		}
	}
	return names, nil
}

// rpFilter says why the kernel would drop answers that come in by a lane; "" = it does not.
// Strict filtering asks where the sender's address would be sent to without a mark, and that
// is the uplink.
func rpFilter(iface string) string {
	most, where := 0, ""
	for _, name := range []string{"all", iface} {
		file := "/proc/sys/net/ipv4/conf/" + name + "/rp_filter"
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > most {
			most, where = n, "net.ipv4.conf."+name+".rp_filter"
		}
	}
	if most != 1 {
		return ""
	}
	return fmt.Sprintf("%s is 1 (strict): answers by %s are dropped, want 0 or 2", where, iface)
}
