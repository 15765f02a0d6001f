package wgtest

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// bind is a one-socket conn.Bind with batches of one: the default one holds 128 buffers
// of 64 KiB for each direction.
type bind struct {
	listen   netip.Addr
	endpoint *endpoint
	delay    *delayLine

	mu   sync.Mutex
	sock *net.UDPConn
}

// peer is a client's address.
type peer struct{ netip.AddrPort }

func (p peer) ClearSrc()           {}
func (p peer) SrcToString() string { return "" }
func (p peer) DstToString() string { return p.String() }
func (p peer) DstIP() netip.Addr   { return p.Addr() }
func (p peer) SrcIP() netip.Addr   { return netip.Addr{} }

func (p peer) DstToBytes() []byte {
	b, _ := p.MarshalBinary() // never fails
	return b
}

func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sock != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.listen, port)))
	if err != nil {
		return nil, 0, err
	}
	b.sock = c
	receive := func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		for {
			n, from, err := c.ReadFromUDPAddrPort(bufs[0])
			if err != nil {
				return 0, err
			}
			if !b.endpoint.admit(bufs[0][:n]) {
				continue
			}
			sizes[0] = n
			eps[0] = peer{netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
			return 1, nil
		}
	}
	return []conn.ReceiveFunc{receive}, b.localLocked().Port(), nil
}

func (b *bind) local() netip.AddrPort {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.localLocked()
}

func (b *bind) localLocked() netip.AddrPort {
	a, ok := b.sock.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func (b *bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sock == nil {
		return nil
	}
	err := b.sock.Close()
	b.sock = nil
	return err
}

func (b *bind) SetMark(uint32) error { return nil }

func (b *bind) Send(bufs [][]byte, ep conn.Endpoint) error {
	to, ok := ep.(peer)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	b.mu.Lock()
	c := b.sock
	b.mu.Unlock()
	if c == nil {
		return net.ErrClosed
	}
	if b.endpoint.behaviour.Load().Silent {
		return nil
	}
	for _, p := range bufs {
		if p[0] == 3 && uint32(to.Port()) != b.endpoint.flooder.Load() {
			b.endpoint.cookies.Add(1)
		}
		if err := b.delay.send(c, p, to.AddrPort); err != nil {
			return err
		}
	}
	return nil
}

func (b *bind) ParseEndpoint(s string) (conn.Endpoint, error) {
	ap, err := netip.ParseAddrPort(s)
	return peer{ap}, err
}

func (b *bind) BatchSize() int { return 1 }

// delayLine holds the answers of all endpoints back for the same time, in order.
type delayLine struct {
	by   time.Duration
	q    chan delayed
	done chan struct{}
	once sync.Once
}

type delayed struct {
	at   time.Time
	sock *net.UDPConn
	data []byte
	to   netip.AddrPort
}

func newDelayLine(by time.Duration) *delayLine {
	l := &delayLine{by: by, q: make(chan delayed, 1<<14), done: make(chan struct{})}
	if by > 0 {
		go l.run()
	}
	return l
}

func (l *delayLine) run() {
	for {
		select {
		case d := <-l.q:
			if wait := time.Until(d.at); wait > 0 { //nolint:forbidigo // measures a duration
				time.Sleep(wait)
			}
			_, _ = d.sock.WriteToUDPAddrPort(d.data, d.to) // a lost datagram is the client's to notice
		case <-l.done:
			return
		}
	}
}

func (l *delayLine) send(c *net.UDPConn, b []byte, to netip.AddrPort) error {
	if l.by <= 0 {
		_, err := c.WriteToUDPAddrPort(b, to)
		return err
	}
	d := delayed{at: time.Now().Add(l.by), sock: c, data: append([]byte(nil), b...), to: to} //nolint:forbidigo // measures a duration
	select {
	case l.q <- d:
	default: // full: lost, like on any router
	}
	return nil
}

func (l *delayLine) close() { l.once.Do(func() { close(l.done) }) }
