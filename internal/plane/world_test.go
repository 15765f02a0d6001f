package plane

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/shunt-net/shunt/internal/egress"
)

// The far host that users talk to lives behind each way out, so that whoever answers tells
// by which way the packet came.
const (
	far4, far6 = "203.0.113.1", "2001:db8:f::1"
	userIP4    = "10.1.0.2"
	userIP6    = "fd00:1::2"
	lan4, lan6 = "10.2.0.2", "fd00:2::2"
)

// world is a router in a namespace of its own with users, a second local network, two lanes
// and an uplink around it. The test's goroutine runs in the router.
type world struct {
	tb     testing.TB
	router netns.NsHandle
	ns     map[string]netns.NsHandle

	flows   atomic.Int64
	arrived sync.Map // "flow/number" -> way by which it came
}

// newWorld moves the calling goroutine into a new router for good: its thread ends with it.
func newWorld(tb testing.TB) *world {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root for network namespaces")
	}
	runtime.LockOSThread()
	host, err := netns.Get()
	must(tb, err)
	w := &world{tb: tb, ns: map[string]netns.NsHandle{}}
	w.router, err = netns.New()
	must(tb, err)
	if w.router.Equal(host) {
		tb.Fatal("still in the host's namespace")
	}
	must(tb, host.Close())
	tb.Cleanup(func() {
		_ = w.router.Close()
		for _, h := range w.ns {
			_ = h.Close()
		}
	})
	w.sysctl("net/ipv4/ip_forward", "1")
	w.sysctl("net/ipv6/conf/all/forwarding", "1")
	w.sysctl("net/ipv6/conf/all/accept_dad", "0")
	w.sysctl("net/ipv6/conf/default/accept_dad", "0")
	w.ip("link set lo up")
	w.connect("user", "lan0", "10.1.0.1/24 fd00:1::1/64", userIP4+"/24 "+userIP6+"/64", "10.1.0.1 fd00:1::1")
	w.connect("lan", "lan1", "10.2.0.1/24 fd00:2::1/64", lan4+"/24 "+lan6+"/64", "10.2.0.1 fd00:2::1")
	for i, far := range []string{"vpn1", "vpn2", "wan0"} {
		net4, net6 := fmt.Sprintf("10.11.%d", i), fmt.Sprintf("2001:db8:%d:", i)
		w.connect(far, far, net4+".1/24 "+net6+":1/64", fmt.Sprintf("%s.2/24 %s:2/64 %s/32 %s/128", net4, net6, far4, far6), net4+".1 "+net6+":1")
	}
	w.ip("route add default via 10.11.2.2 dev wan0")
	w.ip("-6 route add default via 2001:db8:2::2 dev wan0")
	return w
}

// connect makes a namespace and a link to it; its interface there is called eth0.
func (w *world) connect(name, iface, ours, theirs, gateways string) {
	w.tb.Helper()
	h, ok := w.ns[name]
	if !ok {
		w.outside(func() {
			var err error
			h, err = netns.New()
			must(w.tb, err)
			w.sysctl("net/ipv6/conf/all/accept_dad", "0")
			w.sysctl("net/ipv6/conf/default/accept_dad", "0")
			w.ip("link set lo up")
		})
		w.ns[name] = h
	}
	must(w.tb, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: iface, MTU: 1420}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(h)), PeerMTU: 1420,
	}))
	up := func(iface, addrs string) {
		for a := range strings.FieldsSeq(addrs) {
			w.ip("addr add " + a + " dev " + iface)
		}
		w.ip("link set " + iface + " up")
	}
	up(iface, ours)
	w.in(name, func() {
		up("eth0", theirs)
		for g := range strings.FieldsSeq(gateways) {
			family := "-4"
			if strings.Contains(g, ":") {
				family = "-6"
			}
			w.ip(family + " route add default via " + g)
		}
	})
	// The kernel makes the local routes of an address a moment later.
	want := 1 + strings.Count(ours, "::")
	eventually(w.tb, "addresses of "+iface+" that work", func() bool {
		have := w.ip("-6 route show table local dev " + iface)
		return strings.Count(have, "local ") == want && strings.Count(have, "anycast ") == want
	})
}

