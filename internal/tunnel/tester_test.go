package tunnel

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/tunnel/wgtest"
)

// serve runs n endpoints and returns a target for each.
func serve(t testing.TB, n int, o wgtest.Options) (*wgtest.Server, []egress.TestTarget) {
	t.Helper()
	s, err := wgtest.Start(n, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	paths, err := s.WriteProfiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	targets := make([]egress.TestTarget, n)
	for i, p := range paths {
		targets[i] = egress.TestTarget{Endpoint: s.Addr(i).String(), Path: p, Pair: fmt.Sprintf("pair-%d", i)}
	}
	return s, targets
}

func config() egress.TestConfig {
	return egress.TestConfig{
		Parallel: 64, Rate: 1000, HandshakeTimeout: 2 * time.Second, Pings: 4, PingTimeout: time.Second,
		Targets: []netip.Addr{netip.MustParseAddr("10.64.0.1"), netip.MustParseAddr("1.1.1.1")}, FullSize: true,
	}
}

// run tests the targets and returns the results by path, with the error of Test.
func runTest(t testing.TB, ctx context.Context, c egress.TestConfig, targets []egress.TestTarget, busy func(string) bool) (map[string]egress.TestResult, error) {
	t.Helper()
	got := map[string]egress.TestResult{}
	err := New(Options{Now: time.Now}).Test(ctx, c, targets, busy, func(r egress.TestResult) {
		if _, twice := got[r.Path]; twice {
			t.Errorf("%s: done called twice", r.Path)
		}
		got[r.Path] = r
	})
	if len(got) != len(targets) {
		t.Errorf("done called for %d of %d targets", len(got), len(targets))
	}
	return got, err
}

// eventually polls a condition.
func eventually(t testing.TB, what string, within time.Duration, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

func TestEachBehaviourHasItsReason(t *testing.T) {
	cases := []struct {
		name    string
		b       wgtest.Behaviour
		reason  string
		got     int
		full    bool
		shakes  bool
		profile func(string) string
	}{
		{name: "answers everything", got: 4, full: true, shakes: true},
		{name: "never answers", b: wgtest.Behaviour{Silent: true}, reason: ReasonNoHandshake},
		{name: "shakes hands and forwards nothing", b: wgtest.Behaviour{Drop: 1}, reason: ReasonNoAnswer, shakes: true},
		{name: "loses every second ping", b: wgtest.Behaviour{Drop: .5}, reason: ReasonLoss, got: 2, full: true, shakes: true},
		{name: "loses packets over 1300 bytes", b: wgtest.Behaviour{MTU: 1300}, reason: ReasonMTU, got: 4, shakes: true},
		{name: "chokes after 4 KiB of data", b: wgtest.Behaviour{ChokeAfter: 4096}, reason: ReasonChoked, got: 4, shakes: true},
		{
			name: "a path of 1300 bytes and a profile that says so", b: wgtest.Behaviour{MTU: 1300}, got: 4, full: true, shakes: true,
			profile: func(s string) string { return strings.Replace(s, "[Interface]\n", "[Interface]\nMTU = 1300\n", 1) },
		},
		{
			name: "junk ahead of a plain handshake, which a plain peer passes over", got: 4, full: true, shakes: true,
			profile: func(s string) string {
				return strings.Replace(s, "[Interface]\n", "[Interface]\nJc = 4\nJmin = 40\nJmax = 70\n", 1)
			},
		},
		{
			name: "a plain peer behind a profile of AmneziaWG", reason: ReasonPlain,
			profile: func(s string) string {
				return strings.Replace(s, "[Interface]\n", "[Interface]\nS1 = 15\nS2 = 18\nH1 = 1234567\n", 1)
			},
		},
		{
			name: "sizes that two generations tell apart and the profile's does not", reason: "unsupported profile: s1 and s2 give two messages one size, 164 bytes",
			profile: func(s string) string {
				return strings.Replace(s, "[Interface]\n", "[Interface]\nS1 = 16\nS2 = 72\n", 1)
			},
		},
		{
			name: "a profile of v4 only and targets of v6 only are told apart below", got: 4, full: true, shakes: true,
			profile: func(s string) string { return strings.Replace(s, ", fd64::9/128", "", 1) },
		},
	}
	for _, parallel := range []int{64, 2} { // straight, and through the sieve
		t.Run(fmt.Sprintf("parallel %d", parallel), func(t *testing.T) {
			_, targets := serve(t, len(cases), wgtest.Options{Behave: func(i int) wgtest.Behaviour { return cases[i].b }})
			for i, c := range cases {
				if c.profile != nil {
					b, err := os.ReadFile(targets[i].Path)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(targets[i].Path, []byte(c.profile(string(b))), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			conf := config()
			conf.Parallel = parallel
			results, err := runTest(t, t.Context(), conf, targets, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range cases {
				r := results[targets[i].Path]
				want := egress.TestResult{Endpoint: targets[i].Endpoint, Path: targets[i].Path, Reason: c.reason, Got: c.got, FullSize: c.full}
				if c.shakes {
					want.Sent = 4
				}
				got := r
				got.Handshake, got.Avg, got.Jitter, got.TestedAt = 0, 0, 0, time.Time{}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c.name, diff)
				}
				if c.shakes != (r.Handshake > 0) {
					t.Errorf("%s: handshake %s", c.name, r.Handshake)
				}
				if (c.got > 0) != (r.Avg > 0) {
					t.Errorf("%s: average %s of %d answers", c.name, r.Avg, r.Got)
				}
			}
		})
	}
}

func TestUnusableTargetsAreToldApart(t *testing.T) {
	_, targets := serve(t, 3, wgtest.Options{})
	targets[0].Path = filepath.Join(t.TempDir(), "absent.conf")
	targets[1].Endpoint = "192.0.2.1:1"
	b, err := os.ReadFile(targets[2].Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(targets[2].Path, []byte(strings.Replace(string(b), ", fd64::9/128", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config()
	c.Targets = []netip.Addr{netip.MustParseAddr("2606:4700:4700::1111")}
	results, err := runTest(t, t.Context(), c, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range []string{"no such file", "not 192.0.2.1:1", "no address of the family"} {
		r := results[targets[i].Path]
		if !strings.HasPrefix(r.Reason, ReasonUnsupported+": ") || !strings.Contains(r.Reason, part) {
			t.Errorf("target %d: reason %q, want one with %q", i, r.Reason, part)
		}
	}
	c.Targets = nil
	if err := New(Options{Now: time.Now}).Test(t.Context(), c, targets, nil, func(egress.TestResult) {}); err == nil {
		t.Error("no targets to ping: want an error")
	}
}

func TestIPv6OutsideAndInside(t *testing.T) {
	_, targets := serve(t, 3, wgtest.Options{Listen: netip.IPv6Loopback(), OwnKeys: true})
	c := config()
	c.Targets = []netip.Addr{netip.MustParseAddr("2606:4700:4700::1111"), netip.MustParseAddr("10.64.0.1")}
	for _, parallel := range []int{3, 2} {
		c.Parallel = parallel
		results, err := runTest(t, t.Context(), c, targets, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Reason != "" || r.Got != 4 || !r.FullSize {
				t.Errorf("parallel %d: %+v", parallel, r)
			}
		}
	}
}

func TestTimesAreTheNetworks(t *testing.T) {
	const rtt = 50 * time.Millisecond
	_, targets := serve(t, 40, wgtest.Options{RTT: rtt})
	c := config()
	c.Parallel, c.Rate, c.HandshakeTimeout, c.PingTimeout = 20, 100, 10*time.Second, 5*time.Second
	var over int
	for range 6 { // other tests want the cores too: one undisturbed run is enough
		results, err := runTest(t, t.Context(), c, targets, nil)
		if err != nil {
			t.Fatal(err)
		}
		over = 0
		for _, r := range results {
			if r.Reason != "" {
				t.Errorf("%s: %s", r.Path, r.Reason)
			}
			if r.Avg < rtt || r.Handshake < rtt {
				t.Errorf("%s: handshake %s, average %s: faster than the path", r.Path, r.Handshake, r.Avg)
			}
			if r.Avg > rtt+rtt/2 {
				over++
			}
		}
		if over < len(results)/2 {
			return
		}
	}
	t.Errorf("%d of %d averages are over %s: a queue of ours is measured", over, len(targets), rtt+rtt/2)
}

func TestProofOfFourTakesAFewRoundTrips(t *testing.T) {
	_, targets := serve(t, 4, wgtest.Options{RTT: 50 * time.Millisecond})
	c := config()
	c.Pings = 3
	least := time.Hour
	for range 3 { // the cores are shared with other tests
		begun := time.Now()
		results, err := runTest(t, t.Context(), c, targets, nil)
		least = min(least, time.Since(begun))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Reason != "" {
				t.Errorf("%s: %s", r.Path, r.Reason)
			}
		}
	}
	t.Logf("4 proofs at 50 ms took %s", least)
	if least > 400*time.Millisecond {
		t.Error("too long")
	}
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}
