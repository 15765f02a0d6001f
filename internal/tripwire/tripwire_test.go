package tripwire

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// newSet makes a set that the test's end closes.
func newSet(t *testing.T, o Options) *Set {
	t.Helper()
	s, err := New(o)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// scaled are the waits of the product, about forty times as short.
func scaled() Options {
	return Options{
		Pause: 8 * time.Millisecond, Short: 30 * time.Millisecond, Accept: 5 * time.Millisecond, Again: 150 * time.Millisecond,
		Retry: 50 * time.Millisecond,
	}
}

func targets(addrs ...netip.AddrPort) []Target {
	var list []Target
	for _, a := range addrs {
		list = append(list, Target{Addr: a})
	}
	return list
}

// becomes waits until the set watches an address in that way.
func becomes(t *testing.T, s *Set, addr netip.AddrPort, want State) Status {
	t.Helper()
	var got Status
	defer func() {
		if t.Failed() {
			t.Logf("last seen: %+v", got)
		}
	}()
	eventually(t, fmt.Sprintf("%s is %s", addr, want), func() bool {
		for _, st := range s.Status() {
			if st.Addr == addr {
				got = st
			}
		}
		return got.State == want
	})
	return got
}

// next waits for a hint.
func next(t *testing.T, s *Set) Hint {
	t.Helper()
	select {
	case h := <-s.Hints():
		return h
	case <-time.After(15 * time.Second):
		t.Fatal("no hint within 15 s")
		return Hint{}
	}
}

// none takes the hints that are there.
func pendingHints(s *Set) []Hint {
	var list []Hint
	for {
		select {
		case h := <-s.Hints():
			list = append(list, h)
		default:
			return list
		}
	}
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

func TestKilledServerIsHintedAtAndConfirmed(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		name  string
		local bool
		addr  netip.AddrPort
		bind  string
		state State
		kinds []Kind
	}{
		{"on another host", false, addrPort(far4, 8001), far4 + ":8001", StateArmed, []Kind{KindClosed, KindReset}},
		{"on another host, IPv6", false, addrPort(far6, 8002), "[" + far6 + "]:8002", StateArmed, []Kind{KindClosed, KindReset}},
		{"on this machine", true, addrPort("10.79.0.1", 8003), "10.79.0.1:8003", StateLocal, []Kind{KindListener}},
		{"on this machine, IPv6", true, addrPort("fd79::1", 8004), "[fd79::1]:8004", StateLocal, []Kind{KindListener}},
		{"on this machine, any address", true, addrPort("10.79.0.1", 8005), ":8005", StateLocal, []Kind{KindListener}},
		{"on this machine, loopback", true, addrPort("127.0.0.1", 8006), "127.0.0.1:8006", StateLocal, []Kind{KindListener}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// These servers die young again and again, and are back at once.
			s := newSet(t, Options{Pause: 20 * time.Millisecond, Retry: 20 * time.Millisecond, Again: 20 * time.Millisecond, Shorts: 1000})
			s.Arm(targets(tt.addr))
			var hinted, confirmed []time.Duration
			for range 10 {
				srv := w.start(t, tt.local, "holds", tt.bind)
				becomes(t, s, tt.addr, tt.state)
				pendingHints(s) // the refusals after the death before
				at := srv.shoot()
				h := next(t, s)
				v := Confirm(t.Context(), h.Addr, ConfirmOptions{})
				sure := time.Now()
				if h.Addr != tt.addr || !slices.Contains(tt.kinds, h.Kind) || h.Suspicious {
					t.Errorf("hint %+v", h)
				}
				if v.Word != WordDead || !v.Refused {
					t.Errorf("verdict %+v", v)
				}
				hinted, confirmed = append(hinted, h.At.Sub(at)), append(confirmed, sure.Sub(h.At))
				srv.kill()
				if tt.local && srv.count("accepted") > 0 {
					t.Errorf("%d connections though the kernel tells", srv.count("accepted"))
				}
				if !tt.local && srv.count("accepted") > 2 {
					t.Errorf("%d connections: one to watch, and at most one of the burst", srv.count("accepted"))
				}
			}
			t.Logf("kill to hint %v, hint to confirmed %v (medians of %d)", median(hinted), median(confirmed), len(hinted))
		})
	}
}

