package egress

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

// farSources can be read only by the way that a recovery found.
type farSources struct {
	*world
	way any
	own int // endpoints that a source on this machine gives all the same
}

func (f farSources) Via(access any) Sources { f.way = access; return f }

func (f farSources) Fetch(ctx context.Context, s []Source, dir string) ([]Entry, int, []error, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, 0, nil, err
	}
	if f.way == "a way" {
		return f.world.Fetch(ctx, s, dir)
	}
	var failed []error
	if slices.ContainsFunc(s, Source.Remote) {
		failed = []error{&SourceError{Source: "site", Err: errors.New("no way")}}
	}
	if f.own == 0 {
		return nil, 0, failed, errors.New("no source yielded a profile")
	}
	got, n, _, err := f.world.Fetch(ctx, s, dir)
	return got[:f.own], n, failed, err
}

// guide is a recovery.
type guide struct {
	in     []RecoveryInput
	fails  bool
	closed int
}

func (g *guide) Recover(_ context.Context, in RecoveryInput) (RecoveryResult, error) {
	g.in = append(g.in, in)
	if g.fails {
		return RecoveryResult{Tried: []StrategyTry{{Strategy: "10-x", Reason: "nobody answers"}}}, nil
	}
	return RecoveryResult{
		Success: true, AccessOK: true, Strategy: "10-x", Access: "a way", Close: func() error { g.closed++; return nil },
		Tried: []StrategyTry{{Strategy: "10-x", Success: true}},
	}, nil
}

// far is a world whose list cannot be had plainly.
func far(t *testing.T, own int) (*world, *guide) {
	t.Helper()
	w := newWorld(t, 2, 9)
	g := &guide{}
	w.env.Sources, w.env.Recovery = farSources{world: w, own: own}, g
	w.env.Config.Sources = []Source{{Name: "own", Type: SourceDir, Path: "/x"}, {Name: "site", Type: SourceHTTP, URL: "http://site.example/"}}
	w.env.Config.Recovery.OnRefresh = true
	return w, g
}

func TestARefreshThatIsCutOffGoesByAStrategyAndRemembersIt(t *testing.T) {
	for _, own := range []int{0, 2} {
		w, g := far(t, own)
		out, err := w.env.Refresh(t.Context(), Options{}, false)
		if err != nil || out.Input.Listing.Via != "10-x" || len(out.Input.Listing.Entries) != 9 {
			t.Fatalf("own %d: via %q, %d entries, held %v: %v", own, out.Input.Listing.Via, len(out.Input.Listing.Entries), out.Plan.Held, err)
		}
		if g.closed != 1 || len(g.in) != 1 || g.in[0].Winner != "" {
			t.Errorf("closed %d times, asked %+v", g.closed, g.in)
		}
		if own > 0 {
			last := g.in[0].Pools[len(g.in[0].Pools)-1]
			if last.Name != PoolSources || len(last.Rows) != own {
				t.Errorf("the folder's profiles are not told of: %+v", last)
			}
		}
		w.pass(120e9)
		if _, err := w.env.Refresh(t.Context(), Options{}, false); err != nil || g.in[1].Winner != "10-x" {
			t.Errorf("the winner was not remembered: %q, %v", g.in[1].Winner, err)
		}
		if ev := w.read(t, "events.jsonl"); !strings.Contains(ev, `"kind":"strategy"`) {
			t.Errorf("no record of the strategy:\n%s", ev)
		}
	}
}

func TestNoStrategyIsRunWhenItIsNotWantedOrOfNoUse(t *testing.T) {
	for name, f := range map[string]func(*world){
		"turned off":       func(w *world) { w.env.Config.Recovery.OnRefresh = false },
		"no remote source": func(w *world) { w.env.Config.Sources = w.env.Config.Sources[:1] },
		"one remote answered": func(w *world) {
			w.env.Config.Sources = append(w.env.Config.Sources, Source{Name: "other", Type: SourceHTTP, URL: "http://x"})
		},
	} {
		w, g := far(t, 2)
		f(w)
		if _, err := w.env.Refresh(t.Context(), Options{}, false); err != nil || len(g.in) != 0 {
			t.Errorf("%s: %d runs of strategies, %v", name, len(g.in), err)
		}
	}
	w, g := far(t, 2)
	if _, err := w.env.Refresh(t.Context(), Options{}, true); err != nil || len(g.in) != 0 {
		t.Errorf("dry run: %d runs of strategies, %v", len(g.in), err)
	}
}

func TestWithoutAccessTheRefreshIsHeldAndSaysWhatWasTried(t *testing.T) {
	w, g := far(t, 0)
	g.fails = true
	out, err := w.env.Refresh(t.Context(), Options{}, false)
	if err != nil || !out.Plan.Guarded() || !strings.Contains(strings.Join(out.Input.Listing.Failed, "; "), "strategy 10-x: nobody answers") {
		t.Errorf("held %v, failed %v: %v", out.Plan.Held, out.Input.Listing.Failed, err)
	}
}

func TestStrategiesHearOfWhatNoFreshPoolHasCleared(t *testing.T) {
	w, g := far(t, 0)
	if _, err := w.env.Refresh(t.Context(), Options{}, false); err != nil {
		t.Fatal(err)
	}
	for _, q := range []state.Quarantined{
		{Endpoint: endpoint(1), FailedAt: noon.Add(-3600e9), Reason: "old"},
		{Endpoint: endpoint(2), FailedAt: noon.Add(60e9), Reason: "new"},
	} {
		if err := w.env.State.AppendQuarantine(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(120e9)
	if _, err := w.env.Refresh(t.Context(), Options{}, false); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, q := range g.in[1].Quarantine {
		got = append(got, q.Endpoint)
	}
	if diff := cmp.Diff([]string{endpoint(2)}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A dry recovery says what would be tried, and sends and runs nothing.
func TestADryRecoveryAsksTheStrategies(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	g := &guide{}
	w.env.Sources, w.env.Recovery = farSources{world: w}, g
	events := w.read(t, "events.jsonl")
	out, err := w.env.Recover(t.Context(), true)
	if err != nil || len(out.Tried) == 0 {
		t.Fatalf("tried %+v, %v", out.Tried, err)
	}
	if len(g.in) != 1 || !g.in[0].DryRun || len(g.in[0].Pools) == 0 {
		t.Errorf("asked with %+v", g.in)
	}
	if w.read(t, "events.jsonl") != events {
		t.Error("a dry run wrote to the journal")
	}
}
