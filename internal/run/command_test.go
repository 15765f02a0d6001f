package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestCommand(t *testing.T) {
	tests := map[string]struct {
		argv []string
		opts Options
		want Result // without Took
		err  string // "" = none
	}{
		"both streams are kept, stdout also alone": {
			argv: sh("echo one; echo two >&2; echo three"),
			want: Result{Output: []byte("one\nthree\ntwo\n"), Stdout: []byte("one\nthree\n")},
		},
		"a status other than 0 is an error with the last line of stderr": {
			argv: sh("echo 'no such slot' >&2; echo 'bye'; exit 7"),
			want: Result{Code: 7, Output: []byte("bye\nno such slot\n"), Stdout: []byte("bye\n")},
			err:  "command /bin/sh: exit status 7: no such slot",
		},
		"a signal is 128 and its number": {
			argv: sh("kill -9 $$"),
			want: Result{Code: 137},
			err:  "command /bin/sh: exit status 137",
		},
		"arguments meet no shell": {
			argv: []string{"echo", "$HOME; rm *"},
			want: Result{Output: []byte("$HOME; rm *\n"), Stdout: []byte("$HOME; rm *\n")},
		},
		"the environment is small": {
			argv: []string{"env"},
			opts: Options{Env: []string{"LANE=vpn2", "LANG=C"}},
			want: Result{
				Output: []byte("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nLANE=vpn2\nLANG=C\n"),
				Stdout: []byte("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nLANE=vpn2\nLANG=C\n"),
			},
		},
		"input arrives": {
			argv: []string{"cat"},
			opts: Options{Stdin: strings.NewReader("state")},
			want: Result{Output: []byte("state"), Stdout: []byte("state")},
		},
		"input that nobody reads is no error": {
			argv: []string{"true"},
			opts: Options{Stdin: strings.NewReader(strings.Repeat("x", 1<<20))},
		},
		"without input stdin is empty": {argv: []string{"cat"}},
		"output beyond the limit is drained and dropped": {
			argv: sh("i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i+1)); done; exit 3"),
			opts: Options{MaxOutput: 11},
			want: Result{Code: 3, Output: []byte("0123456789\n"), Stdout: []byte("0123456789\n"), Truncated: true},
			err:  "command /bin/sh: exit status 3: 0123456789",
		},
		"the folder is where it runs": {
			argv: []string{"pwd"},
			opts: Options{Dir: "/"},
			want: Result{Output: []byte("/\n"), Stdout: []byte("/\n")},
		},
		"a name that PATH lacks": {
			argv: []string{"no-such-command"},
			opts: Options{Env: []string{"PATH=/bin"}},
			want: Result{Code: -1},
			err:  "command no-such-command: executable file not found in $PATH (PATH=/bin)",
		},
		"a path that does not exist": {
			argv: []string{"/no/such"},
			want: Result{Code: -1},
			err:  "command /no/such: fork/exec /no/such: no such file or directory",
		},
		"no name": {want: Result{Code: -1}, err: "command: no name"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SECRET", "must not travel")
			got, err := Command(t.Context(), tt.argv, tt.opts)
			if msg := fmt.Sprint(err); msg != tt.err && (tt.err != "" || err != nil) {
				t.Errorf("error %q, want %q", msg, tt.err)
			}
			if got.Code != -1 && got.Took <= 0 {
				t.Errorf("took %v", got.Took)
			}
			got.Took = 0
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExitErrorCarriesTheCode(t *testing.T) {
	_, err := Command(t.Context(), sh("exit 75"), Options{})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 75 {
		t.Fatalf("error %v, want an *ExitError with code 75", err)
	}
	_, err = Command(t.Context(), []string{"no-such-command"}, Options{})
	if !errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("error %v, want exec.ErrNotFound", err)
	}
}

// gone polls until no live process has the number in file.
func gone(t *testing.T, file string) {
	t.Helper()
	var pid int
	poll(t, "a pid in "+file, func() bool {
		b, _ := os.ReadFile(file)
		var err error
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	})
	poll(t, fmt.Sprintf("process %d to end", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	})
}

func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(5 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline.C:
			t.Fatalf("waited 5 s for %s", what)
		case <-tick.C:
		}
	}
}

func TestTimeoutEndsTheWholeGroup(t *testing.T) {
	tests := map[string]struct {
		script string
		least  time.Duration
	}{
		"a polite tree ends on TERM":         {`sleep 100 & echo $! >"$F"; wait`, 0},
		"a deaf tree ends on KILL":           {`trap '' TERM; sleep 100 & echo $! >"$F"; while :; do wait; done`, 300 * time.Millisecond},
		"a deaf child of a polite parent":    {`(trap '' TERM; while :; do sleep 0.05; done) & echo $! >"$F"; wait`, 0},
		"a stopped child is not waited for":  {`sleep 100 & echo $! >"$F"; kill -STOP $!; wait`, 0},
		"output without end does not matter": {`sleep 100 & echo $! >"$F"; while :; do echo x; done`, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			res, err := Command(ctx, sh(tt.script), Options{
				Env: []string{"F=" + file}, Timeout: 200 * time.Millisecond, Grace: 150 * time.Millisecond,
			})
			if !errors.Is(err, context.DeadlineExceeded) || !res.TimedOut {
				t.Errorf("error %v, timed out %v: want a deadline", err, res.TimedOut)
			}
			if res.Code <= 0 {
				t.Errorf("code %d of a killed command", res.Code)
			}
			if res.Took < tt.least || res.Took > 4*time.Second {
				t.Errorf("took %v, want at least %v and not long after", res.Took, tt.least)
			}
			gone(t, file)
		})
	}
}

func TestCancelledContextEndsTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if b, _ := os.ReadFile(file); bytes.HasSuffix(b, []byte("\n")) {
				return
			}
		}
	}()
	res, err := Command(ctx, sh(`sleep 100 & echo $! >"$F"; wait`), Options{Env: []string{"F=" + file}})
	if !errors.Is(err, context.Canceled) || res.TimedOut {
		t.Errorf("error %v, timed out %v: want a cancelled context", err, res.TimedOut)
	}
	gone(t, file)

	if _, err := Command(ctx, []string{"true"}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("under a dead context: %v", err)
	}
}

func TestBackgroundProcessDoesNotBlock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	res, err := Command(t.Context(), sh(`sleep 100 & echo $! >"$F"; echo started`), Options{
		Env: []string{"F=" + file}, Timeout: 20 * time.Second,
	})
	if err != nil || string(res.Stdout) != "started\n" {
		t.Fatalf("result %+v, %v", res, err)
	}
	if res.Took > 5*time.Second {
		t.Errorf("waited %v for a process in the background", res.Took)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the process in the background was ended: %v", err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func TestInputThatNeverEndsDoesNotBlock(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	res, err := Command(t.Context(), []string{"true"}, Options{Stdin: r, Timeout: 20 * time.Second})
	if err != nil || res.Took > 5*time.Second {
		t.Fatalf("result %+v, %v", res, err)
	}
}

func TestNoDescriptorReachesTheCommand(t *testing.T) {
	// Opened as a careless parent would have: without O_CLOEXEC.
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	res, err := Command(t.Context(), sh(`[ -e /proc/self/fd/$FD ] && echo held; [ -e /proc/self/fd/1 ] && echo looked`),
		Options{Env: []string{"FD=" + strconv.Itoa(fd)}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("looked\n", string(res.Output)); diff != "" {
		t.Errorf("what the command found (-want +got):\n%s", diff)
	}
}
