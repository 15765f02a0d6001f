package watchdog

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// lazy is a service whose probes don't come in the way of what a test looks at.
func lazy(n int, way edge.OnHint) edge.Config {
	return config(n, func(s *edge.Service) {
		s.OnHint = way
		s.Probe.Interval, s.Probe.Cap = 10*time.Second, 700*time.Millisecond
	})
}

func TestHints(t *testing.T) {
	now := 7 * time.Second // when the server trips; no probe is near
	tests := map[string]struct {
		way   edge.OnHint
		hint  tripwire.Hint // its Kind, Expected, Suspicious; Life is used as its age
		words []tripwire.Verdict
		slow  time.Duration
		ill   string // how its probes end: "dead", "silent"
		// where the service leads while the burst lasts, after it, and 30 s later
		during, after, late string
		vetoes              int
	}{
		"a death that is confirmed": {edge.OnHintConfirm, tripwire.Hint{}, []tripwire.Verdict{dead()}, 20 * time.Millisecond, "dead", "a", "b", "b", 1},
		"a close and no death":      {edge.OnHintConfirm, tripwire.Hint{}, []tripwire.Verdict{alive()}, 250 * time.Millisecond, "", "a", "a", "a", 0},
		"silence is left to the probes": {
			edge.OnHintConfirm, tripwire.Hint{}, []tripwire.Verdict{silence()}, 250 * time.Millisecond, "silent", "a", "a", "b", 1,
		},
		"silence of who answers the probes": {edge.OnHintConfirm, tripwire.Hint{}, []tripwire.Verdict{silence()}, 250 * time.Millisecond, "", "a", "a", "a", 0},
		"diverted, and dead":                {edge.OnHintDivert, tripwire.Hint{}, []tripwire.Verdict{dead()}, 20 * time.Millisecond, "dead", "b", "b", "b", 1},
		"diverted, and back":                {edge.OnHintDivert, tripwire.Hint{}, []tripwire.Verdict{alive()}, 250 * time.Millisecond, "", "b", "a", "a", 0},
		"diverted, silent, and back":        {edge.OnHintDivert, tripwire.Hint{}, []tripwire.Verdict{silence()}, 250 * time.Millisecond, "", "b", "a", "a", 0},
		"diverted, silent, and dead":        {edge.OnHintDivert, tripwire.Hint{}, []tripwire.Verdict{silence()}, 250 * time.Millisecond, "silent", "b", "b", "b", 1},
		"a close as ever diverts nothing":   {edge.OnHintDivert, tripwire.Hint{Expected: true}, []tripwire.Verdict{alive()}, 250 * time.Millisecond, "", "a", "a", "a", 0},
		"many at once divert nothing":       {edge.OnHintDivert, tripwire.Hint{Suspicious: true}, []tripwire.Verdict{alive()}, 250 * time.Millisecond, "", "a", "a", "a", 0},
		"an old hint diverts nothing":       {edge.OnHintDivert, tripwire.Hint{Life: time.Second}, []tripwire.Verdict{alive()}, 250 * time.Millisecond, "", "a", "a", "a", 0},
		"an old hint that is still true":    {edge.OnHintDivert, tripwire.Hint{Life: time.Second}, []tripwire.Verdict{dead()}, 0, "dead", "b", "b", "b", 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, lazy(2, tt.way))
				s.words["a"], s.slow["a"] = tt.words, tt.slow
				sum := s.run(func() {
					time.Sleep(now)
					s.wants("front", "a")
					s.set(func() { s.dead["a"], s.silent["a"] = tt.ill == "dead", tt.ill == "silent" })
					tt.hint.Addr, tt.hint.Kind, tt.hint.At = netip.AddrPortFrom(at("a"), 80), tripwire.KindClosed, clock().Add(-tt.hint.Life)
					s.wires.hints <- tt.hint
					time.Sleep(tt.slow / 2)
					synctest.Wait()
					s.wants("front", tt.during)
					time.Sleep(tt.slow)
					synctest.Wait()
					s.wants("front", tt.after)
					time.Sleep(30 * time.Second)
					synctest.Wait()
					s.wants("front", tt.late)
				})
				if got := s.vetoes("a"); got != tt.vetoes {
					t.Errorf("%d vetoes, want %d", got, tt.vetoes)
				}
				if sum.Hints != 1 {
					t.Errorf("%d hints", sum.Hints)
				}
			})
		})
	}
}

// All that one server serves is led away at once: by one commit, and before anybody asks.
func TestOneHintDivertsAllServicesOfAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lazy(2, edge.OnHintDivert)
		for _, name := range []string{"voice", "chat"} {
			s := c.Services[0]
			s.Name = name
			s.VIP = []netip.Addr{netip.AddrFrom4([4]byte{10, 99, 7, name[0]})}
			c.Services = append(c.Services, s)
		}
		s := newScene(t, c)
		s.words["a"] = []tripwire.Verdict{dead()}
		var mu sync.Mutex
		var bursts []int // that were begun before each commit
		s.table.wait = func() {
			mu.Lock()
			defer mu.Unlock()
			bursts = append(bursts, s.counted(s.bursts, "a"))
		}
		before := 0
		sum := s.run(func() {
			time.Sleep(7 * time.Second)
			mu.Lock()
			before = len(bursts)
			mu.Unlock()
			s.set(func() { s.dead["a"] = true })
			hint := clock()
			time.Sleep(3 * time.Millisecond) // it waited for us
			s.wires.hints <- tripwire.Hint{Addr: netip.AddrPortFrom(at("a"), 80), At: hint, Kind: tripwire.KindClosed}
			synctest.Wait()
			for _, name := range []string{"front", "voice", "chat"} {
				s.wants(name, "b")
			}
			time.Sleep(time.Second)
		})
		mu.Lock()
		defer mu.Unlock()
		if after := bursts[before:]; len(after) == 0 || after[0] != 0 || len(after) > 1 && after[1] == 0 {
			t.Errorf("bursts before each commit: %v", after)
		}
		n := 0
		for _, m := range sum.Moves {
			if m.From != "" {
				n++
				if m.Commit != 3*time.Millisecond {
					t.Errorf("%s moved %v after the hint", m.Service, m.Commit)
				}
			}
		}
		if n != 3 {
			t.Errorf("%d moves", n)
		}
	})
}

