package plane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// readTries bounds how often a table is read anew because it was changed meanwhile.
const readTries = 5

// table is what the kernel holds of ours.
type table struct {
	present bool
	digest  string // of the rules when they were loaded
	mtu     int    // that the rules were made for, bytes
	dscp    map[string][]egress.DSCP
	marks   map[string][]egress.Mark
	names   map[string][]string // sets of interface names
	spans   map[string][]span   // interval sets
	rules   map[string]int      // chain -> number of rules
	other   map[string]string   // set of a type that we have no use for -> its type
}

// span is a range of addresses, both ends included.
type span struct{ from, to netip.Addr }

func nftTable() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
}

// openNFT opens the lasting connection, and gives it the context's deadline.
func (p *Plane) openNFT(ctx context.Context) error {
	if p.nft == nil {
		conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *mdnetlink.Conn) error {
			p.raw = c
			return nil
		}))
		if err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
		p.nft = conn
	}
	if at, ok := ctx.Deadline(); ok {
		if err := p.raw.SetDeadline(at); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	return nil
}

// dropNFT closes the connection; after an error answers may be left in it that belong to no question.
func (p *Plane) dropNFT() error {
	if p.nft == nil {
		return nil
	}
	err := p.nft.CloseLasting()
	p.nft, p.raw = nil, nil
	return err
}

// readTable reads the whole table as of one instant.
func (p *Plane) readTable(ctx context.Context) (*table, error) { return p.readSets(ctx, nil) }

// readSets reads some sets as of one instant (nil = all of them, and the rules).
func (p *Plane) readSets(ctx context.Context, only []string) (*table, error) {
	for range readTries {
		if err := p.openNFT(ctx); err != nil {
			return nil, err
		}
		before, err := p.generation()
		var t *table
		if err == nil {
			t, err = p.readOnce(only)
		}
		after := before
		if err == nil {
			after, err = p.generation()
		}
		if err != nil {
			_ = p.dropNFT()
			if errors.Is(err, unix.EINTR) {
				continue // changed in the middle of a listing
			}
			return nil, fmt.Errorf("%s: read: %w", tableTitle, err)
		}
		if before == after {
			return t, nil
		}
	}
	return nil, fmt.Errorf("%s: read: nftables was changed by others each of %d times", tableTitle, readTries)
}

// generation is the number of nftables transactions in this namespace so far.
func (p *Plane) generation() (uint32, error) {
	msgs, err := p.execute(unix.NFT_MSG_GETGEN, mdnetlink.Request, nil)
	if err != nil {
		return 0, err
	}
	for _, m := range msgs {
		ad, err := mdnetlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return 0, err
		}
		ad.ByteOrder = binary.BigEndian
		for ad.Next() {
			if ad.Type() == unix.NFTA_GEN_ID {
				return ad.Uint32(), nil
			}
		}
	}
	return 0, errors.New("the kernel names no generation")
}

// execute sends one nftables message. The first four bytes of an answer's data are a header.
func (p *Plane) execute(kind uint16, flags mdnetlink.HeaderFlags, attrs []mdnetlink.Attribute) ([]mdnetlink.Message, error) {
	b, err := mdnetlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	return p.raw.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: mdnetlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: flags},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, b...),
	})
}

func (p *Plane) readOnce(only []string) (*table, error) {
	t := &table{
		dscp: map[string][]egress.DSCP{}, marks: map[string][]egress.Mark{}, names: map[string][]string{}, spans: map[string][]span{},
		rules: map[string]int{}, other: map[string]string{},
	}
	_, err := p.execute(unix.NFT_MSG_GETTABLE, mdnetlink.Request, []mdnetlink.Attribute{nameAttr(unix.NFTA_TABLE_NAME)})
	if errors.Is(err, unix.ENOENT) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	t.present = true
	sets, err := p.nft.GetSets(nftTable())
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		if s.Anonymous || only != nil && !slices.Contains(only, s.Name) {
			continue
		}
		elements, err := p.nft.GetSetElements(s)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", s.Name, err)
		}
		t.keep(s, elements)
	}
	if only == nil {
		t.rules, err = p.countRules()
	}
	return t, err
}

func nameAttr(kind uint16) mdnetlink.Attribute {
	return mdnetlink.Attribute{Type: kind, Data: []byte(tableName + "\x00")}
}

