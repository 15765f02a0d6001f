package edgestory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

// The bounds of edge-death and edge-host-death, ms.
const (
	deathMedian   = 10
	deathP99      = 50
	replicaMedian = 100
	delayedMedian = 150
	hostWorst     = 2800
)

func deathScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-death", Summary: "kill -9 of the server that answers, again and again: how long until the other one does",
		Flags: []lab.Flag{
			{Name: "deaths", Value: "50", Usage: "how many"},
			{Name: "on-hint", Value: "confirm", Usage: "confirm or divert"},
			{Name: "replicas", Value: "1", Usage: "machines with the table"},
			{Name: "transport-delay", Value: "0s", Usage: "added to the start of each transport"},
		},
		Run: playDeath,
	}
}

func playDeath(ctx context.Context, e *lab.Env) error {
	n := e.Int("replicas")
	s, done, err := openWatched(ctx, e, edgeworld.Options{Replicas: n, Delay: e.Duration("transport-delay")}, backend.Options{},
		edgeworld.Config{Service: service(edgeworld.Settings{"on_hint": e.Flag("on-hint")})})
	if err != nil {
		return err
	}
	defer done()
	var gaps []gap.Gap
	var all []float64
	again := 0
	for i := 0; i < e.Int("deaths"); i++ {
		g, tables, err := s.oneDeath(ctx)
		if err != nil {
			return fmt.Errorf("death %d: %w", i+1, err)
		}
		if g.spoilt() && again < 10 {
			again++
			e.Say("the machine stood still for %.0f ms, and the death is repeated", millis(g.Stall))
			i--
			continue
		}
		gaps = append(gaps, g.Gap)
		e.MS("gap", g.Gap.Gap)
		e.Count("failed", g.Failed)
		if n > 1 {
			e.MS("tables", tables)
			all = append(all, millis(tables))
		}
	}
	e.Count("repeated", again)
	r := rowOf("shunt", gaps)
	e.Say("%d deaths: median %.1f ms, p99 %.1f ms, failed connections %d in the middle and %d at most", r.n, r.median, r.p99, r.failed, r.worst)
	e.Control("deaths", float64(r.n), r.n > 0)
	e.Want(r.median <= deathMedian, "median gap %.1f ms, bound %d", r.median, deathMedian)
	e.Want(r.p99 <= deathP99, "p99 of the gap %.1f ms, bound %d", r.p99, deathP99)
	if n > 1 {
		bound := float64(replicaMedian)
		if e.Duration("transport-delay") > 0 {
			bound = delayedMedian
		}
		m := quantile(all, 0.5)
		e.Want(m <= bound, "all tables moved after %.1f ms in the middle, bound %.0f", m, bound)
	}
	return nil
}

// oneDeath kills who answers and returns what clients saw, and when the last table had moved.
func (s *stage) oneDeath(ctx context.Context) (seen, time.Duration, error) {
	victim, err := s.nextVictim(ctx)
	if err != nil {
		return seen{}, 0, err
	}
	d := death{how: process, victim: victim, client: gap.Options{To: s.w.VIP(4)}, phase: 300 * time.Millisecond}
	var moved chan time.Time
	if len(s.w.Replicas) > 1 {
		moved = make(chan time.Time, 1)
		bound, cancel := context.WithTimeout(ctx, 40*time.Second)
		defer cancel()
		go func() { moved <- s.allMoved(bound, victim) }()
	}
	g, err := d.play(ctx, s.w)
	if err != nil {
		return g, 0, err
	}
	if moved == nil {
		return g, 0, nil
	}
	at := <-moved
	if at.IsZero() {
		return g, 0, errors.New("a table did not move")
	}
	return g, at.Sub(g.died), nil
}

// allMoved waits until no table leads to the victim any more; the zero time when ctx ended
// before.
func (s *stage) allMoved(ctx context.Context, victim *edgeworld.Backend) time.Time {
	at := make(chan time.Time, len(s.w.Replicas))
	for _, r := range s.w.Replicas {
		go func() { at <- movedAway(ctx, r, victim) }()
	}
	last := <-at
	for range s.w.Replicas[1:] {
		switch next := <-at; {
		case last.IsZero() || next.IsZero():
			last = time.Time{}
		case next.After(last):
			last = next
		}
	}
	return last
}

