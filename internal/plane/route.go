package plane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

const (
	// protocol marks routes and rules as ours. The kernel and iproute2 give 83 to nobody.
	protocol = 0x53
	// blackholeMetric is worse than that of any default route of a lane.
	blackholeMetric = 65535
)

// rule is one policy rule of ours.
type rule struct {
	family, pref, table int
	mark, mask          egress.Mark
	local               bool // looks up the main table, but not its default route
}

// wantRules are the rules in their order. Each lane has two of the same preference: what is
// on a network that the router knows goes there, the rest goes to the lane.
func wantRules(c egress.Config, family int) []rule {
	var out []rule
	for i, l := range c.Lanes {
		r := rule{family: family, pref: c.Plane.RulePref + i, table: unix.RT_TABLE_MAIN, mark: l.Mark, mask: c.Plane.MarkMask, local: true}
		out = append(out, r)
		r.table, r.local = l.Table, false
		out = append(out, r)
	}
	return out
}

func (r rule) String() string {
	s := fmt.Sprintf("pref %d fwmark %s/%s lookup ", r.pref, r.mark, r.mask)
	if r.local {
		return s + "main suppress_prefixlength 0"
	}
	return s + fmt.Sprint(r.table)
}

func (r rule) netlink() *netlink.Rule {
	n := netlink.NewRule()
	mask := uint32(r.mask)
	n.Family, n.Priority, n.Table, n.Mark, n.Mask, n.Protocol = r.family, r.pref, r.table, uint32(r.mark), &mask, protocol
	if r.local {
		n.SuppressPrefixlen = 0
	}
	return n
}

// same says whether the kernel's rule is r, whoever made it.
func (r rule) same(k netlink.Rule) bool {
	suppress := -1
	if r.local {
		suppress = 0
	}
	return k.Priority == r.pref && r.matches(k) && k.SuppressPrefixlen == suppress
}

// matches says whether the kernel's rule sends exactly the packets of r's mark to r's table.
func (r rule) matches(k netlink.Rule) bool {
	return k.Table == r.table && k.Mark == uint32(r.mark) && k.Mask != nil && *k.Mask == uint32(r.mask) &&
		k.Src == nil && k.Dst == nil && k.IifName == "" && k.OifName == "" && k.Tos == 0 && k.TunID == 0 &&
		!k.Invert && k.Goto <= 0 && k.IPProto == 0 && k.Sport == nil && k.Dport == nil && k.UIDRange == nil && k.SuppressIfgroup < 0
}

// route is one default route of ours.
type route struct {
	family, table int
	iface         string // "" = blackhole
	index         int
	lane          string
}

func (r route) String() string {
	if r.iface == "" {
		return fmt.Sprintf("blackhole default metric %d table %d", blackholeMetric, r.table)
	}
	return fmt.Sprintf("default dev %s table %d", r.iface, r.table)
}

func (r route) netlink() *netlink.Route {
	n := &netlink.Route{Family: r.family, Table: r.table, Protocol: protocol, Dst: anywhere(r.family)}
	if r.iface == "" {
		n.Type, n.Priority = unix.RTN_BLACKHOLE, blackholeMetric
		return n
	}
	n.LinkIndex = r.index
	if r.family == unix.AF_INET {
		n.Scope = netlink.SCOPE_LINK
	}
	return n
}

// same says whether the kernel's route does what r shall do, whoever made it.
func (r route) same(k netlink.Route) bool {
	if !isDefault(k) {
		return false
	}
	if r.iface == "" {
		return k.Type == unix.RTN_BLACKHOLE
	}
	return k.Type == unix.RTN_UNICAST && k.LinkIndex == r.index && k.Priority < blackholeMetric
}

