package watchdog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// A successor arms, decides nothing while it waits, and from its turn on acts on what it
// saw meanwhile.
func TestHintsThatCameWhileWaiting(t *testing.T) {
	for name, tt := range map[string]struct {
		still tripwire.Verdict
		want  string
	}{
		"still true":   {dead(), "b"},
		"true no more": {alive(), "a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, lazy(2, edge.OnHintDivert))
				s.run(func() { time.Sleep(time.Second) }) // a predecessor made the table
				s.wires = &trips{hints: make(chan tripwire.Hint, 8)}
				turn := make(chan struct{})
				s.o.lock = func(context.Context) (func() error, error) {
					<-turn
					return func() error { return nil }, nil
				}
				s.words["a"] = []tripwire.Verdict{tt.still}
				asked := s.asked["a"]
				s.run(func() {
					time.Sleep(10 * time.Second)
					synctest.Wait()
					if len(s.wires.armed) != 2 {
						t.Errorf("armed: %v", s.wires.armed)
					}
					s.wires.trip("a")
					time.Sleep(3 * time.Second)
					synctest.Wait()
					if s.counted(s.bursts, "a") != 0 || s.counted(s.asked, "a") != asked {
						t.Error("it works before its turn")
					}
					s.wants("front", "a")
					close(turn)
					synctest.Wait() // no time passes
					s.wants("front", tt.want)
					if n := s.counted(s.bursts, "a"); n != 1 {
						t.Errorf("%d bursts", n)
					}
				})
			})
		})
	}
}

// What the predecessor learned after the successor opened is known to it at its first decision.
func TestASuccessorKnowsWhatItsPredecessorKnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, config(3, nil))
		first := make(chan struct{})
		s.o.For = 10 * time.Second
		second := newScene(t, s.o.Edge.Config)
		second.o.State, second.o.Edge.State, second.o.Edge.Replicas = s.o.State, s.o.State, s.o.Edge.Replicas
		second.o.lock = func(context.Context) (func() error, error) {
			<-first
			return func() error { return nil }, nil
		}
		second.table = s.table
		go func() {
			defer close(first)
			if _, err := Run(t.Context(), s.o); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(5 * time.Second)
		second.run(func() {
			time.Sleep(time.Second)
			for _, x := range []*scene{s, second} { // b dies for good, and only the first sees it
				x.set(func() { x.dead["b"] = true })
			}
			<-first
			second.words["a"] = []tripwire.Verdict{dead()}
			second.wires.trip("a") // just when it takes over
			synctest.Wait()
			second.wants("front", "c")
			time.Sleep(time.Second)
			second.wants("front", "c")
		})
	})
}

// After the end nothing is asked, moved or written, and the lock is free.
func TestARunEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, config(2, nil))
		var free time.Time
		s.o.lock = func(context.Context) (func() error, error) {
			return func() error { free = time.Now(); return nil }, nil
		}
		rounds := 0
		s.o.Egress = func(context.Context) error { rounds++; return nil }
		began := time.Now()
		s.o.Started, s.o.For = began.Add(-5*time.Second), 15*time.Second // it took five seconds to get here
		sum, err := Run(t.Context(), s.o)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d < 10*time.Second || d > 11*time.Second {
			t.Errorf("it worked for %v, want 10 s", d)
		}
		if d := free.Sub(began); d < 10*time.Second || d > 10*time.Second+100*time.Millisecond {
			t.Errorf("the lock was free after %v", d)
		}
		if sum.Probes < 190 || sum.Probes > 210 || rounds < 10 || rounds > 11 {
			t.Errorf("%d probes, %d rounds", sum.Probes, rounds)
		}
		asked := s.asked["a"] + s.asked["b"]
		time.Sleep(time.Minute)
		if n := s.asked["a"] + s.asked["b"]; n != asked {
			t.Error("it asks on")
		}
		beat, err := ReadBeat(s.o.State)
		if err != nil || !beat.Ended || beat.Summary.Probes != sum.Probes || beat.Holder != "watchdog" {
			t.Errorf("heartbeat %+v: %v", beat, err)
		}
	})
}

