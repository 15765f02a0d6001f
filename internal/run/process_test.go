package run

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// begin starts a shell script as a process that the test ends.
func begin(t *testing.T, script string, env ...string) *Process {
	t.Helper()
	p, err := Start(sh(script), Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func ended(t *testing.T, p *Process) {
	t.Helper()
	poll(t, "the process to end", func() bool {
		select {
		case <-p.Ended():
			return true
		default:
			return false
		}
	})
}

func TestProcessAnswersAgainAndAgain(t *testing.T) {
	p := begin(t, `while read -r x; do echo "got $x"; echo "err $x" >&2; done`)
	out, errs := bufio.NewReader(p.Stdout), bufio.NewReader(p.Stderr)
	for _, word := range []string{"one", "two", "three"} {
		if _, err := io.WriteString(p.Stdin, word+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := out.ReadString('\n'); err != nil || got != "got "+word+"\n" {
			t.Errorf("stdout %q, %v", got, err)
		}
		if got, err := errs.ReadString('\n'); err != nil || got != "err "+word+"\n" {
			t.Errorf("stderr %q, %v", got, err)
		}
	}
	if err := p.Err(); err != nil {
		t.Errorf("still alive, yet %v", err)
	}
	p.Stop(2 * time.Second)
	ended(t, p)
	if err := p.Err(); err != nil {
		t.Errorf("at the end of its input it ended with %v", err)
	}
	p.Stop(time.Second) // once more does no harm
	p.Kill()
}

func TestProcessThatFails(t *testing.T) {
	p := begin(t, `echo last words >&2; exit 7`)
	ended(t, p)
	var exit *ExitError
	if !errors.As(p.Err(), &exit) || exit.Code != 7 {
		t.Errorf("error %v, want an *ExitError with code 7", p.Err())
	}
	if words, err := io.ReadAll(p.Stderr); err != nil || string(words) != "last words\n" {
		t.Errorf("stderr %q, %v", words, err)
	}
	if _, err := Start([]string{"no-such-command"}, Options{}); err == nil || !strings.Contains(err.Error(), "no-such-command") {
		t.Errorf("a command that does not exist: %v", err)
	}
	if _, err := Start(nil, Options{}); err == nil {
		t.Error("no command, no error")
	}
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	scripts := map[string]string{
		"a polite tree":                  `sleep 100 & echo $! >"$F"; wait`,
		"a deaf tree":                    `trap '' TERM; sleep 100 & echo $! >"$F"; while :; do wait; done`,
		"a deaf child of a polite one":   `(trap '' TERM; while :; do sleep 0.05; done) & echo $! >"$F"; wait`,
		"a stopped child":                `sleep 100 & echo $! >"$F"; kill -STOP $!; wait`,
		"one that writes and never ends": `sleep 100 & echo $! >"$F"; while :; do echo x; done`,
	}
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			p := begin(t, script, "F="+file)
			poll(t, "the tree to stand", func() bool { b, _ := os.ReadFile(file); return len(b) > 1 })
			begin := time.Now()
			p.Stop(100 * time.Millisecond)
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("stopping took %v", took)
			}
			gone(t, file)
		})
	}
}

func TestChildrenEndWithTheProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	p := begin(t, `sleep 100 & echo $! >"$F"`, "F="+file)
	ended(t, p)
	gone(t, file)
}

// One that left the group and holds the pipe keeps nobody waiting.
func TestAStrangerAtThePipe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	p := begin(t, `setsid sh -c 'echo $$ >"$F"; exec sleep 5' & while ! [ -s "$F" ]; do :; done; echo mine`, "F="+file)
	begin := time.Now()
	out, err := io.ReadAll(p.Stdout)
	if string(out) != "mine\n" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %q, %v", out, err)
	}
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("reading took %v", took)
	}
}

func TestProcessHoldsNoLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.lock")
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR, 0o600) // without close-on-exec, as a careless parent
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	p := begin(t, `echo up; exec sleep 100`)
	if got, err := bufio.NewReader(p.Stdout).ReadString('\n'); err != nil || got != "up\n" {
		t.Fatal(got, err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	again, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(again) }()
	if err := unix.Flock(again, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
}

func TestPipesTakeDeadlines(t *testing.T) {
	p := begin(t, `exec sleep 100`)
	if err := p.Stdin.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin.Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writing to one that does not read: %v", err)
	}
	if err := p.Stdout.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdout.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading from one that says nothing: %v", err)
	}
}
