package plane

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

// accept opens a TCP listener in a namespace that answers its name, with a code point.
func (w *world) accept(name, addr string, d egress.DSCP) {
	w.tb.Helper()
	var l net.Listener
	w.in(name, func() {
		var err error
		lc := net.ListenConfig{Control: tos(d)}
		l, err = lc.Listen(w.tb.Context(), "tcp", addr)
		if err != nil {
			w.tb.Error(err)
		}
	})
	if l == nil {
		w.tb.FailNow()
	}
	w.tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				buf := make([]byte, 16)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					_, _ = fmt.Fprint(c, name)
				}
			}()
		}
	}()
}

// talk asks an open TCP connection once.
func talk(c net.Conn) (string, error) {
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := fmt.Fprint(c, "?"); err != nil {
		return "", err
	}
	buf := make([]byte, 16)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// Connections that come in are answered by the way they came, whatever lane the class of the
// one who answers has.
func TestAnswersLeaveByTheWayTheQuestionCame(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	c.Lanes[1].NAT = egress.NATNone
	w.cmd(`table inet forwards {
	chain in { type nat hook prerouting priority dstnat; iifname { "vpn1", "wan0" } tcp dport 8080 dnat ip to `+userIP4+`; iifname { "vpn1", "wan0" } udp dport 8080 dnat ip to `+userIP4+`; }
}`, "nft", "-f", "-")
	w.accept("user", ":8080", 40)
	w.accept("router", ":9090", 32)
	pc := w.listen("user", "udp4", ":8080")
	go func() {
		buf := make([]byte, 16)
		for {
			_, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo([]byte("user"), from)
		}
	}()
	ensure(t, p, c, map[string]string{"egress1": "egress1", "egress2": "egress1"})
	for _, tt := range []struct{ name, from, network, addr, want string }{
		{"port forward of a lane, TCP", "vpn1", "tcp", "10.11.0.1:8080", "user"},
		{"port forward of a lane, UDP", "vpn1", "udp", "10.11.0.1:8080", "user"},
		{"port forward of the uplink, TCP", "wan0", "tcp", "10.11.2.1:8080", "user"},
		{"port forward of the uplink, UDP", "wan0", "udp", "10.11.2.1:8080", "user"},
		{"routed by a lane without nat, TCP", "vpn2", "tcp", userIP4 + ":8080", "user"},
		{"routed by a lane without nat, TCP and IPv6", "vpn2", "tcp", "[" + userIP6 + "]:8080", "user"},
		{"routed by the uplink, TCP", "wan0", "tcp", userIP4 + ":8080", "user"},
		{"the router by a lane", "vpn2", "tcp", "10.11.1.1:9090", "router"},
		{"the router by the uplink", "wan0", "tcp", "10.11.2.1:9090", "router"},
		{"the router by the local network", "user", "tcp", "10.1.0.1:9090", "router"},
	} {
		w.run(t, tt.name, func(t *testing.T) {
			conn, err := w.dialFar(tt.from, tt.network, tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if got, err := talk(conn); got != tt.want || err != nil {
				t.Errorf("answer %q, %v", got, err)
			}
			// What came in is of no class.
			for _, l := range c.Lanes {
				if n, err := p.Flush(t.Context(), c, "egress2", l.Name); n != 0 || err != nil {
					t.Errorf("flush: %d, %v", n, err)
				}
			}
		})
	}
}

// dialFar connects with the far host's address, so that only the way tells where answers go.
func (w *world) dialFar(name, network, addr string) (conn net.Conn, err error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	if name != "user" {
		far := net.JoinHostPort(far4, "0")
		if strings.HasPrefix(addr, "[") {
			far = net.JoinHostPort(far6, "0")
		}
		if network == "udp" {
			d.LocalAddr, _ = net.ResolveUDPAddr(network, far)
		} else {
			d.LocalAddr, _ = net.ResolveTCPAddr(network, far)
		}
	}
	w.in(name, func() { conn, err = d.Dial(network, addr) })
	return conn, err
}

// A server that goes on sending by the lane that was left must not hold the user's flow there
// (without nat its packets reach the user, and open the flow anew from the far side).
func TestLateAnswersDoNotPinAFlow(t *testing.T) {
	for family, host := range map[string]string{"IPv4": far4, "IPv6": far6} {
		t.Run(family, func(t *testing.T) {
			w, p, c := newWorld(t), newPlane(t), config()
			c.Lanes[0].NAT, c.Lanes[1].NAT = egress.NATNone, egress.NATNone
			w.serve("vpn2", host)
			pc := w.listen("vpn1", "udp", net.JoinHostPort(host, fmt.Sprint(echoPort)))
			ensure(t, p, c, home(c))
			f := w.flow(host, 32)
			buf := make([]byte, 16)
			_, user, err := pc.ReadFrom(buf)
			must(t, err)
			stop := make(chan struct{})
			stopped := make(chan struct{})
			go func() { // answers that never end
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = pc.WriteTo([]byte("late"), user)
						<-time.After(200 * time.Microsecond)
					}
				}
			}()
			f.waitFor(w, 50)
			must(t, p.Move(t.Context(), c, map[string]string{"egress1": "egress2"}))
			n, err := p.Flush(t.Context(), c, "egress1", "egress1")
			if err != nil || n < 1 {
				t.Errorf("flush: %d, %v", n, err)
			}
			after := f.sent.Load()
			f.waitFor(w, 200)
			close(stop)
			<-stopped
			f.end()
			lost := 0
			for seq := after + 2; seq <= f.sent.Load(); seq++ {
				if way, _ := w.arrived.Load(fmt.Sprintf("%d/%d", f.id, seq)); way != "vpn2" {
					lost++
				}
			}
			if lost > 0 {
				t.Errorf("%d of %d packets after the flush did not go by the lender", lost, f.sent.Load()-after)
			}
		})
	}
}

