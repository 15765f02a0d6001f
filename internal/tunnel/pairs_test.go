package tunnel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/tunnel/wgtest"
)

func TestABusyPairIsNeverTouched(t *testing.T) {
	for _, parallel := range []int{4, 1} {
		s, targets := serve(t, 4, wgtest.Options{})
		c := config()
		c.Parallel = parallel
		results, err := runTest(t, t.Context(), c, targets, func(pair string) bool { return pair == "pair-2" })
		if err != nil {
			t.Fatal(err)
		}
		for i, target := range targets {
			want := ""
			if i == 2 {
				want = ReasonBusy
			}
			if got := results[target.Path].Reason; got != want {
				t.Errorf("parallel %d: endpoint %d: reason %q, want %q", parallel, i, got, want)
			}
		}
		if n := s.Initiations(2); n != 0 {
			t.Errorf("parallel %d: %d initiations reached the server of a busy pair", parallel, n)
		}
	}
}

func TestAPairTakenMeanwhileIsLetGo(t *testing.T) {
	s, targets := serve(t, 1, wgtest.Options{Behave: func(int) wgtest.Behaviour { return wgtest.Behaviour{Drop: 1} }})
	c := config()
	c.Pings, c.PingTimeout = 100, 10*time.Second
	var taken atomic.Int64
	busy := func(string) bool {
		if s.Data(0) > 3 { // well inside the pings
			taken.CompareAndSwap(0, time.Now().UnixNano())
			return true
		}
		return false
	}
	results, err := runTest(t, t.Context(), c, targets, busy)
	over := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	if got := results[targets[0].Path].Reason; got != ReasonBusy {
		t.Errorf("reason %q", got)
	}
	d := over.Sub(time.Unix(0, taken.Load()))
	t.Logf("let go after %s", d)
	if d > time.Second { // a few milliseconds on idle cores
		t.Error("too late")
	}
	count := s.Data(0)
	if last := s.LastDatagram(0); last.After(over) {
		t.Errorf("a datagram came %s after the result", last.Sub(over))
	}
	// Another test of the same server would see stray datagrams of the first tunnel.
	eventually(t, "quiet", time.Second, func() bool { return s.Data(0) == count })
}

