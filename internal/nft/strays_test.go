package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// stray marks the payload of forged packets.
const stray = "a packet of long ago"

// ear hears all TCP packets that come into a namespace.
type ear struct {
	mu   sync.Mutex
	seqs map[netip.AddrPort]uint32 // from whom and the last sequence number
	got  map[netip.AddrPort]int    // strays
	rst  int
}

// listen opens an ear for a family.
func (s *space) listen(family string) *ear {
	s.tb.Helper()
	e := &ear{seqs: map[netip.AddrPort]uint32{}, got: map[netip.AddrPort]int{}}
	s.do(func() {
		c, err := net.ListenPacket("ip"+family+":tcp", map[string]string{"4": "0.0.0.0", "6": "::"}[family])
		if err != nil {
			s.tb.Error(err)
			return
		}
		s.tb.Cleanup(func() { _ = c.Close() })
		go func() {
			b := make([]byte, 65536)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				e.hear(from.String(), b[:n])
			}
		}()
	})
	return e
}

func (e *ear) hear(from string, segment []byte) {
	ip, err := netip.ParseAddr(from)
	if err != nil || len(segment) < 20 {
		return
	}
	source := netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(segment))
	data := string(segment[min(len(segment), int(segment[12]>>4)*4):])
	e.mu.Lock()
	defer e.mu.Unlock()
	if data == stray {
		e.got[source]++
	} else {
		e.seqs[source] = binary.BigEndian.Uint32(segment[4:])
	}
	if segment[13]&4 != 0 {
		e.rst++
	}
}

// heard are the strays from an address and all resets so far.
func (e *ear) heard(from netip.AddrPort) (strays, resets int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.got[from], e.rst
}

// seq is the last sequence number that was heard from an address.
func (e *ear) seq(tb testing.TB, from netip.AddrPort) (n uint32) {
	tb.Helper()
	eventually(tb, "a packet from "+from.String(), func() (ok bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		n, ok = e.seqs[from]
		return ok
	})
	return n
}

// forge sends a segment with data from a namespace.
func (s *space) forge(from, to netip.AddrPort, seq, ack uint32) {
	s.tb.Helper()
	s.do(func() {
		family := "4"
		if from.Addr().Is6() {
			family = "6"
		}
		d := net.Dialer{LocalAddr: &net.IPAddr{IP: from.Addr().AsSlice()}}
		c, err := d.Dial("ip"+family+":tcp", to.Addr().String())
		if err != nil {
			s.tb.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		b := make([]byte, 20, 64)
		binary.BigEndian.PutUint16(b, from.Port())
		binary.BigEndian.PutUint16(b[2:], to.Port())
		binary.BigEndian.PutUint32(b[4:], seq)
		binary.BigEndian.PutUint32(b[8:], ack)
		const isAck = 16
		b[12], b[13] = 5<<4, isAck
		binary.BigEndian.PutUint16(b[14:], 1000)
		b = append(b, stray...)
		pseudo := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
		pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(b)))
		sum := 6
		for _, part := range [][]byte{pseudo, b} {
			for i := 0; i < len(part); i += 2 {
				sum += int(part[i]) << 8
				if i+1 < len(part) {
					sum += int(part[i+1])
				}
			}
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
		if _, err := c.Write(b); err != nil {
			s.tb.Error(err)
		}
	})
}

