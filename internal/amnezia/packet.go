package amnezia

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Packet is a custom datagram, I1 to I5, as a list of tags: `<b 0xc7ff><r 40><t>`. The
// zero value means that there is none.
type Packet struct {
	text  string
	tags  []tag
	least Version // the generation that has all the tags
	waits bool    // it has <wt> or <wr>, which ended with 1.5
}

type tag struct {
	kind  string // b, r, rc, rd, t, c, wt, wr
	bytes []byte // of b
	size  int    // of r, rc and rd, bytes
}

// ParsePacket reads the tags of all generations. An error names the tag.
func ParsePacket(text string) (Packet, error) {
	p := Packet{text: text, least: V15}
	for rest := text; strings.TrimSpace(rest) != ""; {
		before, after, ok := strings.Cut(rest, "<")
		if !ok || strings.TrimSpace(before) != "" {
			return Packet{}, errors.New("text outside of <…>")
		}
		inner, tail, ok := strings.Cut(after, ">")
		if !ok {
			return Packet{}, errors.New("a < without its >")
		}
		t, err := parseTag(strings.Fields(inner))
		if err != nil {
			return Packet{}, err
		}
		switch t.kind {
		case "rc", "rd":
			p.least = max(p.least, V20)
		case "wt", "wr":
			p.waits = true
		}
		p.tags = append(p.tags, t)
		if p.Size() > maxDatagram {
			return Packet{}, fmt.Errorf("more than %d bytes", maxDatagram)
		}
		rest = tail
	}
	if len(p.tags) == 0 {
		return Packet{}, errors.New("no tag")
	}
	return p, nil
}

func parseTag(f []string) (tag, error) {
	if len(f) == 0 {
		return tag{}, errors.New("an empty tag")
	}
	t, args := tag{kind: f[0]}, f[1:]
	switch t.kind {
	case "t", "c":
		if len(args) != 0 {
			return t, fmt.Errorf("<%s> takes no argument", t.kind)
		}
		return t, nil
	case "b", "r", "rc", "rd", "wt", "wr":
	default:
		return t, errors.New("unknown tag, want <b>, <r>, <rc>, <rd>, <t>, <c>, <wt> or <wr>")
	}
	if len(args) != 1 {
		return t, fmt.Errorf("<%s> takes one argument", t.kind)
	}
	if t.kind == "b" {
		digits := args[0]
		if len(digits) >= 2 && strings.EqualFold(digits[:2], "0x") {
			digits = digits[2:]
		}
		b, err := hex.DecodeString(digits)
		if err != nil || len(b) == 0 {
			return t, errors.New("<b>: not an even number of hexadecimal digits")
		}
		t.bytes = b
		return t, nil
	}
	n, err := parseInt(args[0])
	if err != nil {
		return t, fmt.Errorf("<%s>: %w", t.kind, err)
	}
	if t.kind == "r" || t.kind == "rc" || t.kind == "rd" {
		t.size = n
	}
	return t, nil
}

// IsZero reports whether there is no packet.
func (p Packet) IsZero() bool { return len(p.tags) == 0 }

// String is the text that it was made of.
func (p Packet) String() string { return p.text }

// Size is the packet's size in bytes; devices of 1.5 add 4 for each <t>.
func (p Packet) Size() int {
	n := 0
	for _, t := range p.tags {
		n += t.len(stampSize)
	}
	return n
}

// Sizes of what the tags <t> and <c> write, bytes.
const (
	stampSize   = 4
	stampSize15 = 8
	countSize   = 8
)

func (t tag) len(stamp int) int {
	switch t.kind {
	case "b":
		return len(t.bytes)
	case "t":
		return stamp
	case "c":
		return countSize
	}
	return t.size // the waits write nothing, and are not kept
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// render writes the packet; count is the number of packets sent so far.
func (p Packet) render(r *source, v Version, now time.Time, count uint64) []byte {
	stamp := stampSize
	if v == V15 {
		stamp = stampSize15
	}
	size := 0
	for _, t := range p.tags {
		size += t.len(stamp)
	}
	out := make([]byte, size)
	rest := out
	for _, t := range p.tags {
		part := rest[:t.len(stamp)]
		rest = rest[len(part):]
		switch t.kind {
		case "b":
			copy(part, t.bytes)
		case "t":
			var b [8]byte
			binary.BigEndian.PutUint64(b[:], uint64(now.Unix())) //nolint:gosec // a clock before 1970 wraps, like the others
			copy(part, b[8-stamp:])
		case "c":
			binary.BigEndian.PutUint64(part, count)
		case "r":
			r.fill(part)
		case "rc":
			for i := range part {
				part[i] = letters[r.below(len(letters))]
			}
		case "rd":
			for i := range part {
				part[i] = '0' + byte(r.below(10)) //nolint:gosec // a digit
			}
		}
	}
	return out
}
