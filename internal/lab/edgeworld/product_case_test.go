package edgeworld_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// The product works in these tests as users have it: built by go, beside the test binary.

// product is where it is built.
func product(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	return filepath.Join(filepath.Dir(exe), "shunt.product")
}

// isInsideWithProduct builds the product, once for all tests, and is cage.Inside.
func isInsideWithProduct(t *testing.T, limit time.Duration) bool {
	t.Helper()
	if os.Getuid() == 0 {
		ensureProduct(t)
	}
	return cage.Inside(t, limit)
}

// ensureProduct builds it where no other test of this run has: tests that run at the same time wait
// for the first of them.
func ensureProduct(t *testing.T) {
	t.Helper()
	lock, err := os.OpenFile(product(t)+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	defer lock.Close()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	if _, err := os.Stat(product(t)); err == nil {
		return
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", product(t), "github.com/shunt-net/shunt/cmd/shunt").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
}

// stage is a world with the product in it.
type stage struct {
	*edgeworld.World
	t *testing.T
	r *edgeworld.Replica // r1, which holds the address
}

func newStage(t *testing.T, o edgeworld.Options, so backend.Options, c edgeworld.Config) *stage {
	t.Helper()
	o.Dir = filepath.Join(os.Getenv("SHUNT_LAB_DIR"), fmt.Sprint("world-", time.Now().UnixNano())) // one after the other
	o.Binary = product(t)
	must(t, os.Mkdir(o.Dir, 0o750))
	w, err := edgeworld.Build(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	must(t, w.Configure(c))
	for _, b := range w.Backends {
		must(t, b.Start(t.Context(), so))
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, r := range w.Replicas {
			journal, _ := os.ReadFile(filepath.Join(r.State, "events.jsonl"))
			t.Logf("journal of %s:\n%s", r.Name, journal)
		}
	})
	return &stage{World: w, t: t, r: w.Replicas[0]}
}

// watch starts a watchdog on a replica.
func (s *stage) watch(r *edgeworld.Replica) *lab.Proc {
	s.t.Helper()
	p, err := r.Start("watchdog-"+r.Name, "watchdog", "--for", "1h")
	must(s.t, err)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("watchdog of %s:\n%s", r.Name, p.Tail())
		}
	})
	return p
}

// shunt runs the product on a replica; codes are those that are good, by default 0.
func (s *stage) shunt(r *edgeworld.Replica, args []string, codes ...int) string {
	s.t.Helper()
	res := r.Shunt(s.t.Context(), args...)
	if codes == nil {
		codes = []int{0}
	}
	for _, c := range codes {
		if res.Code == c {
			return string(res.Stdout)
		}
	}
	s.t.Fatalf("%s: shunt %v: exit code %d, want one of %v\n%s%s", r.Name, args, res.Code, codes, res.Stdout, res.Stderr)
	return ""
}

// seen is `edge status` as tests read it.
type seen struct {
	edgeworld.Status
	Code int
}

func (s *stage) status(r *edgeworld.Replica) seen {
	s.t.Helper()
	st, code, err := r.Status(s.t.Context())
	must(s.t, err)
	return seen{st, code}
}

// target is whom the first service leads to.
func (x seen) target() string {
	if len(x.Services) == 0 {
		return ""
	}
	return x.Services[0].Candidate
}

// state is how a candidate of the first service stands.
func (x seen) state(candidate string) string {
	for _, c := range x.Services[0].Candidates {
		if c.Candidate == candidate {
			return c.State
		}
	}
	return ""
}

// states are how a candidate stands in each service and family.
func (x seen) states(candidate string) (out []string) {
	for _, s := range x.Services {
		for _, c := range s.Candidates {
			if c.Candidate == candidate {
				out = append(out, c.State)
			}
		}
	}
	return out
}

// targets are whom each service and family leads to.
func (x seen) targets() (out []string) {
	for _, s := range x.Services {
		out = append(out, s.Candidate)
	}
	return out
}

// every says whether a list has something, and all of it is one word.
func every(list []string, word string) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(s string) bool { return s != word })
}

