package nft

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

// glancer is a replica of this machine whose door can be looked into.
func (s *space) glancer() (edge.Replicated, *local) {
	l := &local{o: Options{Namespace: s.path(), Now: time.Now}, known: map[uint64]bool{knownSum: true}}
	r := newReplica("", l.o, l, l.closed)
	r.local = true
	s.tb.Cleanup(func() { _ = r.Close() })
	return r, l
}

// TestAGlanceIsTakenOrNot says when the last whole look is built on.
func TestAGlanceIsTakenOrNot(t *testing.T) {
	for name, tt := range map[string]struct {
		does func(s *space, r edge.Replicated, l *local)
		want bool
	}{
		"nothing happened": {func(*space, edge.Replicated, *local) {}, true},
		"we moved": {func(s *space, r edge.Replicated, _ *local) {
			want := full()
			want.Targets[0].Claim.Epoch++
			apply(s.tb, r, want)
		}, true},
		"we renewed a lease": {func(s *space, r edge.Replicated, _ *local) {
			want := full()
			want.Leases[0].Left = time.Hour
			apply(s.tb, r, want)
		}, true},
		"we made it anew": {func(s *space, r edge.Replicated, _ *local) {
			s.nft("delete table inet shunt_edge\n")
			apply(s.tb, r, full())
		}, false},
		"another wrote into another table": {func(s *space, _ edge.Replicated, _ *local) {
			s.nft("add table inet other\n")
		}, false},
		"another wrote before we moved": {func(s *space, r edge.Replicated, _ *local) {
			was := observe(s.tb, r)
			s.nft("add element inet shunt_edge address4 { 10.9.9.9 }\n")
			want := full()
			want.Targets[0].Claim.Epoch++
			_, err := r.Apply(s.tb.Context(), was, want)
			must(s.tb, err)
		}, false},
		"it is gone": {func(s *space, _ edge.Replicated, _ *local) {
			s.nft("delete table inet shunt_edge\n")
		}, false},
		"the connection broke": {func(_ *space, _ edge.Replicated, l *local) { l.drop() }, false},
		"it was closed":        {func(s *space, r edge.Replicated, _ *local) { must(s.tb, r.Close()) }, false},
		"elements that nobody knows": {func(s *space, r edge.Replicated, _ *local) {
			s.nft("add element inet shunt_edge lease { 0x17 timeout 1h comment \"mine\" }\n")
			observe(s.tb, r)
		}, false},
		"rules that nobody can vouch for": {func(s *space, r edge.Replicated, l *local) {
			l.known, l.last = map[uint64]bool{}, nil
			there := l.o.Namespace
			l.o.Namespace = "/nowhere" // nft can't be asked; the connection stands
			observe(s.tb, r)
			l.o.Namespace = there
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r, l := s.glancer()
			apply(t, r, full())
			observe(t, r)
			tt.does(s, r, l)
			if _, ok := l.glance(t.Context()); ok != tt.want {
				t.Errorf("built on: %v", ok)
			}
		})
	}
}

// What one who builds on the last look sees is what one sees who looks for the first time,
// whoever did whatever in between.
func TestAGlanceSeesWhatALookSees(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newSpace(t)
			rng := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's choices
			r, l := s.glancer()
			other := s.local()
			apply(t, r, full())
			want := full()
			took := 0
			for n := range 60 {
				what := glanceStep(s, r, other, l, rng, uint64(n+2))
				if l.last != nil {
					took++
				}
				got := observe(t, r)
				first, _ := s.glancer()
				want := observe(t, first)
				for range 3 { // a lease may run out between the two
					if got.Table.Equal(want.Table) {
						break
					}
					got, want = observe(t, r), observe(t, first)
				}
				if got.Absent != want.Absent || !slices.Equal(got.Drift, want.Drift) || !got.Table.Equal(want.Table) {
					t.Fatalf("step %d, %s (-looked +glanced):\n%s", n, what, cmp.Diff(want, got))
				}
				for i, lease := range got.Table.Leases {
					if d := (lease.Left - want.Table.Leases[i].Left).Abs(); d > 10*time.Second {
						t.Errorf("step %d, %s: a lease has %v left, and %v", n, what, lease.Left, want.Table.Leases[i].Left)
					}
				}
			}
			if took == 0 {
				t.Error("nothing was ever built on")
			}
			apply(t, r, want)
			clean(t, observe(t, r), want)
		})
	}
}