func TestServerThatDiesSlowly(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8011)
	srv := w.start(t, false, "heavy", addr.String(), "400")
	s := newSet(t, Options{})
	s.Arm(targets(addr))
	becomes(t, s, addr, StateArmed)
	at := srv.shoot()
	h := next(t, s)
	v := Confirm(t.Context(), addr, ConfirmOptions{})
	if v.Word != WordDead {
		t.Errorf("verdict %+v", v)
	}
	t.Logf("400 MiB: kill to hint %v, hint to confirmed %v with %d connections", h.At.Sub(at), v.Took, v.Tries)
}

func TestRecycledWorkersAreNoDeath(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8012)
	srv := w.start(t, false, "workers", addr.String(), "120")
	s := newSet(t, Options{Pause: 5 * time.Millisecond})
	s.Arm(targets(addr))
	for range 5 {
		h := next(t, s)
		if v := Confirm(t.Context(), h.Addr, ConfirmOptions{Burst: 100 * time.Millisecond}); v.Word != WordAlive {
			t.Errorf("hint %+v: %+v", h, v)
		}
	}
	if srv.count("recycled") == 0 {
		t.Error("no worker ended: the test shows nothing")
	}
}

func TestAnotherListenerOnThePortIsNoDeath(t *testing.T) {
	w := newWorld(t)
	addr := addrPort("10.79.0.1", 8013)
	first := w.start(t, true, "holds", addr.String())
	s := newSet(t, Options{})
	s.Arm(targets(addr))
	becomes(t, s, addr, StateLocal)
	second := w.start(t, true, "holds", addr.String())
	first.kill()
	must(t, second.Process.Signal(syscall.Signal(0))) // it is there
	second.shoot()
	if h := next(t, s); h.Kind != KindListener {
		t.Errorf("hint %+v", h)
	}
	if rest := pendingHints(s); len(rest) > 0 {
		t.Errorf("a hint for the first listener as well: %+v", rest)
	}
}

func TestIdleClosesAreLearnedAndForestalled(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8014)
	const idle = 100 * time.Millisecond
	srv := w.start(t, false, "idle", addr.String(), "100")
	s := newSet(t, scaled())
	s.Arm(targets(addr))
	var before []Hint
	eventually(t, "the lifetime is learned", func() bool {
		before = append(before, pendingHints(s)...)
		return len(s.Status()) == 1 && s.Status()[0].Lifetime > 0
	})
	if got := s.Status()[0].Lifetime; got < idle*9/10 || got > 2*idle {
		t.Errorf("learned %v of %v", got, idle)
	}
	if len(before) < 2 || len(before) > 4 {
		t.Errorf("%d hints while learning, want about 2", len(before))
	}
	from := srv.count("accepted")
	eventually(t, "ten connections more", func() bool { return srv.count("accepted") >= from+10 })
	for _, h := range pendingHints(s) { // a slow machine may be late
		if !h.Expected {
			t.Errorf("hint %+v after the lifetime was learned", h)
		}
	}

	// The next watchdog is told.
	next := newSet(t, scaled())
	next.Arm([]Target{{Addr: addr, Lifetime: s.Status()[0].Lifetime}})
	from = srv.count("accepted")
	eventually(t, "ten connections of both", func() bool { return srv.count("accepted") >= from+10 })
	for _, h := range pendingHints(next) {
		if !h.Expected {
			t.Errorf("hint %+v though the lifetime was known", h)
		}
	}
}

