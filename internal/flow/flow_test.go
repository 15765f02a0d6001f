package flow

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ti-mo/conntrack"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/edge"
)

// line is one conntrack entry that a test makes.
type line struct {
	proto    uint8
	to       netip.AddrPort // original destination
	from     netip.AddrPort // source of the answers
	answered bool
	client   uint16
}

func (l line) make(tb testing.TB, conn *conntrack.Conn) {
	tb.Helper()
	client := netip.MustParseAddr("10.1.0.2")
	if l.to.Addr().Is6() {
		client = netip.MustParseAddr("fd00:1::2")
	}
	status := conntrack.StatusConfirmed
	if l.answered {
		status |= conntrack.StatusSeenReply
	}
	f := conntrack.NewFlow(l.proto, status, client, l.to.Addr(), l.client, l.to.Port(), 3000, 0)
	f.TupleReply.IP.SourceAddress, f.TupleReply.Proto.SourcePort = l.from.Addr(), l.from.Port()
	must(tb, conn.Create(f))
}

func ends(s ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, v := range s {
		out = append(out, netip.MustParseAddrPort(v))
	}
	return out
}

// fronts and backs are what entries and flushes are made of: services that share an
// address, candidates that share one, ports that are equal on both sides.
var (
	fronts = ends("10.99.0.1:25565", "10.99.0.1:25577", "10.99.0.2:25565", "[fd99::1]:25565", "[fd99::1]:25577", "[fd99::2]:25565")
	backs  = ends("10.20.0.11:25577", "10.20.0.11:25565", "10.20.0.12:25577", "[fd20::11]:25577", "[fd20::12]:25577")
)

func every() []line {
	var all []line
	for _, p := range []uint8{syscall.IPPROTO_TCP, syscall.IPPROTO_UDP} {
		for _, to := range slices.Concat(fronts, backs) { // also those that were sent to a candidate itself
			for _, from := range append(slices.Clone(backs), to) {
				for _, answered := range []bool{false, true} {
					if to.Addr().Is4() == from.Addr().Is4() {
						all = append(all, line{p, to, from, answered, uint16(20000 + len(all))})
					}
				}
			}
		}
	}
	return all
}

// meant says by the words of the contract whether a flush is about an entry.
func meant(f edge.Flush, l line) bool {
	proto := map[edge.Protocol]uint8{edge.TCP: 6, edge.UDP: 17}[f.From.Protocol]
	to := f.To
	if f.Untrans {
		to = f.From.Addr
	}
	return l.proto == proto && l.to == f.From.Addr && l.from.Addr() == to.Addr() &&
		(to.Port() == 0 || l.from.Port() == to.Port()) && (!f.Pending || !l.answered)
}

func keys(lines []line, keep func(line) bool) []uint16 {
	var out []uint16
	for _, l := range lines {
		if keep(l) {
			out = append(out, l.client)
		}
	}
	slices.Sort(out)
	return out
}

func clients(tb testing.TB, conn *conntrack.Conn) []uint16 {
	tb.Helper()
	all, err := conn.Dump(nil)
	must(tb, err)
	var out []uint16
	for _, f := range all {
		out = append(out, f.TupleOrig.Proto.SourcePort)
	}
	slices.Sort(out)
	return out
}

// ways are the two ways to delete: kernels before 6.11 have the second only.
var ways = map[string]bool{"the kernel picks": false, "entries are listed": true}

// A flush takes the entries of its address, its port and its protocol whose answers come
// from its candidate, and no other.
func TestScope(t *testing.T) {
	v4, v6 := fronts[0], fronts[3]
	on := func(p edge.Protocol, a netip.AddrPort) edge.Endpoint { return edge.Endpoint{Protocol: p, Addr: a} }
	tests := map[string]struct {
		flush []edge.Flush
		gone  int
	}{
		"TCP to a candidate with another port":                {[]edge.Flush{{From: on(edge.TCP, v4), To: backs[0]}}, 2},
		"UDP to a candidate with another port":                {[]edge.Flush{{From: on(edge.UDP, v4), To: backs[0]}}, 2},
		"TCP over IPv6":                                       {[]edge.Flush{{From: on(edge.TCP, v6), To: backs[3]}}, 2},
		"UDP over IPv6":                                       {[]edge.Flush{{From: on(edge.UDP, v6), To: backs[3]}}, 2},
		"only those that were never answered":                 {[]edge.Flush{{From: on(edge.TCP, v4), To: backs[0], Pending: true}}, 1},
		"only those that were never answered, IPv6":           {[]edge.Flush{{From: on(edge.UDP, v6), To: backs[3], Pending: true}}, 1},
		"every port of a candidate":                           {[]edge.Flush{{From: on(edge.TCP, v4), To: netip.AddrPortFrom(backs[0].Addr(), 0)}}, 4},
		"what was made before there was a target":             {[]edge.Flush{{From: on(edge.UDP, v4), Untrans: true}}, 2},
		"what was made before, never answered, IPv6":          {[]edge.Flush{{From: on(edge.TCP, v6), Untrans: true, Pending: true}}, 1},
		"several of one service":                              {[]edge.Flush{{From: on(edge.UDP, v4), To: backs[0]}, {From: on(edge.TCP, v4), To: backs[0], Pending: true}, {From: on(edge.UDP, v6), To: backs[3]}}, 5},
		"the same twice, and what the first already includes": {[]edge.Flush{{From: on(edge.UDP, v4), To: backs[0]}, {From: on(edge.UDP, v4), To: backs[0]}, {From: on(edge.UDP, v4), To: backs[0], Pending: true}}, 2},
		"a candidate that serves nobody":                      {[]edge.Flush{{From: on(edge.TCP, v4), To: netip.MustParseAddrPort("10.20.0.99:25577")}}, 0},
		"an address in its IPv6 form":                         {[]edge.Flush{{From: on(edge.TCP, netip.MustParseAddrPort("[::ffff:10.99.0.1]:25565")), To: netip.MustParseAddrPort("[::ffff:10.20.0.11]:25577")}}, 2},
		"nothing":                                             {nil, 0},
	}
	w := enter(t)
	conn, err := conntrack.Dial(nil)
	must(t, err)
	defer conn.Close()
	lines := every()
	for way, listing := range ways {
		for name, tt := range tests {
			t.Run(way+"/"+name, func(t *testing.T) {
				w.stay(t)
				testScope(t, conn, lines, tt.flush, tt.gone, listing)
			})
		}
	}
}

