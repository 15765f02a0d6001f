package tunnel

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"

	"golang.zx2c4.com/wireguard/tun"
)

// Protocol numbers and sizes (RFC 791, 792, 4443, 8200).
const (
	protoICMP   = 1
	protoICMPv6 = 58
	headerV4    = 20
	headerV6    = 40
	headerEcho  = 8
	cookieSize  = 8

	// smallEcho is the size in bytes of an ordinary ping with its IP header: 56 bytes of payload, as ping(8) sends.
	smallEcho = 84
)

// echoTUN is the inner side of a device: packets that we hand to it leave through the
// tunnel, what comes out of the tunnel goes to got. It has no stack of its own.
type echoTUN struct {
	mtu    int
	got    func(ip []byte) // nil = nothing is expected
	events chan tun.Event
	out    chan []byte
	end    chan struct{}
	once   sync.Once
}

func newEchoTUN(mtu int, got func(ip []byte)) *echoTUN {
	return &echoTUN{mtu: mtu, got: got, events: make(chan tun.Event), out: make(chan []byte, 64), end: make(chan struct{})}
}

// File implements tun.Device.
func (t *echoTUN) File() *os.File { return nil }

// MTU implements tun.Device, in bytes.
func (t *echoTUN) MTU() (int, error) { return t.mtu, nil }

// Name implements tun.Device.
func (t *echoTUN) Name() (string, error) { return "echo", nil }

// Events implements tun.Device.
func (t *echoTUN) Events() <-chan tun.Event { return t.events }

// BatchSize implements tun.Device.
func (t *echoTUN) BatchSize() int { return 1 }

// Close implements tun.Device.
func (t *echoTUN) Close() error {
	t.once.Do(func() { close(t.end); close(t.events) })
	return nil
}

// Read implements tun.Device.
func (t *echoTUN) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	select {
	case p := <-t.out:
		sizes[0] = copy(bufs[0][offset:], p)
		return 1, nil
	case <-t.end:
		return 0, os.ErrClosed
	}
}

// Write implements tun.Device.
func (t *echoTUN) Write(bufs [][]byte, offset int) (int, error) {
	if t.got != nil {
		for _, b := range bufs {
			t.got(b[offset:])
		}
	}
	return len(bufs), nil
}

// send queues one packet for the tunnel and says whether there was room.
func (t *echoTUN) send(ip []byte) bool {
	select {
	case t.out <- ip:
		return true
	default:
		return false
	}
}

// echo is what a ping carries.
type echo struct {
	id, seq uint16
	cookie  [cookieSize]byte
	size    int // of the whole packet, bytes
}

// request builds the echo request from src to dst, of one family, never to be fragmented.
func (e echo) request(src, dst netip.Addr) []byte {
	p := make([]byte, e.size)
	var icmp []byte
	var sum uint32
	if dst.Is4() {
		s, d := src.As4(), dst.As4()
		p[0], p[8], p[9] = 0x45, 64, protoICMP
		binary.BigEndian.PutUint16(p[2:], uint16(e.size)) //nolint:gosec // an MTU
		p[6] = 0x40                                       // do not fragment
		copy(p[12:], s[:])
		copy(p[16:], d[:])
		binary.BigEndian.PutUint16(p[10:], checksum(0, p[:headerV4]))
		icmp = p[headerV4:]
		icmp[0] = 8
	} else {
		s, d := src.As16(), dst.As16()
		p[0], p[6], p[7] = 0x60, protoICMPv6, 64
		binary.BigEndian.PutUint16(p[4:], uint16(e.size-headerV6)) //nolint:gosec // an MTU
		copy(p[8:], s[:])
		copy(p[24:], d[:])
		icmp = p[headerV6:]
		icmp[0] = 128
		sum = uint32(len(icmp)) + protoICMPv6 //nolint:gosec // an MTU
		for i := 8; i < headerV6; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[i:]))
		}
	}
	binary.BigEndian.PutUint16(icmp[4:], e.id)
	binary.BigEndian.PutUint16(icmp[6:], e.seq)
	copy(icmp[headerEcho:], e.cookie[:])
	binary.BigEndian.PutUint16(icmp[2:], checksum(sum, icmp))
	return p
}

// parseReply reads an echo reply with its IP header; false = it is something else.
func parseReply(p []byte) (echo, bool) {
	var icmp []byte
	switch {
	case len(p) >= headerV4 && p[0] == 0x45 && p[9] == protoICMP && binary.BigEndian.Uint16(p[6:])&0x3fff == 0:
		icmp = p[headerV4:]
	case len(p) >= headerV6 && p[0]>>4 == 6 && p[6] == protoICMPv6:
		icmp = p[headerV6:]
	}
	if len(icmp) < headerEcho+cookieSize {
		return echo{}, false
	}
	if v4 := p[0]>>4 == 4; icmp[1] != 0 || v4 && icmp[0] != 0 || !v4 && icmp[0] != 129 {
		return echo{}, false
	}
	return echo{
		id:     binary.BigEndian.Uint16(icmp[4:]),
		seq:    binary.BigEndian.Uint16(icmp[6:]),
		cookie: [cookieSize]byte(icmp[headerEcho:]),
		size:   len(p),
	}, true
}

// checksum is the internet checksum (RFC 1071) of b, begun with sum.
func checksum(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