// A suspicion of the last moment is known to the successor: one more miss is enough.
func TestTheLastRoundCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, config(2, func(s *edge.Service) {
			s.Probe.Interval, s.Probe.Cap, s.Tripwire = time.Second, 700*time.Millisecond, false
		}))
		s.o.For = 10*time.Second + 10*time.Millisecond
		ended := background(func() {
			if _, err := Run(t.Context(), s.o); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(9 * time.Second) // the last probes begin within the last second
		s.set(func() { s.silent["a"] = true })
		<-ended
		s.wants("front", "a")
		s.set(func() { s.asked = map[string]int{} })
		s.run(func() {
			time.Sleep(701 * time.Millisecond)
			synctest.Wait()
			s.wants("front", "b")
			if n := s.counted(s.asked, "a"); n > 2 {
				t.Errorf("asked %d times", n)
			}
		})
	})
}

func TestAPredecessorThatDoesNotLetGo(t *testing.T) {
	d, err := state.Open(t.TempDir())
	must(t, err)
	l, err := d.Lock(t.Context(), LockName, "an earlier one", 0)
	must(t, err)
	for _, once := range []bool{false, true} {
		o := Options{State: d, Holder: "later", Now: time.Now, For: 50 * time.Millisecond, Once: once, Egress: func(context.Context) error {
			t.Error("it works without its turn")
			return nil
		}}
		_, err = Run(t.Context(), o)
		var busy *state.BusyError
		if !errors.As(err, &busy) || !strings.HasPrefix(busy.Holder, "an earlier one") {
			t.Errorf("once %v: %v", once, err)
		}
	}
	must(t, l.Unlock())
}

func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, config(2, nil))
		rounds := 0
		s.o.Once, s.o.Egress = true, func(context.Context) error { rounds++; return nil }
		for i, want := range []string{"a", "a", "b", "b"} { // misses are state: two rounds have two in a row
			s.dead["a"] = i > 0
			began := time.Now()
			sum, err := Run(t.Context(), s.o)
			if err != nil || sum.Probes != 2 || rounds != i+1 || time.Since(began) > time.Second {
				t.Errorf("round %d: %+v: %v, after %v", i, sum, err, time.Since(began))
			}
			s.wants("front", want)
			time.Sleep(time.Second)
		}
		if len(s.wires.armed) > 0 {
			t.Error("one round arms tripwires")
		}
	})
}

func TestParityIsComparedAtItsOwnPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lazy(2, edge.OnHintConfirm)
		c.Parity = []edge.ParityGroup{{Name: "secret", Every: 20 * time.Second}}
		s := newScene(t, c)
		var times atomic.Int64
		s.o.Edge.Parity = func(ctx context.Context, g edge.ParityGroup) edge.Parity {
			n := times.Add(1)
			_ = run.Pause(ctx, 5*time.Second) // a slow member
			return edge.Parity{At: time.Now().Unix(), Equal: n < 3, Hashes: map[string]string{"a": "1", "b": "2"}}
		}
		s.words["a"] = []tripwire.Verdict{dead()}
		s.run(func() {
			time.Sleep(2 * time.Second)
			s.wires.trip("a")
			synctest.Wait()
			s.wants("front", "b")
			time.Sleep(57 * time.Second)
			if n := times.Load(); n != 3 {
				t.Errorf("compared %d times in a minute", n)
			}
		})
		events, _ := journal.Read(s.o.State, journal.Filter{})
		found := 0
		for _, ev := range events {
			if ev.Kind == edge.NoteParity {
				found++
			}
		}
		if found != 1 {
			t.Errorf("a difference is journalled %d times", found)
		}
	})
}