func TestServerThatClosesWhatItAcceptsIsGivenUp(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8015)
	srv := w.start(t, false, "closes", addr.String())
	s := newSet(t, scaled())
	s.Arm(targets(addr))
	st := becomes(t, s, addr, StateGivenUp)
	if want := "ends idle connections at once, 5 times in a row: only polled"; st.Reason != want {
		t.Errorf("reason %q, want %q", st.Reason, want)
	}
	hints := pendingHints(s)
	for _, h := range hints {
		if !h.Expected {
			t.Errorf("hint %+v of a server that closes all", h)
		}
	}
	eventually(t, "the server has told of all", func() bool { return srv.count("accepted") >= 5 })
	if len(hints) != 5 || srv.count("accepted") != 5 {
		t.Errorf("%d hints of %d connections, want 5 of 5", len(hints), srv.count("accepted"))
	}
	eventually(t, "it is looked at again", func() bool { return srv.count("accepted") >= 7 })
	if hints := pendingHints(s); len(hints) > 0 {
		t.Errorf("hints of one that was given up: %+v", hints)
	}
	if v := Confirm(t.Context(), addr, ConfirmOptions{}); v.Word != WordAlive || v.Tries > 6 {
		t.Errorf("verdict %+v", v)
	}

	// Its successor keeps connections.
	srv.kill()
	w.start(t, false, "holds", addr.String())
	eventually(t, "it is watched again", func() bool {
		st := s.Status()[0]
		return st.State == StateArmed && st.Short == 0
	})
}

func TestGivenUpIsRemembered(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8016)
	srv := w.start(t, false, "closes", addr.String())
	s := newSet(t, scaled())
	s.Arm([]Target{{Addr: addr, Short: 5}})
	if st := s.Status()[0]; st.State != StateGivenUp {
		t.Errorf("status %+v", st)
	}
	eventually(t, "it is looked at once in a while", func() bool { return srv.count("accepted") > 0 })
	if hints := pendingHints(s); len(hints) > 0 {
		t.Errorf("hints: %+v", hints)
	}
}

func TestWhatTheServerSaysIsDropped(t *testing.T) {
	w := newWorld(t)
	loud, quiet := addrPort(far4, 8017), addrPort(far4, 8018)
	w.start(t, false, "chatters", loud.String())
	srv := w.start(t, false, "holds", quiet.String())
	s := newSet(t, Options{})
	s.Arm(targets(loud, quiet))
	becomes(t, s, loud, StateArmed)
	becomes(t, s, quiet, StateArmed)
	srv.shoot()
	if h := next(t, s); h.Addr != quiet {
		t.Errorf("hint %+v", h)
	}
	becomes(t, s, loud, StateArmed)
}

func TestDeathBetweenTwoConnectionsIsHintedAt(t *testing.T) {
	w := newWorld(t)
	addr := addrPort(far4, 8019)
	srv := w.start(t, false, "holds", addr.String())
	s := newSet(t, Options{Pause: 300 * time.Millisecond})
	s.Arm(targets(addr))
	becomes(t, s, addr, StateArmed)
	eventually(t, "the server has it in its hands", func() bool { return srv.count("accepted") > 0 })
	srv.tell("hang up")
	if h := next(t, s); h.Kind != KindClosed {
		t.Errorf("first hint %+v", h)
	}
	srv.kill()
	if h := next(t, s); h.Kind != KindRefused || h.Expected {
		t.Errorf("second hint %+v", h)
	}
	becomes(t, s, addr, StateWaiting)
	eventually(t, "it is tried again and again", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.wires[addr].fails > 3
	})
	if hints := pendingHints(s); len(hints) > 0 {
		t.Errorf("a dead one is hinted at once: %+v", hints)
	}
}

func TestSilentHostIsNoticedByTheKernel(t *testing.T) {
	w := newWorld(t)
	addr := addrPort("10.80.1.1", 8020)
	w.start(t, false, "holds", addr.String())
	s := newSet(t, Options{Keepalive: time.Second, Silence: time.Second})
	s.Arm(targets(addr))
	becomes(t, s, addr, StateArmed)
	w.rule(t, "ip daddr 10.80.1.1 drop")
	h := next(t, s)
	if h.Kind != KindSilent || h.Expected {
		t.Errorf("hint %+v", h)
	}
	if v := Confirm(t.Context(), addr, ConfirmOptions{Burst: 60 * time.Millisecond}); v.Word != WordUnknown || v.Tries != 2 {
		t.Errorf("verdict %+v of a silent host, want unknown", v)
	}
	t.Logf("noticed after %v", h.Life)
}

