package amnezia

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/profile"
)

func TestTheControlSocketsLinesComeBack(t *testing.T) {
	for _, r := range recordings(t) {
		p := r.params(t)
		lines, err := p.UAPI(V31)
		if err != nil {
			t.Fatal(err)
		}
		// Whatever was there before, the full set leaves nothing of it.
		before := Params{
			Jc: 9, Jmin: 1, Jmax: 2, S: [4]int{90, 91, 92, 93}, H: [4]Range{{5, 6}, {7, 8}, {9, 10}, {11, 12}}, HeaderKey: profile.Key{7},
			ContentPadding: Range{1, 2}, RekeyTimeout: Range{1, 2}, Trailers: true, NoCookies: true,
		}
		for i := range before.I {
			if before.I[i], err = ParsePacket("<r 7>"); err != nil {
				t.Fatal(err)
			}
		}
		c := newCodec(t, before, profile.Key{})
		rest, err := c.Configure(strings.Join(lines, "\n") + "\n")
		if err != nil || rest != "" {
			t.Fatalf("%s: %q is left, %v", r.name, rest, err)
		}
		again, err := c.Params().UAPI(V31)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(lines, again); d != "" {
			t.Errorf("%s: (-want +got)\n%s", r.name, d)
		}
	}
}

func TestADeviceIsConfiguredThroughTheWrap(t *testing.T) {
	p := generations(t)["3.1"]
	lines, err := p.UAPI(V31)
	if err != nil {
		t.Fatal(err)
	}
	n := newNetwork()
	client, server := privateKey("client"), privateKey("server")
	b, err := Wrap(n.bind(t, "client", 1), Params{}, Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	there := newWrapped(t, "server", "10.0.0.2", n.bind(t, "server", 1), p, nil)
	there.AddPeer(client.Public())
	e := newEnd(t, "client", "10.0.0.1", client, b)
	old := privateKey("old").Public()
	b.AddPeer(old)
	rest, err := b.Configure(strings.Join(lines, "\n") + "\nprivate_key=" + client.Hex() + "\nreplace_peers=true\npublic_key=" + server.Public().Hex() +
		"\nendpoint=server\npersistent_keepalive_interval=22-30\nallowed_ip=10.0.0.2/32\n")
	if err != nil {
		t.Fatal(err)
	}
	want := "private_key=" + client.Hex() + "\nreplace_peers=true\npublic_key=" + server.Public().Hex() +
		"\nendpoint=server\npersistent_keepalive_interval=22\nallowed_ip=10.0.0.2/32\n"
	if rest != want {
		t.Errorf("the device gets\n%s", rest)
	}
	if b.peers[old] != nil || b.peers[server.Public()] == nil {
		t.Error("the peers were not replaced")
	}
	there.join(e, "", profile.Key{})
	e.set(rest)
	e.sends(there.end, 1300, 1)
	there.sends(e, 1300, 2)
	nothingPlain(t, wrapped{e, b}, there, n)
	if _, err := b.Configure("public_key=" + server.Public().Hex() + "\nremove=true\n"); err != nil || b.peers[server.Public()] != nil {
		t.Errorf("a removed peer is still there: %v", err)
	}
}

func TestAWrongSetOperationChangesNothing(t *testing.T) {
	c := newCodec(t, generations(t)["2.0"], profile.Key{}, privateKey("old").Public())
	before := c.Params()
	for _, set := range []string{
		"jc=5\njmin=9\njmax=8\npublic_key=" + strings.Repeat("ab", 32) + "\n",
		"jc=5\nh1=x\n",
		"jc=5\nheader_protection_key=abc\n",
		"jc=5\nprivate_key=abc\n",
		"jc=5\nreplace_peers=true\npublic_key=zz\n",
		"s4=70000\n",
		"i1=<q>\n",
	} {
		if rest, err := c.Configure(set); err == nil || rest != "" {
			t.Errorf("%q: %q", set, rest)
		}
		if d := cmp.Diff(before, c.Params(), cmp.AllowUnexported(Packet{}, tag{})); d != "" || len(c.peers) != 1 {
			t.Errorf("%q: changed\n%s", set, d)
		}
	}
	for _, k := range []string{"s5", "i6", "j4", "h0", "jd", "endpoint", "fwmark", "zz"} {
		if ours(k) {
			t.Errorf("%s is taken for AmneziaWG's", k)
		}
	}
}
