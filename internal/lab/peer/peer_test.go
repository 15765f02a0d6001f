package peer

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// prepared is a peer without a world that is up: enough to write its configuration.
func prepared(t *testing.T, s Setting) *Peer {
	t.Helper()
	w := &edgeworld.World{Dir: t.TempDir()}
	for i, name := range []string{"a", "b"} {
		w.Backends = append(w.Backends, &edgeworld.Backend{Name: name, Addr4: netip.AddrFrom4([4]byte{10, 20, 0, byte(11 + i)})})
	}
	return &Peer{Setting: s, w: w, dir: w.Dir}
}

// TestConfigurationsAreAccepted has each program read its configuration where it is
// installed.
func TestConfigurationsAreAccepted(t *testing.T) {
	for _, s := range Settings() {
		t.Run(s.Name, func(t *testing.T) {
			p := prepared(t, s)
			var more map[string]any
			if s.Program == "keepalived" {
				more = map[string]any{"Name": "a", "Role": "MASTER", "Priority": 150, "Process": "backend-a", "NC": "/bin/true"}
			}
			path, err := p.write(s.file(), more)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(text); strings.Contains(got, "no value") || strings.Contains(got, "{{") || !strings.Contains(got, "10.20.0.1") {
				t.Errorf("not all is filled in:\n%s", got)
			}
			check := map[string][]string{
				"haproxy": {"haproxy", "-c", "-f", path}, "keepalived": {"keepalived", "-t", "-f", path}, "nc": {"bash", "-n", path},
				// It opens its sockets when it checks: the address is nobody's there.
				"nginx": {"unshare", "--net", "sh", "-c", `echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind && exec nginx -t -c "$0"`, path},
			}[s.Program]
			if _, err := New(s, Options{World: p.w}); errors.Is(err, ErrMissing) {
				t.Skip(err)
			}
			if s.Program == "nginx" && os.Getuid() != 0 {
				t.Skip("needs root: makes a namespace")
			}
			out, err := exec.CommandContext(t.Context(), check[0], check[1:]...).CombinedOutput()
			if s.Program == "keepalived" { // it misses the interface, which is the world's
				if strings.Contains(string(out), "keyword") || !strings.Contains(string(out), "back0") {
					t.Errorf("%s", out)
				}
			} else if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestTheTunedProxiesAreTheBestThereAre keeps what makes them so: a refused connection is
// their hint, and goes on to the other server.
func TestTheTunedProxiesAreTheBestThereAre(t *testing.T) {
	want := map[string][]string{
		"haproxy-tuned": {"option redispatch 1", "observe layer4 error-limit 1 on-error mark-down", "inter 100ms", "timeout connect 100ms"},
		"nginx-tuned":   {"max_fails=1", "proxy_connect_timeout 100ms", "proxy_next_upstream on"},
	}
	seen := 0
	for _, s := range Settings() {
		text, err := s.Text()
		if err != nil || text == "" {
			t.Errorf("%s: %q, %v", s.Name, text, err)
		}
		for _, w := range want[s.Name] {
			seen++
			if !strings.Contains(text, w) {
				t.Errorf("%s has no %q", s.Name, w)
			}
		}
	}
	if seen != 7 {
		t.Errorf("%d of 7 words looked for", seen)
	}
}

func TestWhatIsNotInstalledIsNamed(t *testing.T) {
	_, err := New(Setting{Name: "x", Program: "no-such-program"}, Options{})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("%v", err)
	}
}

// TestAPeerOutsideHasOurPriority runs what begins its command.
func TestAPeerOutsideHasOurPriority(t *testing.T) {
	nice := func(argv ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
		if err != nil {
			t.Fatalf("%v: %v", argv, err)
		}
		return strings.TrimSpace(string(out))
	}
	// From a lower priority up to ours only root may.
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	argv := append(asNice(), "nice")
	if want, got := nice("nice"), nice(append([]string{"nice", "-n", "7"}, argv...)...); got != want {
		t.Errorf("nice value %s, want %s", got, want)
	}
}
