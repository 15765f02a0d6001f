package server

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// sum is the Internet checksum of b, in full.
func sum(b ...[]byte) uint16 {
	var s uint32
	for _, p := range b {
		for i := 0; i < len(p); i += 2 {
			w := uint32(p[i]) << 8
			if i+1 < len(p) {
				w |= uint32(p[i+1])
			}
			s += w
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// packet makes an IP packet with right checksums.
func packet(src, dst netip.Addr, proto byte, l4 []byte) []byte {
	l4 = append([]byte(nil), l4...)
	at, pseudo := checksumAt(proto), true
	if proto == protoICMP {
		pseudo = false
	}
	head := make([]byte, 20)
	if src.Is4() {
		head[0], head[8], head[9] = 0x45, 64, proto
		binary.BigEndian.PutUint16(head[2:], uint16(20+len(l4)))
		copy(head[12:], src.AsSlice())
		copy(head[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(head[10:], sum(head))
	} else {
		head = make([]byte, 40)
		head[0], head[6], head[7] = 0x60, proto, 64
		binary.BigEndian.PutUint16(head[4:], uint16(len(l4)))
		copy(head[8:], src.AsSlice())
		copy(head[24:], dst.AsSlice())
	}
	if at >= 0 {
		binary.BigEndian.PutUint16(l4[at:], 0)
		var ph []byte
		if pseudo {
			ph = append(append(append(ph, src.AsSlice()...), dst.AsSlice()...), 0, proto, byte(len(l4)>>8), byte(len(l4)))
		}
		c := sum(ph, l4)
		if proto == protoUDP && c == 0 {
			c = 0xffff
		}
		binary.BigEndian.PutUint16(l4[at:], c)
	}
	return append(head, l4...)
}

func checksumAt(proto byte) int {
	switch proto {
	case protoTCP:
		return 16
	case protoUDP:
		return 6
	case protoICMP, protoICMP6:
		return 2
	}
	return -1
}

// norm makes the two zeros of ones' complement one.
func norm(p []byte) []byte {
	out := append([]byte(nil), p...)
	proto, at, ok := transport(out)
	if c := checksumAt(proto); ok && c >= 0 && binary.BigEndian.Uint16(out[at+c:]) == 0xffff {
		out[at+c], out[at+c+1] = 0, 0
	}
	if out[0]>>4 == 4 && binary.BigEndian.Uint16(out[10:]) == 0xffff {
		out[10], out[11] = 0, 0
	}
	return out
}

func addresses(t *rapid.T, v6 bool) (a, b, c netip.Addr) {
	n := 4
	if v6 {
		n = 16
	}
	draw := func(name string) netip.Addr {
		x, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name))
		return x
	}
	return draw("source"), draw("target"), draw("new")
}

func TestARewrittenPacketIsOneThatWasMadeThatWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v6 := rapid.Bool().Draw(t, "v6")
		src, dst, to := addresses(t, v6)
		icmp := byte(protoICMP)
		if v6 {
			icmp = protoICMP6
		}
		proto := rapid.SampledFrom([]byte{protoTCP, protoUDP, icmp, 99}).Draw(t, "proto")
		l4 := rapid.SliceOfN(rapid.Byte(), 20, 100).Draw(t, "l4")
		if proto == icmp {
			l4[0] = rapid.SampledFrom([]byte{8, 128, 0, 129}).Draw(t, "type")
			if v6 {
				l4[0] |= 128
			} else if l4[0] > 8 {
				l4[0] = 8
			}
		}
		far := rapid.Bool().Draw(t, "target is rewritten")
		got, want := packet(src, dst, proto, l4), packet(to, dst, proto, l4)
		if far {
			want = packet(src, to, proto, l4)
		}
		if !rewrite(got, far, to) {
			t.Fatal("refused")
		}
		if d := cmp.Diff(norm(want), norm(got)); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

func TestAnErrorsCopyIsRewrittenTheOtherWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v6 := rapid.Bool().Draw(t, "v6")
		client, service, exit := addresses(t, v6)
		// The service's host says of a packet from exit to service that it cannot be delivered.
		inner := func(src netip.Addr) []byte { return packet(src, service, 99, make([]byte, 20)) }
		whole := func(to netip.Addr) []byte {
			if v6 {
				return packet(service, to, protoICMP6, append([]byte{1, 4, 0, 0, 0, 0, 0, 0}, inner(to)...))
			}
			return packet(service, to, protoICMP, append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, inner(to)...))
		}
		got := whole(exit)
		if !rewrite(got, true, client) {
			t.Fatal("refused")
		}
		// The copy's own header checksum has two zeros, too.
		clean := func(p []byte) []byte {
			p = norm(p)
			if !v6 && binary.BigEndian.Uint16(p[38:]) == 0xffff {
				p[38], p[39] = 0, 0
			}
			return p
		}
		if d := cmp.Diff(clean(whole(client)), clean(got)); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

func TestAnAddressOfTheOtherFamilyIsRefused(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("10.64.0.2"), netip.MustParseAddr("203.0.113.10")
	p := packet(a, b, protoUDP, make([]byte, 20))
	was := append([]byte(nil), p...)
	if rewrite(p, false, netip.MustParseAddr("fd64::2")) || cmp.Diff(was, p) != "" {
		t.Error("the packet was changed")
	}
}

func FuzzPackets(f *testing.F) {
	v4, v6 := netip.MustParseAddr("10.64.0.2"), netip.MustParseAddr("fd64::2")
	for _, proto := range []byte{protoICMP, protoTCP, protoUDP, 99} {
		f.Add(packet(v4, v4, proto, make([]byte, 28)))
	}
	f.Add(packet(v6, v6, protoICMP6, append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, packet(v6, v6, 99, nil)...)))
	f.Add(packet(v6, v6, protoFragment, []byte{protoICMP6, 0, 0, 1, 0, 0, 0, 0, 128}))
	f.Add([]byte{0x4f, 0, 0})
	f.Add([]byte(Magic))
	f.Fuzz(func(t *testing.T, p []byte) {
		_, ok := ReadStamp(p)
		if want := len(p) >= StampSize && string(p[:8]) == Magic; ok != want {
			t.Errorf("a stamp: %t, want %t", ok, want)
		}
		isPing(p)
		n := len(p)
		for _, a := range []netip.Addr{v4, v6} {
			for _, far := range []bool{false, true} {
				if rewrite(p, far, a) {
					got, ok := address(p, far)
					if !ok || got != a || len(p) != n {
						t.Errorf("rewritten to %s, want %s", got, a)
					}
				}
			}
		}
	})
}

func TestStampsComeBackAsTheyWerePut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, _, _ := addresses(t, rapid.Bool().Draw(t, "v6"))
		want := Stamp{
			Flow: rapid.Uint32().Draw(t, "flow"), Seq: rapid.Uint64().Draw(t, "seq"), Sent: rapid.Int64().Draw(t, "sent"),
			Seen: netip.AddrPortFrom(a.Unmap(), rapid.Uint16().Draw(t, "port")),
		}
		p := make([]byte, StampSize)
		want.Put(p)
		if got, ok := ReadStamp(p); !ok || got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}