func TestArmFollowsTheConfiguration(t *testing.T) {
	w := newWorld(t)
	a, b := addrPort(far4, 8021), addrPort(far4, 8022)
	first, second := w.start(t, false, "holds", a.String()), w.start(t, false, "holds", b.String())
	s := newSet(t, Options{})
	s.Arm(targets(a, a, netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port()))) // of three services
	becomes(t, s, a, StateArmed)
	s.Arm(targets(a, b)) // one more
	becomes(t, s, b, StateArmed)
	if n := first.count("accepted"); n != 1 {
		t.Errorf("%d connections to one address, want 1", n)
	}
	s.Arm(targets(b))
	first.await("ended")
	first.kill()
	s.Arm(nil)
	second.await("ended")
	if hints := pendingHints(s); len(hints) > 0 || len(s.Status()) != 0 {
		t.Errorf("hints %+v and status %+v of what is no longer watched", hints, s.Status())
	}
	s.Arm(targets(b))
	becomes(t, s, b, StateArmed)
	s.Close()
	eventually(t, "the last one is closed", func() bool { return second.count("ended") == 2 })
	if _, open := <-s.Hints(); open {
		t.Error("the channel of hints is still open")
	}
	s.Arm(targets(b)) // nothing happens
	s.Close()         // again
}

func TestThousandsOfWires(t *testing.T) {
	w := newWorld(t)
	const n = 3000
	srv := w.start(t, false, "holds", ":8023")
	var list []netip.AddrPort
	for i := range n {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 80, byte(10 + i/250), byte(1 + i%250)}), 8023))
	}
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	s := newSet(t, Options{})
	begin := time.Now()
	s.Arm(targets(list...))
	eventually(t, "all stand", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.stood == n
	})
	took := time.Since(begin)
	runtime.GC()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	t.Logf("%d wires armed in %v, %d bytes of heap each", n, took, (after.HeapAlloc-before.HeapAlloc)/n)
	srv.shoot()
	// The reader comes late: more hints wait than the channel holds.
	eventually(t, "all are broken", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.stood == 0
	})
	seen := map[netip.AddrPort]int{}
	suspicious := 0
	for len(seen) < n {
		h := next(t, s)
		if h.Kind == KindRefused {
			continue
		}
		seen[h.Addr]++
		if h.Suspicious {
			suspicious++
		}
	}
	for a, times := range seen {
		if times != 1 {
			t.Errorf("%s: %d hints", a, times)
		}
	}
	if suspicious < n/2 {
		t.Errorf("only %d of %d hints are suspicious", suspicious, n)
	}
	t.Logf("%d of %d hints suspicious", suspicious, n)
}

// A server that crashes soon after each start is watched on when somebody says that these
// were deaths; without that word it looks like one that closes what it accepts.
func TestCrashesAreNoHabit(t *testing.T) {
	w := newWorld(t)
	for name, told := range map[string]bool{"it is told": true, "it is not": false} {
		t.Run(name, func(t *testing.T) {
			port := 8160
			if told {
				port = 8161
			}
			addr := addrPort(far4, port)
			s := newSet(t, Options{Pause: 50 * time.Millisecond, Shorts: 3})
			s.Died(addr) // of nobody
			srv := w.start(t, false, "holds", addr.String())
			s.Arm(targets(addr))
			for range 4 {
				becomes(t, s, addr, StateArmed)
				srv.kill()
				<-s.Hints()
				if told {
					s.Died(addr)
					s.Died(addr) // twice says no more
				}
				srv = w.start(t, false, "holds", addr.String())
				if st := s.Status()[0]; !told && st.State == StateGivenUp {
					return
				}
			}
			if !told {
				t.Error("it was not given up")
			}
		})
	}
}
