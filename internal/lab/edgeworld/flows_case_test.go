package edgeworld_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// public is a service's port where it is not that of its candidates.
const public = 25565

// ported is a service of both protocols at another port than its candidates'.
func (s *stage) ported(more edgeworld.Settings) edgeworld.Settings {
	var candidates []edgeworld.Settings
	for _, b := range s.Backends {
		candidates = append(candidates, edgeworld.Settings{"name": b.Name, "addresses": []string{b.Addr4.String()}, "port": edgeworld.Port})
	}
	out := edgeworld.Settings{"vip": []string{edgeworld.VIP4}, "port": public, "protocols": []string{"tcp", "udp"}, "candidates": candidates}
	for k, v := range more {
		out[k] = v
	}
	return out
}

// talker is a client's socket that sends 20 datagrams a second from one port.
type talker struct {
	net.Conn
	mu   sync.Mutex
	last string
	at   time.Time
}

func (s *stage) talk(to netip.AddrPort) *talker {
	s.t.Helper()
	c := &talker{}
	must(s.t, s.Client.Do(func() (err error) {
		c.Conn, err = net.Dial("udp", to.String())
		return err
	}))
	tick := time.NewTicker(50 * time.Millisecond)
	s.t.Cleanup(func() { tick.Stop(); _ = c.Close() })
	go func() {
		for range tick.C {
			if _, err := c.Write([]byte("hello")); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	go func() {
		b := make([]byte, 100)
		for {
			n, err := c.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // else a port that nobody listens at just now
				c.mu.Lock()
				c.last, _, _ = strings.Cut(string(b[:n]), ":")
				c.at = time.Now()
				c.mu.Unlock()
			}
		}
	}()
	return c
}

// heard is who answered last, and when.
func (c *talker) heard() (string, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.at
}

func (c *talker) by(name string, since time.Time) func() bool {
	return func() bool { who, at := c.heard(); return who == name && at.After(since) }
}

// Cases: UDP goes on to a candidate that is gone; nothing is cleaned where nobody is left; the
// clean-up takes flows that are not the service's. One socket follows the service from a to b,
// through a time in which all are dead, and back; flows to the candidates themselves, by the
// same port as theirs, are never touched.
func TestASocketFollowsTheServiceThroughTheDeathOfAll(t *testing.T) {
	t.Parallel()
	if !isInsideWithProduct(t, 2*time.Minute) {
		return
	}
	s := newStage(t, edgeworld.Options{}, backend.Options{UDP: true}, edgeworld.Config{})
	fast := edgeworld.Settings{"interval": "200ms", "cap": "100ms"}
	must(t, s.Configure(edgeworld.Config{Service: s.ported(nil), Probe: fast}))
	s.watch(s.r)
	a, b := s.Backend("a"), s.Backend("b")
	if first := s.calm(s.r); first != a {
		t.Fatalf("it leads to %s", first.Name)
	}
	vip := netip.AddrPortFrom(netip.MustParseAddr(edgeworld.VIP4), public)
	socket, direct := s.talk(vip), s.talk(a.Addr(4))
	s.await(5*time.Second, "answers of a", func() bool { return socket.by("a", time.Time{})() && direct.by("a", time.Time{})() })
	if n := s.entries(s.r, "udp", vip, a.Addr4); n != 1 {
		t.Fatalf("%d entries to a: nothing to prove", n)
	}

	// a dies, b lives.
	died := a.Kill()
	s.await(10*time.Second, "an answer of b", socket.by("b", died))
	moves := s.told(s.r, "move")
	if len(moves) != 2 { // the first target, and this
		t.Fatalf("moves: %v", moves)
	}
	_, at := socket.heard()
	if d := at.Sub(stamp(t, moves[1])); d > 300*time.Millisecond+50*time.Millisecond { // heard notes the last answer, one of 20 a second
		t.Errorf("answered by b %s after the move", d)
	}
	s.left(vip, a, 0)
	s.kept(a)

	// b dies too: nobody is left, and a returns.
	died = b.Kill()
	s.await(10*time.Second, "b to be out", func() bool { return s.status(s.r).state("b") == "vetoed" })
	if got := s.status(s.r).target(); got != "b" {
		t.Errorf("with all dead it leads to %q, want b: nobody is better", got)
	}
	must(t, a.Restart(t.Context()))
	s.await(10*time.Second, "an answer of a", socket.by("a", died))
	s.left(vip, b, 0)
	s.kept(a)
	s.await(5*time.Second, "an answer of a itself", direct.by("a", died))
}

// left wants so many entries of the service that lead to a candidate.
func (s *stage) left(vip netip.AddrPort, b *edgeworld.Backend, want int) {
	s.t.Helper()
	if n := s.entries(s.r, "udp", vip, b.Addr4); n != want {
		s.t.Errorf("%d entries of the service lead to %s, want %d", n, b.Name, want)
	}
}

// kept wants the entry of the direct flow, which no client's packet makes anew unseen: its
// id stays the same.
func (s *stage) kept(b *edgeworld.Backend) {
	s.t.Helper()
	if n := s.entries(s.r, "udp", b.Addr(4), b.Addr4); n != 1 {
		s.t.Errorf("%d entries of the direct flow to %s, want 1", n, b.Name)
	}
}

// stamp is the time of a line of the journal.
func stamp(t *testing.T, line string) time.Time {
	t.Helper()
	_, rest, _ := strings.Cut(line, `"time":"`)
	text, _, _ := strings.Cut(rest, `"`)
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", line, err))
	}
	return at
}
