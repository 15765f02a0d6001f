package plane

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ti-mo/conntrack"
)

// fill makes n conntrack entries from a port with a mark, half of them IPv6.
func fill(tb testing.TB, conn *conntrack.Conn, n int, port uint16, mark uint32) {
	tb.Helper()
	for i := range n {
		a, b := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), netip.MustParseAddr(far4)
		if i%2 == 1 {
			a, b = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), netip.MustParseAddr(far6)
		}
		must(tb, conn.Create(conntrack.NewFlow(17, conntrack.StatusConfirmed, a, b, port, 53, 3000, mark)))
	}
}

func count(tb testing.TB, conn *conntrack.Conn) map[uint32]int {
	tb.Helper()
	all, err := conn.Dump(nil)
	must(tb, err)
	n := map[uint32]int{}
	for _, f := range all {
		n[f.Mark]++
	}
	return n
}

// Only the flows of that class on that lane are deleted: not those of other lanes, of other
// classes on the lane, of none, nor any by bits that are not ours.
func TestFlushTakesItsOwnOnly(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	conn, err := conntrack.Dial(nil)
	must(t, err)
	defer func() { _ = conn.Close() }()
	marks := []uint32{0, 0x1201, 0x2201, 0x1202, 0x2202, 0x201, 0x70001201, 0xff201, 0xff000, 0x201000, 0x1203, 0x1000, 0x2000, 0x70001000}
	for _, tt := range []struct {
		name, class, lane string
		gone              []uint32
		n                 int
	}{
		{"a class on its own lane", "egress1", "egress1", []uint32{0x1201, 0x70001201}, 20},
		{"a class where it is lent", "egress1", "egress2", []uint32{0x1202}, 10},
		{"every class on a lane", "", "egress1", []uint32{0x1201, 0x2201, 0x201, 0x70001201, 0xff201}, 50},
		{"none there", "egress2", "egress2", []uint32{0x2202}, 10},
		{"a class that went direct", "egress1", Direct, []uint32{0x1000, 0x70001000, 0x201000}, 30},
		{"another class that did", "egress2", Direct, []uint32{0x2000}, 10},
	} {
		w.run(t, tt.name, func(t *testing.T) {
			must(t, conn.Flush())
			for i, m := range marks {
				fill(t, conn, 10, uint16(1000+i), m)
			}
			want := count(t, conn)
			for _, m := range tt.gone {
				delete(want, m)
			}
			n, err := p.Flush(t.Context(), c, tt.class, tt.lane)
			if n != tt.n || err != nil {
				t.Errorf("%d, %v; want %d", n, err, tt.n)
			}
			if diff := cmp.Diff(want, count(t, conn)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if n, err = p.Flush(t.Context(), c, tt.class, tt.lane); n != 0 || err != nil {
				t.Errorf("again: %d, %v", n, err)
			}
		})
	}
}

func TestFlushRefusesAndEnds(t *testing.T) {
	_, p, c := newWorld(t), newPlane(t), config()
	for _, tt := range [][2]string{{"egress9", "egress1"}, {"egress1", "egress9"}, {"egress1", ""}, {"", Direct}, {"egress9", Direct}} {
		if _, err := p.Flush(t.Context(), c, tt[0], tt[1]); err == nil {
			t.Errorf("%q: taken", tt)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Flush(ctx, c, "egress1", "egress1"); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	if _, err := p.Flush(t.Context(), c, "egress1", "egress1"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
