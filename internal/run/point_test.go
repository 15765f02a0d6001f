package run

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPoint(t *testing.T) {
	var got []string
	ctx := WithPoints(t.Context(), func(name string) { got = append(got, name) })
	child, cancel := context.WithCancel(ctx)
	defer cancel()

	Point(t.Context(), "outside.ignored")
	Point(ctx, "file.written")
	Point(child, "peer.added")
	Point(WithPoints(ctx, nil), "nobody.asks")

	if diff := cmp.Diff([]string{"file.written", "peer.added"}, got); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
}
