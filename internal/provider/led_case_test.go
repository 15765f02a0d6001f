package provider

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

// TestAsACommand is no test: with arguments it is the command of a source, which fetches
// each address as any Go program does and puts the answers into its folder.
func TestAsACommand(t *testing.T) {
	if flag.NArg() == 0 || os.Getenv("SHUNT_OUT") == "" {
		return
	}
	c := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test site
	}}
	for i, url := range flag.Args() {
		r, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v: %s", url, r.Status, err, b)
		}
		if err := os.WriteFile(filepath.Join(os.Getenv("SHUNT_OUT"), fmt.Sprintf("%d.conf", i)), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// fetches is the command that fetches some addresses.
func fetches(t *testing.T, urls ...string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{self, "-test.run=^TestAsACommand$", "--"}, urls...)
}

// lists are sites whose names only the way knows, which leads to servers of this machine.
type lists struct {
	plain, secure *httptest.Server
	dialled       atomic.Int32
	opts          Options
}

func sites(t *testing.T) *lists {
	t.Helper()
	profile := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 1
		if r.TLS != nil {
			n = 2
		}
		_, _ = io.WriteString(w, conf(n))
	})
	l := &lists{plain: httptest.NewServer(profile), secure: httptest.NewTLSServer(profile)}
	t.Cleanup(l.plain.Close)
	t.Cleanup(l.secure.Close)
	at := map[string]string{"list.example:80": l.plain.Listener.Addr().String(), "list.example:443": l.secure.Listener.Addr().String()}
	l.opts.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		l.dialled.Add(1)
		to, ok := at[address]
		if !ok {
			return nil, errors.New("the way ends at " + address)
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}
	return l
}

// led fetches one exec source by the way of the sites.
func (l *lists) led(t *testing.T, argv ...string) (Listing, error) {
	t.Helper()
	return Fetch(t.Context(), []egress.Source{{Name: "hmn", Type: egress.SourceExec, Command: argv}}, workdir(t), l.opts)
}

func needsNamespaces(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: a command is led in a network namespace of its own")
	}
}

func TestACommandIsLedByTheWayOfTheRecovery(t *testing.T) {
	needsNamespaces(t)
	l := sites(t)
	commands := map[string][]string{"Go": fetches(t, "http://list.example/a", "https://list.example/b")}
	if _, err := exec.LookPath("curl"); err == nil {
		commands["curl"] = sh(`cd "$SHUNT_OUT" && curl -sSf -o 0.conf http://list.example/a && curl -sSfk -o 1.conf https://list.example/b`)
	}
	if _, err := exec.LookPath("wget"); err == nil {
		commands["wget"] = sh(`cd "$SHUNT_OUT" && wget -q -O 0.conf http://list.example/a && wget -q --no-check-certificate -O 1.conf https://list.example/b`)
	}
	for name, argv := range commands {
		was := l.dialled.Load()
		work := workdir(t)
		got, err := Fetch(t.Context(), []egress.Source{{Name: "hmn", Type: egress.SourceExec, Command: argv}}, work, l.opts)
		t.Run(name, func(t *testing.T) {
			check(t, work, got, err, "+ 0.conf "+endpoint(1), "+ 1.conf "+endpoint(2))
		})
		if n := l.dialled.Load() - was; n != 2 {
			t.Errorf("%s: %d connections by the way, want 2", name, n)
		}
	}
}

func TestACommandThatIsLedHasNoOtherNetwork(t *testing.T) {
	needsNamespaces(t)
	l := sites(t)
	var beside atomic.Int32
	site := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { beside.Add(1) }))
	defer site.Close()
	file := write(t, filepath.Join(t.TempDir(), "a.conf"), conf(1))
	for _, c := range []struct {
		name, reason string
		argv         []string
	}{
		// Go's client uses no proxy for this machine.
		{"one that does not use the proxy", "asked nothing of the proxy in its environment", fetches(t, site.URL)},
		{"one that the way does not carry", "by the way that was found: the way ends at other.example:443", fetches(t, "https://other.example/")},
		{"one that talks to the proxy itself", "exit status 1", fetches(t, "http://list.example/a", "http://127.0.0.1:1/")},
		{"routes", "exit status 7", sh("test $(wc -l </proc/net/route) -le 1 || exit 6; exit 7")}, // a line of titles
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := l.led(t, c.argv...)
			if err == nil || !strings.Contains(err.Error(), c.reason) || got.Count() != 0 {
				t.Errorf("want %q, got %d profiles and %v", c.reason, got.Count(), err)
			}
		})
	}
	if n := beside.Load(); n != 0 {
		t.Errorf("%d requests went beside the way", n)
	}
	// One that needs no network is as good as ever.
	if got, err := l.led(t, sh("cp "+file+` "$SHUNT_OUT"`)...); err != nil || got.Count() != 1 {
		t.Errorf("a command that copies a file: %d profiles, %v", got.Count(), err)
	}
	// And without a way a command has the network of everybody.
	if got, err := Fetch(t.Context(), []egress.Source{{Name: "hmn", Type: egress.SourceExec, Command: sh(
		`test -z "$SHUNT_PROXY$http_proxy$HTTPS_PROXY" && test $(readlink /proc/self/ns/net) = ` + namespace(t) + ` && cp ` + file + ` "$SHUNT_OUT"`,
	)}}, workdir(t), Options{}); err != nil || got.Count() != 1 {
		t.Errorf("without a way: %d profiles, %v", got.Count(), err)
	}
}

