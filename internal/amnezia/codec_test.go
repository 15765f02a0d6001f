package amnezia

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/profile"
)

// anyParams draws parameters that are right.
func anyParams(t *rapid.T) Params {
	var p Params
	p.Jc = rapid.IntRange(0, 5).Draw(t, "jc")
	p.Jmin = rapid.IntRange(0, 50).Draw(t, "jmin")
	p.Jmax = p.Jmin + rapid.IntRange(0, 50).Draw(t, "more")
	least := 0
	if rapid.Bool().Draw(t, "protected") {
		p.HeaderKey, least = profile.Key{9, 8, 7}, nonceSize
	}
	lo := uint32(rapid.IntRange(0, 5).Draw(t, "low"))
	for i := range p.S {
		p.S[i] = rapid.IntRange(least, 200).Draw(t, "s")
		hi := lo + uint32(rapid.IntRange(0, 1<<28).Draw(t, "width"))
		p.H[i] = Range{lo, hi}
		lo = hi + 1
	}
	p.Trailers = rapid.Bool().Draw(t, "trailers")
	if err := p.Validate(); err != nil {
		t.Skip(err)
	}
	return p
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	a, b := privateKey("a").Public(), privateKey("b").Public()
	rapid.Check(t, func(rt *rapid.T) {
		p := anyParams(rt)
		from, to := newCodec(t, p, a, b), newCodec(t, p, b, a)
		for _, i := range []int{initiation, response, transport} {
			m := message(t, i, b)
			if i == transport {
				m = append(m, rapid.SliceOfN(rapid.Byte(), 0, 1400).Draw(rt, "content")...)
			}
			want := bytes.Clone(m)
			out, err := from.Encode(nil, m, nil)
			if err != nil {
				rt.Fatal(err)
			}
			for k, d := range out {
				n, kind := to.Decode(d, len(d), nil)
				if k < len(out)-1 {
					// Where H4 is wide, junk can have its form: the device knows it by the index.
					if kind == KindInitiation || kind == KindResponse || kind == KindPlain {
						rt.Fatalf("junk is taken for %s", kind)
					}
					continue
				}
				if kind != Kind(i+1) || !bytes.Equal(d[:n], want) {
					rt.Fatalf("%+v: message %d became %s, %d bytes of %d\n%x\n%x", p, i, kind, n, len(want), d[:n], want)
				}
			}
		}
	})
}

func TestAKeepaliveWithoutItsPrefixPasses(t *testing.T) {
	p := Params{S: [4]int{15, 68, 33, 21}, H: [4]Range{{10, 20}, {30, 40}, {50, 60}, {70, 80}}}
	c := newCodec(t, p, privateKey("a").Public())
	b := make([]byte, 32)
	binary.LittleEndian.PutUint32(b, 77)
	b[31] = 9
	if n, k := c.Decode(b, 32, nil); n != 32 || k != KindTransport || b[0] != 4 || b[31] != 9 {
		t.Errorf("%d bytes, %s, %x", n, k, b)
	}
	binary.LittleEndian.PutUint32(b, 81)
	if n, k := c.Decode(b, 32, nil); n != 0 || k != KindUnknown {
		t.Errorf("of another type: %d bytes, %s", n, k)
	}
}

func TestATransportMessageThatLooksLikeAHandshakeIsTransport(t *testing.T) {
	// With types as wide as these, one word in two fits.
	p := Params{S: [4]int{0, 0, 0, 8}, H: [4]Range{{1 << 16, 1 << 31}, {6, 6}, {7, 7}, {8, 8}}}
	c := newCodec(t, p, privateKey("a").Public())
	d := make([]byte, 148)
	binary.LittleEndian.PutUint32(d, 1<<30) // the prefix, as an initiation's type
	binary.LittleEndian.PutUint32(d[8:], 8)
	if n, k := c.Decode(d, len(d), nil); n != 140 || k != KindTransport {
		t.Errorf("%d bytes, %s", n, k)
	}
}

func TestEncodeUsesTheBuffersRoom(t *testing.T) {
	p := Params{S: [4]int{0, 0, 0, 20}, H: [4]Range{{}, {}, {}, {99, 99}}}
	c := newCodec(t, p, privateKey("a").Public())
	for _, room := range []int{0, 19, 20, 2000} {
		m := append(make([]byte, 0, 100+room), bytes.Repeat([]byte{7}, 100)...)
		setType(m, 4)
		out, err := c.Encode(nil, m, nil)
		if err != nil || len(out) != 1 || len(out[0]) != 120 || typeOf(out[0][20:]) != 99 || out[0][119] != 7 {
			t.Fatalf("room %d: %x, %v", room, out, err)
		}
		if same := &out[0][0] == &m[0]; same != (room >= 20) {
			t.Errorf("room %d: in place is %v", room, same)
		}
	}
}

