package plane

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
)

// Lending under load: new flows travel by the lender at once, established ones stay until the
// flush and then go too, at most a packet is lost, and the lender's own users notice nothing.
func TestLendUnderTraffic(t *testing.T) {
	for family, host := range map[string]string{"IPv4": far4, "IPv6": far6} {
		t.Run(family, func(t *testing.T) {
			w, p, c := newWorld(t), newPlane(t), config()
			w.serveAll()
			ensure(t, p, c, home(c))
			leaks := w.sniff("wan0")
			lent, kept := w.flow(host, 32), w.flow(host, 40)
			lent.waitFor(w, 200)

			quiet := w.watch()
			must(t, p.Move(t.Context(), c, map[string]string{"egress1": "egress2"}))
			moved := lent.sent.Load()
			for range 20 {
				if way, _ := w.ask("user", host, 32); way != "vpn2" {
					t.Errorf("a new flow after the move went by %q", way)
				}
			}
			want := []string{
				"add element inet shunt_egress to6_202 { 0x00000201 }", "add element inet shunt_egress to_202 { cs4 }",
				"delete element inet shunt_egress to6_201 { 0x00000201 }", "delete element inet shunt_egress to_201 { cs4 }",
			}
			if diff := cmp.Diff(want, slices.Sorted(slices.Values(quiet()))); diff != "" {
				t.Errorf("change events of the move (-want +got):\n%s", diff)
			}
			lent.waitFor(w, 100)
			before := lent.sent.Load()
			flying := lent.unanswered()
			n, err := p.Flush(t.Context(), c, "egress1", "egress1")
			must(t, err)
			flushed := lent.sent.Load()
			if n != 1 {
				t.Errorf("%d flows deleted, want 1", n)
			}
			lent.waitFor(w, 200)
			lent.end()
			kept.end()

			if ways, lost := w.ways(kept); len(lost)+len(kept.unanswered()) > 0 || !slices.Equal(ways, []string{"vpn2"}) {
				t.Errorf("the lender's own flow: by %v, lost %v, unanswered %v", ways, lost, kept.unanswered())
			}
			ways, lost := w.ways(lent)
			if len(lost) > 1 || !slices.Equal(ways, []string{"vpn1", "vpn2"}) {
				t.Errorf("the lent flow: by %v, lost %v", ways, lost)
			}
			for seq, way := range lent.by {
				if seq <= before && way != "vpn1" {
					t.Errorf("packet %d, before the flush, went by %s (move was after %d)", seq, way, moved)
				}
				if seq > flushed+1 && way != "vpn2" {
					t.Errorf("packet %d, after the flush, went by %s", seq, way)
				}
			}
			// Answers that were on their way when their flow was deleted find no user any more.
			for _, seq := range lent.unanswered() {
				if !slices.Contains(lost, seq) && !slices.Contains(flying, seq) && (seq <= before || seq > flushed+1) {
					t.Errorf("no answer to packet %d, which was not on its way during the flush (%d to %d)", seq, before, flushed)
				}
			}
			t.Logf("%d packets, lost %v, unanswered %v; flush while %d to %d", lent.sent.Load(), lost, lent.unanswered(), before, flushed)
			if got := toFar(leaks()); len(got) > 0 {
				t.Errorf("by the uplink: %s", some(got))
			}
		})
	}
}

// Coming home moves new flows only.
func TestReturnCutsNothing(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.serveAll()
	ensure(t, p, c, map[string]string{"egress1": "egress2", "egress2": "egress2"})
	f := w.flow(far4, 32)
	f.waitFor(w, 100)
	must(t, p.Move(t.Context(), c, map[string]string{"egress1": "egress1"}))
	if way, _ := w.ask("user", far4, 32); way != "vpn1" {
		t.Errorf("a new flow went by %q", way)
	}
	f.waitFor(w, 100)
	f.end()
	if ways, lost := w.ways(f); len(lost)+len(f.unanswered()) > 0 || !slices.Equal(ways, []string{"vpn2"}) {
		t.Errorf("by %v, lost %v, unanswered %v", ways, lost, f.unanswered())
	}
}

