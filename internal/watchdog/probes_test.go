package watchdog

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

// crew are candidates that the probes ask; what they do is up to the test.
type crew struct {
	mu   sync.Mutex
	at   map[edge.Key][]time.Duration // since the beginning
	got  map[edge.Key][]edge.Outcome
	busy int
	top  int
	t0   time.Time
	do   map[edge.Key]func(context.Context) edge.Answer
}

func newCrew() *crew {
	return &crew{at: map[edge.Key][]time.Duration{}, got: map[edge.Key][]edge.Outcome{}, t0: time.Now(), do: map[edge.Key]func(context.Context) edge.Answer{}}
}

func (c *crew) ask(ctx context.Context, t edge.ProbeTarget) edge.Answer {
	c.mu.Lock()
	c.at[t.Key] = append(c.at[t.Key], time.Since(c.t0))
	c.busy++
	c.top = max(c.top, c.busy)
	do := c.do[t.Key]
	c.mu.Unlock()
	a := edge.Answer{Outcome: edge.Good}
	if do != nil {
		a = do(ctx)
	}
	a.Key = t.Key
	c.mu.Lock()
	c.busy--
	c.mu.Unlock()
	return a
}

func (c *crew) heard(a edge.Answer, _ time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got[a.Key] = append(c.got[a.Key], a.Outcome)
}

func (c *crew) probes(limit int, targets ...edge.ProbeTarget) *probes {
	return newProbes(targets, limit, c.ask, c.heard)
}

// times are when a key was asked.
func (c *crew) times(k edge.Key) []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.at[k])
}

// silentFor answers nothing for so long.
func silentFor(d time.Duration) func(context.Context) edge.Answer {
	return func(ctx context.Context) edge.Answer {
		_ = run.Pause(ctx, d)
		return edge.Answer{Outcome: edge.Miss}
	}
}

func target(k string, interval, limit time.Duration) edge.ProbeTarget {
	return edge.ProbeTarget{Key: edge.Key(k), Probe: edge.Probe{Interval: interval, Cap: limit, Misses: 2}}
}

// during runs probes beside f.
func during(t *testing.T, p *probes, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := background(func() { p.run(ctx) })
	f()
	cancel()
	<-done
	if p.running != 0 || p.silent != 0 {
		t.Errorf("%d places are not free", p.running)
	}
}

func TestEachKeyHasItsOwnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew()
		p := c.probes(8, target("fast", 10*time.Millisecond, 20*time.Millisecond), target("mean", 100*time.Millisecond, 90*time.Millisecond), target("slow", time.Second, 700*time.Millisecond))
		during(t, p, func() { time.Sleep(10*time.Second + time.Millisecond) })
		for k, every := range map[edge.Key]time.Duration{"fast": 10 * time.Millisecond, "mean": 100 * time.Millisecond, "slow": time.Second} {
			if c.at[k][0] != 0 {
				t.Errorf("%s: the first round comes after %v", k, c.at[k][0])
			}
			if d := c.at[k][1]; d > every {
				t.Errorf("%s: the second question after %v", k, d)
			}
			for i := range c.at[k][2:] {
				if d := c.at[k][i+2] - c.at[k][i+1]; d != every {
					t.Fatalf("%s: question %d comes %v after the one before", k, i+2, d)
				}
			}
			if n, want := len(c.at[k]), int(10*time.Second/every); n < want || n > want+2 {
				t.Errorf("%s: %d questions, want %d", k, n, want)
			}
		}
	})
}

// A key is never asked twice at once, and a slow one follows at once on its own end.
func TestAProbeThatTakesLongerThanItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew()
		c.do["a"] = silentFor(20 * time.Millisecond)
		during(t, c.probes(8, target("a", 10*time.Millisecond, 20*time.Millisecond)), func() { time.Sleep(99 * time.Millisecond) })
		want := []time.Duration{0, 20, 40, 60, 80}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if diff := cmp.Diff(want, c.at["a"]); diff != "" || c.top != 1 {
			t.Errorf("%d at once (-want +got):\n%s", c.top, diff)
		}
	})
}

func TestSilentCandidatesDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew()
		var targets []edge.ProbeTarget
		for i := range 40 {
			k := fmt.Sprintf("silent%d", i)
			c.do[edge.Key(k)] = silentFor(700 * time.Millisecond)
			targets = append(targets, target(k, time.Second, 700*time.Millisecond))
		}
		for i := range 40 {
			targets = append(targets, target(fmt.Sprintf("good%d", i), 100*time.Millisecond, 90*time.Millisecond))
		}
		p := c.probes(8, targets...)
		during(t, p, func() { time.Sleep(20 * time.Second) })
		if c.top > 8 {
			t.Errorf("%d probes at once", c.top)
		}
		for _, k := range slices.Sorted(maps.Keys(c.at)) {
			worst := time.Duration(0)
			for i, d := range c.at[k] {
				if i > 0 && d > 7*time.Second { // by then it is known who is silent
					worst = max(worst, d-c.at[k][i-1])
				}
			}
			if limit := 100 * time.Millisecond; c.do[k] == nil && worst > limit {
				t.Errorf("%s waited for %v", k, worst)
			}
			if c.do[k] != nil && len(c.at[k]) < 2 {
				t.Errorf("%s was asked %d times", k, len(c.at[k]))
			}
		}
	})
}

