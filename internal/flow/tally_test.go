package flow

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ti-mo/conntrack"

	"github.com/shunt-net/shunt/internal/edge"
)

// Every address that a service may have with every candidate that it may lead to: each entry
// is counted where it belongs, and once.
func TestTallyCountsEachEntryWhereItBelongs(t *testing.T) {
	enter(t)
	conn, err := conntrack.Dial(nil)
	must(t, err)
	defer conn.Close()
	lines := every()
	for _, l := range lines {
		l.make(t, conn)
	}
	var list []edge.Flush
	for _, p := range []edge.Protocol{edge.TCP, edge.UDP} {
		for _, from := range fronts {
			for _, to := range backs {
				if from.Addr().Is4() == to.Addr().Is4() {
					list = append(list, edge.Flush{Service: "front", From: edge.Endpoint{Protocol: p, Addr: from}, To: to})
				}
			}
		}
	}
	again := list[0]
	again.Pending = true // means nothing here
	list = append(list, again)
	want := make([]Tally, len(list))
	for i, f := range list {
		f.Pending = false
		for _, l := range lines {
			if !meant(f, l) {
				continue
			}
			want[i].All++
			if !l.answered {
				want[i].Pending++
			}
		}
	}
	f := New()
	defer f.Close()
	got, err := f.Tally(t.Context(), list)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if want[0] != (Tally{2, 1}) {
		t.Errorf("the test counts nothing: %+v", want[0])
	}
	if left := clients(t, conn); len(left) != len(lines) {
		t.Errorf("%d entries left of %d", len(left), len(lines))
	}
}

func TestTallyOfNothingAndOfNoScope(t *testing.T) {
	f := New()
	if got, err := f.Tally(t.Context(), nil); len(got) != 0 || err != nil {
		t.Errorf("of nothing: %v, %v", got, err)
	}
	bad := edge.Flush{Service: "front", From: edge.Endpoint{Protocol: edge.TCP, Addr: netip.MustParseAddrPort("10.0.0.1:80")}}
	if _, err := f.Tally(t.Context(), []edge.Flush{bad}); err == nil {
		t.Error("no candidate, and no error")
	}
}
