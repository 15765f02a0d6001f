package edgestory

import (
	"encoding/json"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

func TestQuantiles(t *testing.T) {
	for name, c := range map[string]struct {
		in          []float64
		median, p99 float64
	}{
		"one":               {[]float64{7}, 7, 7},
		"an even number":    {[]float64{4, 1, 3, 2}, 2.5, 4},
		"an odd number":     {[]float64{9, 1, 5}, 5, 9},
		"the p99 of a 100":  {series(100), 50.5, 99},
		"the p99 of 50":     {series(50), 25.5, 50},
		"the p99 of 101":    {series(101), 51, 100},
		"all are the same":  {[]float64{3, 3, 3, 3}, 3, 3},
		"they are unsorted": {[]float64{5, 4, 3, 2, 1}, 3, 5},
	} {
		t.Run(name, func(t *testing.T) {
			if m, p := quantile(c.in, 0.5), quantile(c.in, 0.99); m != c.median || p != c.p99 {
				t.Errorf("median %g, p99 %g, want %g and %g", m, p, c.median, c.p99)
			}
		})
	}
	if got := quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("the median of nothing is %g", got)
	}
}

// series is n, n-1 … 1.
func series(n int) []float64 {
	var out []float64
	for ; n > 0; n-- {
		out = append(out, float64(n))
	}
	return out
}

func gaps(ms ...int) []gap.Gap {
	var out []gap.Gap
	for i, m := range ms {
		out = append(out, gap.Gap{Gap: time.Duration(m) * time.Millisecond, Failed: i, Slow: 2 * i})
	}
	return out
}

