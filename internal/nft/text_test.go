package nft

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/edge"
)

var update = flag.Bool("update", false, "write the golden files anew")

// same compares tables; of a lease only what it says.
func same() cmp.Option { return cmp.Comparer(func(a, b edge.Table) bool { return a.Equal(b) }) }

// full is a table that has something of everything.
func full() edge.Table {
	t := led(one4, one6, 7)
	t.Nodes = []edge.Element{{
		From:  edge.Endpoint{Protocol: edge.TCP, Addr: at(router4, public)},
		To:    at(two4, actual),
		Claim: edge.Claim{Service: "front", Epoch: 18446744073709551615, By: "core-02"},
	}}
	t.Always = []edge.Endpoint{{Protocol: edge.UDP, Addr: at(two4, actual)}}
	t.OnLink = append(t.OnLink, edge.OnLink{Prefix: netip.MustParsePrefix("10.30.0.7/32"), Addr: netip.MustParseAddr(one4)})
	t.Leases = []edge.Lease{
		{Node: "core-02", Left: 1500 * time.Millisecond},
		{Node: "core-01", Config: "12ab34cd", Opinion: "56ef78ab", Holds: []string{"front", "voice"}, Left: 30 * time.Second},
	}
	t, err := canonical(t)
	if err != nil {
		panic(err)
	}
	return t
}

func TestTextIsWhatAPersonWouldWrite(t *testing.T) {
	path := filepath.Join("testdata", "full.nft")
	got := Text(full())
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("text (-want +got):\n%s", d)
	}
}

func TestTextOfNothingLeavesNothingBehind(t *testing.T) {
	got, drift, err := ParseListing(Text(edge.Table{}))
	if err != nil || drift != nil || !got.Equal(edge.Table{}) {
		t.Errorf("read back as %+v, drift %q, %v", got, drift, err)
	}
}

func TestParseListingForgives(t *testing.T) {
	text := Text(full())
	cases := map[string]string{
		"as written":                  text,
		"a banner before":             "Welcome to core-02!\n{ \"mind\" the gap };\n" + text,
		"a prompt and words after":    text + "nft> \ntable ip other {\n}\n",
		"lines of another machine":    strings.ReplaceAll(text, "\n", "\r\n"),
		"a comment on the size":       strings.ReplaceAll(text, "size 16384", "size 16384\t# count 3"),
		"a priority by its number":    strings.ReplaceAll(text, "priority dstnat", "priority -100"),
		"a priority by another name":  strings.ReplaceAll(text, "priority srcnat", "priority dstnat + 200"),
		"counters that counted":       strings.ReplaceAll(text, "counter drop", "counter packets 17 bytes 1020 drop"),
		"time left of leases":         strings.ReplaceAll(text, "timeout 30s", "timeout 30s expires 12s345ms"),
		"protocols by their number":   strings.ReplaceAll(text, ". tcp .", ". 6 ."),
		"an older listing before":     strings.ReplaceAll(text, one4, two4) + text,
		"one that was cut before":     text[:len(text)/2] + "\n" + text,
		"properties in another order": strings.ReplaceAll(text, "\t\tsize 65536\n\t\tflags interval\n", "\t\tflags interval\n\t\tsize 65536\n"),
	}
	for name, listing := range cases {
		t.Run(name, func(t *testing.T) {
			got, drift, err := ParseListing(listing)
			if err != nil || drift != nil {
				t.Fatalf("drift %q, %v", drift, err)
			}
			if d := cmp.Diff(full(), got, same()); d != "" {
				t.Errorf("table (-want +got):\n%s", d)
			}
		})
	}
}

func TestParseListingNamesDrift(t *testing.T) {
	text := Text(full())
	cut := func(old, with string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("no %q in the text", old)
		}
		return strings.Replace(text, old, with, 1)
	}
	cases := map[string]struct{ listing, want string }{
		"a rule is gone":        {cut("\t\tfib daddr type local dnat ip6 to ip6 daddr . meta l4proto . th dport map @node6\n", ""), "chain prerouting"},
		"a rule too many":       {cut("\tchain forward {\n", "\tchain forward {\n\t\taccept\n"), "chain forward"},
		"another rule":          {cut("counter drop", "counter accept"), "chain forward"},
		"the guard is off":      {cut("fib daddr type local dnat ip to", "dnat ip to"), "chain prerouting"},
		"another policy":        {cut("priority filter; policy accept", "priority filter; policy drop"), "chain forward"},
		"another priority":      {cut("priority dstnat", "priority dstnat + 1"), "chain prerouting"},
		"a set of another type": {cut("set address4 {\n\t\ttype ipv4_addr\n", "set address4 {\n\t\ttype ipv6_addr\n"), "set address4"},
		"a smaller set":         {cut("size 16384", "size 10"), "map target4"},
		"a set too many":        {cut("\tset service4 {", "\tset mine {\n\t\ttype ipv4_addr\n\t}\n\n\tset service4 {"), "set mine"},
		"a chain too many":      {cut("\tchain output {", "\tchain mine {\n\t}\n\n\tchain output {"), "chain mine"},
		"a sleeping table":      {cut(tableTitle+" {\n", tableTitle+" {\n\tflags dormant\n"), "flags dormant"},
		"a set is gone":         {cut("set always6", "set always7"), "set always6"},
		"an element of others":  {cut("elements = { 10.20.0.1 . tcp", "elements = { 10.20.0.1 . tcp . 1 : 10.0.0.1 . 1, 10.20.0.1 . meow . tcp"), "map node4"},
		"a lease of others":     {cut("core-01 config", "core-17 config"), "set lease"},
		"a lease for ever":      {cut("timeout 30s comment", "comment"), "set lease"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, drift, err := ParseListing(c.listing)
			if err != nil || !strings.Contains(strings.Join(drift, "\n"), c.want) {
				t.Errorf("drift %q, %v; want one that names %q", drift, err, c.want)
			}
		})
	}
}

