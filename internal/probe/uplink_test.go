package probe

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/shunt-net/shunt/internal/egress"
)

func TestUplink(t *testing.T) {
	other := netip.MustParseAddr("198.51.100.9")
	cases := []struct {
		name    string
		conf    egress.UplinkConfig
		lanes   []string
		prepare func(up, lane *world)
		want    func(up, lane *world) egress.UplinkView
		err     string
		most    time.Duration
	}{
		{
			name: "up", prepare: func(up, _ *world) { up.route("0.0.0.0/0", 0) },
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Gateway: up.gate, GatewayOK: true, Targets: map[string]bool{up.host.String(): true}}
			},
			most: 450 * time.Millisecond,
		},
		{
			name: "the cheapest default route counts, and lanes do not", lanes: []string{"lane0"},
			prepare: func(up, lane *world) { up.route("0.0.0.0/0", 100); lane.route("0.0.0.0/0", 10) },
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Gateway: up.gate, GatewayOK: true, Targets: map[string]bool{up.host.String(): true}}
			},
		},
		{
			name: "the interface is given and another has the default route", conf: egress.UplinkConfig{Interface: "lane0"},
			prepare: func(up, lane *world) { up.route("0.0.0.0/0", 10); lane.route("0.0.0.0/0", 100) },
			want: func(up, lane *world) egress.UplinkView {
				return egress.UplinkView{Interface: "lane0", Gateway: lane.gate, GatewayOK: true, Targets: map[string]bool{up.host.String(): false}}
			},
		},
		{
			name: "a given gateway needs no route", conf: egress.UplinkConfig{Interface: "wan0", Gateway: "203.0.113.1"}, prepare: func(_, _ *world) {},
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Gateway: up.host, GatewayOK: true, Targets: map[string]bool{up.host.String(): true}}
			},
		},
		{
			name: "the gateway ignores pings and a target answers", prepare: func(up, _ *world) {
				up.route("0.0.0.0/0", 0)
				up.drop("ip daddr " + up.gate.String() + " meta l4proto icmp")
			},
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Gateway: up.gate, Targets: map[string]bool{up.host.String(): true}}
			},
		},
		{
			name: "the provider is gone behind a gateway that answers", conf: egress.UplinkConfig{Targets: []netip.Addr{other}},
			prepare: func(up, _ *world) { up.route("0.0.0.0/0", 0) },
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Gateway: up.gate, GatewayOK: true, Targets: map[string]bool{other.String(): false}}
			},
			most: 900 * time.Millisecond,
		},
		{
			name: "nothing answers", prepare: func(up, _ *world) { up.route("0.0.0.0/0", 0); up.drop("meta l4proto icmp") },
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Gateway: up.gate, Targets: map[string]bool{up.host.String(): false}}
			},
			most: 900 * time.Millisecond,
		},
		{
			name: "the link is down", conf: egress.UplinkConfig{Interface: "wan0"},
			prepare: func(up, _ *world) { up.route("0.0.0.0/0", 0); must(up.t, netlink.LinkSetDown(up.link)) },
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Targets: map[string]bool{up.host.String(): false}}
			},
			err: "uplink wan0: is down", most: 450 * time.Millisecond,
		},
		{
			name: "the cable is cut: the route is still there",
			prepare: func(up, _ *world) {
				up.route("0.0.0.0/0", 0)
				peer, err := up.far.LinkByName("far")
				must(up.t, err)
				must(up.t, up.far.LinkSetDown(peer))
			},
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Targets: map[string]bool{up.host.String(): false}}
			},
			err: "uplink wan0: no carrier", most: 450 * time.Millisecond,
		},
		{
			name: "the interface is gone", conf: egress.UplinkConfig{Interface: "wan9"}, prepare: func(_, _ *world) {},
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan9", Targets: map[string]bool{up.host.String(): false}}
			},
			err: "uplink wan9: Link not found",
		},
		{
			name: "no default route", prepare: func(_, _ *world) {},
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Targets: map[string]bool{up.host.String(): false}}
			},
			err: "uplink: no default route", most: 450 * time.Millisecond,
		},
		{
			name: "a default route only through a lane", lanes: []string{"lane0"}, prepare: func(_, lane *world) { lane.route("0.0.0.0/0", 0) },
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Targets: map[string]bool{up.host.String(): false}}
			},
			err: "uplink: no default route",
		},
		{
			name: "a default route of IPv6 alone",
			prepare: func(up, _ *world) {
				must(up.t, netlink.RouteAdd(&netlink.Route{LinkIndex: up.link.Attrs().Index, Gw: up.v6.AsSlice(), Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}))
			},
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Interface: "wan0", Gateway: up.v6, GatewayOK: true, Targets: map[string]bool{up.host.String(): true}}
			},
		},
		{
			name: "a gateway that is not an address", conf: egress.UplinkConfig{Gateway: "router"}, prepare: func(_, _ *world) {},
			want: func(up, _ *world) egress.UplinkView {
				return egress.UplinkView{Targets: map[string]bool{up.host.String(): false}}
			},
			err: `uplink gateway "router": not an address`,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			up, lane := newWorld(t, "wan0", 1), newWorld(t, "lane0", 2)
			c.prepare(up, lane)
			conf := c.conf
			conf.Timeout = 500 * time.Millisecond
			if conf.Targets == nil {
				conf.Targets = []netip.Addr{up.host}
			}
			begun := time.Now()
			p := New(Options{Lanes: c.lanes})
			got := p.Uplink(t.Context(), conf)
			took := time.Since(begun)
			if c.err == "uplink wan0: no carrier" { // the kernel tells of a carrier a little later
				eventually(t, "no carrier", func() bool { got = p.Uplink(t.Context(), conf); return got.Error != "" })
				took = 0
			}
			if diff := cmp.Diff(c.want(up, lane), got, cmpopts.IgnoreFields(egress.UplinkView{}, "Error"), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if c.err == "" && got.Error != "" || !strings.Contains(got.Error, c.err) {
				t.Errorf("error %q, want one with %q", got.Error, c.err)
			}
			if c.most > 0 && took > c.most {
				t.Errorf("took %s", took)
			}
		})
	}
}
