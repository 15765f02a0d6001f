package story

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/state"
)

func emergencyScenario() lab.Scenario {
	return lab.Scenario{
		Name:    "egress-emergency",
		Summary: "five lanes' endpoints die one after another: exactly one emergency refresh for five replacements, and the count begins anew",
		Run:     playEmergency,
	}
}

func degradedScenario() lab.Scenario {
	return lab.Scenario{
		Name:    "egress-degraded",
		Summary: "the list is dead and an emergency refresh fails: retried by its timer, users stay on their lanes, left by a good refresh",
		Run:     playDegraded,
	}
}

func directScenario() lab.Scenario {
	return lab.Scenario{
		Name:    "egress-direct",
		Summary: "all lanes and the whole pool die: users go direct, recovery fetches the list through a tunnel in process, users come back by the six criteria",
		Run:     playDirect,
	}
}

// Bounds of what modes do.
const (
	toDirectWithin = 2 * time.Second // after the guarded refresh failed
	modeWall       = 90 * time.Second
)

// modeOf is the mode word in state.kv.
func modeOf(w *lab.World) state.Mode {
	b, _ := os.ReadFile(filepath.Join(w.State, "state.kv"))
	for line := range strings.SplitSeq(string(b), "\n") {
		if m, ok := strings.CutPrefix(line, "mode="); ok {
			return state.Mode(m)
		}
	}
	return state.ModeUnknown
}

// untilMode waits for a mode, and returns how long that took.
func untilMode(ctx context.Context, w *lab.World, within time.Duration, is ...state.Mode) (time.Duration, error) {
	began := time.Now()
	for time.Since(began) < within && ctx.Err() == nil {
		for _, m := range is {
			if modeOf(w) == m {
				return time.Since(began), nil
			}
		}
		lab.Sleep(ctx, 20*time.Millisecond)
	}
	return time.Since(began), fmt.Errorf("mode %s after %s, want one of %v", modeOf(w), within, is)
}

// refreshesSince counts refreshes in the journal, and returns the last one that failed.
func refreshesSince(w *lab.World, from int64) (n int, failed journal.Event) {
	list, _ := events(w, from)
	for _, ev := range list {
		if ev.Kind == "refresh" {
			n++
			if ev.To == "failed" {
				failed = ev
			}
		}
	}
	return n, failed
}

func playEmergency(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{Endpoints: 16, RTT: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	from := end(w)
	loop := w.Every(ctx, 500*time.Millisecond, nil, "egress", "repair")
	defer loop.Stop()
	for i, l := range w.Lanes[:5] {
		n, _ := refreshesSince(w, from)
		e.Want(n == 0, "%d refreshes after %d replacements", n, i)
		x, err := w.Carrying(l.Name)
		if err != nil {
			return err
		}
		if err := x.SetFault(server.Silent()); err != nil {
			return err
		}
		for began := time.Now(); time.Since(began) < 20*time.Second; lab.Sleep(ctx, 50*time.Millisecond) {
			if now, err := w.Carrying(l.Name); err == nil && now != x && now.Alive() {
				break
			}
		}
	}
	for began := time.Now(); time.Since(began) < modeWall; lab.Sleep(ctx, 100*time.Millisecond) {
		if n, _ := refreshesSince(w, from); n > 0 && modeOf(w) == state.ModeNormal {
			break
		}
	}
	lab.Sleep(ctx, 3*time.Second) // nothing more may come of the same five
	n, _ := refreshesSince(w, from)
	e.Count("refreshes", n)
	e.Want(n == 1, "%d refreshes for five replacements, want 1", n)
	e.Want(modeOf(w) == state.ModeNormal, "mode %s after the emergency refresh", modeOf(w))
	return nil
}

func playDegraded(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{RTT: 20 * time.Millisecond, Settings: lab.Settings{
		"egress.modes.retry_min": "2s", "egress.modes.retry_max": "4s", "egress.recovery.timeout": "2s",
	}})
	if err != nil {
		return err
	}
	crowd, err := users(ctx, w)
	if err != nil {
		return err
	}
	all := w.Endpoints()
	if err := w.Offer(nil); err != nil { // a dead source
		return err
	}
	before, err := w.Uplink()
	if err != nil {
		return err
	}
	from := end(w)
	day := filepath.Join(w.State, "fail-counter", time.Now().Format(time.DateOnly)+".count")
	if err := os.MkdirAll(filepath.Dir(day), 0o750); err != nil {
		return err
	}
	if err := os.WriteFile(day, []byte("5\n"), 0o640); err != nil {
		return err
	}
	loop := w.Every(ctx, 500*time.Millisecond, nil, "egress", "refresh", "--if-due")
	defer loop.Stop()
	took, err := untilMode(ctx, w, 30*time.Second, state.ModeDegraded)
	if err != nil {
		return err
	}
	e.MS("to_degraded", took)
	lab.Sleep(ctx, 12*time.Second)
	n, _ := refreshesSince(w, from)
	e.Count("attempts", n)
	e.Want(n >= 3 && n <= 6, "%d attempts in 12 s with pauses of 2 to 4 s", n)
	e.Want(modeOf(w) == state.ModeDegraded, "mode %s while the list is dead", modeOf(w))
	if err := w.Offer(all); err != nil {
		return err
	}
	took, err = untilMode(ctx, w, 60*time.Second, state.ModeNormal)
	if err != nil {
		return err
	}
	e.MS("to_normal", took)
	loop.Stop()
	sent, lost := crowd.stop()
	after, err := w.Uplink()
	if err != nil {
		return err
	}
	e.Packets("users_lost", lost)
	e.Control("users_sent", float64(sent), sent > 1000)
	e.Want(lost*1000 <= sent, "%d of %d packets of users lost", lost, sent)
	e.Want(ofUsers(after.Sub(before)) == 0, "%d packets of users outside a tunnel", ofUsers(after.Sub(before)))
	return nil
}