// A TCP connection over a lane that was left is reset at its next packet, and does not hang.
func TestTCPIsResetAfterTheFlush(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	for _, far := range fars() {
		w.accept(far, far4+":80", 0)
	}
	ensure(t, p, c, home(c))
	cut, err := w.dial("user", "tcp", far4+":80", 32)
	must(t, err)
	kept, err := w.dial("user", "tcp", far4+":80", 40)
	must(t, err)
	if got, err := talk(cut); got != "vpn1" || err != nil {
		t.Fatalf("by %q, %v", got, err)
	}
	must(t, p.Move(t.Context(), c, map[string]string{"egress1": "egress2"}))
	if got, err := talk(cut); got != "vpn1" || err != nil {
		t.Errorf("before the flush: by %q, %v", got, err)
	}
	_, err = p.Flush(t.Context(), c, "egress1", "egress1")
	must(t, err)
	begin := time.Now()
	if _, err = talk(cut); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("after the flush: %v", err)
	}
	t.Logf("reset after %s", time.Since(begin))
	if got, err := talk(kept); got != "vpn2" || err != nil {
		t.Errorf("the lender's own: by %q, %v", got, err)
	}
}

// The SYN and the SYN-ACK both say the least segment size of the lanes, as seen on the wire;
// a smaller one stays, and local connections keep theirs.
func TestSegmentSizeIsClampedBothWays(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	w.ip("link set lan0 mtu 1500")
	w.ip("link set lan1 mtu 1500")
	for name := range w.ns {
		w.in(name, func() { w.ip("link set eth0 mtu 1500") })
	}
	w.ip("link set vpn2 mtu 1400") // the least of the lendable lanes counts for all
	w.in("user", func() { w.ip("route add 203.0.113.1/32 via 10.1.0.1 advmss 700 table main") })
	w.in("vpn1", func() { w.ip("addr add 203.0.113.2/32 dev eth0") })
	w.accept("vpn1", ":80", 0)
	w.accept("lan", ":80", 0)
	ensure(t, p, c, home(c))
	for _, tt := range []struct {
		name, host, far string
		syn, synack     int
	}{
		{"IPv4", "203.0.113.2", "vpn1", 1360, 1360},
		{"IPv6", far6, "vpn1", 1340, 1340},
		{"smaller already", far4, "vpn1", 700, 1360},
		{"local", lan4, "lan", 1460, 1460},
		{"local, IPv6", lan6, "lan", 1440, 1440},
	} {
		w.run(t, tt.name, func(t *testing.T) {
			there, here := w.sniff(tt.far), w.sniff("user")
			conn, err := w.dial("user", "tcp", net.JoinHostPort(tt.host, "80"), 32)
			must(t, err)
			if got, err := talk(conn); got != tt.far || err != nil {
				t.Errorf("answer %q, %v", got, err)
			}
			_ = conn.Close()
			syn, synack := 0, 0
			for _, q := range there() {
				if q.syn && !q.ack {
					syn = q.mss
				}
			}
			for _, q := range here() {
				if q.syn && q.ack {
					synack = q.mss
				}
			}
			if syn != tt.syn || synack != tt.synack {
				t.Errorf("SYN %d, SYN-ACK %d; want %d, %d", syn, synack, tt.syn, tt.synack)
			}
		})
	}
}

// A server that goes on sending by the lane that was left makes the router itself answer it
// (the lane's address is the router's). Such answers leave by the lane and never by the uplink,
// which would show there whom the user talked to. Without the chain output they do leave so.
func TestRouterAnswersLateSegmentsByTheirLane(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("chain output flushed %v", broken), func(t *testing.T) {
			w, p, c := newWorld(t), newPlane(t), config()
			w.accept("vpn2", far4+":80", 0)
			var l net.Listener
			w.in("vpn1", func() {
				var err error
				l, err = net.Listen("tcp", far4+":80")
				must(w.tb, err)
			})
			defer func() { _ = l.Close() }()
			ensure(t, p, c, home(c))
			if broken {
				w.nft("flush chain inet shunt_egress output")
			}
			conns := make([]net.Conn, 5)
			for i := range conns {
				user, err := w.dial("user", "tcp", far4+":80", 32)
				must(t, err)
				defer func() { _ = user.Close() }()
				conns[i], err = l.Accept()
				must(t, err)
				defer func() { _ = conns[i].Close() }()
			}
			uplink, lane := w.sniff("wan0"), w.sniff("vpn1")
			must(t, p.Move(t.Context(), c, map[string]string{"egress1": "egress2"}))
			n, err := p.Flush(t.Context(), c, "egress1", "egress1")
			if n != len(conns) || err != nil {
				t.Errorf("flush: %d, %v", n, err)
			}
			for _, conn := range conns {
				_, _ = fmt.Fprint(conn, "late")
				if broken {
					continue
				}
				_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
				if _, err := conn.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
					t.Errorf("the server learns %v, want a reset", err)
				}
			}
			resets := func(list []packet) []packet {
				return slices.DeleteFunc(toFar(list), func(q packet) bool { return !q.rst })
			}
			if got := resets(uplink()); (len(got) > 0) != broken {
				t.Errorf("by the uplink: %s", some(got))
			}
			if got := resets(lane()); (len(got) > 0) == broken {
				t.Errorf("by the lane: %s", some(got))
			}
		})
	}
}
