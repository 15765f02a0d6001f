package nft

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/shunt-net/shunt/internal/edge"
)

// The world: a client and two candidates around a router that holds the virtual addresses.
// The candidates are on one link with each other.
const (
	vip4, vip6     = "10.99.0.1", "fd99::1"
	router4        = "10.20.0.1"
	client4        = "10.10.0.2"
	client6        = "fd10::2"
	one4, one6     = "10.20.0.11", "fd20::11"
	two4, two6     = "10.20.0.12", "fd20::12"
	public, actual = 25565, 25577 // the service's port and the candidates'
)

// space is a network namespace of the test's.
type space struct {
	tb testing.TB
	ns netns.NsHandle
}

func newSpace(tb testing.TB) *space {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root for network namespaces")
	}
	s := &space{tb: tb}
	onThread(func() {
		var err error
		if s.ns, err = netns.New(); err != nil {
			tb.Error(err)
			return
		}
		for _, k := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			must(tb, os.WriteFile("/proc/sys/net/"+k, []byte("1"), 0o644))
		}
		for _, k := range []string{"all", "default"} {
			must(tb, os.WriteFile("/proc/sys/net/ipv6/conf/"+k+"/accept_dad", []byte("0"), 0o644))
			must(tb, os.WriteFile("/proc/sys/net/ipv4/conf/"+k+"/rp_filter", []byte("0"), 0o644))
		}
		// Where bridges show their frames to netfilter, a frame that comes back to its own port
		// is lost, unless the port allows that.
		for _, k := range []string{"ip", "ip6"} {
			_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+k+"tables", []byte("0"), 0o644)
		}
		s.cmd("", "ip", "link", "set", "lo", "up")
	})
	if tb.Failed() {
		tb.FailNow()
	}
	tb.Cleanup(func() { _ = s.ns.Close() })
	return s
}

// onThread runs f on a thread of its own that is thrown away.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// do runs f in the namespace.
func (s *space) do(f func()) {
	s.tb.Helper()
	onThread(func() {
		if err := netns.Set(s.ns); err != nil {
			s.tb.Error(err)
			return
		}
		f()
	})
}

// path names the namespace for other processes of the machine.
func (s *space) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(s.ns)) }

