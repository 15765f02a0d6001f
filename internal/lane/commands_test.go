package lane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
)

const installedConf = "/etc/wireguard/vpn1.conf"

// script puts an executable under /usr/local/sbin of the tests' world.
func script(t *testing.T, name, body string) string {
	t.Helper()
	path := "/usr/local/sbin/" + name
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	return path
}

// userspace is what wg-quick starts where the kernel has no WireGuard: our lane service.
func userspace(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec1("ip link del vpn1")
		eventually(t, "the service ends", 3*time.Second, func() bool {
			_, err := os.Stat(socketDir + "/vpn1.sock")
			return errors.Is(err, fs.ErrNotExist)
		})
		_ = os.Remove(installedConf)
	})
	return script(t, "userspace-wireguard", fmt.Sprintf(`%s=serve LANE="$1" setsid %s >/dev/null 2>&1 </dev/null &
for i in $(seq 500); do wg show "$1" >/dev/null 2>&1 && ip link show "$1" | grep -q UP && exit 0; sleep 0.01; done
exit 1
`, envRole, exe))
}

func wgQuickLane(t *testing.T) egress.Lane {
	t.Helper()
	impl := "WG_QUICK_USERSPACE_IMPLEMENTATION=" + userspace(t)
	return egress.Lane{Name: "one", Interface: "vpn1", Driver: egress.DriverCommands, Commands: egress.Commands{
		Template: TemplateWGQuick, Up: []string{"env", impl, "wg-quick", "up", "{interface}"},
	}}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWGQuickTemplate(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	ca := a.profileFor(t, "client", "10.66.0.2")
	ca.extra = "PostUp = touch /run/provider-was-here\nDNS = 10.77.0.53\n"
	pa := ca.write(t)
	l, d := wgQuickLane(t), testDevices(t)
	// The operator's own lines, in a file for the lane before it ever came up.
	own := "[Interface]\nTable = 202\nPostUp = touch /run/operator-was-here\nListenPort = 45678\nFwMark = 0x99\n"
	if err := os.WriteFile(installedConf, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Settle(t.Context(), l, pa, false); err != nil {
		t.Fatal(err)
	}
	settledAlready(t, d, l, pa)
	f := startFlow(t, 2*time.Millisecond)
	f.flows(a)
	if _, err := os.Stat("/run/operator-was-here"); err != nil {
		t.Errorf("the operator's hook did not run: %v", err)
	}
	if _, err := os.Stat("/run/provider-was-here"); err == nil {
		t.Error("the provider's hook ran as root")
	}
	if got := sh(t, "wg show vpn1 fwmark; wg show vpn1 listen-port"); got != "0x99\n45678" {
		t.Errorf("mark and port %q", got)
	}
	seen, clear := watch(t, "vpn1"), inClear(t)

	cb := b.profileFor(t, "client", "10.66.0.2")
	cc := b.profileFor(t, "other", "10.66.0.9")
	cc.mtu = 1300
	ce := cc // the same server by another entry
	ce.endpoint = forward(t, b)
	prev := pa
	for _, step := range []struct {
		name string
		conf confOf
		srv  *server
		link string
	}{
		{"same identity", cb, b, "addr 10.66.0.2/32"},
		{"new key and address", cc, b, "addr 10.66.0.9/32"},
		{"same server, other endpoint", ce, b, "addr 10.66.0.9/32"},
		{"back", ca, a, "addr 10.66.0.2/32"},
	} {
		path := step.conf.write(t)
		afresh(t)
		r, err := d.Swap(t.Context(), l, prev, path)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		t.Logf("%s: handshake %s, took %s", step.name, r.Handshake, r.Took)
		f.flows(step.srv)
		settledAlready(t, d, l, path)
		if got := linkListing(t, "vpn1"); r.Method != methodCommands || !strings.HasSuffix(got, step.link) {
			t.Errorf("%s: method %s, link %s", step.name, r.Method, got)
		}
		if got := sh(t, "wg show vpn1 endpoints"); !strings.HasSuffix(got, step.conf.endpoint) {
			t.Errorf("%s: endpoint %s, want %s", step.name, got, step.conf.endpoint)
		}
		if got := sh(t, "wg show vpn1 fwmark; wg show vpn1 listen-port"); got != "0x99\n45678" {
			t.Errorf("%s: mark and port %q", step.name, got)
		}
		prev = path
	}
	if got := seen(); len(got) != 0 {
		t.Errorf("events: %v", got)
	}
	if got := inClear(t); got != clear {
		t.Errorf("in clear %s, before %s", got, clear)
	}
	conf := readFile(t, installedConf)
	for _, line := range []string{"Table = 202", "PostUp = touch /run/operator-was-here", "FwMark = 0x99"} {
		if !strings.Contains(conf, line) {
			t.Errorf("installed file lost %q", line)
		}
	}
	if strings.Contains(conf, "provider") || strings.Contains(conf, "DNS") {
		t.Error("installed file has the provider's hook or resolver")
	}
	noTraces(t, d)
}

// noTraces fails when a file with keys, other than the saved one, is left.
func noTraces(t *testing.T, d *Devices) {
	t.Helper()
	left, err := filepath.Glob(d.o.StateDir + "/lanes/*")
	if err != nil {
		t.Fatal(err)
	}
	if temp, _ := filepath.Glob("/etc/wireguard/.*"); len(temp) > 0 {
		t.Errorf("left: %v", temp)
	}
	for _, p := range left {
		fi, err := os.Stat(p)
		if err != nil || fi.Mode().Perm() != 0o600 || !strings.HasSuffix(p, ".installed") {
			t.Errorf("left: %s %v %v", p, fi.Mode(), err)
		}
	}
}

func TestWGQuickSwapToDeadEndpointIsUndone(t *testing.T) {
	needWorld(t)
	a := newServer(t, "server-a", 0)
	pa := a.profileFor(t, "client", "10.66.0.2").write(t)
	l := wgQuickLane(t)
	d := New(Options{Now: time.Now, StateDir: t.TempDir(), HandshakeBound: 700 * time.Millisecond})
	if err := d.Settle(t.Context(), l, pa, false); err != nil {
		t.Fatal(err)
	}
	sh(t, "ip route replace default dev vpn1 table 202")
	f := startFlow(t, 2*time.Millisecond)
	f.flows(a)
	for name, c := range map[string]confOf{
		"same identity":       {client: "client", addresses: "10.66.0.2/32", server: testKey("nobody"), endpoint: deadEndpoint(t), keepalive: 25},
		"new key and address": {client: "other", addresses: "10.66.0.9/32", server: testKey("nobody"), endpoint: deadEndpoint(t)},
	} {
		was, file := listing(t, "vpn1"), readFile(t, installedConf)
		_, err := d.Swap(t.Context(), l, pa, c.write(t))
		if err == nil || !strings.Contains(err.Error(), "put back") {
			t.Fatalf("%s: error %v", name, err)
		}
		if diff := cmp.Diff(was, listing(t, "vpn1")); diff != "" {
			t.Errorf("%s: lane (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(file, readFile(t, installedConf)); diff != "" {
			t.Errorf("%s: installed file (-want +got):\n%s", name, diff)
		}
		f.flows(a)
		settledAlready(t, d, l, pa)
	}
	noTraces(t, d)
}

// The stanza's commands as ifupdown would run them; ifupdown itself is not on every
// machine that tests.
func TestIfupdownTemplateWithScriptedIfup(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	pa, pb := a.profileFor(t, "client", "10.66.0.2").write(t), b.profileFor(t, "client", "10.66.0.2").write(t)
	impl := userspace(t)
	script(t, "ifup", "set -e\necho ifup $1 >>/run/if.log\n"+impl+` "$1"
wg setconf "$1" "/etc/wireguard/$1.conf"
ip addr add 10.66.0.2/32 dev "$1"
ip link set "$1" up
ip route replace default dev "$1" table 202
`)
	script(t, "ifdown", "echo ifdown $1 >>/run/if.log\nip link del \"$1\"\n")
	l := egress.Lane{Name: "one", Interface: "vpn1", Driver: egress.DriverCommands, Commands: egress.Commands{Template: TemplateIfupdown}}
	d := testDevices(t)
	if err := d.Settle(t.Context(), l, pa, false); err != nil {
		t.Fatal(err)
	}
	f := startFlow(t, 2*time.Millisecond)
	f.flows(a)
	for i, to := range []string{pb, pa} {
		afresh(t)
		if _, err := d.Swap(t.Context(), l, "", to); err != nil {
			t.Fatal(err)
		}
		f.flows([]*server{b, a}[i])
		settledAlready(t, d, l, to)
	}
	if got := readFile(t, "/run/if.log"); got != "ifup vpn1\n" {
		t.Errorf("commands run: %q, want one ifup and no ifdown of a running lane", got)
	}
	want := fmt.Sprintf("[Interface]\nPrivateKey = %s\n\n[Peer]\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = 0.0.0.0/0, ::/0\nPersistentKeepalive = 25\n",
		testKey("client").Base64(), a.key.Public().Base64(), a.endpoint())
	if diff := cmp.Diff(want, readFile(t, installedConf)); diff != "" {
		t.Errorf("installed file (-want +got):\n%s", diff)
	}
}

func TestOwnCommands(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	pa := a.profileFor(t, "client", "10.66.0.2").write(t)
	same, other := b.profileFor(t, "client", "10.66.0.2").write(t), b.profileFor(t, "other", "10.66.0.9").write(t)
	impl := userspace(t)
	log := "/run/own.log"
	script(t, "lane-up", "set -e\necho up $* >>"+log+"\n"+impl+` "$1"
wg-quick strip "$2" | wg setconf "$1" /dev/stdin
ip addr add $(sed -n 's/^Address = //p' "$2") dev "$1"
ip link set "$1" up
ip route replace default dev "$1" table 202
`)
	script(t, "lane-down", "echo down $* >>"+log+"\nip link del \"$1\"\n")
	script(t, "lane-apply", "echo apply $1 $3 $(stat -c %a \"$2\") >>"+log+"\n[ ! -e /run/refuse ] || exit 3\nwg setconf \"$1\" \"$2\"\n")
	installed := "/run/own/vpn1.conf"
	if err := os.MkdirAll("/run/own", 0o700); err != nil {
		t.Fatal(err)
	}
	l := egress.Lane{Name: "one", Interface: "vpn1", Driver: egress.DriverCommands, Commands: egress.Commands{
		Installed: installed, Up: []string{"lane-up", "{interface}", "{installed}"},
		Down: []string{"lane-down", "{interface}"}, Apply: []string{"lane-apply", "{interface}", "{stripped}", "{lane}"},
	}}
	d := testDevices(t)
	did := func() string {
		defer os.Remove(log)
		data, _ := os.ReadFile(log)
		return strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", "; ")
	}
	if err := d.Settle(t.Context(), l, pa, false); err != nil {
		t.Fatal(err)
	}
	f := startFlow(t, 2*time.Millisecond)
	f.flows(a)
	clear := inClear(t)
	expect := func(want string) {
		t.Helper()
		if got := did(); got != want {
			t.Errorf("commands run: %q, want %q", got, want)
		}
	}
	expect("up vpn1 " + installed)

	if _, err := d.Swap(t.Context(), l, pa, same); err != nil {
		t.Fatal(err)
	}
	f.flows(b)
	expect("apply vpn1 one 600")
	if _, err := d.Swap(t.Context(), l, same, other); err != nil {
		t.Fatal(err)
	}
	f.flows(b)
	expect("down vpn1; up vpn1 " + installed)

	afresh(t)
	if err := os.WriteFile("/run/refuse", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	was, file := listing(t, "vpn1"), readFile(t, installed)
	to := a.profileFor(t, "other", "10.66.0.9").write(t)
	_, err := d.Swap(t.Context(), l, other, to)
	if err == nil || !strings.Contains(err.Error(), "lane-apply: exit status 3; the lane was put back") {
		t.Errorf("error %v, want that of the command", err)
	}
	keyless(t, err, testKey("client"), testKey("other"), a.key, b.key)
	expect("apply vpn1 one 600; apply vpn1 one 600")
	if diff := cmp.Diff(was+file, listing(t, "vpn1")+readFile(t, installed)); diff != "" {
		t.Errorf("not undone (-want +got):\n%s", diff)
	}
	_ = os.Remove("/run/refuse")

	dead := confOf{client: "third", addresses: "10.66.0.5/32", server: testKey("nobody"), endpoint: deadEndpoint(t)}
	quick := New(Options{Now: time.Now, StateDir: d.o.StateDir, HandshakeBound: 500 * time.Millisecond})
	if _, err = quick.Swap(t.Context(), l, other, dead.write(t)); err == nil || !strings.Contains(err.Error(), "put back") {
		t.Errorf("error %v", err)
	}
	f.flows(b)
	expect("down vpn1; up vpn1 " + installed + "; down vpn1; up vpn1 " + installed)
	if got := readFile(t, installed); got != file {
		t.Errorf("installed file not put back:\n%s", got)
	}
	if got := inClear(t); got != clear {
		t.Errorf("in clear %s, before %s", got, clear)
	}
	noTraces(t, d)
}

func TestACommandThatHangsIsEndedAndUndone(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	pa, pb := a.profileFor(t, "client", "10.66.0.2").write(t), b.profileFor(t, "client", "10.66.0.2").write(t)
	l := serveLane(t, "vpn1", pa, 0)
	l.Driver = egress.DriverCommands
	l.Commands = egress.Commands{Apply: []string{"sleep", "60"}, Timeout: 100 * time.Millisecond}
	was := listing(t, "vpn1")
	begin := time.Now()
	_, err := testDevices(t).Swap(t.Context(), l, pa, pb)
	if err == nil || !strings.Contains(err.Error(), "stopped after") {
		t.Errorf("error %v", err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("took %s", took)
	}
	if diff := cmp.Diff(was, listing(t, "vpn1")); diff != "" {
		t.Errorf("lane (-want +got):\n%s", diff)
	}
}

func TestCommandsThatMakeNoInterface(t *testing.T) {
	needWorld(t)
	a := newServer(t, "server-a", 0)
	pa := a.profileFor(t, "client", "10.66.0.2").write(t)
	l := egress.Lane{Name: "one", Interface: "vpn1", Driver: egress.DriverCommands, Commands: egress.Commands{
		Installed: "/run/nothing.conf", Up: []string{"true"}, Down: []string{"true"},
	}}
	d := testDevices(t)
	if err := d.Settle(t.Context(), l, pa, false); !errors.Is(err, ErrNoDevice) {
		t.Errorf("settle: %v", err)
	}
	_ = os.Remove(l.Commands.Installed)
	if _, err := d.Swap(t.Context(), l, "", pa); !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "put back") {
		t.Errorf("swap: %v", err)
	}
	if _, err := os.Stat(l.Commands.Installed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("installed file left after the undo: %v", err)
	}
}

func TestADamagedInstalledFileIsNotOverwritten(t *testing.T) {
	needWorld(t)
	a, b := newServer(t, "server-a", 0), newServer(t, "server-b", 0)
	pa, pb := a.profileFor(t, "client", "10.66.0.2").write(t), b.profileFor(t, "client", "10.66.0.2").write(t)
	l := serveLane(t, "vpn1", pa, 0)
	l.Driver, l.Commands = egress.DriverCommands, egress.Commands{Template: TemplateWGQuick}
	const damaged = "[Interface]\nPrivateKey = oops\nPostUp = my-own-hook\n"
	if err := os.WriteFile(installedConf, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(installedConf) })
	_, err := testDevices(t).Swap(t.Context(), l, pa, pb)
	if err == nil || !strings.Contains(err.Error(), installedConf+":2") {
		t.Errorf("error %v, want file and line", err)
	}
	if got := readFile(t, installedConf); got != damaged {
		t.Errorf("file is now %q", got)
	}
}
