package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

// Machine is a namespace in which the product runs.
type Machine struct {
	NS        *cage.Namespace
	Dir       string   // where commands run
	Logs      string   // folder of what background processes write
	Env       []string // the whole environment of commands
	Binary    string   // the product
	BinaryArg []string // put before each command's arguments
	procs     procs
}

// Call is one run of the product on a machine.
type Call struct {
	Args    []string
	Env     []string      // added to the usual environment
	Stdin   string        //
	Timeout time.Duration // kill -9 after it; 0 = one minute
	Kill    time.Duration // kill -9 after it, on purpose; 0 = never
}

// Result is what a call gave.
type Result struct {
	Args           []string
	Stdout, Stderr []byte
	Code           int // exit code; 128 + n where signal n ended it
	Began          time.Time
	Took           time.Duration
	PeakRSS        int64 // bytes; looked at every 5 ms
}

// Err is nil where the exit code is 0, else an error with what was said on stderr.
func (r Result) Err() error {
	if r.Code == 0 {
		return nil
	}
	return fmt.Errorf("shunt %s: exit code %d: %s", strings.Join(r.Args, " "), r.Code, bytes.TrimSpace(r.Stderr))
}

// JSON decodes stdout.
func (r Result) JSON(v any) error {
	if err := json.Unmarshal(r.Stdout, v); err != nil {
		return fmt.Errorf("shunt %s: stdout is no JSON: %w: %.200q (stderr %.200q)", strings.Join(r.Args, " "), err, r.Stdout, r.Stderr)
	}
	return nil
}

// Shunt runs the product and waits for it. The exit code is no error: see Result.Err.
func (m *Machine) Shunt(ctx context.Context, args ...string) Result {
	return m.Run(ctx, Call{Args: args})
}

// Run is Shunt with more to say. A product that cannot even be started gives code 127.
func (m *Machine) Run(ctx context.Context, c Call) Result {
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	if c.Kill > 0 {
		c.Timeout = min(c.Timeout, c.Kill)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	cmd := m.command(ctx, c.Args)
	cmd.Env = append(cmd.Env, c.Env...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.Stdin), &out, &errs
	r := Result{Args: c.Args, Began: time.Now()}
	if err := m.NS.Start(cmd); err != nil {
		r.Code, r.Stderr = 127, []byte(err.Error())
		return r
	}
	peak := watchPeak(cmd.Process.Pid)
	_ = cmd.Wait() // the state says all
	r.Took, r.PeakRSS = time.Since(r.Began), peak()
	r.Stdout, r.Stderr, r.Code = out.Bytes(), errs.Bytes(), exitCode(cmd.ProcessState)
	return r
}

func exitCode(s *os.ProcessState) int {
	if st, ok := s.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return 128 + int(st.Signal())
	}
	return s.ExitCode()
}

// watchPeak reads a process's high-water mark until the returned function is called. The
// kernel's own figure (ru_maxrss) begins with that of the process that forked it.
func watchPeak(pid int) func() int64 {
	var most int64
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(5 * time.Millisecond)
		defer t.Stop()
		for {
			most = max(most, highWater(pid))
			select {
			case <-end:
				return
			case <-t.C:
			}
		}
	}()
	return func() int64 {
		close(end)
		<-done
		return most
	}
}

// highWater is VmHWM of a process in bytes; 0 = it is gone.
func highWater(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(b), "VmHWM:")
	if !ok {
		return 0
	}
	var kib int64
	_, _ = fmt.Sscan(rest, &kib)
	return kib << 10
}

// Environ is the environment of everything that runs in the router.
func (w *World) Environ() []string {
	return []string{
		"PATH=" + filepath.Join(w.Dir, "bin") + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + w.Dir, "LANG=C.UTF-8", "TMPDIR=" + filepath.Join(w.Dir, "tmp"),
		"SHUNT_CONFIG=" + w.Config, "SSL_CERT_FILE=" + w.CA, "SHUNT_LAB_DIR=" + w.Dir,
	}
}

