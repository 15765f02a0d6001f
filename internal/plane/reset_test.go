package plane

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bound connects from the router by one interface, as a look through a lane does.
func (w *world) bound(network, addr, iface string) net.Conn {
	w.tb.Helper()
	d := net.Dialer{Timeout: 2 * time.Second, Control: onto(iface)}
	conn, err := d.Dial(network, addr)
	must(w.tb, err)
	return conn
}

func onto(iface string) func(network, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		return errOr(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), iface) }), &err)
	}
}

// chatter is a TCP server in a namespace that goes on sending.
func (w *world) chatter(name, addr string) {
	w.tb.Helper()
	var l net.Listener
	w.in(name, func() {
		var err error
		l, err = net.Listen("tcp", addr)
		must(w.tb, err)
	})
	w.tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					if _, err := c.Write(make([]byte, 512)); err != nil {
						return
					}
					<-time.After(5 * time.Millisecond)
				}
			}()
		}
	}()
}

// A run that is killed while it looks through a lane leaves a connection whose answers still
// come. The router tells their sender so, by the lane and never by the uplink: the address is
// the lane's. Without the chain output it does leave by the uplink.
func TestAKilledLookIsNotAnsweredByTheUplink(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("chain output flushed %v", broken), func(t *testing.T) {
			w, p, c := newWorld(t), newPlane(t), config()
			ensure(t, p, c, home(c))
			if broken {
				w.nft("flush chain inet shunt_egress output")
			}
			addr := net.JoinHostPort(far4, "443")
			w.chatter("vpn1", addr)
			conn := w.bound("tcp", addr, "vpn1")
			if _, err := conn.Read(make([]byte, 512)); err != nil {
				t.Fatal(err)
			}
			// The far side does not hear that the connection is gone, and goes on.
			ways := []string{"vpn1", "wan0"}
			for _, way := range ways {
				w.in(way, func() {
					w.cmd("table inet deaf { counter resets { }; chain in { type filter hook prerouting priority -300; tcp flags & (rst | fin) != 0x0 counter name resets drop; }; }", "nft", "-f", "-")
				})
			}
			heard := func() (n int) {
				for _, way := range ways {
					w.in(way, func() {
						_, text, _ := strings.Cut(w.nft("list counter inet deaf resets"), "packets ")
						k := 0
						_, _ = fmt.Sscan(text, &k)
						n += k
					})
				}
				return n
			}
			uplink, lane := w.sniff("wan0"), w.sniff("vpn1")
			must(t, conn.(*net.TCPConn).SetLinger(0)) // what the kernel does to one that was not read to its end
			must(t, conn.Close())
			eventually(t, "three resets", func() bool { return heard() >= 3 })
			resets := func(list []packet) []packet {
				return slices.DeleteFunc(toFar(list), func(q packet) bool { return !q.rst })
			}
			if got := resets(uplink()); (len(got) > 0) != broken {
				t.Errorf("by the uplink: %s", some(got))
			}
			if got := resets(lane()); len(got) < 2 && !broken { // the first one is the socket's own
				t.Errorf("by the lane: %s", some(got))
			}
		})
	}
}

// The same when it is killed before the far side has answered: the answer finds nobody, and
// the kernel knows of no lane.
func TestAKilledConnectionAttemptIsNotResetByTheUplink(t *testing.T) {
	for _, guard := range []bool{true, false} {
		t.Run(fmt.Sprintf("guard %v", guard), func(t *testing.T) {
			w, p, c := newWorld(t), newPlane(t), config()
			c.Plane.LeakGuard = guard
			ensure(t, p, c, home(c))
			addr := net.JoinHostPort(far4, "443")
			w.chatter("vpn1", addr)
			w.in("vpn1", func() { // the answer is on its way until this table goes
				w.cmd("table inet mute { chain out { type filter hook output priority 0; tcp flags & (syn | ack) == syn | ack drop; }; }", "nft", "-f", "-")
			})
			d := net.Dialer{Timeout: 50 * time.Millisecond, Control: onto("vpn1")}
			if conn, err := d.Dial("tcp", addr); err == nil {
				_ = conn.Close()
				t.Fatal("connected, and was to be given up")
			}
			w.in("wan0", func() {
				w.cmd("table inet ear { counter resets { }; chain in { type filter hook prerouting priority -300; tcp flags & rst == rst counter name resets; }; }", "nft", "-f", "-")
			})
			leaked := func() (n int) {
				w.in("wan0", func() {
					_, text, _ := strings.Cut(w.nft("list counter inet ear resets"), "packets ")
					_, _ = fmt.Sscan(text, &n)
				})
				return n
			}
			w.in("vpn1", func() { w.nft("delete table inet mute") })
			eventually(t, "a reset", func() bool { // the far side answers again after a second
				return leaked() > 0 || strings.Contains(w.nft("list chain inet shunt_egress input"), "packets 1 ")
			})
			if n := leaked(); (n > 0) == guard {
				t.Errorf("%d resets by the uplink", n)
			}
		})
	}
}
