package watchdog

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/flow"
	"github.com/shunt-net/shunt/internal/host"
	"github.com/shunt-net/shunt/internal/knock"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/gap"
	"github.com/shunt-net/shunt/internal/lab/wire"
	"github.com/shunt-net/shunt/internal/nft"
	"github.com/shunt-net/shunt/internal/state"
)

const (
	// inside is set in the environment of the tests once they are in a cage.
	inside = "WATCHDOG_TEST_INSIDE"
	// asWatchdog is the first argument that makes the test binary a watchdog.
	asWatchdog = "test-watchdog"
)

// TestMain runs the tests in a cage: what they start and make is gone when they end.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == cage.Arg:
		os.Exit(cage.Init(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == backend.Arg:
		os.Exit(backend.Main(os.Args[2:], os.Stdout))
	case len(os.Args) > 2 && os.Args[1] == asWatchdog:
		if err := watchAs(os.Args[2]); err != nil {
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

// The world: the tests' own namespace holds the virtual address and leads to the servers
// a, b and c and to a client, each in a namespace of its own.
const servers = "abc"

func vip() netip.AddrPort { return netip.MustParseAddrPort("10.99.0.1:80") }

// at is the address of a server.
func at(name string) netip.Addr { return netip.AddrFrom4([4]byte{10, 20, name[0] - 'a' + 1, 2}) }

type world struct {
	client *cage.Namespace
	far    map[string]*cage.Namespace
}

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
	w := world{far: map[string]*cage.Namespace{}}
	all, err := cage.New("client", "a", "b", "c")
	if err != nil {
		return w, err
	}
	w.client = all[0]
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: wire.IPNet(netip.PrefixFrom(vip().Addr(), 32))})
	}
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	for i, ns := range all {
		if err != nil {
			return w, err
		}
		near, far := netip.AddrFrom4([4]byte{10, 20, byte(i), 1}), netip.AddrFrom4([4]byte{10, 20, byte(i), 2})
		err = join(ns, near, far)
		if i > 0 {
			w.far[ns.Name] = ns
		}
	}
	return w, err
}

// join makes a link to a namespace, with both ends known to each other, so that no packet
// waits for an answer to ARP.
func join(ns *cage.Namespace, near, far netip.Addr) error {
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "to-" + ns.Name}, PeerName: "up", PeerNamespace: netlink.NsFd(ns.FD())}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	mac := map[bool]netlink.Link{}
	end := func(here bool, name string, own netip.Addr) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		mac[here] = l
		return errors.Join(
			netlink.AddrAdd(l, &netlink.Addr{IPNet: wire.IPNet(netip.PrefixFrom(own, 24))}), netlink.LinkSetUp(l))
	}
	know := func(here bool, other netip.Addr) error {
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: mac[here].Attrs().Index, State: netlink.NUD_PERMANENT, IP: other.AsSlice(), HardwareAddr: mac[!here].Attrs().HardwareAddr,
		})
	}
	if err := end(true, "to-"+ns.Name, near); err != nil {
		return err
	}
	if err := ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), end(false, "up", far), know(false, near),
			netlink.RouteAdd(&netlink.Route{LinkIndex: mac[false].Attrs().Index, Gw: near.AsSlice()}))
	}); err != nil {
		return err
	}
	return know(true, far)
}

// server is one backend at work.
type server struct {
	*exec.Cmd
	name string
}

// serve starts a backend and waits until it listens.
func (w world) serve(t *testing.T, o backend.Options) *server {
	t.Helper()
	o.Port = 80
	cmd := exec.Command("/proc/self/exe", o.Args()...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, w.far[o.Name].Start(cmd))
	s := &server{cmd, o.Name}
	t.Cleanup(s.kill)
	line := make([]byte, len(backend.Ready)+1)
	n, err := out.Read(line)
	if err != nil || string(line[:n]) != backend.Ready+"\n" {
		t.Fatalf("server %s says %q: %v", o.Name, line[:n], err)
	}
	return s
}

// kill is SIGKILL. It returns when the process is gone.
func (s *server) kill() {
	if s.ProcessState == nil {
		_ = s.Process.Kill()
		_ = s.Wait()
	}
}

// shoot sends SIGKILL, and returns the moment just before.
func (s *server) shoot(t *testing.T) time.Time {
	t.Helper()
	at := time.Now()
	must(t, s.Process.Kill())
	return at
}

// config is one service at the virtual address with that many candidates.
func config(n int, change func(*edge.Service)) edge.Config {
	s := edge.Service{
		Name: "front", VIP: []netip.Addr{vip().Addr()}, Port: int(vip().Port()), Protocols: []edge.Protocol{edge.TCP},
		Strategy: edge.StrategyFirstAvailable, Sticky: true, SNAT: edge.SNATHairpin, Tripwire: true, OnHint: edge.OnHintConfirm,
		Probe: edge.Probe{Type: edge.ProbeTCP, Interval: 100 * time.Millisecond, Cap: 90 * time.Millisecond, Misses: 2, Rise: 1},
	}
	for _, name := range servers[:n] {
		s.Candidates = append(s.Candidates, edge.Candidate{Name: string(name), Addresses: []netip.Addr{at(string(name))}})
	}
	if change != nil {
		change(&s)
	}
	return edge.Config{Writer: edge.WriterAuto, MaxConcurrent: 64, VetoFor: 30 * time.Second, Deadline: 2 * time.Second, Services: []edge.Service{s}}
}