// Each burst is its own: a server that answers late keeps nobody waiting.
func TestASlowBurstDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := config(3, func(s *edge.Service) { s.Probe.Interval, s.Probe.Cap = 10*time.Second, 700*time.Millisecond })
		s := newScene(t, c)
		s.slow["c"] = 250 * time.Millisecond
		s.words["a"] = []tripwire.Verdict{dead()}
		s.run(func() {
			time.Sleep(5 * time.Second)
			s.wires.trip("c")
			s.wires.trip("a")
			s.set(func() { s.dead["a"] = true })
			synctest.Wait() // no time passes
			s.wants("front", "b")
		})
	})
}

// A hint that comes while its server is being asked is asked after on its own.
func TestAHintDuringABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, lazy(2, edge.OnHintConfirm))
		s.slow["a"] = 100 * time.Millisecond
		s.words["a"] = []tripwire.Verdict{alive(), dead()}
		s.run(func() {
			time.Sleep(5 * time.Second)
			s.wires.trip("a")
			time.Sleep(50 * time.Millisecond)
			for range 3 {
				s.wires.trip("a")
			}
			time.Sleep(60 * time.Millisecond)
			s.wants("front", "a")
			time.Sleep(100 * time.Millisecond)
			s.wants("front", "b")
		})
		if s.bursts["a"] != 2 {
			t.Errorf("%d bursts", s.bursts["a"])
		}
	})
}

// When all break at once, the last one of a service is asked again once all others are
// clear: it may be we who are cut off.
func TestTheLastOfACrowdIsAskedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		again  tripwire.Verdict
		vetoes int // of all three
		leads  []string
	}{
		"it was our own fault": {alive(), 2, []string{"a", "b", "c"}},
		"it was not":           {dead(), 3, []string{"a", "b", "c"}},
		"nothing is heard":     {silence(), 2, []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, lazy(3, edge.OnHintDivert))
				s.wires.crowd = true
				for i, who := range []string{"a", "b", "c"} {
					s.words[who] = []tripwire.Verdict{dead(), tt.again}
					s.slow[who] = time.Duration(i) * 10 * time.Millisecond
				}
				s.run(func() {
					time.Sleep(7 * time.Second)
					for i, who := range []string{"a", "b", "c"} {
						s.wires.hints <- tripwire.Hint{Addr: netip.AddrPortFrom(at(who), 80), At: clock(), Kind: tripwire.KindReset, Suspicious: i > 0}
					}
					time.Sleep(time.Second)
					synctest.Wait()
					if n := s.vetoes(""); n != tt.vetoes {
						t.Errorf("%d vetoes, want %d", n, tt.vetoes)
					}
					if got := s.table.target("front"); !slices.Contains(tt.leads, got) {
						t.Errorf("it leads to %q", got)
					}
				})
				if n := s.bursts["a"] + s.bursts["b"] + s.bursts["c"]; n != 4 {
					t.Errorf("%d bursts, want one more than servers", n)
				}
			})
		})
	}
}

func TestOnlyTheLastHintOfAServerIsKept(t *testing.T) {
	t0 := clock()
	hint := func(who string, ms int, k tripwire.Kind) tripwire.Hint {
		return tripwire.Hint{Addr: netip.AddrPortFrom(at(who), 80), At: t0.Add(time.Duration(ms) * time.Millisecond), Kind: k}
	}
	from := make(chan tripwire.Hint, 8)
	for _, h := range []tripwire.Hint{
		hint("a", 0, tripwire.KindClosed), hint("b", 1, tripwire.KindRefused), hint("a", 500, tripwire.KindReset), hint("a", 800, tripwire.KindRefused),
	} {
		from <- h
	}
	want := []tripwire.Hint{hint("a", 500, tripwire.KindReset), hint("b", 1, tripwire.KindRefused)}
	if diff := cmp.Diff(want, kept(from), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An answer to a question from before the hint does not end a diversion.
func TestAnOldAnswerEndsNoDiversion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, lazy(2, edge.OnHintDivert))
		s.slow["a"] = 250 * time.Millisecond
		s.words["a"] = []tripwire.Verdict{silence()}
		s.run(func() {
			time.Sleep(5*time.Second - time.Millisecond)
			s.set(func() { s.late["a"] = 100 * time.Millisecond }) // the probe that begins at 5 s
			time.Sleep(50 * time.Millisecond)
			s.wires.trip("a")
			synctest.Wait()
			s.wants("front", "b")
			s.set(func() { s.late["a"], s.silent["a"] = 0, true })
			time.Sleep(100 * time.Millisecond) // its answer is there
			s.wants("front", "b")
			time.Sleep(30 * time.Second)
			s.wants("front", "b")
		})
		if n := s.vetoes("a"); n != 1 {
			t.Errorf("%d vetoes", n)
		}
	})
}
