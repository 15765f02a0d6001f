package lane

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

func TestProfilesThatNoLaneCanCarry(t *testing.T) {
	good := confOf{client: "client", addresses: "10.66.0.2/32", server: testKey("server"), endpoint: "198.51.100.7:51820"}
	text := readFile(t, good.write(t))
	for _, tc := range []struct{ name, old, new, want string }{
		{"as it is", "", "", ""},
		{"v6 endpoint", "198.51.100.7:51820", "[2001:db8::7]:51820", ""},
		{"host name", "198.51.100.7:51820", "vpn.example.net:51820", "not a literal address"},
		{"port 0", ":51820", ":0", "port 0"},
		{"no endpoint", "Endpoint = 198.51.100.7:51820\n", "", "no endpoint"},
		{"no address", "Address = 10.66.0.2/32\n", "", "no address"},
		{"no allowed prefixes", "AllowedIPs = 0.0.0.0/0, ::/0\n", "", "carries nothing"},
		{"two peers", "[Peer]", "[Peer]\nPublicKey = " + testKey("second").Base64() + "\n[Peer]", "2 peers"},
		{"own key as the server's", good.server.Public().Base64(), testKey("client").Public().Base64(), "own"},
		{"obfuscated", "[Peer]", "Jc = 4\nJmin = 40\nJmax = 70\n[Peer]", `driver "wireguard" cannot carry it`},
		{"mtu too small for anything", "[Peer]", "MTU = 500\n[Peer]", "want 576 to 65535"},
		{"mtu too small for its v6 address", "10.66.0.2/32", "10.66.0.2/32, fd00::2/128\nMTU = 1279", "below 1280"},
		{"unknown key", "[Peer]", "Banana = 4\n[Peer]", "Banana"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.conf")
			if err := os.WriteFile(path, []byte(strings.Replace(text, tc.old, tc.new, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := load(path, egress.Lane{Driver: egress.DriverWireGuard})
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want the file and %q", err, tc.want)
			}
			// Validated before anything is touched: no device is asked for.
			l := egress.Lane{Name: "x", Interface: "does-not-exist", Driver: egress.DriverWireGuard}
			if _, err := testDevices(t).Swap(context.Background(), l, "", path); errors.Is(err, ErrNoDevice) || err == nil {
				t.Errorf("swap: %v", err)
			}
		})
	}
}

func TestUnknownDriver(t *testing.T) {
	d := New(Options{Now: time.Now})
	l := egress.Lane{Name: "two", Driver: "pigeon"}
	_, errO := d.Observe(t.Context(), l)
	_, errS := d.Swap(t.Context(), l, "", "")
	for _, err := range []error{errO, errS, d.Settle(t.Context(), l, "", false)} {
		if err == nil || !strings.Contains(err.Error(), `lane two: unknown driver "pigeon"`) {
			t.Errorf("error %v", err)
		}
	}
}

// set is what a device does with a config: the model of the property below.
func set(dev *wgtypes.Device, cfg wgtypes.Config) {
	if cfg.PrivateKey != nil {
		dev.PrivateKey = *cfg.PrivateKey
	}
	if cfg.ListenPort != nil {
		dev.ListenPort = *cfg.ListenPort
	}
	if cfg.ReplacePeers {
		dev.Peers = nil
	}
	for _, p := range cfg.Peers {
		i := slices.IndexFunc(dev.Peers, func(q wgtypes.Peer) bool { return q.PublicKey == p.PublicKey })
		switch {
		case p.Remove && i >= 0:
			dev.Peers = slices.Delete(dev.Peers, i, i+1)
			continue
		case p.Remove, p.UpdateOnly && i < 0:
			continue
		case i < 0:
			dev.Peers = append(dev.Peers, wgtypes.Peer{PublicKey: p.PublicKey})
			i = len(dev.Peers) - 1
		}
		q := &dev.Peers[i]
		if p.PresharedKey != nil {
			q.PresharedKey = *p.PresharedKey
		}
		if p.Endpoint != nil {
			q.Endpoint = p.Endpoint
		}
		if p.PersistentKeepaliveInterval != nil {
			q.PersistentKeepaliveInterval = *p.PersistentKeepaliveInterval
		}
		if p.ReplaceAllowedIPs {
			q.AllowedIPs = nil
		}
		for _, n := range p.AllowedIPs { // one prefix belongs to one peer
			for j := range dev.Peers {
				dev.Peers[j].AllowedIPs = slices.DeleteFunc(dev.Peers[j].AllowedIPs, func(m net.IPNet) bool { return m.String() == n.String() })
			}
			q = &dev.Peers[i]
			q.AllowedIPs = append(q.AllowedIPs, n)
		}
	}
}

func drawTarget(t *rapid.T, keys []profile.Key) target {
	all := masked([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"), netip.MustParsePrefix("10.0.0.0/8")})
	return target{
		key: clamped(rapid.SampledFrom(keys).Draw(t, "key")), server: wgtypes.Key(rapid.SampledFrom(keys).Draw(t, "server")),
		preshared: wgtypes.Key(rapid.SampledFrom(append(keys, profile.Key{})).Draw(t, "psk")),
		endpoint:  rapid.SampledFrom([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("[2001:db8::1]:2")}).Draw(t, "endpoint"),
		allowed:   all[:rapid.IntRange(1, 3).Draw(t, "allowed")],
		keepalive: rapid.SampledFrom([]time.Duration{0, 25 * time.Second}).Draw(t, "keepalive"),
		port:      rapid.SampledFrom([]int{0, 1000}).Draw(t, "port"),
	}
}

// Whatever a device holds, its differences make it hold the target alone, and then there
// are none.
func TestDifferencesLeadToTheTarget(t *testing.T) {
	keys := []profile.Key{testKey("1"), testKey("2"), testKey("3")}
	rapid.Check(t, func(t *rapid.T) {
		dev := &wgtypes.Device{PrivateKey: clamped(rapid.SampledFrom(keys).Draw(t, "device")), ListenPort: 7}
		for range rapid.IntRange(0, 3).Draw(t, "peers") {
			set(dev, wgtypes.Config{Peers: []wgtypes.PeerConfig{drawTarget(t, keys).full()}})
		}
		want, renew := drawTarget(t, keys), rapid.Bool().Draw(t, "renew")
		cfg, differs, fresh := want.differences(dev, renew)
		if !differs && (cfg.PrivateKey != nil || len(cfg.Peers) > 0) || renew && !fresh {
			t.Fatalf("differs %v, fresh %v: %+v", differs, fresh, cfg)
		}
		set(dev, cfg)
		if fresh {
			set(dev, wgtypes.Config{Peers: []wgtypes.PeerConfig{want.calm()}})
		}
		if len(dev.Peers) != 1 || dev.PrivateKey != want.key || want.port != 0 && dev.ListenPort != want.port {
			t.Fatalf("device %+v", dev)
		}
		p := dev.Peers[0]
		if p.PublicKey != want.server || p.PresharedKey != want.preshared || endpointOf(p) != want.endpoint ||
			p.PersistentKeepaliveInterval != want.keepalive || !slices.Equal(prefixes(p.AllowedIPs), want.allowed) {
			t.Fatalf("peer %+v, want %+v", p, want)
		}
		if cfg, differs, _ := want.differences(dev, false); differs {
			t.Fatalf("still differs: %+v", cfg)
		}
	})
}

// The stripped form parses, and holds all that belongs to the tunnel and nothing that runs.
func TestStripKeepsTheTunnelAndNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := profile.Profile{
			PrivateKey: testKey("client"), Addresses: []netip.Prefix{netip.MustParsePrefix("10.66.0.2/32")},
			DNS: []string{"10.0.0.1"}, MTU: rapid.SampledFrom([]int{0, 1300}).Draw(t, "mtu"),
			ListenPort: rapid.SampledFrom([]int{0, 1234}).Draw(t, "port"),
			Extra:      []profile.KeyValue{{Key: "PostUp", Value: "rm -rf /"}, {Key: "Table", Value: "off"}},
			Peers: []profile.Peer{{
				PublicKey: testKey("server").Public(), PresharedKey: rapid.SampledFrom([]profile.Key{{}, testKey("psk")}).Draw(t, "psk"),
				Endpoint:   rapid.SampledFrom([]string{"192.0.2.1:1", "[2001:db8::1]:2"}).Draw(t, "endpoint"),
				AllowedIPs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
				Keepalive:  time.Duration(rapid.IntRange(0, 65535).Draw(t, "keepalive")) * time.Second,
			}},
		}
		if rapid.Bool().Draw(t, "mark") {
			p.Extra = append(p.Extra, profile.KeyValue{Key: "FwMark", Value: "0x99"})
		}
		live := &wgtypes.Device{ListenPort: 7777, FirewallMark: 5}
		got, err := profile.Parse("stripped", bytes.NewReader(strip(p, live, true)))
		if err != nil {
			t.Fatal(err)
		}
		want := profile.Profile{PrivateKey: p.PrivateKey, ListenPort: p.ListenPort, Peers: p.Peers, Extra: []profile.KeyValue{{Key: "FwMark", Value: "5"}}}
		if v, ok := extra(p, "FwMark"); ok {
			want.Extra[0].Value = v
		}
		if want.ListenPort == 0 {
			want.ListenPort = live.ListenPort
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func TestResolve(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    egress.Commands
		want egress.Commands
		err  string
	}{
		{"nothing", egress.Commands{}, egress.Commands{}, "want apply, or both up and down"},
		{"up alone", egress.Commands{Up: []string{"u"}}, egress.Commands{}, "want apply, or both up and down"},
		{"unknown template", egress.Commands{Template: "netplan"}, egress.Commands{}, `unknown template "netplan"`},
		{"file used and not set", egress.Commands{Apply: []string{"a", "x={installed}"}}, egress.Commands{}, "installed is not set"},
		{"own apply", egress.Commands{Apply: []string{"a"}, Timeout: time.Second}, egress.Commands{Apply: []string{"a"}, Timeout: time.Second}, ""},
		{
			"own file",
			egress.Commands{Apply: []string{"a", "{installed}"}, Installed: "/x/{lane}-{interface}"},
			egress.Commands{Apply: []string{"a", "{installed}"}, Installed: "/x/two-vpn2"},
			"",
		},
		{"wg-quick with an own up", egress.Commands{Template: "wg-quick", Up: []string{"mine"}}, egress.Commands{
			Template: "wg-quick", Installed: "/etc/wireguard/vpn2.conf", Apply: []string{"wg", "syncconf", "{interface}", "{stripped}"},
			Up: []string{"mine"}, Down: []string{"wg-quick", "down", "{interface}"},
		}, ""},
		{"ifupdown", egress.Commands{Template: "ifupdown"}, egress.Commands{
			Template: "ifupdown", Installed: "/etc/wireguard/vpn2.conf", Apply: []string{"wg", "syncconf", "{interface}", "{stripped}"},
			Up: []string{"ifup", "{interface}"}, Down: []string{"ifdown", "{interface}"},
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Resolve(egress.Lane{Name: "two", Interface: "vpn2", Commands: tc.c})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
