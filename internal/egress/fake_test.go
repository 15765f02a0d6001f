package egress

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// world is a router and its provider in memory, with a clock that the test moves. The
// state folder is a real one. The lab plays the same passes against real kernels; here
// they are played against clocks and failures that no kernel can be given.
type world struct {
	mu      sync.Mutex
	now     time.Time
	alive   map[string]bool      // endpoint -> answers
	carries map[string]string    // lane -> endpoint of the device
	shaken  map[string]time.Time // lane -> last handshake
	classes map[string]string    // nil = no table
	uplink  bool
	gateway bool   // answers although nothing behind it does
	gone    string // lane whose interface is
	drifts  bool   // rules are not as they should be, and stay so
	flushed []string
	flows   map[string]string // class -> where its one flow goes on until it is deleted
	probed  []string
	env     *Env
	list    []string // what the source offers
}

func newWorld(t *testing.T, lanes, endpoints int) *world {
	t.Helper()
	d, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{now: noon, alive: map[string]bool{}, carries: map[string]string{}, shaken: map[string]time.Time{}, uplink: true}
	c := testConfig(lanes)
	c.Pool.StrictForeign, c.Pool.StrictAll, c.Pool.Working, c.Pool.Keep = "foreign.tsv", "all.tsv", "working.tsv", 3
	c.Test.Deadline = time.Minute
	c.Plane.FlushFlows = true
	w.env = &Env{
		Config: c, State: d, Devices: w, Prober: (*prober)(w), Tester: (*tester)(w), Plane: (*plane)(w), Flows: (*plane)(w),
		Library: w, Sources: w, Now: func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.now }, Holder: "test",
	}
	for n := 1; n <= endpoints; n++ {
		w.alive[endpoint(n)] = true
		w.list = append(w.list, endpoint(n))
	}
	return w
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	w.now = w.now.Add(d)
	w.mu.Unlock()
}

func (w *world) up(lane string) bool {
	return w.uplink && w.alive[w.carries[lane]] && lane != w.gone
}

// Fetch writes a profile for each endpoint of the list; its text is the endpoint.
func (w *world) Fetch(_ context.Context, _ []Source, dir string) ([]Entry, int, []error, error) {
	var out []Entry
	for i, e := range w.list {
		path := filepath.Join(dir, fmt.Sprintf("%d.conf", i))
		if err := os.WriteFile(path, []byte(e), 0o600); err != nil {
			return nil, 0, nil, err
		}
		out = append(out, Entry{File: fmt.Sprintf("S%d.conf", i), Endpoint: e, Path: path, Pair: "pair " + e})
	}
	return out, 0, nil, nil
}

func (w *world) Describe(path string) (Description, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Description{}, err
	}
	e := strings.TrimSpace(string(b))
	return Description{Endpoint: e, Pair: "pair " + e, Identity: "same"}, nil
}

func (w *world) Observe(_ context.Context, l Lane) (DeviceView, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := DeviceView{Present: true, Up: true}
	if l.Name == w.gone {
		return DeviceView{}, nil
	}
	if e := w.carries[l.Name]; e != "" {
		p := PeerView{Pair: "pair " + e, Endpoint: netip.MustParseAddrPort(e), Allowed: 1}
		if w.up(l.Name) {
			w.shaken[l.Name] = w.now
		}
		p.Handshake = w.shaken[l.Name]
		v.Peers = []PeerView{p}
	}
	return v, nil
}

func (w *world) Swap(_ context.Context, l Lane, _, to string) (SwapReport, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, err := os.ReadFile(to)
	if err != nil {
		return SwapReport{}, err
	}
	e := strings.TrimSpace(string(b))
	if !w.alive[e] || !w.uplink {
		return SwapReport{}, ErrNoHandshake
	}
	w.carries[l.Name] = e
	return SwapReport{Method: "make-before-break"}, nil
}

