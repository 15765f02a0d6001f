package edgestory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

// dial opens a socket of the client's.
func dial(w *edgeworld.World, network string) (net.Conn, error) {
	var c net.Conn
	err := w.Client.Do(func() (err error) {
		c, err = net.DialTimeout(network, w.VIP(4).String(), 2*time.Second) //nolint:noctx // bounded by its timeout
		return err
	})
	return c, err
}

func udpScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-udp", Summary: "a client that sends 20 datagrams a second from one port keeps being answered when its server's process or host dies",
		Flags: []lab.Flag{{Name: "deaths", Value: "6", Usage: "how many, processes and hosts in turn"}},
		Run:   playUDP,
	}
}

// udpMove is the bound from the alert to the survivor's first answer.
const udpMove = 300 * time.Millisecond

func playUDP(ctx context.Context, e *lab.Env) error {
	s, done, err := openWatched(ctx, e, edgeworld.Options{}, backend.Options{UDP: true}, edgeworld.Config{
		Service: edgeworld.Settings{"protocols": []string{"tcp", "udp"}}, Probe: probes("200ms", "100ms"),
	})
	if err != nil {
		return err
	}
	defer done()
	for i := range e.Int("deaths") {
		victim, err := s.nextVictim(ctx)
		if err != nil {
			return err
		}
		if err := s.oneUDP(ctx, victim, i%2 == 1); err != nil {
			return fmt.Errorf("death %d: %w", i+1, err)
		}
	}
	return nil
}

func (s *stage) oneUDP(ctx context.Context, victim *edgeworld.Backend, asHost bool) error {
	c, err := dial(s.w, "udp")
	if err != nil {
		return err
	}
	defer c.Close()
	heard := newVoices(c)
	sending, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for sending.Err() == nil {
			_, _ = c.Write([]byte("hello"))
			lab.Sleep(sending, 50*time.Millisecond)
		}
	}()
	if err := lab.Await(ctx, 3*time.Second, "an answer of "+victim.Name, func() bool { return !heard.first(victim.Name).IsZero() }); err != nil {
		return err
	}
	s.Control("answered_before", 1, true)
	lab.Sleep(ctx, spread(100*time.Millisecond))
	d := death{how: process, victim: victim}
	if asHost {
		d.how = host
	}
	died, err := d.kill()
	if err != nil {
		return err
	}
	ev, err := s.waitEvent(ctx, "move", died, 10*time.Second)
	if err != nil {
		return err
	}
	other := others(s.w, victim)[0]
	if err := lab.Await(ctx, 5*time.Second, "an answer of "+other, func() bool { return !heard.first(other).IsZero() }); err != nil {
		s.Problem("the socket never moved: %v", err)
		return nil
	}
	move := max(0, heard.first(other).Sub(ev.Time))
	s.MS("move", move)
	s.MS("from_death", heard.first(other).Sub(died))
	s.Want(move <= udpMove, "the socket was answered by %s %.0f ms after the move, bound %.0f", other, millis(move), millis(udpMove))
	return nil
}

// voices notes who answers a socket, and when first.
type voices struct {
	mu sync.Mutex
	at map[string]time.Time
}

func newVoices(c net.Conn) *voices {
	v := &voices{at: map[string]time.Time{}}
	go func() {
		b := make([]byte, 2048)
		for {
			n, err := c.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(time.Millisecond) // a port that is closed just now
				continue
			}
			who, _, _ := strings.Cut(string(b[:n]), ":")
			v.mu.Lock()
			if v.at[who].IsZero() {
				v.at[who] = time.Now()
			}
			v.mu.Unlock()
		}
	}()
	return v
}

func (v *voices) first(who string) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.at[who]
}

func halfOpenScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-halfopen", Summary: "connections begun toward a host that is silent already, and not yet known to be dead, come about at their first retransmission",
		Flags: []lab.Flag{{Name: "deaths", Value: "6", Usage: "how many"}},
		Run:   playHalfOpen,
	}
}

// A first SYN is sent again after a second.
const retransmit = 1300 * time.Millisecond