// own is a connection's own end.
func (c *conn) own() netip.AddrPort {
	ap := c.LocalAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// dropped sums the counters of a chain.
func (s *space) dropped(chain string) (n int) {
	s.tb.Helper()
	for _, m := range regexp.MustCompile(`packets (\d+)`).FindAllStringSubmatch(s.run("nft list chain inet shunt_edge "+chain), -1) {
		k, err := strconv.Atoi(m[1])
		must(s.tb, err)
		n += k
	}
	return n
}

// far is out of every window.
const far = 1 << 28

// A packet that connection tracking can't place is not translated back: the client would not
// know who sent it, and its reset would end the flow. Newer kernels can place data of long
// ago, but not what acknowledges data that was never sent.
func TestOldPacketsDoNotReachTheClient(t *testing.T) {
	for family, a := range map[string]struct{ vip, one, client string }{"4": {vip4, one4, client4}, "6": {vip6, one6, client6}} {
		t.Run("IPv"+family, func(t *testing.T) {
			w := newWorld(t)
			apply(t, w.local(), led(one4, one6, 1))
			ear, back := w.client.listen(family), w.one.listen(family)
			c, err := w.client.dial("tcp"+family, at(a.vip, public).String(), time.Second)
			must(t, err)
			defer func() { _ = c.Close() }()
			must(t, c.echo("one"))
			us := at(a.vip, public)

			backend := at(a.one, actual)
			for range 5 {
				w.one.forge(backend, c.own(), ear.seq(t, us)-far, back.seq(t, c.own()))
				must(t, c.echo("after one of long ago"))
			}
			before := w.dropped("forward")
			for range 5 {
				w.one.forge(backend, c.own(), ear.seq(t, us)-far, back.seq(t, c.own())+far)
				must(t, c.echo("after an odd one"))
			}
			eventually(t, "the drops to be counted", func() bool { return w.dropped("forward") == before+5 })
			if n, _ := ear.heard(backend); n != 0 {
				t.Errorf("%d packets reached the client", n)
			}
			if _, resets := back.heard(backend); resets != 0 {
				t.Errorf("the candidate was reset %d times", resets)
			}

			// Only ours: the same of another service passes, though it is as odd.
			w.serve(w.one, "other", 9999)
			other := at(a.one, 9999)
			d, err := w.client.dial("tcp"+family, other.String(), time.Second)
			must(t, err)
			defer func() { _ = d.Close() }()
			must(t, d.echo("two"))
			w.one.forge(other, d.own(), ear.seq(t, other)-far, back.seq(t, d.own())+far)
			eventually(t, "the packet of another service to pass", func() bool { n, _ := ear.heard(other); return n == 1 })
			must(t, d.echo("three"))

			// And it is the rule that does it.
			w.nft("flush chain inet shunt_edge forward\n")
			w.one.forge(backend, c.own(), ear.seq(t, us)-far, back.seq(t, c.own())+far)
			eventually(t, "the packet to come through without the rule", func() bool { n, _ := ear.heard(backend); return n == 1 })
			eventually(t, "the client's reset", func() bool { _, resets := back.heard(backend); return resets > 0 })
		})
	}
}

// The holder's own connections through the address are spared in another way: what it would
// answer is dropped.
func TestOldPacketsDoNotReachTheHolder(t *testing.T) {
	w := newWorld(t)
	apply(t, w.local(), led(one4, one6, 1))
	back := w.one.listen("4")
	ear := w.listen("4")
	c, err := w.dial("tcp4", at(vip4, public).String(), time.Second)
	must(t, err)
	defer func() { _ = c.Close() }()
	must(t, c.echo("one"))
	backend, us := at(one4, actual), at(vip4, public)
	var port uint16
	_, err = fmt.Sscanf(regexp.MustCompile(`sport=25577 dport=(\d+)`).FindString(w.run("conntrack -L -p tcp")), "sport=25577 dport=%d", &port)
	must(t, err)
	to := netip.AddrPortFrom(netip.MustParseAddr(router4), port)
	w.one.forge(backend, to, ear.seq(t, us)-far, back.seq(t, to)+far)
	must(t, c.echo("two"))
	eventually(t, "the drop to be counted", func() bool { return w.dropped("resets") == 1 })
	if _, resets := back.heard(backend); resets != 0 {
		t.Errorf("the candidate was reset %d times", resets)
	}
}

// A connection of the holder itself that is older than connection tracking on it, as a
// tripwire may be, still hears of its end: the first packet of it that is tracked is odd.
func TestOwnOlderConnectionsHearTheirEnd(t *testing.T) {
	for family, one := range map[string]string{"4": one4, "6": one6} {
		t.Run("IPv"+family, func(t *testing.T) {
			w := newWorld(t)
			backend := at(one, 7777)
			var l net.Listener
			w.one.do(func() {
				var err error
				l, err = net.Listen("tcp"+family, backend.String())
				must(t, err)
			})
			defer func() { _ = l.Close() }()
			var c net.Conn
			w.do(func() {
				var err error
				c, err = net.DialTimeout("tcp"+family, backend.String(), time.Second)
				must(t, err)
			})
			defer func() { _ = c.Close() }()
			server, err := l.Accept()
			must(t, err)

			table := led(one4, one6, 1)
			table.Backends = append(table.Backends, edge.Endpoint{Protocol: edge.TCP, Addr: backend})
			apply(t, w.local(), table)
			if out := w.run("conntrack -L -p tcp"); strings.Contains(out, "port=7777") {
				t.Fatalf("it is tracked, so this shows nothing:\n%s", out)
			}
			must(t, server.Close())
			must(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("after the server ended it: %v", err)
			}
			// What the holder says at its own end is no odd reset.
			must(t, c.Close())
			if n := w.dropped("resets"); n != 0 {
				t.Errorf("%d packets of its own dropped", n)
			}
		})
	}
}

// A virtual address whose candidates answer their clients themselves (DSR), on one machine
// with ours: packets of one direction only are as odd to connection tracking, and pass.
func TestOneSidedFlowsOfOthersPass(t *testing.T) {
	w := newWorld(t)
	table := led(one4, one6, 1)
	apply(t, w.local(), table)
	if len(table.Backends) != 8 || table.Backends[0] != (edge.Endpoint{Protocol: edge.TCP, Addr: at(one4, actual)}) {
		t.Fatalf("backends %v", table.Backends)
	}
	const dsr = "10.99.0.7"
	w.two.run("ip addr add " + dsr + "/32 dev lo")
	ear := w.client.listen("4")
	from := at(dsr, public) // from the same port as ours, with another address
	for i := range 3 {
		w.two.forge(from, at(client4, 40000), uint32(i), 1)
	}
	eventually(t, "the answers to pass", func() bool { n, _ := ear.heard(from); return n == 3 })
	if n := w.dropped("forward") + w.dropped("input") + w.dropped("resets"); n != 0 {
		t.Errorf("%d packets dropped", n)
	}
}