func TestALateMissIsNoMiss(t *testing.T) {
	refused := func(context.Context) edge.Answer {
		time.Sleep(time.Second)
		return edge.Answer{Outcome: edge.Miss, Refused: true}
	}
	for name, tt := range map[string]struct {
		do   func(context.Context) edge.Answer
		want edge.Outcome
	}{
		"in time":                      {silentFor(100 * time.Millisecond), edge.Miss},
		"a little late":                {silentFor(104 * time.Millisecond), edge.Miss},
		"too late":                     {silentFor(106 * time.Millisecond), edge.OutcomeUnknown},
		"late, but refused":            {refused, edge.Miss},
		"late, and good all the same":  {func(context.Context) edge.Answer { time.Sleep(time.Second); return edge.Answer{Outcome: edge.Good} }, edge.Good},
		"cut off by the end of it all": {silentFor(time.Hour), edge.OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrew()
				c.do["a"] = tt.do
				during(t, c.probes(8, target("a", 10*time.Second, 100*time.Millisecond)), func() { time.Sleep(2 * time.Second) })
				if diff := cmp.Diff([]edge.Outcome{tt.want}, c.got["a"][:1]); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAStallSpoilsWhatFallsIntoIt(t *testing.T) {
	t0 := time.Unix(1000, 0)
	ms := func(n int) time.Time { return t0.Add(time.Duration(n) * time.Millisecond) }
	for name, tt := range map[string]struct {
		stalls   [][2]int // the timekeeper wanted to wake, and woke
		asleep   int      // until; 0 = it is on time
		from, to int
		limit    int
		want     bool
	}{
		"no stall":                     {nil, 0, 0, 20, 20, false},
		"a short one":                  {[][2]int{{5, 9}}, 0, 0, 20, 20, false},
		"a quarter of a short cap":     {[][2]int{{5, 11}}, 0, 0, 20, 20, false},
		"half of a short cap":          {[][2]int{{5, 16}}, 0, 0, 20, 20, true},
		"several short ones":           {[][2]int{{1, 5}, {6, 10}, {12, 16}}, 0, 0, 20, 20, true},
		"a quarter of the cap":         {[][2]int{{5, 40}}, 0, 0, 120, 120, true},
		"before it began":              {[][2]int{{0, 1000}}, 0, 1000, 1020, 20, false},
		"one that has not ended":       {nil, 9, 0, 20, 20, true},
		"frozen for ten seconds":       {nil, 0, 0, 10_000, 700, true},
		"a small part of a longer cap": {[][2]int{{100, 200}}, 0, 0, 700, 700, false},
		"a good part of a longer cap":  {[][2]int{{100, 300}}, 0, 0, 700, 700, true},
	} {
		t.Run(name, func(t *testing.T) {
			var s stalls
			for _, x := range tt.stalls {
				s.sleep(ms(x[0]))
				s.woke(ms(x[1]))
			}
			s.sleep(ms(tt.to))
			if tt.asleep > 0 {
				s.sleep(ms(tt.asleep))
			}
			if got := s.spoil(ms(tt.from), ms(tt.to), time.Duration(tt.limit)*time.Millisecond); got != tt.want {
				t.Errorf("spoilt: %v", got)
			}
		})
	}
}

func TestOnlyLongStallsAreNews(t *testing.T) {
	var s stalls
	t0 := time.Unix(1000, 0)
	s.sleep(t0)
	s.woke(t0.Add(100 * time.Millisecond))
	if d := s.news(); d != 0 {
		t.Errorf("news of %v", d)
	}
	s.sleep(t0)
	s.woke(t0.Add(10 * time.Second))
	if d := s.news(); d != 10*time.Second {
		t.Errorf("news of %v", d)
	}
	if d := s.news(); d != 0 || s.longest != 10*time.Second {
		t.Errorf("told again: %v; longest %v", d, s.longest)
	}
}

func TestAKeyThatIsInAHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew()
		c.do["slow"] = func(context.Context) edge.Answer {
			time.Sleep(100 * time.Millisecond)
			return edge.Answer{Outcome: edge.Good}
		}
		p := c.probes(8, target("a", 10*time.Second, time.Second), target("slow", 10*time.Second, time.Second))
		during(t, p, func() {
			time.Sleep(50 * time.Millisecond)
			p.now("a")
			p.now("slow") // it is being asked: again at its end
			p.now("nobody")
			time.Sleep(time.Second)
		})
		for k, want := range map[edge.Key][]time.Duration{"a": {0, 50 * time.Millisecond}, "slow": {0, 100 * time.Millisecond}} {
			if diff := cmp.Diff(want, c.at[k]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", k, diff)
			}
		}
	})
}

