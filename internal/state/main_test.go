package state

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A test that must be killed, or must be someone else, runs this binary again: the variable
// names what it then does instead of testing.
const helperVar = "STATE_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVar); name != "" {
		helper, ok := helpers()[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "no helper", name)
			os.Exit(64)
		}
		if err := helper(os.Getenv("DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is a running helper.
type child struct {
	*exec.Cmd
	out   *bufio.Reader
	in    io.WriteCloser
	errs  *bytes.Buffer
	ended bool
}

func startHelper(t *testing.T, name, dir string, env []string, as *syscall.Credential) *child {
	t.Helper()
	// The test binary lies in a folder that another user can't enter; this name needs none.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append([]string{helperVar + "=" + name, "DIR=" + dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	cmd.Dir = "/"
	c := &child{Cmd: cmd, errs: &bytes.Buffer{}}
	cmd.Stderr = c.errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if c.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.kill() })
	return c
}

// line reads one line of the helper's output; ok is false at its end.
func (c *child) line() (string, bool) {
	s, err := c.out.ReadString('\n')
	return strings.TrimSuffix(s, "\n"), err == nil
}

// rest reads what is left and waits; killed says whether SIGKILL ended it.
func (c *child) rest(t *testing.T) (lines []string, killed bool) {
	t.Helper()
	for {
		l, ok := c.line()
		if !ok {
			break
		}
		lines = append(lines, l)
	}
	err := c.Wait()
	c.ended = true
	if err == nil {
		return lines, false
	}
	if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
		return lines, true
	}
	t.Fatalf("helper: %v: %s", err, c.errs)
	return nil, false
}

func (c *child) kill() {
	if c.ended {
		return
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	c.ended = true
}

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o640))
}

// at is a moment of whole seconds.
func at(sec int64) time.Time { return time.Unix(sec, 0).UTC() }

// wantDamage checks that err names file and line, says want and helps.
func wantDamage(t *testing.T, err error, file string, line int, want string) {
	t.Helper()
	var e *DamageError
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want a *DamageError", err)
	}
	if e.File != file || e.Line != line || !strings.Contains(e.Msg, want) {
		t.Errorf("damage %q in %s:%d, want %q in %s:%d", e.Msg, e.File, e.Line, want, file, line)
	}
	if e.Hint == "" {
		t.Errorf("damage %q has no hint", e.Msg)
	}
	prefix := file + ": "
	if line > 0 {
		prefix = fmt.Sprintf("%s:%d: ", file, line)
	}
	if !strings.HasPrefix(e.Error(), prefix) {
		t.Errorf("error %q does not begin with %q", e, prefix)
	}
}

// noStrays checks that no temporary file is left in the folder.
func noStrays(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && p != dir && strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left behind: %s", p)
		}
		return err
	}))
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "state")
	if _, err := OpenRead(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading where nothing is: %v", err)
	}
	open(t, path)
	open(t, path) // again
	var got []string
	must(t, filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		must(t, err)
		fi, err := e.Info()
		must(t, err)
		got = append(got, strings.TrimPrefix(p, path)+" "+fi.Mode().String())
		return nil
	}))
	want := []string{" drwxr-x---", "/fail-counter drwxr-x---", "/last-good drwxr-x---", "/locks drwxr-x---"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("folders (-want +got):\n%s", diff)
	}

	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	if _, err := Open(file); err == nil {
		t.Error("a file was opened as a folder")
	}
	if _, err := OpenRead(file); err == nil {
		t.Error("a file was opened as a folder for reading")
	}
}

func TestOpenReadWritesNothing(t *testing.T) {
	path := t.TempDir()
	d, err := OpenRead(path)
	must(t, err)
	ctx := t.Context()
	_, errLock := d.Lock(ctx, "state", "status", 0)
	_, errCount := d.AddCount(ctx, "2026-01-02", 1)
	_, errSeq := d.NextSeq(ctx)
	for what, err := range map[string]error{
		"lock": errLock, "count": errCount, "sequence": errSeq,
		"quarantine": d.AppendQuarantine(ctx, Quarantined{Endpoint: "192.0.2.1:1", FailedAt: at(1)}),
		"kv":         d.UpdateKV(ctx, func(kv *KV) { kv.Set("a", "b") }),
		"json":       d.UpdateJSON(ctx, "egress.json", &struct{}{}, func() error { return nil }),
	} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: %v, want ErrReadOnly", what, err)
		}
	}
	rows, err := d.Quarantine()
	kv, errKV := d.KV()
	n, errN := d.Count("2026-01-02")
	if len(rows) != 0 || err != nil || len(kv.Pairs()) != 0 || errKV != nil || n != 0 || errN != nil || d.Holder("state") != "" {
		t.Error("an empty folder is not empty")
	}
	entries, err := os.ReadDir(path)
	must(t, err)
	if len(entries) != 0 {
		t.Errorf("written: %v", entries)
	}
}
