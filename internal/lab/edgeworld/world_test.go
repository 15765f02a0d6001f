package edgeworld_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == cage.Arg:
		os.Exit(cage.Init(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == backend.Arg:
		os.Exit(backend.Main(os.Args[2:], os.Stdout))
	}
	flag.Parse()
	// Those that may run at the same time wait most of theirs, each in a cage of its own: more of
	// them than there are processors.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// isInside runs the test again inside a cage and returns false, or is true there.
func isInside(t *testing.T) bool {
	t.Helper()
	return cage.Inside(t, 2*time.Minute)
}

func build(t *testing.T, o edgeworld.Options) *edgeworld.World {
	t.Helper()
	o.Dir = os.Getenv("SHUNT_LAB_DIR")
	w, err := edgeworld.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	t.Logf("world up in %s", w.Took)
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lead makes a replica lead the virtual addresses to a backend, by hand.
func lead(t *testing.T, r *edgeworld.Replica, b *edgeworld.Backend) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table inet hand {}
delete table inet hand
table inet hand {
  chain pre { type nat hook prerouting priority dstnat;
    ip daddr %s meta l4proto { tcp, udp } th dport 80 dnat ip to %s
    ip6 daddr %s meta l4proto { tcp, udp } th dport 80 dnat ip6 to %s
  }
}
`, edgeworld.VIP4, b.Addr4, edgeworld.VIP6, b.Addr6))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, r.NS.Start(cmd))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("nft: %v: %s", err, out.String())
	}
}

// asked is who answers a few connections, without any that failed before it.
func asked(t *testing.T, w *edgeworld.World, to netip.AddrPort) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := gap.Start(ctx, w.Client, gap.Options{To: to})
	who, err := c.WaitSteady(ctx, 20*time.Millisecond, gap.Anyone)
	r := c.Stop()
	if err != nil {
		t.Fatalf("%s: %v: %+v", to, err, r.Conns[max(0, len(r.Conns)-3):])
	}
	return who
}

func TestADeathIsMeasured(t *testing.T) {
	if !isInside(t) {
		return
	}
	w := build(t, edgeworld.Options{})
	a, b, r := w.Backend("a"), w.Backend("b"), w.Replicas[0]
	for _, x := range w.Backends {
		must(t, x.Start(t.Context(), backend.Options{}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const unmoved = 100 * time.Millisecond // how long nobody moves anything
	for name, c := range map[string]struct {
		die   func() (time.Time, error)
		heal  func() error
		fault gap.Fault
	}{
		"of the process":       {func() (time.Time, error) { return a.Kill(), nil }, func() error { return a.Restart(ctx) }, gap.Refused},
		"of the host":          {a.Unplug, a.Plug, gap.Timeout},
		"that nobody can see":  {func() (time.Time, error) { return time.Now(), a.Silence(true) }, func() error { return a.Silence(false) }, gap.Timeout},
		"that leaves a socket": {func() (time.Time, error) { return time.Now(), a.Signal(unix.SIGSTOP) }, func() error { return a.Signal(unix.SIGCONT) }, gap.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			lead(t, r, a)
			cl := gap.Start(ctx, w.Client, gap.Options{To: w.VIP(4), Answer: 300 * time.Millisecond})
			if who, err := cl.WaitSteady(ctx, 50*time.Millisecond, gap.Anyone); err != nil || who != "a" {
				t.Fatalf("before it %q answers, %v", who, err)
			}
			died, err := c.die()
			must(t, err)
			<-time.After(unmoved)
			lead(t, r, b)
			if _, err := cl.WaitSteady(ctx, 50*time.Millisecond, gap.Not("a")); err != nil {
				t.Fatal(err)
			}
			g := cl.Stop().After(died, "b")
			t.Logf("%+v", g)
			if g.Gap < unmoved || g.Gap > 5*time.Second || g.Failed < 20 || g.Faults[c.fault] < 20 {
				t.Errorf("want a gap of a little more than %s, and its failures as %q", unmoved, c.fault)
			}
			must(t, c.heal())
			lead(t, r, a)
			if got := asked(t, w, w.VIP(4)); got != "a" {
				t.Errorf("%q answers after it, want a", got)
			}
		})
	}
}

func TestAWorldIsInOrder(t *testing.T) {
	if !isInside(t) {
		return
	}
	w := build(t, edgeworld.Options{Replicas: 3, Backends: 3, Delay: 50 * time.Millisecond})
	r1, r2 := w.Replicas[0], w.Replicas[1]
	for _, x := range w.Backends {
		must(t, x.Start(t.Context(), backend.Options{UDP: true}))
		must(t, x.Count())
	}
	lead(t, r1, w.Backend("a"))
	lead(t, r2, w.Backend("b"))
	t.Run("who holds the address is asked, in both families", func(t *testing.T) {
		for _, family := range []int{4, 6} {
			if family == 6 && !w.IPv6 {
				continue
			}
			for _, c := range []struct {
				holder *edgeworld.Replica
				want   string
			}{{r1, "a"}, {r2, "b"}, {r2, "b"}, {r1, "a"}} {
				must(t, w.Hold(c.holder))
				if got := asked(t, w, w.VIP(family)); got != c.want {
					t.Errorf("IPv%d, %s holds it: %q answers, want %s", family, c.holder.Name, got, c.want)
				}
			}
		}
	})
	t.Run("what clients begin is counted where it arrives", func(t *testing.T) {
		before, err := w.Backend("a").Begun()
		must(t, err)
		asked(t, w, w.VIP(4))
		after, err := w.Backend("a").Begun()
		must(t, err)
		if c, err := w.Backend("c").Begun(); after-before < 5 || c != 0 || err != nil {
			t.Errorf("%d at a, %d at c, %v", after-before, c, err)
		}
	})
	t.Run("connections that are held are seen", func(t *testing.T) {
		a := w.Backend("a")
		for _, to := range []netip.AddrPort{a.Addr(4), a.Addr(6)} {
			if to.Addr().Is6() && !w.IPv6 {
				continue
			}
			from := map[bool]netip.Addr{true: r1.Back4, false: r1.Back6}[to.Addr().Is4()]
			var c net.Conn
			must(t, r1.NS.Do(func() (err error) {
				d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
				c, err = d.DialContext(t.Context(), "tcp", to.String())
				return err
			}))
			if n, err := a.Held(from); n != 1 || err != nil {
				t.Errorf("%d connections of %s, %v, want 1", n, from, err)
			}
			_ = c.Close()
		}
	})
	t.Run("a transport takes nft, after its delay, and hangs when its end is isolated", func(t *testing.T) {
		script := filepath.Join(w.Dir, "bin", "nft-r1-r3")
		list := func(d time.Duration) (string, time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			cmd := exec.CommandContext(ctx, script)
			cmd.Stdin = strings.NewReader("add table inet hand\nlist tables\n")
			cmd.WaitDelay = time.Second
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			began := time.Now()
			must(t, r1.NS.Start(cmd))
			err := cmd.Wait()
			return out.String(), time.Since(began), err
		}
		out, took, err := list(10 * time.Second)
		if err != nil || !strings.Contains(out, "table inet hand") || took < 50*time.Millisecond {
			t.Errorf("%q after %s, %v", out, took, err)
		}
		must(t, w.Replicas[2].Isolate(true))
		if out, _, err := list(300 * time.Millisecond); err == nil {
			t.Errorf("an isolated replica said %q", out)
		}
		must(t, w.Replicas[2].Isolate(false))
		if out, _, err := list(10 * time.Second); err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
}
