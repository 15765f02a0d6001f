package story_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/cli"
	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/state"
)

// product is the first argument that makes the test binary the product.
const product = "test-product"

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == cage.Arg:
		os.Exit(lab.Child(os.Args[2:], nil))
	case len(os.Args) > 1 && os.Args[1] == product:
		os.Exit(cli.Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
	}
	os.Exit(m.Run())
}

// isInside runs the test again inside a cage and returns false, or is true there.
func isInside(t *testing.T) bool {
	t.Helper()
	return cage.Inside(t, 2*time.Minute)
}

// place is a world with what its tests ask it.
type place struct {
	*lab.World
	t *testing.T
}

// build makes a world in which the test binary is the product, and starts its lanes.
func build(t *testing.T, o lab.WorldOptions) place {
	t.Helper()
	o.Dir, o.BinaryArg = os.Getenv("SHUNT_LAB_DIR"), []string{product}
	w, err := lab.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if _, err := w.StartLanes(t.Context()); err != nil {
		t.Fatal(err)
	}
	return place{w, t}
}

// shunt runs a command that must not fail; a guard may hold it back.
func (p place) shunt(args ...string) lab.Result {
	p.t.Helper()
	r := p.Shunt(p.t.Context(), args...)
	if r.Code != 0 && r.Code != 3 && r.Code != 4 {
		p.t.Fatal(r.Err())
	}
	return r
}

func (p place) fault(x *server.Endpoint, f server.Fault) {
	p.t.Helper()
	if err := x.SetFault(f); err != nil {
		p.t.Fatal(err)
	}
}

// carries is the endpoint of a lane now; nil = none.
func (p place) carries(lane string) *server.Endpoint {
	p.t.Helper()
	x, err := p.Carrying(lane)
	if err != nil {
		return nil
	}
	return x
}

// journal is all events up to now.
func (p place) journal() []journal.Event {
	p.t.Helper()
	d, err := state.OpenRead(p.State)
	if err != nil {
		p.t.Fatal(err)
	}
	list, damage := journal.Read(d, journal.Filter{})
	if len(damage) > 0 {
		p.t.Fatal(damage)
	}
	return list
}

// tell logs the journal when the test has failed.
func (p place) tell() {
	p.t.Cleanup(func() {
		if p.t.Failed() {
			for _, ev := range p.journal() {
				b, _ := json.Marshal(ev)
				p.t.Log(string(b))
			}
		}
	})
}

// reasons are why an endpoint left a lane or was not let onto one.
func (p place) reasons(x *server.Endpoint) []string {
	p.t.Helper()
	var out []string
	for _, ev := range p.journal() {
		if ev.Kind == "quarantine" && ev.Object == x.HostPort() || ev.Kind == "rollback" && ev.To == x.HostPort() {
			out = append(out, ev.Reason)
		}
	}
	return out
}

// recorded is the reason in quarantine.tsv; "" = not there.
func (p place) recorded(x *server.Endpoint) string {
	p.t.Helper()
	d, err := state.OpenRead(p.State)
	if err != nil {
		p.t.Fatal(err)
	}
	rows, err := d.Quarantine()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, q := range rows {
		if q.Endpoint == x.HostPort() {
			return q.Reason
		}
	}
	return ""
}

// tested is what the last refresh found out about an endpoint.
func (p place) tested(x *server.Endpoint) egress.TestResult {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.State, "pools", "current", "evidence.json"))
	if err != nil {
		p.t.Fatal(err)
	}
	var ev struct {
		Results map[string]egress.TestResult `json:"results"`
	}
	if err := json.Unmarshal(b, &ev); err != nil {
		p.t.Fatal(err)
	}
	return ev.Results[x.HostPort()]
}

// strictRank is an endpoint's rank in the strict pool; 0 = not in it.
func (p place) strictRank(x *server.Endpoint) int {
	p.t.Helper()
	rows, _, err := state.ReadPool(filepath.Join(p.State, "pools", config.Default().Egress.Pool.StrictAll))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range rows {
		if r.Endpoint == x.HostPort() {
			return r.Rank
		}
	}
	return 0
}

// laneState is what `egress status` calls a lane.
func (p place) laneState(lane string) string {
	p.t.Helper()
	var s egress.Status
	if err := p.shunt("egress", "status", "--output", "json").JSON(&s); err != nil {
		p.t.Fatal(err)
	}
	for _, l := range s.Lanes {
		if l.Name == lane {
			return strings.TrimSpace(l.State + " " + l.Reason)
		}
	}
	return ""
}

// repairUntil repairs each half second, as a timer would, until ok, for at most d.
func (p place) repairUntil(d time.Duration, what string, ok func() bool) time.Duration {
	p.t.Helper()
	began := time.Now()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < d {
		p.shunt("egress", "repair")
		if ok() {
			return time.Since(began)
		}
		<-tick.C
	}
	p.t.Fatalf("%s: not within %s", what, d)
	return 0
}
