package edge

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

func TestASessionMovesAtTheSecondMiss(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		w.rounds(s, 3)
		w.is(dead, 1)
		first := time.Now()
		moves := w.rounds(s, 2)
		if len(moves) != 1 || moves[0].Commit != time.Second {
			t.Errorf("moved %+v, the first miss was %s ago", moves, time.Since(first))
		}
		w.wantLeads("two misses", "proxy-02")
		a := w.told("edge.move")
		if len(a) != 1 || a[0].Figures["commit"] != 1000 || a[0].Figures["reached"] != 1003 {
			t.Errorf("alerts: %+v", a)
		}
		w.is(alive, 1)
		if moves := w.rounds(s, 5); len(moves) != 0 {
			t.Errorf("it recovered: %+v", moves)
		}
		w.close(s)
		if m := w.memory(e); len(m.Vetoes) != 0 || m.Targets[0].To != proxy(2) {
			t.Errorf("on the disk: %+v", m)
		}
	})
}

func TestAConfirmedHintMovesAtOnce(t *testing.T) {
	bubble(t, 2, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		s := w.open(e)
		w.round(s)
		hint := time.Now()
		time.Sleep(2 * time.Millisecond)
		w.is(dead, 1)
		res, err := s.Confirmed(t.Context(), s.Prober.Probe(t.Context(), s.Targets()[0]), hint)
		if err != nil || len(res.Moves) != 1 || res.Moves[0].Commit != 2*time.Millisecond || res.Moves[0].Flushed != 1 {
			t.Errorf("%v, moves %+v", err, res.Moves)
		}
		w.wantLeads("confirmed", "proxy-02")
		same(t, "entries", 0, w.entries(1))
		w.is(alive, 2) // a hint of a healthy one
		res, err = s.Confirmed(t.Context(), s.Prober.Probe(t.Context(), s.Targets()[1]), time.Now())
		if err != nil || res.Plan.Changes() {
			t.Errorf("%v\n%s", err, planText(res.Plan))
		}
		w.close(s)
	})
}

func TestDivert(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		s := w.open(e)
		key := s.Targets()[0].Key
		res, err := s.Divert(t.Context(), time.Now(), func() {}, key)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Moves) != 1 {
			t.Fatalf("diverted:\n%s", planText(res.Plan))
		}
		w.wantLeads("diverted", "proxy-02")
		same(t, "entries while nothing is known", 1, w.entries(1))
		w.round(s) // an answer meanwhile changes nothing about it
		w.wantLeads("an answer", "proxy-02")

		if _, err = s.Undo(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		w.wantLeads("it was alive", "proxy-01")
		same(t, "epoch", uint64(3), w.epoch(1))
		if res, err = s.Undo(t.Context(), key); err != nil || res.Plan.Changes() {
			t.Errorf("undone twice: %v\n%s", err, planText(res.Plan))
		}

		if _, err = s.Divert(t.Context(), time.Now(), func() {}, key); err != nil {
			t.Fatal(err)
		}
		w.is(dead, 1)
		res, err = s.Confirmed(t.Context(), s.Prober.Probe(t.Context(), s.Targets()[0]), time.Now())
		if err != nil || len(res.Moves) != 0 {
			t.Errorf("confirmed: %v, moves %+v", err, res.Moves)
		}
		w.wantLeads("it was dead", "proxy-02")
		same(t, "entries to the dead one", 0, w.entries(1))

		other := s.Targets()[1].Key
		res, err = s.Divert(t.Context(), time.Now(), func() {}, other)
		if err != nil || !slices.Contains(heldCodes(res.Plan), HeldNoSecond) {
			t.Errorf("diverted without a second: %v\n%s", err, planText(res.Plan))
		}
		w.wantLeads("no second", "proxy-02")
		w.close(s)
	})
}

func TestAGoodBurstTakesADiversionBack(t *testing.T) {
	bubble(t, 2, 1, func(t *testing.T, w *town) {
		s := w.open(w.begin(1))
		first := s.Targets()[0]
		if _, err := s.Divert(t.Context(), time.Now(), func() {}, first.Key); err != nil {
			t.Fatal(err)
		}
		a := s.Prober.Probe(t.Context(), first)
		a.Outcome = OutcomeUnknown
		if _, err := s.Confirmed(t.Context(), a, time.Now()); err != nil {
			t.Fatal(err)
		}
		w.wantLeads("the burst says nothing", "proxy-02")
		a.Outcome = Good
		if _, err := s.Confirmed(t.Context(), a, time.Now()); err != nil {
			t.Fatal(err)
		}
		w.wantLeads("the burst is good", "proxy-01")
		w.close(s)
	})
}

