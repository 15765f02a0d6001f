package edge

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestMerge(t *testing.T) {
	health := func(asked int64, misses int) map[Key]Health {
		return map[Key]Health{"k": {Asked: asked, Misses: misses}}
	}
	veto := []Veto{{Key: "k", Until: 100}}
	target := func(epoch uint64, n int) []Target {
		return []Target{{Service: "front", Family: 4, To: proxy(n), Epoch: epoch}}
	}
	for name, tt := range map[string]struct{ disk, was, next, want Memory }{
		"a newer answer": {
			disk: Memory{Health: health(1, 0)}, was: Memory{Health: health(1, 0)}, next: Memory{Health: health(2, 1)},
			want: Memory{Health: health(2, 1)},
		},
		"an older answer than another's, with its veto": {
			disk: Memory{Health: health(5, 2), Vetoes: veto}, was: Memory{Health: health(1, 0)}, next: Memory{Health: health(2, 0)},
			want: Memory{Health: health(5, 2), Vetoes: veto},
		},
		"a newer answer ends another's veto": {
			disk: Memory{Health: health(5, 2), Vetoes: veto}, was: Memory{Health: health(1, 0)}, next: Memory{Health: health(6, 0)},
			want: Memory{Health: health(6, 0)},
		},
		"what a tripwire learned, though another asked later": {
			disk: Memory{Health: map[Key]Health{"k": {Asked: 5}}}, was: Memory{Health: map[Key]Health{"k": {Asked: 1}}},
			next: Memory{Health: map[Key]Health{"k": {Asked: 2, Lifetime: time.Second, Short: 3}}},
			want: Memory{Health: map[Key]Health{"k": {Asked: 5, Lifetime: time.Second, Short: 3}}},
		},
		"what another learned, though this one asked later": {
			disk: Memory{Health: map[Key]Health{"k": {Asked: 5, Lifetime: time.Second}}}, was: Memory{Health: map[Key]Health{"k": {Asked: 1}}},
			next: Memory{Health: map[Key]Health{"k": {Asked: 6}}},
			want: Memory{Health: map[Key]Health{"k": {Asked: 6, Lifetime: time.Second}}},
		},
		"forgotten on request while this one knew better": {
			disk: Memory{Resets: map[Key]int64{"k": 9}}, was: Memory{Health: health(1, 2), Vetoes: veto},
			next: Memory{Health: health(3, 3), Vetoes: veto}, want: Memory{Resets: map[Key]int64{"k": 9}},
		},
		"asked again after it was forgotten": {
			disk: Memory{Resets: map[Key]int64{"k": 9}}, was: Memory{Health: health(1, 2), Vetoes: veto},
			next: Memory{Health: health(11, 4), Vetoes: veto}, want: Memory{Resets: map[Key]int64{"k": 9}, Health: health(11, 4), Vetoes: veto},
		},
		"a key that configuration dropped": {
			disk: Memory{Health: health(1, 2), Vetoes: veto}, was: Memory{Health: health(1, 2), Vetoes: veto},
		},
		"a veto without an answer beside it, dropped": {
			disk: Memory{Vetoes: veto}, was: Memory{Vetoes: veto},
		},
		"the higher epoch on the disk": {
			disk: Memory{Targets: target(7, 2)}, was: Memory{Targets: target(1, 1)}, next: Memory{Targets: target(2, 3)},
			want: Memory{Targets: target(7, 2)},
		},
		"the higher epoch here": {
			disk: Memory{Targets: target(1, 1)}, was: Memory{Targets: target(1, 1)}, next: Memory{Targets: target(2, 3)},
			want: Memory{Targets: target(2, 3)},
		},
		"a service that went": {
			disk: Memory{Targets: target(1, 1)}, was: Memory{Targets: target(1, 1)},
		},
		"complaints of two": {
			disk: Memory{Alerts: map[string]AlertAt{"a": {At: 1}, "b": {At: 2}}}, was: Memory{Alerts: map[string]AlertAt{"a": {At: 1}}},
			next: Memory{Alerts: map[string]AlertAt{"c": {At: 3}}}, want: Memory{Alerts: map[string]AlertAt{"b": {At: 2}, "c": {At: 3}}},
		},
		"the later comparison of a group": {
			disk: Memory{Parity: map[string]Parity{"g": {At: 9}}}, was: Memory{Parity: map[string]Parity{"g": {At: 1}}},
			next: Memory{Parity: map[string]Parity{"g": {At: 2}}}, want: Memory{Parity: map[string]Parity{"g": {At: 9}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := merge(tt.disk, tt.was, tt.next)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b Target) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Alone, a process finds on the disk what it knows, also when it was killed and wrote twice.
func TestMergeOfOneAlone(t *testing.T) {
	memory := rapid.Custom(func(t *rapid.T) Memory {
		m := Memory{Health: map[Key]Health{}, Alerts: map[string]AlertAt{}, Doubts: map[string]int64{}}
		for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]Key{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t, "keys") {
			m.Health[k] = Health{Asked: rapid.Int64Range(1, 9).Draw(t, "asked"), Lifetime: time.Duration(rapid.IntRange(0, 2).Draw(t, "life"))}
			if rapid.Bool().Draw(t, "veto") {
				m.Vetoes = append(m.Vetoes, Veto{Key: k, Until: rapid.Int64Range(1, 9).Draw(t, "until")})
			}
			m.Alerts[string(k)] = AlertAt{At: rapid.Int64Range(1, 9).Draw(t, "at")}
		}
		return m
	})
	equal := func(t *rapid.T, what string, want, got Memory) {
		opts := []cmp.Option{cmpopts.EquateEmpty(), cmpopts.SortSlices(func(a, b Veto) bool { return a.Key < b.Key })}
		if diff := cmp.Diff(want, got, opts...); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", what, diff)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		was, next := memory.Draw(t, "was"), memory.Draw(t, "next")
		for k, h := range next.Health { // answers only come in
			h.Asked += 10
			next.Health[k] = h
		}
		equal(t, "nobody else wrote", next, merge(was, was, next))
		twice := merge(merge(was, was, next), was, next)
		equal(t, "written twice", next, twice)
	})
}
