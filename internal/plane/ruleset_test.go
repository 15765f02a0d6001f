package plane

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/egress"
)

var update = flag.Bool("update", false, "write the golden files anew")

// rulesets are the configurations whose text and listing are golden files.
func rulesets() map[string]struct {
	c       egress.Config
	f       Facts
	classes map[string]string
} {
	type row = struct {
		c       egress.Config
		f       Facts
		classes map[string]string
	}
	five := config()
	five.Lanes = nil
	for i, d := range []egress.DSCP{32, 40, 48, 56, 46} {
		five.Lanes = append(five.Lanes, egress.Lane{
			Name: fmt.Sprintf("egress%d", i+1), Interface: fmt.Sprintf("vpn%d", i+1), Table: 201 + i,
			Mark: egress.Mark(0x201 + i), DSCP: []egress.DSCP{d}, NAT: egress.NATMasquerade,
		})
	}
	lent := home(five)
	lent["egress2"], lent["egress3"] = "egress4", ""

	plain := config()
	plain.Plane = egress.PlaneConfig{
		ManageRules: true, MarkMask: 0xff0000, ClassMask: 0xf000000, Priority: -140, RulePref: 100,
		Bypass: prefixes("10.0.0.0/8", "10.2.0.0/16", "192.0.2.7/32", "11.0.0.0/8", "fc00::/7"), Inputs: []string{"wg0", "br-lan"},
	}
	plain.Lanes[0].Mark, plain.Lanes[1].Mark = 0x10000, 0x20000
	plain.Lanes[0].DSCP = []egress.DSCP{0, 1, 3, 44, 63}
	plain.Lanes[1].NAT = egress.NATNone

	unknown := config()
	unknown.Lanes = unknown.Lanes[:1]
	return map[string]row{
		"five-lanes":     {five, Facts{Uplinks: []string{"wan0"}, MTU: 1420}, lent},
		"plain":          {plain, Facts{Uplinks: []string{"ppp0", "wwan0"}}, home(plain)},
		"uplink-unknown": {unknown, Facts{MTU: 1280}, map[string]string{"egress1": Direct}},
	}
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = "testdata/" + file
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestRulesetReadsAsAPersonWouldWriteIt(t *testing.T) {
	for name, r := range rulesets() {
		t.Run(name, func(t *testing.T) { golden(t, name+".nft", Ruleset(r.c, r.f, r.classes)) })
	}
}

// The kernel takes the text, and what nft then prints can be loaded again and prints the same.
func TestRulesetLoadsListsAndLoadsAgain(t *testing.T) {
	for name, r := range rulesets() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.cmd(Ruleset(r.c, r.f, r.classes), "nft", "-f", "-")
			listing := w.nft("list ruleset")
			golden(t, name+".listing", listing)
			w.cmd("flush ruleset\n"+listing, "nft", "-f", "-")
			if diff := cmp.Diff(listing, w.nft("list ruleset")); diff != "" {
				t.Errorf("after loading the listing (-want +got):\n%s", diff)
			}

			p := newPlane(t)
			tab, err := p.readTable(t.Context())
			must(t, err)
			if diff := tab.drift(r.c, r.f); diff != nil {
				t.Errorf("drift of what was just loaded: %q", diff)
			}
			if tab.mtu != r.f.MTU {
				t.Errorf("mtu %d, want %d", tab.mtu, r.f.MTU)
			}
		})
	}
}

func TestDigestNamesTheStaticPartOnly(t *testing.T) {
	c, f := config(), Facts{Uplinks: []string{"wan0"}, MTU: 1420}
	line := func(c egress.Config, f Facts, classes map[string]string) string {
		for l := range strings.Lines(Ruleset(c, f, classes)) {
			if strings.Contains(l, "comment \"rules ") {
				return l
			}
		}
		t.Fatal("no digest in the text")
		return ""
	}
	want := line(c, f, home(c))
	if got := line(c, f, nil); got != want {
		t.Errorf("moving a class changed the digest: %s and %s", got, want)
	}
	for name, change := range map[string]func(c *egress.Config, f *Facts){
		"leak guard": func(c *egress.Config, _ *Facts) { c.Plane.LeakGuard = false },
		"uplink":     func(_ *egress.Config, f *Facts) { f.Uplinks = []string{"wan1"} },
		"mtu":        func(_ *egress.Config, f *Facts) { f.MTU = 1400 },
		"class":      func(c *egress.Config, _ *Facts) { c.Lanes[0].DSCP = []egress.DSCP{8} },
		"nat":        func(c *egress.Config, _ *Facts) { c.Lanes[0].NAT = egress.NATNone },
		"bypass":     func(c *egress.Config, _ *Facts) { c.Plane.Bypass = prefixes("10.0.0.0/8") },
	} {
		c, f := config(), f
		change(&c, &f)
		if got := line(c, f, nil); got == want {
			t.Errorf("%s: the digest stayed the same", name)
		}
	}
}