func TestCookiesAreGivenUnlessTheyAreOff(t *testing.T) {
	p := Params{S: [4]int{20, 30, 40, 0}, H: [4]Range{{10, 10}, {20, 20}, {30, 30}, {40, 40}}}
	a, b := privateKey("a").Public(), privateKey("b").Public()
	for _, off := range []bool{false, true} {
		p.NoCookies = off
		client, server := newCodec(t, p, a, b), newCodec(t, p, b, a)
		out, err := client.Encode(nil, message(t, initiation, b), spot("server"))
		if err != nil {
			t.Fatal(err)
		}
		buf := out[0]
		n, _ := server.Decode(buf, len(buf), spot("client"))
		// What a device under load answers: a cookie, sealed to the MAC that it was shown.
		reply := make([]byte, messageSizes[cookieReply])
		setType(reply, cookieReply+1)
		copy(reply[4:8], buf[4:8])
		k := cookieKey(b)
		box, err := chacha20poly1305.NewX(k[:])
		if err != nil {
			t.Fatal(err)
		}
		box.Seal(reply[8+cookieNonce:8+cookieNonce], reply[8:8+cookieNonce], bytes.Repeat([]byte{5}, macSize), mac1Of(buf[:n]))
		got, err := server.Encode(nil, reply, spot("client"))
		if err != nil || len(got) != map[bool]int{false: 1, true: 0}[off] {
			t.Fatalf("off is %v: %d datagrams, %v", off, len(got), err)
		}
		if other, err := server.Encode(nil, reply, spot("elsewhere")); err != nil || len(other) != 0 {
			t.Errorf("a reply to somebody who sent nothing: %d datagrams, %v", len(other), err)
		}
		for _, d := range got {
			if n, kind := client.Decode(d, len(d), nil); n != 0 || kind != KindCookieReply || client.Stats().CookiesTaken != 1 {
				t.Errorf("the client takes it for %s, %d bytes", kind, n)
			}
		}
	}
}

func TestMemoryOfAFloodIsBounded(t *testing.T) {
	p := Params{S: [4]int{20, 30}, H: [4]Range{{10, 10}, {20, 20}, {30, 30}, {40, 40}}}
	self := privateKey("a").Public()
	c, from := newCodec(t, p, self), newCodec(t, p, privateKey("b").Public(), self)
	for i := range 3 * seenMost {
		m := message(t, initiation, self)
		binary.LittleEndian.PutUint32(m[4:], uint32(i))
		k := mac1Key(self)
		sum := firstMAC(&k, m)
		copy(mac1Of(m), sum[:])
		out, err := from.Encode(nil, m, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, k := c.Decode(out[0], len(out[0]), nil); k != KindInitiation {
			t.Fatalf("message %d is %s", i, k)
		}
	}
	if len(c.seen.last) != seenMost || len(c.seen.order) != seenMost {
		t.Errorf("%d sightings kept", len(c.seen.last))
	}
	for i := range 3 * givenMost {
		c.give(fmt.Sprint(i), given{at: time.Now()})
	}
	if len(c.given) > givenMost {
		t.Errorf("%d cookies kept", len(c.given))
	}
}

func FuzzDecode(f *testing.F) {
	var all []*Codec
	for i, r := range recordings(f) {
		server := key(f, r.Server).Public()
		all = append(all, newCodec(f, r.params(f), server, key(f, r.Client).Public()))
		for k := range r.Datagrams {
			f.Add(uint8(i), r.bytes(f, k))
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, d []byte) {
		c := all[int(which)%len(all)]
		before := bytes.Clone(d)
		kind := c.Classify(d)
		if !bytes.Equal(d, before) {
			t.Fatal("Classify changed the datagram")
		}
		n, got := c.Decode(d, len(d), spot("fuzz"))
		if got != kind {
			t.Fatalf("classified as %s, decoded as %s", kind, got)
		}
		switch kind {
		case KindInitiation, KindResponse, KindTransport:
			if n > len(d) || plainKind(d[:n]) != kind {
				t.Fatalf("%s came out as %d bytes: %x", kind, n, d[:min(n, 16)])
			}
		case KindUnknown, KindCookieReply, KindPlain:
			if n != 0 {
				t.Fatalf("%s reaches the device", kind)
			}
		}
	})
}

func FuzzParsePacket(f *testing.F) {
	for _, s := range []string{
		"<b 0xc7ff><r 40><t>", "<rc 12><rd 8>", "<c><wt 5>", "<b 0x>", "<r 999999999999>", "< b 0xff >", "<<t>>", "<r 65507>", "\n<t>",
	} {
		f.Add(s)
	}
	s := new(sources)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePacket(text)
		if err != nil {
			return
		}
		if p.IsZero() || p.Size() > maxDatagram || p.String() != text {
			t.Fatalf("%q: %d bytes, %q", text, p.Size(), p.String())
		}
		if got := len(p.render(s.get(), V31, time.Unix(5, 0), 1)); got != p.Size() {
			t.Fatalf("%q: %d bytes, said %d", text, got, p.Size())
		}
	})
}

// The cost of one data packet of 1300 bytes, each way.
func BenchmarkPacket(b *testing.B) {
	for _, name := range []string{"plain", "1.0", "1.5", "2.0", "3.0", "3.1"} {
		p := generations(b)[name]
		c := newCodec(b, p, privateKey("a").Public())
		b.Run(name+"/out", func(b *testing.B) {
			buf := make([]byte, 1<<11)
			out := make([][]byte, 0, 1)
			b.SetBytes(1300)
			b.ReportAllocs()
			for b.Loop() {
				setType(buf, 4)
				out, _ = c.Encode(out[:0], buf[:1332], nil)
			}
		})
		b.Run(name+"/in", func(b *testing.B) {
			m := make([]byte, 1332, 2048)
			setType(m, 4)
			out, err := c.Encode(nil, m, nil)
			if err != nil {
				b.Fatal(err)
			}
			d, buf := bytes.Clone(out[0]), make([]byte, 2048)
			b.SetBytes(1300)
			b.ReportAllocs()
			for b.Loop() {
				copy(buf, d)
				if n, _ := c.Decode(buf, len(d), nil); n != 1332 {
					b.Fatal(n)
				}
			}
		})
	}
}
