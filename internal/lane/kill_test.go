package lane

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

func TestSwapKilledAtEachPoint(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	ca := a.profileFor(t, "client", "10.66.0.2")
	ca.addresses = "10.66.0.2/24"
	pa := ca.write(t)
	same := b.profileFor(t, "client", "10.66.0.2")
	same.addresses = ca.addresses
	other := b.profileFor(t, "other", "10.66.0.9")
	other.addresses, other.keepalive = "10.66.0.9/24", 0
	dead := other
	dead.endpoint, dead.server = deadEndpoint(t), testKey("nobody")
	for _, tc := range []struct {
		name string
		to   string
		dead bool
	}{{"make before break", same.write(t), false}, {"in place", other.write(t), false}, {"restore", dead.write(t), true}} {
		t.Run(tc.name, func(t *testing.T) {
			for at, done := 1, false; !done; at++ {
				if at > 30 {
					t.Fatal("a swap with more than 30 points")
				}
				for _, settle := range []struct {
					path string
					srv  *server
				}{{pa, a}, {tc.to, b}} {
					if tc.dead && settle.srv == b {
						continue
					}
					l := serveKilled(t, pa)
					cmd := helper(t, "swap", "LANE=vpn1", "DRIVER=wireguard", "FROM="+pa, "TO="+tc.to, fmt.Sprintf("KILL=%d", at))
					out, err := cmd.Output()
					if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() {
						done = true // it ran to its end: no such point any more
						if (err != nil) != tc.dead {
							t.Fatalf("swap: %v", err)
						}
					}
					afresh(t)
					if err := testDevices(t).Settle(t.Context(), l.lane, settle.path, false); err != nil {
						t.Fatalf("killed at %d %s: settle %s: %v", at, out, settle.srv.name, err)
					}
					f := startFlow(t, 2*time.Millisecond)
					f.flows(settle.srv)
					settledAlready(t, testDevices(t), l.lane, settle.path)
					if got := sh(t, "ip route show table 202"); !strings.Contains(got, "default dev vpn1") {
						t.Errorf("killed at %d %s: routes %q", at, out, got)
					}
					f.end()
					l.stop()
					t.Logf("killed at %d %s-> %s works", at, bytes.ReplaceAll(out, []byte("\n"), []byte(" ")), settle.srv.name)
				}
			}
		})
	}
}

type killed struct {
	lane egress.Lane
	stop func()
}

func serveKilled(t *testing.T, conf string) killed {
	t.Helper()
	stop := startService(t, ServeOptions{Interface: "vpn1", ConfigPath: conf, Now: time.Now, Logf: t.Logf})
	sh(t, "ip route replace default dev vpn1 table 202")
	return killed{egress.Lane{Name: "lane", Interface: "vpn1", Driver: egress.DriverWireGuard}, stop}
}

func TestCommandsKilledAtEachPoint(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	ca := a.profileFor(t, "client", "10.66.0.2")
	ca.addresses = "10.66.0.2/24"
	pa := ca.write(t)
	cb := b.profileFor(t, "other", "10.66.0.9")
	cb.addresses = "10.66.0.9/24"
	pb := cb.write(t)
	dead := cb
	dead.server, dead.endpoint = testKey("nobody"), deadEndpoint(t)
	pd := dead.write(t)
	t.Cleanup(func() { _ = os.Remove(installedConf) })
	for _, tc := range []struct {
		name, to string
		dead     bool
	}{{"swap", pb, false}, {"undo", pd, true}} {
		t.Run(tc.name, func(t *testing.T) {
			for at, done := 1, false; !done; at++ {
				if at > 40 {
					t.Fatal("more than 40 points")
				}
				for _, settle := range []struct {
					path string
					srv  *server
				}{{pa, a}, {tc.to, b}} {
					if tc.dead && settle.srv == b {
						continue
					}
					l := serveKilled(t, pa)
					l.lane.Driver, l.lane.Commands = egress.DriverCommands, egress.Commands{Template: TemplateWGQuick}
					d := testDevices(t)
					if err := d.Settle(t.Context(), l.lane, pa, false); err != nil {
						t.Fatal(err)
					}
					cmd := helper(t, "swap", "LANE=vpn1", "DRIVER=commands", "TEMPLATE=wg-quick", "STATE="+d.o.StateDir,
						"FROM="+pa, "TO="+tc.to, fmt.Sprintf("KILL=%d", at))
					out, err := cmd.Output()
					if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() {
						done = true
						if (err != nil) != tc.dead {
							t.Fatalf("swap: %v", err)
						}
					}
					afresh(t)
					if err := d.Settle(t.Context(), l.lane, settle.path, false); err != nil {
						t.Fatalf("killed at %d %s: settle %s: %v", at, out, settle.srv.name, err)
					}
					f := startFlow(t, 2*time.Millisecond)
					f.flows(settle.srv)
					settledAlready(t, d, l.lane, settle.path)
					noTraces(t, d)
					f.end()
					l.stop()
					t.Logf("killed at %d %s-> %s works", at, bytes.ReplaceAll(out, []byte("\n"), []byte(" ")), settle.srv.name)
				}
			}
		})
	}
}
