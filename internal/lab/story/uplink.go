package story

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
	"github.com/shunt-net/shunt/internal/state"
)

// uplinkScenario cuts the router's uplink, in two ways: all lanes fail together, and
// nothing of it is theirs.
func uplinkScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-uplink-cut", Summary: "the uplink is cut, link and silent drop, with timers a tenth: nothing is quarantined, counted or replaced, and all is green again by itself",
		Flags: []lab.Flag{{Name: "cut", Value: "60s", Usage: "length of each cut"}},
		Run:   playUplinkCut,
	}
}

// tenth is a tenth of each default that is a time, by configuration alone.
func tenth() lab.Settings {
	return lab.Settings{
		"egress.test.handshake_timeout": "250ms", "egress.test.ping_timeout": "100ms", "egress.test.deadline": "60s",
		"egress.check.gap": "2ms", "egress.check.wait": "30ms", "egress.check.max_handshake": "18s",
		"egress.check.tls_timeout": "200ms", "egress.check.deep_every": "500ms",
		"egress.uplink.timeout":   "60ms",
		"egress.repair.prove_for": "150ms", "egress.repair.readd_after": "12s", "egress.repair.retry_after": "3s",
		"egress.modes.cooldown": "12m", "egress.modes.retry_min": "3s", "egress.modes.retry_max": "1m",
		"egress.repair.hold_min": "1m", "egress.repair.hold_max": "144m", "egress.repair.hold_decay": "36m",
	}
}

const (
	uplinkEvery = 100 * time.Millisecond // of the repair loop: a tenth of a second's timer
	uplinkGreen = 10 * time.Second       // bound on the time until all lanes are green again
	uplinkHeal  = 10 * time.Second       // bound on the repair of a lane that is dead
)

// ledger is what a cut must not change.
type ledger struct{ quarantined, counted, replaced int }

func playUplinkCut(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{Settings: tenth()})
	if err != nil {
		return err
	}
	loop := w.Every(ctx, uplinkEvery, nil, "egress", "repair")
	defer loop.Stop()
	if err := dies(ctx, e, w, "egress2", "repaired_before_cut"); err != nil {
		return err
	}
	for _, c := range []struct {
		kind lab.CutKind
		name string
	}{{lab.CutLink, "link"}, {lab.CutDrop, "silent"}, {lab.CutBehind, "behind the gateway"}} {
		if err := cut(ctx, e, w, loop, c.kind, c.name); err != nil {
			return err
		}
	}
	if err := dies(ctx, e, w, "egress4", "repaired_after_cut"); err != nil {
		return err
	}
	if err := outage(ctx, e, w); err != nil {
		return err
	}
	for _, r := range loop.Stop() {
		if r.Code != 0 && r.Code != 3 && r.Code != 4 {
			e.Problem("a repair ended with %d: %s", r.Code, r.Stderr)
		}
	}
	return nil
}

// dies is the control: a lane whose endpoint really dies is quarantined, counted, replaced.
func dies(ctx context.Context, e *lab.Env, w *lab.World, lane, control string) error {
	if err := lab.Await(ctx, uplinkGreen, "all lanes green", func() bool { return green(w) }); err != nil {
		return err
	}
	was, err := read(w)
	if err != nil {
		return err
	}
	x, err := w.Carrying(lane)
	if err != nil {
		return err
	}
	from, died := end(w), time.Now()
	if err := x.SetFault(server.Silent()); err != nil {
		return err
	}
	ev, err := awaitEvent(ctx, w, from, uplinkHeal, "the repair of "+lane, func(ev journal.Event) bool { return isSwap(ev) && ev.Object == lane })
	if err != nil {
		e.Control(control, 0, false)
		return err
	}
	now, err := read(w)
	if err != nil {
		return err
	}
	took := ev.Time.Sub(died)
	e.Control(control, 1, now.quarantined == was.quarantined+1 && now.counted == was.counted+1 && now.replaced == was.replaced+1)
	e.Say("%s died and was replaced by %s after %d ms: %d quarantined, %d counted", lane, ev.To, took.Milliseconds(), now.quarantined-was.quarantined, now.counted-was.counted)
	return nil
}

// outage silences every endpoint there is while the uplink is well: that is the provider's
// fault and may be recorded as such, and users go direct where that lasts; but the way back,
// of lanes and of users, needs no hands either.
func outage(ctx context.Context, e *lab.Env, w *lab.World) error {
	if err := lab.Await(ctx, uplinkGreen, "all lanes green", func() bool { return green(w) }); err != nil {
		return err
	}
	live := w.Live()
	if err := setAll(live, server.Silent()); err != nil {
		return err
	}
	if err := lab.Await(ctx, uplinkGreen, "the verdict on all lanes", func() bool {
		for _, s := range statusOf(w) {
			if !strings.HasPrefix(s, "down") { // also of a lane whose users went direct meanwhile
				return false
			}
		}
		return true
	}); err != nil {
		return fmt.Errorf("%w: %v", err, statusOf(w))
	}
	lab.Sleep(ctx, e.Duration("cut")/10)
	if err := setAll(live, server.Alive()); err != nil {
		return err
	}
	back := time.Now()
	if err := lab.Await(ctx, uplinkGreen, "green lanes after the provider's outage", func() bool { return modeOf(w) == state.ModeNormal && green(w) }); err != nil {
		e.Problem("%v: mode %s, %v", err, modeOf(w), statusOf(w))
		return nil
	}
	e.MS("green_after_outage", time.Since(back))
	e.Say("every endpoint was silent for %s: all is green again %d ms after it", e.Duration("cut")/10, time.Since(back).Milliseconds())
	return nil
}

