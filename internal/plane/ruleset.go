package plane

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/shunt-net/shunt/internal/egress"
)

// The table of ours. No other is ever touched.
const (
	tableName  = "shunt_egress"
	tableTitle = "table inet " + tableName
	defaultMTU = 1420 // of a lane that nobody has seen yet, bytes
	leastMTU   = 576  // bytes; a smaller one is taken for an error
)

// Facts are what the rules depend on besides the configuration.
type Facts struct {
	Uplinks []string // interfaces that lead outside without a lane
	MTU     int      // least of the lanes', bytes; 0 = not needed
}

// ruleset is the table as data: what is written, and what is compared with the kernel.
type ruleset struct {
	sets   []set
	chains []chain
}

type set struct {
	name, kind string
	interval   bool
	elements   []string
	moving     bool // runs move its elements, so they are no part of the digest
}

type chain struct {
	name, hook string
	rules      []string
}

// Ruleset is the text of the whole table, with each class where classes says (home lane ->
// lane, Direct, or "" for none; a class that is not named is on none). It holds no statement
// that deletes anything.
func Ruleset(c egress.Config, f Facts, classes map[string]string) string {
	return build(c, f).text(digest(c, f), f, placement(c, classes))
}

// digest names the static part.
func digest(c egress.Config, f Facts) string {
	sum := sha256.Sum256([]byte(build(c, f).text("", f, nil)))
	return hex.EncodeToString(sum[:6])
}

// element is one thing that moves: a code point in a to_N set, or in a to6_N set the mark of
// the lane whose class it is.
type element struct {
	set   string
	value uint32
}

// placement says which elements there are when classes are where it says.
func placement(c egress.Config, classes map[string]string) []element {
	var out []element
	for _, l := range c.Lanes {
		if name := toSet(c, classes[l.Name]); name != "" {
			for _, k := range classKeys(l) {
				out = append(out, element{k.in(name), k.value})
			}
		}
	}
	return out
}

// classKey is what stands for a class in one family's sets.
type classKey struct {
	v6    bool
	value uint32
}

func classKeys(l egress.Lane) []classKey {
	if len(l.DSCP) == 0 {
		return nil
	}
	var keys []classKey
	for _, d := range l.DSCP {
		keys = append(keys, classKey{false, uint32(d)})
	}
	return append(keys, classKey{true, uint32(l.Mark)})
}

// in is the name of a set in the key's family.
func (k classKey) in(set string) string {
	if k.v6 && set != "" {
		return six(set)
	}
	return set
}

// six is the IPv6 twin of a to_N set.
func six(set string) string { return "to6_" + strings.TrimPrefix(set, "to_") }

// toSet is the set that holds the classes which travel through a lane; "" = none.
func toSet(c egress.Config, lane string) string {
	if lane == Direct {
		return "to_" + Direct
	}
	if l, ok := c.Lane(lane); ok {
		return fmt.Sprintf("to_%d", l.Table)
	}
	return ""
}

// toSets are the names of the IPv4 sets.
func toSets(c egress.Config) []string {
	names := make([]string, 0, len(c.Lanes)+1)
	for _, l := range c.Lanes {
		names = append(names, toSet(c, l.Name))
	}
	return append(names, toSet(c, Direct))
}

func (r ruleset) text(digest string, f Facts, place []element) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s {\n\tcomment \"user plane of shunt egress\"\n", tableTitle)
	for _, s := range r.sets {
		elements := s.elements
		if s.moving {
			elements = movingNames(s, place)
		}
		if s.name == "built" {
			elements = []string{fmt.Sprintf("0x%08x comment \"rules %s\"", f.MTU, digest)}
		}
		fmt.Fprintf(&b, "\n\tset %s {\n\t\ttype %s\n", s.name, s.kind)
		if s.interval {
			b.WriteString("\t\tflags interval\n")
		}
		if len(elements) > 0 {
			fmt.Fprintf(&b, "\t\telements = { %s }\n", strings.Join(elements, ", "))
		}
		b.WriteString("\t}\n")
	}
	for _, ch := range r.chains {
		fmt.Fprintf(&b, "\n\tchain %s {\n", ch.name)
		if ch.hook != "" {
			fmt.Fprintf(&b, "\t\t%s\n", ch.hook)
		}
		for _, rule := range ch.rules {
			fmt.Fprintf(&b, "\t\t%s\n", rule)
		}
		b.WriteString("\t}\n")
	}
	return b.String() + "}\n"
}

