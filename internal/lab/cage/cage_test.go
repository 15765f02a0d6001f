package cage_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

const inside = "SHUNT_LAB_TEST" // names the test whose cage a process belongs to

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == cage.Arg {
		os.Exit(cage.Init(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "litter" {
		os.Exit(litter(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 1 && os.Args[1] == "parent" {
		os.Exit(enter(context.Background(), os.Args[2], os.Args[3], os.Stdout))
	}
	os.Exit(m.Run())
}

// enter runs litter in a cage.
func enter(ctx context.Context, temp, how string, out io.Writer) int {
	code, err := cage.Enter(ctx, cage.Options{
		Command: []string{"/proc/self/exe", "litter", "{dir}", how}, Temp: temp,
		Env: []string{inside + "=" + temp, "PATH=" + os.Getenv("PATH")}, Stdout: out, Stderr: os.Stderr,
		Grace: 300 * time.Millisecond,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	return code
}

// litter makes all that a world makes, says so, and ends in the way asked for.
func litter(dir, how string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "litter:", err)
		return 98
	}
	spaces, err := cage.New("one", "two")
	if err != nil {
		return fail(err)
	}
	for _, args := range [][]string{
		{"ip", "-n", "one", "link", "add", "litter0", "type", "veth", "peer", "name", "litter1", "netns", "two"},
		{"ip", "link", "add", "litter2", "type", "veth", "peer", "name", "litter3"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fail(fmt.Errorf("%v: %w: %s", args, err, out))
		}
	}
	// An orphan in its own session, which outlives everything but the cage.
	if err := spaces[0].Start(exec.Command("setsid", "-f", "sleep", "1000")); err != nil {
		return fail(err)
	}
	if _, err := net.Listen("unix", "/run/wireguard/litter.sock"); err != nil {
		return fail(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "litter"), nil, 0o600); err != nil {
		return fail(err)
	}
	ids := []string{"ready"}
	for _, s := range append(spaces, nil) {
		path := "/proc/self/ns/net"
		if s == nil {
			path, _ = os.Readlink(path)
			ids = append(ids, path)
			continue
		}
		if err := s.Do(func() error {
			id, err := os.Readlink("/proc/thread-self/ns/net")
			ids = append(ids, id)
			return err
		}); err != nil {
			return fail(err)
		}
	}
	if how == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	fmt.Fprintln(os.Stdout, strings.Join(ids, " "))
	switch how {
	case "exit":
		return 7
	case "panic":
		panic("on purpose")
	}
	time.Sleep(time.Minute)
	return 0
}

func TestNothingIsLeftHoweverItEnds(t *testing.T) {
	root(t)
	for _, c := range []struct {
		name, how string
		end       func(t *testing.T, init int, cancel func())
		code      int
	}{
		{name: "the command exits", how: "exit", code: 7},
		{name: "the command panics", how: "panic", code: 2},
		{name: "the context ends", how: "wait", code: 128 + 15, end: func(_ *testing.T, _ int, cancel func()) { cancel() }},
		{name: "the context ends and the command does not care", how: "stubborn", code: 128 + 9, end: func(_ *testing.T, _ int, cancel func()) { cancel() }},
		{name: "pid 1 is killed", how: "wait", code: 128 + 9, end: func(t *testing.T, init int, _ func()) { kill(t, init) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := lookAtHost(t)
			temp := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, w := io.Pipe()
			code := make(chan int, 1)
			go func() {
				code <- enter(ctx, temp, c.how, w)
				w.Close()
			}()
			line, err := bufio.NewReader(r).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "ready ") {
				t.Fatalf("the command said %q, %v", line, err)
			}
			go func() { _, _ = io.Copy(io.Discard, r) }()
			if c.end != nil {
				// What is looked for afterwards is there before.
				if left := strings.Join(leftovers(temp, strings.Fields(line)[1:]), "\n"); !strings.Contains(left, "process") || !strings.Contains(left, "file") || !strings.Contains(left, "namespace") {
					t.Errorf("while it runs, only this was seen:\n%s", left)
				}
				c.end(t, pidOne(t, temp), cancel)
			}
			select {
			case got := <-code:
				if got != c.code {
					t.Errorf("exit code %d, want %d", got, c.code)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("Enter did not return")
			}
			// Enter has returned: nothing may be left at this very moment.
			if left := leftovers(temp, strings.Fields(line)[1:]); len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
			before.compare(t)
		})
	}
}

func TestNothingIsLeftWhenTheParentIsKilled(t *testing.T) {
	root(t)
	for _, c := range []struct {
		name string
		kill func(t *testing.T, parent, init int)
	}{
		{"the parent alone", func(t *testing.T, parent, _ int) { kill(t, parent) }},
		{"parent and pid 1 at once, then another cage is made", func(t *testing.T, parent, init int) {
			kill(t, init)
			kill(t, parent)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := lookAtHost(t)
			temp := t.TempDir()
			p := exec.Command("/proc/self/exe", "parent", temp, "wait")
			out, err := p.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			p.Stderr = os.Stderr
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "ready ") {
				t.Fatalf("the command said %q, %v", line, err)
			}
			c.kill(t, p.Process.Pid, pidOne(t, temp))
			_ = p.Wait()
			if strings.Contains(c.name, "another") {
				if code := enter(t.Context(), temp, "exit", io.Discard); code != 7 {
					t.Errorf("the next cage: exit code %d, want 7", code)
				}
			}
			var left []string
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
				if left = leftovers(temp, strings.Fields(line)[1:]); len(left) == 0 {
					break
				}
			}
			if len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
			before.compare(t)
		})
	}
}

func TestAFolderInUseIsNotSwept(t *testing.T) {
	root(t)
	temp := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() { done <- enter(ctx, temp, "wait", w) }()
	if line, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	if code := enter(t.Context(), temp, "exit", io.Discard); code != 7 {
		t.Fatalf("second cage: exit code %d, want 7", code)
	}
	if dirs, _ := filepath.Glob(temp + "/shunt-lab-*/litter"); len(dirs) != 1 {
		t.Errorf("the running cage's files: %q, want one", dirs)
	}
	cancel()
	<-done
}

func TestACommandFindsItsWorldInOrder(t *testing.T) {
	if !isInside(t) {
		return
	}
	spaces, err := cage.New("red", "blue")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a socket stays in the namespace that it was made in", func(t *testing.T) {
		up(t, "red")
		up(t, "blue")
		var c net.PacketConn
		if err := spaces[0].Do(func() (err error) { c, err = net.ListenPacket("udp", "127.0.0.1:4000"); return err }); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, s := range spaces {
			var d net.Conn
			if err := s.Do(func() (err error) { d, err = net.Dial("udp", "127.0.0.1:4000"); return err }); err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			fmt.Fprint(d, s.Name)
		}
		b := make([]byte, 100)
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, _, err := c.ReadFrom(b)
		if err != nil || string(b[:n]) != "red" {
			t.Errorf("got %q, %v; want red", b[:n], err)
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, _, err := c.ReadFrom(b); err == nil {
			t.Errorf("got %q from the other namespace", b[:n])
		}
	})
	t.Run("a command sees its namespace in /proc and /sys", func(t *testing.T) {
		for _, s := range spaces {
			run(t, "ip", "-n", s.Name, "link", "add", s.Name+"0", "type", "veth", "peer", "name", s.Name+"1")
		}
		var out bytes.Buffer
		cmd := exec.Command("sh", "-c", "ls /sys/class/net; cat /proc/sys/net/ipv4/ip_forward; ip netns list | wc -l")
		cmd.Stdout = &out
		if err := spaces[0].Sysctl(map[string]string{"net/ipv4/ip_forward": "1"}); err != nil {
			t.Fatal(err)
		}
		if err := spaces[0].Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		want := []string{"lo", "red0", "red1", "1", "2"}
		if got := strings.Fields(out.String()); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("orphans are reaped and children are not stolen", func(t *testing.T) {
		for range 20 {
			if err := exec.Command("sh", "-c", "(sleep 0.01 &) ; exit 3").Run(); err == nil || !strings.Contains(err.Error(), "status 3") {
				t.Fatalf("got %v, want exit status 3", err)
			}
		}
		var dead []string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			if dead = zombies(); len(dead) == 0 {
				return
			}
		}
		t.Errorf("zombies: %q", dead)
	})
	t.Run("a failed command leaves no half of a namespace", func(t *testing.T) {
		if _, err := cage.New("green", "red/no"); err == nil {
			t.Error("a name with a slash was accepted")
		}
		if _, err := os.Stat("/run/netns/green"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("green is still there: %v", err)
		}
	})
}

// zombies are processes that ended and that nobody waited for.
func zombies() []string {
	var out []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, s := range stats {
		b, _ := os.ReadFile(s)
		if _, rest, ok := strings.Cut(string(b), ") "); ok && strings.HasPrefix(rest, "Z") {
			out = append(out, string(b))
		}
	}
	return out
}

func root(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes namespaces")
	}
}

// isInside runs the test again inside a cage and returns false, or is true there.
func isInside(t *testing.T) bool {
	t.Helper()
	return cage.Inside(t, time.Minute)
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

func up(t *testing.T, ns string) {
	t.Helper()
	run(t, "ip", "-n", ns, "link", "set", "lo", "up")
}