// movedAway watches one replica's table, over one connection.
func movedAway(ctx context.Context, r *edgeworld.Replica, victim *edgeworld.Backend) time.Time {
	c, err := nftables.New(nftables.WithNetNSFd(r.NS.FD()), nftables.AsLasting())
	if err != nil {
		return time.Time{}
	}
	defer c.CloseLasting() //nolint:errcheck // nothing was written
	for ctx.Err() == nil {
		if a := leadsOver(c); a.IsValid() && a != victim.Addr4 {
			return time.Now()
		}
		lab.Sleep(ctx, time.Millisecond)
	}
	return time.Time{}
}

func hostDeathScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-host-death", Summary: "the host of the server that answers falls silent: probes of a second, and of 20 ms with patient clients",
		Flags: []lab.Flag{
			{Name: "slow", Value: "4", Usage: "deaths under probes each second"},
			{Name: "fast", Value: "15", Usage: "deaths under probes each 20 ms"},
		},
		Run: playHostDeath,
	}
}

func playHostDeath(ctx context.Context, e *lab.Env) error {
	s, done, err := open(ctx, e, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(nil)})
	if err != nil {
		return err
	}
	defer done()
	slow, err := s.hostDeaths(ctx, "", e.Int("slow"), nil, gap.Options{To: s.w.VIP(4)}, time.Second)
	if err != nil {
		return err
	}
	worst := time.Duration(0)
	for _, g := range slow {
		worst = max(worst, g.Gap)
	}
	e.Want(len(slow) == 0 || worst <= hostWorst*time.Millisecond, "with probes each second the gap is %.0f ms at the worst, bound %d", millis(worst), hostWorst)
	fast, err := s.hostDeaths(ctx, "fast_", e.Int("fast"), probes("20ms", "20ms"), gap.Options{To: s.w.VIP(4)}, 300*time.Millisecond)
	if err != nil {
		return err
	}
	r := rowOf("20ms", fast)
	e.Say("probes each 20 ms: median %.1f ms, p99 %.1f ms, failed %d in the middle", r.median, r.p99, r.failed)
	patient, err := s.hostDeaths(ctx, "patient_", max(1, e.Int("fast")/2), probes("20ms", "20ms"), patientClient(s.w), 300*time.Millisecond)
	if err != nil {
		return err
	}
	failed := 0
	for _, g := range patient {
		failed += g.Failed
	}
	e.Control("hosts_died", float64(len(slow)+len(fast)+len(patient)), len(patient) > 0)
	e.Want(failed == 0, "%d connections of clients that wait for 3 s failed, want 0", failed)
	return nil
}

// patientClient opens few enough connections that all can wait for 3 s at a time.
func patientClient(w *edgeworld.World) gap.Options {
	o := gap.Patient(w.VIP(4))
	o.Every = 10 * time.Millisecond
	return o
}

// hostDeaths plays silent deaths under a watchdog of its own; name begins its figures' names.
func (s *stage) hostDeaths(ctx context.Context, name string, n int, probe edgeworld.Settings, client gap.Options, phase time.Duration) ([]gap.Gap, error) {
	if err := s.w.Configure(edgeworld.Config{Service: service(nil), Probe: probe}); err != nil {
		return nil, err
	}
	if err := s.watch(); err != nil {
		return nil, err
	}
	defer s.wd.Stop()
	var out []gap.Gap
	for i := range n {
		victim, err := s.nextVictim(ctx)
		if err != nil {
			return nil, fmt.Errorf("%sdeath %d: %w", name, i+1, err)
		}
		d := death{how: host, victim: victim, client: client, phase: phase}
		g, err := d.play(ctx, s.w)
		if err != nil {
			return nil, fmt.Errorf("%sdeath %d: %w", name, i+1, err)
		}
		out = append(out, g.Gap)
		s.MS(name+"gap", g.Gap.Gap)
		s.Count(name+"failed", g.Failed)
	}
	return out, heal(ctx, s.w)
}
