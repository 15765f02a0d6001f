package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// leastElement is about what the shortest element takes in a listing, in bytes.
const leastElement = 36

// steadyTries bounds how often a list is asked for that others' transactions cut into.
const steadyTries = 100

// dumpBuffer is the most that the kernel answers at a time, and as much again.
const dumpBuffer = 64 << 10 // bytes

// attrKeyEnd is NFTA_SET_ELEM_KEY_END.
const attrKeyEnd = 10

// attrs yields type and value of each netlink attribute of b; it stops at a damaged one.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofNlAttr || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[unix.SizeofNlAttr:n:n]) {
				return
			}
			b = b[min((n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}

func text0(b []byte) string { return strings.TrimSuffix(string(b), "\x00") }

// number reads a big-endian number of at most eight bytes.
func number(b []byte) (n uint64) {
	for _, c := range b[:min(len(b), 8)] {
		n = n<<8 | uint64(c)
	}
	return n
}

// inner is the value of the first attribute in b that has the type.
func inner(b []byte, typ uint16) []byte {
	for t, v := range attrs(b) {
		if t == typ {
			return v
		}
	}
	return nil
}

// body is a message's attributes: they follow a header of four bytes.
func body(m mdnetlink.Message) []byte { return m.Data[min(4, len(m.Data)):] }

// request is a question about objects of the table.
func request(kind uint16, flags mdnetlink.HeaderFlags, names []string) (mdnetlink.Message, error) {
	var list []mdnetlink.Attribute
	for i, n := range names { // in all questions of ours the table is attribute 1, the set 2
		list = append(list, mdnetlink.Attribute{Type: uint16(i + 1), Data: []byte(n + "\x00")})
	}
	b, err := mdnetlink.MarshalAttributes(list)
	return mdnetlink.Message{
		Header: mdnetlink.Header{Type: mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: mdnetlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, b...),
	}, err
}

// ask asks the kernel for one object.
func ask(c *mdnetlink.Conn, kind uint16, names ...string) ([]mdnetlink.Message, error) {
	m, err := request(kind, 0, names)
	if err != nil {
		return nil, err
	}
	return c.Execute(m)
}

// dump asks the kernel for a list. How much it answers at a time, and how often it walks
// through what it has answered already, depends on the room that it is given: the library's
// own way is a page.
func dump(c *mdnetlink.Conn, kind uint16, names ...string) ([]mdnetlink.Message, error) {
	m, err := request(kind, mdnetlink.Dump, names)
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if m, err = c.Send(m); err != nil {
		return nil, err
	}
	var out []mdnetlink.Message
	b := make([]byte, dumpBuffer)
	for done, cut := false, false; ; {
		if done && cut {
			return nil, unix.EINTR // it is all read
		}
		if done {
			return out, nil
		}
		var n, flags int
		var got error
		if err := raw.Read(func(fd uintptr) bool {
			n, _, flags, _, got = unix.Recvmsg(int(fd), b, nil, unix.MSG_DONTWAIT)
			return !errors.Is(got, unix.EAGAIN) && !errors.Is(got, unix.EINTR)
		}); err != nil {
			return nil, err
		}
		if got != nil {
			return nil, os.NewSyscallError("recvmsg", got)
		}
		if flags&unix.MSG_TRUNC != 0 {
			return nil, errors.New("the kernel's answer has no room")
		}
		var torn bool
		if out, torn, done, err = appendMessages(out, slices.Clone(b[:n]), m.Header.Sequence); err != nil {
			return nil, err
		}
		cut = cut || torn
	}
}

// appendMessages takes an answer apart; torn says that a change cut into the list, done
// that this was its last part.
func appendMessages(out []mdnetlink.Message, b []byte, sequence uint32) (_ []mdnetlink.Message, torn, done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr && !done {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > len(b) {
			return out, torn, done, errors.New("the kernel's answer is damaged")
		}
		typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
		data, ours := b[unix.SizeofNlMsghdr:n:n], binary.NativeEndian.Uint32(b[8:]) == sequence
		b = b[min((n+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
		if !ours { // of a question that was given up
			continue
		}
		torn = torn || flags&unix.NLM_F_DUMP_INTR != 0
		if typ != unix.NLMSG_DONE && typ != unix.NLMSG_ERROR {
			out = append(out, mdnetlink.Message{Data: data})
			continue
		}
		done = true
		if len(data) >= 4 {
			if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
				return out, torn, done, unix.Errno(-code)
			}
		}
	}
	return out, torn, done, nil
}

// generation is the number of nftables transactions in the namespace so far.
func generation(c *mdnetlink.Conn) (uint32, error) {
	msgs, err := ask(c, unix.NFT_MSG_GETGEN)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		if id := inner(body(m), unix.NFTA_GEN_ID); len(id) == 4 {
			return binary.BigEndian.Uint32(id), nil
		}
	}
	return 0, errors.New("the kernel names no generation")
}

// teller asks for lists. One in a hurry takes them as they come; a steady one sees to it
// that each of them is of one instant.
type teller struct {
	conn   *mdnetlink.Conn
	steady bool
}

// list asks for one list. Objects that are gone are unix.ENOENT, no quiet moment unix.EINTR.
func (t teller) list(kind uint16, names ...string) ([]mdnetlink.Message, error) {
	if !t.steady {
		return dump(t.conn, kind, names...)
	}
	before, err := generation(t.conn)
	for range steadyTries {
		if err != nil {
			return nil, err
		}
		msgs, err := dump(t.conn, kind, names...)
		after, lost := generation(t.conn)
		if before == after && !errors.Is(err, unix.EINTR) || lost != nil {
			return msgs, errors.Join(err, lost)
		}
		before = after
	}
	return nil, unix.EINTR
}

// readElements lists a set.
func readElements(c teller, name string) ([]rawElement, error) {
	msgs, err := c.list(unix.NFT_MSG_GETSETELEM, tableName, name)
	if err != nil {
		return nil, fmt.Errorf("set %s: %w", name, err)
	}
	size := 0
	for _, m := range msgs {
		size += len(m.Data) / leastElement
	}
	out := make([]rawElement, 0, size)
	for _, m := range msgs {
		out = appendElements(out, body(m))
	}
	return out, nil
}

func appendElements(out []rawElement, b []byte) []rawElement {
	for _, one := range attrs(inner(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		e := rawElement{lasts: true}
		for t, v := range attrs(one) {
			switch t {
			case unix.NFTA_SET_ELEM_KEY:
				e.key = inner(v, unix.NFTA_DATA_VALUE)
			case attrKeyEnd:
				e.end = inner(v, unix.NFTA_DATA_VALUE)
			case unix.NFTA_SET_ELEM_DATA:
				e.data = inner(v, unix.NFTA_DATA_VALUE)
			case unix.NFTA_SET_ELEM_USERDATA:
				e.user = v
			case unix.NFTA_SET_ELEM_TIMEOUT:
				e.lasts = false
			case unix.NFTA_SET_ELEM_EXPIRATION:
				e.expires = time.Duration(number(v)&(1<<43-1)) * time.Millisecond
			}
		}
		out = append(out, e)
	}
	return out
}
