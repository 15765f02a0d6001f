package plane

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/run"
)

// At each kill point nothing is marked yet that has no rule, and no rule is there whose table
// has no blackhole.
func TestOrderLeaksNothing(t *testing.T) {
	w, p, c := newWorld(t), newPlane(t), config()
	var points []string
	ctx := run.WithPoints(t.Context(), func(name string) {
		points = append(points, name)
		rules, routes := w.ip("rule"), w.ip("route show table all")
		if strings.Contains(rules, "lookup 201") && !strings.Contains(routes, "blackhole default table 201") {
			t.Error("a rule to a table without a blackhole")
		}
		if strings.Contains(w.nft("list ruleset"), "shunt_egress") && !strings.Contains(rules, "lookup 202") {
			t.Error("marks without a rule")
		}
	})
	_, err := p.Ensure(ctx, c, home(c))
	must(t, err)
	must(t, p.Move(ctx, c, map[string]string{"egress1": ""}))
	want := slices.Concat(slices.Repeat([]string{"plane.routes"}, 8), slices.Repeat([]string{"plane.rules"}, 8), []string{"plane.loaded", "plane.moved"})
	if diff := cmp.Diff(want, points); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
}

// Killed at any point, the next run finishes the work.
func TestKilledAtEachPoint(t *testing.T) {
	type killed struct{}
	for n := 1; ; n++ {
		w := newWorld(t)
		c, hits, done := config(), 0, false
		func() {
			defer func() {
				if r := recover(); r != nil {
					if _, ok := r.(killed); !ok {
						panic(r)
					}
				}
			}()
			ctx := run.WithPoints(context.Background(), func(string) {
				if hits++; hits == n {
					panic(killed{})
				}
			})
			_, err := New().Ensure(ctx, c, home(c))
			must(t, err)
			done = true
		}()
		p := newPlane(t)
		if changed := ensure(t, p, c, home(c)); changed == done && n < 17 {
			t.Errorf("point %d: changed %v after done %v", n, changed, done)
		}
		v, err := p.Observe(t.Context(), c)
		must(t, err)
		if !v.Ready || !maps.Equal(v.Classes, home(c)) || len(v.Drift) > 0 {
			t.Errorf("point %d: %+v", n, v)
		}
		_ = w
		if done {
			if n < 10 {
				t.Errorf("only %d points", n-1)
			}
			return
		}
	}
}
