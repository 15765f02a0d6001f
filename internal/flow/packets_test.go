package flow

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"

	"github.com/shunt-net/shunt/internal/edge"
)

func TestAUDPSocketMoves(t *testing.T) {
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("a", v6)
			w.serve("b", v6)
			w.point(v6, portOut, "", "a")
			conn, err := w.dial("udp", vip(v6), time.Second)
			must(t, err)
			defer conn.Close()
			// A flow to the candidate itself, by its own port, is nobody's.
			other, err := w.dial("udp", candidate("a", v6), time.Second)
			must(t, err)
			defer other.Close()
			if got := ask(t, conn, time.Second) + ask(t, other, time.Second); got != "aa" {
				t.Fatalf("at first %q answered", got)
			}
			w.point(v6, portOut, "a", "b")
			w.silence("a")
			if got := ask(t, conn, 200*time.Millisecond); got != "" {
				t.Fatalf("%q answered: nothing to prove", got)
			}
			f := New()
			defer f.Close()
			if _, err := f.Flush(t.Context(), []edge.Flush{flush(edge.UDP, v6, "a")}); err != nil {
				t.Fatal(err)
			}
			if got := ask(t, conn, time.Second); got != "b" {
				t.Errorf("after the flush %q answered", got)
			}
			ct, err := conntrack.Dial(nil)
			must(t, err)
			defer ct.Close()
			if port := uint16(other.LocalAddr().(*net.UDPAddr).Port); !slices.Contains(clients(t, ct), port) {
				t.Errorf("the other flow to the candidate, from port %d, is gone: only %d are left", port, clients(t, ct))
			}
		})
	}
}

// A connection that waits for its SYN-ACK connects to the survivor with its next SYN, and
// without the flush it does not.
func TestAHalfOpenConnectionIsRescued(t *testing.T) {
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("a", v6)
			w.serve("b", v6)
			w.point(v6, portOut, "", "a")
			w.point(v6, portOut+1, "", "a") // nobody flushes this one
			old, err := w.dial("tcp", vip(v6), time.Second)
			must(t, err)
			defer old.Close()
			if got := ask(t, old, time.Second); got != "a" {
				t.Fatalf("at first %q answered", got)
			}
			w.silence("a")

			type result struct {
				conn net.Conn
				err  error
				took time.Duration
			}
			ends := map[int]chan result{}
			begin := time.Now()
			for _, port := range []int{portOut, portOut + 1} {
				end := make(chan result, 1)
				ends[port] = end
				go func() {
					conn, err := w.dial("tcp", netip.AddrPortFrom(vip(v6).Addr(), uint16(port)), 2500*time.Millisecond)
					end <- result{conn, err, time.Since(begin)}
				}()
			}
			f := New()
			defer f.Close()
			pending := flush(edge.TCP, v6, "a")
			pending.Pending = true
			other := pending
			other.From.Addr = netip.AddrPortFrom(other.From.Addr.Addr(), portOut+1)
			eventually(t, "two half-open connections", func() bool {
				n, err := f.Count(t.Context(), []edge.Flush{pending, other})
				must(t, err)
				return n == 2
			})
			w.point(v6, portOut, "a", "b")
			w.point(v6, portOut+1, "a", "b")
			if _, err := f.Flush(t.Context(), []edge.Flush{pending}); err != nil {
				t.Fatal(err)
			}
			got := <-ends[portOut]
			if got.err != nil {
				t.Fatalf("not rescued: %v after %v", got.err, got.took)
			}
			t.Logf("connected after %v", got.took)
			if by := ask(t, got.conn, time.Second); by != "b" {
				t.Errorf("connected to %q", by)
			}
			got.conn.Close()
			if control := <-ends[portOut+1]; control.err == nil {
				t.Error("a connection that nobody flushed was rescued too: nothing is proven")
				control.conn.Close()
			}
			testEstablished(t, f, old, flush(edge.TCP, v6, "a"))
		})
	}
}

// testEstablished: the connection that stood before is still there, and is reset once all
// of the candidate's entries go.
func testEstablished(t *testing.T, f *Flows, old net.Conn, all edge.Flush) {
	n, err := f.Count(t.Context(), []edge.Flush{all})
	if n != 1 || err != nil {
		t.Fatalf("%d established entries left, %v; want 1", n, err)
	}
	if _, err := f.Flush(t.Context(), []edge.Flush{all}); err != nil {
		t.Fatal(err)
	}
	must(t, old.SetDeadline(time.Now().Add(3*time.Second)))
	_, _ = old.Write([]byte("?"))
	if _, err := old.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a sender of the dead candidate sees %v, want a reset", err)
	}
}

// Entries that were made while the address led nowhere keep a socket from the target that
// came later.
func TestEntriesFromBeforeTheTable(t *testing.T) {
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("a", v6)
			conn, err := w.dial("udp", vip(v6), time.Second)
			must(t, err)
			defer conn.Close()
			_ = ask(t, conn, 50*time.Millisecond)
			w.point(v6, portOut, "", "a")
			_ = ask(t, conn, 50*time.Millisecond) // takes the ICMP answer to the first
			if got := ask(t, conn, 200*time.Millisecond); got != "" {
				t.Fatalf("%q answered: nothing to prove", got)
			}
			early := flush(edge.UDP, v6, "a")
			early.Untrans, early.To = true, netip.AddrPort{}
			f := New()
			defer f.Close()
			if n, err := f.Count(t.Context(), []edge.Flush{early}); n != 1 || err != nil {
				t.Errorf("%d entries, %v; want 1", n, err)
			}
			if _, err := f.Flush(t.Context(), []edge.Flush{early}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "an answer by the candidate", func() bool { return ask(t, conn, 200*time.Millisecond) == "a" })
		})
	}
}

func eventually(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if done() {
			return
		}
	}
	tb.Fatalf("waited 5 s for %s", what)
}
