package nft

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/shunt-net/shunt/internal/edge"
)

// many is a table of n services with four candidates each, in both families.
func many(n int, epoch uint64) edge.Table {
	var t edge.Table
	addr := func(v6 bool, net byte, i int) netip.Addr {
		if v6 {
			return netip.AddrFrom16([16]byte{0: 0xfd, 1: net, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
		}
		return netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)})
	}
	for i := range n {
		for _, v6 := range []bool{false, true} {
			from := edge.Endpoint{Protocol: edge.TCP, Addr: netip.AddrPortFrom(addr(v6, 99, i), public)}
			first := netip.AddrPortFrom(addr(v6, 20, 4*i+1), actual)
			claim := edge.Claim{Service: fmt.Sprintf("service-%04d", i), Epoch: epoch, By: "core-01"}
			t.Targets = append(t.Targets, edge.Element{From: from, To: first, Claim: claim})
			t.Services = append(t.Services, from)
			t.Addresses = append(t.Addresses, from.Addr.Addr())
			for j := range 4 {
				c := addr(v6, 20, 4*i+1+j)
				t.Backends = append(t.Backends, edge.Endpoint{Protocol: edge.TCP, Addr: netip.AddrPortFrom(c, actual)})
				bits := 16
				if v6 {
					bits = 64
				}
				t.OnLink = append(t.OnLink, edge.OnLink{Prefix: netip.PrefixFrom(c, bits).Masked(), Addr: c})
			}
		}
	}
	t, err := canonical(t)
	if err != nil {
		panic(err)
	}
	return t
}

func forEachDoor(b *testing.B, sizes []int, f func(b *testing.B, r edge.Replicated, n int)) {
	for name, door := range doors() {
		for _, n := range sizes {
			b.Run(fmt.Sprintf("%s, %d services", name, n), func(b *testing.B) { f(b, door(newSpace(b)), n) })
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	forEachDoor(b, []int{1, 100, 1000}, func(b *testing.B, r edge.Replicated, n int) {
		apply(b, r, many(n, 1))
		for b.Loop() {
			if v, err := r.Observe(b.Context()); err != nil || len(v.Table.Targets) != 2*n || v.Drift != nil {
				b.Fatal(v, err)
			}
		}
	})
}

// One target is replaced and read back.
func BenchmarkFlip(b *testing.B) {
	forEachDoor(b, []int{1, 100, 1000}, func(b *testing.B, r edge.Replicated, n int) {
		v := apply(b, r, many(n, 1))
		want := many(n, 1)
		for i := 0; b.Loop(); i++ {
			e := &want.Targets[n/2]
			e.To = want.Backends[i%4].Addr
			e.Claim.Epoch++
			var err error
			if v, err = r.Apply(b.Context(), v, want); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// All of a table that was not there.
func BenchmarkLoad(b *testing.B) {
	forEachDoor(b, []int{1, 1000}, func(b *testing.B, r edge.Replicated, n int) {
		want := many(n, 1)
		for b.Loop() {
			if _, err := r.Apply(b.Context(), edge.View{Absent: true}, want); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// All elements of a table that is there and empty, in one transaction of many parts.
func BenchmarkFill(b *testing.B) {
	forEachDoor(b, []int{1000}, func(b *testing.B, r edge.Replicated, n int) {
		want := many(n, 1)
		v := apply(b, r, edge.Table{})
		for i := 0; b.Loop(); i++ {
			to := want
			if i%2 == 1 {
				to = edge.Table{}
			}
			var err error
			if v, err = r.Apply(b.Context(), v, to); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// What each run of a command pays once: opening the connection, a look, closing it.
func BenchmarkOneRun(b *testing.B) {
	for name, door := range doors() {
		b.Run(name, func(b *testing.B) {
			s := newSpace(b)
			apply(b, s.local(), many(1, 1))
			for b.Loop() {
				r := door(s)
				if v, err := r.Observe(b.Context()); err != nil || v.Absent {
					b.Fatal(v, err)
				}
				must(b, r.Close())
			}
		})
	}
}