// The table of this machine can't be written: it is tried again, verdicts are told once.
func TestASessionWithAStiffTable(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*fakeTable, error)
		moved string
	}{
		"not written": {func(f *fakeTable, err error) { f.stiff = err }, "proxy-01 proxy-02"},
		"not read":    {func(f *fakeTable, err error) { f.down = err }, "proxy-01 proxy-02"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, 2, func(t *testing.T, w *town) {
				e := w.begin(1)
				w.entry(UDP, true)
				s := w.open(e)
				w.round(s)
				tt.spoil(w.table(1), errors.New("device or resource busy"))
				w.is(dead, 1)
				for range 5 {
					time.Sleep(time.Second)
					w.round(s)
				}
				w.wantLeads("the other machine", tt.moved)
				tt.spoil(w.table(1), nil)
				if err := s.Refresh(t.Context()); err != nil {
					t.Error(err)
				}
				w.round(s)
				w.wantLeads("it can be written again", "proxy-02")
				same(t, "entries", 0, w.entries(1))
				n := 0
				for _, l := range w.lines(e) {
					if l == "veto front/proxy-01" {
						n++
					}
				}
				same(t, "lines of the veto", 1, n)
				w.close(s)
			})
		})
	}
}

func TestASessionAloneWithoutItsTable(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		s := w.open(e)
		w.table(1).down = errors.New("operation not permitted")
		if err := s.Refresh(t.Context()); err == nil {
			t.Error("nothing is said")
		}
		w.is(dead, 1)
		for range 3 {
			_, _ = s.Judge(t.Context(), []Answer{s.Prober.Probe(t.Context(), s.Targets()[0])})
		}
		w.table(1).down = nil
		if err := s.Refresh(t.Context()); err != nil {
			t.Error(err)
		}
		w.wantLeads("it is there again", "proxy-02")
		same(t, "entries", 0, w.entries(1))
		same(t, "moves told", 1, len(w.told("edge.move")))
		w.close(s)
	})
}

func TestASessionAndALockThatIsKept(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		w.round(s)
		lock, err := e.State.Lock(t.Context(), edgeLock, "somebody", 0)
		if err != nil {
			t.Fatal(err)
		}
		w.is(dead, 1)
		w.round(s) // the first miss moves nothing
		_, err = s.Judge(t.Context(), []Answer{s.Prober.Probe(t.Context(), s.Targets()[0])})
		if busy := (*state.BusyError)(nil); !errors.As(err, &busy) {
			t.Errorf("error %v", err)
		}
		w.wantLeads("busy", "proxy-01")
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		moves := w.round(s)
		same(t, "moves at the next answer", 1, len(moves))
		w.wantLeads("then", "proxy-02")
		w.close(s)
	})
}

// Nothing is written to the disk before the table of this machine is.
func TestTheFastPathKeepsOffTheDisk(t *testing.T) {
	bubble(t, 2, 2, func(t *testing.T, w *town) {
		e := w.begin(1)
		shown := ""
		e.Watch = func(Input, Plan) { shown += " watched" }
		s := w.open(e)
		w.round(s)
		w.is(dead, 1)
		w.round(s)
		shown = ""
		ctx := runPoints(t.Context(), func(name string) { shown += " " + name })
		if _, err := s.Judge(ctx, []Answer{s.Prober.Probe(ctx, s.Targets()[0])}); err != nil {
			t.Fatal(err)
		}
		want := " edge.committed watched edge.flushed edge.replicated file.prepared"
		if len(shown) < len(want) || shown[:len(want)] != want {
			t.Errorf("in this order:%s", shown)
		}
		w.close(s)
	})
}

func TestReachedTablesAreWrittenInParallel(t *testing.T) {
	bubble(t, 2, 5, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		for n := 2; n <= 5; n++ {
			w.table(n).slow = 50 * time.Millisecond
		}
		w.is(dead, 1)
		w.round(s)
		began := time.Now()
		w.round(s)
		if took := time.Since(began); took != 100*time.Millisecond { // a look and a write
			t.Errorf("four replicas took %s", took)
		}
		w.wantLeads("all", "proxy-02")
		w.close(s)
	})
}

// Two moves in quick succession, and a replica that is slow: it ends where the last one led.
func TestASlowReplicaIsNotSetBack(t *testing.T) {
	bubble(t, 3, 2, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		w.round(s)
		w.table(2).slow = 400 * time.Millisecond // longer than a session waits
		for _, n := range []int{1, 2} {
			w.is(dead, n)
			q := s.Targets()[n-1]
			go func() {
				_, _ = s.Confirmed(t.Context(), s.Prober.Probe(t.Context(), q), time.Now())
			}()
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		w.wantLeads("two moves", "proxy-03")
		same(t, "epoch", uint64(3), w.epoch(2))
		w.close(s)
	})
}
