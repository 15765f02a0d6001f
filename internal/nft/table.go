package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// item is one element of a set.
type item struct {
	key  key
	to   netip.AddrPort // what a map's key leads to
	note string         // its comment
	left time.Duration  // until it runs out; 0 = it can't, negative = it should but never does
}

// key is an element's key; which fields say something depends on the set.
type key struct {
	addr  netip.Addr
	from  netip.Prefix // onlink
	proto edge.Protocol
	port  uint16
	mark  uint32 // lease
}

func (k key) family() int {
	switch {
	case k.addr.Is4():
		return 4
	case k.addr.Is6():
		return 6
	default:
		return 0
	}
}

func endpointKey(e edge.Endpoint) key {
	return key{addr: e.Addr.Addr(), proto: e.Protocol, port: e.Addr.Port()}
}

func (k key) endpoint() edge.Endpoint {
	return edge.Endpoint{Protocol: k.proto, Addr: netip.AddrPortFrom(k.addr, k.port)}
}

// items are the elements of one list.
func items(t edge.Table, k kind) []item {
	out := make([]item, 0, length(t, k))
	switch k {
	case kindTarget, kindNode:
		list := t.Targets
		if k == kindNode {
			list = t.Nodes
		}
		for _, e := range list {
			out = append(out, item{key: endpointKey(e.From), to: e.To, note: claimNote(e.Claim)})
		}
	case kindService, kindBackend, kindAlways:
		for _, e := range *endpoints(&t, k) {
			out = append(out, item{key: endpointKey(e)})
		}
	case kindAddress:
		for _, a := range t.Addresses {
			out = append(out, item{key: key{addr: a}})
		}
	case kindOnLink:
		for _, o := range t.OnLink {
			out = append(out, item{key: key{addr: o.Addr, from: o.Prefix}})
		}
	case kindLease:
		taken := map[uint32]bool{} // two names with one number: the later one does without
		for _, l := range t.Leases {
			for _, i := range leaseItems(l) {
				if i.left > 0 && !taken[i.key.mark] {
					taken[i.key.mark] = true
					out = append(out, i)
				}
			}
		}
	}
	return out
}

// length is how many entries one list has.
func length(t edge.Table, k kind) int {
	switch k {
	case kindTarget:
		return len(t.Targets)
	case kindNode:
		return len(t.Nodes)
	case kindService, kindBackend, kindAlways:
		return len(*endpoints(&t, k))
	case kindAddress:
		return len(t.Addresses)
	case kindOnLink:
		return len(t.OnLink)
	case kindLease:
	}
	return len(t.Leases)
}

func endpoints(t *edge.Table, k kind) *[]edge.Endpoint {
	switch k {
	case kindService:
		return &t.Services
	case kindBackend:
		return &t.Backends
	case kindAlways:
		return &t.Always
	case kindTarget, kindNode, kindLease, kindAddress, kindOnLink:
	}
	panic("nft: " + string(k) + " is no list of endpoints")
}

// keep puts elements that were read into their list, sorted, and returns those that are not ours.
func keep(t *edge.Table, k kind, list []item) (odd []item) {
	switch k {
	case kindTarget, kindNode:
		out := make([]edge.Element, 0, len(list))
		for _, i := range list {
			out = append(out, edge.Element{From: i.key.endpoint(), To: i.to, Claim: parseClaim(i.note)})
		}
		slices.SortFunc(out, compareElements)
		if k == kindNode {
			t.Nodes = orNil(out)
		} else {
			t.Targets = orNil(out)
		}
	case kindService, kindBackend, kindAlways:
		out := make([]edge.Endpoint, 0, len(list))
		for _, i := range list {
			out = append(out, i.key.endpoint())
		}
		slices.SortFunc(out, compareEndpoints)
		*endpoints(t, k) = orNil(out)
	case kindAddress:
		out := make([]netip.Addr, 0, len(list))
		for _, i := range list {
			out = append(out, i.key.addr)
		}
		slices.SortFunc(out, netip.Addr.Compare)
		t.Addresses = orNil(out)
	case kindOnLink:
		out := make([]edge.OnLink, 0, len(list))
		for _, i := range list {
			out = append(out, edge.OnLink{Prefix: i.key.from, Addr: i.key.addr})
		}
		slices.SortFunc(out, compareOnLinks)
		t.OnLink = orNil(out)
	case kindLease:
		t.Leases, odd = leases(list)
	}
	return odd
}