// Going direct and coming back under load: old flows stay until the flush, which takes those
// of the class that moved and no other; then they go the new way, and none is left behind.
// Without a leak guard as well: a flow that went direct has its class's mark either way.
func TestDirectAndBackUnderTraffic(t *testing.T) {
	for family, host := range map[string]string{"IPv4": far4, "IPv6": far6} {
		for _, guard := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, guard %v", family, guard), func(t *testing.T) {
				w, p, c := newWorld(t), newPlane(t), config()
				c.Plane.LeakGuard = guard
				w.serveAll()
				ensure(t, p, c, home(c))
				moved, stays, classless := w.flow(host, 32), w.flow(host, 40), w.flow(host, 0)
				classless.waitFor(w, 100)
				for _, leg := range []struct {
					from, to, way string
					flows         int // also the one that asked by which way it goes
				}{{"egress1", Direct, "wan0", 1}, {Direct, "egress1", "vpn1", 2}} {
					must(t, p.Move(t.Context(), c, map[string]string{"egress1": leg.to}))
					if way, _ := w.ask("user", host, 32); way != leg.way {
						t.Errorf("a new flow after the move to %s went by %q", leg.to, way)
					}
					n, err := p.Flush(t.Context(), c, "egress1", leg.from)
					if n != leg.flows || err != nil {
						t.Errorf("from %s: %d flows deleted, %v; want %d", leg.from, n, err, leg.flows)
					}
					w.follows(moved, moved.sent.Load()+2, leg.way)
					if n, err := p.Flush(t.Context(), c, "egress1", leg.from); n != 0 || err != nil {
						t.Errorf("from %s again: %d, %v", leg.from, n, err)
					}
				}
				moved.end()
				if ways, _ := w.ways(moved); !slices.Equal(ways, []string{"vpn1", "wan0", "vpn1"}) {
					t.Errorf("the flow went by %v", ways)
				}
				for f, want := range map[*flow]string{stays: "vpn2", classless: "wan0"} {
					f.end()
					if ways, lost := w.ways(f); !slices.Equal(ways, []string{want}) || len(lost) > 0 {
						t.Errorf("another's flow went by %v and lost %v, want %s", ways, lost, want)
					}
				}
			})
		}
	}
}

// follows wants the next packets of a flow from a number on by one way.
func (w *world) follows(f *flow, from int64, want string) {
	w.tb.Helper()
	f.waitFor(w, 150)
	for seq := from; seq < from+100; seq++ {
		if way, _ := w.arrived.Load(fmt.Sprintf("%d/%d", f.id, seq)); way != want {
			w.tb.Errorf("packet %d, after the flush, went by %v, want %s", seq, way, want)
			return
		}
	}
}