// glanceStep does something by chance and says what.
func glanceStep(s *space, r, other edge.Replicated, l *local, rng *rand.Rand, epoch uint64) string {
	changed := full()
	for i := range changed.Targets {
		changed.Targets[i].Claim.Epoch = epoch
	}
	changed.Leases = changed.Leases[rng.IntN(2):]
	changed.Leases[0].Left = time.Duration(1+rng.IntN(30)) * time.Second / 10
	switch n := rng.IntN(12); n {
	case 0, 1, 2, 3:
		apply(s.tb, r, changed)
		return "we moved"
	case 4:
		apply(s.tb, other, changed)
		return "another moved"
	case 5:
		s.nft("add table inet other; add chain inet other c\n")
		return "another table changed"
	case 6:
		s.nft("flush map inet shunt_edge target4\n")
		apply(s.tb, r, changed)
		return "we mended elements"
	case 7:
		s.nft("delete table inet shunt_edge\n")
		if rng.IntN(2) == 0 {
			return "it is gone"
		}
		apply(s.tb, other, changed)
		return "made anew by another"
	case 8:
		was := observe(s.tb, r)
		apply(s.tb, other, full())
		_, err := r.Apply(s.tb.Context(), was, changed)
		must(s.tb, err)
		return "another moved before we did"
	case 9:
		l.drop()
		return "the connection broke"
	case 10:
		apply(s.tb, r, full())
		s.nft("add rule inet shunt_edge forward counter accept\n")
		return "a rule was added"
	default:
		apply(s.tb, r, full())
		eventually(s.tb, "a lease to run out", func() bool { return len(observe(s.tb, r).Table.Leases) < 2 })
		return "a lease ran out"
	}
}

// A view is the caller's: what is done to it changes nothing of what is seen next.
func TestViewsAreTheCallers(t *testing.T) {
	s := newSpace(t)
	r, _ := s.glancer()
	apply(t, r, full())
	for range 3 {
		v := observe(t, r)
		clean(t, v, full())
		moved := full()
		moved.Targets[1].Claim.Epoch++
		w := apply(t, r, moved)
		clean(t, w, moved)
		for _, list := range [][]edge.Element{v.Table.Targets, w.Table.Targets, v.Table.Nodes, w.Table.Nodes} {
			for i := range list {
				list[i] = edge.Element{}
			}
		}
		for _, v := range []edge.View{v, w} {
			clear(v.Table.Services)
			clear(v.Table.Addresses)
			clear(v.Table.Backends)
			clear(v.Table.OnLink)
			v.Table.Leases[0].Holds[0] = "mine"
			clear(v.Table.Leases)
		}
		clean(t, observe(t, r), moved)
		apply(t, r, full())
	}
}

// What others do between our transaction and the look at what came of it is seen.
func TestWhatIsReadBackIsWhatIsThere(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile string
		once      bool // it is done again when we try again, unless once
		fails     bool
	}{
		"nothing":                      {"", true, false},
		"another table is made":        {"add table inet other\n", true, false},
		"our element is deleted":       {"delete element inet shunt_edge target4 { " + vip4 + " . tcp . 25565 }\n", true, false},
		"our element is theirs":        {"delete element inet shunt_edge target4 { " + vip4 + " . tcp . 25565 }; add element inet shunt_edge target4 { " + vip4 + " . tcp . 25565 : 10.1.1.1 . 80 }\n", true, false},
		"an element is added":          {"add element inet shunt_edge address4 { 10.9.9.9 }\n", true, false},
		"our element is always theirs": {"delete element inet shunt_edge target4 { " + vip4 + " . tcp . 25565 }; add element inet shunt_edge target4 { " + vip4 + " . tcp . 25565 : 10.1.1.1 . 80 }\n", false, true},
		"the table is deleted":         {"delete table inet shunt_edge\n", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r, l := s.glancer()
			apply(t, r, led(one4, one6, 1))
			was := observe(t, r)
			n := 0
			ctx := run.WithPoints(t.Context(), func(point string) {
				if n++; point == "edge.moved" && tt.meanwhile != "" && (n == 1 || !tt.once) {
					s.nft(tt.meanwhile)
				}
			})
			got, err := r.Apply(ctx, was, led(two4, two6, 2))
			if (err != nil) != tt.fails {
				t.Fatalf("%v", err)
			}
			first, _ := s.glancer()
			want := observe(t, first)
			if !tt.fails && !got.Table.Equal(want.Table) && !strings.Contains(name, "added") {
				t.Errorf("(-there +told):\n%s", cmp.Diff(want, got))
			}
			if again := observe(t, r); !again.Table.Equal(want.Table) || again.Absent != want.Absent {
				t.Errorf("looked at once more (-there +seen):\n%s", cmp.Diff(want, again))
			}
			if name == "nothing" && l.last == nil {
				t.Error("what we did ourselves is not built on")
			}
		})
	}
}
