package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
)

// Sizes and types of WireGuard's messages (its white paper, section 5.4).
const (
	typeInitiation = 1
	typeResponse   = 2
	typeCookie     = 3
	typeTransport  = 4

	minMessage    = 32 // an empty transport message
	keepaliveSize = 32
)

// receiveBuffer is asked for on the shared socket, in bytes: answers come in bursts when the reader waits for a core.
const receiveBuffer = 4 << 20

// readErrors in a row mean that a socket is beyond hope.
const readErrors = 1000

// socket is the one UDP socket (one for each family) that all devices of a test share:
// no descriptor per endpoint, one place that takes the time of arrival, and one that
// stays open while late datagrams of closed tunnels come in, so that the kernel does not
// answer them with ICMP errors by the default route.
type socket struct {
	control Control
	mu      sync.RWMutex
	routes  map[uint32]*route // by the index that our initiation carried
	// hidden are the routes whose server speaks AmneziaWG, by its address: only its codec
	// finds the index in what comes from there.
	hidden  map[netip.AddrPort][]*route
	v4, v6  *net.UDPConn
	readers sync.WaitGroup
}

// Control is applied to the UDP socket before it is bound: SO_BINDTODEVICE or SO_MARK
// keep a test's own traffic on the uplink, whatever the routes say.
type Control func(network, address string, c syscall.RawConn) error

// Underlay is a Control that binds to an interface ("" = none) and sets a mark (0 =
// none, else CAP_NET_ADMIN is needed).
func Underlay(iface string, mark egress.Mark) Control {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			if iface != "" {
				if err = unix.BindToDevice(int(fd), iface); err != nil {
					err = fmt.Errorf("bind to %s: %w", iface, err)
					return
				}
			}
			if mark != 0 {
				if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
					err = fmt.Errorf("mark %s: %w", mark, err)
				}
			}
		}); e != nil {
			return e
		}
		return err
	}
}

func openSocket(ctx context.Context, control Control, families map[string]bool) (*socket, error) {
	s := &socket{control: control, routes: map[uint32]*route{}, hidden: map[netip.AddrPort][]*route{}}
	for _, network := range []string{"udp4", "udp6"} {
		if !families[network] {
			continue
		}
		c, err := s.listen(ctx, network)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("underlay socket: %w", err)
		}
		if network == "udp4" {
			s.v4 = c
		} else {
			s.v6 = c
		}
	}
	return s, nil
}

func (s *socket) listen(ctx context.Context, network string) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(n, address string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
			// Beyond net.core.rmem_max only with CAP_NET_ADMIN; without it the plain size stays.
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		}); e != nil {
			return e
		}
		if err != nil || s.control == nil {
			return err
		}
		return s.control(n, address, c)
	}}
	pc, err := lc.ListenPacket(ctx, network, ":0")
	if err != nil {
		return nil, err
	}
	c, ok := pc.(*net.UDPConn)
	if !ok {
		_ = pc.Close()
		return nil, fmt.Errorf("%s: not a UDP socket", network)
	}
	s.readers.Go(func() { s.read(c) })
	return c, nil
}

// close ends the readers and frees the descriptors.
func (s *socket) close() {
	for _, c := range []*net.UDPConn{s.v4, s.v6} {
		if c != nil {
			_ = c.Close() // a UDP socket has nothing left to flush
		}
	}
	s.readers.Wait()
}

// read hands each datagram to the device whose initiation carried its receiver index.
func (s *socket) read(c *net.UDPConn) {
	buf, oob, failed := make([]byte, 1<<16), make([]byte, 128), 0
	for {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			// Anything else concerns one datagram or one destination.
			if failed++; errors.Is(err, net.ErrClosed) || failed > readErrors {
				return
			}
			continue
		}
		failed = 0
		at := arrival(oob[:oobn], time.Now()) //nolint:forbidigo // measures a duration
		s.dispatch(buf[:n], netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), at)
	}
}

// dispatch hands one datagram on.
func (s *socket) dispatch(b []byte, from netip.AddrPort, at time.Time) {
	s.mu.RLock()
	hidden := s.hidden[from]
	s.mu.RUnlock()
	for _, r := range hidden {
		if s.reveal(r, b, at) {
			return
		}
	}
	index, ok := receiver(b)
	if !ok {
		return
	}
	s.mu.RLock()
	r := s.routes[index]
	s.mu.RUnlock()
	if r != nil && r.codec == nil {
		r.port.deliver(datagram{data: append([]byte(nil), b...), from: r, at: at})
	}
}

// reveal hands a datagram to r if it is one of its messages in AmneziaWG. A cookie reply
// ends here: the next initiation makes use of it.
func (s *socket) reveal(r *route, b []byte, at time.Time) bool {
	plain := append([]byte(nil), b...)
	n, kind := r.codec.Decode(plain, len(plain), r)
	if kind == amnezia.KindCookieReply && n == 0 {
		r.received(datagram{data: []byte{typeCookie}, from: r, at: at})
		return true
	}
	index, ok := receiver(plain[:n])
	if !ok {
		return false
	}
	s.mu.RLock()
	mine := s.routes[index] == r
	s.mu.RUnlock()
	if mine {
		r.port.deliver(datagram{data: plain[:n], from: r, at: at})
	}
	return mine
}

// receiver is the index that a message to us names.
func receiver(b []byte) (uint32, bool) {
	if len(b) < minMessage {
		return 0, false
	}
	switch b[0] {
	case typeResponse:
		return binary.LittleEndian.Uint32(b[8:]), true
	case typeCookie, typeTransport:
		return binary.LittleEndian.Uint32(b[4:]), true
	}
	return 0, false
}

// arrival is when the kernel got the datagram, on the monotonic clock: the time that
// the reader waited for a core is taken off. A wall clock that was set meanwhile gives
// an absurd wait, and then the reader's own time stands.
func arrival(oob []byte, now time.Time) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return now
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SO_TIMESTAMPNS {
			continue
		}
		var sec, nsec int64
		switch len(m.Data) {
		case 16:
			sec, nsec = int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])) //nolint:gosec // a time
		case 8: // 32-bit kernels
			sec, nsec = int64(binary.NativeEndian.Uint32(m.Data)), int64(binary.NativeEndian.Uint32(m.Data[4:]))
		default:
			return now
		}
		if waited := now.UnixNano() - sec*int64(time.Second) - nsec; waited > 0 && waited < int64(time.Second) {
			return now.Add(-time.Duration(waited))
		}
	}
	return now
}

// write sends one datagram now.
func (s *socket) write(b []byte, to netip.AddrPort) error {
	c := s.v4
	if to.Addr().Is6() {
		c = s.v6
	}
	if c == nil {
		return net.ErrClosed
	}
	_, err := c.WriteToUDPAddrPort(b, to)
	return err
}

// listenFor makes messages with that receiver index reach r instead of those with its last index.
func (s *socket) listenFor(r *route, index uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(r)
	r.index, r.known = index, true
	s.routes[index] = r
	if r.codec != nil {
		s.hidden[r.dst] = append(slices.Clone(s.hidden[r.dst]), r) // readers hold the old one
	}
}

func (s *socket) forget(r *route) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(r)
}

func (s *socket) forgetLocked(r *route) {
	if r.known && s.routes[r.index] == r {
		delete(s.routes, r.index)
	}
	if r.known && r.codec != nil {
		s.hidden[r.dst] = slices.DeleteFunc(slices.Clone(s.hidden[r.dst]), func(x *route) bool { return x == r })
		if len(s.hidden[r.dst]) == 0 {
			delete(s.hidden, r.dst)
		}
	}
	r.known = false
}
