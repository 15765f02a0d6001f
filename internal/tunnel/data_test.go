package tunnel

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/tunnel/wgtest"
)

// hosts are two TLS targets inside, the second one of another family when six is set.
func hosts(six bool) []egress.TLSTarget {
	second := "9.9.9.9:443"
	if six {
		second = "[2620:fe::fe]:443"
	}
	return []egress.TLSTarget{
		{Address: netip.MustParseAddrPort("1.1.1.1:443"), ServerName: "one.one.one.one"},
		{Address: netip.MustParseAddrPort(second)},
	}
}

func configTLS() egress.TestConfig {
	c := config()
	c.TLS, c.TLSTimeout = hosts(false), 2*time.Second
	return c
}

// The endpoint with the best pings that carries no data does not pass, the slower one does.
func TestBestPingWithoutDataDoesNotPass(t *testing.T) {
	for name, b := range map[string]wgtest.Behaviour{
		"TCP is dropped":             {NoTCP: true},
		"TCP connects, data is lost": {NoData: true},
	} {
		t.Run(name, func(t *testing.T) {
			near, srv1 := serve(t, 1, wgtest.Options{Seed: "near", RTT: 5 * time.Millisecond, Behave: func(int) wgtest.Behaviour { return b }})
			far, srv2 := serve(t, 1, wgtest.Options{Seed: "far", RTT: 30 * time.Millisecond})
			c := configTLS()
			// Of two hosts the second is asked as well where the first is slow, as it is on busy cores.
			c.TLS, c.TLSTimeout = hosts(false)[:1], time.Second
			for _, parallel := range []int{2, 1} { // straight, and through the sieve
				c.Parallel = parallel
				results, err := runTest(t, t.Context(), c, slices.Concat(srv1, srv2), nil)
				if err != nil {
					t.Fatal(err)
				}
				r1, r2 := results[srv1[0].Path], results[srv2[0].Path]
				if r1.Reason != ReasonNoData || r1.Got != 4 || !r1.FullSize {
					t.Errorf("parallel %d: srv1: %+v, want reason %q after all pings", parallel, r1, ReasonNoData)
				}
				if r2.Reason != "" || r2.Avg <= r1.Avg {
					t.Errorf("parallel %d: srv2: %+v, want a pass slower than srv1's %s", parallel, r2, r1.Avg)
				}
			}
			if near.TLS(0) != 0 || far.TLS(0) != 2 {
				t.Errorf("TLS handshakes: srv1 %d, srv2 %d; want none and one for each test", near.TLS(0), far.TLS(0))
			}
		})
	}
}

func TestOneTLSHostIsEnough(t *testing.T) {
	refused := hosts(false)[0].Address.Addr()
	cases := []struct {
		name   string
		o      wgtest.Options
		tls    []egress.TLSTarget
		reason string
		made   int // handshakes
	}{
		{name: "both hosts answer: one is asked", tls: hosts(false), made: 1},
		{name: "the first host cuts the connection off", o: wgtest.Options{Refuse: []netip.Addr{refused}}, tls: hosts(false), made: 1},
		{name: "the only host cuts the connection off", o: wgtest.Options{Refuse: []netip.Addr{refused}}, tls: hosts(false)[:1], reason: ReasonNoData},
		{name: "nobody listens there", tls: []egress.TLSTarget{{Address: netip.MustParseAddrPort("1.1.1.1:444")}}, reason: ReasonNoData},
		{name: "a host of IPv6", tls: hosts(true)[1:], made: 1},
		{name: "no host of IPv6 with an MTU too small for it", o: wgtest.Options{ProfileMTU: 1200}, tls: hosts(true)[1:], reason: ReasonUnsupported + ": no address of the family of any TLS target"},
		{name: "a small MTU", o: wgtest.Options{ProfileMTU: 576, Behave: func(int) wgtest.Behaviour { return wgtest.Behaviour{MTU: 576} }}, tls: hosts(false), made: 1},
		{name: "none is asked for"},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			s, targets := serve(t, 1, tt.o)
			c := configTLS()
			// The second host is asked when the first has kept silent for a quarter of that, which
			// busy cores do not make of one that answers.
			c.TLS, c.TLSTimeout = tt.tls, 20*time.Second
			begun := time.Now()
			results, err := runTest(t, t.Context(), c, targets, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := results[targets[0].Path].Reason; got != tt.reason {
				t.Errorf("reason %q, want %q", got, tt.reason)
			}
			if s.TLS(0) != tt.made {
				t.Errorf("%d TLS handshakes, want %d", s.TLS(0), tt.made)
			}
			// A refusal is not waited out: neither for the next host's turn nor to the end.
			if d := time.Since(begun); d > c.TLSTimeout/4 {
				t.Errorf("took %s", d)
			}
		})
	}
}