// options are those of a watchdog of the real world. close ends its ways.
func options(dir string, c edge.Config) (o Options, end func() error, err error) {
	d, err := state.Open(dir)
	if err != nil {
		return o, nil, err
	}
	table := nft.Local(nft.Options{Name: "here", Now: time.Now})
	return Options{
		State: d, Holder: "watchdog", Now: time.Now, For: time.Minute,
		Edge: &edge.Env{
			Config: c, Node: "here", State: d, Replicas: map[string]edge.Replicated{"here": table},
			Prober: knock.New(time.Now), Flows: flow.New(), Sight: host.New(), Now: time.Now, Holder: "watchdog",
		},
	}, table.Close, nil
}

// dog is a watchdog of this process.
type dog struct {
	t     *testing.T
	ended chan struct{}
	stop  context.CancelFunc
	sum   Summary
	err   error

	mu    sync.Mutex
	told  []Event
	since int
	more  chan struct{}
}

// watch starts one.
func watch(t *testing.T, ctx context.Context, o Options) *dog {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	d := &dog{t: t, ended: make(chan struct{}), stop: cancel, more: make(chan struct{}, 1)}
	o.Told = func(ev Event) {
		d.mu.Lock()
		d.told = append(d.told, ev)
		d.mu.Unlock()
		select {
		case d.more <- struct{}{}:
		default:
		}
	}
	go func() {
		defer close(d.ended)
		d.sum, d.err = Run(ctx, o)
	}()
	t.Cleanup(func() { d.end() })
	return d
}

// watch starts one in the real world.
func (w world) watch(t *testing.T, ctx context.Context, dir string, c edge.Config, change func(*Options)) *dog {
	t.Helper()
	o, end, err := options(dir, c)
	must(t, err)
	if change != nil {
		change(&o)
	}
	d := watch(t, ctx, o)
	t.Cleanup(func() { d.end(); must(t, end()) })
	return d
}

// end stops it and waits.
func (d *dog) end() Summary {
	d.stop()
	select {
	case <-d.ended:
	case <-time.After(30 * time.Second):
		d.t.Fatal("a watchdog does not end")
	}
	if d.err != nil && !errors.Is(d.err, context.Canceled) {
		d.t.Errorf("a watchdog ended: %v", d.err)
	}
	return d.sum
}

// mark makes await look only at what happens from now on.
func (d *dog) mark() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since = len(d.told)
}

// find looks for an event since the mark.
func (d *dog) find(is func(Event) bool) (Event, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ev := range d.told[d.since:] {
		if is(ev) {
			return ev, true
		}
	}
	return Event{}, false
}

// await waits for an event since the mark.
func (d *dog) await(what string, is func(Event) bool) Event {
	d.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		if ev, ok := d.find(is); ok {
			return ev
		}
		select {
		case <-d.more:
		case <-limit:
			d.mu.Lock()
			for _, ev := range d.told[max(d.since, len(d.told)-20):] {
				d.t.Logf("%s %s %s: %s %v", ev.At.Format("05.000"), ev.Kind, ev.Object, ev.Text, ev.Err)
				if ev.Result != nil {
					d.t.Logf("  %v %v", ev.Result.Plan.Steps, ev.Result.Plan.Held)
				}
			}
			d.mu.Unlock()
			d.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// moved waits until the service was led to a server, since the mark.
func (d *dog) moved(to string) (m edge.Move) {
	d.t.Helper()
	d.await("a move to "+to, func(ev Event) bool {
		if ev.Result == nil {
			return false
		}
		for _, m = range ev.Result.Moves {
			if m.To == netip.AddrPortFrom(at(to), 80).String() {
				return true
			}
		}
		return false
	})
	return m
}

// cleared waits until the veto of a server is gone.
func (d *dog) cleared(name string) {
	d.t.Helper()
	d.await(name+" is healthy again", func(ev Event) bool { return steps(ev, edge.StepClear, name) > 0 })
}

// steps counts what an event did to a server.
func steps(ev Event, kind edge.StepKind, name string) int {
	n := 0
	if ev.Result != nil {
		for _, s := range ev.Result.Plan.Steps {
			if s.Kind == kind && (name == "" || s.Candidate == name) {
				n++
			}
		}
	}
	return n
}

// connect is a client of the virtual address.
func (w world) connect(t *testing.T) *gap.Client {
	t.Helper()
	c := gap.Start(t.Context(), w.client, gap.Options{To: vip()})
	t.Cleanup(func() { c.Stop() })
	return c
}

// steady waits until a server alone has answered for a while.
func steady(t *testing.T, c *gap.Client, name string, d time.Duration) {
	t.Helper()
	bound, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if who, err := c.WaitSteady(bound, d, gap.Only(name)); err != nil {
		t.Fatalf("%q answers, want %s: %v", who, name, err)
	}
}

// cut makes a server's machine silent, or ends that.
func (w world) cut(name string, on bool) error {
	script := "delete table ip cut"
	if on {
		script = "table ip cut { chain in { type filter hook prerouting priority raw; policy drop; }; chain out { type filter hook output priority raw; policy drop; }; }"
	}
	return w.far[name].Do(func() error { return exec.Command("nft", script).Run() })
}

// fresh is a state folder on no disk, and removes what an earlier test left of the table.
func fresh(t *testing.T) string {
	t.Helper()
	_ = exec.Command("nft", "delete", "table", "inet", "shunt_edge").Run()
	_ = exec.Command("conntrack", "-F").Run()
	return filepath.Join(t.TempDir(), "state")
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
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("not within 20 s: %s", what)
}
