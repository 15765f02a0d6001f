package lane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/conn"
	wgdevice "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// afresh waits until servers listen to a new initiation: they drop a second one of the
// same key within 50 ms.
func afresh(t testing.TB) {
	t.Helper()
	begin := time.Now()
	eventually(t, "time passes", time.Second, func() bool { return time.Since(begin) > 70*time.Millisecond })
}

func TestSettleRemovesStraysAndDoesNothingTwice(t *testing.T) {
	needWorld(t)
	a := newServer(t, "server-a", 0)
	pa := a.profileFor(t, "client", "10.66.0.2").write(t)
	for _, tc := range []struct{ name, mess string }{
		{"stray peer without prefixes", "wg set vpn1 peer STRAY persistent-keepalive 25"},
		{"stray peer that took the prefixes", "wg set vpn1 peer STRAY allowed-ips 0.0.0.0/0,::/0"},
		{"stray addresses", "ip addr add 10.9.9.9/32 dev vpn1; ip addr add fd99::1/64 dev vpn1"},
		{"wanted address gone", "ip addr add 10.9.9.9/32 dev vpn1; ip addr del 10.66.0.2/32 dev vpn1"},
		{"other private key", "echo OTHER | wg set vpn1 private-key /dev/stdin"},
		{"no peer at all", "wg set vpn1 peer SERVER remove"},
		{"other keepalive and prefixes", "wg set vpn1 peer SERVER persistent-keepalive 3 allowed-ips 10.0.0.0/8"},
		{"other endpoint", "wg set vpn1 peer SERVER endpoint 127.0.0.1:9"},
		{"link down", "ip link set vpn1 down"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := serveLane(t, "vpn1", pa, 0)
			d := testDevices(t)
			want := listing(t, "vpn1")
			sh(t, "%s", strings.NewReplacer("STRAY", testKey("stray").Public().Base64(), "SERVER", a.key.Public().Base64(),
				"OTHER", testKey("other").Base64()).Replace(tc.mess))
			if got := listing(t, "vpn1"); got == want {
				t.Fatal("the test made no mess")
			}
			afresh(t)
			if err := d.Settle(t.Context(), l, pa, false); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, listing(t, "vpn1")); diff != "" {
				t.Errorf("settled (-want +got):\n%s", diff)
			}
			settledAlready(t, d, l, pa)
			sh(t, "ip route replace default dev vpn1 table 202") // a link that went down lost it
			startFlow(t, 2*time.Millisecond).flows(a)
		})
	}
}

func TestSettleRenewsTheHandshake(t *testing.T) {
	needWorld(t)
	a := newServer(t, "server-a", 0)
	for _, keepalive := range []int{25, 0} {
		t.Run(fmt.Sprintf("keepalive %d", keepalive), func(t *testing.T) {
			c := a.profileFor(t, "client", "10.66.0.2")
			c.keepalive = keepalive
			pa := c.write(t)
			l := serveLane(t, "vpn1", pa, 0)
			d := testDevices(t)
			var first time.Time
			handshake := func() bool {
				v, err := d.Observe(t.Context(), l)
				p, ok := v.Active()
				if err != nil || !ok || p.Handshake.IsZero() || p.Handshake.Equal(first) {
					return false
				}
				first = p.Handshake
				return true
			}
			eventually(t, "first handshake without traffic", 2*time.Second, handshake)
			want := listing(t, "vpn1")
			afresh(t)
			if err := d.Settle(t.Context(), l, pa, true); err != nil {
				t.Fatal(err)
			}
			eventually(t, "second handshake without traffic", 2*time.Second, handshake)
			if diff := cmp.Diff(want, listing(t, "vpn1")); diff != "" {
				t.Errorf("renewed (-want +got):\n%s", diff)
			}
			settledAlready(t, d, l, pa)
		})
	}
}

func TestObserve(t *testing.T) {
	needWorld(t)
	a := newServer(t, "server-a", 0)
	ca := a.profileFor(t, "client", "10.66.0.2")
	d := testDevices(t)
	l := egress.Lane{Name: "x", Interface: "vpn7", Driver: egress.DriverWireGuard}
	v, err := d.Observe(t.Context(), l)
	if err != nil || v.Present || v.Error == "" {
		t.Errorf("missing interface: %+v, %v", v, err)
	}
	l.Interface = "far"
	v, err = d.Observe(t.Context(), l)
	if err != nil || !v.Present || !v.Up || !strings.Contains(v.Error, "no wireguard device") {
		t.Errorf("interface of another kind: %+v, %v", v, err)
	}
	l = serveLane(t, "vpn1", ca.write(t), 0)
	f := startFlow(t, 2*time.Millisecond)
	f.flows(a)
	begin := time.Now()
	const n = 100
	for range n {
		if v, err = d.Observe(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("observe: %s", time.Since(begin)/n)
	p, ok := v.Active()
	if !ok || time.Since(p.Handshake) > time.Minute || p.Rx == 0 || p.Tx == 0 {
		t.Errorf("active peer %+v", p)
	}
	want := egress.DeviceView{Present: true, Up: true, Userspace: true, MTU: DefaultMTU, Peers: []egress.PeerView{{
		Pair:     profile.PairOf([]byte("salt"), a.key.Public(), testKey("client").Public()),
		Endpoint: p.Endpoint, Handshake: p.Handshake, Rx: p.Rx, Tx: p.Tx, Allowed: 2,
	}}}
	if diff := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", v)); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
	if p.Endpoint.String() != ca.endpoint {
		t.Errorf("endpoint %s, want %s", p.Endpoint, ca.endpoint)
	}
}

// helper starts a copy of the test binary in a role.
func helper(t testing.TB, role string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), envRole+"="+role), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// serveHelper runs a lane service in a process of its own.
func serveHelper(t testing.TB, name, conf string) *exec.Cmd {
	t.Helper()
	cmd := helper(t, "serve", "LANE="+name, "CONF="+conf)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if b := make([]byte, 6); func() bool { _, err := io.ReadFull(out, b); return err != nil }() {
		t.Fatal("the service ended before it was ready")
	}
	return cmd
}

// awaitStopped waits until no thread of a process that got SIGSTOP runs any more.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(stats) == 0 {
			t.Fatalf("threads of %d: %v, %v", pid, stats, err)
		}
		running := slices.ContainsFunc(stats, func(path string) bool {
			b, err := os.ReadFile(path)
			return err == nil && !strings.Contains(string(b), ") T ")
		})
		switch {
		case !running:
			return
		case time.Now().After(deadline):
			t.Fatal("the service does not stop")
		}
		runtime.Gosched()
	}
}

