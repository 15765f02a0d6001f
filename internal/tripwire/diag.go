package tripwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The kernel's socket diagnosis (linux/sock_diag.h, linux/inet_diag.h): the multicast
// groups of destroyed TCP sockets, and the question which socket listens.
const (
	groupDestroy4 = 1 // SKNLGRP_INET_TCP_DESTROY
	groupDestroy6 = 3 // SKNLGRP_INET6_TCP_DESTROY

	headerSize = unix.SizeofNlMsghdr
	portAt     = headerSize + 4 // of idiag_sport, after family, state, timer and retransmits
	peerAt     = portAt + 2     // of idiag_dport: 0 for a socket that listened
	diagSize   = headerSize + 72
	askSize    = headerSize + 56

	typeByFamily = 20 // SOCK_DIAG_BY_FAMILY
)

// diag is the way to the kernel's socket diagnosis of one network namespace.
type diag struct {
	events int // the groups
	ask    int
	seq    uint32
	buf    [8192]byte
}

// openDiag joins the groups before anyone asks who listens: what is seen to listen can't
// go unnoticed after.
func openDiag() (*diag, error) {
	events, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("socket diagnosis: %w", err)
	}
	d := &diag{events: events, ask: -1}
	// Every connection of the machine that ends would wake us; the kernel passes on those without a peer.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: peerAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: uint32(len(d.buf))},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err = unix.SetsockoptSockFprog(events, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
	if err == nil {
		err = unix.Bind(events, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1<<(groupDestroy4-1) | 1<<(groupDestroy6-1)})
	}
	if err == nil {
		d.ask, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	}
	if err == nil { // it answers within the call; should it not, nobody waits for ever
		err = unix.SetsockoptTimeval(d.ask, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	}
	if err == nil {
		_, err = d.listens(netip.AddrPortFrom(netip.IPv4Unspecified(), 1)) // does the kernel know the question?
	}
	if err != nil {
		d.close()
		return nil, fmt.Errorf("socket diagnosis: %w", err)
	}
	return d, nil
}

func (d *diag) close() {
	for _, fd := range []int{d.events, d.ask} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	d.events, d.ask = -1, -1
}

// destroyed reads which local ports lost a socket that had no peer; all means that some
// news was lost, so that any may have.
func (d *diag) destroyed() (ports map[uint16]bool, all bool) {
	ports = map[uint16]bool{}
	for range 256 {
		n, _, err := unix.Recvfrom(d.events, d.buf[:], 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			all = true
		case err != nil:
			return ports, all
		default:
			for _, p := range parseDestroyed(d.buf[:n]) {
				ports[p] = true
			}
		}
	}
	return ports, all
}

// parseDestroyed reads the local ports out of a datagram of the groups.
func parseDestroyed(b []byte) []uint16 {
	var ports []uint16
	for len(b) >= headerSize {
		size := int(binary.NativeEndian.Uint32(b))
		if size < headerSize || size > len(b) {
			break
		}
		if binary.NativeEndian.Uint16(b[4:]) == typeByFamily && size >= diagSize && binary.BigEndian.Uint16(b[peerAt:]) == 0 {
			ports = append(ports, binary.BigEndian.Uint16(b[portAt:]))
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return ports
}

// listens asks the kernel whether a packet that opens a connection to addr would find a
// listening socket here, one on the unspecified address included.
func (d *diag) listens(addr netip.AddrPort) (bool, error) {
	d.seq++
	if _, err := unix.Write(d.ask, question(addr, d.seq)); err != nil {
		return false, fmt.Errorf("who listens on %s: %w", addr, err)
	}
	for {
		n, _, err := unix.Recvfrom(d.ask, d.buf[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("who listens on %s: %w", addr, err)
		}
		here, mine, err := answer(d.buf[:n], d.seq)
		if !mine {
			continue // of a question that was given up
		}
		if err != nil {
			return false, fmt.Errorf("who listens on %s: %w", addr, err)
		}
		return here, nil
	}
}

// question is a request for exactly the socket that takes a connection to addr.
func question(addr netip.AddrPort, seq uint32) []byte {
	b := make([]byte, askSize)
	binary.NativeEndian.PutUint32(b, askSize)
	binary.NativeEndian.PutUint16(b[4:], typeByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(b[8:], seq)
	q := b[headerSize:]
	q[0], q[1] = unix.AF_INET, unix.IPPROTO_TCP
	if addr.Addr().Is6() {
		q[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(q[4:], ^uint32(0)) // every state
	binary.BigEndian.PutUint16(q[8:], addr.Port())
	copy(q[12:28], addr.Addr().AsSlice())
	for i := 48; i < 56; i++ { // no cookie
		q[i] = 0xff
	}
	return b
}

// answer reads the kernel's answer to the question with that number.
func answer(b []byte, seq uint32) (here, mine bool, err error) {
	if len(b) < headerSize || binary.NativeEndian.Uint32(b[8:]) != seq {
		return false, false, nil
	}
	switch binary.NativeEndian.Uint16(b[4:]) {
	case typeByFamily:
		return true, true, nil
	case unix.NLMSG_ERROR:
		if len(b) < headerSize+4 {
			return false, true, unix.EBADMSG
		}
		code := unix.Errno(-int32(binary.NativeEndian.Uint32(b[headerSize:])))
		if code == unix.ENOENT {
			return false, true, nil
		}
		return false, true, code
	default:
		return false, true, unix.EBADMSG
	}
}
