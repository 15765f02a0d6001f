package probe

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	echoHeader = 8
	cookieSize = 8
	// ordinaryPayload is what ping(8) sends, in bytes.
	ordinaryPayload = 56

	typeEchoV4, typeReplyV4 = 8, 0
	typeEchoV6, typeReplyV6 = 128, 129
)

// socket is an ICMP socket of one family that is bound to one interface.
type socket struct {
	file *os.File
	conn syscall.RawConn
	v6   bool
	raw  bool // needs CAP_NET_RAW; it gets all ICMP of the interface, over IPv4 with the IP header
}

// open makes a socket. The kernel's own ping sockets need no capability, but
// net.ipv4.ping_group_range is closed on many routers, for root as well.
func open(iface string, v6, whole bool) (*socket, error) {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if v6 {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	const flags = unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	s := &socket{v6: v6}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|flags, proto)
	if err != nil {
		s.raw = true
		if fd, err = unix.Socket(family, unix.SOCK_RAW|flags, proto); err != nil {
			return nil, os.NewSyscallError("icmp socket", err)
		}
	}
	if err := s.prepare(fd, iface, whole); err != nil {
		_ = unix.Close(fd) // nothing was written
		return nil, err
	}
	s.file = os.NewFile(uintptr(fd), "icmp")
	if s.conn, err = s.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

func (s *socket) prepare(fd int, iface string, whole bool) error {
	if err := unix.BindToDevice(fd, iface); err != nil {
		return os.NewSyscallError("bind to "+iface, err)
	}
	if s.raw && s.v6 { // only replies; over IPv4 the parser sorts
		filter := unix.ICMPv6Filter{}
		for i := range filter.Data {
			filter.Data[i] = ^uint32(0)
		}
		filter.Data[typeReplyV6>>5] &^= 1 << (typeReplyV6 & 31)
		if err := unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &filter); err != nil {
			return os.NewSyscallError("icmp filter", err)
		}
	}
	if !whole {
		return nil
	}
	level, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if s.v6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	return os.NewSyscallError("mtu discovery", unix.SetsockoptInt(fd, level, option, unix.IP_PMTUDISC_PROBE))
}

func (s *socket) close() { _ = s.file.Close() }

// send writes one datagram without waiting: a full queue is an error like any other.
func (s *socket) send(b []byte, to netip.Addr) error {
	var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(to.AsSlice())}
	if s.v6 {
		sa = &unix.SockaddrInet6{Addr: to.As16()}
	}
	var err error
	if e := s.conn.Control(func(fd uintptr) { err = unix.Sendto(int(fd), b, 0, sa) }); e != nil {
		return e
	}
	return err
}

// receive waits for a datagram and returns its ICMP part. It ends with an error when the socket is closed.
func (s *socket) receive(buf []byte) ([]byte, error) {
	var n int
	var err error
	if e := s.conn.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), buf, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	}); e != nil {
		return nil, errors.Join(os.ErrClosed, e)
	}
	if err != nil {
		return nil, os.NewSyscallError("receive", err)
	}
	b := buf[:n]
	if s.raw && !s.v6 {
		if len(b) < 20 || len(b) < int(b[0]&15)*4 {
			return nil, nil
		}
		b = b[int(b[0]&15)*4:]
	}
	return b, nil
}

// ident tells our answers from those of every other pinger on the host: the kernel
// hands a raw socket all of them, and 16 bits of id are soon equal.
type ident struct {
	id     uint16
	cookie [cookieSize]byte
}

// request is an echo request with that many bytes of payload. Over IPv6 the kernel fills in the checksum.
func (i ident) request(v6 bool, seq uint16, payload int) []byte {
	m := make([]byte, echoHeader+max(payload, cookieSize))
	m[0] = typeEchoV4
	if v6 {
		m[0] = typeEchoV6
	}
	binary.BigEndian.PutUint16(m[4:], i.id)
	binary.BigEndian.PutUint16(m[6:], seq)
	copy(m[echoHeader:], i.cookie[:])
	if !v6 {
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	}
	return m
}

// reply reads the sequence number of an answer to one of our requests. The kernel
// replaces the id of a ping socket's requests, so it counts only on a raw one.
func (i ident) reply(m []byte, v6, raw bool) (seq int, ok bool) {
	kind := byte(typeReplyV4)
	if v6 {
		kind = typeReplyV6
	}
	if len(m) < echoHeader+cookieSize || m[0] != kind || m[1] != 0 || [cookieSize]byte(m[echoHeader:]) != i.cookie {
		return 0, false
	}
	if raw && binary.BigEndian.Uint16(m[4:]) != i.id {
		return 0, false
	}
	return int(binary.BigEndian.Uint16(m[6:])), true
}

// checksum is the internet checksum (RFC 1071) of b.
func checksum(b []byte) uint16 {
	var sum uint32
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