func playDirect(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{RTT: 20 * time.Millisecond, Settings: lab.Settings{
		"egress.recovery.timeout": "5s", "egress.modes.retry_min": "3s", "egress.modes.retry_max": "10s", "egress.repair.retry_after": "5s",
	}})
	if err != nil {
		return err
	}
	if err := w.Configure(lab.Settings{"egress.sources": []any{lab.ListSource(true)}}); err != nil {
		return err
	}
	if err := w.ReachList(lab.TunnelOnly); err != nil {
		return err
	}
	crowd, err := users(ctx, w)
	if err != nil {
		return err
	}
	routing, err := watchRouting(ctx, w)
	if err != nil {
		return err
	}
	defer routing.stop()
	from := end(w)
	if err := setAll(w.Endpoints(), server.Silent()); err != nil {
		return err
	}
	loop := w.Every(ctx, 500*time.Millisecond, nil, "egress", "repair")
	defer loop.Stop()
	if _, err := untilMode(ctx, w, modeWall, state.ModeDirect, state.ModeExternalRecovery); err != nil {
		return err
	}
	lab.Sleep(ctx, 500*time.Millisecond)
	moved, failed, ok := wentDirect(w, from)
	e.Want(ok, "no refresh failed before users went direct")
	e.MS("to_direct", moved.Sub(failed))
	e.Want(moved.Sub(failed) <= toDirectWithin, "users were direct %s after the guarded refresh had failed", moved.Sub(failed))
	n, err := usersInClear(ctx, w, 500*time.Millisecond)
	if err != nil {
		return err
	}
	e.Control("users_direct", float64(n), n > 0)
	out, err := newOutside(w)
	if err != nil {
		return err
	}
	lab.Sleep(ctx, time.Second) // attempts that find nothing, too
	unmoved(ctx, e, routing)
	if err := setAll(w.Endpoints(), server.Alive()); err != nil {
		return err
	}
	back, err := untilMode(ctx, w, modeWall, state.ModeNormal, state.ModeSlotRepair)
	if err != nil {
		return err
	}
	site, names, err := out.packets()
	if err != nil {
		return err
	}
	e.MS("back_to_vpn", back)
	e.Packets("outside", site+names)
	e.Want(site+names == 0, "%d packets to the site and %d questions left outside a tunnel", site, names)
	loop.Stop()
	unmoved(ctx, e, routing)
	if err := outsideControl(e, w); err != nil {
		return err
	}
	crowd.stop()
	return nil
}

// unmoved wants no change of rules and routes so far: users go direct and come back by
// elements of sets alone. The watch must see one that is made.
func unmoved(ctx context.Context, e *lab.Env, r *routingWatch) {
	changes := r.lines()
	e.Count("routing_changes", len(changes))
	e.Want(len(changes) == 0, "rules and routes were changed: %v", changes)
	err := r.probe(ctx)
	if err == nil {
		err = lab.Await(ctx, time.Second, "a change that is seen", func() bool { return len(r.lines()) > len(changes) })
	}
	e.Control("routing_changes_seen", float64(len(r.lines())), err == nil)
	if err := os.Truncate(r.file, 0); err != nil {
		e.Problem("%v", err)
	}
}

// wentDirect is when the first class went direct, and when the refresh before it had failed.
func wentDirect(w *lab.World, from int64) (moved, failed time.Time, ok bool) {
	list, _ := events(w, from)
	for _, ev := range list {
		switch {
		case ev.Kind == "refresh" && ev.To == "failed" && moved.IsZero():
			failed = ev.Time
		case ev.Kind == "direct" && moved.IsZero():
			moved = ev.Time
		}
	}
	return moved, failed, !moved.IsZero() && !failed.IsZero()
}