func TestParseListingRefuses(t *testing.T) {
	text := Text(full())
	for name, listing := range map[string]string{
		"nothing":            "",
		"no table":           "Error: No such file or directory\n",
		"another's table":    strings.ReplaceAll(text, tableName, "other"),
		"one that was cut":   text[:len(text)-2],
		"a brace too many":   strings.Replace(text, "\tmap target4", "\t}\n\tmap target4", 1),
		"a chain is endless": tableTitle + " {\n\tchain input {\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got, drift, err := ParseListing(listing); err == nil {
				t.Errorf("read as %+v, drift %q", got, drift)
			}
		})
	}
}

func TestClaimsAndLeasesSurviveTheirComments(t *testing.T) {
	long := strings.Repeat("n", maxName)
	var holds []string
	for i := range 40 {
		holds = append(holds, fmt.Sprintf("%s%02d", long[2:], i))
	}
	table := edge.Table{
		Targets: []edge.Element{{
			From: edge.Endpoint{Protocol: edge.TCP, Addr: at(vip4, public)}, To: at(one4, actual),
			Claim: edge.Claim{Service: long, Epoch: 1<<64 - 1, By: long},
		}},
		Leases: []edge.Lease{{Node: long, Config: strings.Repeat("c", maxDigest), Opinion: strings.Repeat("d", maxDigest), Holds: holds, Left: time.Minute}},
	}
	for _, i := range append(items(table, kindTarget), items(table, kindLease)...) {
		if len(i.note) > maxNote {
			t.Errorf("a comment of %d bytes: %s", len(i.note), i.note)
		}
	}
	got, drift, err := ParseListing(Text(table))
	if err != nil || drift != nil {
		t.Fatalf("drift %q, %v", drift, err)
	}
	if d := cmp.Diff(table, got, same()); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

func TestCheckNamesWhatATableCannotHold(t *testing.T) {
	from := edge.Endpoint{Protocol: edge.TCP, Addr: at(vip4, public)}
	many := edge.Table{}
	for i := range kindAddress.size() + 1 {
		many.Addresses = append(many.Addresses, netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}))
	}
	for name, c := range map[string]struct {
		table edge.Table
		want  string
	}{
		"no protocol":      {edge.Table{Services: []edge.Endpoint{{Addr: at(vip4, 1)}}}, vip4},
		"no port":          {edge.Table{Backends: []edge.Endpoint{{Protocol: edge.UDP, Addr: at(one4, 0)}}}, "no port"},
		"no address":       {edge.Table{Addresses: []netip.Addr{{}}}, "address"},
		"a zone":           {edge.Table{Addresses: []netip.Addr{netip.MustParseAddr("fe80::1%eth0")}}, "fe80::1%eth0"},
		"other family":     {edge.Table{Targets: []edge.Element{{From: from, To: at(one6, actual)}}}, "other family"},
		"two targets":      {edge.Table{Targets: []edge.Element{{From: from, To: at(one4, 1)}, {From: from, To: at(two4, 1)}}}, "two targets"},
		"a quote":          {edge.Table{Targets: []edge.Element{{From: from, To: at(one4, 1), Claim: edge.Claim{Service: `a"b`, By: "c"}}}}, `a\"b`},
		"a nameless lease": {edge.Table{Leases: []edge.Lease{{Left: 1}}}, "lease"},
		"an odd hold":      {edge.Table{Leases: []edge.Lease{{Node: "a", Holds: []string{"b,c"}}}}, "b,c"},
		"too many":         {many, "16384"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Check(c.table); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want one that names %q", err, c.want)
			}
		})
	}
	if err := Check(full()); err != nil {
		t.Error(err)
	}
}