// cmd runs a command in the namespace of the calling thread.
func (s *space) cmd(stdin, name string, args ...string) string {
	s.tb.Helper()
	out, err := s.try(stdin, name, args...)
	if err != nil {
		s.tb.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func (s *space) try(stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(s.tb.Context(), name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/dev/null"} // no history of nft's
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *space) run(line string) (out string) {
	s.tb.Helper()
	s.do(func() { f := strings.Fields(line); out = s.cmd("", f[0], f[1:]...) })
	return out
}

// nft loads a script.
func (s *space) nft(script string) {
	s.tb.Helper()
	s.do(func() { s.cmd(script, "nft", "-f", "-") })
}

// listing is our table as nft prints it, without what is left of leases.
func (s *space) listing() string {
	s.tb.Helper()
	return s.run("nft -s list table inet " + tableName)
}

// local is the table of this namespace by netlink.
func (s *space) local() edge.Replicated {
	r := Local(Options{Name: "core-01", Now: time.Now, Namespace: s.path()})
	s.tb.Cleanup(func() { _ = r.Close() })
	return r
}

// remote is the table of this namespace by an nft on a pipe, behind words that precede it.
func (s *space) remote(before ...string) edge.Replicated {
	r := Remote("core-02", append(before, "nsenter", "--net="+s.path(), "nft", "-i"), Options{Now: time.Now})
	s.tb.Cleanup(func() { _ = r.Close() })
	return r
}

// doors are the two ways to a table, which have to do the same.
func doors() map[string]func(*space) edge.Replicated {
	return map[string]func(*space) edge.Replicated{
		"local":  func(s *space) edge.Replicated { return s.local() },
		"remote": func(s *space) edge.Replicated { return s.remote() },
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// observe is Observe that must succeed.
func observe(tb testing.TB, r edge.Replicated) edge.View {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	v, err := r.Observe(ctx)
	must(tb, err)
	return v
}

// apply observes and makes the table hold want.
func apply(tb testing.TB, r edge.Replicated, want edge.Table) edge.View {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	was, err := r.Observe(ctx)
	must(tb, err)
	v, err := r.Apply(ctx, was, want)
	must(tb, err)
	return v
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

// world is a router with what is around it.
type world struct {
	*space
	tb               testing.TB
	client, one, two *space
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{space: newSpace(tb), tb: tb, client: newSpace(tb), one: newSpace(tb), two: newSpace(tb)}
	w.do(func() {
		// With an address of its own; else it takes the lowest of its ports, also of later ones.
		w.cmd("", "ip", "link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")
		for _, a := range []string{router4 + "/24", "fd20::1/64"} {
			w.cmd("", "ip", "addr", "add", a, "dev", "br0")
		}
		w.cmd("", "ip", "link", "set", "br0", "up")
	})
	w.hold(w.space)
	w.link("c0", "", w.client, "10.10.0.1/24 fd10::1/64", client4+"/24 "+client6+"/64", "10.10.0.1 fd10::1")
	w.link("b1", "br0", w.one, "", one4+"/24 "+one6+"/64", router4+" fd20::1")
	w.link("b2", "br0", w.two, "", two4+"/24 "+two6+"/64", router4+" fd20::1")
	for name, s := range map[string]*space{"one": w.one, "two": w.two} {
		w.serve(s, name, actual)
	}
	w.settled(w.client)
	return w
}

// settled waits until a namespace reaches both candidates: a bridge takes up to a second to
// notice that a port is up.
func (w *world) settled(s *space) {
	w.tb.Helper()
	for _, a := range []string{one4, two4, one6, two6} {
		eventually(w.tb, a+" to be reached", func() bool {
			c, err := s.dial("tcp", at(a, actual).String(), 100*time.Millisecond)
			return err == nil && c.Close() == nil
		})
	}
}

// hold gives a namespace the virtual addresses.
func (w *world) hold(s *space) {
	w.tb.Helper()
	s.run("ip addr add " + vip4 + "/32 dev lo")
	s.run("ip addr add " + vip6 + "/128 dev lo nodad")
}

func (w *world) yield() {
	w.tb.Helper()
	for _, a := range []string{vip4 + "/32", vip6 + "/128"} {
		w.run("ip addr del " + a + " dev lo")
	}
}

// link connects a namespace to the router; its interface there is called eth0.
func (w *world) link(iface, bridge string, s *space, ours, theirs, gateways string) {
	w.tb.Helper()
	up := func(s *space, dev, addrs string) {
		for a := range strings.FieldsSeq(addrs) {
			args := []string{"addr", "add", a, "dev", dev}
			if strings.Contains(a, ":") {
				args = append(args, "nodad")
			}
			s.cmd("", "ip", args...)
		}
		s.cmd("", "ip", "link", "set", dev, "up")
	}
	w.do(func() {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: iface}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(s.ns))}
		if err := netlink.LinkAdd(veth); err != nil {
			w.tb.Error(err)
			return
		}
		if bridge != "" {
			w.cmd("", "ip", "link", "set", iface, "master", bridge)
		}
		up(w.space, iface, ours)
	})
	s.do(func() {
		up(s, "eth0", theirs)
		for g := range strings.FieldsSeq(gateways) {
			family := "-4"
			if strings.Contains(g, ":") {
				family = "-6"
			}
			s.cmd("", "ip", family, "route", "add", "default", "via", g)
		}
	})
	if w.tb.Failed() {
		w.tb.FailNow()
	}
}

// serve answers on TCP and UDP with a name and the address that it sees, then echoes. From
// a datagram's own address it answers only where that is named.
func (w *world) serve(s *space, name string, port int, hosts ...string) {
	w.tb.Helper()
	if hosts == nil {
		hosts = []string{"0.0.0.0", "::"}
	}
	s.do(func() {
		for _, host := range hosts {
			family := "4"
			if strings.Contains(host, ":") {
				family = "6" // also where it is all addresses
			}
			l, err := net.Listen("tcp"+family, net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				w.tb.Error(err)
				return
			}
			w.tb.Cleanup(func() { _ = l.Close() })
			go accept(l, name)
			pc, err := net.ListenPacket("udp"+family, net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				w.tb.Error(err)
				return
			}
			w.tb.Cleanup(func() { _ = pc.Close() })
			go answerDatagrams(pc, name)
		}
	})
	if w.tb.Failed() {
		w.tb.FailNow()
	}
}

func accept(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr())
			_, _ = io.Copy(c, c)
		}()
	}
}

func answerDatagrams(pc net.PacketConn, name string) {
	b := make([]byte, 100)
	for {
		_, from, err := pc.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = pc.WriteTo([]byte(name+" "+from.String()+"\n"), from)
	}
}

func at(addr string, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port))
}

// paths are the ways to the service: both families, both protocols.
func paths() map[string]string {
	v4, v6 := at(vip4, public).String(), at(vip6, public).String()
	return map[string]string{"tcp4": v4, "tcp6": v6, "udp4": v4, "udp6": v6}
}

// led is a table in which the virtual addresses lead to one candidate, and both are known.
func led(to4, to6 string, epoch uint64) edge.Table {
	var t edge.Table
	for _, p := range []edge.Protocol{edge.TCP, edge.UDP} {
		for vip, to := range map[string]string{vip4: to4, vip6: to6} {
			from := edge.Endpoint{Protocol: p, Addr: at(vip, public)}
			if to != "" {
				claim := edge.Claim{Service: "front", Epoch: epoch, By: "core-01"}
				t.Targets = append(t.Targets, edge.Element{From: from, To: at(to, actual), Claim: claim})
			}
			t.Services = append(t.Services, from)
		}
		for _, c := range []string{one4, one6, two4, two6} {
			t.Backends = append(t.Backends, edge.Endpoint{Protocol: p, Addr: at(c, actual)})
		}
	}
	t.Addresses = []netip.Addr{netip.MustParseAddr(vip4), netip.MustParseAddr(vip6)}
	for _, c := range []string{one4, two4} {
		t.OnLink = append(t.OnLink, edge.OnLink{Prefix: netip.MustParsePrefix("10.20.0.0/24"), Addr: netip.MustParseAddr(c)})
	}
	for _, c := range []string{one6, two6} {
		t.OnLink = append(t.OnLink, edge.OnLink{Prefix: netip.MustParsePrefix("fd20::/64"), Addr: netip.MustParseAddr(c)})
	}
	t, err := canonical(t)
	if err != nil {
		panic(err)
	}
	return t
}
