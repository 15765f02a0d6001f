package knock

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// haproxy runs the real one before a server, with the PROXY protocol required, and returns
// where it listens and what it logs.
func haproxy(t *testing.T, mode string, backend netip.AddrPort) (netip.AddrPort, <-chan string) {
	t.Helper()
	path, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not installed")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // HAProxy takes it over: no port is guessed
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	conf := filepath.Join(t.TempDir(), "haproxy.cfg")
	text := fmt.Sprintf(`global
  log stdout format raw local0 info
defaults
  mode %s
  log global
  option %slog
  option dontlog-normal
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend front
  bind fd@3 accept-proxy
  default_backend back
backend back
  server a %s
`, mode, mode, backend)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-db", "-f", conf)
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return addr, lines
}

// A real proxy that wants the PROXY protocol logs no error of ours, and one for each probe
// that forgets the header.
func TestHAProxyLogsNoError(t *testing.T) {
	web, webAddr := server(t, "http")
	_ = web
	_, craftAddr := server(t, "minecraft")
	tests := map[string]struct {
		mode    string
		backend netip.AddrPort
		probe   edge.Probe
	}{
		"tcp":         {"tcp", craftAddr, edge.Probe{Type: edge.ProbeTCP}},
		"status_ping": {"tcp", craftAddr, edge.Probe{Type: edge.ProbeStatusPing}},
		"http":        {"http", webAddr, edge.Probe{Type: edge.ProbeHTTP}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			addr, lines := haproxy(t, tt.mode, tt.backend)
			p := New(time.Now)
			// The listening socket is inherited: the first probe waits until HAProxy is there.
			tt.probe.ProxyV2 = true
			for range 10 {
				if a := p.Probe(t.Context(), target(addr, tt.probe)); a.Outcome != edge.Good {
					t.Fatalf("answer %+v", a)
				}
			}
			tt.probe.ProxyV2 = false
			if a := p.Probe(t.Context(), target(addr, tt.probe)); a.Outcome == edge.Miss {
				t.Errorf("answer %+v", a)
			}
			limit := time.After(10 * time.Second)
			for {
				select {
				case line := <-lines:
					if strings.Contains(line, "PROXY") { // the probe without a header; all others came before
						return
					}
					t.Errorf("HAProxy logs %q", line)
				case <-limit:
					t.Fatal("HAProxy logs no error of the probe without a header")
				}
			}
		})
	}
}
