package cli

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/shunt-net/shunt/internal/edge"
)

// tableOf is a table that takes all it is given.
type tableOf struct{ applied int }

func (t *tableOf) Observe(context.Context) (edge.View, error) { return edge.View{}, nil }

func (t *tableOf) Apply(_ context.Context, was edge.View, want edge.Table) (edge.View, error) {
	t.applied++
	was.Table = want
	return was, nil
}

func (t *tableOf) Close() error { return nil }

func TestARunUndoesNothingOfANewerConfiguration(t *testing.T) {
	ours := edge.Config{Services: []edge.Service{{
		Name: "front", Port: 80,
		Candidates: []edge.Candidate{{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, {Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Port: 81}},
	}}}
	vip := edge.Endpoint{Protocol: edge.TCP, Addr: netip.MustParseAddrPort("10.0.0.50:80")}
	other := edge.Endpoint{Protocol: edge.TCP, Addr: netip.MustParseAddrPort("10.0.0.51:80")}
	leads := func(to string, services ...edge.Endpoint) edge.Table {
		e := edge.Element{From: vip}
		if to != "" {
			e.To = netip.MustParseAddrPort(to)
		}
		return edge.Table{Targets: []edge.Element{e}, Services: services}
	}
	node := leads("10.0.0.1:80", vip)
	node.Nodes = []edge.Element{{From: other, To: netip.MustParseAddrPort("10.0.0.9:80")}}
	tests := []struct {
		name      string
		was, want edge.Table
		absent    bool
		refused   bool // where the file is another one
	}{
		{name: "a death of ours", was: leads("10.0.0.1:80", vip), want: leads("10.0.0.2:81", vip)},
		{name: "nobody was there", was: leads("", vip), want: leads("10.0.0.1:80", vip)},
		{name: "no table yet", was: leads("10.0.0.9:80", vip), want: leads("10.0.0.1:80", vip), absent: true},
		{name: "to a candidate that was removed", was: leads("10.0.0.9:80", vip), want: leads("10.0.0.1:80", vip), refused: true},
		{name: "to another port of a candidate", was: leads("10.0.0.2:80", vip), want: leads("10.0.0.1:80", vip), refused: true},
		{name: "of a node's own address", was: node, want: leads("10.0.0.1:80", vip), refused: true},
		{name: "a service that is new", was: leads("10.0.0.1:80", vip, other), want: leads("10.0.0.1:80", vip), refused: true},
		{name: "a service that is gone", was: leads("10.0.0.1:80", vip), want: leads("10.0.0.1:80", vip, other), refused: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, behind := range []bool{false, true} {
				table := &tableOf{}
				g := guarded{Replicated: table, behind: func() bool { return behind }, known: candidates(ours)}
				_, err := g.Apply(t.Context(), edge.View{Absent: tt.absent, Table: tt.was}, tt.want)
				refused := tt.refused && behind
				if errors.Is(err, errBehind) != refused || (table.applied == 0) != refused {
					t.Errorf("behind %t: applied %d times, error %v; refused: want %t", behind, table.applied, err, refused)
				}
			}
		})
	}
}

func TestMarkOfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shunt.yaml")
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := fileState(path)
	if none.there() || none.open() {
		t.Errorf("a file that is not there: %+v", none)
	}
	put(path, "one")
	first := fileState(path)
	if first == none || !first.there() || first.open() || fileState(path) != first {
		t.Errorf("a file: %+v", first)
	}
	put(path+".new", "two") // as long as the other, and as old
	if err := errors.Join(os.Chtimes(path+".new", first.at, first.at), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	second := fileState(path)
	if second == first || second.size != first.size || !second.at.Equal(first.at) {
		t.Errorf("another file in its place: %+v, before %+v", second, first)
	}
	if err := os.Chmod(path, 0o602); err != nil { //nolint:gosec // it is what is found
		t.Fatal(err)
	}
	if !fileState(path).open() {
		t.Error("anybody may write to it, and that is not seen")
	}
}
