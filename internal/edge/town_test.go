package edge

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// town is machines, candidates and clients in memory, on the clock of a synctest bubble.
// State folders are real ones.
type town struct {
	t      *testing.T
	mu     sync.Mutex
	config Config
	tables map[string]*fakeTable
	minds  map[netip.AddrPort]mind
	probes map[netip.AddrPort]int
	holder string // who has the virtual address
	flows  []flow
	alerts []Alert
	flush  func([]Flush) error // nil = it works
	look   error               // of Sight
	parity Parity
}

// mind is how a candidate answers.
type mind string

const (
	alive    mind = ""
	dead     mind = "dead"
	starving mind = "starving" // us: the probe came too late
	locked   mind = "locked"   // answers and takes no logins
)

// flow is a conntrack entry.
type flow struct {
	from    Endpoint
	to      netip.AddrPort // invalid = made before there was a target
	replied bool
}

// bubble plays a story on a clock of its own.
func bubble(t *testing.T, candidates, replicas int, story func(*testing.T, *town)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { story(t, newTown(t, candidates, replicas)) })
}

func newTown(t *testing.T, candidates, replicas int) *town {
	w := &town{
		t: t, config: testConfig(candidates, replicas), tables: map[string]*fakeTable{}, minds: map[netip.AddrPort]mind{},
		probes: map[netip.AddrPort]int{}, holder: nodeName(1), parity: Parity{Equal: true},
	}
	for i := 1; i <= max(replicas, 1); i++ {
		w.tables[nodeName(i)] = &fakeTable{w: w, name: nodeName(i), absent: true}
	}
	return w
}

// env is a machine's, with a state folder of its own.
func (w *town) env(n int) *Env {
	w.t.Helper()
	d, err := state.Open(w.t.TempDir())
	if err != nil {
		w.t.Fatal(err)
	}
	return w.envAt(n, d)
}

// envAt is another process of the machine that has a state folder.
func (w *town) envAt(n int, d *state.Dir) *Env {
	node := nodeName(n)
	e := &Env{
		Config: w.config, Node: node, State: d, Replicas: map[string]Replicated{}, Prober: (*fakeProber)(w), Flows: (*fakeFlows)(w),
		Sight: fakeSight{w, node}, Alerts: (*fakeAlerts)(w), Way: (*fakeWay)(w), Now: time.Now, Holder: "test",
		Parity: func(context.Context, ParityGroup) Parity {
			w.mu.Lock()
			defer w.mu.Unlock()
			p := w.parity
			p.At = time.Now().Unix()
			return p
		},
	}
	for name, table := range w.tables {
		e.Replicas[name] = table
	}
	return e
}

func (w *town) is(m mind, n ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range n {
		w.minds[proxy(i)] = m
	}
}

func (w *town) table(n int) *fakeTable { return w.tables[nodeName(n)] }

// leads says where the tables lead: "proxy-01" where all do, else each; "-" = nowhere.
func (w *town) leads() string {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for i := range len(w.tables) {
		to := target(w.t, w.table(i+1).table)
		name := "-"
		for n := 1; n < 10; n++ {
			if to == proxy(n).String() {
				name = proxyName(n)
			}
		}
		all = append(all, name)
	}
	if len(slices.Compact(slices.Clone(all))) == 1 {
		return all[0]
	}
	return strings.Join(all, " ")
}

func (w *town) wantLeads(when, want string) {
	w.t.Helper()
	if got := w.leads(); got != want {
		w.t.Errorf("%s: leads to %s, want %s", when, got, want)
	}
}

func (w *town) epoch(n int) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	highest := uint64(0)
	for _, e := range w.table(n).table.Targets {
		highest = max(highest, e.Claim.Epoch)
	}
	return highest
}

// retarget is one pass that must succeed.
func (w *town) retarget(e *Env) Result {
	w.t.Helper()
	res, err := e.Retarget(w.t.Context(), Options{})
	if err != nil {
		w.t.Fatalf("retarget: %v", err)
	}
	return res
}

// noSteps is a pass that finds nothing to do.
func (w *town) noSteps(when string, e *Env) {
	w.t.Helper()
	if res := w.retarget(e); res.Plan.Changes() || res.Partial != nil {
		w.t.Errorf("%s: %v\n%s", when, res.Partial, planText(res.Plan))
	}
}

// entry makes a conntrack entry through a table, as a client's packet does.
func (w *town) entry(p Protocol, replied bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := flow{from: Endpoint{p, netip.AddrPortFrom(addr(vip), 25565)}, replied: replied}
	if e := find(w.tables[w.holder].table.Targets, f.from); e != nil {
		f.to = e.To
	}
	w.flows = append(w.flows, f)
}

