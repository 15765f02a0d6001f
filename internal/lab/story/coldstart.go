package story

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/strategy"
)

// coldstartScenario begins without a pool and without a lane, with a list that only a
// tunnel reaches; then with every known endpoint dead and a list that only the uplink reaches.
func coldstartScenario() lab.Scenario {
	return lab.Scenario{
		Name:    "egress-coldstart",
		Summary: "no pool, no lane, the list only behind the exits; all known endpoints dead, the list only by the uplink: both found by strategies, users held back meanwhile",
		Run:     playColdstart,
	}
}

const coldWall = 40 * time.Second // bound of one refresh

func playColdstart(ctx context.Context, e *lab.Env) error {
	if err := coldByTunnel(ctx, e); err != nil {
		return err
	}
	return coldByUplink(ctx, e)
}

// coldByTunnel has two profiles in a folder; the rest of the list is behind the exits.
func coldByTunnel(ctx context.Context, e *lab.Env) error {
	w, err := e.World(ctx, lab.WorldOptions{RTT: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	if err := w.Offer(w.Endpoints()[:2]); err != nil {
		return err
	}
	own := map[string]any{"name": "own", "type": "dir", "path": w.Sources}
	if err := w.Configure(lab.Settings{"egress.sources": []any{own, lab.ListSource(true)}}); err != nil {
		return err
	}
	if err := w.ReachList(lab.TunnelOnly); err != nil {
		return err
	}
	crowd, err := users(ctx, w)
	if err != nil {
		return err
	}
	if err := heldBack(ctx, e, w); err != nil {
		return err
	}
	out, err := newOutside(w)
	if err != nil {
		return err
	}
	from, before := end(w), out.from
	r := w.Shunt(ctx, "egress", "refresh")
	if err := r.Err(); err != nil {
		return err
	}
	site, _, err := out.packets()
	if err != nil {
		return err
	}
	names, reasons, winner, took := tried(w, from)
	e.MS("tunnel_access", took)
	e.Say("the list is only behind the exits: refresh in %d ms, strategies %v, %s: %s", r.Took.Milliseconds(), names, winner, reasons[winner])
	e.MS("by_tunnel", r.Took)
	e.Want(r.Took <= coldWall, "the refresh took %s", r.Took)
	e.Want(winner == strategy.LastKnownPool, "the way was found by %q, of %v: %v", winner, names, reasons)
	e.Packets("outside", site)
	e.Want(site == 0, "%d packets to the site left outside a tunnel", site)
	exits := 0
	for a, n := range w.Site.Requests() {
		if w.Far.ByExit(a) == nil {
			e.Problem("the site was asked by %s, which is no exit", a)
		}
		exits += n
	}
	e.Control("site_asked_through_exits", float64(exits), exits > 0)
	e.Control("resolver_asked_through_exits", float64(len(w.Site.Questions())), len(w.Site.Questions()) > 0)
	if err := inPool(e, w, len(w.Endpoints())); err != nil {
		return err
	}
	if err := outsideControl(e, w); err != nil {
		return err
	}
	if _, err := w.StartLanes(ctx); err != nil {
		return err
	}
	return usersBack(ctx, e, w, crowd, before)
}

// coldByUplink loses every endpoint that it knows while the default route leads through a
// lane.
func coldByUplink(ctx context.Context, e *lab.Env) error {
	dir := filepath.Join(e.Dir, "second")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	w, err := e.World(ctx, lab.WorldOptions{Dir: dir, Endpoints: 16, RTT: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	known, fresh := w.Endpoints()[:8], w.Endpoints()[8:]
	if err := w.Offer(known); err != nil {
		return err
	}
	if err := w.Site.Offer(fresh); err != nil {
		return err
	}
	if err := w.ReachList(lab.UplinkOnly); err != nil {
		return err
	}
	if _, err := w.StartLanes(ctx); err != nil {
		return err
	}
	for _, c := range []string{"refresh", "rebalance", "repair"} {
		if err := w.Shunt(ctx, "egress", c).Err(); err != nil {
			return err
		}
	}
	if err := throughLane(w, w.Lanes[0].Interface); err != nil {
		return err
	}
	for _, x := range known {
		if err := x.SetFault(server.Silent()); err != nil {
			return err
		}
	}
	if err := w.Configure(lab.Settings{"egress.sources": []any{lab.ListSource(false)}}); err != nil {
		return err
	}
	crowd, err := users(ctx, w)
	if err != nil {
		return err
	}
	before, err := w.Uplink()
	if err != nil {
		return err
	}
	from := end(w)
	r := w.Shunt(ctx, "egress", "refresh")
	if err := r.Err(); err != nil {
		return err
	}
	after, err := w.Uplink()
	if err != nil {
		return err
	}
	names, reasons, winner, _ := tried(w, from)
	e.Say("the list is only at the uplink: refresh in %d ms, strategies %v; %v", r.Took.Milliseconds(), names, reasons)
	e.MS("by_uplink", r.Took)
	e.Want(r.Took <= coldWall, "the refresh took %s", r.Took)
	e.Want(winner == strategy.Uplink, "the way was found by %q, of %v: %v", winner, names, reasons)
	e.Control("download_seen_on_uplink", float64(after.Sub(before).List), after.Sub(before).List > 0)
	if err := inPool(e, w, len(fresh)); err != nil {
		return err
	}
	if err := usersBack(ctx, e, w, crowd, before); err != nil {
		return err
	}
	from = end(w)
	if err := w.Shunt(ctx, "egress", "refresh").Err(); err != nil {
		return err
	}
	names, _, _, _ = tried(w, from)
	e.Want(len(names) == 1 && names[0] == strategy.Uplink, "the last winner was not tried first: %v", names)
	return nil
}

// heldBack makes the plane; without it the users' packets were in clear, which is the
// control of what comes after.
func heldBack(ctx context.Context, e *lab.Env, w *lab.World) error {
	n, err := usersInClear(ctx, w, 200*time.Millisecond)
	if err != nil {
		return err
	}
	e.Control("users_in_clear_before_plane", float64(n), n > 0)
	if err := w.Shunt(ctx, "egress", "plane").Err(); err != nil {
		return err
	}
	lab.Sleep(ctx, 50*time.Millisecond)
	return nil
}

// inPool wants a pool of n endpoints.
func inPool(e *lab.Env, w *lab.World, n int) error {
	rows, err := ranked(w, config.Default().Egress.Pool.StrictAll, 1000)
	if err != nil {
		return err
	}
	e.Want(len(rows) == n, "the pool has %d endpoints, not %d", len(rows), n)
	return nil
}

// usersBack brings the lanes up with what the pool has, and counts what users sent outside
// tunnels since an earlier reading.
func usersBack(ctx context.Context, e *lab.Env, w *lab.World, c *crowd, before lab.Uplink) error {
	began := time.Now()
	_ = w.Shunt(ctx, "egress", "rebalance") // what it could not do shows in who serves the users
	err := lab.Await(ctx, time.Minute, "the users' return", func() bool {
		_ = w.Shunt(ctx, "egress", "repair")
		for _, l := range w.Lanes {
			if _, err := w.Exit(ctx, l.Name); err != nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	e.MS("served", time.Since(began))
	now, err := w.Uplink()
	if err != nil {
		return err
	}
	sent, _ := c.stop()
	leaked := ofUsers(now.Sub(before))
	e.Packets("leaked", leaked)
	e.Want(leaked == 0, "%d of %d packets of users left outside a tunnel", leaked, sent)
	e.Control("users_packets", float64(sent), sent > 1000)
	return nil
}

// usersInClear counts the users' packets that come out of the router in clear during d.
func usersInClear(ctx context.Context, w *lab.World, d time.Duration) (int, error) {
	was, err := w.Uplink()
	if err != nil {
		return 0, err
	}
	lab.Sleep(ctx, d)
	now, err := w.Uplink()
	if err != nil {
		return 0, err
	}
	return ofUsers(now.Sub(was)), nil
}