// lane makes a lane's interface anew after it was deleted.
func (w *world) lane(i int) {
	w.tb.Helper()
	name := fmt.Sprintf("vpn%d", i)
	net4, net6 := fmt.Sprintf("10.11.%d", i-1), fmt.Sprintf("2001:db8:%d:", i-1)
	w.connect(name, name, net4+".1/24 "+net6+":1/64", fmt.Sprintf("%s.2/24 %s:2/64 %s/32 %s/128", net4, net6, far4, far6), net4+".1 "+net6+":1")
}

// outside runs f on a thread of its own that is thrown away, and waits for it.
func (w *world) outside(f func()) {
	w.tb.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// in runs f in a namespace of the world ("router" too), and waits for it.
func (w *world) in(name string, f func()) {
	w.tb.Helper()
	w.outside(func() {
		must(w.tb, netns.Set(w.handle(name)))
		f()
	})
}

func (w *world) handle(name string) netns.NsHandle {
	if name == "router" {
		return w.router
	}
	h, ok := w.ns[name]
	if !ok {
		panic("no namespace " + name)
	}
	return h
}

// run is t.Run in the router.
func (w *world) run(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		runtime.LockOSThread()
		must(t, netns.Set(w.router))
		f(t)
	})
}

func (w *world) sysctl(key, value string) {
	w.tb.Helper()
	must(w.tb, os.WriteFile("/proc/sys/"+key, []byte(value), 0o644))
}

// ip runs iproute2 in the namespace of the calling thread.
func (w *world) ip(args string) string {
	w.tb.Helper()
	return w.cmd("", "ip", strings.Fields(args)...)
}

func (w *world) nft(args string) string {
	w.tb.Helper()
	return w.cmd("", "nft", strings.Fields(args)...)
}

func (w *world) cmd(stdin, name string, args ...string) string {
	w.tb.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.tb.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// everything is all that the plane could have changed, as text.
func (w *world) everything() string {
	w.tb.Helper()
	return strings.Join([]string{
		w.nft("-s list ruleset"),
		w.ip("rule"), w.ip("-6 rule"), w.ip("route show table all"), w.ip("-6 route show table all"),
	}, "\n---\n")
}

// config has two lanes that nobody but the test uses.
func config() egress.Config {
	return egress.Config{
		Lanes: []egress.Lane{
			{Name: "egress1", Interface: "vpn1", Table: 201, Mark: 0x201, DSCP: []egress.DSCP{32}, NAT: egress.NATMasquerade},
			{Name: "egress2", Interface: "vpn2", Table: 202, Mark: 0x202, DSCP: []egress.DSCP{40, 46}, NAT: egress.NATMasquerade},
		},
		Plane: egress.PlaneConfig{
			ManageRules: true, MarkMask: 0xfff, ClassMask: 0xff000, Priority: -150, RulePref: 20000, LeakGuard: true, ClampMSS: true, FlushFlows: true,
		},
	}
}

// home is every class on its own lane.
func home(c egress.Config) map[string]string {
	m := map[string]string{}
	for _, l := range c.Lanes {
		m[l.Name] = l.Name
	}
	return m
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// ensure is Ensure that must succeed.
func ensure(tb testing.TB, p *Plane, c egress.Config, classes map[string]string) bool {
	tb.Helper()
	changed, err := p.Ensure(tb.Context(), c, classes)
	must(tb, err)
	return changed
}

func newPlane(tb testing.TB) *Plane {
	p := New()
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

// eventually polls until ok or the bound has passed.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	end := time.Now().Add(5 * time.Second)
	for !ok() {
		if time.Now().After(end) {
			tb.Fatalf("never: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// listen opens a socket in a namespace.
func (w *world) listen(name, network, addr string) (pc net.PacketConn) {
	w.tb.Helper()
	w.in(name, func() {
		var err error
		pc, err = net.ListenPacket(network, addr)
		if err != nil {
			w.tb.Error(err)
		}
	})
	if pc == nil {
		w.tb.FailNow()
	}
	w.tb.Cleanup(func() { _ = pc.Close() })
	return pc
}
