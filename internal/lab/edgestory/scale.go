package edgestory

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

func scaleScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-scale", Summary: "a run over a thousand services of four candidates each, and one over a single service",
		Flags: []lab.Flag{{Name: "services", Value: "1000", Usage: "how many"}, {Name: "times", Value: "5", Usage: "runs of each kind"}},
		Run:   playScale,
	}
}

// The bounds of edge-scale.
const (
	scaleRetarget = time.Second
	scaleNoChange = 150 * time.Millisecond
	oneNoChange   = 50 * time.Millisecond
	oneMemory     = 50 << 20 // bytes
)

func playScale(ctx context.Context, e *lab.Env) error {
	n := e.Int("services")
	// Each service has a port of its own, as real ones do: thousands of probes a second of one
	// port leave so many sockets in TIME_WAIT that each search for a free one takes long.
	s, done, err := open(ctx, e, edgeworld.Options{Backends: 4}, backend.Options{Port: scalePort, Ports: n}, edgeworld.Config{})
	if err != nil {
		return err
	}
	defer done()
	if err := s.oneService(ctx); err != nil {
		return err
	}
	if err := s.w.Configure(edgeworld.Config{Services: s.services(n)}); err != nil {
		return err
	}
	r := s.r.Run(ctx, lab.Call{Args: []string{"edge", "retarget", "--output", "json"}, Timeout: 2 * time.Minute})
	if err := r.Err(); err != nil {
		return err
	}
	e.MS("first", r.Took)
	for i := range e.Int("times") {
		if err := s.oneScale(ctx, i); err != nil {
			return err
		}
	}
	return s.besideWatchdog(ctx)
}

// scalePort is the first service's port, at the address and at the servers alike.
const scalePort = 1000

// services are n services of all candidates, each in an order of its own.
func (s *stage) services(n int) []edgeworld.Settings {
	var out []edgeworld.Settings
	for i := range n {
		out = append(out, edgeworld.Settings{
			"name": fmt.Sprintf("s%d", i), "vip": []string{edgeworld.VIP4}, "port": scalePort + i, "candidates": s.ported(i, scalePort+i),
		})
	}
	return out
}

// oneService measures runs that change nothing for a single service.
func (s *stage) oneService(ctx context.Context) error {
	if err := s.w.Configure(edgeworld.Config{Services: s.services(1)}); err != nil {
		return err
	}
	if err := s.r.Shunt(ctx, "edge", "retarget").Err(); err != nil {
		return err
	}
	for range s.Int("times") {
		r := s.r.Shunt(ctx, "edge", "retarget")
		if err := r.Err(); err != nil {
			return err
		}
		s.MS("one_no_change", r.Took)
		s.MiB("one_memory", r.PeakRSS)
		s.Want(r.Took <= oneNoChange && r.PeakRSS <= oneMemory, "a run that changes nothing for one service took %.0f ms and %d MiB", millis(r.Took), r.PeakRSS>>20)
	}
	return nil
}

// timed is a run with its time, its memory and a bound; 0 = none.
func (s *stage) timed(ctx context.Context, figure string, bound time.Duration, args ...string) error {
	r := s.r.Run(ctx, lab.Call{Args: args, Timeout: 2 * time.Minute})
	if err := r.Err(); err != nil {
		return err
	}
	s.MS(figure, r.Took)
	s.MiB("memory", r.PeakRSS)
	s.Want(bound == 0 || r.Took <= bound, "%s took %.0f ms, bound %.0f", figure, millis(r.Took), millis(bound))
	return nil
}

// ported are the candidates of service i, in an order of its own, with one port for all.
func (s *stage) ported(i, port int) []edgeworld.Settings {
	var out []edgeworld.Settings
	for j := range s.w.Backends {
		b := s.w.Backends[(i+j)%len(s.w.Backends)]
		out = append(out, edgeworld.Settings{"name": b.Name, "addresses": []string{b.Addr4.String()}, "port": port})
	}
	return out
}

// oneScale measures a drain of one service's candidate, which moves it, and a run that asks
// every candidate.
func (s *stage) oneScale(ctx context.Context, i int) error {
	lab.Sleep(ctx, answersLast+500*time.Millisecond)
	from := time.Now()
	if err := s.timed(ctx, "drain", scaleRetarget, "edge", "drain", fmt.Sprintf("s%d", i*4), s.w.Backends[0].Name); err != nil {
		return err
	}
	s.Control("moved", 1, len(events(s.r, "move", from)) > 0)
	return s.timed(ctx, "retarget", scaleRetarget, "edge", "retarget")
}

// besideWatchdog measures runs that change nothing: while a watchdog asks every candidate
// each second, and so keeps the machine busy, and right after its end, when its answers are
// still fresh.
func (s *stage) besideWatchdog(ctx context.Context) error {
	from := time.Now()
	for range s.Int("times") {
		if err := s.watch(); err != nil {
			return err
		}
		lab.Sleep(ctx, answersLast)
		err := s.timed(ctx, "no_change_watched", 0, "edge", "retarget")
		n := s.waiting()
		s.wd.Stop()
		if err != nil {
			return err
		}
		s.Count("time_wait", n)
		if err := s.timed(ctx, "no_change", scaleNoChange, "edge", "retarget"); err != nil {
			return err
		}
	}
	vetoes := len(events(s.r, "veto", from))
	s.Count("false_vetoes", vetoes)
	s.Want(vetoes == 0, "%d vetoes while nobody was dead", vetoes)
	return nil
}

// waiting is how many sockets of the replica's are in TIME_WAIT.
func (s *stage) waiting() int {
	n := 0
	_ = s.r.NS.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/sockstat")
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(b), " tw ")
		_, err = fmt.Sscan(rest, &n)
		return err
	})
	return n
}