func TestARowSumsUp(t *testing.T) {
	want := row{name: "x", n: 3, median: 20, p99: 30, failed: 1, worst: 2, slow: 4}
	if d := cmp.Diff(want, rowOf("x", gaps(30, 10, 20)), cmp.AllowUnexported(row{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestBoundsOfTheBench plays the judge: a bound is broken where it should be, and only there.
func TestBoundsOfTheBench(t *testing.T) {
	for name, c := range map[string]struct {
		process, host map[string]int // median gaps, ms
		broken        bool
	}{
		"as fast as the better proxy":       {map[string]int{"shunt-divert": 12, "haproxy-tuned": 20, "nginx-tuned": 10}, nil, false},
		"slower than a better HAProxy":      {map[string]int{"shunt-divert": 13, "haproxy-tuned": 10, "nginx-tuned": 20}, nil, true},
		"slower than the better proxy":      {map[string]int{"shunt-divert": 13, "haproxy-tuned": 20, "nginx-tuned": 10}, nil, true},
		"confirm has no bound":              {map[string]int{"shunt-confirm": 90, "shunt-divert": 10, "nginx-tuned": 10}, nil, false},
		"nobody to be compared with":        {map[string]int{"shunt-divert": 90}, map[string]int{"shunt-20ms": 900}, false},
		"silence found soon enough":         {nil, map[string]int{"shunt-20ms": 65, "haproxy-tuned": 100}, false},
		"silence found too late":            {nil, map[string]int{"shunt-20ms": 66, "haproxy-tuned": 100}, true},
		"silence beside a faster other one": {nil, map[string]int{"shunt-20ms": 65, "haproxy-tuned": 100, "keepalived-tuned": 10}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := &lab.Env{}
			b := &bench{e: e}
			for kind, medians := range map[how]map[string]int{process: c.process, host: c.host} {
				for who, ms := range medians {
					b.list = append(b.list, &contender{name: who, gaps: map[how][]gap.Gap{kind: gaps(ms, ms, ms)}})
				}
			}
			b.judge()
			if got := e.Problems(); (len(got) > 0) != c.broken {
				t.Errorf("problems %q, want any: %v", got, c.broken)
			}
		})
	}
}

func TestHowOftenEachDies(t *testing.T) {
	for name, c := range map[string]struct {
		kinds       []how
		rival       []how
		calm, hangs bool
		want, quick map[how][]int // in the first rounds
	}{
		"one that a bound is about": {
			kinds: []how{process, host}, rival: []how{process, host},
			want: map[how][]int{process: {8, 8}, host: {8, 8}}, quick: map[how][]int{process: {8, 8}, host: {8, 8}},
		},
		"one that a bound on processes is about": {
			kinds: []how{process, host}, rival: []how{process},
			want: map[how][]int{process: {8, 8}, host: {4, 4}}, quick: map[how][]int{process: {8, 8}, host: {4, 4}},
		},
		"one that takes seconds": {
			kinds: []how{process, host}, calm: true,
			want: map[how][]int{process: {1, 1}, host: {1, 1}}, quick: map[how][]int{process: {1, 0}, host: {1, 0}},
		},
		"one that hangs for a minute": {
			kinds: []how{process, host}, hangs: true,
			want: map[how][]int{process: {4, 4}, host: {1, 0}}, quick: map[how][]int{process: {4, 4}, host: {0, 0}},
		},
		"one for hosts alone": {
			kinds: []how{host},
			want:  map[how][]int{process: {0, 0}, host: {4, 4}}, quick: map[how][]int{process: {0, 0}, host: {4, 4}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := &contender{kinds: c.kinds, rival: c.rival, calm: c.calm}
			if c.hangs {
				x.hang = time.Minute
			}
			for quick, want := range map[bool]map[how][]int{false: c.want, true: c.quick} {
				b := &bench{deaths: 8, quick: quick}
				got := map[how][]int{}
				for _, kind := range []how{process, host} {
					got[kind] = []int{b.times(x, kind, 0), b.times(x, kind, 1)}
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("quick %v (-want +got):\n%s", quick, d)
				}
			}
		})
	}
}

// TestACandidateIsUpInEveryFamily reads a status in which it is so in one alone.
func TestACandidateIsUpInEveryFamily(t *testing.T) {
	const text = `{"services": [
		{"family": 4, "candidate": "a", "epoch": 3, "candidates": [{"candidate": "a", "state": "up"}, {"candidate": "b", "state": "up"}]},
		{"family": 6, "candidate": "b", "epoch": 2, "candidates": [{"candidate": "a", "state": "vetoed"}, {"candidate": "b", "state": "up"}]}]}`
	var s status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if name, epoch := s.target(); name != "a" || epoch != 3 {
		t.Errorf("target %q, epoch %d", name, epoch)
	}
	for name, want := range map[string]string{"a": "vetoed", "b": "up", "c": ""} {
		if got := s.state(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// TestConnectionsThatLast has one that stays, one that goes and comes again, and a new one.
func TestConnectionsThatLast(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	seen := stay(nil, []uint16{1, 2}, at(0))
	seen = stay(seen, []uint16{1}, at(1))
	seen = stay(seen, []uint16{1, 2, 3}, at(2))
	if d := cmp.Diff(map[uint16]time.Time{1: at(0), 2: at(2), 3: at(2)}, seen); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if n := common([]uint16{1, 2}, []uint16{2, 3}); n != 1 {
		t.Errorf("%d in common, want 1", n)
	}
}

func TestADeathIsSpoiltByAStallOnly(t *testing.T) {
	for name, c := range map[string]struct {
		gap, stall time.Duration
		want       bool
	}{
		"no stall":                     {4 * time.Millisecond, 0, false},
		"a stall below the threshold":  {12 * time.Millisecond, 9 * time.Millisecond, false},
		"most of the gap":              {30 * time.Millisecond, 25 * time.Millisecond, true},
		"a little of a very large gap": {11 * time.Second, 25 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (seen{Gap: gap.Gap{Gap: c.gap, Stall: c.stall}}).spoilt(); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestAddressesOfAListing(t *testing.T) {
	const text = `table inet shunt_edge {
	map target4 {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		size 65536
		elements = { 10.10.0.50 . tcp . 80 comment "front epoch 7 by r1" : 10.20.0.11 . 80 }
	}
	set onlink4 { elements = { 10.20.0.0/24 . 10.20.0.11 } }
	set address6 { elements = { fd10::50, 2001:db8::1 } }
	set lease { elements = { 0x1a2b3c4d timeout 30s expires 12s340ms comment "r1 config 12ab34cd opinion 56ef78ab holds front" } }
	chain c { type nat hook output priority -100; policy accept; }
}`
	var want []netip.Addr
	for _, a := range []string{"10.10.0.50", "10.20.0.11", "10.20.0.0", "fd10::50", "2001:db8::1"} {
		want = append(want, netip.MustParseAddr(a))
	}
	if d := cmp.Diff(want, addresses(text), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDamagedRecordsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       int
	}{
		"a good record":    {"edge.json", `{"a":1}`, 0},
		"a torn record":    {"edge.json", `{"a":`, 1},
		"an empty record":  {"edge.json", ``, 1},
		"a good journal":   {"events.jsonl", "{}\n{}\n", 0},
		"a torn line":      {"events.jsonl", "{}\n{\"a\"", 1},
		"two lines in one": {"events.jsonl", "{}{}\n", 1},
		"a lock":           {"edge.lock", "pid 7", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := damaged(dir); len(got) != c.want {
				t.Errorf("%q, want %d", got, c.want)
			}
		})
	}
}

func TestEveryScenarioIsToldOf(t *testing.T) {
	page, err := os.ReadFile("../../../docs/commands/shunt-lab.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Scenarios() {
		if !strings.Contains(string(page), "`"+s.Name+"`") {
			t.Errorf("the page of shunt lab has no %s", s.Name)
		}
		for _, f := range s.Flags {
			if !strings.Contains(string(page), "`--"+f.Name) {
				t.Errorf("the page of shunt lab has no --%s of %s", f.Name, s.Name)
			}
		}
	}
}
