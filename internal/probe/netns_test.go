package probe

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestMain runs the tests in a network namespace of their own: the host's stays as it is.
func TestMain(m *testing.M) {
	if os.Geteuid() == 0 && os.Getenv("PROBE_NETNS") == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), "PROBE_NETNS=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		runtime.LockOSThread() // Pdeathsig is of the thread
		if err := cmd.Run(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// world is a veth pair; its far end lies in a namespace of its own with a host behind it.
type world struct {
	t    *testing.T
	name string
	link netlink.Link
	ns   netns.NsHandle
	far  *netlink.Handle
	gate netip.Addr // the far end
	host netip.Addr // behind it
	v6   netip.Addr // the far end
}

// newWorld makes the pair number n (1 to 250); no two of one number can be at once.
func newWorld(t *testing.T, name string, n int) *world {
	t.Helper()
	if os.Getenv("PROBE_NETNS") == "" {
		t.Skip("needs root for a network namespace")
	}
	w := &world{
		t: t, name: name, gate: netip.AddrFrom4([4]byte{10, 77, byte(n), 2}), host: netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}),
		v6: netip.MustParseAddr(fmt.Sprintf("fd77:%x::2", n)),
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	must(t, err)
	w.ns, err = netns.New()
	must(t, err)
	noDAD(t)
	must(t, netns.Set(home))
	must(t, home.Close())
	runtime.UnlockOSThread()
	noDAD(t)
	w.far, err = netlink.NewHandleAt(w.ns)
	must(t, err)

	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1420}, PeerName: "far", PeerMTU: 1420}
	must(t, netlink.LinkAdd(pair))
	peer, err := netlink.LinkByName("far")
	must(t, err)
	must(t, netlink.LinkSetNsFd(peer, int(w.ns)))
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(name); err == nil {
			must(t, netlink.LinkDel(l))
		}
		w.far.Close()
		must(t, w.ns.Close())
	})
	w.link, err = netlink.LinkByName(name)
	must(t, err)
	peer, err = w.far.LinkByName("far")
	must(t, err)
	lo, err := w.far.LinkByName("lo")
	must(t, err)
	address(t, netlink.AddrAdd, w.link, fmt.Sprintf("10.77.%d.1/24", n), fmt.Sprintf("fd77:%x::1/64", n))
	address(t, w.far.AddrAdd, peer, w.gate.String()+"/24", w.v6.String()+"/64")
	address(t, w.far.AddrAdd, lo, w.host.String()+"/32")
	must(t, netlink.LinkSetUp(w.link))
	must(t, w.far.LinkSetUp(peer))
	must(t, w.far.LinkSetUp(lo))
	// The kernel gives a link its queue some time after its carrier; until then all packets are lost.
	eventually(t, "the pair is up", func() bool {
		near, errNear := netlink.LinkByName(name)
		peer, errFar := w.far.LinkByName("far")
		must(t, errors.Join(errNear, errFar))
		return near.Attrs().OperState == netlink.OperUp && peer.Attrs().OperState == netlink.OperUp
	})
	w.route(w.host.String()+"/32", 0)
	// A neighbour that was asked for too early is asked for again only after a second.
	for _, ip := range []netip.Addr{w.gate, w.v6} {
		must(t, netlink.NeighSet(neighbour(w.link, ip, peer)))
	}
	for _, ip := range []string{fmt.Sprintf("10.77.%d.1", n), fmt.Sprintf("fd77:%x::1", n)} {
		must(t, w.far.NeighSet(neighbour(peer, netip.MustParseAddr(ip), w.link)))
	}
	eventually(t, "both families answer", func() bool {
		v := volley{iface: name, targets: []netip.Addr{w.host, w.v6}, n: 2, need: 2, wait: 50 * time.Millisecond, payload: ordinaryPayload}
		return ping(t.Context(), v).pass
	})
	return w
}

// noDAD makes the IPv6 addresses of new interfaces usable at once, in the namespace of this thread.
func noDAD(t *testing.T) {
	t.Helper()
	for _, which := range []string{"all", "default"} {
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/accept_dad", []byte("0"), 0o644))
	}
}

func neighbour(on netlink.Link, ip netip.Addr, of netlink.Link) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: on.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: of.Attrs().HardwareAddr}
}

func address(t *testing.T, add func(netlink.Link, *netlink.Addr) error, l netlink.Link, list ...string) {
	t.Helper()
	for _, s := range list {
		a, err := netlink.ParseAddr(s)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		must(t, add(l, a))
	}
}

// route leads a prefix through the far end.
func (w *world) route(prefix string, metric int) {
	w.t.Helper()
	_, dst, err := net.ParseCIDR(prefix)
	must(w.t, err)
	must(w.t, netlink.RouteAdd(&netlink.Route{LinkIndex: w.link.Attrs().Index, Dst: dst, Gw: w.gate.AsSlice(), Priority: metric}))
}

// inside runs f on a thread that is in the far namespace; sockets that it makes stay there.
func (w *world) inside(f func()) {
	w.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(w.t, err)
	must(w.t, netns.Set(w.ns))
	f()
	must(w.t, netns.Set(home))
	must(w.t, home.Close())
}

// drop makes the far end lose what the nft expression matches before it is looked at.
func (w *world) drop(match string) {
	w.t.Helper()
	w.inside(func() {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table inet t {\n chain c {\n  type filter hook prerouting priority -300\n  " + match + " counter drop\n }\n}\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("nft: %v: %s", err, out)
		}
	})
}

// dropOut makes the far end lose what it sends itself and the nft expression matches.
func (w *world) dropOut(match string) {
	w.t.Helper()
	w.inside(func() {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table inet o {\n chain c {\n  type filter hook postrouting priority 300\n  " + match + " counter drop\n }\n}\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("nft: %v: %s", err, out)
		}
	})
}

// dropped is how many packets the rules of drop or dropOut (table t or o) have lost.
func (w *world) dropped(table string) string {
	w.t.Helper()
	var out []byte
	w.inside(func() {
		var err error
		if out, err = exec.Command("nft", "list", "table", "inet", table).CombinedOutput(); err != nil {
			w.t.Fatalf("nft: %v: %s", err, out)
		}
	})
	_, rest, _ := strings.Cut(string(out), "counter packets ")
	n, _, _ := strings.Cut(rest, " ")
	return n
}

// eventually polls a condition for at most five seconds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(5 * time.Second); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
