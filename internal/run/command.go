package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Defaults of Options.
const (
	DefaultTimeout   = 30 * time.Second
	DefaultMaxOutput = 64 << 10 // bytes
	DefaultGrace     = 2 * time.Second
)

// pipeDelay bounds the wait for output after the command itself has ended: a process that
// it left behind may hold the pipe for hours.
const pipeDelay = 250 * time.Millisecond

// Options of a command. The zero value is useful.
type Options struct {
	Env       []string      // NAME=value, added to PATH and LANG and stronger than they; nothing is inherited
	Dir       string        // working folder; "" = ours
	Stdin     io.Reader     // nil = /dev/null
	Timeout   time.Duration // of the whole command; 0 = DefaultTimeout
	Grace     time.Duration // between TERM and KILL; 0 = DefaultGrace
	MaxOutput int           // bytes kept of each stream; 0 = DefaultMaxOutput
}

// Result is what a command did.
type Result struct {
	Code      int           // exit status; 128+n when signal n ended it, -1 when it did not start
	Output    []byte        // stdout, then stderr; at most MaxOutput bytes of each
	Stdout    []byte        // stdout alone
	Truncated bool          // more was written than was kept
	Took      time.Duration // wall time
	TimedOut  bool          // ended by us because its time, or the context's, was up
}

// ExitError says that a command ran and failed.
type ExitError struct {
	Name string // argv[0]
	Code int    // as Result.Code
	Last string // last line of stderr, else of stdout; "" = it wrote none
}

func (e *ExitError) Error() string {
	s := fmt.Sprintf("command %s: exit status %d", e.Name, e.Code)
	if e.Last != "" {
		s += ": " + e.Last
	}
	return s
}

// Command runs argv without a shell, in a process group of its own, and waits for it.
//
// When its time or the context ends, the whole group gets TERM and then KILL; the error
// then wraps context.DeadlineExceeded or context.Canceled. A status other than 0 is an
// *ExitError; Result is filled in every case. A process that the command left in the
// background lives on and is not waited for, but it holds no descriptor of ours (a lock,
// say); its further output is lost.
func Command(ctx context.Context, argv []string, opts Options) (Result, error) {
	res := Result{Code: -1}
	if len(argv) == 0 || argv[0] == "" {
		return res, errors.New("command: no name")
	}
	opts = opts.withDefaults()
	if err := ctx.Err(); err != nil {
		return res, fmt.Errorf("command %s: %w", argv[0], err)
	}
	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()

	env := environment(opts.Env)
	path, err := lookPath(argv[0], env)
	if err != nil {
		return res, fmt.Errorf("command %s: %w", argv[0], err)
	}
	stdout, stderr := &capture{limit: opts.MaxOutput}, &capture{limit: opts.MaxOutput}
	cmd := &exec.Cmd{
		Path: path, Args: argv, Env: env, Dir: opts.Dir,
		Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
		WaitDelay:   pipeDelay,
	}
	begin := time.Now() //nolint:forbidigo // measures a duration
	if err := start(cmd, opts.Stdin); err != nil {
		return res, fmt.Errorf("command %s: %w", argv[0], err)
	}
	cause := await(ctx, cmd.Process.Pid, opts.Grace)
	err = cmd.Wait()
	res.Took = time.Since(begin) //nolint:forbidigo // measures a duration
	res.keep(stdout, stderr)
	res.Code = exitCode(cmd)
	return res, verdict(argv[0], &res, cause, err, cmd.ProcessState != nil)
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.MaxOutput <= 0 {
		o.MaxOutput = DefaultMaxOutput
	}
	return o
}

// start begins the command with every descriptor of ours beyond the standard three marked
// close-on-exec: also one that we inherited from a careless parent.
func start(cmd *exec.Cmd, stdin io.Reader) error {
	var pipe io.WriteCloser
	if stdin != nil {
		var err error
		if pipe, err = cmd.StdinPipe(); err != nil {
			return err
		}
	}
	// Before Linux 5.11 there is no such flag; what Go opens is close-on-exec anyway.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := cmd.Start(); err != nil {
		return err
	}
	if pipe != nil {
		// Not a job of exec's own copier: Wait would wait for a reader that blocks.
		go func() {
			_, _ = io.Copy(pipe, stdin)
			_ = pipe.Close()
		}()
	}
	return nil
}

// await returns once the process has ended, nil when by itself, else the context's error.
// The process is left unreaped: while it is, no stranger can own its group's number.
func await(ctx context.Context, pid int, grace time.Duration) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	_ = unix.Kill(-pid, unix.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
	<-ended
	return ctx.Err()
}

func (r *Result) keep(stdout, stderr *capture) {
	out, cutOut := stdout.result()
	errs, cutErr := stderr.result()
	r.Stdout = out
	r.Output = append(append(r.Output, out...), errs...)
	r.Truncated = cutOut || cutErr
}

func exitCode(cmd *exec.Cmd) int {
	if cmd.ProcessState == nil {
		return -1
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

func verdict(name string, res *Result, cause, err error, waited bool) error {
	switch {
	case cause != nil:
		res.TimedOut = errors.Is(cause, context.DeadlineExceeded)
		if res.TimedOut {
			return fmt.Errorf("command %s: stopped after %s: %w", name, res.Took.Round(time.Millisecond), cause)
		}
		return fmt.Errorf("command %s: stopped: %w", name, cause)
	case !waited:
		return fmt.Errorf("command %s: %w", name, err)
	case res.Code != 0:
		return &ExitError{Name: name, Code: res.Code, Last: lastLine(res.Output[len(res.Stdout):], res.Stdout)}
	default:
		return nil // exec.ErrWaitDelay: someone in the background still holds the pipe
	}
}

func lastLine(streams ...[]byte) string {
	for _, out := range streams {
		s := strings.TrimSpace(string(out))
		if i := strings.LastIndexByte(s, '\n'); i >= 0 {
			s = strings.TrimSpace(s[i+1:])
		}
		if len(s) > 200 {
			s = s[:200] + "…"
		}
		if s != "" {
			return s
		}
	}
	return ""
}
