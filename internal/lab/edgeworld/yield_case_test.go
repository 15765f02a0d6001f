package edgeworld_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// keepalive starts keepalived on a replica with what the product prints for it.
func (s *stage) keepalive(i int) {
	s.t.Helper()
	r := s.Replicas[i]
	var files []struct{ Replica, Text string }
	out := s.shunt(r, []string{"edge", "keepalived", "--interface", edgeworld.FrontInterface, "--program", product(s.t), "--output", "json"})
	if err := json.Unmarshal([]byte(out), &files); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	conf := filepath.Join(s.Dir, "keepalived-"+r.Name)
	must(s.t, os.WriteFile(conf, []byte(files[i].Text), 0o600))
	p, err := r.Spawn("keepalived-"+r.Name, "/usr/sbin/keepalived", "-n", "-l", "-D", "-P", "-f", conf, "-p", conf+".pid", "-r", conf+".vrrp")
	must(s.t, err)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("keepalived of %s:\n%s", r.Name, p.Tail())
		}
	})
}

// holds says whether a replica has the address.
func (s *stage) holds(r *edgeworld.Replica) bool {
	return strings.Contains(s.do(r.NS, "ip", "-4", "-o", "addr", "show", "dev", edgeworld.FrontInterface), edgeworld.VIP4+"/")
}

const splitTable = "table inet split { chain in { type filter hook input priority -300; ip protocol 112 drop; }; }"

// Case: split brain. Two machines take the address because neither hears the other, and they see
// different candidates dead. When they hear each other again one yields: clients find the other
// one's hardware address, and both tables lead to the same candidate, within 2 s.
func TestOneOfTwoHoldersYields(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/sbin/keepalived"); err != nil {
		t.Skip("needs keepalived")
	}
	if !isInsideWithProduct(t, 3*time.Minute) {
		return
	}
	s := newStage(t, edgeworld.Options{Replicas: 2, Backends: 2}, backend.Options{}, edgeworld.Config{Service: service(nil)})
	r1, r2 := s.Replicas[0], s.Replicas[1]
	must(t, r1.Claim(false))
	s.do(r1.NS, "ip", "addr", "add", "10.20.0.1/24", "dev", edgeworld.BackInterface)
	s.shunt(r1, []string{"edge", "retarget"}, 0, 4)
	for i, r := range s.Replicas {
		s.keepalive(i)
		s.watch(r)
	}
	s.await(20*time.Second, r1.Name+" to hold the address alone", func() bool { return s.holds(r1) && !s.holds(r2) })
	first := s.calm(r1)
	second := s.Backend(map[string]string{"a": "b", "b": "a"}[first.Name])

	s.split(first, second)
	macs := map[string]string{s.mac(r1.NS, edgeworld.FrontInterface): r1.Name, s.mac(r2.NS, edgeworld.FrontInterface): r2.Name}
	who := func() string {
		f := strings.Fields(s.do(s.Client, "ip", "neigh", "show", edgeworld.VIP4))
		for i, w := range f {
			if w == "lladdr" {
				return macs[f[i+1]]
			}
		}
		return ""
	}
	s.do(s.Client, "ip", "neigh", "replace", edgeworld.VIP4, "lladdr", s.mac(r2.NS, edgeworld.FrontInterface), "dev", edgeworld.FrontInterface, "nud", "reachable")
	if got := who(); got != r2.Name {
		t.Fatalf("the client believes in %q", got)
	}

	// It ends.
	s.do(r2.NS, "nft", "delete table inet blind")
	for _, r := range s.Replicas {
		must(t, r.Isolate(false))
		s.do(r.NS, "nft", "delete table inet split")
	}
	yield := s.await(10*time.Second, r2.Name+" to yield", func() bool { return !s.holds(r2) })
	began := time.Now()
	s.await(10*time.Second, "the client to find "+r1.Name, func() bool { return who() == r1.Name })
	found := time.Since(began)
	s.await(10*time.Second, "equal tables", func() bool { return s.leads(r1) == s.leads(r2) })
	equal := time.Since(began)
	t.Logf("it yields after %s; then the client finds the other after %s, and the tables are equal after %s", yield.Round(time.Millisecond), found.Round(time.Millisecond), equal.Round(time.Millisecond))
	if max(found, equal) > 2*time.Second {
		t.Errorf("want both within 2 s")
	}
	if got := s.leads(r1); got != second.Name { // whose epoch is the higher one
		t.Errorf("both lead to %s, want %s", got, second.Name)
	}
	if got := asked(t, s.World, s.VIP(4)); got != second.Name {
		t.Errorf("%s answers, want %s", got, second.Name)
	}
	s.await(40*time.Second, "all to be well", func() bool { return s.status(r1).Code == 0 && s.status(r1).Digest == s.status(r2).Digest })
	if a, b := s.leads(r1), s.leads(r2); a != second.Name || b != second.Name {
		t.Errorf("then they lead to %s and %s, want %s", a, b, second.Name)
	}
}

// split lets two replicas lose each other, and the second one also the way to the target, until
// both hold the address, lead to different candidates, and have announced themselves in full.
func (s *stage) split(first, second *edgeworld.Backend) {
	s.t.Helper()
	r1, r2 := s.Replicas[0], s.Replicas[1]
	for _, r := range s.Replicas {
		s.do(r.NS, "nft", splitTable)
		must(s.t, r.Isolate(true))
	}
	s.do(r2.NS, "nft", fmt.Sprintf("table inet blind { chain out { type filter hook output priority 0; ip daddr %s drop; }; }", first.Addr4))
	s.await(20*time.Second, "both to hold the address", func() bool { return s.holds(r1) && s.holds(r2) })
	masters := time.Now()
	s.await(20*time.Second, r2.Name+" to move", func() bool { return s.leads(r2) == second.Name })
	if got := s.leads(r1); got != first.Name {
		s.t.Fatalf("%s leads to %s, want %s: nothing to prove", r1.Name, got, first.Name)
	}
	const again = 6 * time.Second // after which keepalived announces a new master once more
	s.await(20*time.Second, "the last announcement of a new master", func() bool { return time.Since(masters) > again })
}
