package plane

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shunt-net/shunt/internal/egress"
)

// missingSets names the sets without which no class can be moved; nil = none.
func (t *table) missingSets(c egress.Config) []string {
	if !t.present {
		return []string{tableTitle + ": missing"}
	}
	var missing []string
	for _, l := range c.Lanes {
		name := toSet(c, l.Name)
		if _, ok := t.dscp[name]; ok {
			continue
		}
		if why := t.other[name]; why != "" || t.has(name) {
			missing = append(missing, fmt.Sprintf("set %s: not of type dscp", name))
			continue
		}
		missing = append(missing, fmt.Sprintf("set %s: missing", name))
	}
	return missing
}

// drift compares the static part with what it should be.
func (t *table) drift(c egress.Config, f Facts) []string {
	if missing := t.missingSets(c); missing != nil || !c.Plane.ManageRules {
		return missing
	}
	var out []string
	if want := digest(c, f); t.digest != want {
		out = append(out, fmt.Sprintf("%s: made for another configuration (rules %s, want %s)", tableTitle, orNone(t.digest), want))
	}
	want := build(c, f)
	chains := map[string]bool{}
	for _, ch := range want.chains {
		chains[ch.name] = true
		if n := t.rules[ch.name]; n != len(ch.rules) {
			out = append(out, fmt.Sprintf("chain %s: %d rules, want %d", ch.name, n, len(ch.rules)))
		}
	}
	for name, n := range t.rules {
		if !chains[name] {
			out = append(out, fmt.Sprintf("chain %s: %d rules, want no such chain", name, n))
		}
	}
	v4, v6 := compact(c.Plane.Bypass)
	for _, s := range want.sets {
		if s.moving || s.name == "built" {
			_, dscp := t.dscp[s.name]
			if s.moving && (!t.has(s.name) || dscp != (s.kind == "dscp")) {
				out = append(out, fmt.Sprintf("set %s: missing", s.name))
			}
			continue
		}
		same := false
		switch s.kind {
		case "dscp":
			same = slices.Equal(dscpNames(t.dscp[s.name]), s.elements)
		case "ifname":
			same = slices.EqualFunc(t.names[s.name], s.elements, func(a, b string) bool { return fmt.Sprintf("%q", a) == b })
		case "ipv4_addr":
			same = slices.Equal(t.spans[s.name], prefixSpans(v4))
		case "ipv6_addr":
			same = slices.Equal(t.spans[s.name], prefixSpans(v6))
		}
		if !same {
			out = append(out, fmt.Sprintf("set %s: not the elements it should have", s.name))
		}
	}
	slices.Sort(out)
	return out
}

// positions says where each home lane's class is, and what is odd about it.
func (t *table) positions(c egress.Config) (map[string]string, []string) {
	at := map[classKey][]string{} // what stands for a class -> IPv4 names of the sets that hold it
	lane := map[string]string{"": "", toSet(c, Direct): Direct}
	for _, l := range c.Lanes {
		lane[toSet(c, l.Name)] = l.Name
	}
	for _, name := range toSets(c) {
		for _, e := range t.moving(name) {
			at[classKey{false, e.value}] = append(at[classKey{false, e.value}], name)
		}
		for _, e := range t.moving(six(name)) {
			at[classKey{true, e.value}] = append(at[classKey{true, e.value}], name)
		}
	}
	classes, odd := map[string]string{}, []string{}
	for _, l := range c.Lanes {
		if len(l.DSCP) == 0 {
			classes[l.Name] = l.Name
			continue
		}
		places := map[string]bool{} // names of sets in the key's family
		base := map[string]bool{}
		for _, k := range classKeys(l) {
			in := at[k]
			delete(at, k)
			if k.v6 && !c.Plane.ManageRules && !t.has(six(toSet(c, l.Name))) {
				continue // somebody else's rules do as they like with IPv6
			}
			if len(in) == 0 {
				places[""], base[""] = true, true
			}
			for _, name := range in {
				places[k.in(name)], base[name] = true, true
			}
		}
		classes[l.Name] = ""
		if len(base) != 1 {
			odd = append(odd, fmt.Sprintf("class of %s: split over %s", l.Name, placesText(places)))
			continue
		}
		for name := range base {
			classes[l.Name] = lane[name]
		}
	}
	for k, in := range at {
		what := egress.Mark(k.value).String()
		if !k.v6 {
			what = dscpNames([]egress.DSCP{egress.DSCP(k.value)})[0]
		}
		for _, name := range in {
			odd = append(odd, fmt.Sprintf("set %s: %s is the class of no lane", k.in(name), what))
		}
	}
	slices.Sort(odd)
	return classes, odd
}

func placesText(places map[string]bool) string {
	var names []string
	for name := range places {
		names = append(names, orNone(name))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