func playHalfOpen(ctx context.Context, e *lab.Env) error {
	s, done, err := openWatched(ctx, e, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(nil), Probe: probes("250ms", "150ms")})
	if err != nil {
		return err
	}
	defer done()
	late := 0
	for i := range e.Int("deaths") {
		victim, err := s.nextVictim(ctx)
		if err != nil {
			return err
		}
		o := patientClient(s.w)
		d := death{how: host, victim: victim, client: o, phase: 250 * time.Millisecond}
		g, err := d.play(ctx, s.w)
		if err != nil {
			return fmt.Errorf("death %d: %w", i+1, err)
		}
		moved, err := s.waitEvent(ctx, "move", g.died, 5*time.Second)
		if err != nil {
			return err
		}
		for _, c := range g.result.Conns {
			if c.Start.Before(g.died) || c.Start.After(moved.Time) || c.Who == victim.Name {
				continue
			}
			late++
			s.MS("connect", c.Done.Sub(c.Start))
			s.Want(c.Fault == gap.None && c.Done.Sub(c.Start) <= retransmit, "a connection begun %.0f ms after the death: %q after %.0f ms", millis(c.Start.Sub(g.died)), c.Fault, millis(c.Done.Sub(c.Start)))
		}
	}
	e.Control("begun_in_silence", float64(late), late > 0)
	return nil
}

func resetDeadScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-reset-dead", Summary: "with reset_dead a client that sends to a silent host is reset at its first retransmission after the veto; without it nothing is cut",
		Flags: []lab.Flag{{Name: "deaths", Value: "4", Usage: "how many with it"}},
		Run:   playResetDead,
	}
}

const resetBound = 1500 * time.Millisecond

func playResetDead(ctx context.Context, e *lab.Env) error {
	s, done, err := open(ctx, e, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(nil), Probe: probes("100ms", "100ms")})
	if err != nil {
		return err
	}
	defer done()
	for i := range e.Int("deaths") + 1 {
		cut := i > 0
		if err := s.w.Configure(edgeworld.Config{Service: service(edgeworld.Settings{"reset_dead": cut}), Probe: probes("100ms", "100ms")}); err != nil {
			return err
		}
		if err := heal(ctx, s.w); err != nil {
			return err
		}
		if err := s.watch(); err != nil {
			return err
		}
		victim, err := s.calm(ctx, true)
		if err == nil {
			err = s.oneReset(ctx, victim, cut)
		}
		s.wd.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// oneReset lets a host fall silent under a client that sends each 100 ms.
func (s *stage) oneReset(ctx context.Context, victim *edgeworld.Backend, cut bool) error {
	c, err := dial(s.w, "tcp")
	if err != nil {
		return err
	}
	defer c.Close()
	ended := make(chan time.Time, 2)
	go func() {
		b := make([]byte, 512)
		for {
			if _, err := c.Read(b); err != nil {
				ended <- time.Now()
				return
			}
		}
	}()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for sending.Err() == nil {
			if _, err := c.Write([]byte("more\n")); err != nil {
				return
			}
			lab.Sleep(sending, 100*time.Millisecond)
		}
	}()
	lab.Sleep(ctx, 300*time.Millisecond)
	died := time.Now()
	if err := victim.Silence(true); err != nil {
		return err
	}
	defer victim.Silence(false) //nolint:errcheck // the world is healed or gone after it
	ev, err := s.waitEvent(ctx, "move", died, 10*time.Second)
	if err != nil {
		return err
	}
	select {
	case at := <-ended:
		if !cut {
			s.Problem("without reset_dead a connection was cut %.0f ms after the veto", millis(at.Sub(ev.Time)))
			return nil
		}
		s.MS("reset", at.Sub(ev.Time))
		s.Want(at.Sub(ev.Time) <= resetBound, "reset %.0f ms after the veto, bound %.0f", millis(at.Sub(ev.Time)), millis(resetBound))
	case <-time.After(5 * time.Second):
		s.Want(!cut, "with reset_dead the client still hangs 5 s after the veto")
		if !cut {
			s.Control("hangs_without_it", 1, true)
		}
	}
	return nil
}
