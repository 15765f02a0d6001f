package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/google/nftables"
)

// leastElement is about what the shortest element takes in a listing, in bytes.
const leastElement = 36

// steadyTries bounds how often a list is asked for that others' transactions cut into.
const steadyTries = 100

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

// execute asks the kernel.
func execute(c *mdnetlink.Conn, kind uint16, flags mdnetlink.HeaderFlags, names ...string) ([]mdnetlink.Message, error) {
	var list []mdnetlink.Attribute
	for i, n := range names { // in all questions of ours the table is attribute 1, the set 2
		list = append(list, mdnetlink.Attribute{Type: uint16(i + 1), Data: []byte(n + "\x00")})
	}
	b, err := mdnetlink.MarshalAttributes(list)
	if err != nil {
		return nil, err
	}
	return c.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: mdnetlink.Request | flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, b...),
	})
}

// generation is the number of nftables transactions in the namespace so far.
func generation(c *mdnetlink.Conn) (uint32, error) {
	msgs, err := execute(c, unix.NFT_MSG_GETGEN, 0)
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
		return execute(t.conn, kind, mdnetlink.Dump, names...)
	}
	before, err := generation(t.conn)
	for range steadyTries {
		if err != nil {
			return nil, err
		}
		msgs, err := execute(t.conn, kind, mdnetlink.Dump, names...)
		after, lost := generation(t.conn)
		if before == after && !errors.Is(err, unix.EINTR) || lost != nil {
			return msgs, errors.Join(err, lost)
		}
		before = after
	}
	return nil, unix.EINTR
}

// skeleton is the static part as the kernel has it: what can be compared without knowing
// how rules are coded, and a sum of the rules.
type skeleton struct {
	present bool
	lines   []string       // sorted: a description of each set, chain, and the table
	rules   map[string]int // chain -> number of rules
	sum     uint64         // of all rules, in order
}

func readSkeleton(c teller) (skeleton, error) {
	s := skeleton{rules: map[string]int{}}
	msgs, err := execute(c.conn, unix.NFT_MSG_GETTABLE, 0, tableName)
	if errors.Is(err, unix.ENOENT) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("table: %w", err)
	}
	s.present = true
	for _, m := range msgs {
		if flags := number(inner(body(m), unix.NFTA_TABLE_FLAGS)); flags != 0 {
			s.lines = append(s.lines, fmt.Sprintf("%s: flags %d", tableTitle, flags))
		}
	}
	if msgs, err = c.list(unix.NFT_MSG_GETSET, tableName); err != nil {
		return s, fmt.Errorf("sets: %w", err)
	}
	for _, m := range msgs {
		s.lines = append(s.lines, describeSet(body(m)))
	}
	if msgs, err = c.list(unix.NFT_MSG_GETCHAIN); err != nil {
		return s, fmt.Errorf("chains: %w", err)
	}
	for _, m := range msgs { // of all tables of the family
		if text0(inner(body(m), unix.NFTA_CHAIN_TABLE)) == tableName {
			s.lines = append(s.lines, describeChain(body(m)))
		}
	}
	if msgs, err = c.list(unix.NFT_MSG_GETRULE, tableName); err != nil {
		return s, fmt.Errorf("rules: %w", err)
	}
	s.sumRules(msgs)
	slices.Sort(s.lines)
	return s, nil
}

func describeSet(b []byte) string {
	var name string
	var flags, keyType, keyLen, dataType, dataLen, size uint64
	for t, v := range attrs(b) {
		switch t {
		case unix.NFTA_SET_NAME:
			name = text0(v)
		case unix.NFTA_SET_FLAGS:
			flags = number(v) &^ nftables.NFT_SET_CONCAT // said for intervals only, or not, by version
		case unix.NFTA_SET_KEY_TYPE:
			keyType = number(v)
		case unix.NFTA_SET_KEY_LEN:
			keyLen = number(v)
		case unix.NFTA_SET_DATA_TYPE:
			dataType = number(v)
		case unix.NFTA_SET_DATA_LEN:
			dataLen = number(v)
		case unix.NFTA_SET_DESC:
			size = number(inner(v, unix.NFTA_SET_DESC_SIZE))
		}
	}
	return setLine(name, flags, keyType, keyLen, dataType, dataLen, size)
}

