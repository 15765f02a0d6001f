package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

// Some programs work only in the machine's first namespaces, where alone the kernel tells
// of ending processes. A scenario that says so may run them there: the parent of its cage
// starts them, with the cage's network namespaces at hand by their names, and ends them
// with the run. They see no other of the cage's mounts, and /run is an empty one of theirs.

// outsideScript gives a program the names of a cage's network namespaces. $0 is the cage's
// first process.
const outsideScript = `mount -t tmpfs lab /run
mkdir /run/netns
for file in "/proc/$0/root/run/netns/"*; do
  : >"/run/netns/${file##*/}"
  mount --no-canonicalize --bind "$file" "/run/netns/${file##*/}"
done
exec "$@"`

// outsideAsk is what a run asks its parent for, and outsideSaid the answer.
type outsideAsk struct {
	Start []string `json:"start,omitempty"` // argv
	Log   string   `json:"log,omitempty"`   // file that gets what it writes
	Stop  int      `json:"stop,omitempty"`  // what an earlier answer named
}

type outsideSaid struct {
	ID    int    `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
}

// ErrInside says that a run has no way out of its cage.
var ErrInside = errors.New("this scenario runs nothing outside")

// Outside runs a program in the machine's first namespaces, until stop is called or the
// run ends; what it writes goes to the end of a file. It works in scenarios that have said
// Outside.
func (e *Env) Outside(log string, argv []string) (stop func(), err error) {
	if e.out == nil {
		return nil, ErrInside
	}
	said, err := e.out.ask(outsideAsk{Start: argv, Log: log})
	if err != nil {
		return nil, fmt.Errorf("outside: %s: %w", argv[0], err)
	}
	return func() { _, _ = e.out.ask(outsideAsk{Stop: said.ID}) }, nil
}

// outsideConn is a run's end of the line to its parent.
type outsideConn struct {
	mu   sync.Mutex
	conn io.ReadWriter
	dec  *json.Decoder
}

func (o *outsideConn) ask(a outsideAsk) (outsideSaid, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var said outsideSaid
	if err := json.NewEncoder(o.conn).Encode(a); err != nil {
		return said, err
	}
	if err := o.dec.Decode(&said); err != nil {
		return said, err
	}
	if said.Error != "" {
		return said, errors.New(said.Error)
	}
	return said, nil
}

func newOutside(f *os.File) *outsideConn {
	syscall.CloseOnExec(int(f.Fd()))
	return &outsideConn{conn: f, dec: json.NewDecoder(f)}
}

// letOut gives a cage a line to this process, which does what is asked on it until end.
func letOut(o *cage.Options) (end func(), err error) {
	conn, theirs, err := outsidePair()
	if err != nil {
		return nil, err
	}
	o.Files = append(o.Files, theirs)
	first := make(chan int, 1)
	o.Started = func(pid int) {
		_ = theirs.Close() // the cage has it, and only it
		first <- pid
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveOutside(conn, first)
	}()
	return func() {
		_ = theirs.Close()
		_ = conn.Close()
		close(first) // where no cage came about
		<-done
	}, nil
}

// outsidePair makes the line: the parent's end, and a descriptor for the cage.
func outsidePair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("lab: outside: %w", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "outside"), os.NewFile(uintptr(fds[1]), "inside")
	conn, err := net.FileConn(mine)
	_ = mine.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("lab: outside: %w", err)
	}
	return conn, theirs, nil
}

// serveOutside does what a run asks for until the line ends, and then ends all that runs.
func serveOutside(conn net.Conn, first <-chan int) {
	pid := <-first
	running := map[int]func(){}
	defer func() {
		for _, stop := range running {
			stop()
		}
	}()
	dec, enc := json.NewDecoder(conn), json.NewEncoder(conn)
	for id := 1; ; id++ {
		var a outsideAsk
		if dec.Decode(&a) != nil {
			return
		}
		said := outsideSaid{}
		if stop := running[a.Stop]; stop != nil {
			stop()
			delete(running, a.Stop)
		}
		if len(a.Start) > 0 {
			stop, err := startOutside(pid, a)
			if err != nil {
				said.Error = err.Error()
			} else {
				said.ID, running[id] = id, stop
			}
		}
		if enc.Encode(said) != nil {
			return
		}
	}
}

// startOutside starts a program and looks for a moment whether it stays.
func startOutside(pid int, a outsideAsk) (stop func(), err error) {
	f, err := os.OpenFile(a.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	args := append([]string{"--mount", "--propagation", "private", "--", "sh", "-ec", outsideScript, strconv.Itoa(pid)}, a.Start...)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "unshare", args...) //nolint:gosec // that is its task
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the program dies with the thread that started it
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()                                      // the log says why
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left behind
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	if err := <-started; err != nil {
		stop()
		return nil, err
	}
	select {
	case <-done:
		cancel()
		return nil, fmt.Errorf("it ended; %s says why", a.Log)
	case <-time.After(200 * time.Millisecond):
		return stop, nil
	}
}
