package knock

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Minecraft's packets: a length, an id and fields, the numbers as VarInts of 7 bits a byte,
// least first (https://minecraft.wiki/w/Java_Edition_protocol).

const (
	varIntBytes  = 5         // of 32 bits
	lengthBytes  = 3         // of a packet's length
	packetLimit  = 256 << 10 // bytes; a status with a picture has up to 130,000
	versionGuess = 767       // 1.21, where a server does not say its own
)

var (
	errVarInt = errors.New("a number is too long")
	errCut    = errors.New("a packet is cut short")
)

// varInt reads the number that b begins with and how many bytes it has.
func varInt(b []byte) (v int32, n int, err error) {
	var u uint32
	for n < varIntBytes {
		if n == len(b) {
			return 0, 0, errCut
		}
		c := b[n]
		u |= uint32(c&0x7f) << (7 * n)
		n++
		if c&0x80 == 0 {
			if n == varIntBytes && c > 0x0f {
				return 0, 0, errVarInt
			}
			return int32(u), n, nil
		}
	}
	return 0, 0, errVarInt
}

func appendVarInt(b []byte, v int32) []byte {
	u := uint32(v)
	for u >= 0x80 {
		b = append(b, byte(u)|0x80)
		u >>= 7
	}
	return append(b, byte(u))
}

func appendString(b []byte, s string) []byte { return append(appendVarInt(b, int32(len(s))), s...) }

// text reads the string that b begins with.
func text(b []byte) (string, error) {
	size, n, err := varInt(b)
	if err != nil {
		return "", err
	}
	if size < 0 || int(size) > len(b)-n {
		return "", errCut
	}
	s := b[n : n+int(size)]
	if !utf8.Valid(s) {
		return "", errors.New("a text is not UTF-8")
	}
	return string(s), nil
}

// packet frames an id and its fields.
func packet(id int32, fields []byte) []byte {
	body := append(appendVarInt(nil, id), fields...)
	return append(appendVarInt(nil, int32(len(body))), body...)
}

// readPacket reads one packet of at most packetLimit bytes. io.EOF = there was none; what
// follows the first byte is never io.EOF but io.ErrUnexpectedEOF.
func readPacket(r interface {
	io.Reader
	io.ByteReader
},
) (id int32, fields []byte, err error) {
	var head [lengthBytes]byte
	size := int32(0)
	for i := range head {
		if head[i], err = r.ReadByte(); err != nil {
			if i > 0 && errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
		if head[i]&0x80 == 0 {
			size, _, err = varInt(head[:i+1])
			break
		}
		if i == lengthBytes-1 {
			err = errVarInt
		}
	}
	if err != nil {
		return 0, nil, err
	}
	if size < 1 || size > packetLimit {
		return 0, nil, fmt.Errorf("a packet of %d bytes", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	id, n, err := varInt(body)
	return id, body[n:], err
}

// handshake is the client's first packet. next: 1 = status, 2 = login.
func handshake(version int32, host string, port uint16, next int32) []byte {
	b := appendVarInt(nil, version)
	b = appendString(b, host[:min(len(host), 255)])
	b = binary.BigEndian.AppendUint16(b, port)
	return packet(0, appendVarInt(b, next))
}

// loginStart is the packet by which a player of that name wants in; its form changed often.
func loginStart(version int32, name string) []byte {
	b := appendString(nil, name)
	switch {
	case version >= 764: // 1.20.2: the player's id
		b = append(b, make([]byte, 16)...)
	case version >= 761: // 1.19.3: whether there is an id
		b = append(b, 0)
	case version == 760: // 1.19.1: whether there are a key and an id
		b = append(b, 0, 0)
	case version == 759: // 1.19: whether there is a key
		b = append(b, 0)
	}
	return packet(0, b)
}

// status is what a server says of itself, as far as we care.
type status struct {
	Version *struct {
		Protocol int32 `json:"protocol"`
	} `json:"version"`
}

// readStatus reads the fields of a status answer.
func readStatus(fields []byte) (version int32, err error) {
	s, err := text(fields)
	if err != nil {
		return 0, err
	}
	var st *status
	if err := json.Unmarshal([]byte(s), &st); err != nil || st == nil {
		return 0, errors.New("the status is no JSON object")
	}
	if st.Version == nil || st.Version.Protocol <= 0 {
		return versionGuess, nil
	}
	return st.Version.Protocol, nil
}

// chat is the plain text of a message that may be a JSON component.
func chat(s string) string {
	var v any
	if json.Unmarshal([]byte(s), &v) != nil {
		return clean(s)
	}
	var b strings.Builder
	flatten(&b, v, 0)
	return clean(b.String())
}

func flatten(b *strings.Builder, v any, depth int) {
	const deepest, longest = 8, 1024
	if depth > deepest || b.Len() > longest {
		return
	}
	switch v := v.(type) {
	case string:
		b.WriteString(v)
	case []any:
		for _, part := range v {
			flatten(b, part, depth+1)
		}
	case map[string]any:
		for _, key := range []string{"text", "translate", "extra"} {
			flatten(b, v[key], depth+1)
		}
	}
}
