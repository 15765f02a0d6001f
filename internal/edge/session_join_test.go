package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// many gives the town several services of the same candidates.
func (w *town) many(n int) {
	first := w.config.Services[0]
	w.config.Services = nil
	for i := range n {
		s := first
		s.Name, s.VIP = fmt.Sprintf("s%d", i), []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(50 + i)})}
		w.config.Services = append(w.config.Services, s)
	}
}

// keyIn is a candidate's key in a service.
func keyIn(s *Session, service, candidate string) Key {
	i := slices.IndexFunc(s.Targets(), func(t ProbeTarget) bool { return t.Key.Object() == service+"/"+candidate })
	return s.Targets()[i].Key
}

// during runs calls that all come while the session moves the service s0, and returns when
// everything has ended. It runs on the real clock: a mutex is waited for.
func during(t *testing.T, w *town, s *Session, calls ...func()) {
	t.Helper()
	looked := make(chan struct{})
	once := sync.OnceFunc(func() { close(looked) })
	w.mu.Lock()
	w.table(1).sneak = func(*Table) { once() }
	w.table(1).slow = 100 * time.Millisecond
	w.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() {
		a := Answer{Key: keyIn(s, "s0", "proxy-01"), Outcome: Miss, At: time.Now().UnixMilli()}
		if res, err := s.Confirmed(t.Context(), a, time.Now()); err != nil || len(res.Moves) != 1 {
			t.Errorf("the first: %v, %+v", err, res.Moves)
		}
	})
	<-looked // under the lock, before the commit
	for i, call := range calls {
		all.Go(call)
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			s.asking.Lock()
			n := len(s.wishes)
			s.asking.Unlock()
			if n == i+1 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d wishes wait, want %d", n, i+1)
			}
		}
	}
	w.mu.Lock()
	w.table(1).sneak, w.table(1).slow = nil, 0
	w.mu.Unlock()
	all.Wait()
}

// What comes while a decision is under way is decided together: one commit for all, and one
// result that tells of it.
func TestWhatComesMeanwhileIsDecidedTogether(t *testing.T) {
	w := newTown(t, 2, 0)
	w.many(6)
	e := w.begin(1)
	s := w.open(e)
	before := w.table(1).applies
	var mu sync.Mutex
	moves, joined := 0, 0
	var calls []func()
	for i := 1; i < 6; i++ {
		a := Answer{Key: keyIn(s, fmt.Sprintf("s%d", i), "proxy-01"), Outcome: Miss, At: time.Now().UnixMilli()}
		calls = append(calls, func() {
			res, err := s.Confirmed(t.Context(), a, time.Now())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			moves += len(res.Moves)
			if res.Joined {
				joined++
				if res.Plan.Changes() || len(res.Moves) > 0 {
					t.Errorf("told twice: %+v", res)
				}
			}
		})
	}
	during(t, w, s, calls...)
	if n := w.table(1).applies - before; n != 2 || moves != 5 || joined != 4 {
		t.Errorf("%d commits, %d moves told after the first, %d joined; want 2, 5, 4", n, moves, joined)
	}
	for _, el := range w.table(1).table.Targets {
		if el.To != proxy(2) {
			t.Errorf("%v leads to %v", el.From, el.To)
		}
	}
	w.close(s)
	if m := w.memory(e); len(m.Vetoes) != 6 {
		t.Errorf("remembered: %+v", m.Vetoes)
	}
}

// A probe that was answered just before a death, and is judged together with it, does not
// undo the move.
func TestAnAnswerFromBeforeADeath(t *testing.T) {
	w := newTown(t, 2, 0)
	w.many(3)
	s := w.open(w.begin(1))
	good := func(service string) func() {
		return func() {
			a := Answer{Key: keyIn(s, service, "proxy-01"), Outcome: Good, Answers: true, Speaks: true, Accepts: true, At: time.Now().UnixMilli()}
			if _, err := s.Judge(t.Context(), []Answer{a}); err != nil {
				t.Error(err)
			}
		}
	}
	dies := func(service string) func() {
		return func() {
			a := Answer{Key: keyIn(s, service, "proxy-01"), Outcome: Miss, At: time.Now().UnixMilli()}
			if _, err := s.Confirmed(t.Context(), a, time.Now()); err != nil {
				t.Error(err)
			}
		}
	}
	during(t, w, s, good("s1"), dies("s1"), dies("s2"), good("s2"))
	for _, el := range w.table(1).table.Targets {
		if el.To != proxy(2) {
			t.Errorf("%v leads to %v", el.From, el.To)
		}
	}
	w.close(s)
}

// A diversion is told when the table is moved and before anything is recorded, all
// candidates of a hint are moved by one commit, and the time counts from the hint.
func TestADiversionComesBeforeItsRecords(t *testing.T) {
	w := newTown(t, 2, 0)
	w.many(3)
	e := w.begin(1)
	s := w.open(e)
	w.round(s)
	before := w.table(1).applies
	var mu sync.Mutex
	order := ""
	note := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		order += " " + name
	}
	hint := time.Now().Add(-time.Minute)
	res, err := s.Divert(runPoints(t.Context(), note), hint, func() { note("moved") }, keyIn(s, "s0", "proxy-01"), keyIn(s, "s1", "proxy-01"))
	if err != nil || len(res.Moves) != 2 {
		t.Fatalf("%v, moves %+v", err, res.Moves)
	}
	for _, m := range res.Moves {
		if m.Commit < time.Minute {
			t.Errorf("%s took %v from the hint", m.Service, m.Commit)
		}
	}
	if n := w.table(1).applies - before; n != 1 {
		t.Errorf("%d commits", n)
	}
	mu.Lock()
	if want := " edge.committed moved "; !strings.HasPrefix(order, want) {
		t.Errorf("in this order:%s", order)
	}
	mu.Unlock()

	// Who has no second, because that one is under suspicion too, waits.
	held, err := s.Divert(t.Context(), hint, func() { note("told") }, keyIn(s, "s2", "proxy-01"), keyIn(s, "s2", "proxy-02"))
	if err != nil || held.Plan.Changes() || len(held.Plan.Held) != 2 || held.Plan.Held[0].Code != HeldNoSecond {
		t.Errorf("%v, %s", err, planText(held.Plan))
	}
	mu.Lock()
	if !strings.HasSuffix(order, "told") {
		t.Errorf("who was not diverted is not told:%s", order)
	}
	mu.Unlock()

	if _, err := s.Undo(t.Context(), keyIn(s, "s1", "proxy-01")); err != nil {
		t.Fatal(err)
	}
	for _, el := range w.table(1).table.Targets {
		want := proxy(1)
		if el.Claim.Service == "s0" {
			want = proxy(2)
		}
		if el.To != want {
			t.Errorf("%s leads to %v", el.Claim.Service, el.To)
		}
	}
	w.close(s)
}
