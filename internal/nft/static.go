package nft

import (
	"fmt"
	"slices"

	"github.com/shunt-net/shunt/internal/edge"
)

// right is the listing of an empty table that is as it should be.
func right() listing {
	blocks := tables(text(edge.Table{}))
	l, err := parse(blocks[0])
	if err != nil {
		panic("nft: its own text: " + err.Error()) // a test reads it
	}
	return l
}

// drift compares everything but the elements with what it should be.
func (l listing) drift() []string {
	var out []string
	want := right()
	for _, p := range l.own {
		out = append(out, fmt.Sprintf("%s: %q, want no such property", tableTitle, p))
	}
	known := map[string]bool{}
	for _, w := range want.objects {
		known[w.head] = true
		o := l.object(w.head)
		if o == nil {
			out = append(out, w.head+": missing")
			continue
		}
		out = append(out, differences(w.head, o.props, w.props)...)
	}
	for _, o := range l.objects {
		if !known[o.head] {
			out = append(out, o.head+": want no such object")
		}
	}
	return out
}

// differences names the first thing that differs between the lines of an object.
func differences(head string, got, want []string) []string {
	if slices.Equal(got, want) {
		return nil
	}
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return []string{fmt.Sprintf("%s: %q is missing", head, want[i])}
		case i >= len(want):
			return []string{fmt.Sprintf("%s: %q is none of ours", head, got[i])}
		case got[i] != want[i]:
			return []string{fmt.Sprintf("%s: %q, want %q", head, got[i], want[i])}
		}
	}
	return nil
}
