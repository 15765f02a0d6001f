package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/shunt-net/shunt/internal/edge"
)

// Check says what of a table the kernel can't hold; nil = nothing.
func Check(t edge.Table) error {
	_, err := canonical(t)
	return err
}

// canonical is the table as it will be read back: sorted, nothing twice, no prefix that
// lies in another one of the same address (an interval set refuses that). What can't be in
// a table is left out and part of the error.
func canonical(t edge.Table) (edge.Table, error) {
	var errs []error
	note := func(err error) bool {
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}
	out := edge.Table{
		Targets:   sorted(t.Targets, func(e *edge.Element) bool { return note(cleanElement(e)) }, compareElements),
		Nodes:     sorted(t.Nodes, func(e *edge.Element) bool { return note(cleanElement(e)) }, compareElements),
		Services:  sorted(t.Services, func(e *edge.Endpoint) bool { return note(cleanEndpoint(e)) }, compareEndpoints),
		Addresses: sorted(t.Addresses, func(a *netip.Addr) bool { return note(cleanAddr(a)) }, netip.Addr.Compare),
		Backends:  sorted(t.Backends, func(e *edge.Endpoint) bool { return note(cleanEndpoint(e)) }, compareEndpoints),
		Always:    sorted(t.Always, func(e *edge.Endpoint) bool { return note(cleanEndpoint(e)) }, compareEndpoints),
		OnLink:    sorted(t.OnLink, func(o *edge.OnLink) bool { return note(cleanOnLink(o)) }, compareOnLinks),
	}
	for _, l := range t.Leases {
		if l.Holds = orNil(l.Holds); note(checkLease(l)) {
			out.Leases = append(out.Leases, l)
		}
	}
	byNode := func(a, b edge.Lease) int { return strings.Compare(a.Node, b.Node) }
	slices.SortStableFunc(out.Leases, byNode)
	out.Leases = slices.CompactFunc(out.Leases, func(a, b edge.Lease) bool { return byNode(a, b) == 0 })
	for _, list := range [][]edge.Element{out.Targets, out.Nodes} {
		for i := range max(len(list)-1, 0) {
			if list[i].From == list[i+1].From {
				errs = append(errs, fmt.Errorf("%s: two targets, %s and %s", endpointText(list[i].From), list[i].To, list[i+1].To))
			}
		}
	}
	out.OnLink = widest(out.OnLink)
	for _, k := range kinds() {
		if length(out, k) <= k.size() { // of both families
			continue
		}
		count := map[int]int{}
		for _, i := range items(out, k) {
			count[i.key.family()]++
		}
		for family, n := range count {
			if n > k.size() {
				errs = append(errs, fmt.Errorf("%d elements for %s, which holds %d", n, k.in(family), k.size()))
			}
		}
	}
	return out, errors.Join(errs...)
}

// sorted cleans a copy of the list and drops what is there twice.
func sorted[T comparable](list []T, clean func(*T) bool, compare func(a, b T) int) []T {
	out := make([]T, 0, len(list))
	for _, v := range list {
		if clean(&v) {
			out = append(out, v)
		}
	}
	if !slices.IsSortedFunc(out, compare) {
		slices.SortStableFunc(out, compare)
	}
	return orNil(slices.Compact(out))
}

// widest leaves out each prefix that lies in another one of the same address.
func widest(list []edge.OnLink) []edge.OnLink {
	out := list[:0]
	for _, o := range list { // a wider prefix has a lower or the same first address
		if n := len(out); n > 0 && out[n-1].Addr == o.Addr && out[n-1].Prefix.Overlaps(o.Prefix) {
			continue
		}
		out = append(out, o)
	}
	return orNil(out)
}

func endpointText(e edge.Endpoint) string { return fmt.Sprintf("%s/%s", e.Addr, e.Protocol) }

func cleanAddr(a *netip.Addr) error {
	if !a.IsValid() || a.Zone() != "" {
		return fmt.Errorf("address %q: not one that a table can hold", a)
	}
	*a = a.Unmap()
	return nil
}

func cleanAddrPort(ap *netip.AddrPort) error {
	a := ap.Addr()
	if err := cleanAddr(&a); err != nil {
		return err
	}
	if ap.Port() == 0 {
		return fmt.Errorf("%s: no port", ap)
	}
	*ap = netip.AddrPortFrom(a, ap.Port())
	return nil
}

func cleanEndpoint(e *edge.Endpoint) error {
	switch e.Protocol {
	case edge.TCP, edge.UDP:
		return cleanAddrPort(&e.Addr)
	case edge.ProtocolUnknown:
	}
	return fmt.Errorf("%s: protocol %q: want tcp or udp", e.Addr, e.Protocol)
}

func cleanElement(e *edge.Element) error {
	if err := errors.Join(cleanEndpoint(&e.From), cleanAddrPort(&e.To)); err != nil {
		return err
	}
	if e.From.Addr.Addr().Is4() != e.To.Addr().Is4() {
		return fmt.Errorf("%s leads to %s, which is of the other family", endpointText(e.From), e.To)
	}
	if e.Claim != (edge.Claim{}) && (!isName(e.Claim.Service, maxName) || !isName(e.Claim.By, maxName)) {
		return fmt.Errorf("%s: claim %q by %q: not names that a table can hold", endpointText(e.From), e.Claim.Service, e.Claim.By)
	}
	return nil
}

func cleanOnLink(o *edge.OnLink) error {
	if err := cleanAddr(&o.Addr); err != nil {
		return err
	}
	if !o.Prefix.IsValid() || o.Prefix.Addr().Is4() != o.Addr.Is4() {
		return fmt.Errorf("address %s on link %s: not of one family", o.Addr, o.Prefix)
	}
	o.Prefix = o.Prefix.Masked()
	return nil
}