// Whatever breaks, users' packets do not leave by the uplink. The same fault without the
// guard shows that the test would see them.
func TestLeakGuard(t *testing.T) {
	faults := map[string]func(w *world, p *Plane, c egress.Config){
		"interface deleted": func(w *world, _ *Plane, _ egress.Config) { w.ip("link del vpn1") },
		"interface down":    func(w *world, _ *Plane, _ egress.Config) { w.ip("link set vpn1 down") },
		"rules deleted": func(w *world, _ *Plane, _ egress.Config) {
			w.ip("rule del pref 20000 fwmark 0x201/0xfff lookup 201")
			w.ip("-6 rule del pref 20000 fwmark 0x201/0xfff lookup 201")
		},
		"routes flushed": func(w *world, _ *Plane, _ egress.Config) {
			w.ip("route flush table 201")
			w.ip("-6 route flush table 201")
		},
		"no elements": func(w *world, _ *Plane, _ egress.Config) {
			w.nft("flush set inet shunt_egress to_201")
			w.nft("flush set inet shunt_egress to6_201")
		},
		"class closed": func(w *world, p *Plane, c egress.Config) {
			if err := p.Move(w.tb.Context(), c, map[string]string{"egress1": ""}); err != nil {
				w.tb.Error(err)
			}
			if _, err := p.Flush(w.tb.Context(), c, "egress1", "egress1"); err != nil {
				w.tb.Error(err)
			}
		},
		"marking rules gone":   func(w *world, _ *Plane, _ egress.Config) { w.nft("flush chain inet shunt_egress prerouting") },
		"marking of IPv6 gone": func(w *world, _ *Plane, _ egress.Config) { w.nft("flush chain inet shunt_egress users6") },
	}
	for name, fault := range faults {
		for _, guard := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, guard %v", name, guard), func(t *testing.T) {
				w, p, c := newWorld(t), newPlane(t), config()
				c.Plane.LeakGuard = guard
				ensure(t, p, c, home(c))
				w.serveAll()
				leaks := w.sniff("wan0")
				old4, old6 := w.flow(far4, 32), w.flow(far6, 32)
				old4.waitFor(w, 50)
				fault(w, p, c)
				new4, new6 := w.flow(far4, 32), w.flow(far6, 32)
				new6.waitFor(w, 150)
				flows := []*flow{old4, old6, new4, new6}
				sent := int64(0)
				for _, f := range flows {
					f.end()
					sent += f.sent.Load()
				}
				got := toFar(leaks())
				if (len(got) > 0) == guard {
					t.Errorf("of %d by the uplink: %s", sent, some(got))
				}
				t.Logf("%d of %d packets by the uplink", len(got), sent)
			})
		}
	}
}

// A hundred moves and ten loads of the table at a thousand packets per second.
func TestNothingLeaksWhileThingsChange(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.serveAll()
	leaks := w.sniff("wan0")
	f4, f6 := w.flow(far4, 32), w.flow(far6, 32)
	f4.waitFor(w, 20)
	if len(toFar(leaks())) == 0 {
		t.Error("the sniffer sees nothing even before the table is there")
	}
	ensure(t, p, c, nil) // closed
	leaks = w.sniff("wan0")
	for i := range 100 {
		to := []string{"egress1", "egress2", ""}[i%3]
		must(t, p.Move(t.Context(), c, map[string]string{"egress1": to}))
		if i%10 == 0 {
			c.Plane.Bypass = prefixes(fmt.Sprintf("198.51.100.%d/32", i))
			if !ensure(t, p, c, nil) {
				t.Error("the table was not loaded")
			}
		}
		for _, l := range c.Lanes {
			if l.Name != to {
				_, err := p.Flush(t.Context(), c, "egress1", l.Name)
				must(t, err)
			}
		}
		f4.waitFor(w, 3)
	}
	f4.end()
	f6.end()
	if got := toFar(leaks()); len(got) > 0 {
		t.Errorf("of %d by the uplink: %s", f4.sent.Load()+f6.sent.Load(), some(got))
	}
	ways4, _ := w.ways(f4)
	ways6, _ := w.ways(f6)
	if len(ways4) < 50 || len(ways6) < 50 {
		t.Errorf("the flows moved %d and %d times only", len(ways4), len(ways6))
	}
}