// build lays out the table.
func build(c egress.Config, f Facts) ruleset {
	r := ruleset{sets: []set{{name: "built", kind: "mark"}}}
	lanes := make([]string, 0, len(c.Lanes))
	for _, l := range c.Lanes {
		lanes = append(lanes, l.Interface)
	}
	r.sets = append(r.sets, ifnames("lanes", lanes), ifnames("uplinks", f.Uplinks))
	if len(c.Plane.Inputs) > 0 {
		r.sets = append(r.sets, ifnames("inputs", c.Plane.Inputs))
	} else {
		r.sets = append(r.sets, ifnames("outside", append(append([]string{"lo"}, lanes...), f.Uplinks...)))
	}
	for _, l := range c.Lanes {
		r.sets = append(r.sets, set{name: fmt.Sprintf("class_%d", l.Table), kind: "dscp", elements: dscpNames(l.DSCP)})
	}
	for _, name := range toSets(c) {
		r.sets = append(r.sets, set{name: name, kind: "dscp", moving: true})
	}
	for _, name := range toSets(c) {
		r.sets = append(r.sets, set{name: six(name), kind: "mark", moving: true})
	}
	v4, v6 := compact(c.Plane.Bypass)
	r.sets = append(r.sets,
		set{name: "bypass4", kind: "ipv4_addr", interval: true, elements: texts(v4)},
		set{name: "bypass6", kind: "ipv6_addr", interval: true, elements: texts(v6)})

	r.chains = append(r.chains, prerouting(c), users6(c))
	for _, l := range c.Lanes {
		r.chains = append(r.chains, chain{name: fmt.Sprintf("lane_%d", l.Table), rules: []string{setMark("meta", c.Plane.MarkMask, l.Mark)}})
	}
	r.chains = append(r.chains, forward(c, f), input(c), output(c), arrived(), origin(c, f))
	for _, l := range c.Lanes {
		r.chains = append(r.chains, leave(c, l))
	}
	r.chains = append(r.chains, leaving6(c), chain{name: "direct6", rules: []string{clearMark(c), "jump class", "accept"}})
	return ruleset{sets: r.sets, chains: append(r.chains, classChain(c), postrouting(c))}
}

func ifnames(name string, list []string) set {
	var quoted []string
	for _, n := range slices.Sorted(slices.Values(list)) {
		quoted = append(quoted, fmt.Sprintf("%q", n))
	}
	return set{name: name, kind: "ifname", elements: slices.Compact(quoted)}
}

// dscpNames are the words for code points that nft 1.0 reads and prints, in numeric order.
func dscpNames(list []egress.DSCP) []string {
	var names []string
	for _, d := range slices.Compact(slices.Sorted(slices.Values(list))) {
		name := d.String()
		if p := name[:2]; p != "cs" && p != "af" && p != "ef" {
			name = fmt.Sprintf("0x%02x", uint8(d))
		}
		names = append(names, name)
	}
	return names
}

func movingNames(s set, place []element) []string {
	var codes []egress.DSCP
	var marks []string
	for _, e := range place {
		if e.set == s.name && s.kind == "dscp" {
			codes = append(codes, egress.DSCP(e.value))
		} else if e.set == s.name {
			marks = append(marks, fmt.Sprintf("0x%08x", e.value))
		}
	}
	if s.kind == "dscp" {
		return dscpNames(codes)
	}
	slices.Sort(marks)
	return marks
}

// compact sorts prefixes by family and drops those that lie in others, which an interval
// set would refuse.
func compact(list []netip.Prefix) (v4, v6 []netip.Prefix) {
	sorted := make([]netip.Prefix, 0, len(list))
	for _, p := range list {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if d := a.Addr().Compare(b.Addr()); d != 0 {
			return d
		}
		return a.Bits() - b.Bits()
	})
	for _, p := range sorted {
		out := &v6
		if p.Addr().Is4() {
			out = &v4
		}
		if n := len(*out); n == 0 || !(*out)[n-1].Overlaps(p) {
			*out = append(*out, p)
		}
	}
	return v4, v6
}

func texts(list []netip.Prefix) []string {
	var out []string
	for _, p := range list {
		if p.IsSingleIP() {
			out = append(out, p.Addr().String())
			continue
		}
		out = append(out, p.String())
	}
	return out
}
