package server

import (
	"encoding/binary"
	"net/netip"
)

const (
	protoICMP     = 1
	protoTCP      = 6
	protoUDP      = 17
	protoFragment = 44
	protoICMP6    = 58
)

// transport returns the protocol of an IP packet and where its header begins; ok is false
// for a packet too short to say and for all but the first fragment.
func transport(p []byte) (proto byte, at int, ok bool) {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		at = int(p[0]&15) * 4
		first := binary.BigEndian.Uint16(p[6:])&0x1fff == 0
		return p[9], at, first && at >= 20 && at <= len(p)
	case len(p) >= 40 && p[0]>>4 == 6:
		if p[6] != protoFragment {
			return p[6], 40, true
		}
		if len(p) < 48 {
			return 0, 0, false
		}
		return p[40], 48, binary.BigEndian.Uint16(p[42:])&^7 == 0
	}
	return 0, 0, false
}

// isPing says whether p is an ICMP echo request.
func isPing(p []byte) bool {
	proto, at, ok := transport(p)
	return ok && at < len(p) &&
		(proto == protoICMP && p[at] == 8 || proto == protoICMP6 && p[at] == 128)
}

// source and target return the addresses of an IP packet.
func source(p []byte) (netip.Addr, bool) { return address(p, false) }
func target(p []byte) (netip.Addr, bool) { return address(p, true) }

func address(p []byte, dst bool) (netip.Addr, bool) {
	at, n, ok := addressAt(p, dst)
	if !ok {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(p[at : at+n])
}

func addressAt(p []byte, dst bool) (at, n int, ok bool) {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		at, n = 12, 4
	case len(p) >= 40 && p[0]>>4 == 6:
		at, n = 8, 16
	default:
		return 0, 0, false
	}
	if dst {
		at += n
	}
	return at, n, true
}

// rewrite puts to in the place of the source (or target) address of an IP packet and
// corrects its checksums by the difference (RFC 1624). An ICMP error's copy of the packet
// that caused it is rewritten the other way round.
func rewrite(p []byte, dst bool, to netip.Addr) bool {
	at, n, ok := addressAt(p, dst)
	if !ok || to.BitLen() != n*8 {
		return false
	}
	delta := swap(p[at:at+n], to.AsSlice())
	if n == 4 {
		correct(p, 10, delta)
	}
	proto, l4, ok := transport(p)
	if !ok {
		return true
	}
	switch proto {
	case protoTCP:
		correct(p, l4+16, delta)
	case protoUDP:
		if l4+8 <= len(p) && (p[l4+6] != 0 || p[l4+7] != 0) {
			correct(p, l4+6, delta)
			if p[l4+6] == 0 && p[l4+7] == 0 {
				p[l4+6], p[l4+7] = 0xff, 0xff
			}
		}
	case protoICMP:
		if l4+8 <= len(p) && (p[l4] == 3 || p[l4] == 11 || p[l4] == 12) {
			// The header's own checksum takes up the difference: ICMP's stays.
			if in := p[l4+8:]; len(in) >= 20 && in[0]>>4 == 4 {
				if a, n, ok := addressAt(in, !dst); ok {
					correct(in, 10, swap(in[a:a+n], to.AsSlice()))
				}
			}
		}
	case protoICMP6:
		if l4+8 <= len(p) && p[l4] < 128 {
			if a, n, ok := addressAt(p[l4+8:], !dst); ok && n == 16 {
				delta += swap(p[l4+8+a:l4+8+a+n], to.AsSlice())
			}
		}
		correct(p, l4+2, delta)
	}
	return true
}

// swap writes to over was and returns the sum of the differences in 16-bit words.
func swap(was, to []byte) uint32 {
	var d uint32
	for i := 0; i+1 < len(was); i += 2 {
		d += uint32(^binary.BigEndian.Uint16(was[i:]))
		d += uint32(binary.BigEndian.Uint16(to[i:]))
	}
	copy(was, to)
	return d
}

// correct changes the checksum at p[at:] by delta.
func correct(p []byte, at int, delta uint32) {
	if at+2 > len(p) {
		return
	}
	s := uint32(^binary.BigEndian.Uint16(p[at:])) + delta
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	binary.BigEndian.PutUint16(p[at:], ^uint16(s))
}
