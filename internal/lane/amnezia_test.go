package lane

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

func versions() []string { return []string{"1.0", "1.5", "2.0", "3.0", "3.1"} }

// recorded are the lines of a profile of one generation, as the reference implementation
// was run with; "" gives none.
func recorded(t testing.TB, version string) string {
	t.Helper()
	if version == "" {
		return ""
	}
	b, err := os.ReadFile(filepath.Join("..", "amnezia", "testdata", version+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Conf map[string]string }
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, k := range slices.Sorted(maps.Keys(r.Conf)) {
		fmt.Fprintf(&out, "%s = %s\n", k, r.Conf[k])
	}
	return out.String()
}

func paramsOf(t testing.TB, version string) amnezia.Params {
	t.Helper()
	var p profile.Profile
	for line := range strings.Lines(recorded(t, version)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " = ")
		p.Obfuscation = append(p.Obfuscation, profile.KeyValue{Key: k, Value: v})
	}
	out, err := amnezia.FromProfile(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// hidden is a server that speaks a generation, and the profile of a client of its.
func hidden(t testing.TB, name, version, client, addr string) (*server, confOf) {
	t.Helper()
	private := testKey(name)
	bind, err := amnezia.Wrap(conn.NewDefaultBind(), paramsOf(t, version), amnezia.Options{
		Self: private.Public(), Peers: []profile.Key{testKey(client).Public()}, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newServerBehind(t, name, bind)
	c := s.profileFor(t, client, addr)
	c.extra = recorded(t, version)
	return s, c
}

// serveHidden is serveLane for a lane of driver amneziawg.
func serveHidden(tb testing.TB, name, conf string) egress.Lane {
	tb.Helper()
	startService(tb, ServeOptions{Interface: name, ConfigPath: conf, AmneziaWG: true, Now: time.Now, Logf: tb.Logf})
	sh(tb, "ip route replace default dev %s table 202", name)
	return egress.Lane{Name: "lane-" + name, Interface: name, Driver: egress.DriverAmneziaWG}
}

// parameters are what the device speaks, as anybody reads it.
func (d *Devices) parameters(t testing.TB, l egress.Lane) amnezia.Params {
	t.Helper()
	_, p, err := d.readDevice(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestALaneIsSwappedBetweenGenerations(t *testing.T) {
	needWorld(t)
	plain := newServer(t, "server-p", 0)
	pp := plain.profileFor(t, "client", "10.66.0.2").write(t)
	l := serveHidden(t, "vpn1", pp)
	d := testDevices(t)
	f := startFlow(t, 2*time.Millisecond)
	f.flows(plain)
	before := inClear(t)
	last := pp
	for i, v := range append(versions(), "", "3.1", "1.0") { // each, plain again, and from the newest to the oldest
		s, c := hidden(t, fmt.Sprintf("server-%c", 'a'+i), v, "client", "10.66.0.2")
		next := c.write(t)
		r, err := d.Swap(t.Context(), l, last, next)
		if err != nil {
			t.Fatalf("to %q: %v", v, err)
		}
		f.flows(s)
		want := paramsOf(t, v)
		if r.Method != methodInPlace {
			t.Errorf("to %q by %s: two obfuscations cannot be up at once", v, r.Method)
		}
		if got := d.parameters(t, l); !got.Same(want) {
			t.Errorf("the device speaks something else than %q", v)
		}
		k, err := findLink("vpn1")
		if err != nil || k.mtu != DefaultMTU-want.S[3] {
			t.Errorf("%q: mtu %d, want %d (%v)", v, k.mtu, DefaultMTU-want.S[3], err)
		}
		view, err := d.Observe(t.Context(), l)
		if p, ok := view.Active(); err != nil || !ok || p.Handshake.IsZero() || p.Endpoint.String() != s.endpoint() {
			t.Errorf("%q is seen as %+v (%v)", v, view, err)
		}
		last = next
	}
	if got := inClear(t); got != before {
		t.Errorf("packets in clear: %s, before %s", got, before)
	}
}

func TestEqualObfuscationIsMadeBeforeBroken(t *testing.T) {
	needWorld(t)
	for _, v := range versions() {
		a, ca := hidden(t, "server-a", v, "client", "10.66.0.2")
		b, cb := hidden(t, "server-b", v, "client", "10.66.0.2")
		name := "vpn" + strings.ReplaceAll(v, ".", "")
		l := serveHidden(t, name, ca.write(t))
		f := startFlow(t, 5*time.Millisecond)
		f.flows(a)
		r, err := testDevices(t).Swap(t.Context(), l, "", cb.write(t))
		if err != nil || r.Method != methodMakeBeforeBreak {
			t.Fatalf("%s: %q, %v", v, r.Method, err)
		}
		f.flows(b)
	}
}

func TestWrongParametersTouchNothing(t *testing.T) {
	needWorld(t)
	a, ca := hidden(t, "server-a", "2.0", "client", "10.66.0.2")
	pa := ca.write(t)
	l := serveHidden(t, "vpn1", pa)
	d := testDevices(t)
	f := startFlow(t, 5*time.Millisecond)
	f.flows(a)
	ctx, points := pointsOf(t.Context())
	for _, extra := range []string{
		"Jc = 4\nJmin = 70\nJmax = 40\n",
		"S1 = 16\nS2 = 72\n",
		"H1 = 5-9\nH2 = 8-12\n",
		"HeaderProtectionKey = " + testKey("h").Base64() + "\n",
		"J1 = <b 0x01>\nH1 = 5-9\n",
	} {
		c := ca
		c.extra = extra
		if _, err := d.Swap(ctx, l, pa, c.write(t)); err == nil || strings.Contains(err.Error(), "put back") {
			t.Errorf("%q: %v", extra, err)
		}
	}
	if got := points(); len(got) > 0 {
		t.Errorf("changes: %v", got)
	}
	// Parameters that are right in themselves and not the server's: refused by silence.
	c := ca
	c.extra = recorded(t, "3.1")
	if _, err := d.Swap(ctx, l, pa, c.write(t)); err == nil || !strings.Contains(err.Error(), "put back") {
		t.Errorf("another generation's parameters: %v", err)
	}
	if !d.parameters(t, l).Same(paramsOf(t, "2.0")) {
		t.Error("the lane did not get its parameters back")
	}
	f.flows(a)
}

func TestSettleGivesALaneItsParameters(t *testing.T) {
	needWorld(t)
	a, ca := hidden(t, "server-a", "3.1", "client", "10.66.0.2")
	pa := ca.write(t)
	l := serveHidden(t, "vpn1", "")
	d := testDevices(t)
	f := startFlow(t, 5*time.Millisecond)
	if err := d.Settle(t.Context(), l, pa, false); err != nil {
		t.Fatal(err)
	}
	f.flows(a)
	ctx, points := pointsOf(t.Context())
	if err := d.Settle(ctx, l, pa, false); err != nil || len(points()) > 0 {
		t.Errorf("a second time: %v, %v", points(), err)
	}
	// Somebody else's hand: the device is plain all of a sudden.
	if _, err := (&uapi{path: socketDir + "/vpn1.sock", limit: time.Second}).call("set=1\nh1=1\nh2=2\nh3=3\nh4=4\n\n"); err != nil {
		t.Fatal(err)
	}
	if err := d.Settle(t.Context(), l, pa, false); err != nil {
		t.Fatal(err)
	}
	f.flows(a)
}

func TestADeviceOfPlainWireGuardTakesNoParameters(t *testing.T) {
	needWorld(t)
	_, ca := hidden(t, "server-a", "1.0", "client", "10.66.0.2")
	b := newServer(t, "server-b", 0)
	l := serveLane(t, "vpn1", b.profileFor(t, "client", "10.66.0.2").write(t), 0)
	f := startFlow(t, 5*time.Millisecond)
	f.flows(b)
	was := listing(t, "vpn1")
	l.Driver = egress.DriverAmneziaWG
	_, err := testDevices(t).Swap(t.Context(), l, "", ca.write(t))
	if err == nil || !strings.Contains(err.Error(), "takes no parameters of AmneziaWG") {
		t.Errorf("error %v", err)
	}
	f.flows(b)
	if got := listing(t, "vpn1"); got != was {
		t.Errorf("lane changed:\nwas %s\ngot %s", was, got)
	}
}

func TestALaneWithoutADeviceIsSeenAsSuch(t *testing.T) {
	needWorld(t)
	_, ca := hidden(t, "server-a", "1.0", "client", "10.66.0.2")
	sh(t, "ip link add nodev type veth peer name nodev1")
	t.Cleanup(func() { sh(t, "ip link del nodev") })
	l := egress.Lane{Name: "x", Interface: "nodev", Driver: egress.DriverAmneziaWG}
	if _, err := testDevices(t).Swap(t.Context(), l, "", ca.write(t)); !errors.Is(err, ErrNoDevice) {
		t.Errorf("error %v", err)
	}
}

func TestWhatADeviceSaysIsRead(t *testing.T) {
	// As amneziawg-go of 3.0 says it.
	text := "private_key=" + testKey("c").Hex() + "\nlisten_port=51820\nfwmark=153\njc=4\njmin=40\njmax=70\ns1=15\nh1=5-9\n" +
		"public_key=" + testKey("s").Public().Hex() + "\npreshared_key=" + testKey("p").Hex() + "\nprotocol_version=1\nendpoint=[2001:db8::1]:51820\n" +
		"last_handshake_time_sec=1700000000\nlast_handshake_time_nsec=5\ntx_bytes=7\nrx_bytes=9\npersistent_keepalive_interval=22-30\nallowed_ip=0.0.0.0/0\nallowed_ip=::/0\n"
	dev, err := parseDevice(text)
	if err != nil {
		t.Fatal(err)
	}
	p := dev.Peers[0]
	got := []any{
		dev.ListenPort, dev.FirewallMark, p.Endpoint.String(), p.LastHandshakeTime.Unix(), p.TransmitBytes, p.ReceiveBytes,
		p.PersistentKeepaliveInterval, len(p.AllowedIPs), profile.Key(p.PresharedKey) == testKey("p"),
	}
	want := []any{51820, 153, "[2001:db8::1]:51820", int64(1700000000), int64(7), int64(9), 22 * time.Second, 2, true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	params, err := amnezia.ParseControl(text)
	if err != nil || params.Jc != 4 || params.S[0] != 15 || params.H[0] != (amnezia.Range{Lo: 5, Hi: 9}) {
		t.Errorf("%+v, %v", params, err)
	}
	_, err = parseDevice("private_key=nonsense-" + testKey("c").Hex() + "\n")
	if err == nil {
		t.Error("nonsense is taken")
	}
	keyless(t, err, testKey("c"))
}

func FuzzParseDevice(f *testing.F) {
	f.Add("private_key=00\npublic_key=01\nendpoint=1.2.3.4:5\nallowed_ip=10.0.0.0/8\n")
	f.Add("jc=4\nh1=1-2\n=\n")
	f.Fuzz(func(t *testing.T, text string) {
		dev, err := parseDevice(text)
		if (dev == nil) == (err == nil) {
			t.Errorf("%v and %v", dev, err)
		}
	})
}

func TestTheStrippedFileHoldsTheWholeSet(t *testing.T) {
	c := confOf{client: "client", addresses: "10.66.0.2/32", server: testKey("s"), endpoint: "198.51.100.7:51820", keepalive: 25}
	hiddenConf := c
	hiddenConf.extra = "Jc = 4\nJmin = 40\nJmax = 70\nS1 = 15\nS2 = 18\nH1 = 5-9\nI1 = <r 8>\nRandomTrailers = on\n"
	l := egress.Lane{Name: "one", Interface: "not-there", Driver: egress.DriverCommands, Commands: egress.Commands{Template: TemplateAWGQuick}}
	peer := "\n[Peer]\nPublicKey = " + testKey("s").Public().Base64() + "\nEndpoint = 198.51.100.7:51820\nAllowedIPs = 0.0.0.0/0, ::/0\nPersistentKeepalive = 25\n"
	late := "ContentPaddingAddition = 0\nRekeyAfterTime = 0\nRekeyTimeout = 0\nRejectAfterTime = 0\nKeepaliveTimeout = 0\nMaxHandshakeAttempts = 0\n"
	zero := "HeaderProtectionKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
	for _, tt := range []struct {
		name string
		conf confOf
		was  amnezia.Params
		want string
	}{
		{
			"a profile of 3.1 on a plain device", hiddenConf,
			amnezia.Params{},
			"Jc = 4\nJmin = 40\nJmax = 70\nS1 = 15\nS2 = 18\nS3 = 0\nS4 = 0\nH1 = 5-9\nH2 = 2\nH3 = 3\nH4 = 4\nI1 = <r 8>\n" + zero + late + "RandomTrailers = on\nDisableCookies = off\n",
		},
		{
			"a plain profile after 1.0", c, paramsOf(t, "1.0"),
			"Jc = 1\nJmin = 8\nJmax = 8\nS1 = 0\nS2 = 0\nH1 = 1\nH2 = 2\nH3 = 3\nH4 = 4\n",
		},
		{
			"a plain profile after 3.1", c, paramsOf(t, "3.1"),
			"Jc = 1\nJmin = 8\nJmax = 8\nS1 = 0\nS2 = 0\nS3 = 0\nS4 = 0\nH1 = 1\nH2 = 2\nH3 = 3\nH4 = 4\n" + zero + late + "RandomTrailers = off\nDisableCookies = off\n",
		},
	} {
		p, err := profile.ParseFile(tt.conf.write(t))
		if err != nil {
			t.Fatal(err)
		}
		target, err := newTarget(p, l)
		if err != nil {
			t.Fatal(err)
		}
		j := &job{l: l, t: target, dev: new(wgtypes.Device), snap: snapshot{params: tt.was}}
		want := "[Interface]\n" + tt.want + "PrivateKey = " + testKey("client").Base64() + "\n" + peer
		if diff := cmp.Diff(want, string(j.strip(p, nil, true))); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
		if _, err := profile.Parse("x", strings.NewReader(want)); err != nil {
			t.Errorf("%s: it does not read back: %v", tt.name, err)
		}
	}
	l.Commands.Template = TemplateWGQuick
	if _, err := newTarget(func() profile.Profile { p, _ := profile.ParseFile(hiddenConf.write(t)); return p }(), l); err == nil {
		t.Error("wg-quick carries AmneziaWG")
	}
}