// A host that keeps silent leaves the other one half of the time.
func TestASilentHostDoesNotUseTheTimeOfAll(t *testing.T) {
	s, targets := serve(t, 1, wgtest.Options{Deaf: []netip.Addr{hosts(false)[0].Address.Addr()}})
	c := configTLS()
	begun := time.Now()
	results, err := runTest(t, t.Context(), c, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := results[targets[0].Path]; r.Reason != "" || s.TLS(0) != 1 {
		t.Errorf("%+v after %d handshakes", r, s.TLS(0))
	}
	if d := time.Since(begun); d < c.TLSTimeout/4 {
		t.Errorf("took %s: the first host was not silent", d)
	}
}

func TestTLSAloneIsATest(t *testing.T) {
	s, targets := serve(t, 2, wgtest.Options{Behave: func(i int) wgtest.Behaviour { return wgtest.Behaviour{NoTCP: i == 1} }})
	c := configTLS()
	c.Pings, c.FullSize, c.Targets, c.TLSTimeout = 0, false, nil, 300*time.Millisecond
	results, err := runTest(t, t.Context(), c, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", ReasonNoData} {
		if r := results[targets[i].Path]; r.Reason != want || r.Sent != 0 {
			t.Errorf("endpoint %d: %+v, want reason %q", i, r, want)
		}
	}
	if s.TLS(0) != 1 {
		t.Errorf("%d TLS handshakes", s.TLS(0))
	}
}

// Devices are used for one server after another: none may get what was meant for the last
// one, or the count of its own packets would be wrong.
func TestReusedDevicesMixNothingUp(t *testing.T) {
	const n = 60
	s, targets := serve(t, n, wgtest.Options{Behave: func(i int) wgtest.Behaviour { return wgtest.Behaviour{NoTCP: i%3 == 0} }})
	c := configTLS()
	c.Parallel, c.TLS, c.TLSTimeout = 4, hosts(false)[:1], 250*time.Millisecond // a second host may have its turn on busy cores
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	results, err := runTest(t, t.Context(), c, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, target := range targets {
		want := ""
		if i%3 == 0 {
			want = ReasonNoData
		}
		r := results[target.Path]
		// Starved cores may make a live one late, never a dropping one alive.
		if r.Reason != want && r.Reason != ReasonNoData || r.Got != 4 || r.Avg <= 0 {
			t.Errorf("endpoint %d: %+v, want reason %q", i, r, want)
		}
		if want == "" && s.TLS(i) > 1 {
			t.Errorf("endpoint %d: %d TLS handshakes", i, s.TLS(i))
		}
	}
	// The servers' own stacks stay: their processors, and what serves a connection.
	eventually(t, "goroutines end", 3*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines+n*2/3*(runtime.GOMAXPROCS(0)+1) })
	if d := openDescriptors(t); d > descriptors {
		t.Errorf("%d descriptors before, %d after", descriptors, d)
	}
}

func TestCancelInsideTheTLSStage(t *testing.T) {
	s, targets := serve(t, 3, wgtest.Options{Behave: func(int) wgtest.Behaviour { return wgtest.Behaviour{NoData: true} }})
	goroutines := runtime.NumGoroutine()
	c := configTLS()
	c.TLSTimeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	var begun time.Time
	busy := func(string) bool {
		if begun.IsZero() && s.Data(0) > 10 && s.Data(1) > 10 && s.Data(2) > 10 { // 8 pings, then TCP
			begun = time.Now()
			cancel()
		}
		return false
	}
	results, err := runTest(t, ctx, c, targets, busy)
	if err == nil || begun.IsZero() {
		t.Fatalf("error %v, cancelled at %s", err, begun)
	}
	if d := time.Since(begun); d > 2*time.Second { // a few milliseconds on idle cores
		t.Errorf("returned %s after the cancel", d)
	}
	for _, r := range results {
		if r.Reason != ReasonUntested {
			t.Errorf("%+v", r)
		}
	}
	// The servers' own stacks stay: their processors, and what waits for the client's first message.
	eventually(t, "goroutines end", 3*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines+3*(runtime.GOMAXPROCS(0)+1) })
}
