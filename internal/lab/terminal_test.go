package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
)

// terminalShell is a program on a terminal that opens the lab's shell, and says afterwards
// whether it has the terminal back.
func terminalShell(temp string) int {
	code, err := lab.Shell(context.Background(), lab.Request{
		Temp: temp, Env: []string{"PATH=" + os.Getenv("PATH"), "TERM=dumb"}, Flags: map[string]string{"start": "false"},
		Stdin: os.Stdin, Stdout: os.Stdout, Story: os.Stderr,
	})
	group, gerr := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	fmt.Fprintf(os.Stdout, "the end: code %d, %v, foreground %t, %v\n", code, err, group == unix.Getpgrp(), gerr)
	return 0
}

// terminalRun is a program on a terminal that plays a scenario until Ctrl-C.
func terminalRun(temp string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	_, err := lab.Run(ctx, scenarios(), lab.Request{Scenario: "wait", Temp: temp, Env: []string{"PATH=" + os.Getenv("PATH")}, Story: os.Stderr})
	fmt.Fprintf(os.Stdout, "the end: %v\n", err)
	return 0
}

// screen collects what a terminal shows.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestCtrlCInTheShellEndsACommandAndNotTheWorld(t *testing.T) {
	needRoot(t)
	temp := t.TempDir()
	cmd, seen, typed := onTerminal(t, "test-shell", temp)
	typed("", "12 endpoints] ")
	if strings.Contains(seen.String(), "job control") {
		t.Error("the shell has no job control")
	}
	typed("echo begun $((40+2)); sleep 1000\n", "begun 42")
	typed("\x03", "^C")
	typed("echo alive $((40+3)) $(ls /sys/class/net | tr '\\n' ' ')\n", "alive 43 lan0 lo wan0")
	typed("exit 5\n", "the end: code 5, <nil>, foreground true, <nil>")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestCtrlCEndsAScenarioInOrder(t *testing.T) {
	needRoot(t)
	temp := t.TempDir()
	cmd, _, typed := onTerminal(t, "test-run", temp)
	typed("", "waiting")
	typed("\x03", "asked to end")
	typed("", "the end: ")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(temp); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// onTerminal starts this program on a terminal of its own. typed types something and waits
// until the terminal shows what is expected.
func onTerminal(t *testing.T, args ...string) (cmd *exec.Cmd, seen *screen, typed func(what, until string)) {
	t.Helper()
	master, slave := pty(t)
	cmd = exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen = &screen{}
	go func() { _, _ = io.Copy(seen, master) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("terminal:\n%s", seen.String())
		}
	})
	return cmd, seen, func(what, until string) {
		t.Helper()
		if _, err := io.WriteString(master, what); err != nil {
			t.Fatal(err)
		}
		poll(t, until, func() bool { return strings.Contains(seen.String(), until) })
	}
}

// pty opens a pseudo terminal.
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	m, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals: ", err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if err := unix.IoctlSetPointerInt(int(m.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(m.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals: ", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return m, s
}