// At the end of a run only that is waited for which may tell something new.
func TestFinish(t *testing.T) {
	for name, tt := range map[string]struct {
		silent time.Duration // of the candidate "old" always, of "new" since the last second
		fresh  bool
		want   time.Duration
	}{
		"all is quiet":           {0, false, 0},
		"one was silent before":  {700 * time.Millisecond, false, 0},
		"one is silent only now": {700 * time.Millisecond, true, 600 * time.Millisecond},
		"one does not end":       {time.Hour, true, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrew()
				if tt.silent > 0 {
					c.do["old"] = silentFor(tt.silent)
				}
				p := c.probes(8, target("old", time.Second, 700*time.Millisecond), target("new", time.Second, 700*time.Millisecond), target("swift", 10*time.Millisecond, 20*time.Millisecond))
				during(t, p, func() {
					time.Sleep(5*time.Second - 100*time.Millisecond)
					seen := c.times("new")
					last := seen[len(seen)-1]
					if tt.fresh {
						c.mu.Lock()
						c.do["new"] = silentFor(tt.silent)
						c.mu.Unlock()
					}
					time.Sleep(last + time.Second + 100*time.Millisecond - time.Since(c.t0)) // 100 ms into its probe
					began := time.Now()
					p.finish()
					if d := time.Since(began); d != tt.want && (tt.want != 0 || d > 20*time.Millisecond) {
						t.Errorf("it took %v, want %v", d, tt.want)
					}
					slow, swift := len(c.times("new")), len(c.times("swift"))
					time.Sleep(2 * time.Second)
					if len(c.times("new")) != slow {
						t.Error("a slow probe began after the end")
					}
					if n := len(c.times("swift")) - swift; n < 190 {
						t.Errorf("%d swift probes in 2 s", n)
					}
				})
			})
		})
	}
}

func TestThousandsOfKeysAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew()
		var targets []edge.ProbeTarget
		for i := range 4000 {
			targets = append(targets, target(fmt.Sprint(i), time.Second, 700*time.Millisecond))
		}
		p := c.probes(64, targets...)
		before := runtime.NumGoroutine()
		during(t, p, func() {
			for range 20 {
				time.Sleep(333 * time.Millisecond)
				if n := runtime.NumGoroutine() - before; n > 64+8 {
					t.Errorf("%d goroutines", n)
				}
			}
		})
		if c.top > 64 {
			t.Errorf("%d at once", c.top)
		}
		// After the first round they are spread over the second.
		slots := map[time.Duration]int{}
		for _, at := range c.at {
			slots[at[2].Truncate(100*time.Millisecond)]++
		}
		for s, n := range slots {
			if n > 500 {
				t.Errorf("%d questions within 100 ms of %v", n, s)
			}
		}
	})
}

// Whatever the candidates do: no more places than allowed, no key twice at once, and
// everybody is asked again.
func TestProbesProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 6).Draw(rt, "limit")
		n := rapid.IntRange(1, 12).Draw(rt, "keys")
		took := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond}), n, n).Draw(rt, "took")
		synctest.Test(t, func(t *testing.T) {
			c := newCrew()
			var mu sync.Mutex
			under := map[int]bool{}
			var targets []edge.ProbeTarget
			for i := range n {
				k := fmt.Sprint(i)
				c.do[edge.Key(k)] = func(ctx context.Context) edge.Answer {
					mu.Lock()
					if under[i] {
						rt.Errorf("%d is asked twice at once", i)
					}
					under[i] = true
					mu.Unlock()
					a := edge.Answer{Outcome: edge.Good}
					if took[i] > 0 {
						a = silentFor(took[i])(ctx)
					}
					mu.Lock()
					under[i] = false
					mu.Unlock()
					return a
				}
				targets = append(targets, target(k, 10*time.Millisecond, 50*time.Millisecond))
			}
			during(t, c.probes(limit, targets...), func() { time.Sleep(10 * time.Second) })
			if c.top > limit {
				rt.Errorf("%d at once, %d allowed", c.top, limit)
			}
			for k, at := range c.at {
				if len(at) < 3 {
					rt.Errorf("%s was asked at %v only", k, at)
				}
			}
			if len(c.at) != n {
				rt.Errorf("%d of %d were asked", len(c.at), n)
			}
		})
	})
}
