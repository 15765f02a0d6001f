package plane

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

const echoPort = 7000

// fars are the ways out.
func fars() []string { return []string{"vpn1", "vpn2", "wan0"} }

// serve answers every UDP packet to the far host with the name of the way that it came by and
// the sender that it saw.
func (w *world) serve(name string, addrs ...string) {
	w.tb.Helper()
	for _, a := range addrs {
		pc := w.listen(name, "udp", net.JoinHostPort(a, fmt.Sprint(echoPort)))
		go func() {
			buf := make([]byte, 64)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				w.arrived.Store(string(buf[:n]), name)
				host, _, _ := net.SplitHostPort(from.String())
				_, _ = pc.WriteTo(fmt.Appendf(nil, "%s %s %s", buf[:n], name, host), from)
			}
		}()
	}
}

func (w *world) serveAll() {
	for _, f := range fars() {
		w.serve(f, far4, far6)
	}
}

// dial connects from a namespace with a code point.
func (w *world) dial(name, network, addr string, d egress.DSCP) (conn net.Conn, err error) {
	dialer := net.Dialer{Timeout: 2 * time.Second, Control: tos(d)}
	w.in(name, func() { conn, err = dialer.Dial(network, addr) })
	return conn, err
}

func tos(d egress.DSCP) func(network, _ string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		var err error
		return errOr(c.Control(func(fd uintptr) {
			if strings.HasSuffix(network, "6") {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(d)<<2)
				return
			}
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, int(d)<<2)
		}), &err)
	}
}

func errOr(err error, other *error) error {
	if err != nil {
		return err
	}
	return *other
}

// flow is one UDP flow of a user that counts up, one packet per millisecond.
type flow struct {
	id   int64
	conn net.Conn
	sent atomic.Int64
	mu   sync.Mutex
	by   map[int64]string // number -> way that answered
	from map[string]string
	stop chan struct{}
	done sync.WaitGroup
}

func (w *world) flow(host string, d egress.DSCP) *flow {
	w.tb.Helper()
	conn, err := w.dial("user", "udp", net.JoinHostPort(host, fmt.Sprint(echoPort)), d)
	must(w.tb, err)
	f := &flow{id: w.flows.Add(1), conn: conn, by: map[int64]string{}, from: map[string]string{}, stop: make(chan struct{})}
	f.done.Add(2)
	go func() {
		defer f.done.Done()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-f.stop:
				return
			case <-tick.C:
				_, _ = fmt.Fprintf(conn, "%d/%d", f.id, f.sent.Add(1))
			}
		}
	}()
	go func() {
		defer f.done.Done()
		buf := make([]byte, 128)
		for {
			n, err := conn.Read(buf)
			if err != nil && strings.Contains(err.Error(), "closed") {
				return
			}
			if err != nil {
				continue // an ICMP error on the way
			}
			var id, seq int64
			var name, from string
			if _, err = fmt.Sscanf(string(buf[:n]), "%d/%d %s %s", &id, &seq, &name, &from); err == nil {
				f.mu.Lock()
				f.by[seq], f.from[name] = name, from
				f.mu.Unlock()
			}
		}
	}()
	return f
}

// waitFor waits until n more packets were sent.
func (f *flow) waitFor(w *world, n int64) {
	end := f.sent.Load() + n
	eventually(w.tb, "packets sent", func() bool { return f.sent.Load() >= end })
}

// end stops the flow once everything is answered, or nothing has been for a while.
func (f *flow) end() {
	close(f.stop)
	last, since := -1, 0
	for since < 30 {
		<-time.After(5 * time.Millisecond)
		f.mu.Lock()
		n := len(f.by)
		f.mu.Unlock()
		if since++; n != last {
			last, since = n, 0
		}
	}
	_ = f.conn.Close()
	f.done.Wait()
}

// ways tells by which ways the packets of a flow arrived, one after another, and the numbers
// of those that arrived nowhere.
func (w *world) ways(f *flow) (ways []string, lost []int64) {
	for i := int64(1); i <= f.sent.Load(); i++ {
		name, ok := w.arrived.Load(fmt.Sprintf("%d/%d", f.id, i))
		if !ok {
			lost = append(lost, i)
			continue
		}
		if len(ways) == 0 || ways[len(ways)-1] != name {
			ways = append(ways, name.(string))
		}
	}
	return ways, lost
}

