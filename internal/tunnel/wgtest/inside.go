package wgtest

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/tun"

	"github.com/shunt-net/shunt/internal/tunnel/tcp"
)

// bigPacket is the size in bytes above which an inner packet counts as data: a choked
// path lets small ones through for ever.
const bigPacket = 200

// inside is the inner side of an endpoint: a TUN that answers ICMP echo and TLS, v4 and v6, for every address.
type inside struct {
	endpoint *endpoint
	events   chan tun.Event
	out      chan []byte
	end      chan struct{}
	once     sync.Once
}

func newInside(e *endpoint) *inside {
	return &inside{endpoint: e, events: make(chan tun.Event), out: make(chan []byte, 64), end: make(chan struct{})}
}

func (t *inside) File() *os.File           { return nil }
func (t *inside) MTU() (int, error)        { return 1420, nil }
func (t *inside) Name() (string, error)    { return "inside", nil }
func (t *inside) Events() <-chan tun.Event { return t.events }
func (t *inside) BatchSize() int           { return 1 }

func (t *inside) Close() error {
	t.once.Do(func() { close(t.end); close(t.events) })
	return nil
}

func (t *inside) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	select {
	case p := <-t.out:
		sizes[0] = copy(bufs[0][offset:], p)
		return 1, nil
	case <-t.end:
		return 0, os.ErrClosed
	}
}

func (t *inside) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		if !t.endpoint.pass(b[offset:]) {
			continue
		}
		if tcp.Segment(b[offset:]) {
			t.endpoint.web.receive(b[offset:], t.send)
			continue
		}
		if r := answer(b[offset:]); r != nil {
			t.send(r)
		}
	}
	return len(bufs), nil
}

func (t *inside) send(ip []byte) {
	select {
	case t.out <- ip:
	default:
	}
}

// admit counts a datagram from outside and says whether the device may see it.
func (e *endpoint) admit(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	e.lastDatagram.Store(time.Now().UnixNano()) //nolint:forbidigo // compared with the test's own clock
	switch b[0] {
	case 1:
		e.initiations.Add(1)
	case 4:
		e.data.Add(1)
	}
	return !e.behaviour.Load().Silent
}

// pass says whether an inner packet gets through.
func (e *endpoint) pass(ip []byte) bool {
	b, size := e.behaviour.Load(), len(ip)
	if (b.NoTCP || b.NoData) && tcp.Segment(ip) && (b.NoTCP || payload(ip) > 0) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.MTU > 0 && size > b.MTU {
		return false
	}
	if b.ChokeAfter > 0 && size > bigPacket {
		if e.choked += size; e.choked > b.ChokeAfter {
			return false
		}
	}
	if e.debt += b.Drop; e.debt >= 1 {
		e.debt--
		return false
	}
	return true
}

// payload is how many bytes of data a TCP segment without IPv6 extension headers carries.
func payload(ip []byte) int {
	head := 40
	if ip[0]>>4 == 4 {
		head = int(ip[0]&15) * 4
	}
	if len(ip) < head+20 {
		return 0
	}
	return len(ip) - head - int(ip[head+12]>>4)*4
}

// answer turns an echo request into its reply; nil = it was none.
func answer(p []byte) []byte {
	switch {
	case len(p) >= 28 && p[0] == 0x45 && p[9] == 1 && p[20] == 8:
		r := append([]byte(nil), p...)
		copy(r[12:16], p[16:20])
		copy(r[16:20], p[12:16])
		r[20], r[22], r[23] = 0, 0, 0
		binary.BigEndian.PutUint16(r[22:], checksum(0, r[20:]))
		return r
	case len(p) >= 48 && p[0]>>4 == 6 && p[6] == 58 && p[40] == 128:
		r := append([]byte(nil), p...)
		copy(r[8:24], p[24:40])
		copy(r[24:40], p[8:24])
		r[40], r[42], r[43] = 129, 0, 0
		pseudo := uint32(len(r)-40) + 58
		for i := 8; i < 40; i += 2 {
			pseudo += uint32(binary.BigEndian.Uint16(r[i:]))
		}
		binary.BigEndian.PutUint16(r[42:], checksum(pseudo, r[40:]))
		return r
	}
	return nil
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