func anywhere(family int) *net.IPNet {
	if family == unix.AF_INET6 {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
}

func isDefault(k netlink.Route) bool {
	if k.Dst == nil {
		return true
	}
	ones, _ := k.Dst.Mask.Size()
	return ones == 0 && k.Dst.IP.IsUnspecified()
}

// wantRoutes are the default routes of the lanes' tables: blackholes first.
func (s *seen) wantRoutes(family int) []route {
	var holes, ways []route
	for _, l := range s.c.Lanes {
		r := route{family: family, table: l.Table, lane: l.Name}
		if s.c.Plane.LeakGuard {
			holes = append(holes, r)
		}
		// The kernel takes no route by an interface that is down.
		if k, ok := s.links[l.Interface]; ok && k.up && (family == unix.AF_INET || k.v6) {
			r.iface, r.index = l.Interface, k.index
			ways = append(ways, r)
		}
	}
	return append(holes, ways...)
}

func (p *Plane) readRules(family int) ([]netlink.Rule, error) {
	list, err := retry(func() ([]netlink.Rule, error) { return p.route.RuleList(family) })
	if err != nil {
		return nil, fmt.Errorf("rules (%s): %w", familyName(family), err)
	}
	return list, nil
}

func (p *Plane) readRoutes(family, table int) ([]netlink.Route, error) {
	list, err := retry(func() ([]netlink.Route, error) {
		return p.strict.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // no such table yet
	}
	if err != nil {
		return nil, fmt.Errorf("routes of table %d (%s): %w", table, familyName(family), err)
	}
	return list, nil
}

func familyName(family int) string {
	if family == unix.AF_INET6 {
		return "IPv6"
	}
	return "IPv4"
}

// ruleDiff is what has to be added and taken away, in this order of families; stale rules
// are those that carry our protocol and are not wanted.
func (s *seen) ruleDiff(family int) (add []rule, stale []netlink.Rule) {
	want := wantRules(s.c, family)
	at := make([]int, len(want)) // place of each wanted rule in the kernel's list
	for i, w := range want {
		at[i] = slices.IndexFunc(s.rules[family], w.same)
	}
	for i := 0; i < len(want); i += 2 {
		local, lane := at[i], at[i+1]
		if local < 0 {
			add = append(add, want[i])
		}
		// Rules of one preference work in the order in which they were made.
		if lane < 0 || local < 0 || lane < local {
			add = append(add, want[i+1])
			if lane >= 0 {
				stale = append(stale, s.rules[family][lane])
			}
		}
	}
	for i, k := range s.rules[family] {
		if k.Protocol == protocol && !slices.Contains(at, i) {
			stale = append(stale, k)
		}
	}
	return add, stale
}

// routeDiff is the same for routes. Routes that are not ours are never stale.
func (s *seen) routeDiff(family int) (add []route, stale []netlink.Route) {
	want := s.wantRoutes(family)
	for _, w := range want {
		if !slices.ContainsFunc(s.routes[family][w.table], w.same) {
			add = append(add, w)
		}
	}
	for _, l := range s.c.Lanes {
		for _, k := range s.routes[family][l.Table] {
			wanted := slices.ContainsFunc(want, func(w route) bool { return w.table == l.Table && w.same(k) })
			if k.Protocol == protocol && !wanted {
				stale = append(stale, k)
			}
		}
	}
	return add, stale
}

// routeDrift says what differs of rules and routes.
func (s *seen) routeDrift() []string {
	var out []string
	for _, family := range s.families {
		if !s.c.Plane.ManageRules {
			out = append(out, s.adoptedDrift(family)...)
			continue
		}
		name := familyName(family)
		routes, staleRoutes := s.routeDiff(family)
		for _, r := range routes {
			out = append(out, fmt.Sprintf("lane %s: route missing (%s): %s", r.lane, name, r))
		}
		for _, k := range staleRoutes {
			out = append(out, fmt.Sprintf("table %d: stale route (%s) by interface %d", k.Table, name, k.LinkIndex))
		}
		rules, staleRules := s.ruleDiff(family)
		for _, r := range rules {
			out = append(out, fmt.Sprintf("rule missing (%s): %s", name, r))
		}
		for _, k := range staleRules {
			if !slices.ContainsFunc(rules, func(r rule) bool { return r.same(k) }) {
				out = append(out, fmt.Sprintf("stale rule (%s): pref %d lookup %d", name, k.Priority, k.Table))
			}
		}
	}
	return out
}

// adoptedDrift asks less of rules that somebody else keeps: at any preference, routes by
// whatever metric.
func (s *seen) adoptedDrift(family int) []string {
	var out []string
	for _, l := range s.c.Lanes {
		w := rule{family: family, table: l.Table, mark: l.Mark, mask: s.c.Plane.MarkMask}
		k, ok := s.links[l.Interface]
		if family == unix.AF_INET6 && !k.v6 {
			continue
		}
		if !slices.ContainsFunc(s.rules[family], w.matches) {
			out = append(out, fmt.Sprintf("lane %s: rule missing (%s): fwmark %s/%s lookup %d", l.Name, familyName(family), l.Mark, w.mask, l.Table))
		}
		r := route{family: family, table: l.Table, iface: l.Interface, index: k.index}
		if ok && k.up && !slices.ContainsFunc(s.routes[family][l.Table], r.same) {
			out = append(out, fmt.Sprintf("lane %s: route missing (%s): %s", l.Name, familyName(family), r))
		}
	}
	return out
}

// unguarded names the tables of somebody else that have nothing behind the lane's route.
func (s *seen) unguarded() []string {
	var out []string
	for _, family := range s.families {
		for _, l := range s.c.Lanes {
			guarded := slices.ContainsFunc(s.routes[family][l.Table], func(k netlink.Route) bool {
				return isDefault(k) && (k.Type == unix.RTN_BLACKHOLE || k.Type == unix.RTN_UNREACHABLE || k.Type == unix.RTN_PROHIBIT)
			})
			if s.c.Plane.LeakGuard && !guarded {
				out = append(out, fmt.Sprintf("lane %s: no blackhole behind its route (%s) in table %d", l.Name, familyName(family), l.Table))
			}
		}
	}
	return out
}

// applyRoutes makes routes and rules right: blackholes, ways, then rules, and only then
// takes away what is stale. It goes on after an error, since each step closes a gap.
func (p *Plane) applyRoutes(ctx context.Context, s *seen) (changed bool, errs []error) {
	did := func(point string, what fmt.Stringer, family int, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", what, familyName(family), err))
			return
		}
		changed = true
		run.Point(ctx, point)
	}
	for _, family := range s.families {
		add, stale := s.routeDiff(family)
		// A way that is in place of a wanted one keeps it from being added.
		slices.SortStableFunc(add, func(a, b route) int { return cmp.Compare(rank(a), rank(b)) })
		for _, r := range add {
			if rank(r) == 0 {
				did("plane.routes", r, family, p.route.RouteAdd(r.netlink()))
			}
		}
		for _, k := range stale {
			did("plane.routes", k, family, p.deleteRoute(k))
		}
		for _, r := range add {
			if rank(r) == 1 {
				did("plane.routes", r, family, p.route.RouteAdd(r.netlink()))
			}
		}
	}
	for _, family := range s.families {
		add, stale := s.ruleDiff(family)
		for _, k := range stale {
			did("plane.rules", k, family, p.route.RuleDel(&k))
		}
		for _, r := range add {
			did("plane.rules", r, family, p.route.RuleAdd(r.netlink()))
		}
	}
	return changed, errs
}

func rank(r route) int {
	if r.iface == "" {
		return 0
	}
	return 1
}

// deleteRoute takes away exactly that route; one that is gone meanwhile is no error.
func (p *Plane) deleteRoute(k netlink.Route) error {
	if err := p.route.RouteDel(&k); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