// tableOf is a table as it is read when these elements are in it.
func tableOf(c egress.Config, elements []element) *table {
	t := &table{present: true, dscp: map[string][]egress.DSCP{}, marks: map[string][]egress.Mark{}}
	for _, name := range toSets(c) {
		t.dscp[name], t.marks[six(name)] = nil, nil
	}
	for _, e := range elements {
		if _, ok := t.marks[e.set]; ok {
			t.marks[e.set] = append(t.marks[e.set], egress.Mark(e.value))
		} else {
			t.dscp[e.set] = append(t.dscp[e.set], egress.DSCP(e.value))
		}
	}
	return t
}

// Whatever is placed where: all that stands for a class is in the sets of its lane, once.
func TestEachClassIsInOnePlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		where := []string{"", Direct}
		for _, l := range c.Lanes {
			where = append(where, l.Name)
		}
		classes := map[string]string{}
		for _, l := range c.Lanes {
			classes[l.Name] = rapid.SampledFrom(where).Draw(t, l.Name)
		}
		place := placement(c, classes)
		var want []element
		for _, l := range c.Lanes {
			to := toSet(c, classes[l.Name])
			if to == "" || len(l.DSCP) == 0 {
				continue
			}
			for _, d := range l.DSCP {
				want = append(want, element{to, uint32(d)})
			}
			want = append(want, element{"to6_" + strings.TrimPrefix(to, "to_"), uint32(l.Mark)})
		}
		if diff := cmp.Diff(want, place, cmp.AllowUnexported(element{})); diff != "" {
			t.Fatalf("place (-want +got):\n%s", diff)
		}
		// What was placed is what is read, and moving there again is no move.
		got, odd := tableOf(c, place).positions(c)
		for _, l := range c.Lanes {
			if len(l.DSCP) == 0 {
				classes[l.Name] = l.Name
			}
		}
		if diff := cmp.Diff(classes, got); diff != "" || len(odd) > 0 {
			t.Fatalf("read back (-want +got):\n%s%q", diff, odd)
		}
		if out, in := moves(c, tableOf(c, place), classes, true); len(out)+len(in) > 0 {
			t.Fatalf("not at rest: out %v, in %v", out, in)
		}
	})
}

// From any state of the sets one transaction leads to the wanted one.
func TestMovesLeadToWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		state := map[element]bool{}
		for _, n := range toSets(c) {
			for _, d := range rapid.SliceOfN(rapid.Uint32Range(0, 63), 0, 6).Draw(t, n) {
				state[element{n, d}] = true
			}
			for _, m := range rapid.SliceOfN(rapid.Uint32Range(0, 8), 0, 3).Draw(t, six(n)) {
				state[element{six(n), m}] = true
			}
		}
		want := map[string]string{}
		for _, l := range c.Lanes {
			want[l.Name] = rapid.SampledFrom([]string{"", Direct, c.Lanes[0].Name}).Draw(t, "to")
		}
		out, in := moves(c, tableOf(c, slices.Collect(keys(state))), want, true)
		for _, e := range out {
			if !state[e] {
				t.Fatalf("%v leaves where it is not", e)
			}
			delete(state, e)
		}
		for _, e := range in {
			if state[e] {
				t.Fatalf("%v enters where it is", e)
			}
			state[e] = true
		}
		final := map[element]bool{}
		for _, e := range placement(c, want) {
			final[e] = true
		}
		if diff := cmp.Diff(final, state); diff != "" {
			t.Fatalf("elements (-want +got):\n%s", diff)
		}
	})
}

func anyConfig(t *rapid.T) egress.Config {
	c := config()
	free := rapid.Permutation(codePoints()).Draw(t, "code points")
	c.Lanes = nil
	for i := range rapid.IntRange(1, 6).Draw(t, "lanes") {
		n := rapid.IntRange(0, 3).Draw(t, "classes")
		c.Lanes = append(c.Lanes, egress.Lane{Name: fmt.Sprintf("l%d", i), Interface: fmt.Sprintf("vpn%d", i), Table: 201 + i, Mark: egress.Mark(1 + i), DSCP: free[:n]})
		free = free[n:]
	}
	return c
}

func codePoints() []egress.DSCP {
	var all []egress.DSCP
	for d := range 64 {
		all = append(all, egress.DSCP(d))
	}
	return all
}