func (w *world) Settle(_ context.Context, l Lane, path string, _ bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, err := os.ReadFile(path)
	if err == nil {
		w.carries[l.Name] = strings.TrimSpace(string(b))
	}
	return err
}

type prober world

func (p *prober) Round(_ context.Context, l Lane, _ CheckConfig, n, need int) Round {
	w := (*world)(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.up(l.Name) {
		return Round{Sent: n, Got: n, Pass: true, RTT: 20 * time.Millisecond}
	}
	return Round{Sent: n}
}

func (p *prober) Deep(context.Context, Lane, CheckConfig) Deep { return Deep{FullSize: true} }

func (p *prober) Uplink(context.Context, UplinkConfig) UplinkView {
	return UplinkView{GatewayOK: p.uplink || p.gateway, Targets: map[string]bool{"203.0.113.53": p.uplink}}
}

type tester world

func (p *tester) Test(_ context.Context, _ TestConfig, targets []TestTarget, _ func(string) bool, done func(TestResult)) error {
	w := (*world)(p)
	for _, t := range targets {
		w.mu.Lock()
		w.probed = append(w.probed, t.Endpoint)
		ok := w.alive[t.Endpoint] && w.uplink
		w.mu.Unlock()
		r := TestResult{Endpoint: t.Endpoint, Path: t.Path, Reason: "no handshake"}
		if ok {
			r = TestResult{Endpoint: t.Endpoint, Path: t.Path, Handshake: time.Millisecond, Sent: 3, Got: 3, Avg: time.Duration(slices.Index(w.list, t.Endpoint)+1) * time.Millisecond, FullSize: true}
		}
		done(r)
	}
	return nil
}

type plane world

func (p *plane) Observe(_ context.Context, c Config) (PlaneView, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := PlaneView{Ready: p.classes != nil && !p.drifts, Classes: map[string]string{}}
	for _, l := range c.Lanes {
		v.Classes[l.Name] = p.classes[l.Name]
	}
	return v, nil
}

func (p *plane) Ensure(_ context.Context, _ Config, classes map[string]string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.classes = maps.Clone(classes)
	return true, nil
}

func (p *plane) Move(ctx context.Context, _ Config, moves map[string]string) error {
	p.mu.Lock()
	maps.Copy(p.classes, moves)
	p.mu.Unlock()
	run.Point(ctx, "plane.moved")
	return nil
}

func (p *plane) Flush(ctx context.Context, _ Config, class, lane string) (int, error) {
	p.mu.Lock()
	p.flushed = append(p.flushed, class+" on "+lane)
	maps.DeleteFunc(p.flows, func(c, at string) bool { return at == lane && (class == "" || c == class) })
	p.mu.Unlock()
	run.Point(ctx, "flows.deleted")
	return 1, nil
}

// traffic is a packet of each class: of a flow that goes on where it is, or of a new one.
func (w *world) traffic() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flows == nil {
		w.flows = map[string]string{}
	}
	for class, at := range w.classes {
		if w.flows[class] == "" {
			w.flows[class] = at
		}
	}
}

// morning is a refresh, a rebalance and a first verdict.
func (w *world) morning(t *testing.T) {
	t.Helper()
	w.refresh(t)
	if out, err := w.env.Rebalance(t.Context(), false); err != nil || out.Partial != nil {
		t.Fatal("rebalance:", err, out.Partial)
	}
	w.repair(t)
}

func (w *world) refresh(t *testing.T) Outcome {
	t.Helper()
	out, err := w.env.Refresh(t.Context(), Options{}, false)
	if err != nil {
		t.Fatal("refresh:", err)
	}
	w.pass(2 * time.Second)
	return out
}

func (w *world) repair(t *testing.T) Outcome {
	t.Helper()
	out, err := w.env.Repair(t.Context(), false)
	if err != nil || out.Partial != nil {
		t.Fatal("repair:", err, out.Partial)
	}
	w.traffic()
	w.pass(time.Second)
	return out
}

func (w *world) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(w.env.State.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
