package probe

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Identifiers are 16 bits by chance, and the kernel remembers each for 30 s: five lanes that
// are pinged each second meet one that another lane had every minute or two. A strict check,
// in which no ping may be lost, must not fail for that.
func TestAnIdentifierThatAnotherLaneHad(t *testing.T) {
	const id, shared, far = 4711, "10.99.0.1/32", "203.0.113.99/32"
	source, target := netip.MustParsePrefix(shared).Addr(), netip.MustParsePrefix(far).Addr()
	for i, name := range []string{"lane-a", "lane-b"} {
		w := newWorld(t, name, 31+i)
		list, err := netlink.AddrList(w.link, netlink.FAMILY_V4)
		must(t, err)
		for _, a := range list { // as tunnels of one provider key have it
			must(t, netlink.AddrDel(w.link, &a))
		}
		address(t, netlink.AddrAdd, w.link, shared)
		peer, err := w.far.LinkByName("far")
		must(t, err)
		lo, err := w.far.LinkByName("lo")
		must(t, err)
		address(t, w.far.AddrAdd, lo, far)
		back, err := netlink.ParseIPNet(shared)
		must(t, err)
		must(t, w.far.RouteAdd(&netlink.Route{LinkIndex: peer.Attrs().Index, Dst: back, Scope: netlink.SCOPE_LINK}))
		must(t, netlink.NeighSet(neighbour(w.link, target, peer)))
		must(t, w.far.NeighSet(neighbour(peer, source, w.link)))
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table ip translate {\n chain c {\n  type nat hook postrouting priority srcnat\n  oifname \"lane-*\" masquerade\n }\n}\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("nft", "delete table ip translate").Run() })
	for turn, name := range []string{"lane-a", "lane-b", "lane-b", "lane-a"} {
		v := volley{iface: name, targets: []netip.Addr{target}, n: 3, need: 3, gap: time.Millisecond, wait: 300 * time.Millisecond, payload: ordinaryPayload, id: id}
		if o := ping(t.Context(), v); !o.pass || o.sent != 3 {
			t.Errorf("turn %d, %s: %d sent, %d answered, %v", turn, name, o.sent, o.got, o.err)
		}
	}
}
