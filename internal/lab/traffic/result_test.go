package traffic_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shunt-net/shunt/internal/lab/traffic"
)

func TestAResultIsReadOffItsPackets(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	one, two := netip.MustParseAddr("10.100.0.1"), netip.MustParseAddr("10.100.0.2")
	r := traffic.Result{Packets: []traffic.Packet{
		{Seq: 0, Sent: at(0), Got: at(5), Exit: one},
		{Seq: 1, Sent: at(10), Got: at(40), Exit: one}, // overtaken
		{Seq: 2, Sent: at(20), Got: at(25), Exit: one},
		{Seq: 3, Sent: at(30)}, // lost
		{Seq: 4, Sent: at(40)}, // lost
		{Seq: 5, Sent: at(50), Got: at(130), Exit: two},
		{Seq: 6, Sent: at(60), Got: at(131), Exit: two},
	}}
	silence, from := r.Silence()
	first, ok := r.FirstVia(two, at(10))
	got := map[string]any{
		"sent": r.Sent(), "lost": r.Lost(), "silence": silence, "from": from.Sub(began), "exits": r.Exits(), "via": r.Via(),
		"first": first.Seq, "first ok": ok, "late part lost": r.Between(at(40), time.Time{}).Lost(), "middle": r.Between(at(10), at(40)).Sent(),
		"rtts": len(r.RTTs()), "rtt": first.RTT(), "none": traffic.Packet{Sent: began}.RTT(),
	}
	want := map[string]any{
		"sent": 7, "lost": 2, "silence": 90 * time.Millisecond, "from": 40 * time.Millisecond, "exits": []netip.Addr{one, two}, "via": map[netip.Addr]int{one: 3, two: 2},
		"first": uint64(5), "first ok": true, "late part lost": 1, "middle": 3,
		"rtts": 5, "rtt": 80 * time.Millisecond, "none": time.Duration(0),
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if d, _ := (traffic.Result{}).Silence(); d != 0 {
		t.Errorf("silence of nothing: %s", d)
	}
}