func TestWhereTrafficGoes(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.serveAll()
	w.serve("lan", lan4, lan6)
	w.serve("router", "10.1.0.1", "fd00:1::1")
	c.Lanes[1].NAT = egress.NATNone
	c.Plane.Bypass = prefixes("198.51.100.0/24")
	w.in("wan0", func() { w.ip("addr add 198.51.100.1/32 dev eth0") })
	w.serve("wan0", "198.51.100.1")
	w.ip("route add 198.51.100.0/24 via 10.11.2.2")
	ensure(t, p, c, home(c))
	for _, tt := range []struct {
		name, from, host string
		dscp             egress.DSCP
		classes          map[string]string
		way, seen        string
	}{
		{"own lane, masqueraded", "user", far4, 32, nil, "vpn1", "10.11.0.1"},
		{"own lane, IPv6, masqueraded", "user", far6, 32, nil, "vpn1", "2001:db8::1"},
		{"own lane, no nat", "user", far4, 46, nil, "vpn2", userIP4},
		{"own lane, IPv6, no nat", "user", far6, 46, nil, "vpn2", userIP6},
		{"lent", "user", far4, 32, map[string]string{"egress1": "egress2"}, "vpn2", userIP4},
		{"both exchanged", "user", far6, 40, map[string]string{"egress1": "egress2", "egress2": "egress1"}, "vpn1", "2001:db8::1"},
		{"on no lane", "user", far4, 32, map[string]string{"egress1": ""}, "", ""},
		{"direct", "user", far4, 32, map[string]string{"egress1": Direct}, "wan0", userIP4},
		{"direct, IPv6", "user", far6, 32, map[string]string{"egress1": Direct}, "wan0", userIP6},
		{"of no class", "user", far4, 0, nil, "wan0", userIP4},
		{"to a bypassed address", "user", "198.51.100.1", 32, nil, "wan0", userIP4},
		{"to a bypassed address while closed", "user", "198.51.100.1", 32, map[string]string{"egress1": ""}, "wan0", userIP4},
		{"LAN to LAN", "user", lan4, 32, nil, "lan", userIP4},
		{"LAN to LAN, IPv6", "user", lan6, 32, nil, "lan", userIP6},
		{"LAN to LAN while closed", "user", lan4, 32, map[string]string{"egress1": ""}, "lan", userIP4},
		{"to the router", "user", "10.1.0.1", 32, nil, "router", userIP4},
		{"to the router while closed, IPv6", "user", "fd00:1::1", 32, map[string]string{"egress1": ""}, "router", userIP6},
		{"from the router itself", "router", far4, 32, nil, "wan0", "10.11.2.1"},
		{"from the router itself while closed", "router", far6, 32, map[string]string{"egress1": ""}, "wan0", "2001:db8:2::1"},
	} {
		w.run(t, tt.name, func(t *testing.T) {
			classes := home(c)
			maps.Copy(classes, tt.classes)
			ensure(t, p, c, classes)
			way, seen := w.ask(tt.from, tt.host, tt.dscp)
			if way != tt.way || seen != tt.seen {
				t.Errorf("by %q as %q, want by %q as %q", way, seen, tt.way, tt.seen)
			}
		})
	}
	// None of what did not leave by a lane has a mark.
	for _, l := range w.conntrack() {
		if strings.Contains(l, lan4) || strings.Contains(l, lan6) || strings.Contains(l, "dst=10.1.0.1 ") || strings.Contains(l, "198.51.100.1") {
			if !strings.Contains(l, "mark=0 ") {
				t.Errorf("marked: %s", l)
			}
		}
	}
}

// conntrack lists the router's entries.
func (w *world) conntrack() []string {
	w.tb.Helper()
	var out []string
	for _, family := range []string{"ipv4", "ipv6"} {
		for l := range strings.Lines(w.cmd("", "conntrack", "-L", "-f", family)) {
			if strings.Contains(l, "src=") {
				out = append(out, strings.TrimSpace(l))
			}
		}
	}
	return out
}

// Bits of others in the packet's mark and in the flow's mark survive, and ours do not disturb
// each other.
func TestForeignMarkBitsSurvive(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.serveAll()
	w.cmd(`table inet mine {
	counter marked { }
	counter tied { }
	chain early { type filter hook prerouting priority -160; meta mark set 0x70000000; ct mark set ct mark | 0x30000000; }
	chain late { type filter hook postrouting priority 200; oifname "vpn1" meta mark 0x70000201 counter name "marked"; oifname "vpn1" ct mark 0x30001201 counter name "tied"; }
}`, "nft", "-f", "-")
	ensure(t, p, c, home(c))
	for range 3 {
		if way, _ := w.ask("user", far4, 32); way != "vpn1" {
			t.Fatalf("by %q", way)
		}
	}
	for _, name := range []string{"marked", "tied"} {
		if got := w.nft("list counter inet mine " + name); !strings.Contains(got, "packets 3 ") {
			t.Errorf("%s with all bits:\n%s", name, got)
		}
	}
	n, err := p.Flush(t.Context(), c, "egress1", "egress1")
	if n != 3 || err != nil {
		t.Errorf("flushed %d, %v; want 3", n, err)
	}
}
