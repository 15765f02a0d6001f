package lab_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
	"github.com/shunt-net/shunt/internal/lane"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == cage.Arg:
		os.Exit(lab.Child(os.Args[2:], scenarios()))
	case len(os.Args) > 1 && os.Args[1] == "test-lane": // INTERFACE PROFILE
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		err := lane.Serve(ctx, lane.ServeOptions{
			Interface: os.Args[2], ConfigPath: os.Args[3], Now: time.Now,
			Logf: func(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) },
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) > 2 && os.Args[1] == "test-shell":
		os.Exit(terminalShell(os.Args[2]))
	case len(os.Args) > 2 && os.Args[1] == "test-run":
		os.Exit(terminalRun(os.Args[2]))
	case len(os.Args) > 1 && os.Args[1] == "test-product":
		os.Exit(product(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// isInside runs the test again inside a cage and returns false, or is true there.
func isInside(t *testing.T) bool {
	t.Helper()
	return cage.Inside(t, 5*time.Minute)
}

// build makes a world for a test that is inside a cage. The services of lanes begin with
// the endpoint of the lane's own number.
func build(t *testing.T, o lab.WorldOptions) *lab.World {
	t.Helper()
	o.Dir = filepath.Join(os.Getenv("SHUNT_LAB_DIR"), fmt.Sprintf("%p", t))
	if err := os.Mkdir(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var w *lab.World
	o.LaneCommand = func(name string) []string {
		i := 0
		_, _ = fmt.Sscanf(name, "egress%d", &i)
		return []string{"test-lane", fmt.Sprintf("vpn%d", i), w.Profile(w.Endpoints()[i-1])}
	}
	w, err := lab.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return w
}

// plain routes user i through lane i+1, by hand.
func plain(t *testing.T, w *lab.World, lanes int) {
	t.Helper()
	sh(t, w, `nft 'add table inet t; add chain inet t post { type nat hook postrouting priority 100; }; add rule inet t post oifname "vpn*" masquerade'`)
	for i := range lanes {
		l := w.Lanes[i]
		if _, err := w.StartLane(t.Context(), l.Name); err != nil {
			t.Fatal(err)
		}
		sh(t, w, fmt.Sprintf(`
ip route add default dev %[1]s table %[2]d; ip rule add from %[3]s lookup %[2]d
ip -6 route add default dev %[1]s table %[2]d; ip -6 rule add from %[4]s lookup %[2]d`, l.Interface, l.Table, lab.User4(i), lab.User6(i)))
	}
}

func sh(t *testing.T, w *lab.World, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Env = w.Environ()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Router.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out.String())
	}
	return out.String()
}

// pings sends pings through a lane's interface and returns how many came back.
func pings(t *testing.T, w *lab.World, iface string, n, size int) int {
	t.Helper()
	got, _, err := traffic.Ping(t.Context(), w.Router, traffic.Pings{To: addr(lab.Service4a), Interface: iface, Count: n, Gap: 2 * time.Millisecond, Size: size})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestUsersGoThroughTheEndpointOfTheirLane(t *testing.T) {
	if !isInside(t) {
		return
	}
	const rtt = 20 * time.Millisecond
	w := build(t, lab.WorldOptions{IPv6: true, RTT: rtt, RTTStep: 5 * time.Millisecond, Keys: 2})
	t.Logf("world up in %s", w.Took)
	plain(t, w, 3)
	before, err := w.Uplink()
	if err != nil {
		t.Fatal(err)
	}
	capture, err := w.Capture()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if pem, err := os.ReadFile(w.CA); err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatal("ca:", err)
	}
	for i, l := range w.Lanes[:3] {
		e := w.Endpoints()[i]
		t.Run(l.Name+" carries its endpoint", func(t *testing.T) {
			if got, err := w.Carrying(l.Name); err != nil || got != e {
				t.Fatalf("carries %+v, %v; want %s", got, err, e.Name)
			}
		})
		t.Run(l.Name+" pings", func(t *testing.T) {
			got, least, err := traffic.Ping(t.Context(), w.Router, traffic.Pings{To: addr(lab.Service4a), Interface: l.Interface})
			if err != nil || got != 5 {
				t.Fatalf("%d of 5 pings, %v", got, err)
			}
			if want := rtt + time.Duration(i)*5*time.Millisecond; least < want || least > want+time.Second {
				t.Errorf("round trip %s, want %s", least, want)
			}
		})
		for family, targets := range map[string][2]string{"IPv4": {lab.Service4a, lab.Service4b}, "IPv6": {lab.Service6a, lab.Service6b}} {
			exit := e.Exit4
			if family == "IPv6" {
				exit = e.Exit6
			}
			t.Run(l.Name+" "+family, func(t *testing.T) { everyKind(t, w, l.Name, targets, exit, roots) })
		}
		if c := e.Counts(); c.In < 20 || c.Out < 20 || c.Handshakes != 1 {
			t.Errorf("%s counted %+v", e.Name, c)
		}
	}
	after, err := w.Uplink()
	if err != nil {
		t.Fatal(err)
	}
	if d := after.Sub(before); d.Tunnel < 100 || d.Clear+d.Users+d.Marked+d.Errors+d.Checks != 0 {
		t.Errorf("uplink counted %+v: want tunnel packets only", d)
	}
	if l := capture.Stop(); len(l) != 0 {
		t.Errorf("captured in clear: %v", l)
	}
}

// everyKind sends UDP, TCP and TLS as a user and compares the exit that the far side saw.
func everyKind(t *testing.T, w *lab.World, lane string, targets [2]string, exit netip.Addr, roots *x509.CertPool) {
	for _, target := range targets {
		to := netip.AddrPortFrom(addr(target), 0)
		u, err := w.UDP(t.Context(), lane, traffic.Options{To: to, Every: 2 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := u.WaitVia(within(t, 20*time.Second), time.Time{}, exit); err != nil {
			t.Errorf("%v: %+v", err, u.Result().Exits())
		}
		r := u.Stop(time.Second)
		if r.Lost() != 0 || r.Reordered+r.Duplicates != 0 || len(r.Exits()) != 1 {
			t.Errorf("flow: %d of %d lost, exits %v", r.Lost(), r.Sent(), r.Exits())
		}
	}
	c, err := w.TCP(t.Context(), lane, traffic.Options{To: netip.AddrPortFrom(addr(targets[0]), 0), Every: 2 * time.Millisecond, Size: 3000})
	if err != nil {
		t.Fatal(err)
	}
	poll(t, "ten echoes", func() bool { return c.Result().Echoed >= 10 })
	if r := c.Stop(); r.Err != nil || r.Reset || !r.Ended.IsZero() {
		t.Errorf("tcp: %+v", r)
	}
	o := traffic.Options{From: from(w, lane, addr(targets[1])), To: netip.AddrPortFrom(addr(targets[1]), 0)}
	for _, name := range []string{lab.ServerName, lab.OtherServerName} {
		if _, err := traffic.Handshake(within(t, 20*time.Second), w.LAN, o, &tls.Config{RootCAs: roots, ServerName: name}); err != nil {
			t.Errorf("tls as %s: %v", name, err)
		}
	}
	if got, err := traffic.Exit(within(t, 20*time.Second), w.LAN, o); err != nil || got != exit {
		t.Errorf("HTTP saw %s, %v; want %s", got, err, exit)
	}
}

func from(w *lab.World, lane string, to netip.Addr) netip.Addr {
	for i, l := range w.Lanes {
		if l.Name == lane && to.Is6() {
			return lab.User6(i)
		} else if l.Name == lane {
			return lab.User4(i)
		}
	}
	return netip.Addr{}
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if ok() {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Fatalf("%s: not within 20 s", what)
}

func TestFaults(t *testing.T) {
	if !isInside(t) {
		return
	}
	w := build(t, lab.WorldOptions{Dead: 3})
	plain(t, w, 1)
	e := w.Endpoints()[0]
	set := func(t *testing.T, f server.Fault) {
		t.Helper()
		if err := e.SetFault(f); err != nil {
			t.Fatal(err)
		}
	}
	// point makes the lane carry the endpoint anew, so that a handshake begins at once.
	point := func(t *testing.T, e *server.Endpoint) {
		t.Helper()
		for p := range strings.FieldsSeq(sh(t, w, "wg show vpn1 peers")) {
			sh(t, w, "wg set vpn1 peer "+p+" remove")
		}
		sh(t, w, "wg set vpn1 peer "+e.PublicKey()+" endpoint "+e.HostPort()+" allowed-ips 0.0.0.0/0,::/0 persistent-keepalive 25")
	}
	// bulk is whether 100 kB of TCP come through.
	bulk := func(t *testing.T) bool {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b, err := w.Bulk(ctx, "egress1", traffic.Options{})
		if err != nil {
			return false
		}
		for ctx.Err() == nil && b.Bytes() < 100_000 {
			<-time.After(5 * time.Millisecond)
		}
		return b.Stop() >= 100_000
	}
	for _, c := range []struct {
		name           string
		fault          server.Fault
		small, large   [2]int // of 100 pings, the least and the most answers
		carries, hears bool   // bulk TCP; a new handshake
	}{
		{"alive", server.Alive(), [2]int{100, 100}, [2]int{100, 100}, true, true},
		{"silent", server.Silent(), [2]int{0, 0}, [2]int{0, 0}, false, false},
		{"lossy", server.Lossy(0.3), [2]int{50, 90}, [2]int{50, 90}, true, true},
		{"choke", server.Choke(), [2]int{100, 100}, [2]int{1, 1}, false, true}, // 4096 bytes: one ping and its answer
		{"small mtu", server.MTU(1300), [2]int{100, 100}, [2]int{0, 0}, false, true},
		{"no data", server.NoData(), [2]int{100, 100}, [2]int{100, 100}, false, true},
		{"flapping", server.Flap(0.1), [2]int{0, 10}, [2]int{0, 10}, false, true}, // there and back: one in a hundred
		{"alive again", server.Alive(), [2]int{100, 100}, [2]int{100, 100}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			set(t, server.Alive())
			poll(t, "a session to begin with", func() bool { // an initiation right after another is dropped
				point(t, e)
				return pings(t, w, "vpn1", 1, 0) == 1
			})
			set(t, c.fault)
			if got := pings(t, w, "vpn1", 100, 0); got < c.small[0] || got > c.small[1] {
				t.Errorf("%d of 100 small pings, want %d to %d", got, c.small[0], c.small[1])
			}
			if got := pings(t, w, "vpn1", 100, 1400); got < c.large[0] || got > c.large[1] {
				t.Errorf("%d of 100 large pings, want %d to %d", got, c.large[0], c.large[1])
			}
			if got := bulk(t); got != c.carries {
				t.Errorf("bulk data came through: %t, want %t", got, c.carries)
			}
			was := e.Counts().Handshakes
			point(t, e)
			if c.hears {
				poll(t, "a handshake", func() bool {
					d, err := w.Device("vpn1")
					return err == nil && len(d.Peers) == 1 && !d.Peers[0].LastHandshakeTime.IsZero()
				})
			} else if e.Counts().Handshakes != was {
				t.Error("a silent endpoint let a handshake in")
			}
		})
	}
	t.Run("a fault can be seen", func(t *testing.T) {
		set(t, server.FlapWindow(0.5, time.Second))
		if s := e.Fault().String(); s != "flap(0.5,1s)" || e.Alive() {
			t.Errorf("fault %q, alive %t", s, e.Alive())
		}
		set(t, server.Alive())
	})
	t.Run("a dead endpoint says nothing, and lives when told to", func(t *testing.T) {
		d := deadOne(w)
		if d == nil || len(w.Live()) != 9 {
			t.Fatalf("%d live endpoints, want 9", len(w.Live()))
		}
		point(t, d)
		if got := pings(t, w, "vpn1", 5, 0); got != 0 {
			t.Errorf("%d pings through a dead endpoint", got)
		}
		if err := d.SetFault(server.Alive()); err != nil {
			t.Fatal(err)
		}
		point(t, d)
		if got := pings(t, w, "vpn1", 5, 0); got != 5 {
			t.Errorf("%d of 5 pings through the endpoint that lives now", got)
		}
	})
}

func deadOne(w *lab.World) *server.Endpoint {
	for _, e := range w.Endpoints() {
		if !e.Alive() {
			return e
		}
	}
	return nil
}
