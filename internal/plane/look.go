package plane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// seen is everything that one look at the kernel showed.
type seen struct {
	c        egress.Config
	facts    Facts
	table    *table
	links    map[string]link // of the lanes that exist, by interface
	families []int           // that the kernel has
	rules    map[int][]netlink.Rule
	routes   map[int]map[int][]netlink.Route // family -> table -> routes
	rpfilter map[string]string               // interface -> why answers by it may be dropped
}

// link is a lane's interface.
type link struct {
	index int
	up    bool
	mtu   int // bytes
	v6    bool
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) { return maps.Keys(m) }

// check refuses what the rules cannot express. The configuration's reader says the same in
// better words; this keeps a caller that has none from writing nonsense into the kernel.
func check(c egress.Config) error {
	pl := c.Plane
	if pl.MarkMask == 0 || pl.ClassMask == 0 || pl.MarkMask&pl.ClassMask != 0 {
		return fmt.Errorf("mark_mask %s and class_mask %s: want bits of their own for each", pl.MarkMask, pl.ClassMask)
	}
	// The greatest number stands for flows that came in by an uplink.
	if ids := uint32(pl.ClassMask) >> bits.TrailingZeros32(uint32(pl.ClassMask)); uint64(len(c.Lanes)) >= uint64(ids) {
		return fmt.Errorf("class_mask %s numbers %d classes, and there are %d lanes", pl.ClassMask, ids-1, len(c.Lanes))
	}
	marks, tables, classes := map[egress.Mark]string{}, map[int]string{}, map[egress.DSCP]string{}
	for _, l := range c.Lanes {
		if l.Mark == 0 || l.Mark&^pl.MarkMask != 0 {
			return fmt.Errorf("lane %s: mark %s: want bits of mark_mask %s", l.Name, l.Mark, pl.MarkMask)
		}
		if l.Table <= 0 || l.Table >= unix.RT_TABLE_DEFAULT && l.Table <= unix.RT_TABLE_LOCAL {
			return fmt.Errorf("lane %s: table %d: want one that is not the kernel's", l.Name, l.Table)
		}
		if other := marks[l.Mark]; other != "" {
			return fmt.Errorf("lane %s: mark %s is that of lane %s", l.Name, l.Mark, other)
		}
		if other := tables[l.Table]; other != "" {
			return fmt.Errorf("lane %s: table %d is that of lane %s", l.Name, l.Table, other)
		}
		for _, d := range l.DSCP {
			if other := classes[d]; other != "" {
				return fmt.Errorf("lane %s: class %s is that of lane %s", l.Name, d, other)
			}
			classes[d] = l.Name
		}
		marks[l.Mark], tables[l.Table] = l.Name, l.Name
	}
	names := append([]string{c.Uplink.Interface}, c.Plane.Inputs...)
	for _, l := range c.Lanes {
		if l.Interface == "" {
			return fmt.Errorf("lane %s: no interface", l.Name)
		}
		names = append(names, l.Interface)
		if strings.ContainsAny(l.Name, "\"\\\n") || len(l.Name) > 64 {
			return fmt.Errorf("lane %q: not a name that a rule can hold", l.Name)
		}
	}
	for _, n := range names {
		if len(n) >= unix.IFNAMSIZ || strings.ContainsAny(n, "\"\\*/ \t\n") {
			return fmt.Errorf("interface %q: not a name of an interface", n)
		}
	}
	return nil
}

// openRoute opens the routing sockets of this namespace.
func (p *Plane) openRoute() error {
	if p.route != nil {
		return nil
	}
	route, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("rtnetlink: %w", err)
	}
	strict, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		route.Close()
		return fmt.Errorf("rtnetlink: %w", err)
	}
	// A kernel before 4.20 refuses this, and lists more than was asked for.
	_ = strict.SetStrictCheck(true)
	if err = errors.Join(route.SetSocketTimeout(deadline), strict.SetSocketTimeout(deadline)); err != nil {
		route.Close()
		strict.Close()
		return fmt.Errorf("rtnetlink: %w", err)
	}
	p.route, p.strict = route, strict
	return nil
}

// look reads everything that the plane consists of.
func (p *Plane) look(ctx context.Context, c egress.Config) (*seen, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	if err := p.openRoute(); err != nil {
		return nil, err
	}
	s := &seen{c: c, rules: map[int][]netlink.Rule{}, routes: map[int]map[int][]netlink.Route{}, rpfilter: map[string]string{}}
	var err error
	if s.table, err = p.readTable(ctx); err != nil {
		return nil, err
	}
	s.families = []int{unix.AF_INET}
	if _, err = os.Stat("/proc/sys/net/ipv6"); err == nil {
		s.families = append(s.families, unix.AF_INET6)
	}
	if s.links, err = p.readLinks(c); err != nil {
		return nil, err
	}
	for _, family := range s.families {
		if err = ctx.Err(); err != nil {
			return nil, err
		}
		if s.rules[family], err = p.readRules(family); err != nil {
			return nil, err
		}
		s.routes[family] = map[int][]netlink.Route{}
		for _, l := range c.Lanes {
			if s.routes[family][l.Table], err = p.readRoutes(family, l.Table); err != nil {
				return nil, err
			}
		}
	}
	for _, l := range c.Lanes {
		if _, ok := s.links[l.Interface]; ok {
			s.rpfilter[l.Interface] = rpFilter(l.Interface)
		}
	}
	s.facts, err = p.learn(s)
	return s, err
}

// view is what the domain gets to know.
func (s *seen) view() egress.PlaneView {
	static := s.staticDrift()
	classes, odd := s.table.positions(s.c)
	drift := append(slices.Clone(static), odd...)
	for _, l := range s.c.Lanes {
		if why := s.rpfilter[l.Interface]; why != "" {
			drift = append(drift, fmt.Sprintf("lane %s: %s", l.Name, why))
		}
	}
	if !s.c.Plane.ManageRules {
		drift = append(drift, s.unguarded()...)
	}
	if len(s.facts.Uplinks) == 0 && len(s.c.Plane.Inputs) == 0 {
		drift = append(drift, "uplink: no default route and none configured, so the leak guard spares no local network")
	}
	return egress.PlaneView{Ready: len(static) == 0, Drift: drift, Classes: classes}
}

func (s *seen) positions() map[string]string {
	classes, _ := s.table.positions(s.c)
	return classes
}

// placed is an error unless each class is where want says.
func (s *seen) placed(want map[string]string) error {
	if out, in := moves(s.c, s.table, want, s.c.Plane.ManageRules); len(out)+len(in) > 0 {
		return fmt.Errorf("%s: classes are not where they were put", tableTitle)
	}
	return nil
}

// staticDrift is what differs of table, rules and routes.
func (s *seen) staticDrift() []string {
	return slices.Concat(s.table.drift(s.c, s.facts), s.routeDrift())
}
