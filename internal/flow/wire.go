package flow

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// What of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h is used here.
const (
	subsystem = 1 << 8 // NFNL_SUBSYS_CTNETLINK, the upper byte of a message's type
	msgGet    = 1
	msgDelete = 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	tupleIP    = 1
	tupleProto = 2

	ipV4Src, ipV4Dst = 1, 2
	ipV6Src, ipV6Dst = 3, 4

	protoNum, protoSrcPort, protoDstPort = 1, 2, 3

	filterOrigFlags, filterReplyFlags = 1, 2

	flagIPSrc, flagIPDst, flagProtoNum        = 1 << 0, 1 << 1, 1 << 3
	flagProtoSrcPort, flagProtoDstPort        = 1 << 4, 1 << 5
	statusSeenReply                    uint32 = 1 << 1

	nested   = unix.NLA_F_NESTED
	typeMask = 1<<14 - 1 // NLA_TYPE_MASK
	header   = 4         // bytes of struct nfgenmsg
)

// entry is what is read of one conntrack entry.
type entry struct {
	family uint8
	proto  uint8
	from   netip.AddrPort // original destination
	reply  netip.AddrPort // source of the answers
	status uint32

	orig, id, zone []byte // as the kernel sent them: they name the entry
	scope          int    // of the job that found it
}

// attr appends one attribute, padded.
func attr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// tuple is one direction's tuple: an address of kind (invalid: none), the protocol, and a
// port of portKind (0: none).
func tuple(a netip.Addr, kind uint16, proto uint8, portKind, port uint16) []byte {
	var b []byte
	if a.IsValid() {
		b = attr(b, tupleIP|nested, attr(nil, kind, a.AsSlice()))
	}
	p := attr(nil, protoNum, []byte{proto})
	if port != 0 {
		p = attr(p, portKind, be16(port))
	}
	return attr(b, tupleProto|nested, p)
}

// filter picks a scope's entries: the flags say which parts of the two tuples count. It is
// exact for IPv4. For IPv6 it leaves the addresses out: the kernel (from 5.8 to 6.18 at least)
// compares them the wrong way round and picks those that differ.
func (s scope) filter() []byte {
	var from, answers netip.Addr
	orig, reply := uint32(flagProtoNum|flagProtoDstPort), uint32(flagProtoNum)
	if s.from.Addr().Is4() {
		from, answers = s.from.Addr(), s.reply
		orig, reply = orig|flagIPDst, reply|flagIPSrc
	}
	if s.port != 0 {
		reply |= flagProtoSrcPort
	}
	b := attr(nil, ctaTupleOrig|nested, tuple(from, ipV4Dst, s.proto, protoDstPort, s.from.Port()))
	b = attr(b, ctaTupleReply|nested, tuple(answers, ipV4Src, s.proto, protoSrcPort, s.port))
	b = attr(b, ctaFilter|nested, flags(orig, reply))
	if s.pending {
		b = attr(b, ctaStatus, be32(0))
		b = attr(b, ctaStatusMask, be32(statusSeenReply))
	}
	return b
}

// flags are in the machine's own byte order, unlike all else.
func flags(orig, reply uint32) []byte {
	var b []byte
	if orig != 0 {
		b = attr(b, filterOrigFlags, binary.NativeEndian.AppendUint32(nil, orig))
	}
	return attr(b, filterReplyFlags, binary.NativeEndian.AppendUint32(nil, reply))
}

// filter makes the kernel list little more than the job's entries.
func (j job) filter() []byte {
	if len(j.scopes) == 1 {
		return j.scopes[0].filter()
	}
	if !j.reply.Is4() {
		return nil // the family alone
	}
	b := attr(nil, ctaTupleReply|nested, attr(nil, tupleIP|nested, attr(nil, ipV4Src, j.reply.AsSlice())))
	return attr(b, ctaFilter|nested, flags(0, flagIPSrc))
}

// key names exactly this entry: another one with the same tuple has another id.
func (e entry) key() []byte {
	b := attr(nil, ctaTupleOrig|nested, e.orig)
	if e.id != nil {
		b = attr(b, ctaID, e.id)
	}
	if e.zone != nil {
		b = attr(b, ctaZone, e.zone)
	}
	return b
}

// own returns e with copies of what it holds of the buffer it was read from.
func (e entry) own() entry {
	e.orig, e.id, e.zone = bytes.Clone(e.orig), bytes.Clone(e.id), bytes.Clone(e.zone)
	return e
}

var errShort = errors.New("message too short")

// decode reads an entry as the kernel lists it. Parts of an entry that a scope never asks
// about (ICMP's, say) are left out.
func decode(b []byte) (entry, error) {
	if len(b) < header {
		return entry{}, fmt.Errorf("conntrack entry: %w", errShort)
	}
	e := entry{family: b[0]}
	err := each(b[header:], func(kind uint16, v []byte) error {
		switch kind {
		case ctaTupleOrig:
			e.orig = v
			return e.tuple(v, &e.from, ipV4Dst, ipV6Dst, protoDstPort)
		case ctaTupleReply:
			return e.tuple(v, &e.reply, ipV4Src, ipV6Src, protoSrcPort)
		case ctaStatus:
			if len(v) != 4 {
				return fmt.Errorf("status: %w", errShort)
			}
			e.status = binary.BigEndian.Uint32(v)
		case ctaID:
			e.id = v
		case ctaZone:
			e.zone = v
		}
		return nil
	})
	if err != nil {
		return entry{}, fmt.Errorf("conntrack entry: %w", err)
	}
	return e, nil
}

// tuple reads one address, the protocol and one port of a direction.
func (e *entry) tuple(b []byte, to *netip.AddrPort, kind4, kind6, portKind uint16) error {
	var addr netip.Addr
	var port uint16
	err := each(b, func(outer uint16, v []byte) error {
		if outer != tupleIP && outer != tupleProto {
			return nil
		}
		return each(v, func(kind uint16, v []byte) error {
			switch {
			case outer == tupleIP && (kind == kind4 || kind == kind6):
				a, ok := netip.AddrFromSlice(v)
				if !ok || a.Is4() != (kind == kind4) {
					return fmt.Errorf("address of %d bytes", len(v))
				}
				addr = a
			case outer == tupleProto && kind == protoNum:
				if len(v) != 1 {
					return fmt.Errorf("protocol of %d bytes", len(v))
				}
				e.proto = v[0]
			case outer == tupleProto && kind == portKind:
				if len(v) != 2 {
					return fmt.Errorf("port of %d bytes", len(v))
				}
				port = binary.BigEndian.Uint16(v)
			}
			return nil
		})
	})
	*to = netip.AddrPortFrom(addr, port)
	return err
}

// each calls do for each attribute of b.
func each(b []byte, do func(kind uint16, value []byte) error) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return errShort
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return errShort
		}
		if err := do(binary.NativeEndian.Uint16(b[2:])&typeMask, b[4:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}
