package tripwire

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestHabits(t *testing.T) {
	type life struct {
		age      time.Duration
		died     bool // the server did not answer at once afterwards
		expected bool
	}
	tests := map[string]struct {
		known habit
		lives []life
		want  habit
	}{
		"two ends after five seconds are a habit, and the next is expected": {
			lives: []life{{age: 5 * time.Second}, {age: 5100 * time.Millisecond}, {age: 4900 * time.Millisecond, expected: true}},
			want:  habit{learned: 4900 * time.Millisecond, last: 4900 * time.Millisecond},
		},
		"the end of a worker is none": {
			lives: []life{{age: 7 * time.Second}, {age: 19 * time.Second}, {age: 3 * time.Second}},
			want:  habit{last: 3 * time.Second},
		},
		"a death is none": {
			lives: []life{{age: 5 * time.Second, died: true}, {age: 5 * time.Second, died: true}},
			want:  habit{},
		},
		"deaths soon after a start are none either": {
			lives: []life{{age: time.Second, died: true}, {age: time.Second, died: true}, {age: time.Second, died: true}},
			want:  habit{},
		},
		"a server that closes what it accepts is known by the first": {
			lives: []life{{age: time.Millisecond, expected: true}, {age: time.Millisecond, expected: true}},
			want:  habit{short: 2},
		},
		"one that ends soon, but not at once, only by the second": {
			lives: []life{{age: time.Second}, {age: time.Second, expected: true}},
			want:  habit{short: 2},
		},
		"an early end where a longer life is known is no habit": {
			known: habit{learned: 30 * time.Second},
			lives: []life{{age: time.Millisecond}},
			want:  habit{learned: 30 * time.Second, short: 1},
		},
		"a watcher that slept too long is not surprised": {
			known: habit{learned: 5 * time.Second},
			lives: []life{{age: 12 * time.Second, expected: true}},
			want:  habit{learned: 5 * time.Second, last: 12 * time.Second},
		},
		"a habit that became shorter is learned anew": {
			known: habit{learned: 30 * time.Second},
			lives: []life{{age: 5 * time.Second}, {age: 5 * time.Second}},
			want:  habit{learned: 5 * time.Second, last: 5 * time.Second},
		},
	}
	o := Options{}.withDefaults()
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := tt.known
			for i, l := range tt.lives {
				if l.age >= o.Short {
					h.lasted()
				}
				if got := h.ended(l.age, o); got != l.expected {
					t.Errorf("end %d after %v: expected %v, want %v", i+1, l.age, got, l.expected)
				}
				if l.died {
					h.died(l.age, o)
				} else {
					h.livedOn(l.age, o)
				}
			}
			if diff := cmp.Diff(tt.want, h, cmp.AllowUnexported(habit{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A server that ends idle connections after a fixed time, a little late at most, is
// understood by its second end, and from then on the connection is always renewed before.
func TestFixedLifetimesAreLearned(t *testing.T) {
	o := Options{}.withDefaults()
	rapid.Check(t, func(t *rapid.T) {
		fixed := time.Duration(rapid.Int64Range(int64(o.Short), int64(10*time.Minute)).Draw(t, "lifetime"))
		h := habit{}
		ends := 0
		for range rapid.IntRange(1, 50).Draw(t, "connections") {
			if r := h.renew(); r > 0 && r < fixed {
				h.lasted()
				continue // replaced by us
			}
			ends++
			h.lasted()
			life := fixed + time.Duration(rapid.Int64Range(0, int64(fixed)/10).Draw(t, "late"))
			h.ended(life, o)
			h.livedOn(life, o)
		}
		if ends > 2 {
			t.Fatalf("%d connections were ended by the server: %+v", ends, h)
		}
		if h.learned != 0 && (h.learned < fixed || h.short != 0) {
			t.Fatalf("learned %+v of a lifetime of %v", h, fixed)
		}
	})
}

func TestCrowds(t *testing.T) {
	at := time.Unix(1000, 0)
	ms := func(n int) time.Time { return at.Add(time.Duration(n) * time.Millisecond) }
	tests := map[string]struct {
		ends  []int // ms
		stood int   // before the first
		want  bool
	}{
		"nobody":                                 {stood: 4},
		"one of one":                             {ends: []int{0}, stood: 1},
		"one of many":                            {ends: []int{0}, stood: 9},
		"both of two":                            {ends: []int{0, 3}, stood: 2, want: true},
		"two of four, one host's processes":      {ends: []int{0, 1}, stood: 4},
		"three of four":                          {ends: []int{0, 1, 2}, stood: 4, want: true},
		"three of four, one after another":       {ends: []int{-500, 0, 700}, stood: 4},
		"those before and after count too":       {ends: []int{-9, 0, 9}, stood: 4, want: true},
		"two of twenty":                          {ends: []int{0, 0}, stood: 20},
		"eleven of twenty":                       {ends: []int{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5}, stood: 20, want: true},
		"more than it remembers, of very many":   {ends: make([]int, 200), stood: 9000, want: true},
		"a few of very many are their own death": {ends: make([]int, 60), stood: 9000},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var c crowd
			for i, e := range tt.ends {
				c.add(ms(e), tt.stood-i)
			}
			if got := c.most(at, 10*time.Millisecond); got != tt.want {
				t.Errorf("most %v, want %v", got, tt.want)
			}
		})
	}
}