func orNil[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

// Elements and endpoints are sorted by address (IPv4 first), port and protocol.
func compareEndpoints(a, b edge.Endpoint) int {
	return cmp.Or(a.Addr.Compare(b.Addr), strings.Compare(string(a.Protocol), string(b.Protocol)))
}

func compareElements(a, b edge.Element) int { return compareEndpoints(a.From, b.From) }

func compareOnLinks(a, b edge.OnLink) int {
	return cmp.Or(a.Addr.Compare(b.Addr), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
}

// leaseSlack is how much longer a lease must be wanted than it has left, to be written
// anew: what was copied from an earlier look is no wish.
const leaseSlack = time.Second

// change is what one list's elements have to become. A key in both lists is replaced.
type change struct {
	kind     kind
	del, add []item
}

// diff lists what has to change so that a table which holds was holds want.
func diff(was, want edge.Table) []change {
	var out []change
	for _, k := range kinds() {
		if equal(was, want, k) {
			continue
		}
		c := change{kind: k}
		old := map[key]item{}
		for _, i := range items(was, k) {
			old[i.key] = i
		}
		wanted := map[key]bool{}
		for _, i := range items(want, k) {
			wanted[i.key] = true
			o, ok := old[i.key]
			if ok && o.to == i.to && o.note == i.note && i.left <= o.left+leaseSlack {
				continue
			}
			if ok {
				c.del = append(c.del, o)
			}
			c.add = append(c.add, i)
		}
		for _, i := range items(was, k) {
			if !wanted[i.key] {
				c.del = append(c.del, i)
			}
		}
		if len(c.del)+len(c.add) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// slowDelete weighs the two: the kernel walks past one element of an interval set in 12 µs, past
// half of the set on the average, and loads an element in 50 µs (Linux 6.18).
const slowDelete = 8

// heavy says whether a table is better made anew. To delete an element of an interval set
// the kernel walks through the set, and lets nobody else run meanwhile: 4,000 of 4,000 took
// it seven minutes.
func heavy(changes []change, was, want edge.Table) bool {
	total := 0
	for _, k := range kinds() {
		total += length(was, k) + length(want, k)
	}
	for _, c := range changes {
		if c.kind != kindOnLink {
			continue
		}
		for _, family := range []int{4, 6} {
			size, deleted := 0, 0
			for _, o := range was.OnLink {
				if o.Addr.Is4() == (family == 4) {
					size++
				}
			}
			for _, i := range c.del {
				if i.key.family() == family {
					deleted++
				}
			}
			if deleted*size > slowDelete*total {
				return true
			}
		}
	}
	return false
}

// equal compares one list, except that a lease may have less time left.
func equal(was, want edge.Table, k kind) bool {
	switch k {
	case kindTarget:
		return slices.Equal(was.Targets, want.Targets)
	case kindNode:
		return slices.Equal(was.Nodes, want.Nodes)
	case kindService, kindBackend, kindAlways:
		return slices.Equal(*endpoints(&was, k), *endpoints(&want, k))
	case kindAddress:
		return slices.Equal(was.Addresses, want.Addresses)
	case kindOnLink:
		return slices.Equal(was.OnLink, want.OnLink)
	case kindLease:
	}
	return false
}

// missing says how a list that was read back differs from what was wanted; "" = it does
// not. Leases come and go by others' hands too: those that we wrote must be there.
func (c change) missing(now, want edge.Table) string {
	if c.kind != kindLease {
		if !equal(now, want, c.kind) {
			return fmt.Sprintf("the elements of %s are not those that were written", c.kind)
		}
		return ""
	}
	have := map[key]string{}
	for _, i := range items(now, kindLease) {
		have[i.key] = i.note
	}
	for _, i := range c.add {
		if have[i.key] != i.note {
			return fmt.Sprintf("lease %q is not there", i.note)
		}
	}
	return ""
}