// countRules is the number of rules of each chain that has any.
func (p *Plane) countRules() (map[string]int, error) {
	msgs, err := p.execute(unix.NFT_MSG_GETRULE, mdnetlink.Request|mdnetlink.Dump, []mdnetlink.Attribute{nameAttr(unix.NFTA_RULE_TABLE)})
	if err != nil {
		return nil, err
	}
	n := map[string]int{}
	for _, m := range msgs {
		ad, err := mdnetlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return nil, err
		}
		for ad.Next() {
			if ad.Type() == unix.NFTA_RULE_CHAIN {
				n[ad.String()]++
				break
			}
		}
	}
	return n, nil
}

// keep takes a set's elements into the table, by the set's type.
func (t *table) keep(s *nftables.Set, elements []nftables.SetElement) {
	switch {
	case s.Name == "built":
		for _, e := range elements {
			if len(e.Key) == 4 {
				t.mtu = int(binary.NativeEndian.Uint32(e.Key))
				t.digest = strings.TrimPrefix(e.Comment, "rules ")
			}
		}
	case s.KeyType.Name == nftables.TypeDSCP.Name && s.KeyType.Bytes == 1 && !s.IsMap:
		t.dscp[s.Name] = []egress.DSCP{}
		for _, e := range elements {
			t.dscp[s.Name] = append(t.dscp[s.Name], egress.DSCP(e.Key[0]))
		}
		slices.Sort(t.dscp[s.Name])
	case s.KeyType.Name == nftables.TypeMark.Name && s.KeyType.Bytes == 4 && !s.IsMap:
		t.marks[s.Name] = []egress.Mark{}
		for _, e := range elements {
			t.marks[s.Name] = append(t.marks[s.Name], egress.Mark(binary.NativeEndian.Uint32(e.Key)))
		}
		slices.Sort(t.marks[s.Name])
	case s.KeyType.Name == nftables.TypeIFName.Name && !s.Interval:
		t.names[s.Name] = []string{}
		for _, e := range elements {
			name, _, _ := bytes.Cut(e.Key, []byte{0})
			t.names[s.Name] = append(t.names[s.Name], string(name))
		}
		slices.Sort(t.names[s.Name])
	case s.Interval && (s.KeyType.Name == nftables.TypeIPAddr.Name || s.KeyType.Name == nftables.TypeIP6Addr.Name):
		t.spans[s.Name] = spans(elements)
	default:
		t.other[s.Name] = "type " + s.KeyType.Name
	}
}

// has says whether a moving set exists.
func (t *table) has(set string) bool {
	_, dscp := t.dscp[set]
	_, mark := t.marks[set]
	return dscp || mark
}

// moving lists the elements of a moving set.
func (t *table) moving(set string) []element {
	var out []element
	for _, d := range t.dscp[set] {
		out = append(out, element{set, uint32(d)})
	}
	for _, m := range t.marks[set] {
		out = append(out, element{set, uint32(m)})
	}
	return out
}

// spans turns the starts and ends of an interval set into ranges; ranges that touch are one.
func spans(elements []nftables.SetElement) []span {
	type edge struct {
		at  netip.Addr
		end bool
	}
	var edges []edge
	for _, e := range elements {
		if at, ok := netip.AddrFromSlice(e.Key); ok {
			edges = append(edges, edge{at, e.IntervalEnd})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if d := a.at.Compare(b.at); d != 0 {
			return d
		}
		if a.end == b.end {
			return 0
		}
		if a.end {
			return -1
		}
		return 1
	})
	var out []span
	open := netip.Addr{}
	for _, e := range edges {
		switch {
		case !e.end && !open.IsValid():
			open = e.at
		case e.end && open.IsValid():
			out = append(out, span{open, e.at.Prev()})
			open = netip.Addr{}
		}
	}
	if open.IsValid() {
		out = append(out, span{open, last(netip.PrefixFrom(open, 0))})
	}
	return join(out)
}

func prefixSpans(list []netip.Prefix) []span {
	var out []span
	for _, p := range list {
		out = append(out, span{p.Masked().Addr(), last(p)})
	}
	return join(out)
}

func join(sorted []span) []span {
	var out []span
	for _, s := range sorted {
		if n := len(out); n > 0 && out[n-1].to.Next() == s.from {
			out[n-1].to = s.to
			continue
		}
		out = append(out, s)
	}
	return out
}

// last is the greatest address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
