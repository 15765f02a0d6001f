package edge

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// twice finds a virtual router id that two instances of one machine have on one interface.
func (l *lint) twice(before []vrrp, v *vrrp) {
	id := v.own.value("virtual_router_id")
	for i := range before {
		o := &before[i]
		if id != "" && o.own.value("virtual_router_id") == id && o.own.value("interface") == v.own.value("interface") && o.family() == v.family() {
			l.add(v.line("virtual_router_id"), "vrid_twice", fmt.Sprintf("virtual_router_id %s is that of instance %s too (%s): each takes the other's advertisements for its own", id, o.name, o.line("virtual_router_id")), "give each instance an id of its own")
		}
	}
}

// family is that of the instance's first address.
func (v *vrrp) family() int {
	if s := v.own.find("virtual_ipaddress"); s != nil && len(s.block) > 0 {
		if f, ok := wordFamily(s.block[0].word(0)); ok {
			return f
		}
	}
	return 4
}

// peers compares the instances of one virtual router id in files of several machines.
func (l *lint) peers(all []vrrp) {
	groups := map[string][]vrrp{}
	for _, v := range all {
		key := fmt.Sprintf("%s/%d", v.own.value("virtual_router_id"), v.family())
		if !slices.ContainsFunc(groups[key], func(o vrrp) bool { return o.file == v.file }) {
			groups[key] = append(groups[key], v)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		for i := 1; i < len(g); i++ {
			l.differ(&g[0], &g[i])
		}
		l.rungs(g)
	}
}

// differ finds what must be equal on all replicas and is not.
func (l *lint) differ(a, b *vrrp) {
	id := b.own.value("virtual_router_id")
	mine, other := a.addresses("virtual_ipaddress"), b.addresses("virtual_ipaddress")
	if !slices.Equal(mine, other) {
		if !slices.ContainsFunc(mine, func(s string) bool { return slices.Contains(other, s) }) {
			l.add(b.line("virtual_router_id"), "vrid_collision", fmt.Sprintf("virtual_router_id %s is that of other addresses in %s: the two groups take each other's advertisements for their own", id, a.line("virtual_router_id")), "give each group an id of its own")
			return
		}
		l.add(b.line("virtual_ipaddress"), "differs", fmt.Sprintf("the addresses are not those of %s: each refuses the other's advertisements, and both hold the address", a.line("virtual_ipaddress")), "write the same list on all replicas")
	}
	for _, k := range []string{"advert_int", "version"} {
		x, y := cmp.Or(a.own.value(k), "1"), cmp.Or(b.own.value(k), "1")
		if k == "version" {
			x, y = fmt.Sprint(a.version), fmt.Sprint(b.version)
		}
		if x != y {
			l.add(b.line(k), "differs", fmt.Sprintf("%s is %s, and %s in %s: each refuses the other's advertisements, and both hold the address", k, y, x, a.line(k)), "write the same on all replicas")
		}
	}
	if pass(a) != pass(b) {
		l.add(b.line("authentication"), "differs", fmt.Sprintf("authentication is not that of %s: each refuses the other's advertisements, and both hold the address", a.line("authentication")), "write the same on all replicas")
	}
	if a.own.value("state") == "MASTER" && b.own.value("state") == "MASTER" {
		l.warn(b.line("state"), "two_masters", fmt.Sprintf("state MASTER here and in %s: both hold the address when they start", a.line("state")), "write state BACKUP everywhere: the priority decides")
	}
}

// pass is what counts of an instance's authentication; it is compared and never shown.
func pass(v *vrrp) string {
	a := v.own.find("authentication")
	if a == nil || v.version == 3 {
		return ""
	}
	p := a.value("auth_pass")
	return a.value("auth_type") + " " + p[:min(8, len(p))]
}

// rungs judges the priorities of one group.
func (l *lint) rungs(g []vrrp) {
	g = slices.Clone(g)
	slices.SortStableFunc(g, func(a, b vrrp) int { return cmp.Compare(b.priority, a.priority) })
	for i := 1; i < len(g); i++ {
		above, v := &g[i-1], &g[i]
		gap := above.priority - v.priority
		if gap == 0 {
			l.add(v.line("priority"), "priority_equal", fmt.Sprintf("priority %d is that of %s too: the higher address wins, and not the one you mean", v.priority, above.line("priority")), "write the rungs of `shunt edge keepalived`")
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(above.weights)) {
			if w := -above.weights[name]; w > 0 && gap >= w {
				l.add(v.line("priority"), "priority_gap", fmt.Sprintf("priority %d is %d below %s, and script %s takes only %d off: this one can't take over when that one fails", v.priority, gap, above.line("priority"), name, w),
					fmt.Sprintf("write less than %d between them", w))
			}
		}
	}
}

// wanted finds virtual addresses of services that no instance has.
func (l *lint) wanted(all []vrrp, c Config) {
	if len(all) == 0 {
		return
	}
	var have []netip.Addr
	for i := range all {
		for _, k := range []string{"virtual_ipaddress", "virtual_ipaddress_excluded"} {
			for _, w := range all[i].addresses(k) {
				text, _, _ := strings.Cut(w, "/")
				if a, err := netip.ParseAddr(text); err == nil {
					have = append(have, a)
				}
			}
		}
	}
	for _, s := range c.Services {
		for _, a := range s.VIP {
			if !slices.Contains(have, a) {
				l.add(all[0].file, "missing_address", fmt.Sprintf("%s of service %s is in no vrrp_instance: nobody would hold it", a, s.Name), "add it to virtual_ipaddress on all replicas")
				have = append(have, a)
			}
		}
	}
}