func setLine(name string, flags, keyType, keyLen, dataType, dataLen, size uint64) string {
	return fmt.Sprintf("set %s: flags %#x, key %#x of %d bytes, data %#x of %d bytes, size %d", name, flags, keyType, keyLen, dataType, dataLen, size)
}

func describeChain(b []byte) string {
	var name, typ string
	var hook, policy uint64
	var priority int32
	based := false
	for t, v := range attrs(b) {
		switch t {
		case unix.NFTA_CHAIN_NAME:
			name = text0(v)
		case unix.NFTA_CHAIN_TYPE:
			typ = text0(v)
		case unix.NFTA_CHAIN_POLICY:
			policy = number(v)
		case unix.NFTA_CHAIN_HOOK:
			based = true
			hook = number(inner(v, unix.NFTA_HOOK_HOOKNUM))
			priority = int32(number(inner(v, unix.NFTA_HOOK_PRIORITY)))
		}
	}
	if !based {
		return fmt.Sprintf("chain %s: without a hook", name)
	}
	return chainLine(name, typ, hook, priority, policy)
}

func chainLine(name, typ string, hook uint64, priority int32, policy uint64) string {
	return fmt.Sprintf("chain %s: type %s, hook %d, priority %d, policy %d", name, typ, hook, priority, policy)
}

// sumRules counts the rules and sums their expressions, without what counters have counted.
func (s *skeleton) sumRules(msgs []mdnetlink.Message) {
	h := fnv.New64a()
	for _, m := range msgs {
		for t, v := range attrs(body(m)) {
			switch t {
			case unix.NFTA_RULE_CHAIN:
				s.rules[text0(v)]++
				h.Write(v)
			case unix.NFTA_RULE_EXPRESSIONS:
				for _, e := range attrs(v) {
					name := inner(e, unix.NFTA_EXPR_NAME)
					h.Write(name)
					if text0(name) != "counter" {
						h.Write(inner(e, unix.NFTA_EXPR_DATA))
					}
				}
			}
		}
		h.Write([]byte{'\n'})
	}
	s.sum = h.Sum64()
}

// wantLines describes the static part as readSkeleton does.
func wantLines() []string {
	types := map[string]nftables.SetDatatype{
		"ipv4_addr": nftables.TypeIPAddr, "ipv6_addr": nftables.TypeIP6Addr, "inet_proto": nftables.TypeInetProto,
		"inet_service": nftables.TypeInetService, "mark": nftables.TypeMark,
	}
	concat := func(names []string) (magic, bytes uint64) {
		for _, n := range names {
			t := types[n]
			magic = magic<<nftables.SetConcatTypeBits | uint64(t.GetNFTMagic())
			bytes += uint64(t.Bytes+3) &^ 3
		}
		return magic, bytes
	}
	var out []string
	for _, s := range sets() {
		flags := map[string]uint64{"": 0, "timeout": unix.NFT_SET_TIMEOUT, "interval": unix.NFT_SET_INTERVAL}[s.flags]
		if s.data != nil {
			flags |= unix.NFT_SET_MAP
		}
		keyType, keyLen := concat(s.key)
		dataType, dataLen := concat(s.data)
		out = append(out, setLine(s.name, flags, keyType, keyLen, dataType, dataLen, uint64(s.kind.size())))
	}
	for _, c := range chains() {
		const accept = 1
		out = append(out, chainLine(c.name, c.typ, uint64(c.hooknum), c.priority, accept))
	}
	slices.Sort(out)
	return out
}

// drift compares what can be compared without knowing how rules are coded.
func (s skeleton) drift() []string {
	var out []string
	want := wantLines()
	for _, w := range want {
		if !slices.Contains(s.lines, w) {
			out = append(out, "missing: "+w)
		}
	}
	for _, l := range s.lines {
		if !slices.Contains(want, l) {
			out = append(out, "none of ours: "+l)
		}
	}
	for _, c := range chains() {
		if n := s.rules[c.name]; n != len(c.rules) {
			out = append(out, fmt.Sprintf("chain %s: %d rules, want %d", c.name, n, len(c.rules)))
		}
	}
	return out
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
