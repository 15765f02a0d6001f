package tunnel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// port is the conn.Bind of one device on the shared socket. Its batches are of one
// datagram: the default bind holds 128 buffers of 64 KiB for each direction.
type port struct {
	sock *socket
	// quiet holds transport messages back: a responder moves the return path of a key
	// to a new session only when the first of them arrives, so a handshake alone does
	// not disturb a session that somebody else has with the same key.
	quiet bool
	// long is a tunnel that is used and not measured: much may wait for it, and it keeps
	// no times of what it sends.
	long bool

	mu     sync.Mutex
	routes map[string]*route // by the name that stands for it in the device's configuration
	in     chan datagram
	closed chan struct{}
}

type datagram struct {
	data []byte
	from *route
	at   time.Time
}

// How many received datagrams wait for a device before they are dropped: one of a
// single server, one that many servers answer, and one that carries a download.
const (
	pendingOne  = 32
	pendingMany = 256
	pendingLong = 512
)

func newPort(s *socket, quiet bool) *port {
	return &port{sock: s, quiet: quiet, routes: map[string]*route{}}
}

// add makes name stand for dst in `endpoint=` lines of the device. codec is what the
// server speaks; nil = WireGuard itself.
func (p *port) add(name string, dst netip.AddrPort, codec *amnezia.Codec) *route {
	r := &route{dst: dst, port: p, codec: codec, up: make(chan time.Duration, 1), cookie: make(chan struct{}, 1)}
	p.mu.Lock()
	p.routes[name] = r
	p.mu.Unlock()
	return r
}

// drop forgets the route of that name.
func (p *port) drop(name string) {
	p.mu.Lock()
	r := p.routes[name]
	delete(p.routes, name)
	p.mu.Unlock()
	if r != nil {
		p.sock.forget(r)
	}
}

func (p *port) deliver(d datagram) {
	if d.data[0] != typeTransport { // those of data belong to the packet that the device hands on next
		d.from.received(d)
	}
	p.mu.Lock()
	in := p.in
	p.mu.Unlock()
	if in == nil {
		return
	}
	select {
	case in <- d:
	default: // full: lost, as in any queue of the network
	}
}

// Open implements conn.Bind.
func (p *port) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	pending := pendingOne
	switch {
	case p.quiet:
		pending = pendingMany
	case p.long:
		pending = pendingLong
	}
	in, closed := make(chan datagram, pending), make(chan struct{})
	p.in, p.closed = in, closed
	receive := func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		select {
		case d := <-in:
			if d.data[0] == typeTransport {
				d.from.received(d)
			}
			sizes[0], eps[0] = copy(bufs[0], d.data), d.from
			return 1, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}
	return []conn.ReceiveFunc{receive}, 1, nil
}

// Close implements conn.Bind. The shared socket stays open.
func (p *port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in == nil {
		return nil
	}
	close(p.closed)
	p.in = nil
	for _, r := range p.routes {
		p.sock.forget(r)
	}
	return nil
}

// SetMark implements conn.Bind; marks are Control's business.
func (p *port) SetMark(uint32) error { return nil }

// BatchSize implements conn.Bind.
func (p *port) BatchSize() int { return 1 }

// ParseEndpoint implements conn.Bind: it finds the route that add named.
func (p *port) ParseEndpoint(name string) (conn.Endpoint, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.routes[name]
	if r == nil {
		return nil, fmt.Errorf("no route %q", name)
	}
	return r, nil
}

// Send implements conn.Bind.
func (p *port) Send(bufs [][]byte, ep conn.Endpoint) error {
	r, ok := ep.(*route)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	for _, b := range bufs {
		if len(b) < minMessage {
			continue
		}
		switch b[0] {
		case typeInitiation:
			p.sock.listenFor(r, binary.LittleEndian.Uint32(b[4:]))
			r.initiating(time.Now()) //nolint:forbidigo // measures a duration
		case typeTransport:
			r.established()
			if p.quiet || r.mute.Load() {
				continue
			}
			if len(b) > keepaliveSize && !p.long {
				r.sending(time.Now()) //nolint:forbidigo // measures a duration
			}
		}
		if err := p.transmit(b, r); err != nil {
			return err
		}
	}
	return nil
}

// transmit sends one message of the device, and what has to go ahead of it.
func (p *port) transmit(b []byte, r *route) error {
	if r.codec == nil {
		return p.sock.write(b, r.dst)
	}
	first := b[0]
	out, err := r.codec.Encode(nil, b, r)
	if err != nil {
		return err
	}
	for i, d := range out {
		if i == len(out)-1 && first == typeInitiation { // what went ahead takes its time
			r.initiating(time.Now()) //nolint:forbidigo // measures a duration
		}
		if err := p.sock.write(d, r.dst); err != nil {
			return err
		}
	}
	return nil
}

// route is one server as one device sees it: a conn.Endpoint that takes the times of
// what leaves for it and what comes back.
type route struct {
	dst  netip.AddrPort
	port *port
	// codec is what the server speaks instead of WireGuard; nil = nothing else.
	codec *amnezia.Codec
	mute  atomic.Bool // only handshake messages leave for it

	index uint32 // guarded by the socket's lock, like known
	known bool

	mu       sync.Mutex
	sent     time.Time     // the last initiation
	answered bool          // a response to it has arrived, though the device may not have looked at it
	trip     time.Duration // from an initiation to its response
	data     []time.Time   // each data message sent
	got      time.Time     // the last data message received

	up     chan time.Duration // time of the handshake, once it is authenticated
	cookie chan struct{}      // the server is under load and wants its cookie back
}

func (r *route) initiating(at time.Time) {
	r.mu.Lock()
	r.sent, r.answered = at, false
	r.mu.Unlock()
}

func (r *route) sending(at time.Time) {
	r.mu.Lock()
	r.data = append(r.data, at)
	r.mu.Unlock()
}

func (r *route) received(d datagram) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch d.data[0] {
	case typeResponse:
		// The socket knows only the last initiation's index, so the response is to that one.
		r.trip, r.answered = max(d.at.Sub(r.sent), time.Nanosecond), true
	case typeTransport:
		if len(d.data) > keepaliveSize {
			r.got = d.at
		}
	case typeCookie:
		select {
		case r.cookie <- struct{}{}:
		default:
		}
	}
}

// established tells of a handshake: the device has sent a transport message, so it has
// accepted the response.
func (r *route) established() {
	r.mu.Lock()
	took := r.trip
	r.mu.Unlock()
	select {
	case r.up <- took:
	default:
	}
}

// sentAt is when the n-th data message left; zero = not yet.
func (r *route) sentAt(n int) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n >= len(r.data) {
		return time.Time{}
	}
	return r.data[n]
}

// gotAt is when the last data message arrived.
func (r *route) gotAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

// pending says whether the last initiation's response waits for the device to look at it.
func (r *route) pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered
}

// initiatedAt is when the last initiation left.
func (r *route) initiatedAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// ClearSrc implements conn.Endpoint.
func (r *route) ClearSrc() {}

// SrcToString implements conn.Endpoint.
func (r *route) SrcToString() string { return "" }

// DstToString implements conn.Endpoint.
func (r *route) DstToString() string { return r.dst.String() }

// DstToBytes implements conn.Endpoint.
func (r *route) DstToBytes() []byte {
	b, _ := r.dst.MarshalBinary() // never fails
	return b
}

// DstIP implements conn.Endpoint.
func (r *route) DstIP() netip.Addr { return r.dst.Addr() }

// SrcIP implements conn.Endpoint.
func (r *route) SrcIP() netip.Addr { return netip.Addr{} }
