package edgestory

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

func replicasScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-replicas", Summary: "one of three replicas can't be reached during a move: the others move as fast, it converges later, and a new holder goes on from the highest epoch",
		Run: playReplicas,
	}
}

func playReplicas(ctx context.Context, e *lab.Env) error {
	s, done, err := openWatched(ctx, e, edgeworld.Options{Replicas: 3}, backend.Options{}, edgeworld.Config{Service: service(edgeworld.Settings{"nodes": true})})
	if err != nil {
		return err
	}
	defer done()
	victim, err := s.calm(ctx, true)
	if err != nil {
		return err
	}
	if err := s.agreed(ctx, victim); err != nil {
		return err
	}
	_, code, err := look(ctx, s.r)
	if err != nil {
		return err
	}
	e.Want(code == 0, "all replicas are equal, and status exits %d", code)
	far := s.w.Replicas[2]
	if err := far.Isolate(true); err != nil {
		return err
	}
	d := death{how: process, victim: victim, client: gap.Options{To: s.w.VIP(4)}, phase: 200 * time.Millisecond}
	g, err := d.play(ctx, s.w)
	if err != nil {
		return err
	}
	e.MS("gap", g.Gap.Gap)
	e.Want(millis(g.Gap.Gap) <= replicaMedian, "with a replica away the gap was %.1f ms, bound %d", millis(g.Gap.Gap), replicaMedian)
	near := s.w.Replicas[1]
	err = lab.Await(ctx, 2*time.Second, "the move of "+near.Name, func() bool { return leads(near.NS) != victim.Addr4 })
	e.Want(err == nil, "%v", err)
	e.Want(leads(far.NS) == victim.Addr4, "%s was moved though it could not be reached", far.Name)
	st, code, err := look(ctx, s.r)
	if err != nil {
		return err
	}
	e.Want(code == codePartly, "with a replica away status exits %d, want %d", code, codePartly)
	_, epoch := st.target()
	return s.newHolder(ctx, far, victim, epoch)
}

// agreed waits until every table leads to one backend.
func (s *stage) agreed(ctx context.Context, to *edgeworld.Backend) error {
	return lab.Await(ctx, 10*time.Second, "agreement", func() bool {
		for _, r := range s.w.Replicas {
			if leads(r.NS) != to.Addr4 {
				return false
			}
		}
		return true
	})
}

// newHolder lets the replica that was away take the address while the old holder is gone.
func (s *stage) newHolder(ctx context.Context, far *edgeworld.Replica, dead *edgeworld.Backend, epoch uint64) error {
	s.wd.Kill()
	if err := far.Isolate(false); err != nil {
		return err
	}
	if err := heal(ctx, s.w); err != nil { // the old target is alive again: only the epoch says what is newer
		return err
	}
	if err := s.w.Hold(far); err != nil {
		return err
	}
	res := far.Shunt(ctx, "edge", "retarget", "--output", "json")
	if res.Code != 0 && res.Code != codePartly {
		return res.Err()
	}
	st, _, err := look(ctx, far)
	if err != nil {
		return err
	}
	name, now := st.target()
	s.Want(name != dead.Name && now >= epoch, "the new holder leads to %s with epoch %d; the others had moved away from it with epoch %d", name, now, epoch)
	s.Control("epoch_adopted", float64(now), now >= epoch && epoch > 1)
	return s.disagree(ctx, far)
}

// disagree changes a table by hand: that must be an alarm.
func (s *stage) disagree(ctx context.Context, holder *edgeworld.Replica) error {
	other := s.w.Replicas[0]
	a, b := s.w.Backend("a").Addr4, s.w.Backend("b").Addr4
	now := leads(other.NS)
	wrong := a
	if now == a {
		wrong = b
	}
	to := s.w.Backend("a")
	if to.Addr4 != wrong {
		to = s.w.Backend("b")
	}
	if err := lead(ctx, other, to); err != nil {
		return err
	}
	_, code, err := look(ctx, holder)
	if err != nil {
		return err
	}
	s.Want(code == codePartly, "with unequal tables status exits %d, want %d", code, codePartly)
	if res := holder.Shunt(ctx, "edge", "retarget"); res.Code != 0 && res.Code != codePartly {
		return res.Err()
	}
	_, code, err = look(ctx, holder)
	if err != nil {
		return err
	}
	s.Want(code == 0, "after a run status exits %d, want 0", code)
	return nil
}