// entries counts those to a candidate (0 = untranslated).
func (w *town) entries(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	count := 0
	for _, f := range w.flows {
		if n == 0 && !f.to.IsValid() || n > 0 && f.to == proxy(n) {
			count++
		}
	}
	return count
}

func (w *town) told(kind string) []Alert {
	time.Sleep(5 * time.Millisecond) // until the first connection is measured
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Alert
	for _, a := range w.alerts {
		if a.Kind == kind {
			out = append(out, a)
		}
	}
	return out
}

// lines are the journal's, as kind and object.
func (w *town) lines(e *Env) []string {
	w.t.Helper()
	events, errs := journal.Tail(e.State, 1000)
	if errs != nil {
		w.t.Error(errs)
	}
	var out []string
	for _, ev := range events {
		out = append(out, ev.Kind+" "+ev.Object)
	}
	return out
}

func (w *town) memory(e *Env) Memory {
	w.t.Helper()
	var m Memory
	if err := e.State.ReadJSON(memoryFile, &m); err != nil {
		w.t.Fatal(err)
	}
	return m
}

type fakeProber town

func (p *fakeProber) Probe(ctx context.Context, t ProbeTarget) Answer {
	w := (*town)(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probes[t.Addr]++
	a := Answer{Key: t.Key, At: time.Now().UnixMilli()}
	switch w.minds[t.Addr] {
	case alive:
		a.Outcome, a.Answers, a.Speaks, a.Accepts, a.RTT = Good, true, true, true, time.Millisecond
	case locked:
		a.Outcome, a.Answers, a.Speaks, a.RTT, a.Reason = Good, true, true, time.Millisecond, "unable to verify player details"
	case dead:
		a.Outcome, a.Refused, a.Reason = Miss, true, "connection refused"
	case starving:
		a.Reason = "asked too late"
	}
	return a
}

type fakeFlows town

func (p *fakeFlows) Flush(_ context.Context, list []Flush) (int, error) {
	w := (*town)(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flush != nil {
		if err := w.flush(list); err != nil {
			return 0, err
		}
	}
	before := len(w.flows)
	w.flows = slices.DeleteFunc(w.flows, func(f flow) bool {
		return slices.ContainsFunc(list, func(x Flush) bool {
			if x.From != f.from || x.Untrans != !f.to.IsValid() {
				return false
			}
			return x.Untrans || x.To == f.to && (!x.Pending || !f.replied)
		})
	})
	return before - len(w.flows), nil
}

type fakeSight struct {
	w    *town
	node string
}

func (s fakeSight) Look(context.Context, Config) (Host, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.look != nil {
		return Host{}, s.w.look
	}
	h := Host{Links: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	for _, r := range s.w.config.Replicas {
		if r.Name == s.node {
			h.Addresses = slices.Clone(r.Addresses)
		}
	}
	if s.w.holder == s.node {
		h.Addresses = append(h.Addresses, addr(vip))
	}
	return h, nil
}

type fakeAlerts town

func (p *fakeAlerts) Alert(a Alert) {
	w := (*town)(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alerts = append(w.alerts, a)
}

type fakeWay town

func (p *fakeWay) Reach(ctx context.Context, to Endpoint) error {
	w := (*town)(p)
	select {
	case <-time.After(3 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e := find(w.tables[w.holder].table.Targets, to)
	if e == nil || w.minds[e.To] == dead {
		return errors.New("refused")
	}
	return nil
}

// alsoHolder is a machine that has the virtual address too.
type alsoHolder struct{ fakeSight }

func (s alsoHolder) Look(ctx context.Context, c Config) (Host, error) {
	h, err := s.fakeSight.Look(ctx, c)
	h.Addresses = append(h.Addresses, addr(vip))
	return h, err
}

// digest is what status shows.
func (e *Env) digest(w *town) string {
	w.t.Helper()
	s, err := e.Status(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Digest
}

func netipAddrPort(a string, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr(a), port) }

func runPoints(ctx context.Context, hit func(string)) context.Context {
	return run.WithPoints(ctx, hit)
}

// reading keeps a state folder from being written, as a full disk does.
type reading struct {
	t *testing.T
	d *state.Dir
}

// begin puts folders where the files would be renamed to.
func (r *reading) begin() { r.swap("", ".aside") }

func (r *reading) end() { r.swap(".aside", "") }

func (r *reading) swap(from, to string) {
	r.t.Helper()
	for _, name := range []string{memoryFile, journal.File} {
		if to == "" {
			if err := os.RemoveAll(r.d.Path(name)); err != nil {
				r.t.Fatal(err)
			}
		}
		if err := os.Rename(r.d.Path(name+from), r.d.Path(name+to)); err != nil {
			r.t.Fatal(err)
		}
		if to != "" {
			if err := os.MkdirAll(r.d.Path(name, "in the way"), 0o755); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}
