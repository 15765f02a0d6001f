package edgestory

import (
	"context"
	"fmt"
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
	s, done, err := open(ctx, e, edgeworld.Options{Backends: 4}, backend.Options{}, edgeworld.Config{Service: service(nil)})
	if err != nil {
		return err
	}
	defer done()
	if err := s.r.Shunt(ctx, "edge", "retarget").Err(); err != nil {
		return err
	}
	for range e.Int("times") {
		r := s.r.Shunt(ctx, "edge", "retarget")
		if err := r.Err(); err != nil {
			return err
		}
		e.MS("one_no_change", r.Took)
		e.MiB("one_memory", r.PeakRSS)
		e.Want(r.Took <= oneNoChange && r.PeakRSS <= oneMemory, "a run that changes nothing for one service took %.0f ms and %d MiB", millis(r.Took), r.PeakRSS>>20)
	}
	var many []edgeworld.Settings
	for i := range e.Int("services") {
		many = append(many, edgeworld.Settings{
			"name": fmt.Sprintf("s%d", i), "vip": []string{edgeworld.VIP4}, "port": 1000 + i, "candidates": s.ported(i),
		})
	}
	if err := s.w.Configure(edgeworld.Config{Services: many}); err != nil {
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
	// Beside a watchdog, whose answers are fresh.
	if err := s.watch(); err != nil {
		return err
	}
	lab.Sleep(ctx, 12*time.Second)
	for range e.Int("times") {
		if err := s.timed(ctx, "no_change", scaleNoChange, "edge", "retarget"); err != nil {
			return err
		}
		lab.Sleep(ctx, time.Second)
	}
	return nil
}

// timed is a run with its time, its memory and a bound.
func (s *stage) timed(ctx context.Context, figure string, bound time.Duration, args ...string) error {
	r := s.r.Run(ctx, lab.Call{Args: args, Timeout: 2 * time.Minute})
	if err := r.Err(); err != nil {
		return err
	}
	s.MS(figure, r.Took)
	s.MiB("memory", r.PeakRSS)
	s.Want(r.Took <= bound, "%s took %.0f ms, bound %.0f", figure, millis(r.Took), millis(bound))
	return nil
}

// ported are the candidates of service i, in an order of its own.
func (s *stage) ported(i int) []edgeworld.Settings {
	var out []edgeworld.Settings
	for j := range s.w.Backends {
		b := s.w.Backends[(i+j)%len(s.w.Backends)]
		out = append(out, edgeworld.Settings{"name": b.Name, "addresses": []string{b.Addr4.String()}, "port": edgeworld.Port})
	}
	return out
}

// oneScale measures a drain of one service's candidate, which moves it, and a run that asks
// every candidate.
func (s *stage) oneScale(ctx context.Context, i int) error {
	lab.Sleep(ctx, 5500*time.Millisecond) // answers are no longer fresh
	from := time.Now()
	if err := s.timed(ctx, "drain", scaleRetarget, "edge", "drain", fmt.Sprintf("s%d", i*4), s.w.Backends[0].Name); err != nil {
		return err
	}
	s.Control("moved", 1, len(events(s.r, "move", from)) > 0)
	return s.timed(ctx, "retarget", scaleRetarget, "edge", "retarget")
}