// anyTable draws tables of a few addresses, so that they often share some.
func anyTable() *rapid.Generator[edge.Table] {
	return rapid.Custom(func(t *rapid.T) edge.Table {
		addr := rapid.SampledFrom([]netip.Addr{
			netip.MustParseAddr(vip4), netip.MustParseAddr(one4), netip.MustParseAddr(two4), netip.MustParseAddr("0.0.0.0"),
			netip.MustParseAddr(vip6), netip.MustParseAddr(one6), netip.MustParseAddr("::"), netip.MustParseAddr("::ffff:1.2.3.4"),
		})
		port := rapid.SampledFrom([]uint16{1, public, actual, 65535})
		name := rapid.SampledFrom([]string{"a", "front", "core-01", strings.Repeat("x", maxName)})
		endpoint := rapid.Custom(func(t *rapid.T) edge.Endpoint {
			return edge.Endpoint{
				Protocol: rapid.SampledFrom([]edge.Protocol{edge.TCP, edge.UDP}).Draw(t, "protocol"),
				Addr:     netip.AddrPortFrom(addr.Draw(t, "address"), port.Draw(t, "port")),
			}
		})
		element := rapid.Custom(func(t *rapid.T) edge.Element {
			e := edge.Element{From: endpoint.Draw(t, "from"), To: netip.AddrPortFrom(addr.Draw(t, "to"), port.Draw(t, "port"))}
			if rapid.Bool().Draw(t, "claimed") {
				e.Claim = edge.Claim{Service: name.Draw(t, "service"), Epoch: rapid.Uint64().Draw(t, "epoch"), By: name.Draw(t, "by")}
			}
			return e
		})
		onLink := rapid.Custom(func(t *rapid.T) edge.OnLink {
			a := addr.Draw(t, "address")
			return edge.OnLink{Addr: a, Prefix: netip.PrefixFrom(addr.Draw(t, "prefix"), rapid.IntRange(0, 32).Draw(t, "bits"))}
		})
		lease := rapid.Custom(func(t *rapid.T) edge.Lease {
			return edge.Lease{
				Node: name.Draw(t, "node"), Config: rapid.SampledFrom([]string{"", "12ab34cd"}).Draw(t, "config"), Opinion: "56ef78ab",
				Holds: rapid.SliceOfN(name, 0, 9).Draw(t, "holds"), Left: time.Duration(rapid.IntRange(20, 600).Draw(t, "left")) * time.Second,
			}
		})
		from := func(e edge.Element) edge.Endpoint {
			e.From.Addr = netip.AddrPortFrom(e.From.Addr.Addr().Unmap(), e.From.Addr.Port())
			return e.From
		}
		out, _ := canonical(edge.Table{ // what can't be held goes
			Targets:   rapid.SliceOfNDistinct(element, 0, 9, from).Draw(t, "targets"),
			Nodes:     rapid.SliceOfNDistinct(element, 0, 4, from).Draw(t, "nodes"),
			Services:  rapid.SliceOfN(endpoint, 0, 9).Draw(t, "services"),
			Addresses: rapid.SliceOfN(addr, 0, 4).Draw(t, "addresses"),
			Backends:  rapid.SliceOfN(endpoint, 0, 9).Draw(t, "backends"),
			Always:    rapid.SliceOfN(endpoint, 0, 4).Draw(t, "always"),
			OnLink:    rapid.SliceOfN(onLink, 0, 6).Draw(t, "onlink"),
			Leases:    rapid.SliceOfNDistinct(lease, 0, 3, func(l edge.Lease) string { return l.Node }).Draw(t, "leases"),
		})
		return out
	})
}

func TestWhateverIsWrittenIsReadAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyTable().Draw(t, "table")
		if err := Check(want); err != nil {
			t.Fatalf("what was made canonical is refused: %v", err)
		}
		got, drift, err := ParseListing(Text(want))
		if err != nil || drift != nil || !got.Equal(want) {
			t.Fatalf("want %+v\n got %+v\ndrift %q, %v", want, got, drift, err)
		}
	})
}

func FuzzParseListing(f *testing.F) {
	f.Add(Text(full()))
	f.Add(Text(edge.Table{}))
	f.Add(tableTitle + " {\n\tflags dormant\n\tset x {\n\t\telements = { 1 }\n\t}\n}\n")
	f.Add(tableTitle + " {\n}\n")
	f.Add(tableTitle + " {\n\tmap target4 { type a : b; elements = { \"x : , } }\n}\n")
	f.Fuzz(func(t *testing.T, listing string) {
		table, drift, err := ParseListing(listing)
		if err != nil {
			return
		}
		// What was read can be written, unless it was said to be odd, and is then read the same.
		again, _, err := ParseListing(Text(table))
		if err != nil {
			t.Fatal(err)
		}
		if drift == nil && Check(table) == nil && !again.Equal(table) {
			t.Errorf("read %+v, and again %+v", table, again)
		}
	})
}

// Elements of interval sets are deleted in small numbers only.
func TestManyDeletionsMakeTheTableAnew(t *testing.T) {
	for name, c := range map[string]struct {
		was, want edge.Table
		heavy     bool
	}{
		"a small table":      {many(1, 1), edge.Table{}, false},
		"one service of 200": {many(200, 1), many(199, 1), false},
		"half of 200":        {many(200, 1), many(100, 1), true},
		"everything":         {many(1000, 1), edge.Table{}, true},
		"everything comes":   {edge.Table{}, many(1000, 1), false},
		"all targets move":   {many(1000, 1), many(1000, 2), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := heavy(diff(c.was, c.want), c.was, c.want); got != c.heavy {
				t.Errorf("heavy: %v", got)
			}
		})
	}
}
