package peer

import (
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
// installed. nginx is not asked: it opens its sockets when it checks.
func TestConfigurationsAreAccepted(t *testing.T) {
	for _, s := range Settings() {
		t.Run(s.Name, func(t *testing.T) {
			p := prepared(t, s)
			var path string
			var err error
			var check []string
			switch s.Program {
			case "haproxy":
				path, err = p.write(s.Name+".cfg", nil)
				check = []string{"haproxy", "-c", "-f", path}
			case "keepalived":
				path, err = p.write(s.Name+".conf", map[string]any{"Name": "a", "Role": "MASTER", "Priority": 150, "Process": "backend-a", "NC": "/bin/true"})
				check = []string{"keepalived", "-t", "-f", path}
			case "nginx":
				path, err = p.write(s.Name+".conf", nil)
			default:
				path, err = p.write("loop.sh", nil)
				check = []string{"bash", "-n", path}
			}
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
			if len(check) == 0 {
				return
			}
			if _, err := exec.LookPath(check[0]); err != nil {
				t.Skip(check[0] + " is not installed")
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