func TestHandshakesAloneLeaveASessionOfThePairAlone(t *testing.T) {
	s, targets := serve(t, 6, wgtest.Options{})
	c := config()
	c.Pings, c.FullSize, c.Targets = 0, false, nil
	for _, parallel := range []int{6, 2} { // few enough for devices of their own, and not
		c.Parallel = parallel
		results, err := runTest(t, t.Context(), c, targets, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, target := range targets {
			if r := results[target.Path]; r.Reason != "" || r.Handshake == 0 || r.Sent != 0 {
				t.Errorf("parallel %d: %+v", parallel, r)
			}
			if s.Initiations(i) == 0 || s.Data(i) != 0 {
				t.Errorf("parallel %d: %d initiations and %d transport messages reached server %d", parallel, s.Initiations(i), s.Data(i), i)
			}
		}
	}
}

func TestTargetsOfOnePairAreTestedOneAfterAnother(t *testing.T) {
	_, targets := serve(t, 1, wgtest.Options{RTT: 20 * time.Millisecond})
	b, err := os.ReadFile(targets[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	twin := targets[0]
	twin.Path = filepath.Join(t.TempDir(), "twin.conf")
	if err := os.WriteFile(twin.Path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var first time.Time
	err = New(Options{Now: time.Now}).Test(t.Context(), config(), []egress.TestTarget{targets[0], twin}, nil, func(r egress.TestResult) {
		if r.Reason != "" {
			t.Errorf("%s: %s", r.Path, r.Reason)
		}
		if first.IsZero() {
			first = time.Now()
		} else if r.TestedAt.Before(first) {
			t.Errorf("the second test began %s before the first was done", first.Sub(r.TestedAt))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestALostInitiationIsRepeatedSoon(t *testing.T) {
	for _, parallel := range []int{2, 1} {
		s, targets := serve(t, 2, wgtest.Options{})
		for i := range targets {
			s.SetBehaviour(i, wgtest.Behaviour{Silent: true})
		}
		stop := make(chan struct{})
		var watcher sync.WaitGroup
		watcher.Go(func() {
			for s.Initiations(0) == 0 || s.Initiations(1) == 0 {
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
			s.SetBehaviour(0, wgtest.Behaviour{})
			s.SetBehaviour(1, wgtest.Behaviour{})
		})
		c := config()
		c.Parallel, c.HandshakeTimeout = parallel, 3*time.Second
		begun := time.Now()
		results, err := runTest(t, t.Context(), c, targets, nil)
		close(stop)
		watcher.Wait()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Reason != "" {
				t.Errorf("parallel %d: %s: %s", parallel, r.Path, r.Reason)
			}
		}
		if d := time.Since(begun); d > 2500*time.Millisecond {
			t.Errorf("parallel %d: took %s", parallel, d)
		}
	}
}

func TestAServerUnderLoadGetsItsCookieBack(t *testing.T) {
	s, targets := serve(t, 1, wgtest.Options{})
	stop := s.Flood(0)
	defer stop()
	c := config()
	c.HandshakeTimeout, c.PingTimeout, c.FullSize = 5*time.Second, time.Second, false
	for range 8 { // a server that gets much of the cores is not under load each time
		results, err := runTest(t, t.Context(), c, targets, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r := results[targets[0].Path]; r.Handshake == 0 {
			t.Errorf("%+v", r)
		}
		if s.Cookies(0) > 0 {
			break
		}
	}
	if s.Cookies(0) == 0 {
		t.Error("the server never asked for its cookie, so nothing was tested")
	}
}

func TestCancelReturnsPromptlyAndNothingIsLeft(t *testing.T) {
	for _, parallel := range []int{200, 8} {
		_, targets := serve(t, 40, wgtest.Options{RTT: 5 * time.Millisecond, Behave: func(i int) wgtest.Behaviour {
			return wgtest.Behaviour{Silent: i%2 == 0, Drop: 1}
		}})
		goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
		c := config()
		c.Parallel, c.HandshakeTimeout, c.PingTimeout = parallel, time.Minute, time.Minute
		ctx, cancel := context.WithCancel(t.Context())
		var cancelled atomic.Int64
		var asked atomic.Int64
		busy := func(string) bool {
			if asked.Add(1) == 300 { // all under way
				cancelled.Store(time.Now().UnixNano())
				cancel()
			}
			return false
		}
		results, err := runTest(t, ctx, c, targets, busy)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		d := time.Since(time.Unix(0, cancelled.Load()))
		t.Logf("parallel %d: returned %s after the cancel", parallel, d)
		if d > 2*time.Second { // a few milliseconds on idle cores
			t.Error("too late")
		}
		for _, r := range results {
			if r.Reason != ReasonUntested {
				t.Errorf("%s: reason %q", r.Path, r.Reason)
			}
		}
		eventually(t, "goroutines end", 3*time.Second, func() bool { return runtime.NumGoroutine() <= goroutines })
		if n := openDescriptors(t); n > descriptors {
			t.Errorf("parallel %d: %d descriptors before, %d after", parallel, descriptors, n)
		}
	}
}

func TestTheDeadlineEndsAllTests(t *testing.T) {
	_, targets := serve(t, 3, wgtest.Options{Behave: func(i int) wgtest.Behaviour { return wgtest.Behaviour{Silent: i > 0} }})
	c := config()
	c.HandshakeTimeout, c.Deadline = time.Minute, 300*time.Millisecond
	results, err := runTest(t, t.Context(), c, targets, nil)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 of 3") {
		t.Errorf("error %v", err)
	}
	if r := results[targets[0].Path]; r.Reason != "" {
		t.Errorf("the live endpoint: %q", r.Reason)
	}
}

func TestARefusedUnderlayIsAnError(t *testing.T) {
	_, targets := serve(t, 2, wgtest.Options{})
	var reasons []string
	err := New(Options{Control: Underlay("nosuch0", 0), Now: time.Now}).Test(t.Context(), config(), targets, nil, func(r egress.TestResult) {
		reasons = append(reasons, r.Reason)
	})
	if err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff([]string{ReasonUntested, ReasonUntested}, reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestTheUnderlayIsBoundAndMarked(t *testing.T) {
	_, targets := serve(t, 2, wgtest.Options{})
	var reasons []string
	err := New(Options{Control: Underlay("lo", 0x202), Now: time.Now}).Test(t.Context(), config(), targets, nil, func(r egress.TestResult) {
		reasons = append(reasons, r.Reason)
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"", ""}, reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}
