package server

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// remote is the address of a client.
type remote struct{ netip.AddrPort }

func (r remote) ClearSrc()           {}
func (r remote) SrcToString() string { return "" }
func (r remote) DstToString() string { return r.String() }
func (r remote) DstIP() netip.Addr   { return r.Addr() }
func (r remote) SrcIP() netip.Addr   { return netip.Addr{} }
func (r remote) DstToBytes() []byte {
	b, _ := r.MarshalBinary()
	return b
}

// bind is a conn.Bind of one socket and batches of one (the default bind keeps 128 buffers
// of 64 KiB for each receiver). It holds what it sends for the endpoint's round trip, the
// stand-in for a long way.
type bind struct {
	e  *Endpoint
	mu sync.Mutex
	c  *net.UDPConn
	q  chan held
}

// held is a datagram on its long way.
type held struct {
	at time.Time
	b  []byte
	to netip.AddrPort
}

// Open listens on the endpoint's own address; the port asked for is its own, too.
func (b *bind) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	// wireguard-go may call this from any of its goroutines: enter the namespace anew.
	err := b.e.p.ns.Do(func() error {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(b.e.Addr))
		b.c = c
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if rc, err := b.c.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<20) })
	}
	return []conn.ReceiveFunc{b.receive(b.c)}, b.e.Addr.Port(), nil
}

func (b *bind) receive(c *net.UDPConn) conn.ReceiveFunc {
	return func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		for {
			n, from, err := c.ReadFromUDPAddrPort(bufs[0])
			if err != nil {
				return 0, err
			}
			b.e.count.datagrams.Add(1)
			if !b.e.gate.datagram() {
				b.e.count.dropped.Add(1)
				continue
			}
			if n == 148 && bufs[0][0] == 1 {
				b.e.count.handshakes.Add(1)
			}
			sizes[0], eps[0] = n, remote{netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
			return 1, nil
		}
	}
}

// Send sends at once or, with a round trip set, later and in order.
func (b *bind) Send(bufs [][]byte, ep conn.Endpoint) error {
	r, ok := ep.(remote)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		return net.ErrClosed
	}
	rtt := b.e.RTT()
	for _, p := range bufs {
		if !b.e.gate.datagram() {
			continue
		}
		if rtt == 0 {
			_, _ = b.c.WriteToUDPAddrPort(p, r.AddrPort) // a lost datagram is the network's way
			continue
		}
		if b.q == nil {
			b.q = make(chan held, 8192)
			go b.carry(b.c, b.q)
		}
		select {
		case b.q <- held{time.Now().Add(rtt), append([]byte(nil), p...), r.AddrPort}:
		default: // the way is full
		}
	}
	return nil
}

// carry sends each datagram when its time has come.
func (b *bind) carry(c *net.UDPConn, q <-chan held) {
	for h := range q {
		if d := time.Until(h.at); d > 0 {
			time.Sleep(d)
		}
		if b.e.gate.datagram() {
			_, _ = c.WriteToUDPAddrPort(h.b, h.to)
		}
	}
}

// Close ends the socket and what is on its way.
func (b *bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		return nil
	}
	err := b.c.Close()
	b.c = nil
	if b.q != nil {
		close(b.q)
		b.q = nil
	}
	return err
}

// SetMark does nothing: there is one way out.
func (b *bind) SetMark(uint32) error { return nil }

// BatchSize is one.
func (b *bind) BatchSize() int { return 1 }

// ParseEndpoint reads address:port.
func (b *bind) ParseEndpoint(s string) (conn.Endpoint, error) {
	a, err := netip.ParseAddrPort(s)
	return remote{a}, err
}

// counters are what Counts is read from.
type counters struct {
	in, out, inBytes, outBytes, dropped, datagrams, handshakes atomic.Uint64
}

// Counts are what an endpoint has seen since it was made.
type Counts struct {
	In, Out           uint64 // packets inside the tunnel: from the client, to it
	InBytes, OutBytes uint64 // bytes of these
	Dropped           uint64 // datagrams and inner packets that the fault took
	Datagrams         uint64 // encrypted datagrams that arrived
	Handshakes        uint64 // initiations among these that were let through
}

func (c *counters) read() Counts {
	return Counts{
		In: c.in.Load(), Out: c.out.Load(), InBytes: c.inBytes.Load(), OutBytes: c.outBytes.Load(),
		Dropped: c.dropped.Load(), Datagrams: c.datagrams.Load(), Handshakes: c.handshakes.Load(),
	}
}

// Sub is what happened between an earlier reading and this one.
func (c Counts) Sub(was Counts) Counts {
	return Counts{
		In: c.In - was.In, Out: c.Out - was.Out, InBytes: c.InBytes - was.InBytes, OutBytes: c.OutBytes - was.OutBytes,
		Dropped: c.Dropped - was.Dropped, Datagrams: c.Datagrams - was.Datagrams, Handshakes: c.Handshakes - was.Handshakes,
	}
}
