package flow

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/shunt-net/shunt/internal/edge"
)

// The world: client c, holder r of the address, candidates a and b. The test's goroutine
// runs in r. Each candidate says its own name.
const (
	vip4, vip6 = "10.99.0.1", "fd99::1"
	portOut    = 25565 // of the address
	portIn     = 25577 // of the candidates
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

type world struct {
	tb testing.TB
	ns map[string]netns.NsHandle
}

// enter moves the calling goroutine into a new, empty namespace for good: its thread ends with it.
func enter(tb testing.TB) *world {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root for network namespaces")
	}
	runtime.LockOSThread()
	host, err := netns.Get()
	must(tb, err)
	w := &world{tb: tb, ns: map[string]netns.NsHandle{}}
	tb.Cleanup(func() {
		for _, h := range w.ns {
			_ = h.Close()
		}
	})
	w.ns["r"], err = netns.New()
	must(tb, err)
	if w.ns["r"].Equal(host) {
		tb.Fatal("still in the host's namespace")
	}
	must(tb, host.Close())
	w.run("ip", "link set lo up")
	return w
}

// stay moves the goroutine of a subtest into r, for good.
func (w *world) stay(tb testing.TB) {
	tb.Helper()
	runtime.LockOSThread()
	must(tb, netns.Set(w.ns["r"]))
}

func newWorld(tb testing.TB) *world {
	w := enter(tb)
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/netfilter/nf_conntrack_tcp_loose"} {
		must(tb, os.WriteFile("/proc/sys/"+key, []byte("1"), 0o644))
	}
	w.run("ip", "addr add "+vip4+"/32 dev lo")
	w.run("ip", "addr add "+vip6+"/128 dev lo nodad")
	for i, name := range []string{"c", "a", "b"} {
		w.outside(func() {
			var err error
			w.ns[name], err = netns.New()
			must(tb, err)
			w.run("ip", "link set lo up")
		})
		must(tb, netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "to-" + name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(w.ns[name])),
		}))
		w.run("ip", fmt.Sprintf("addr add 10.%d.0.1/24 dev to-%s", i+1, name))
		w.run("ip", fmt.Sprintf("addr add fd00:%d::1/64 dev to-%s nodad", i+1, name))
		w.run("ip", "link set to-"+name+" up")
		w.in(name, func() {
			w.run("ip", fmt.Sprintf("addr add 10.%d.0.2/24 dev eth0", i+1))
			w.run("ip", fmt.Sprintf("addr add fd00:%d::2/64 dev eth0 nodad", i+1))
			w.run("ip", "link set eth0 up")
			w.run("ip", fmt.Sprintf("route add default via 10.%d.0.1", i+1))
			w.run("ip", fmt.Sprintf("-6 route add default via fd00:%d::1", i+1))
		})
	}
	w.in("c", func() { // IPv6 works a moment after the links are up
		for _, a := range []string{"10.2.0.2", "10.3.0.2", "fd00:2::2", "fd00:3::2"} {
			eventually(tb, "a way to "+a, func() bool { return exec.Command("ping", "-c1", "-W0.1", a).Run() == nil })
		}
	})
	w.nft(`table inet t {
		map target4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
		map target6 { type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; }
		chain prerouting { type nat hook prerouting priority dstnat;
			fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @target4
			fib daddr type local dnat ip6 to ip6 daddr . meta l4proto . th dport map @target6
		}
	}`)
	return w
}

// candidate is an address of a or b.
func candidate(name string, v6 bool) netip.AddrPort {
	i := 2 + strings.Index("ab", name)
	if v6 {
		return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd00:%d::2", i)), portIn)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("10.%d.0.2", i)), portIn)
}

func vip(v6 bool) netip.AddrPort {
	a := netip.MustParseAddr(vip4)
	if v6 {
		a = netip.MustParseAddr(vip6)
	}
	return netip.AddrPortFrom(a, portOut)
}

// point makes the address lead to a candidate.
func (w *world) point(v6 bool, port int, was, to string) {
	w.tb.Helper()
	text := ""
	for _, p := range []string{"tcp", "udp"} {
		key := fmt.Sprintf("%s . %s . %d", vip(v6).Addr(), p, port)
		family := map[bool]string{false: "4", true: "6"}[v6]
		if was != "" {
			text += fmt.Sprintf("delete element inet t target%s { %s }\n", family, key)
		}
		c := candidate(to, v6)
		text += fmt.Sprintf("add element inet t target%s { %s : %s . %d }\n", family, key, c.Addr(), c.Port())
	}
	w.nft(text)
}

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

func (w *world) in(name string, f func()) {
	w.tb.Helper()
	w.outside(func() {
		must(w.tb, netns.Set(w.ns[name]))
		f()
	})
}

func (w *world) run(name, args string) string {
	w.tb.Helper()
	out, err := exec.Command(name, strings.Fields(args)...).CombinedOutput()
	if err != nil {
		w.tb.Errorf("%s %s: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (w *world) nft(text string) {
	w.tb.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.tb.Fatalf("nft: %v\n%s\n%s", err, out, text)
	}
}

// serve answers TCP and UDP in a candidate's namespace with its name.
func (w *world) serve(name string, v6 bool) {
	w.tb.Helper()
	var l net.Listener
	var p net.PacketConn
	w.in(name, func() {
		var err error
		l, err = net.Listen("tcp", candidate(name, v6).String())
		must(w.tb, err)
		p, err = net.ListenPacket("udp", candidate(name, v6).String())
		must(w.tb, err)
	})
	w.tb.Cleanup(func() { _, _ = l.Close(), p.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 100)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					if _, err := c.Write([]byte(name)); err != nil {
						return
					}
				}
			}()
		}
	}()
	go func() {
		buf := make([]byte, 100)
		for {
			_, from, err := p.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			_, _ = p.WriteTo([]byte(name), from)
		}
	}()
}

// silence makes a candidate neither answer nor refuse anything any more.
func (w *world) silence(name string) {
	w.tb.Helper()
	w.in(name, func() {
		w.nft("table inet silent {\n chain c {\n type filter hook prerouting priority -400\n drop\n }\n}\n")
	})
}

// dial connects from the client.
func (w *world) dial(network string, to netip.AddrPort, wait time.Duration) (net.Conn, error) {
	var conn net.Conn
	var err error
	w.in("c", func() { conn, err = net.DialTimeout(network, to.String(), wait) })
	return conn, err
}

// ask sends and returns who answered; "" = nobody within the time.
func ask(tb testing.TB, conn net.Conn, wait time.Duration) string {
	tb.Helper()
	must(tb, conn.SetDeadline(time.Now().Add(wait)))
	_, _ = conn.Write([]byte("?")) // an ICMP answer to an earlier one is reported here
	buf := make([]byte, 10)
	n, err := conn.Read(buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func flush(p edge.Protocol, v6 bool, name string) edge.Flush {
	return edge.Flush{Service: "front", From: edge.Endpoint{Protocol: p, Addr: vip(v6)}, To: candidate(name, v6)}
}