func TestADeviceThatDoesNotAnswer(t *testing.T) {
	needWorld(t)
	a := newServer(t, "server-a", 0)
	pa := a.profileFor(t, "client", "10.66.0.2").write(t)
	cmd := serveHelper(t, "vpn1", pa)
	d := New(Options{Now: time.Now, CallTimeout: 100 * time.Millisecond})
	l := egress.Lane{Name: "x", Interface: "vpn1", Driver: egress.DriverWireGuard}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitStopped(t, cmd.Process.Pid)
	begin := time.Now()
	v, err := d.Observe(t.Context(), l)
	if err != nil || !v.Present || !strings.Contains(v.Error, "does not answer") {
		t.Errorf("stopped device: %+v, %v", v, err)
	}
	if _, err := d.Swap(t.Context(), l, pa, pa); err == nil {
		t.Error("swap on a stopped device passed")
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("took %s", took)
	}
	// Killed, it leaves its socket behind and takes the interface with it.
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if v, err = d.Observe(t.Context(), l); err != nil || v.Present || v.Error == "" {
		t.Errorf("killed device: %+v, %v", v, err)
	}
	if err := d.Settle(t.Context(), l, pa, false); !errors.Is(err, ErrNoDevice) {
		t.Errorf("settle without a device: %v", err)
	}
}

// faulty is a lane whose device refuses one line in the middle of a set, as a newer or
// older daemon could: what stands before it is done by then.
func faulty(t *testing.T, name string) (armed *atomic.Int32) {
	t.Helper()
	td, err := tun.CreateTUN(name, DefaultMTU)
	if err != nil {
		t.Fatal(err)
	}
	dev := wgdevice.NewDevice(td, conn.NewDefaultBind(), wgdevice.NewLogger(wgdevice.LogLevelSilent, ""))
	t.Cleanup(dev.Close)
	sh(t, "ip link set %s up; mkdir -p %s; rm -f %s/%s.sock", name, socketDir, socketDir, name)
	if err := dev.Up(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socketDir+"/"+name+".sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	armed = new(atomic.Int32)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				req := make([]byte, 1<<16)
				n, _ := c.Read(req)
				req = req[:n]
				if bytes.HasPrefix(req, []byte("set=1\n")) && armed.Add(-1) == 0 {
					i := bytes.LastIndex(req, []byte("endpoint="))
					if i < 0 {
						i = bytes.LastIndex(req, []byte("replace_allowed_ips="))
					}
					req = append(req[:i:i], append([]byte("bogus=1\n"), req[i:]...)...)
				}
				near, far := net.Pipe()
				go dev.IpcHandle(far)
				go func() { _, _ = near.Write(req) }()
				_, _ = io.Copy(c, near)
			}()
		}
	}()
	return armed
}

func TestAHalfDoneSetIsPutBack(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	pa := a.profileFor(t, "client", "10.66.0.2").write(t)
	for _, tc := range []struct {
		name string
		at   int32 // which set of the swap breaks
		to   confOf
	}{
		{"adding the new peer", 1, b.profileFor(t, "client", "10.66.0.2")},
		{"moving the traffic", 2, b.profileFor(t, "client", "10.66.0.2")},
		{"replacing in place", 1, b.profileFor(t, "other", "10.66.0.9")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			armed := faulty(t, "vpn1")
			sh(t, "ip route replace default dev vpn1 table 202")
			l := egress.Lane{Name: "x", Interface: "vpn1", Driver: egress.DriverWireGuard}
			d := testDevices(t)
			if err := d.Settle(t.Context(), l, pa, false); err != nil {
				t.Fatal(err)
			}
			f := startFlow(t, 2*time.Millisecond)
			f.flows(a)
			was := listing(t, "vpn1")
			armed.Store(tc.at)
			_, err := d.Swap(t.Context(), l, pa, tc.to.write(t))
			if err == nil || !strings.Contains(err.Error(), "put back") {
				t.Fatalf("error %v", err)
			}
			t.Log(err)
			if diff := cmp.Diff(was, listing(t, "vpn1")); diff != "" {
				t.Errorf("lane (-want +got):\n%s", diff)
			}
			f.flows(a)
		})
	}
}
