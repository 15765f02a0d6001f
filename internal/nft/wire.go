package nft

import (
	"encoding/binary"
	mathbits "math/bits"
	"net/netip"
	"strconv"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

// An element of a concatenated type is its fields in the order of the network, each padded
// to four bytes. Marks are in the machine's own order.

// wire is the element as the kernel takes it.
func (i item) wire() nftables.SetElement {
	e := nftables.SetElement{Comment: i.note, Timeout: i.left}
	k := i.key
	switch {
	case k.from.IsValid():
		e.Key = append(k.from.Addr().AsSlice(), k.addr.AsSlice()...)
		e.KeyEnd = append(last(k.from).AsSlice(), k.addr.AsSlice()...)
	case k.proto != "":
		e.Key = binary.BigEndian.AppendUint16(append(k.addr.AsSlice(), protocolNumber(k.proto), 0, 0, 0), k.port)
		e.Key = append(e.Key, 0, 0)
	case k.addr.IsValid():
		e.Key = k.addr.AsSlice()
	default:
		e.Key = binary.NativeEndian.AppendUint32(nil, k.mark)
	}
	if i.to.IsValid() {
		e.Val = append(binary.BigEndian.AppendUint16(i.to.Addr().AsSlice(), i.to.Port()), 0, 0)
	}
	return e
}

// protocolNumber is the inverse of protocolName.
func protocolNumber(p edge.Protocol) byte {
	switch p {
	case edge.TCP:
		return unix.IPPROTO_TCP
	case edge.UDP:
		return unix.IPPROTO_UDP
	case edge.ProtocolUnknown:
	}
	n, _ := strconv.ParseUint(string(p), 10, 8)
	return byte(n)
}

// protocolName is TCP or UDP, or the number of another protocol, so that its element can be
// named and deleted.
func protocolName(n byte) edge.Protocol {
	switch n {
	case unix.IPPROTO_TCP:
		return edge.TCP
	case unix.IPPROTO_UDP:
		return edge.UDP
	}
	return edge.Protocol(strconv.Itoa(int(n)))
}

// rawElement is an element as the kernel lists it.
type rawElement struct {
	key, end, data, user []byte
	expires              time.Duration
	lasts                bool // it has no end
}

// item reads an element of set s; false where it is none that we write.
func (e rawElement) item(s set) (item, bool) {
	i := item{note: comment(e.user), left: e.expires}
	size := 4
	if s.family == 6 {
		size = 16
	}
	ok := false
	switch s.kind {
	case kindLease:
		if e.lasts {
			i.left = -1
		}
		if len(e.key) == 4 {
			i.key.mark, ok = binary.NativeEndian.Uint32(e.key), true
		}
		return i, ok
	case kindOnLink:
		if e.end == nil {
			e.end = e.key
		}
		if len(e.key) != 2*size || len(e.end) != 2*size || string(e.key[size:]) != string(e.end[size:]) {
			return i, false
		}
		i.key.addr, _ = netip.AddrFromSlice(e.key[size:])
		i.key.from, ok = span(e.key[:size], e.end[:size])
		return i, ok && e.end != nil
	case kindAddress:
		i.key.addr, ok = netip.AddrFromSlice(e.key)
		return i, ok && len(e.key) == size
	case kindTarget, kindNode, kindService, kindBackend, kindAlways:
	}
	if len(e.key) != size+8 || s.data != nil && len(e.data) != size+4 {
		return i, false
	}
	i.key.addr, _ = netip.AddrFromSlice(e.key[:size])
	i.key.proto = protocolName(e.key[size])
	i.key.port = binary.BigEndian.Uint16(e.key[size+4:])
	if s.data != nil {
		to, _ := netip.AddrFromSlice(e.data[:size])
		i.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(e.data[size:]))
	}
	return i, true
}

// comment takes the comment out of an element's user data, a list of type, length, value.
func comment(user []byte) string {
	const typeComment = 0
	for len(user) >= 2 && len(user) >= 2+int(user[1]) {
		value := user[2 : 2+int(user[1])]
		if user[0] == typeComment {
			if n := len(value); n > 0 && value[n-1] == 0 {
				value = value[:n-1]
			}
			return string(value)
		}
		user = user[2+len(value):]
	}
	return ""
}

// last is the greatest address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits() / 8; i < len(b); i++ {
		b[i] |= 0xff >> max(0, p.Bits()-8*i)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// span is the prefix from one address to another; false where there is none.
func span(from, to []byte) (netip.Prefix, bool) {
	a, _ := netip.AddrFromSlice(from)
	b, _ := netip.AddrFromSlice(to)
	bits := 0 // that both have in common
	for i := range min(len(from), len(to)) {
		same := mathbits.LeadingZeros8(from[i] ^ to[i])
		bits += same
		if same < 8 {
			break
		}
	}
	p := netip.PrefixFrom(a, bits)
	return p, p.Masked() == p && last(p) == b
}