// lead changes a replica's table by hand.
func lead(ctx context.Context, r *edgeworld.Replica, to *edgeworld.Backend) error {
	key := fmt.Sprintf("%s . tcp . %d", edgeworld.VIP4, edgeworld.Port)
	text := fmt.Sprintf("delete element inet shunt_edge target4 { %s }; add element inet shunt_edge target4 { %s comment \"front epoch 1 by r1\" : %s . %d }", key, key, to.Addr4, edgeworld.Port)
	cmd := exec.CommandContext(ctx, "nft", text) //nolint:gosec // made here
	if err := r.NS.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	return nil
}

// deleteTable takes a replica's table away; there may be none.
func deleteTable(r *edgeworld.Replica) {
	cmd := exec.CommandContext(context.Background(), "nft", "delete table inet shunt_edge")
	if err := r.NS.Start(cmd); err == nil {
		_ = cmd.Wait()
	}
}

func recoveryScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-recovery", Summary: "who comes back moves nothing; with the watchdog gone the timer's runs keep a dead one out, and let it back in",
		Flags: []lab.Flag{
			{Name: "dead", Value: "120s", Usage: "how long a server stays dead without a watchdog"},
			{Name: "every", Value: "10s", Usage: "between the timer's runs"},
		},
		Run: playRecovery,
	}
}

func playRecovery(ctx context.Context, e *lab.Env) error {
	s, done, err := openWatched(ctx, e, edgeworld.Options{Replicas: 2}, backend.Options{}, edgeworld.Config{Service: service(edgeworld.Settings{"nodes": true})})
	if err != nil {
		return err
	}
	defer done()
	victim, err := s.calm(ctx, true)
	if err != nil {
		return err
	}
	died := victim.Kill()
	families := 1
	if s.w.IPv6 {
		families = 2
	}
	err = lab.Await(ctx, 5*time.Second, "the move of each family", func() bool { return len(events(s.r, "move", died)) >= families })
	if err != nil {
		return err
	}
	back := time.Now()
	if err := heal(ctx, s.w); err != nil {
		return err
	}
	other, err := s.calm(ctx, true)
	if err != nil {
		return err
	}
	lab.Sleep(ctx, 3*time.Second)
	moves := len(events(s.r, "move", back))
	e.Count("moves", moves)
	e.Want(moves == 0 && other != victim, "%s came back, and there were %d moves", victim.Name, moves)
	e.Control("node_table_returned", float64(len(events(s.r, "node", back))), len(events(s.r, "node", back)) > 0)
	return s.withoutWatchdog(ctx, other)
}

// withoutWatchdog kills the watchdog and a server, and lets the timer do the rest.
func (s *stage) withoutWatchdog(ctx context.Context, victim *edgeworld.Backend) error {
	s.wd.Kill()
	victim.Kill()
	loop := s.r.Every(ctx, s.Duration("every"), nil, "edge", "retarget")
	defer loop.Stop()
	if err := lab.Await(ctx, s.Duration("every")+10*time.Second, "the move", func() bool { return leads(s.r.NS) != victim.Addr4 }); err != nil {
		return err
	}
	if err := victim.Count(); err != nil {
		return err
	}
	cl := gap.Start(ctx, s.w.Client, gap.Options{To: s.w.VIP(4), Every: 20 * time.Millisecond})
	defer cl.Stop()
	lab.Sleep(ctx, s.Duration("dead"))
	n, err := victim.Begun()
	if err != nil {
		return err
	}
	s.Count("reached_the_dead", n)
	s.Want(n == 0, "%d connections of clients came to the dead server", n)
	by := cl.Stop().By(time.Time{})
	s.Control("answered_by_the_other", float64(by[others(s.w, victim)[0]]), by[others(s.w, victim)[0]] > 0)
	s.Want(by[""] == 0, "%d connections failed meanwhile", by[""])
	if err := heal(ctx, s.w); err != nil {
		return err
	}
	at := time.Now()
	err = lab.Await(ctx, 30*time.Second+2*s.Duration("every"), "the end of the veto", func() bool {
		st, _, err := look(ctx, s.r)
		return err == nil && st.state(victim.Name) == "up"
	})
	s.Want(err == nil, "%v", err)
	s.MS("veto_ended", time.Since(at))
	s.Want(leads(s.r.NS) != victim.Addr4, "the address went back to %s", victim.Name)
	return nil
}