// What cannot be opened is tried again, and does not keep the other half from its work.
func TestAnEdgeThatCannotBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, lazy(2, edge.OnHintConfirm))
		lame := &lameSight{fails: 4}
		s.o.Edge.Sight = lame
		var rounds atomic.Int64
		s.o.Egress = func(context.Context) error { rounds.Add(1); return nil }
		s.run(func() {
			time.Sleep(2500 * time.Millisecond)
			s.wants("front", "")
			if n := rounds.Load(); n != 3 {
				t.Errorf("%d rounds of egress", n)
			}
			time.Sleep(5 * time.Second)
			s.wants("front", "a")
		})
		for kind, want := range map[EventKind]int{EventFailed: 1, EventBack: 1} {
			if n := s.told(func(ev Event) bool { return ev.Kind == kind && ev.Object == "edge" }); n != want {
				t.Errorf("%s: told %d times", kind, n)
			}
		}
	})
}

type lameSight struct {
	plain
	fails int
}

func (l *lameSight) Look(ctx context.Context, c edge.Config) (edge.Host, error) {
	if l.fails--; l.fails >= 0 {
		return edge.Host{}, errors.New("no netlink today")
	}
	return l.plain.Look(ctx, c)
}

func TestGivenUpIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, lazy(2, edge.OnHintConfirm))
		s.run(func() {
			time.Sleep(5 * time.Second)
			s.wires.mu.Lock()
			s.wires.states = []tripwire.Status{
				{Addr: s.wires.armed[0].Addr, State: tripwire.StateGivenUp, Short: 5, Reason: "ends idle connections at once"},
				{Addr: s.wires.armed[1].Addr, State: tripwire.StateArmed, Lifetime: 30 * time.Second},
			}
			s.wires.mu.Unlock()
			time.Sleep(5 * time.Second)
			beat, err := ReadBeat(s.o.State)
			if err != nil || beat.Wires != 2 || beat.Armed != 1 || len(beat.GivenUp) != 1 || !strings.HasPrefix(beat.GivenUp[0], "front/") {
				t.Errorf("heartbeat %+v: %v", beat, err)
			}
		})
		if n := s.told(func(ev Event) bool { return ev.Kind == EventGivenUp }); n != 1 {
			t.Errorf("told %d times", n)
		}
		// The next run begins with what was learned.
		s.wires = &trips{hints: make(chan tripwire.Hint, 1)}
		s.run(func() { time.Sleep(time.Second) })
		short, life := 0, time.Duration(0)
		for _, x := range s.wires.armed {
			short, life = max(short, x.Short), max(life, x.Lifetime)
		}
		if short != 5 || life != 30*time.Second {
			t.Errorf("armed with %+v", s.wires.armed)
		}
	})
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	d, err := state.Open(t.TempDir())
	must(t, err)
	nothing := func(context.Context) error { return nil }
	for name, o := range map[string]Options{
		"no state":          {Now: time.Now, Egress: nothing},
		"no clock":          {State: d, Egress: nothing},
		"nothing to watch":  {State: d, Now: time.Now},
		"a negative time":   {State: d, Now: time.Now, Egress: nothing, For: -1},
		"a negative period": {State: d, Now: time.Now, Egress: nothing, Interval: -1},
	} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := ReadBeat(d); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a heartbeat that never was: %v", err)
	}
}

func TestTroublesAreJournalled(t *testing.T) {
	d, err := state.Open(t.TempDir())
	must(t, err)
	_, err = Run(t.Context(), Options{
		State: d, Now: time.Now, For: 300 * time.Millisecond, Interval: 10 * time.Millisecond,
		Egress: func(context.Context) error { return errors.New("no way out") },
	})
	must(t, err)
	events, damage := journal.Read(d, journal.Filter{})
	if len(events) != 1 || len(damage) > 0 {
		t.Fatalf("events %+v, damage %v", events, damage)
	}
	ev := events[0]
	if ev.Kind != "fails" || ev.Object != "egress" || ev.Reason != "no way out" || ev.Seq == 0 || ev.Run != fmt.Sprintf("watchdog-%d", ev.Seq) {
		t.Errorf("event %+v", ev)
	}
}
