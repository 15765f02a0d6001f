package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a command that lasts, with a pipe to each of its standard streams: one that
// answers questions for as long as the caller lives. It has a process group of its own and
// holds no descriptor of ours (a lock, say). What it left in its group ends with it.
//
// Its pipes take deadlines. When the process ends, what it wrote can still be read: Stdout
// and Stderr then end by io.EOF, or by os.ErrDeadlineExceeded where somebody outside the
// group still holds the other end.
type Process struct {
	Stdin  *os.File
	Stdout *os.File
	Stderr *os.File

	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has been waited for
	err   error         // how it ended; before ended is closed nobody reads it

	mu     sync.Mutex
	reaped bool // its number may be a stranger's now
}

// Start starts argv without a shell. Of the options only Env and Dir matter: the caller
// ends the process by Stop, and bounds each exchange by the pipes' deadlines.
func Start(argv []string, opts Options) (*Process, error) {
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("command: no name")
	}
	env := environment(opts.Env)
	path, err := lookPath(argv[0], env)
	if err != nil {
		return nil, fmt.Errorf("command %s: %w", argv[0], err)
	}
	p := &Process{name: argv[0], ended: make(chan struct{})}
	theirs, err := p.pipes()
	if err != nil {
		return nil, fmt.Errorf("command %s: %w", argv[0], err)
	}
	p.cmd = &exec.Cmd{
		Path: path, Args: argv, Env: env, Dir: opts.Dir,
		Stdin: theirs[0], Stdout: theirs[1], Stderr: theirs[2],
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) // as in start
	err = p.cmd.Start()
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		p.closePipes()
		return nil, fmt.Errorf("command %s: %w", argv[0], err)
	}
	go p.wait()
	return p, nil
}

// pipes makes our ends and returns the process's.
func (p *Process) pipes() (theirs [3]*os.File, err error) {
	fail := func(err error) ([3]*os.File, error) {
		for _, f := range theirs {
			_ = f.Close() // a nil file refuses politely
		}
		p.closePipes()
		return theirs, err
	}
	if theirs[0], p.Stdin, err = os.Pipe(); err != nil {
		return fail(err)
	}
	if p.Stdout, theirs[1], err = os.Pipe(); err != nil {
		return fail(err)
	}
	if p.Stderr, theirs[2], err = os.Pipe(); err != nil {
		return fail(err)
	}
	return theirs, nil
}

func (p *Process) closePipes() {
	for _, f := range []io.Closer{p.Stdin, p.Stdout, p.Stderr} {
		_ = f.Close()
	}
}

// wait reaps the process once it has ended, and before that ends the rest of its group.
func (p *Process) wait() {
	_ = await(context.Background(), p.cmd.Process.Pid, 0)
	p.mu.Lock()
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	err := p.cmd.Wait()
	p.reaped = true
	p.mu.Unlock()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = &ExitError{Name: p.name, Code: exitCode(p.cmd)}
	}
	p.err = err
	end := time.Now().Add(pipeDelay) //nolint:forbidigo // bounds the wait for a stranger's pipe
	_ = p.Stdout.SetReadDeadline(end)
	_ = p.Stderr.SetReadDeadline(end)
	close(p.ended)
}

// Ended is closed once the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err says how the process ended: nil = with status 0, or not yet; else an *ExitError.
func (p *Process) Err() error {
	select {
	case <-p.ended:
		return p.err
	default:
		return nil
	}
}

// Stop closes Stdin and gives the process the grace to end by itself, sends TERM and gives
// it as long again, then KILL, each to the whole group. It closes the other pipes and
// returns after twice the grace and a little, at the latest. Stopping twice does no harm.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Stdin.Close()
	for _, sig := range []unix.Signal{0, unix.SIGTERM, unix.SIGKILL} {
		if sig != 0 {
			p.signal(sig)
		}
		if sig == unix.SIGKILL {
			grace = pipeDelay // for the kernel; a process in an uninterruptible sleep is left behind
		}
		if p.within(grace) {
			break
		}
	}
	p.closePipes()
}

// Kill ends the whole group at once and closes the pipes.
func (p *Process) Kill() {
	p.signal(unix.SIGKILL)
	p.within(pipeDelay)
	p.closePipes()
}

func (p *Process) within(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		return false
	}
}

func (p *Process) signal(sig unix.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = unix.Kill(-p.cmd.Process.Pid, sig)
	}
}
