package lane

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watch collects what the kernel tells about one interface: its going down, a new index,
// and routes of the lane's table that go.
func watch(t *testing.T, name string) (seen func() []string) {
	t.Helper()
	k, err := findLink(name)
	if err != nil {
		t.Fatal(err)
	}
	links, routes, done := make(chan netlink.LinkUpdate, 1024), make(chan netlink.RouteUpdate, 1024), make(chan struct{})
	if err := netlink.LinkSubscribe(links, done); err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(done) })
	var out []string
	return func() []string {
		for {
			select {
			case u := <-links:
				a := u.Attrs()
				switch {
				case a.Name != name:
				case u.Header.Type == unix.RTM_DELLINK:
					out = append(out, "interface deleted")
				case a.Index != k.index:
					out = append(out, fmt.Sprintf("index %d, was %d", a.Index, k.index))
				case u.Flags&unix.IFF_UP == 0:
					out = append(out, "link down")
				}
			case u := <-routes:
				if u.Type == unix.RTM_DELROUTE && u.Table == 202 {
					out = append(out, "route gone: "+u.String())
				}
			case <-time.After(50 * time.Millisecond): // the kernel told all of it before
				return slices.Clone(out)
			}
		}
	}
}

func tables(t *testing.T) string {
	t.Helper()
	return sh(t, "ip route show table 202; ip -6 route show table 202")
}

func TestTwentySwapsWithoutAFlap(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	profiles := []struct {
		path string
		srv  *server
	}{
		{a.profileFor(t, "client", "10.66.0.2").write(t), a},
		{b.profileFor(t, "client", "10.66.0.2").write(t), b}, // make-before-break
		{func() string { // another key and address, both in one /24
			c := a.profileFor(t, "other", "10.66.1.3")
			c.addresses, c.mtu = "10.66.1.3/24", 1300
			return c.write(t)
		}(), a},
		{func() string {
			c := b.profileFor(t, "third", "10.66.1.4")
			c.addresses, c.mtu = "10.66.1.4/24, fd00::4/128", 1400
			return c.write(t)
		}(), b},
	}
	l := serveLane(t, "vpn1", profiles[0].path, 0)
	sh(t, "ip -6 route add default dev vpn1 table 202")
	d := testDevices(t)
	f := startFlow(t, 2*time.Millisecond)
	f.flows(a)
	clear, routes := inClear(t), tables(t)
	seen := watch(t, "vpn1")
	for i := 1; i <= 20; i++ {
		from, to := profiles[(i-1)%4], profiles[i%4]
		r, err := d.Swap(t.Context(), l, from.path, to.path)
		if err != nil {
			t.Fatalf("swap %d: %v", i, err)
		}
		f.flows(to.srv)
		settledAlready(t, d, l, to.path)
		if got := tables(t); got != routes { // a link that flushes its routes tells nobody
			t.Fatalf("swap %d: routes:\nwant %s\ngot  %s", i, routes, got)
		}
		t.Logf("swap %d: %s, handshake %s, took %s", i, r.Method, r.Handshake, r.Took)
	}
	if got := seen(); len(got) != 0 {
		t.Errorf("events: %v", got)
	}
	if got := inClear(t); got != clear {
		t.Errorf("in clear %s, before %s", got, clear)
	}
}

// The watcher itself must be able to see what it is there for.
func TestWatchSeesAFlap(t *testing.T) {
	needWorld(t)
	serveLane(t, "vpn1", "", 0)
	seen := watch(t, "vpn1")
	sh(t, "ip route del default dev vpn1 table 202; ip link set vpn1 down; ip link set vpn1 up")
	got := seen()
	if !slices.Contains(got, "link down") || !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "route gone") }) {
		t.Errorf("events: %v, want a lost route and a down", got)
	}
}
