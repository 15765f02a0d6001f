package nft

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Whoever reaches a candidate directly, by another way than its answers take, is none of our
// business: this machine sees answers only, and to connection tracking they belong to nothing.
func TestAnswersThatComeAloneToADirectClientPass(t *testing.T) {
	w := newWorld(t)
	w.client.do(func() { // a way from the client to the first candidate that leads past the router
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "by0"}, PeerName: "by0", PeerNamespace: netlink.NsFd(int(w.one.ns))}))
	})
	for _, s := range []*space{w.client, w.one} {
		s.run("ip link set by0 up")
	}
	w.one.run("ip addr add 10.30.0.1/24 dev by0")
	w.one.run("ip addr add fd30::1/64 dev by0 nodad")
	w.client.run("ip addr add 10.30.0.2/24 dev by0")
	w.client.run("ip addr add fd30::2/64 dev by0 nodad")
	w.client.run("ip route add " + one4 + "/32 via 10.30.0.1 src " + client4)
	w.client.run("ip -6 route add " + one6 + "/128 via fd30::1 src " + client6)
	direct := func(when string) {
		t.Helper()
		for _, a := range []string{one4, one6} {
			network := map[bool]string{true: "tcp4", false: "tcp6"}[a == one4]
			c, err := w.client.dial(network, at(a, actual).String(), time.Second)
			if err != nil {
				t.Errorf("%s: to %s: %v", when, a, err)
				continue
			}
			if err := c.echo("by another way"); err != nil {
				t.Errorf("%s: to %s: %v", when, a, err)
			}
			must(t, c.Close())
		}
	}
	direct("without a table")
	apply(t, w.local(), led(one4, one6, 1))
	direct("with the address")
	w.answers(w.client, "one", client4, client6)
	w.yield()
	direct("without the address")
	if n := w.dropped("forward"); n != 0 {
		t.Errorf("%d packets dropped", n)
	}
}