// unanswered are the numbers of the packets that nobody answered.
func (f *flow) unanswered() (out []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := int64(1); i <= f.sent.Load(); i++ {
		if _, ok := f.by[i]; !ok {
			out = append(out, i)
		}
	}
	return out
}

// ask sends one packet from a new socket and returns the way that answered and the sender
// that was seen there; "" = no answer.
func (w *world) ask(from, host string, d egress.DSCP) (way, seen string) {
	w.tb.Helper()
	conn, err := w.dial(from, "udp", net.JoinHostPort(host, fmt.Sprint(echoPort)), d)
	if err != nil {
		return "", ""
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprint(conn, "1")
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	buf := make([]byte, 128)
	n, err := conn.Read(buf)
	if err != nil {
		return "", ""
	}
	var seq int
	_, _ = fmt.Sscan(string(buf[:n]), &seq, &way, &seen)
	return way, seen
}

// packet is what a sniffer saw.
type packet struct {
	src, dst netip.Addr
	proto    byte
	dscp     egress.DSCP
	syn, ack bool
	rst      bool
	mss      int
	icmp     byte // type
}

// sniff records the IP packets that arrive at eth0 of a namespace; the function that it
// returns stops that and gives them.
func (w *world) sniff(name string) func() []packet {
	w.tb.Helper()
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	fd := -1
	w.in(name, func() {
		var err error
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, all)
		must(w.tb, err)
		link, err := net.InterfaceByName("eth0")
		must(w.tb, err)
		must(w.tb, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}))
		must(w.tb, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
		must(w.tb, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}))
	})
	var stopped atomic.Bool
	out := make(chan []packet, 1)
	go func() {
		var seen []packet
		buf := make([]byte, 65536)
		for {
			end := stopped.Load()
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil && end {
				break
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); err == nil && ok && ll.Pkttype != unix.PACKET_OUTGOING {
				if p, ok := parse(buf[:n]); ok {
					seen = append(seen, p)
				}
			}
		}
		_ = unix.Close(fd)
		out <- seen
	}()
	return func() []packet { stopped.Store(true); return <-out }
}

func parse(b []byte) (p packet, ok bool) {
	var rest []byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		p.src, _ = netip.AddrFromSlice(b[12:16])
		p.dst, _ = netip.AddrFromSlice(b[16:20])
		p.dscp, p.proto, rest = egress.DSCP(b[1]>>2), b[9], b[int(b[0]&15)*4:]
	case len(b) >= 40 && b[0]>>4 == 6:
		p.src, _ = netip.AddrFromSlice(b[8:24])
		p.dst, _ = netip.AddrFromSlice(b[24:40])
		p.dscp, p.proto, rest = egress.DSCP(binary.BigEndian.Uint16(b)>>6&63), b[6], b[40:]
	default:
		return p, false
	}
	if p.proto == unix.IPPROTO_TCP && len(rest) >= 20 {
		p.syn, p.ack, p.rst = rest[13]&2 != 0, rest[13]&16 != 0, rest[13]&4 != 0
		for o := rest[20 : int(rest[12]>>4)*4]; len(o) >= 4 && o[0] > 1; o = o[max(2, int(o[1])):] {
			if o[0] == 2 {
				p.mss = int(binary.BigEndian.Uint16(o[2:]))
			}
		}
	}
	if p.proto == unix.IPPROTO_ICMPV6 && len(rest) > 0 {
		p.icmp = rest[0]
	}
	return p, true
}

// toFar are the packets to the far host. Neighbour discovery is not for the far host: it asks
// for the link address of one that has the same address on this link.
func toFar(list []packet) (out []packet) {
	for _, p := range list {
		if p.proto == unix.IPPROTO_ICMPV6 && p.icmp >= 133 && p.icmp <= 137 {
			continue
		}
		if slices.Contains([]string{far4, far6}, p.dst.String()) {
			out = append(out, p)
		}
	}
	return out
}

// some shows a few of many packets.
func some(list []packet) string {
	if len(list) > 3 {
		return fmt.Sprintf("%d packets, such as %+v", len(list), list[:3])
	}
	return fmt.Sprintf("%d packets %+v", len(list), list)
}