// table is a replica's table as nft lists it; "" = there is none.
func (s *stage) table(r *edgeworld.Replica) string {
	out, err := s.try(r.NS, "", "nft", "-s", "list", "table", "inet", "shunt_edge")
	if err != nil {
		return ""
	}
	return out
}

// leads is where a replica's kernel leads the virtual address, by its table; "" = nowhere.
func (s *stage) leads(r *edgeworld.Replica) string {
	text := s.table(r)
	for _, b := range s.Backends {
		if strings.Contains(text, fmt.Sprintf(": %s . ", b.Addr4)) && strings.Contains(text, edgeworld.VIP4+" . ") {
			return b.Name
		}
	}
	return ""
}

// try runs a program in a namespace.
func (s *stage) try(ns *cage.Namespace, stdin string, argv ...string) (string, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	must(s.t, ns.Start(cmd))
	err := cmd.Wait()
	return out.String(), err
}

// do is try that must succeed.
func (s *stage) do(ns *cage.Namespace, argv ...string) string {
	s.t.Helper()
	out, err := s.try(ns, "", argv...)
	if err != nil {
		s.t.Fatalf("%s: %v: %v\n%s", ns.Name, argv, err, out)
	}
	return out
}

// await polls until ok, and returns how long that took.
func (s *stage) await(limit time.Duration, what string, ok func() bool) time.Duration {
	s.t.Helper()
	began := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := began.Add(limit); !ok(); <-tick.C {
		if time.Now().After(end) {
			s.t.Fatalf("not within %s: %s", limit, what)
		}
	}
	return time.Since(began)
}

// calm waits until every candidate is up, r's table leads somewhere and its watchdog holds a
// tripwire there. It returns whom it leads to.
func (s *stage) calm(r *edgeworld.Replica) *edgeworld.Backend {
	s.t.Helper()
	return s.settled(r, func(to *edgeworld.Backend) bool {
		n, err := to.Held(r.Back4)
		return err == nil && n > 0
	})
}

// unwired is calm for a service without tripwires.
func (s *stage) unwired(r *edgeworld.Replica) *edgeworld.Backend {
	s.t.Helper()
	return s.settled(r, func(*edgeworld.Backend) bool { return true })
}

func (s *stage) settled(r *edgeworld.Replica, also func(to *edgeworld.Backend) bool) (to *edgeworld.Backend) {
	s.t.Helper()
	s.await(30*time.Second, "a calm service", func() bool {
		to = s.led(r)
		return to != nil && also(to)
	})
	return to
}

// led is whom r's table leads to while every candidate is up, else nil.
func (s *stage) led(r *edgeworld.Replica) *edgeworld.Backend {
	s.t.Helper()
	x := s.status(r)
	for _, b := range s.Backends {
		if len(x.Services) == 0 || x.state(b.Name) != "up" {
			return nil
		}
	}
	if s.leads(r) == "" {
		return nil
	}
	return s.Backend(s.leads(r))
}

// told are the lines of a kind in a replica's journal.
func (s *stage) told(r *edgeworld.Replica, kind string) (out []string) {
	s.t.Helper()
	text, _ := os.ReadFile(filepath.Join(r.State, "events.jsonl"))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, fmt.Sprintf("%q:%q", "kind", kind)) {
			out = append(out, line)
		}
	}
	return out
}

// entries counts a replica's conntrack entries of a protocol that were sent to one address
// and are answered by another.
func (s *stage) entries(r *edgeworld.Replica, proto string, to netip.AddrPort, from netip.Addr) int {
	s.t.Helper()
	out := s.do(r.NS, "conntrack", "-L", "-p", proto, "--orig-dst", to.Addr().String(), "--orig-port-dst", fmt.Sprint(to.Port()), "--reply-src", from.String())
	n := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, proto) {
			n++
		}
	}
	return n
}

// mac is the hardware address of a namespace's interface.
func (s *stage) mac(ns *cage.Namespace, dev string) string {
	s.t.Helper()
	f := strings.Fields(s.do(ns, "ip", "-br", "link", "show", "dev", dev))
	if len(f) < 3 {
		s.t.Fatalf("%s: %s: %v", ns.Name, dev, f)
	}
	return f[2]
}
