package knock

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

// This program is also the other process of its tests: a server that can be stopped by a
// signal, or a prober that can.
func TestMain(m *testing.M) {
	switch os.Getenv("KNOCK_TEST") {
	case "":
		os.Exit(m.Run())
	case "server":
		serve(os.Getenv("KNOCK_KIND"))
	case "prober":
		ask()
	}
}

// serve listens, says where and serves until it is killed.
func serve(kind string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	switch kind {
	case "http":
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "well") }))
	case "minecraft":
		accept(l, func(c net.Conn) { _ = (&craft{}).serve(c) })
	case "slow": // answers a line, a while after it came
		accept(l, func(c net.Conn) {
			if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
				time.Sleep(100 * time.Millisecond)
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				_, _ = io.Copy(io.Discard, c)
			}
		})
	default:
		accept(l, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	}
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

// ask probes once for each line of input, says when it begins and prints the answer.
func ask() {
	p := New(time.Now)
	if os.Getenv("KNOCK_FILES") != "" { // no new descriptor can be had
		limit := unix.Rlimit{Cur: 3, Max: 3}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var t edge.ProbeTarget
		if err := json.Unmarshal(in.Bytes(), &t); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("asking")
		_ = json.NewEncoder(os.Stdout).Encode(p.Probe(context.Background(), t))
	}
}

// process is this program again, in another role.
type process struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func start(tb testing.TB, env ...string) *process {
	tb.Helper()
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	p.in, p.out = in, bufio.NewReader(out)
	return p
}

func (p *process) line(tb testing.TB) string {
	tb.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		tb.Fatalf("the other process: %v", err)
	}
	return strings.TrimSpace(s)
}

func (p *process) signal(tb testing.TB, sig syscall.Signal) {
	tb.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		tb.Fatal(err)
	}
}

// stop stops the process and waits until it stands still.
func (p *process) stop(tb testing.TB) {
	tb.Helper()
	p.signal(tb, syscall.SIGSTOP)
	poll(tb, "the other process to stand still", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return err == nil && strings.Contains(string(b), ") T ")
	})
}

func server(tb testing.TB, kind string) (*process, netip.AddrPort) {
	tb.Helper()
	p := start(tb, "KNOCK_TEST=server", "KNOCK_KIND="+kind)
	return p, netip.MustParseAddrPort(p.line(tb))
}

func poll(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-limit.C:
			tb.Fatalf("waited 10 s for %s", what)
		case <-tick.C:
		}
	}
}

// listen serves each connection by a function, in this process, and notes how each ended
// for the server.
type listening struct {
	addr netip.AddrPort
	mu   sync.Mutex
	ends []error
}

func listen(tb testing.TB, serve func(net.Conn) error) *listening {
	tb.Helper()
	return listenOn(tb, "127.0.0.1:0", serve)
}

func listenOn(tb testing.TB, addr string, serve func(net.Conn) error) *listening {
	tb.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	s := &listening{addr: l.Addr().(*net.TCPAddr).AddrPort()}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				err := serve(c)
				_ = c.Close()
				s.mu.Lock()
				s.ends = append(s.ends, err)
				s.mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	return s
}

// ended waits until that many connections have ended for the server, and returns how.
func (s *listening) ended(tb testing.TB, n int) []error {
	tb.Helper()
	var out []error
	poll(tb, fmt.Sprintf("%d connections to end", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		out = append([]error(nil), s.ends...)
		return len(out) >= n
	})
	return out
}

// untilEnd reads what a client says until it says no more: nil = it ended properly.
func untilEnd(c net.Conn) error {
	_, err := io.Copy(io.Discard, c)
	return err
}

const patient = 5 * time.Second // a cap that a slow machine keeps

func target(addr netip.AddrPort, p edge.Probe) edge.ProbeTarget {
	if p.Cap == 0 {
		p.Cap = patient
	}
	return edge.ProbeTarget{Key: "front/a/4/1", Service: "front", Candidate: "a", Addr: addr, Probe: p}
}

// closedPort is a port on which nobody listens.
func closedPort(tb testing.TB) netip.AddrPort {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) }) // bound until then: nobody else takes it
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*unix.SockaddrInet4).Port))
}

// deafPort is a port whose kernel answers no packet: its queue of connections is full.
func deafPort(tb testing.TB) netip.AddrPort {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		tb.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*unix.SockaddrInet4).Port))
	for range 16 {
		d := net.Dialer{Timeout: 100 * time.Millisecond}
		c, err := d.Dial("tcp", addr.String())
		if err != nil {
			return addr
		}
		tb.Cleanup(func() { _ = c.Close() })
	}
	tb.Fatal("the queue of connections does not fill")
	return addr
}

// quiet is where servers of a test log, which it does not look at.
func quiet(tb testing.TB) *log.Logger {
	tb.Helper()
	return log.New(io.Discard, "", 0)
}
