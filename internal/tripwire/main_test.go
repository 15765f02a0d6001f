package tripwire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

const (
	// inside is set in the environment of the tests once they are in a cage.
	inside = "TRIPWIRE_TEST_INSIDE"
	// asServer is the first argument that makes the test binary a server.
	asServer = "test-server"
)

// TestMain runs the tests in a cage: what they start and make is gone when they end.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == cage.Arg:
		os.Exit(cage.Init(os.Args[2:]))
	case len(os.Args) > 2 && os.Args[1] == asServer:
		if err := serveAs(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case os.Getuid() != 0 || os.Getenv(inside) != "":
		os.Exit(m.Run())
	}
	code, err := cage.Enter(context.Background(), cage.Options{
		Command: append([]string{"/proc/self/exe"}, os.Args[1:]...), Env: append(os.Environ(), inside+"=1"),
		Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	far4, far6 = "10.79.0.2", "fd79::2"
	many       = "10.80.0.0/16" // all of them are the far end's own
)

// world is the tests' own namespace with a veth pair to another one, where servers run.
// There is one for all tests.
type world struct{ far *cage.Namespace }

var theWorld = sync.OnceValues(makeWorld)

func newWorld(t *testing.T) world {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Skip("needs root: makes namespaces")
	}
	w, err := theWorld()
	must(t, err)
	return w
}

func makeWorld() (world, error) {
	all, err := cage.New("far")
	if err != nil {
		return world{}, err
	}
	w := world{far: all[0]}
	noDAD := func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv6/conf/all/accept_dad", []byte("0"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644),
		)
	}
	if err := errors.Join(noDAD(), w.far.Do(noDAD)); err != nil {
		return w, err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far", PeerNamespace: netlink.NsFd(w.far.FD())}
	if err := netlink.LinkAdd(pair); err != nil {
		return w, err
	}
	err = side("near", "10.79.0.1/24", "fd79::1/64")
	if err == nil {
		err = w.far.Do(func() error {
			if err := side("far", far4+"/24", far6+"/64"); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			_, dst, _ := net.ParseCIDR(many)
			return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST})
		})
	}
	if err == nil {
		_, dst, _ := net.ParseCIDR(many)
		near, _ := netlink.LinkByName("near")
		err = netlink.RouteAdd(&netlink.Route{LinkIndex: near.Attrs().Index, Dst: dst, Gw: net.ParseIP(far4)})
	}
	if err == nil {
		err = w.acquaint()
	}
	return w, err
}

// acquaint waits until the pair carries packets (the kernel gives a link its queue some
// time after its carrier) and both ends know each other: who asks too early asks again only after a second.
func (w world) acquaint() error {
	var near, far netlink.Link
	for end := time.Now().Add(10 * time.Second); ; {
		var err error
		if near, err = netlink.LinkByName("near"); err != nil {
			return err
		}
		if err := w.far.Do(func() (err error) { far, err = netlink.LinkByName("far"); return err }); err != nil {
			return err
		}
		if near.Attrs().OperState == netlink.OperUp && far.Attrs().OperState == netlink.OperUp {
			break
		}
		if time.Now().After(end) {
			return errors.New("the pair is not up within 10 s")
		}
	}
	know := func(on, of netlink.Link, addrs ...string) error {
		for _, a := range addrs {
			n := netlink.Neigh{LinkIndex: on.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(a), HardwareAddr: of.Attrs().HardwareAddr}
			if err := netlink.NeighSet(&n); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(know(near, far, far4, far6), w.far.Do(func() error { return know(far, near, "10.79.0.1", "fd79::1") }))
}

func side(name, v4, v6 string) error {
	for _, n := range []string{"lo", name} {
		l, err := netlink.LinkByName(n)
		if err != nil {
			return err
		}
		for _, a := range []string{v4, v6} {
			addr, err := netlink.ParseAddr(a)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			if n == name {
				if err := netlink.AddrAdd(l, addr); err != nil {
					return err
				}
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	return nil
}

// server is a process of its own that serves in some manner.
type server struct {
	*exec.Cmd
	t    *testing.T
	in   *os.File
	mu   sync.Mutex
	said []string
	more chan struct{}
}

// start runs a server on the far end, or in the tests' own namespace, and waits until it listens.
func (w world) start(t *testing.T, local bool, manner, addr string, args ...string) *server {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{asServer, manner, addr}, args...)...)
	r, in, err := os.Pipe()
	must(t, err)
	out, outW, err := os.Pipe()
	must(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, outW, os.Stderr
	s := &server{Cmd: cmd, t: t, in: in, more: make(chan struct{}, 1)}
	if local {
		err = cmd.Start()
	} else {
		err = w.far.Start(cmd)
	}
	must(t, err)
	must(t, errors.Join(r.Close(), outW.Close()))
	go s.listen(out)
	t.Cleanup(func() { s.kill(); must(t, in.Close()) })
	s.await("up")
	return s
}

func (s *server) listen(out *os.File) {
	defer out.Close()
	buf := make([]byte, 4096)
	rest := ""
	for {
		n, err := out.Read(buf)
		if err != nil {
			return
		}
		lines := strings.Split(rest+string(buf[:n]), "\n")
		rest = lines[len(lines)-1]
		s.mu.Lock()
		s.said = append(s.said, lines[:len(lines)-1]...)
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
	}
}

// count is how often the server has said that word.
func (s *server) count(word string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.said {
		if l == word {
			n++
		}
	}
	return n
}

func (s *server) await(word string) {
	s.t.Helper()
	eventually(s.t, "the server says "+word, func() bool { return s.count(word) > 0 })
}

// tell gives a running server a command.
func (s *server) tell(command string) {
	s.t.Helper()
	_, err := s.in.WriteString(command + "\n")
	must(s.t, err)
}

// kill is SIGKILL and returns when it was sent; reaping comes later.
func (s *server) kill() time.Time {
	at := time.Now()
	if s.Process != nil && s.ProcessState == nil {
		_ = s.Process.Kill()
		_ = s.Wait()
	}
	return at
}

// shoot sends SIGKILL and does not wait.
func (s *server) shoot() time.Time {
	at := time.Now()
	must(s.t, s.Process.Kill())
	return at
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 15 s: %s", what)
}

func addrPort(host string, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(host), uint16(port))
}

// serveAs is the main function of a server. The first argument is its address.
func serveAs(manner string, args []string) error {
	number := func(i int) int {
		if len(args) <= i {
			return 0
		}
		n, _ := strconv.Atoi(args[i])
		return n
	}
	if manner == "workers" {
		return masterOf(args[0], time.Duration(number(1))*time.Millisecond)
	}
	var ln net.Listener
	var err error
	if manner == "worker" {
		ln, err = net.FileListener(os.NewFile(3, "listener"))
	} else {
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if cerr := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}); cerr != nil {
				return cerr
			}
			return err
		}}
		ln, err = lc.Listen(context.Background(), "tcp", args[0])
	}
	if err != nil {
		return err
	}
	var ballast []byte
	if manner == "heavy" {
		ballast = make([]byte, number(1)<<20)
		for i := 0; i < len(ballast); i += 4096 {
			ballast[i] = 1
		}
	}
	s := &serving{ln: ln, manner: manner, wait: time.Duration(number(1)) * time.Millisecond}
	fmt.Println("up")
	go s.obey()
	err = s.run()
	if ballast != nil && ballast[0] == 0 {
		return errors.New("the ballast is gone")
	}
	return err
}

