package lane

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/run"
)

const (
	envInside = "SHUNT_LANE_TEST_INSIDE" // set in the copy that runs in namespaces of its own
	envRole   = "SHUNT_LANE_TEST_ROLE"   // makes the copy a helper process and no test run
)

// TestMain runs the whole test binary in a network and a mount namespace of its own: the
// host's interfaces, routes and control sockets are never touched.
func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		os.Exit(playRole(role))
	}
	if os.Getuid() != 0 || os.Getenv(envInside) != "" {
		if os.Getenv(envInside) != "" {
			if err := furnish(); err != nil {
				fmt.Fprintln(os.Stderr, "world:", err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// furnish makes the world of all tests: private /run, /etc/wireguard and /usr/local/sbin, an uplink that
// goes nowhere and counts what leaves in clear, and the lane's table.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/etc/wireguard", "/usr/local/sbin"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	script := `set -e
ip link set lo up
ip link add wan type veth peer name far
ip link set far up
ip link set wan up
ip addr add 192.0.2.2/24 dev wan
ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev wan nud permanent
ip route add default via 192.0.2.1
ip route add blackhole default table 202 metric 4000
ip rule add fwmark 0x202 table 202
nft -f - <<NFT
table ip clear { counter clear { }
  chain out { type filter hook postrouting priority 0;
    oifname "wan" ip daddr 10.77.0.0/16 counter name clear
  }
}
NFT`
	out, err := exec.Command("sh", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func needWorld(tb testing.TB) {
	tb.Helper()
	if os.Getenv(envInside) == "" {
		tb.Skip("needs root for network namespaces")
	}
}

func sh(tb testing.TB, format string, args ...any) string {
	tb.Helper()
	out, err := exec.Command("sh", "-c", fmt.Sprintf(format, args...)).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s: %v\n%s", fmt.Sprintf(format, args...), err, out)
	}
	return strings.TrimSpace(string(out))
}

// inClear is the number of user packets that left by the uplink so far.
func inClear(tb testing.TB) string {
	tb.Helper()
	for f := range strings.SplitSeq(sh(tb, "nft list counter ip clear clear"), "\n") {
		if s, ok := strings.CutPrefix(strings.TrimSpace(f), "packets "); ok {
			return strings.Fields(s)[0]
		}
	}
	tb.Fatal("no counter")
	return ""
}

func eventually(tb testing.TB, what string, within time.Duration, cond func() bool) {
	tb.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %s", what, within)
		}
		<-tick.C
	}
}

func testKey(name string) profile.Key {
	k := sha256.Sum256([]byte("shunt lane " + name))
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

// confOf describes a profile of the tests.
type confOf struct {
	client    string // name of its key
	addresses string
	server    profile.Key // private; the profile has its public one
	endpoint  string
	psk       profile.Key
	keepalive int
	mtu       int
	extra     string // lines of [Interface]
}

var confCount struct {
	sync.Mutex
	n int
}

func (c confOf) write(tb testing.TB) string {
	tb.Helper()
	confCount.Lock()
	confCount.n++
	path := filepath.Join(tb.TempDir(), fmt.Sprintf("p%d.conf", confCount.n))
	confCount.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "[Interface]\nPrivateKey = %s\nAddress = %s\n%s", testKey(c.client).Base64(), c.addresses, c.extra)
	if c.mtu != 0 {
		fmt.Fprintf(&b, "MTU = %d\n", c.mtu)
	}
	fmt.Fprintf(&b, "[Peer]\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = 0.0.0.0/0, ::/0\n", c.server.Public().Base64(), c.endpoint)
	if !c.psk.IsZero() {
		fmt.Fprintf(&b, "PresharedKey = %s\n", c.psk.Base64())
	}
	if c.keepalive != 0 {
		fmt.Fprintf(&b, "PersistentKeepalive = %d\n", c.keepalive)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// profileFor makes the server know the client and writes the client's profile.
func (s *server) profileFor(tb testing.TB, client, addr string) confOf {
	tb.Helper()
	s.knows(tb, testKey(client), profile.Key{}, addr+"/32")
	return confOf{client: client, addresses: addr + "/32", server: s.key, endpoint: s.endpoint(), keepalive: 25}
}

// serveLane runs a lane service in this process until the test ends, and routes the marked
// traffic through it.
func serveLane(tb testing.TB, name, conf string, delayed time.Duration) egress.Lane {
	tb.Helper()
	startService(tb, ServeOptions{Interface: name, ConfigPath: conf, Delay: delayed, Now: time.Now, Logf: tb.Logf})
	sh(tb, "ip route replace default dev %s table 202", name)
	return egress.Lane{Name: "lane-" + name, Interface: name, Driver: egress.DriverWireGuard}
}

func startService(tb testing.TB, o ServeOptions) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	o.Ready = func() { close(ready) }
	go func() { done <- Serve(ctx, o) }()
	select {
	case <-ready:
	case err := <-done:
		tb.Fatalf("service: %v", err)
	case <-time.After(5 * time.Second):
		tb.Fatal("service: not ready in 5 s")
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			<-done //nolint:errcheck // ended on purpose
		})
	}
	tb.Cleanup(stop)
	return stop
}

func testDevices(tb testing.TB) *Devices {
	return New(Options{Salt: []byte("salt"), Now: time.Now, StateDir: tb.TempDir()})
}

// pointsOf returns a context that counts the kernel changes made under it.
func pointsOf(ctx context.Context) (context.Context, func() []string) {
	var mu sync.Mutex
	var names []string
	ctx = run.WithPoints(ctx, func(n string) {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, n)
	})
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), names...)
	}
}

// deadEndpoint is an address where nobody answers and nobody says so.
func deadEndpoint(tb testing.TB) string {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		tb.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		tb.Fatal(err)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sa.(*unix.SockaddrInet4).Port)).String()
}