func setAll(list []*server.Endpoint, f server.Fault) error {
	for _, x := range list {
		if err := x.SetFault(f); err != nil {
			return err
		}
	}
	return nil
}

// cut cuts the uplink for a while, from the first lost packet to the last green lane.
func cut(ctx context.Context, e *lab.Env, w *lab.World, loop *lab.Loop, kind lab.CutKind, name string) error {
	if err := lab.Await(ctx, uplinkGreen, "all lanes green", func() bool { return green(w) }); err != nil {
		return err
	}
	flows := map[string]*traffic.UDP{}
	for _, l := range w.Lanes {
		f, err := w.UDP(ctx, l.Name, traffic.Options{Every: 50 * time.Millisecond})
		if err != nil {
			return err
		}
		flows[l.Name] = f
	}
	was, err := read(w)
	if err != nil {
		return err
	}
	from, runs := end(w), len(loop.Results())
	before, err := carried(w)
	if err != nil {
		return err
	}
	if err := w.Cut(kind); err != nil {
		return err
	}
	began := time.Now()
	lab.Sleep(ctx, e.Duration("cut"))
	during, err := read(w)
	if err != nil {
		return err
	}
	runs = len(loop.Results()) - runs
	if err := w.Restore(); err != nil {
		return err
	}
	back := time.Now()
	e.Say("cut (%s) for %s, %d repairs meanwhile; it is back", name, back.Sub(began).Round(time.Millisecond), runs)
	if err := lab.Await(ctx, uplinkGreen, "green lanes after the cut", func() bool { return green(w) && served(flows, back) }); err != nil {
		e.Problem("%v: %v", err, statusOf(w))
	} else {
		e.MS("green", time.Since(back))
		e.Say("all lanes are green again and their users served %d ms after it", time.Since(back).Milliseconds())
	}
	lab.Sleep(ctx, 10*uplinkEvery) // what comes late counts as well
	return judgeCut(e, w, cutRecord{name, from, runs, was, during, before, flows, began})
}

// cutRecord is what was seen of one cut.
type cutRecord struct {
	name        string
	from        int64
	runs        int
	was, during ledger
	before      map[string]*server.Endpoint
	flows       map[string]*traffic.UDP
	began       time.Time
}

func judgeCut(e *lab.Env, w *lab.World, c cutRecord) error {
	after, err := read(w)
	if err != nil {
		return err
	}
	e.Count("quarantined", after.quarantined-c.was.quarantined)
	e.Count("counted", after.counted-c.was.counted)
	e.Count("replaced", after.replaced-c.was.replaced)
	e.Want(c.during == c.was, "the cut (%s) changed the ledger from %+v to %+v", c.name, c.was, c.during)
	e.Want(after == c.during, "the recovery from the cut (%s) changed the ledger from %+v to %+v", c.name, c.during, after)
	now, err := carried(w)
	if err != nil {
		return err
	}
	for lane, x := range c.before {
		e.Want(now[lane] == x, "%s carries %s after the cut, not %s", lane, now[lane].HostPort(), x.HostPort())
	}
	list, _ := events(w, c.from)
	downs := 0
	for _, ev := range list {
		if ev.Kind == "uplink" && ev.To == "down" {
			downs++
		}
		e.Want(ev.Kind != "refresh", "a refresh ran during the cut")
	}
	lost := 0
	for _, f := range c.flows {
		r := f.Stop(200 * time.Millisecond)
		lost += r.Between(c.began, time.Time{}).Lost()
	}
	e.Control("cut_seen_"+c.name, float64(downs), downs > 0)
	e.Control("cut_lost_packets_"+c.name, float64(lost), lost > 0)
	e.Control("repairs_during_cut_"+c.name, float64(c.runs), c.runs > 2)
	return nil
}

// read counts what the contract files and the journal hold.
func read(w *lab.World) (ledger, error) {
	d, err := state.OpenRead(w.State)
	if err != nil {
		return ledger{}, err
	}
	rows, err := d.Quarantine()
	if err != nil {
		return ledger{}, err
	}
	n, err := d.Count(egress.Day(time.Now()))
	if err != nil {
		return ledger{}, err
	}
	l := ledger{quarantined: len(rows), counted: n}
	list, _ := events(w, 0)
	for _, ev := range list {
		if isSwap(ev) && ev.Command == "repair" {
			l.replaced++
		}
	}
	return l, nil
}

// statusOf is what `egress status` says of the lanes.
func statusOf(w *lab.World) map[string]string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r := w.Shunt(ctx, "egress", "status", "--output", "json")
	var s egress.Status
	if err := r.JSON(&s); err != nil {
		return map[string]string{"status": err.Error()}
	}
	out := map[string]string{}
	for _, l := range s.Lanes {
		out[l.Name] = l.State
		if l.LentTo != "" {
			out[l.Name] = fmt.Sprintf("%s, lent to %s", l.State, l.LentTo)
		}
	}
	return out
}

// green says whether status calls every lane up, and every class travels at home.
func green(w *lab.World) bool {
	lanes := statusOf(w)
	for _, l := range w.Lanes {
		if s := lanes[l.Name]; s != "up" && s != "loaded" {
			return false
		}
	}
	return true
}

// served says whether every flow has had an answer to a packet sent after that time.
func served(flows map[string]*traffic.UDP, after time.Time) bool {
	for _, f := range flows {
		r := f.Result().Between(after, time.Time{})
		if r.Lost() == r.Sent() {
			return false
		}
	}
	return true
}
