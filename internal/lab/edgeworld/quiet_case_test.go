package edgeworld_test

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// dial opens a client's connection to the virtual address.
func (s *stage) dial() net.Conn {
	s.t.Helper()
	var c net.Conn
	must(s.t, s.Client.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", s.VIP(4).String(), 2*time.Second)
		return err
	}))
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Case: flows are cut by a blip. With reset_dead a host is silent until it has missed one probe,
// and no longer. The connection that was open goes on; nothing is vetoed, moved or told.
func TestABlipCutsNothing(t *testing.T) {
	t.Parallel()
	if !isInsideWithProduct(t, 2*time.Minute) {
		return
	}
	s := newStage(t, edgeworld.Options{}, backend.Options{}, edgeworld.Config{
		// Status shows a miss within 2 s, and a tripwire that hears nothing for 4 s has its candidate asked at once.
		Service: service(edgeworld.Settings{"reset_dead": true, "tripwire": false}), Probe: edgeworld.Settings{"interval": "4s", "cap": "500ms"},
	})
	s.watch(s.r)
	a := s.unwired(s.r)
	c := s.dial()
	r := bufio.NewReader(c)
	echo := func(word string) {
		t.Helper()
		must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		if _, err := c.Write([]byte(word + "\n")); err != nil {
			t.Fatalf("the connection is cut: %v", err)
		}
		if line, err := r.ReadString('\n'); err != nil || line != word+"\n" {
			t.Fatalf("the connection is cut: %q, %v", line, err)
		}
	}
	if line, err := r.ReadString('\n'); err != nil || line != a.Name+"\n" {
		t.Fatalf("%q, %v", line, err)
	}
	echo("before")
	before := len(s.told(s.r, "move"))
	for range 3 {
		must(t, a.Silence(true))
		s.await(10*time.Second, "a missed probe", func() bool { return slices.Contains(s.status(s.r).states(a.Name), "suspect") })
		must(t, a.Silence(false))
		echo("after it")
		s.await(10*time.Second, "a good answer", func() bool { return every(s.status(s.r).states(a.Name), "up") })
	}
	if n := len(s.told(s.r, "veto")) + len(s.told(s.r, "move")) - before; n != 0 {
		t.Errorf("%d vetoes and moves", n)
	}

	// A real silence is still seen, and cuts it.
	must(t, a.Silence(true))
	s.await(20*time.Second, "the move", func() bool { return s.leads(s.r) != a.Name })
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, _ = c.Write([]byte("are you there\n"))
	if _, err := r.ReadString('\n'); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection to the dead one: %v, want a reset", err)
	}
	must(t, a.Silence(false))
}

// Cases: a prober uses up the connections that a server grants an address; servers that want the
// PROXY protocol log errors about it. Under a watchdog, and over a hand-over to the next one, such
// a server is healthy, complains of nobody, and clients come in.
func TestServersThatCountAndServersThatWantAHeader(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server  backend.Options
		service edgeworld.Settings
		probe   edgeworld.Settings
	}{
		"the fourth connection of an address in 4 s is closed": {
			backend.Options{Throttle: 3, Window: 4 * time.Second}, nil, edgeworld.Settings{"interval": "1s"},
		},
		"the PROXY protocol, tcp": {
			backend.Options{Proxy: true}, nil, edgeworld.Settings{"proxy_v2": true, "interval": "300ms", "cap": "300ms"},
		},
		"the PROXY protocol, status_ping, with logins": {
			backend.Options{Proxy: true, Kind: backend.Status}, nil, edgeworld.Settings{"type": "status_ping", "login": true, "proxy_v2": true, "interval": "300ms", "cap": "300ms"},
		},
		"idle connections end after 1 s, the PROXY protocol": {
			backend.Options{Proxy: true, Idle: time.Second}, nil, edgeworld.Settings{"proxy_v2": true, "interval": "300ms", "cap": "300ms"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each in a cage of its own
			if !isInsideWithProduct(t, time.Minute) {
				return
			}
			s := newStage(t, edgeworld.Options{}, c.server, edgeworld.Config{Service: service(c.service), Probe: c.probe})
			first := s.watch(s.r)
			s.await(20*time.Second, "both to be up", func() bool {
				x := s.status(s.r)
				return len(x.Services) > 0 && x.state("a") == "up" && x.state("b") == "up"
			})
			before := map[string]int{} // of the first connection through the table, which is measured
			for _, b := range s.Backends {
				before[b.Name] = b.Complaints()
			}
			rounds := func() {
				for range 3 {
					if c.server.Throttle > 0 {
						s.greets("a")
						<-time.After(time.Second)
					}
					<-time.After(time.Second)
				}
			}
			rounds()
			first.Stop()
			s.watch(s.r)
			rounds()
			if n := len(s.told(s.r, "veto")); n != 0 {
				t.Errorf("%d vetoes of living servers", n)
			}
			for _, b := range s.Backends {
				if n := b.Complaints() - before[b.Name]; n != 0 {
					t.Errorf("%s complains %d times:\n%s", b.Name, n, b.Output())
				}
			}
		})
	}
}

// greets wants a client's connection to be answered by name.
func (s *stage) greets(name string) {
	s.t.Helper()
	c := s.dial()
	must(s.t, c.SetDeadline(time.Now().Add(2*time.Second)))
	if line, err := bufio.NewReader(c).ReadString('\n'); line != name+"\n" {
		s.t.Errorf("a client got %q, %v", line, err)
	}
	_ = c.Close()
}

// Case: a server answers and takes no logins. It is told of, others come first, and nothing
// goes to and fro.
func TestAServerThatTurnsLoginsAway(t *testing.T) {
	t.Parallel()
	if !isInsideWithProduct(t, 2*time.Minute) {
		return
	}
	s := newStage(t, edgeworld.Options{}, backend.Options{Kind: backend.Status}, edgeworld.Config{
		Service: service(edgeworld.Settings{"reset_dead": true}), Probe: edgeworld.Settings{"type": "status_ping", "login": true, "interval": "300ms", "cap": "300ms"},
	})
	a := s.Backend("a")
	s.watch(s.r)
	s.await(20*time.Second, "a to serve", func() bool {
		x := s.status(s.r)
		return s.leads(s.r) == "a" && x.state("a") == "up" && x.state("b") == "up"
	})
	a.Kill()
	s.await(10*time.Second, "the move to b", func() bool { return s.leads(s.r) == "b" })
	must(t, a.Start(t.Context(), backend.Options{Kind: backend.Status, Reject: true}))
	s.await(20*time.Second, "it to be told of", func() bool { return len(s.told(s.r, "refuses_logins")) > 0 })
	s.Backend("b").Kill() // the only one that takes logins
	s.await(10*time.Second, "the move to a: better than nobody", func() bool { return s.leads(s.r) == "a" })
	must(t, s.Backend("b").Restart(t.Context()))
	s.await(20*time.Second, "the move to b, which takes logins", func() bool { return s.leads(s.r) == "b" && every(s.status(s.r).targets(), "b") })
	moves := len(s.told(s.r, "move"))
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
		if got := s.leads(s.r); got != "b" {
			t.Fatalf("it went to %q", got)
		}
	}
	if n := len(s.told(s.r, "move")); n != moves {
		t.Errorf("%d moves more", n-moves)
	}
}
