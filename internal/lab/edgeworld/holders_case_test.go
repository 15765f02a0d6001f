package edgeworld_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

func service(more edgeworld.Settings) edgeworld.Settings {
	out := edgeworld.Settings{"protocols": []string{"tcp"}}
	for k, v := range more {
		out[k] = v
	}
	return out
}

// pin makes the client and the backends use one of two holders.
func (s *stage) pin(r *edgeworld.Replica) {
	s.t.Helper()
	s.do(s.Client, "ip", "neigh", "replace", edgeworld.VIP4, "lladdr", s.mac(r.NS, edgeworld.FrontInterface), "dev", edgeworld.FrontInterface, "nud", "permanent")
	for _, b := range s.Backends {
		s.do(b.NS, "ip", "neigh", "replace", "10.20.0.1", "lladdr", s.mac(r.NS, edgeworld.BackInterface), "dev", edgeworld.BackInterface, "nud", "permanent")
	}
}

// diesUnderBoth kills the target of two holders: both lead to one survivor, and clients of each are answered by it.
func (s *stage) diesUnderBoth(dead *edgeworld.Backend) {
	s.t.Helper()
	r1, r2 := s.Replicas[0], s.Replicas[1]
	s.await(10*time.Second, "both tables to lead to "+dead.Name, func() bool { return s.leads(r1) == dead.Name && s.leads(r2) == dead.Name })
	dead.Kill()
	both := s.await(10*time.Second, "both tables to lead elsewhere", func() bool {
		a, b := s.leads(r1), s.leads(r2)
		return a != dead.Name && a == b
	})
	survivor := s.leads(r1)
	s.t.Logf("%s died: both lead to %s after %s", dead.Name, survivor, both.Round(time.Millisecond))
	for range 50 { // and stay there, together
		if a, b := s.leads(r1), s.leads(r2); a != survivor || b != survivor {
			s.t.Fatalf("%s leads to %s and %s to %s, want %s", r1.Name, a, r2.Name, b, survivor)
		}
	}
	for _, r := range s.Replicas {
		s.pin(r)
		if got := asked(s.t, s.World, s.VIP(4)); got != survivor {
			s.t.Errorf("by way of %s %s answers, want %s", r.Name, got, survivor)
		}
	}
	s.await(10*time.Second, "equal digests", func() bool { return s.status(r1).Digest == s.status(r2).Digest })
}

// Case: two machines have the address at once, for long, each with a watchdog of its own. Both
// lead to the same target, before and after its death; their digests are equal; both say so.
func TestTwoHoldersForLong(t *testing.T) {
	t.Parallel()
	if !isInsideWithProduct(t, 3*time.Minute) {
		return
	}
	s := newStage(t, edgeworld.Options{Replicas: 2, Backends: 3}, backend.Options{}, edgeworld.Config{Service: service(nil)})
	r1, r2 := s.Replicas[0], s.Replicas[1]
	alerts := filepath.Join(s.Dir, "alerts")
	s.do(r2.NS, "ip", "addr", "add", edgeworld.VIP4+"/32", "dev", edgeworld.FrontInterface)
	s.do(r2.NS, "ip", "addr", "add", edgeworld.VIP6+"/128", "dev", edgeworld.FrontInterface, "nodad")
	for _, r := range s.Replicas {
		must(t, r.Configure(edgeworld.Config{Service: service(nil), Top: edgeworld.Settings{"alerts": edgeworld.Settings{"targets": []edgeworld.Settings{
			{"name": "file", "type": "command", "command": []string{"tee", "-a", alerts + "-" + r.Name}},
		}}}}))
	}
	for _, r := range s.Replicas {
		s.watch(r)
	}
	dead := s.calm(r1)
	s.calm(r2)
	for range 3 {
		s.diesUnderBoth(dead)
		must(t, dead.Restart(t.Context()))
		dead = s.calm(r1)
		s.calm(r2)
	}
	for _, r := range s.Replicas { // a new holder's predecessor is at work for 30 s, by its lease: only then it is told
		s.await(60*time.Second, r.Name+" to say so", func() bool {
			x := s.status(r)
			return x.Code == 3 && strings.Contains(fmt.Sprint(x.Notes), "two_holders")
		})
		s.await(20*time.Second, r.Name+" to tell somebody", func() bool {
			text, _ := os.ReadFile(alerts + "-" + r.Name)
			return strings.Contains(string(text), "edge.two_holders")
		})
	}
	s.do(r2.NS, "ip", "addr", "del", edgeworld.VIP4+"/32", "dev", edgeworld.FrontInterface)
	s.do(r2.NS, "ip", "addr", "del", edgeworld.VIP6+"/128", "dev", edgeworld.FrontInterface)
	s.await(40*time.Second, "all to be well again", func() bool { return s.status(r1).Code == 0 })
	if a, b := s.leads(r1), s.leads(r2); a != dead.Name || b != dead.Name {
		t.Errorf("the end of it moved something: %s, %s, want %s", a, b, dead.Name)
	}
}
