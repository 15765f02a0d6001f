package lane

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// service runs Serve and hands over its end.
func service(t *testing.T, o ServeOptions) (end chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	end = make(chan error, 1)
	ready, done := make(chan struct{}), make(chan struct{})
	o.Now, o.Ready = time.Now, func() { close(ready) }
	go func() {
		defer close(done)
		end <- Serve(ctx, o)
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-ready:
	case <-done: // the caller looks why
	case <-time.After(5 * time.Second):
		t.Fatal("neither ready nor ended")
	}
	return end, cancel
}

func ended(t *testing.T, end chan error) error {
	t.Helper()
	select {
	case err := <-end:
		return err
	case <-time.After(5 * time.Second):
		t.Fatal("the service did not end")
		return nil
	}
}

func TestServiceEndsWithItsContextAndLeavesNothing(t *testing.T) {
	needWorld(t)
	a := newServer(t, "server-a", 0)
	c := a.profileFor(t, "client", "10.66.0.2")
	c.mtu, c.addresses = 1380, "10.66.0.2/32, fd00::2/128"
	end, stop := service(t, ServeOptions{Interface: "vpn1", ConfigPath: c.write(t), Fwmark: 0x99})
	if got, want := linkListing(t, "vpn1"), "up mtu 1380 addr 10.66.0.2/32 fd00::2/128"; got != want {
		t.Errorf("link %q, want %q", got, want)
	}
	if got := sh(t, "wg show vpn1 fwmark"); got != "0x99" {
		t.Errorf("fwmark %s", got)
	}
	fi, err := os.Stat(socketDir + "/vpn1.sock")
	if err != nil || fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("socket %v, %v: want it for root alone", fi.Mode(), err)
	}
	stop()
	if err := ended(t, end); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(socketDir + "/vpn1.sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket left: %v", err)
	}
	if _, err := findLink("vpn1"); !errors.Is(err, ErrNoDevice) {
		t.Errorf("interface left: %v", err)
	}
}

func TestServiceRefusesWhatIsTaken(t *testing.T) {
	needWorld(t)
	service(t, ServeOptions{Interface: "vpn1"})
	for name, want := range map[string]string{"vpn1": "a live process serves it already", "far": "belongs to another program"} {
		end, _ := service(t, ServeOptions{Interface: name})
		if err := ended(t, end); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if got := linkListing(t, "vpn1"); got != "up mtu 1420 addr " {
		t.Errorf("the first one's interface: %s", got)
	}
}

func TestServiceTakesOverTheSocketOfAKilledOne(t *testing.T) {
	needWorld(t)
	cmd := serveHelper(t, "vpn1", "")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := os.Stat(socketDir + "/vpn1.sock"); err != nil {
		t.Fatalf("a killed service should leave its socket: %v", err)
	}
	a := newServer(t, "server-a", 0)
	l := serveLane(t, "vpn1", a.profileFor(t, "client", "10.66.0.2").write(t), 0)
	startFlow(t, 5*time.Millisecond).flows(a)
	if v, err := testDevices(t).Observe(t.Context(), l); err != nil || v.Error != "" {
		t.Errorf("view %+v, %v", v, err)
	}
}

func TestServiceEndsWhenItsDeviceDies(t *testing.T) {
	needWorld(t)
	for name, tc := range map[string]struct{ kill, want string }{
		"interface deleted": {"ip link del vpn1", "device died"},
		"socket removed":    {"rm /var/run/wireguard/vpn1.sock", "control socket"},
	} {
		t.Run(name, func(t *testing.T) {
			end, _ := service(t, ServeOptions{Interface: "vpn1"})
			sh(t, "%s", tc.kill)
			if err := ended(t, end); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ended with %v, want %q", err, tc.want)
			}
			if _, err := findLink("vpn1"); !errors.Is(err, ErrNoDevice) {
				t.Errorf("interface left: %v", err)
			}
		})
	}
}

func TestServiceBeginsEmptyWithABrokenProfile(t *testing.T) {
	needWorld(t)
	path := filepath.Join(t.TempDir(), "broken.conf")
	if err := os.WriteFile(path, []byte("[Interface]\nPrivateKey = nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, path + ".missing"} {
		stop := startService(t, ServeOptions{Interface: "vpn1", ConfigPath: p, Now: time.Now, Logf: t.Logf})
		a := newServer(t, "server-a", 0)
		l := egress.Lane{Name: "x", Interface: "vpn1", Driver: egress.DriverWireGuard}
		sh(t, "ip route replace default dev vpn1 table 202")
		if _, err := testDevices(t).Swap(t.Context(), l, p, a.profileFor(t, "client", "10.66.0.2").write(t)); err != nil {
			t.Fatal(err)
		}
		f := startFlow(t, 5*time.Millisecond)
		f.flows(a)
		f.end()
		stop()
	}
}

// What a lane costs: run with -test.bench Memory; RSS of a service process, idle and after
// a second of packets as fast as they go.
func BenchmarkServiceMemory(b *testing.B) {
	needWorld(b)
	a := newServer(b, "server-a", 0)
	path := a.profileFor(b, "client", "10.66.0.2").write(b)
	for b.Loop() {
		cmd := serveHelper(b, "vpn1", path)
		sh(b, "ip route replace default dev vpn1 table 202")
		rss := func() float64 {
			data, err := os.ReadFile("/proc/" + itoa(cmd.Process.Pid) + "/statm")
			if err != nil {
				b.Fatal(err)
			}
			return float64(atoi(strings.Fields(string(data))[1])*os.Getpagesize()) / 1e6
		}
		f := startFlow(b, 20*time.Millisecond)
		f.flows(a)
		b.ReportMetric(rss(), "idle-MB")
		f.end()
		n, peak := flood(b, 5*time.Second, rss)
		b.ReportMetric(float64(n)/5, "packets/s")
		b.ReportMetric(peak, "busy-MB")
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	}
}