func testScope(t *testing.T, conn *conntrack.Conn, lines []line, list []edge.Flush, gone int, listing bool) {
	must(t, conn.Flush())
	for _, l := range lines {
		l.make(t, conn)
	}
	f := &Flows{listing: listing}
	defer f.Close()
	n, err := f.Count(t.Context(), list)
	if n != gone || err != nil {
		t.Errorf("counted %d, %v; want %d", n, err, gone)
	}
	n, err = f.Flush(t.Context(), list)
	picks := !listing && slices.ContainsFunc(list, func(f edge.Flush) bool { return f.From.Addr.Addr().Unmap().Is4() })
	if want := map[bool]int{true: -1, false: gone}[picks]; n != want || err != nil {
		t.Errorf("deleted %d, %v; want %d", n, err, want)
	}
	if f.listing != listing {
		t.Error("this kernel deletes by a filter, and was not asked to")
	}
	unmap := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
	want := keys(lines, func(l line) bool {
		return !slices.ContainsFunc(list, func(f edge.Flush) bool {
			f.From.Addr, f.To = unmap(f.From.Addr), unmap(f.To)
			return meant(f, l)
		})
	})
	if len(lines)-len(want) != gone {
		t.Fatalf("the table says %d, the words say %d", gone, len(lines)-len(want))
	}
	if diff := cmp.Diff(want, clients(t, conn)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if n, err = f.Flush(t.Context(), list); n > 0 || err != nil {
		t.Errorf("again: %d, %v", n, err)
	}
	if diff := cmp.Diff(want, clients(t, conn)); diff != "" {
		t.Errorf("left after the second time (-want +got):\n%s", diff)
	}
}

// Whatever list is flushed, in whichever of the ways: what is left is what nobody named.
func TestAnyListLeavesTheRest(t *testing.T) {
	enter(t)
	conn, err := conntrack.Dial(nil)
	must(t, err)
	defer conn.Close()
	lines := every()
	flows := map[bool]*Flows{false: New(), true: {listing: true}}
	for _, f := range flows {
		defer f.Close()
	}
	rapid.Check(t, func(rt *rapid.T) {
		var list []edge.Flush
		for range rapid.IntRange(1, 20).Draw(rt, "flushes") {
			v6 := rapid.Bool().Draw(rt, "v6")
			pick := func(name string, from []netip.AddrPort) netip.AddrPort {
				return rapid.SampledFrom(slices.DeleteFunc(slices.Clone(from), func(a netip.AddrPort) bool { return a.Addr().Is6() != v6 })).Draw(rt, name)
			}
			list = append(list, edge.Flush{
				From:    edge.Endpoint{Protocol: rapid.SampledFrom([]edge.Protocol{edge.TCP, edge.UDP}).Draw(rt, "protocol"), Addr: pick("from", fronts)},
				To:      pick("to", backs),
				Pending: rapid.Bool().Draw(rt, "pending"), Untrans: rapid.Bool().Draw(rt, "untranslated"),
			})
		}
		must(t, conn.Flush())
		for _, l := range lines {
			l.make(t, conn)
		}
		if _, err := flows[rapid.Bool().Draw(rt, "listing")].Flush(t.Context(), list); err != nil {
			rt.Fatal(err)
		}
		want := keys(lines, func(l line) bool {
			return !slices.ContainsFunc(list, func(f edge.Flush) bool { return meant(f, l) })
		})
		if diff := cmp.Diff(want, clients(t, conn)); diff != "" {
			rt.Fatalf("left of %v (-want +got):\n%s", list, diff)
		}
	})
}

func TestWhatIsNoScopeIsRefused(t *testing.T) {
	good := edge.Flush{Service: "front", From: edge.Endpoint{Protocol: edge.TCP, Addr: fronts[0]}, To: backs[0]}
	for name, change := range map[string]func(*edge.Flush){
		"no protocol":                func(f *edge.Flush) { f.From.Protocol = "" },
		"another protocol":           func(f *edge.Flush) { f.From.Protocol = "sctp" },
		"no address":                 func(f *edge.Flush) { f.From.Addr = netip.AddrPort{} },
		"an address that is any":     func(f *edge.Flush) { f.From.Addr = netip.MustParseAddrPort("0.0.0.0:80") },
		"no port":                    func(f *edge.Flush) { f.From.Addr = netip.AddrPortFrom(f.From.Addr.Addr(), 0) },
		"no candidate":               func(f *edge.Flush) { f.To = netip.AddrPort{} },
		"a candidate that is any":    func(f *edge.Flush) { f.To = netip.MustParseAddrPort("[::]:80") },
		"two families":               func(f *edge.Flush) { f.To = backs[3] },
		"an address with a zone":     func(f *edge.Flush) { f.To = netip.MustParseAddrPort("[fe80::1%eth0]:80") },
		"untranslated, no address":   func(f *edge.Flush) { f.Untrans, f.From.Addr = true, netip.AddrPort{} },
		"untranslated, other family": func(f *edge.Flush) { f.From.Addr = netip.AddrPortFrom(netip.IPv6Unspecified(), 80); f.Untrans = true },
	} {
		bad := good
		change(&bad)
		if n, err := New().Flush(t.Context(), []edge.Flush{good, bad}); err == nil || n != 0 {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

func TestEndsWithItsContextAndWorksAgain(t *testing.T) {
	enter(t)
	f := New()
	defer f.Close()
	list := []edge.Flush{{From: edge.Endpoint{Protocol: edge.TCP, Addr: fronts[0]}, To: backs[0]}}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.Flush(ctx, list); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		if _, err := f.Flush(t.Context(), list); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
	socket := f.socket
	if _, err := f.Flush(t.Context(), list); err != nil || f.socket != socket {
		t.Errorf("the socket is not kept: %v", err)
	}
	must(t, f.Close())
	if _, err := f.Flush(t.Context(), list); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// A thousand services of a host that died are a few walks, not a thousand.
func TestManyServicesAreFewWalks(t *testing.T) {
	enter(t)
	conn, err := conntrack.Dial(nil)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetWriteBuffer(1<<20))
	var list []edge.Flush
	var lines []line
	for i := range 1000 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), 25565)
		list = append(list, edge.Flush{From: edge.Endpoint{Protocol: edge.UDP, Addr: from}, To: backs[0]})
		lines = append(lines, line{17, from, backs[0], true, uint16(2 * i)}, line{17, from, backs[2], true, uint16(2*i + 1)})
	}
	for _, l := range lines {
		l.make(t, conn)
	}
	jobs, err := plan(list, walks)
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d walks, %v", len(jobs), err)
	}
	f := New()
	defer f.Close()
	begin := time.Now()
	n, err := f.Flush(t.Context(), list)
	t.Logf("1,000 services, 2,000 entries: %v", time.Since(begin))
	if n != 1000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if diff := cmp.Diff(keys(lines, func(l line) bool { return l.client%2 == 1 }), clients(t, conn)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func BenchmarkFlush(b *testing.B) {
	for _, n := range []int{0, 10_000, 100_000} {
		for way, listing := range ways {
			b.Run(fmt.Sprintf("%d entries/%s", n, way), func(b *testing.B) { benchmark(b, n, listing) })
		}
	}
}

// One of eight candidates dies, as in the figures of the documentation.
func benchmark(b *testing.B, n int, listing bool) {
	enter(b)
	conn, err := conntrack.Dial(nil)
	must(b, err)
	defer conn.Close()
	f := &Flows{listing: listing}
	defer f.Close()
	to := fronts[0]
	backs := make([]netip.AddrPort, 8)
	for i := range backs {
		backs[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 20, 0, byte(11 + i)}), portIn)
	}
	create := func(i int) {
		e := conntrack.NewFlow(17, conntrack.StatusConfirmed|conntrack.StatusSeenReply,
			netip.AddrFrom4([4]byte{10, 10, byte(i >> 14), 2}), to.Addr(), uint16(1024+i&0x3fff), to.Port(), 3000, 0)
		e.TupleReply.IP.SourceAddress, e.TupleReply.Proto.SourcePort = backs[i%8].Addr(), portIn
		must(b, conn.Create(e))
	}
	for i := range n {
		create(i)
	}
	list := []edge.Flush{{From: edge.Endpoint{Protocol: edge.UDP, Addr: to}, To: backs[0]}}
	for b.Loop() {
		if _, err := f.Flush(b.Context(), list); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		for i := 0; i < n; i += 8 {
			create(i)
		}
		b.StartTimer()
	}
}