type serving struct {
	ln     net.Listener
	manner string
	wait   time.Duration
	mu     sync.Mutex
	conns  []net.Conn
	times  []time.Time
}

func (s *serving) run() error {
	for {
		c, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			select {} // it no longer accepts, and keeps what it has
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		fmt.Println("accepted")
		go s.one(c)
	}
}

func (s *serving) one(c net.Conn) {
	buf := make([]byte, 1024)
	switch s.manner {
	case "closes":
		_ = c.Close()
		return
	case "throttles": // the fourth connection within four seconds
		s.mu.Lock()
		s.times = append(s.times, time.Now())
		n := len(s.times)
		over := n > 3 && s.times[n-1].Sub(s.times[n-4]) < 4*time.Second
		s.mu.Unlock()
		if over {
			_ = c.Close()
			return
		}
	case "idle":
		_ = c.SetReadDeadline(time.Now().Add(s.wait))
	case "speaks":
		_, _ = c.Write([]byte("I am here\n"))
	case "chatters":
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}
	for {
		if _, err := c.Read(buf); err != nil {
			break
		}
	}
	fmt.Println("ended")
	_ = c.Close()
}

// obey does what the test says.
func (s *serving) obey() {
	buf := make([]byte, 64)
	for {
		n, err := os.Stdin.Read(buf)
		if err != nil {
			return
		}
		for command := range strings.Lines(string(buf[:n])) {
			switch strings.TrimSpace(command) {
			case "hang up":
				s.mu.Lock()
				for _, c := range s.conns {
					_ = c.Close()
				}
				s.conns = nil
				s.mu.Unlock()
				fmt.Println("hung up")
			case "stop listening":
				_ = s.ln.Close()
				fmt.Println("stopped")
			}
		}
	}
}

// masterOf keeps a listening socket and replaces the worker that serves it again and again.
func masterOf(addr string, every time.Duration) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		cmd := exec.Command("/proc/self/exe", asServer, "worker", addr)
		cmd.ExtraFiles = []*os.File{f}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return err
		}
		if first {
			fmt.Println("up")
		}
		time.Sleep(every)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		fmt.Println("recycled")
	}
}

// rule adds a rule to the far end, for the packets that come in there; the test's end takes it away.
func (w world) rule(t *testing.T, rule string) {
	t.Helper()
	nft := func(script string) {
		t.Helper()
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if err := w.far.Do(func() error {
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	nft("table inet t { chain c { type filter hook input priority 0; }; }\nadd rule inet t c " + rule + "\n")
	t.Cleanup(func() { nft("table inet t {}\ndelete table inet t\n") })
}