func (m *Machine) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := m.program(ctx, m.Binary, append(append([]string(nil), m.BinaryArg...), args...))
	cmd.Args[0] = "shunt"
	return cmd
}

// program is a command on the machine that is killed with its process group.
func (m *Machine) program(ctx context.Context, path string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = slices.Clone(m.Env), m.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 500 * time.Millisecond
	return cmd
}

// Proc is a process in the background.
type Proc struct {
	Name string
	Log  string // file of its stdout and stderr
	cmd  *exec.Cmd
	done chan struct{}
	code int
}

// procs are a machine's background processes.
type procs struct {
	mu     sync.Mutex
	all    []*Proc
	closed bool
}

func (p *procs) stop() {
	p.mu.Lock()
	all := p.all
	p.closed = true
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, x := range all {
		wg.Go(func() { x.Stop() })
	}
	wg.Wait()
}

// Start runs the product in the background; it ends with the world.
func (m *Machine) Start(name string, args ...string) (*Proc, error) {
	return m.start(name, m.command(context.Background(), args)) // ended by Stop, or with the cage
}

// Spawn runs any program in the background: path is that of an executable. It ends with
// the world.
func (m *Machine) Spawn(name, path string, args ...string) (*Proc, error) {
	return m.start(name, m.program(context.Background(), path, args))
}

func (m *Machine) start(name string, cmd *exec.Cmd) (*Proc, error) {
	m.procs.mu.Lock()
	defer m.procs.mu.Unlock()
	if m.procs.closed {
		return nil, errors.New("lab: the world is closed")
	}
	p := &Proc{Name: name, Log: filepath.Join(m.Logs, name+".log"), cmd: cmd, done: make(chan struct{})}
	f, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("lab: start %s: %w", name, err)
	}
	defer f.Close()
	p.cmd.Stdout, p.cmd.Stderr = f, f
	if err := m.NS.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("lab: start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		p.code = exitCode(p.cmd.ProcessState)
		close(p.done)
	}()
	m.procs.all = append(m.procs.all, p)
	return p, nil
}

// StopAll ends everything that runs in the background; nothing can be started after it.
func (m *Machine) StopAll() { m.procs.stop() }

// Pid is the process id, inside the cage.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Kill ends the process by kill -9 and returns when it is gone.
func (p *Proc) Kill() {
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL)
	<-p.done
}

// Stop asks the process to end, kills it after two seconds, and returns its exit code.
func (p *Proc) Stop() int {
	select {
	case <-p.done:
		return p.code
	default:
	}
	_ = syscall.Kill(-p.Pid(), syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(2 * time.Second):
		p.Kill()
	}
	return p.code
}

// Tail is the end of the process's log.
func (p *Proc) Tail() string {
	b, _ := os.ReadFile(p.Log)
	return string(b[max(0, len(b)-2000):])
}

// Loop is a command that runs again and again, as from a timer.
type Loop struct {
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	all    []Result
}

// Every runs the product at each interval, never twice at once, until Stop. each, if not
// nil, gets every result, in order.
func (m *Machine) Every(ctx context.Context, interval time.Duration, each func(Result), args ...string) *Loop {
	ctx, cancel := context.WithCancel(ctx)
	l := &Loop{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		t := time.NewTicker(interval)
		defer t.Stop()
		for ctx.Err() == nil {
			r := m.Shunt(context.WithoutCancel(ctx), args...) // Stop lets the last one end
			l.mu.Lock()
			l.all = append(l.all, r)
			l.mu.Unlock()
			if each != nil {
				each(r)
			}
			select {
			case <-ctx.Done():
			case <-t.C:
			}
		}
	}()
	return l
}

// Results are those up to now.
func (l *Loop) Results() []Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Result(nil), l.all...)
}

// Stop waits for the last run and returns all results.
func (l *Loop) Stop() []Result {
	l.cancel()
	<-l.done
	return l.Results()
}