// The kernel's edges of an interval set mean the same addresses as the configured prefixes.
func TestSpansOfPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []netip.Prefix
		for range rapid.IntRange(0, 6).Draw(t, "n") {
			b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr")
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), rapid.IntRange(1, 32).Draw(t, "bits")))
		}
		v4, _ := compact(list)
		var edges []nftables.SetElement
		for _, p := range v4 {
			edges = append(edges, nftables.SetElement{Key: p.Addr().AsSlice()})
			if end := last(p).Next(); end.IsValid() {
				edges = append(edges, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
			}
		}
		if diff := cmp.Diff(fmt.Sprint(prefixSpans(v4)), fmt.Sprint(spans(edges))); diff != "" {
			t.Fatalf("spans (-want +got):\n%s", diff)
		}
		for _, p := range list {
			in := slices.ContainsFunc(v4, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) })
			if !in {
				t.Fatalf("%s is not covered by %v", p, v4)
			}
		}
	})
}

func TestPositions(t *testing.T) {
	c := config()
	c.Lanes = append(c.Lanes, egress.Lane{Name: "spare", Interface: "vpn3", Table: 203, Mark: 0x203})
	at := func(one, two string) map[string]string {
		return map[string]string{"egress1": one, "egress2": two, "spare": "spare"}
	}
	one, two := []element{{"to_201", 32}, {"to6_201", 0x201}}, []element{{"to_202", 40}, {"to_202", 46}, {"to6_202", 0x202}}
	for _, tt := range []struct {
		name string
		in   []element
		want map[string]string
		odd  []string
	}{
		{"all at home", slices.Concat(one, two), at("egress1", "egress2"), nil},
		{"one lent, one direct", []element{{"to_203", 32}, {"to6_203", 0x201}, {"to_direct", 40}, {"to_direct", 46}, {"to6_direct", 0x202}}, at("spare", Direct), nil},
		{"closed", nil, at("", ""), nil},
		{"split over two lanes", slices.Concat(one, []element{{"to_201", 40}, {"to_202", 46}, {"to6_202", 0x202}}), at("egress1", ""), []string{"class of egress2: split over to6_202, to_201, to_202"}},
		{"half of it nowhere", slices.Concat(one, []element{{"to_202", 46}, {"to6_202", 0x202}}), at("egress1", ""), []string{"class of egress2: split over none, to6_202, to_202"}},
		{"IPv6 elsewhere", slices.Concat(two, []element{{"to_201", 32}, {"to6_202", 0x201}}), at("", "egress2"), []string{"class of egress1: split over to6_202, to_201"}},
		{"in two sets at once", slices.Concat(one, two, []element{{"to_202", 32}}), at("", "egress2"), []string{"class of egress1: split over to6_201, to_201, to_202"}},
		{"strangers", slices.Concat(one, two, []element{{"to_201", 63}, {"to6_202", 7}}), at("egress1", "egress2"), []string{"set to6_202: 0x7 is the class of no lane", "set to_201: 0x3f is the class of no lane"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, odd := tableOf(c, tt.in).positions(c)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("classes (-want +got):\n%s", diff)
			}
			if !slices.Equal(tt.odd, odd) {
				t.Errorf("odd %q, want %q", odd, tt.odd)
			}
		})
	}
}

func TestCheckRefuses(t *testing.T) {
	for name, change := range map[string]func(c *egress.Config){
		"masks that share bits":            func(c *egress.Config) { c.Plane.ClassMask = 0x1f00 },
		"no room for the number of inflow": func(c *egress.Config) { c.Plane.ClassMask = 0x1000 },
		"a mark outside its mask":          func(c *egress.Config) { c.Lanes[0].Mark = 0x1201 },
		"no mark":                          func(c *egress.Config) { c.Lanes[0].Mark = 0 },
		"a mark twice":                     func(c *egress.Config) { c.Lanes[1].Mark = 0x201 },
		"a table twice":                    func(c *egress.Config) { c.Lanes[1].Table = 201 },
		"the main table":                   func(c *egress.Config) { c.Lanes[0].Table = 254 },
		"a class twice":                    func(c *egress.Config) { c.Lanes[1].DSCP = []egress.DSCP{32} },
		"a quote in an interface":          func(c *egress.Config) { c.Lanes[0].Interface = "a\"b" },
		"no interface":                     func(c *egress.Config) { c.Lanes[0].Interface = "" },
		"a quote in a name":                func(c *egress.Config) { c.Lanes[0].Name = "a\"b" },
		"a pattern as an input":            func(c *egress.Config) { c.Plane.Inputs = []string{"wg*"} },
	} {
		c := config()
		change(&c)
		if check(c) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := check(config()); err != nil {
		t.Errorf("a good one: %v", err)
	}
}
