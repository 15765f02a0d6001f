package nft

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

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
	msgs, err := ask(c.conn, unix.NFT_MSG_GETTABLE, tableName)
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
