package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

const (
	uplinkTries = 3
	uplinkGap   = 60 * time.Millisecond

	defaultUplinkTimeout = time.Second

	gatewayAuto = "auto"
)

// Uplink pings the gateway and the direct targets through the uplink's interface, all
// at once, three tries each, within u.Timeout. Without an interface, a carrier or a
// default route nothing answers, and Error says why.
func (p *Prober) Uplink(ctx context.Context, u egress.UplinkConfig) egress.UplinkView {
	v := egress.UplinkView{Targets: map[string]bool{}}
	for _, t := range u.Targets {
		v.Targets[t.String()] = false
	}
	iface, gateway, err := p.path(u)
	v.Interface, v.Gateway = iface, gateway
	if err != nil {
		v.Error = err.Error()
		return v
	}
	timeout := u.Timeout
	if timeout <= 0 {
		timeout = defaultUplinkTimeout
	}
	wait := max(timeout-(uplinkTries-1)*uplinkGap, timeout/2)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ask := func(to netip.Addr, set func(outcome)) {
		wg.Go(func() {
			o := ping(ctx, volley{
				iface: iface, targets: []netip.Addr{to}, n: uplinkTries, need: 1, gap: uplinkGap, wait: wait, payload: ordinaryPayload,
			})
			mu.Lock()
			defer mu.Unlock()
			set(o)
		})
	}
	if gateway.IsValid() {
		ask(gateway, func(o outcome) {
			v.GatewayOK = o.pass
			if o.err != nil && !errors.Is(o.err, context.DeadlineExceeded) {
				v.Error = fmt.Sprintf("gateway: %v", o.err)
			}
		})
	}
	for _, t := range u.Targets {
		ask(t, func(o outcome) { v.Targets[t.String()] = o.pass })
	}
	wg.Wait()
	return v
}

// path is the uplink's interface and gateway. A gateway that is not valid, without an
// error, means that there is none: a point-to-point link.
func (p *Prober) path(u egress.UplinkConfig) (string, netip.Addr, error) {
	iface, gateway := u.Interface, netip.Addr{}
	auto := u.Gateway == "" || u.Gateway == gatewayAuto
	if !auto {
		g, err := netip.ParseAddr(u.Gateway)
		if err != nil {
			return iface, gateway, fmt.Errorf("uplink gateway %q: not an address", u.Gateway)
		}
		gateway = g.Unmap()
	}
	if iface != "" { // said first, as it explains a missing route
		if err := carrier(iface); err != nil {
			return iface, gateway, err
		}
	}
	if iface == "" || auto {
		found, via, err := p.defaultRoute(iface)
		if err != nil {
			return iface, gateway, err
		}
		if iface == "" {
			if err := carrier(found); err != nil {
				return found, gateway, err
			}
		}
		iface = found
		if auto {
			gateway = via
		}
	}
	return iface, gateway, nil
}

// carrier is an error unless the interface is there, up and has a link.
func carrier(iface string) error {
	l, err := netlink.LinkByName(iface)
	if err != nil {
		return fmt.Errorf("uplink %s: %w", iface, err)
	}
	switch flags := l.Attrs().RawFlags; {
	case flags&unix.IFF_UP == 0:
		return fmt.Errorf("uplink %s: is down", iface)
	case flags&unix.IFF_LOWER_UP == 0:
		return fmt.Errorf("uplink %s: no carrier", iface)
	}
	return nil
}

// hop is a next hop of a default route.
type hop struct {
	iface string
	via   netip.Addr
	cost  int
	v6    bool
}

// defaultRoute is the cheapest default route of the main table, by IPv4 if there is
// one, that leads through no lane and, where iface is not "", through iface.
func (p *Prober) defaultRoute(iface string) (string, netip.Addr, error) {
	var hops []hop
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return "", netip.Addr{}, fmt.Errorf("default route: %w", err)
		}
		for _, r := range list {
			hops = append(hops, nextHops(r, family == netlink.FAMILY_V6)...)
		}
	}
	hops = slices.DeleteFunc(hops, func(h hop) bool {
		return slices.Contains(p.opts.Lanes, h.iface) || iface != "" && h.iface != iface
	})
	if len(hops) == 0 {
		if iface != "" {
			return "", netip.Addr{}, fmt.Errorf("uplink %s: no default route through it", iface)
		}
		return "", netip.Addr{}, errors.New("uplink: no default route")
	}
	best := slices.MinFunc(hops, func(a, b hop) int {
		if a.v6 != b.v6 {
			return map[bool]int{false: -1, true: 1}[a.v6]
		}
		return a.cost - b.cost
	})
	return best.iface, best.via, nil
}

// nextHops are those of a route if it is a default one.
func nextHops(r netlink.Route, v6 bool) []hop {
	if r.Type != unix.RTN_UNICAST || r.Dst != nil && !isDefault(r) {
		return nil
	}
	ways := r.MultiPath
	if len(ways) == 0 {
		ways = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
	}
	var hops []hop
	for _, w := range ways {
		l, err := netlink.LinkByIndex(w.LinkIndex)
		if err != nil {
			continue // it went away between the two questions
		}
		h := hop{iface: l.Attrs().Name, cost: r.Priority, v6: v6}
		if via, ok := w.Via.(*netlink.Via); ok && w.Gw == nil {
			h.via, _ = netip.AddrFromSlice(via.Addr)
		} else {
			h.via, _ = netip.AddrFromSlice(w.Gw)
		}
		h.via = h.via.Unmap()
		hops = append(hops, h)
	}
	return hops
}

func isDefault(r netlink.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}