// namespace is the network namespace of the process's first thread, which must stay the
// one that all threads began in.
func namespace(t *testing.T) string {
	t.Helper()
	first, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	mine, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil || first != mine {
		t.Fatalf("the first thread is in %s, this one in %s: %v", first, mine, err)
	}
	return first
}

func TestWhereACommandCannotBeLedItIsNotRun(t *testing.T) {
	needsNamespaces(t)
	if os.Getenv("SHUNT_WITHOUT_ADMIN") == "" {
		// Once more in a process that may not make namespaces, as in many containers.
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		var out []byte
		go func() {
			runtime.LockOSThread() // never unlocked: the bounding set is the thread's, and its children's
			err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0)
			if err == nil {
				c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v")
				c.Env = append(os.Environ(), "SHUNT_WITHOUT_ADMIN=1")
				out, err = c.CombinedOutput()
			}
			done <- err
		}()
		if err := <-done; err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	l := sites(t)
	mark := filepath.Join(t.TempDir(), "ran")
	_, err := l.led(t, sh("touch "+mark)...)
	if err == nil || !strings.Contains(err.Error(), "cannot be led by the way that was found") || !errors.Is(err, unix.EPERM) {
		t.Errorf("want that it cannot be led, got %v", err)
	}
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was run: %v", err)
	}
}

func TestACommandProvesAWayWhenNoOtherSourceCan(t *testing.T) {
	needsNamespaces(t)
	l := sites(t)
	file := write(t, filepath.Join(t.TempDir(), "a.conf"), conf(1))
	command := func(argv []string) egress.Source {
		return egress.Source{Name: "fetched", Type: egress.SourceExec, Command: argv}
	}
	self := strings.Join(fetches(t, "http://list.example/"), " ")
	for _, c := range []struct {
		name, want string // "" = reached
		sources    []egress.Source
	}{
		{"it fetches", "", []egress.Source{command(fetches(t, "https://list.example/"))}},
		// The proof is the first profile: a command that crawls a site for minutes need not end.
		{"it goes on fetching", "", []egress.Source{command(sh("set -e; " + self + "; exec sleep 3600"))}},
		{"the second of two", "", []egress.Source{command(sh("exit 3")), command(fetches(t, "http://list.example/"))}},
		{"it needs no network", "reads nothing from the network", []egress.Source{command(sh("cp " + file + ` "$SHUNT_OUT"`))}},
		{"it gives nothing", "gave no profile", []egress.Source{command(sh("export SHUNT_OUT=" + t.TempDir() + "; " + self))}},
		{"the way leads elsewhere", "the way ends at other.example:80", []egress.Source{command(fetches(t, "http://other.example/"))}},
		{"there is a remote source", "source site", []egress.Source{
			command(fetches(t, "http://list.example/")),
			{Name: "site", Type: egress.SourceHTTP, URL: "http://other.example/"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			err := Reach(t.Context(), c.sources, l.opts)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
	if err := Reach(t.Context(), []egress.Source{command(fetches(t, "http://list.example/"))}, Options{}); err == nil {
		t.Error("a command proved that there is a way, without one")
	}
}

func TestNothingOfACommandThatWasLedIsLeft(t *testing.T) {
	needsNamespaces(t)
	l := sites(t)
	// A far end that accepts and never says anything, which the command leaves open.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var open atomic.Int32
	to := l.opts.DialContext
	l.opts.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address != "silent.example:443" {
			return to(ctx, network, address)
		}
		c, err := new(net.Dialer).DialContext(ctx, network, silent.Addr().String())
		if err == nil {
			open.Add(1)
			c = &closing{Conn: c, open: &open}
		}
		return c, err
	}
	was, first := runtime.NumGoroutine(), namespace(t)
	for range 3 {
		_, err := Fetch(t.Context(), []egress.Source{{
			Name: "hmn", Type: egress.SourceExec, Timeout: 500 * time.Millisecond, Command: fetches(t, "https://silent.example/"),
		}}, workdir(t), l.opts)
		if err == nil || !strings.Contains(err.Error(), "not done within 500ms") {
			t.Errorf("got %v", err)
		}
		if n := open.Load(); n != 0 {
			t.Errorf("%d connections are open after the fetch", n)
		}
	}
	end := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > was+2 && time.Now().Before(end) { // the test site keeps some of its own
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > was+2 {
		t.Errorf("%d goroutines before, %d after", was, n)
	}
	if now := namespace(t); now != first {
		t.Errorf("the process is in namespace %s, and was in %s", now, first)
	}
}

type closing struct {
	net.Conn
	open   *atomic.Int32
	closed atomic.Bool
}

func (c *closing) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}
