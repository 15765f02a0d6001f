package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// recorded is an input that the egress package's tests plan too.
func recorded(name string) string { return filepath.Join("..", "egress", "testdata", name+".json") }

func TestReplay(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("..", "egress", "testdata", "repair-dead-lane.plan"))
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := play(t, "egress", "repair", "--dry-run", "--input", recorded("repair-dead-lane"))
	if code != 0 || errs != "" {
		t.Errorf("code %d, stderr %q", code, errs)
	}
	if d := cmp.Diff(string(golden), out); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
	if code, _, _ := play(t, "egress", "repair", "--dry-run", "--exit-code", "--input", recorded("repair-dead-lane")); code != exitPending {
		t.Errorf("--exit-code gives %d, want %d", code, exitPending)
	}
	if code, _, _ := play(t, "egress", "repair", "--dry-run", "--exit-code", "--input", recorded("repair-uplink-down")); code != exitHeld {
		t.Errorf("held back gives %d, want %d", code, exitHeld)
	}
	if code, _, errs := play(t, "egress", "repair", "--dry-run", "--input", recorded("rebalance-quarantined")); code != exitUsage || !strings.Contains(errs, "rebalance") {
		t.Errorf("another command's input: code %d, stderr %q", code, errs)
	}
}

// The file holds no plan: what is changed in it changes the outcome.
func TestReplayPlansAnew(t *testing.T) {
	b, err := os.ReadFile(recorded("rebalance-quarantined"))
	if err != nil {
		t.Fatal(err)
	}
	var in egress.Input
	if err := json.Unmarshal(b, &in); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := play(t, "egress", "rebalance", "--dry-run", "--exit-code", "--input", recorded("rebalance-quarantined")); code != exitDone {
		t.Errorf("a quarantined endpoint is offered (code %d)", code)
	}
	in.Quarantine[0].FailedAt = in.Pools[0].Mtime.Add(-time.Minute)
	edited := filepath.Join(t.TempDir(), "edited.json")
	if b, err = json.Marshal(in); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(edited, b, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, _ := play(t, "egress", "rebalance", "--dry-run", "--exit-code", "--input", edited)
	if code != exitPending || !strings.Contains(out, in.Quarantine[0].Endpoint) {
		t.Errorf("with failed_at before the pool's tests the endpoint is not offered (code %d):\n%s", code, out)
	}
}

func TestReplayOfBadFiles(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct{ content, want string }{
		"cut":         {"{\n \"version\": 1,\n", "cut.json:3"},
		"unknown key": {"{\n \"version\": 1,\n \"wat\": 2}", `unknown field "wat"`},
		"wrong type":  {"{\n \"version\": \"one\"}", "wrong type.json:2"},
		"version":     {`{"version": 99, "command": "repair"}`, "version 99"},
		"empty":       {"", "empty.json:1"},
	} {
		path := filepath.Join(dir, name+".json")
		if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := play(t, "egress", "repair", "--dry-run", "--input", path)
		if code != exitConfig || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: code %d, stderr %q, want %q", name, code, errs, tt.want)
		}
	}
	if code, _, errs := play(t, "egress", "repair", "--dry-run", "--input", filepath.Join(dir, "none")); code != exitConfig || errs == "" {
		t.Errorf("missing file: code %d, stderr %q", code, errs)
	}
}

// play runs one command line in this process.
func play(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(args, strings.NewReader(""), &out, &errs, []string{"PATH=" + os.Getenv("PATH")})
	return code, out.String(), errs.String()
}

// sockless is the environment variable that turns this test program into one that dies at
// its first socket.
const sockless = "SHUNT_LAB_SOCKLESS"

// A replay opens no socket of any kind: it works where no network and no right is.
func TestReplayOpensNoSocket(t *testing.T) {
	if args := os.Getenv(sockless); args != "" {
		forbidSockets(t)
		os.Exit(Main(strings.Split(args, " "), os.Stdin, os.Stdout, os.Stderr, os.Environ()))
	}
	run := func(args string) (int, string) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestReplayOpensNoSocket$")
		cmd.Env = append(os.Environ(), sockless+"="+args)
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if code, out := run("egress repair --dry-run --exit-code --input " + recorded("repair-dead-lane")); code != exitPending {
		t.Errorf("replay without sockets: code %d: %s", code, out)
	}
	config := filepath.Join(t.TempDir(), "shunt.yaml")
	if err := os.WriteFile(config, []byte("state_dir: "+t.TempDir()+"\negress:\n  lanes:\n    - {name: a, interface: vpn1, table: 201, mark: 0x201, dscp: [cs5]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := run("egress status --config " + config); code != -1 {
		t.Errorf("the trap does not work: a status, which asks the kernel, ended with %d: %s", code, out)
	}
}

// forbidSockets kills this process at its next socket(2).
func forbidSockets(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x80000000}, // SECCOMP_RET_KILL_PROCESS
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000}, // SECCOMP_RET_ALLOW
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	const setModeFilter, everyThread = 1, 1
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, everyThread, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		t.Fatal(errno)
	}
}
