package plane

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
)

func TestEnsureTwiceChangesNothing(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	if v, err := p.Observe(t.Context(), c); err != nil || v.Ready {
		t.Fatalf("on an empty router: ready %v, error %v", v.Ready, err)
	}
	if !ensure(t, p, c, home(c)) {
		t.Fatal("the first one says that it changed nothing")
	}
	first := w.everything()
	golden(t, "rules4.txt", w.ip("rule"))
	golden(t, "rules6.txt", w.ip("-6 rule"))
	golden(t, "routes.txt", w.ip("route show table 201")+w.ip("route show table 202")+w.ip("-6 route show table 201")+w.ip("-6 route show table 202"))

	quiet := w.watch()
	if ensure(t, p, c, home(c)) || ensure(t, p, c, nil) {
		t.Error("a later one says that it changed something")
	}
	if events := quiet(); len(events) > 0 {
		t.Errorf("a later one made change events: %q", events)
	}
	if diff := cmp.Diff(first, w.everything()); diff != "" {
		t.Errorf("a later one changed something (-first +now):\n%s", diff)
	}
	v, err := p.Observe(t.Context(), c)
	must(t, err)
	if diff := cmp.Diff(egress.PlaneView{Ready: true, Classes: home(c)}, v); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
}

// Whatever somebody breaks, Observe names it and one Ensure mends it, and nothing else moves.
func TestEnsureMends(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	ensure(t, p, c, home(c))
	good := w.everything()
	for _, tt := range []struct {
		name, damage string
		drift        string
		static       bool
	}{
		{"lane rule deleted", "ip rule del pref 20000 fwmark 0x201/0xfff lookup 201", "rule missing (IPv4): pref 20000 fwmark 0x201/0xfff lookup 201", true},
		{"local rule deleted", "ip rule del pref 20001 fwmark 0x202/0xfff lookup main suppress_prefixlength 0", "rule missing (IPv4): pref 20001 fwmark 0x202/0xfff lookup main suppress_prefixlength 0", true},
		{"IPv6 rule deleted", "ip -6 rule del pref 20000 fwmark 0x201/0xfff lookup 201", "rule missing (IPv6): pref 20000 fwmark 0x201/0xfff lookup 201", true},
		{"a rule of a former configuration", "ip rule add pref 20007 fwmark 0x207/0xfff lookup 207 protocol 83", "stale rule (IPv4): pref 20007 lookup 207", true},
		{"default route deleted", "ip route del default dev vpn1 table 201", "lane egress1: route missing (IPv4): default dev vpn1 table 201", true},
		{"blackhole deleted", "ip route del blackhole default table 202", "lane egress2: route missing (IPv4): blackhole default metric 65535 table 202", true},
		{"IPv6 blackhole deleted", "ip -6 route del blackhole default table 202 metric 65535", "lane egress2: route missing (IPv6): blackhole default metric 65535 table 202", true},
		{"default route by another interface", "ip route replace default dev wan0 table 201 protocol 83", "lane egress1: route missing (IPv4): default dev vpn1 table 201", true},
		{"table deleted", "nft delete table inet shunt_egress", "table inet shunt_egress: missing", true},
		{"chain flushed", "nft flush chain inet shunt_egress forward", "chain forward: 0 rules, want 17", true},
		{"a rule added", "nft add rule inet shunt_egress prerouting accept", "chain prerouting: 11 rules, want 10", true},
		{"a chain added", "nft add chain inet shunt_egress x; nft add rule inet shunt_egress x accept", "chain x: 1 rules, want no such chain", true},
		{"a class in the static set", "nft add element inet shunt_egress class_201 { cs1 }", "set class_201: not the elements it should have", true},
		{"an interface gone from a set", "nft delete element inet shunt_egress outside { wan0 }", "set outside: not the elements it should have", true},
		{"an address in the bypass", "nft add element inet shunt_egress bypass4 { 203.0.113.0/24 }", "set bypass4: not the elements it should have", true},
		{"a stranger in a moving set", "nft add element inet shunt_egress to_201 { cs1 }", "set to_201: cs1 is the class of no lane", false},
		{"half a class gone", "nft delete element inet shunt_egress to_202 { ef }", "class of egress2: split over none, to6_202, to_202", false},
		{"a class in two sets", "nft add element inet shunt_egress to_202 { cs4 }", "class of egress1: split over to6_201, to_201, to_202", false},
		{"the IPv6 half of a class gone", "nft delete element inet shunt_egress to6_202 { 0x202 }", "class of egress2: split over none, to_202", false},
		{"an IPv6 stranger", "nft add element inet shunt_egress to6_202 { 0x7 }", "set to6_202: 0x7 is the class of no lane", false},
		{"an IPv6 set gone", "nft flush chain inet shunt_egress users6; nft delete set inet shunt_egress to6_202", "set to6_202: missing", true},
	} {
		w.run(t, tt.name, func(t *testing.T) {
			w.cmd("", "sh", "-c", tt.damage)
			v, err := p.Observe(t.Context(), c)
			must(t, err)
			if !slices.Contains(v.Drift, tt.drift) {
				t.Errorf("drift %q, want %q in it", v.Drift, tt.drift)
			}
			if v.Ready == tt.static {
				t.Errorf("ready: %v", v.Ready)
			}
			if !ensure(t, p, c, home(c)) {
				t.Error("says that it changed nothing")
			}
			if diff := cmp.Diff(good, w.everything()); diff != "" {
				t.Errorf("not mended (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEnsureKeepsClassesThatItIsNotTold(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	ensure(t, p, c, nil)
	if v, err := p.Observe(t.Context(), c); err != nil || v.Classes["egress1"] != "" {
		t.Fatalf("a new table is not closed: %v, %v", v.Classes, err)
	}
	ensure(t, p, c, map[string]string{"egress1": "egress2", "egress2": Direct})
	w.nft("flush chain inet shunt_egress forward") // so that the whole table is loaded anew
	ensure(t, p, c, map[string]string{"egress2": "egress2"})
	v, err := p.Observe(t.Context(), c)
	must(t, err)
	if diff := cmp.Diff(map[string]string{"egress1": "egress2", "egress2": "egress2"}, v.Classes); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
}

// A lane that goes away and comes back never has the table loaded anew, and never touches the
// other lane's rules and routes.
func TestLaneAwayAndBack(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	ensure(t, p, c, home(c))
	good := w.everything()
	w.ip("link del vpn1")
	quiet := w.watch()
	ensure(t, p, c, home(c))
	if events := quiet(); len(events) > 0 {
		t.Errorf("change events while the lane is away: %q", events)
	}
	w.lane(1)
	v, err := p.Observe(t.Context(), c)
	must(t, err)
	want := []string{
		"lane egress1: route missing (IPv4): default dev vpn1 table 201",
		"lane egress1: route missing (IPv6): default dev vpn1 table 201",
	}
	if diff := cmp.Diff(want, v.Drift); diff != "" {
		t.Errorf("drift (-want +got):\n%s", diff)
	}
	quiet = w.watch()
	ensure(t, p, c, home(c))
	for _, e := range quiet() {
		if !strings.Contains(e, "default dev vpn1 table 201") {
			t.Errorf("touched something else: %s", e)
		}
	}
	// The interface has another index now; in the listings only the kernel's own lines may differ.
	own := func(s string) string {
		var keep []string
		for l := range strings.Lines(s) {
			if !strings.Contains(l, "proto kernel") {
				keep = append(keep, l)
			}
		}
		slices.Sort(keep)
		return strings.Join(keep, "")
	}
	if diff := cmp.Diff(own(good), own(w.everything())); diff != "" {
		t.Errorf("not as before (-want +got):\n%s", diff)
	}
}

func TestForeignThingsStay(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.cmd(`table inet mine {
	set s { type mark; elements = { 7 }; }
	chain prerouting { type filter hook prerouting priority mangle; meta mark set meta mark | 0x70000000; }
}
table ip nat {
	chain postrouting { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}`, "nft", "-f", "-")
	w.ip("rule add pref 20000 fwmark 0x900/0xf00 lookup 201")
	w.ip("rule add pref 100 from 10.9.0.0/16 lookup 90")
	w.ip("route add 198.51.100.0/24 via 10.11.2.2 table 201")
	w.ip("route add default via 10.11.2.2 table 90")
	before := w.everything()
	ensure(t, p, c, home(c))
	must(t, p.Move(t.Context(), c, map[string]string{"egress1": "egress2"}))
	must(t, p.Remove(t.Context(), c))
	if diff := cmp.Diff(before, w.everything()); diff != "" {
		t.Errorf("something foreign changed (-want +got):\n%s", diff)
	}
	must(t, p.Remove(t.Context(), c)) // of nothing
}

func TestForeignDefaultRoute(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.run(t, "by the lane: taken as it is", func(t *testing.T) {
		w.ip("route add default dev vpn1 table 201")
		ensure(t, p, c, home(c))
		if got := w.ip("route show table 201"); !strings.Contains(got, "default dev vpn1 scope link") {
			t.Errorf("table 201:\n%s", got)
		}
	})
	w.run(t, "by something else: an error, and not touched", func(t *testing.T) {
		must(t, p.Remove(t.Context(), c))
		w.ip("route replace default via 10.11.2.2 dev wan0 table 201")
		_, err := p.Ensure(t.Context(), c, home(c))
		if err == nil || !strings.Contains(err.Error(), "default dev vpn1 table 201") {
			t.Errorf("error %v", err)
		}
		if got := w.ip("route show table 201"); !strings.Contains(got, "default via 10.11.2.2 dev wan0") {
			t.Errorf("table 201:\n%s", got)
		}
		if v, err := p.Observe(t.Context(), c); err != nil || v.Classes["egress1"] != "egress1" {
			t.Errorf("the rest was not done: %v, %v", v, err)
		}
	})
}

func TestRulesOfSomebodyElse(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	c.Plane.ManageRules = false
	before := w.everything()
	w.run(t, "nothing there: says what is missing, and makes nothing", func(t *testing.T) {
		_, err := p.Ensure(t.Context(), c, home(c))
		for _, want := range []string{"manage_rules is off", "table inet shunt_egress: missing", "rule missing (IPv4): fwmark 0x201/0xfff lookup 201"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		}
		if diff := cmp.Diff(before, w.everything()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
	})
	w.run(t, "a set missing", func(t *testing.T) {
		w.cmd("table inet shunt_egress {\n set to_201 { type dscp; }\n set to_202 { type mark; }\n}", "nft", "-f", "-")
		err := p.Move(t.Context(), c, home(c))
		if err == nil || !strings.Contains(err.Error(), "set to_202: not of type dscp") {
			t.Errorf("error %v", err)
		}
		w.nft("delete table inet shunt_egress")
	})
	w.run(t, "all there: moves elements only", func(t *testing.T) {
		w.cmd(`table inet shunt_egress {
	set to_201 { type dscp; elements = { cs1 }; }
	set to_202 { type dscp; }
	chain prerouting { type filter hook prerouting priority mangle; ip dscp @to_201 meta mark set 0x201; }
}`, "nft", "-f", "-")
		for _, f := range []string{"-4", "-6"} {
			w.ip(f + " rule add pref 5 fwmark 0x201/0xfff lookup 201")
			w.ip(f + " rule add pref 6 fwmark 0x202/0xfff lookup 202")
			w.ip(f + " route add default dev vpn1 table 201 metric 3")
			w.ip(f + " route add default dev vpn2 table 202")
		}
		quiet := w.watch()
		if !ensure(t, p, c, home(c)) || ensure(t, p, c, home(c)) {
			t.Error("want a change the first time only")
		}
		want := []string{"add element inet shunt_egress to_201 { cs4 }", "add element inet shunt_egress to_202 { cs5 }", "add element inet shunt_egress to_202 { ef }"}
		if diff := cmp.Diff(want, quiet()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		v, err := p.Observe(t.Context(), c)
		must(t, err)
		if !v.Ready || !maps.Equal(v.Classes, home(c)) {
			t.Errorf("view %+v", v)
		}
		full := w.everything()
		must(t, p.Remove(t.Context(), c))
		if diff := cmp.Diff(full, w.everything()); diff != "" {
			t.Errorf("remove took what is not ours (-want +got):\n%s", diff)
		}
	})
}

func TestWhatTheRulesDependOn(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.ip("link set vpn2 mtu 1380")
	ensure(t, p, c, home(c))
	read := func() (ups []string, mtu int) {
		tab, err := p.readTable(t.Context())
		must(t, err)
		return tab.names["uplinks"], tab.mtu
	}
	check := func(what string, wantUps []string, wantMTU int) {
		t.Helper()
		ensure(t, p, c, home(c))
		ups, mtu := read()
		if !slices.Equal(ups, wantUps) || mtu != wantMTU {
			t.Errorf("%s: uplinks %v, mtu %d; want %v, %d", what, ups, mtu, wantUps, wantMTU)
		}
	}
	check("at first", []string{"wan0"}, 1380)
	w.ip("link del vpn2")
	check("the lane with the least MTU is away", []string{"wan0"}, 1380)
	w.ip("route del default")
	w.ip("-6 route del default")
	check("no default route for a moment", []string{"wan0"}, 1380)
	w.connect("wan1", "wan1", "10.11.9.1/24", "10.11.9.2/24", "")
	w.ip("route add default via 10.11.9.2")
	check("another default route", []string{"wan0", "wan1"}, 1380)
	w.lane(2)
	check("the lane is back with another MTU", []string{"wan0", "wan1"}, 1420)
	c.Uplink.Interface = "wan1"
	check("configured", []string{"wan1"}, 1420)
}

func TestReversePathFilterIsTold(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	ensure(t, p, c, home(c))
	for _, tt := range []struct{ all, lane, want string }{
		{"0", "0", ""},
		{"2", "1", ""},
		{"0", "2", ""},
		{"0", "1", "lane egress1: net.ipv4.conf.vpn1.rp_filter is 1 (strict): answers by vpn1 are dropped, want 0 or 2"},
		{"1", "0", "lane egress1: net.ipv4.conf.all.rp_filter is 1 (strict): answers by vpn1 are dropped, want 0 or 2"},
	} {
		w.sysctl("net/ipv4/conf/all/rp_filter", tt.all)
		w.sysctl("net/ipv4/conf/vpn1/rp_filter", tt.lane)
		v, err := p.Observe(t.Context(), c)
		must(t, err)
		if got := slices.Contains(v.Drift, tt.want); got != (tt.want != "") || !v.Ready {
			t.Errorf("all %s, lane %s: ready %v, drift %q, want %q", tt.all, tt.lane, v.Ready, v.Drift, tt.want)
		}
	}
}

func TestWithoutIPv6(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.sysctl("net/ipv6/conf/all/disable_ipv6", "1")
	ensure(t, p, c, home(c))
	if ensure(t, p, c, home(c)) {
		t.Error("the second one changed something")
	}
}

func TestMoveRefusesWhatDoesNotExist(t *testing.T) {
	_, p, c := newWorld(t), newPlane(t), config()
	for _, m := range []map[string]string{{"egress9": "egress1"}, {"egress1": "egress9"}, {"egress1": "egress2"}} {
		if err := p.Move(t.Context(), c, m); err == nil {
			t.Errorf("%v: taken", m)
		}
	}
	if _, err := p.Ensure(t.Context(), c, map[string]string{"egress1": "egress9"}); err == nil {
		t.Error("ensure to egress9: taken")
	}
}

func TestTextIsWhatIsMade(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	text, err := p.Text(t.Context(), c, home(c))
	must(t, err)
	golden(t, "dry-run.txt", text)
	if strings.Contains(w.everything(), "shunt_egress") {
		t.Error("a dry run changed something")
	}
	ensure(t, p, c, home(c))
	made := w.everything()
	must(t, p.Remove(t.Context(), c))

	// What a person types after reading it gives the same, but for the mark of who did it.
	commands, table, _ := strings.Cut(text, "# nft -f\n")
	w.cmd(commands, "sh", "-e")
	w.cmd(table, "nft", "-f", "-")
	plain := strings.NewReplacer(" proto 83", "", " proto boot", "", " dev lo", "", " scope link", "")
	if diff := cmp.Diff(plain.Replace(made), plain.Replace(w.everything())); diff != "" {
		t.Errorf("by hand (-made +typed):\n%s", diff)
	}
}
