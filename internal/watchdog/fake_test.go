package watchdog

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// For schedules the clock is testing/synctest's, and the kernel would not keep it: a table
// in memory, tripwires that the test trips, and candidates that answer as they are told.

// memory is a table.
type memory struct {
	mu   sync.Mutex
	view edge.View
	wait func() // before each commit; nil = not
}

func (m *memory) Observe(context.Context) (edge.View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view, nil
}

func (m *memory) Apply(_ context.Context, _ edge.View, want edge.Table) (edge.View, error) {
	if m.wait != nil {
		m.wait()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.view = edge.View{Table: want}
	return m.view, nil
}

func (m *memory) Close() error { return nil }

// target is the name of the server that a service leads to; "" = none.
func (m *memory) target(service string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.view.Table.Targets {
		if e.Claim.Service == service {
			return name(e.To.Addr())
		}
	}
	return ""
}

type plain struct{}

func (plain) Look(context.Context, edge.Config) (edge.Host, error) {
	return edge.Host{Addresses: []netip.Addr{vip().Addr()}}, nil
}

// name is the server at an address.
func name(a netip.Addr) string { return string(servers[a.As4()[2]-1]) }

// trips are tripwires that the test trips.
type trips struct {
	hints  chan tripwire.Hint
	mu     sync.Mutex
	armed  []tripwire.Target
	crowd  bool
	states []tripwire.Status
	once   sync.Once
}

func (w *trips) Arm(list []tripwire.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = list
}
func (w *trips) Renew()                      {}
func (w *trips) Hints() <-chan tripwire.Hint { return w.hints }
func (w *trips) Status() []tripwire.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.states
}

func (w *trips) Crowd(time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.crowd
}
func (w *trips) Died(netip.AddrPort) {}
func (w *trips) Close()              { w.once.Do(func() { close(w.hints) }) }

// trip is a hint of now.
func (w *trips) trip(server string) {
	w.hints <- tripwire.Hint{Addr: netip.AddrPortFrom(at(server), 80), At: clock(), Kind: tripwire.KindClosed}
}

// scene is a watchdog among fakes.
type scene struct {
	t     *testing.T
	o     Options
	table *memory
	wires *trips

	mu     sync.Mutex
	dead   map[string]bool
	silent map[string]bool          // until the cap
	late   map[string]time.Duration // after which it answers well
	asked  map[string]int
	words  map[string][]tripwire.Verdict // of the next bursts; the last one stays
	slow   map[string]time.Duration      // of a burst
	bursts map[string]int
	events []Event
	notes  []journal.Event
}

func newScene(t *testing.T, c edge.Config) *scene {
	t.Helper()
	d, err := state.Open(t.TempDir())
	must(t, err)
	s := &scene{
		t: t, table: &memory{view: edge.View{Absent: true}}, wires: &trips{hints: make(chan tripwire.Hint, 64)},
		dead: map[string]bool{}, silent: map[string]bool{}, late: map[string]time.Duration{}, asked: map[string]int{}, words: map[string][]tripwire.Verdict{},
		slow: map[string]time.Duration{}, bursts: map[string]int{},
	}
	s.o = Options{
		State: d, Holder: "watchdog", Now: time.Now, For: time.Minute,
		Edge: &edge.Env{
			Config: c, Node: "here", State: d, Replicas: map[string]edge.Replicated{"here": s.table}, Prober: s, Sight: plain{}, Now: time.Now, Holder: "watchdog",
		},
		Told: func(ev Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, ev)
		},
		lock:  func(context.Context) (func() error, error) { return func() error { return nil }, nil },
		arm:   func() (wires, error) { return s.wires, nil },
		burst: s.burst,
		// The journal's file lock is waited for with mutexes held, and under a fake clock
		// such a wait ends only when nobody waits for a mutex.
		note: func(_ context.Context, list []journal.Event) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.notes = append(s.notes, list...)
			return nil
		},
	}
	return s
}

// Probe is edge.Prober's.
func (s *scene) Probe(ctx context.Context, t edge.ProbeTarget) edge.Answer {
	s.mu.Lock()
	s.asked[t.Candidate]++
	dead, silent, late := s.dead[t.Candidate], s.silent[t.Candidate], s.late[t.Candidate]
	s.mu.Unlock()
	_ = run.Pause(ctx, late)
	switch {
	case silent:
		_ = run.Pause(ctx, t.Probe.Cap)
		return edge.Answer{Outcome: edge.Miss, Reason: "no answer"}
	case dead:
		return edge.Answer{Outcome: edge.Miss, Refused: true, Reason: "refused"}
	}
	return edge.Answer{Outcome: edge.Good, Answers: true, Speaks: true, Accepts: true}
}

func (s *scene) burst(ctx context.Context, a netip.AddrPort) tripwire.Verdict {
	who := name(a.Addr())
	s.mu.Lock()
	s.bursts[who]++
	slow := s.slow[who]
	s.mu.Unlock()
	if run.Pause(ctx, slow) != nil {
		return tripwire.Verdict{Reason: "cancelled"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.words[who]
	if len(list) == 0 {
		return tripwire.Verdict{Word: tripwire.WordAlive, Reason: "accepts connections"}
	}
	if len(list) > 1 {
		s.words[who] = list[1:]
	}
	return list[0]
}

func (s *scene) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// counted is how often somebody was asked.
func (s *scene) counted(m map[string]int, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return m[name]
}

// told counts the events that f accepts.
func (s *scene) told(f func(Event) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, ev := range s.events {
		if f(ev) {
			n++
		}
	}
	return n
}

func (s *scene) vetoes(name string) int {
	n := 0
	s.told(func(ev Event) bool { n += steps(ev, edge.StepVeto, name); return false })
	return n
}

// run runs the watchdog beside f, and stops it when f returns.
func (s *scene) run(f func()) (sum Summary) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error)
	go func() {
		var err error
		sum, err = Run(ctx, s.o)
		done <- err
	}()
	f()
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		s.t.Errorf("it ended: %v", err)
	}
	return sum
}

func (s *scene) wants(service, server string) {
	s.t.Helper()
	if got := s.table.target(service); got != server {
		s.t.Errorf("%s leads to %q, want %q", service, got, server)
	}
}

func dead() tripwire.Verdict {
	return tripwire.Verdict{Word: tripwire.WordDead, Reason: "connection refused", Refused: true, Tries: 1}
}

func alive() tripwire.Verdict   { return tripwire.Verdict{Word: tripwire.WordAlive, Reason: "speaks"} }
func silence() tripwire.Verdict { return tripwire.Verdict{Reason: "no answer"} }
