package knock

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The examples are those of the protocol's description.
func TestVarInt(t *testing.T) {
	for v, want := range map[int32]string{
		0: "\x00", 1: "\x01", 127: "\x7f", 128: "\x80\x01", 255: "\xff\x01", 25565: "\xdd\xc7\x01", 2097151: "\xff\xff\x7f",
		math.MaxInt32: "\xff\xff\xff\xff\x07", -1: "\xff\xff\xff\xff\x0f", math.MinInt32: "\x80\x80\x80\x80\x08",
	} {
		if diff := cmp.Diff(want, string(appendVarInt(nil, v))); diff != "" {
			t.Errorf("%d (-want +got):\n%s", v, diff)
		}
		if got, n, err := varInt([]byte(want + "\xff")); got != v || n != len(want) || err != nil {
			t.Errorf("% x = %d, %d, %v; want %d, %d", want, got, n, err, v, len(want))
		}
	}
	for name, b := range map[string]string{
		"nothing": "", "cut short": "\x80", "six bytes": "\x80\x80\x80\x80\x80\x01", "more than 32 bits": "\xff\xff\xff\xff\x1f",
	} {
		if v, _, err := varInt([]byte(b)); err == nil {
			t.Errorf("%s: read as %d", name, v)
		}
	}
}

func TestPacketsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Int32().Draw(t, "id")
		fields := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "fields")
		b := packet(id, fields)
		gotID, got, err := readPacket(bytes.NewReader(b))
		if err != nil || gotID != id || !bytes.Equal(got, fields) {
			t.Fatalf("packet %d % x came back as %d % x, %v", id, fields, gotID, got, err)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		_, _, err = readPacket(bytes.NewReader(b[:cut]))
		if want := map[bool]error{true: io.EOF, false: io.ErrUnexpectedEOF}[cut == 0]; !errors.Is(err, want) {
			t.Fatalf("cut after %d of %d bytes: %v", cut, len(b), err)
		}
	})
}

// FuzzAnswer feeds bytes as what a server says: nothing panics, what is read is bounded,
// and reasons are one line.
func FuzzAnswer(f *testing.F) {
	f.Add(framed(0, length(commonStatus)))
	f.Add(framed(0, length(`{"text":"x","extra":["y",{"translate":"z"}]}`)))
	f.Add(framed(0, length(`"Connection throttled!"`)))
	f.Add([]byte{0xff, 0xff, 0x7f, 0})
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add([]byte("\xff\x00\x23\x00\xa7\x001"))
	f.Add([]byte{5, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte(strings.Repeat("\x80", 12)))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, fields, err := readPacket(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(fields) >= len(b) {
			t.Errorf("%d bytes of fields in %d bytes", len(fields), len(b))
		}
		if v, err := readStatus(fields); err == nil && v <= 0 {
			t.Errorf("protocol version %d", v)
		}
		l := login{}.answered(id, fields)
		if l.known && !l.taken && l.reason == "" || strings.ContainsAny(l.reason, "\r\n\x1b") || utf8.RuneCountInString(l.reason) > 200 {
			t.Errorf("reason %q", l.reason)
		}
		if s, err := text(fields); err == nil {
			if c := chat(s); strings.ContainsAny(c, "\r\n\x00") {
				t.Errorf("chat %q", c)
			}
		}
	})
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		" a\r\n\tb ":               "a b",
		"\x1b[31mred\x00":          "[31mred",
		strings.Repeat("ä", 130):   strings.Repeat("ä", 120) + "…",
		"broken \xff\xfe encoding": "broken \ufffd\ufffd encoding",
	} {
		if diff := cmp.Diff(want, clean(in)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}
