package story

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// day is the main story: refresh, place, lose a lane, lend, repair, refuse the dead
// endpoint until a fresh pool lists it.
func day() lab.Scenario {
	return lab.Scenario{
		Name: "egress-day", Summary: "a lane dies under traffic: lend, record, replace, and refuse the dead endpoint until a fresh pool lists it",
		Run: playDay,
	}
}

const victim = "egress3"

func playDay(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{Endpoints: 16, RTT: 10 * time.Millisecond, RTTStep: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	lanes, err := carried(w)
	if err != nil {
		return err
	}
	best, err := ranked(w, "ok-awg1-strict-foreign-latest.tsv", len(w.Lanes))
	if err != nil {
		return err
	}
	for _, l := range w.Lanes {
		x := lanes[l.Name]
		e.Say("%s carries %s (%s)", l.Name, x.HostPort(), x.Name)
		e.Want(slices.Contains(best, x.HostPort()), "%s carries %s, which is not among the best: %v", l.Name, x.HostPort(), best)
	}
	flows := map[string]*traffic.UDP{}
	for _, l := range w.Lanes {
		if flows[l.Name], err = w.UDP(ctx, l.Name, traffic.Options{Every: 5 * time.Millisecond}); err != nil {
			return err
		}
	}
	tcp, err := startStreams(ctx, w)
	if err != nil {
		return err
	}
	from := end(w)
	repairs := w.Every(ctx, time.Second, nil, "egress", "repair")
	// A refresh that runs all through it: eleven tests, one begun each second.
	slow, err := w.Start("slow-refresh", "egress", "refresh", "--set", "egress.test.rate=1", "--set", "egress.test.parallel=1")
	if err != nil {
		return err
	}
	lab.Sleep(ctx, 2*time.Second+phase())
	dead := lanes[victim]
	before := dead.Counts()
	if err := dead.SetFault(server.Silent()); err != nil {
		return err
	}
	died := time.Now()
	e.Say("%s (%s) goes silent under traffic", dead.HostPort(), victim)
	verdict, err := awaitEvent(ctx, w, from, 10*time.Second, "the verdict", isVerdict(victim, "down"))
	if err != nil {
		return err
	}
	swap, err := awaitEvent(ctx, w, from, 10*time.Second, "the repair", func(ev journal.Event) bool { return ev.Kind == "swap" && ev.Object == victim })
	if err != nil {
		return err
	}
	if _, err := awaitEvent(ctx, w, from, 5*time.Second, "the way home", func(ev journal.Event) bool { return ev.Kind == "return" && ev.Object == victim }); err != nil {
		return err
	}
	lab.Sleep(ctx, 500*time.Millisecond)
	e.MS("detect", verdict.Time.Sub(died))
	e.Want(verdict.Time.Sub(died) <= 3*time.Second, "detected after %s, bound 3 s", verdict.Time.Sub(died))
	e.MS("repair", swap.Time.Sub(verdict.Time))
	e.Want(swap.Time.Sub(verdict.Time) <= 2*time.Second, "repaired %s after the verdict, bound 2 s", swap.Time.Sub(verdict.Time))
	tell(e, w, from, died)
	e.Say("detected after %d ms, replaced by %s %d ms after the verdict", verdict.Time.Sub(died).Milliseconds(), swap.To, swap.Time.Sub(verdict.Time).Milliseconds())
	lend(e, w, flows[victim].Stop(300*time.Millisecond), dead, verdict.Time)
	tcp.judge(e, verdict.Time)
	lost := 0
	for _, l := range w.Lanes {
		if l.Name != victim {
			r := flows[l.Name].Stop(300 * time.Millisecond)
			lost += r.Lost()
			e.Control("traffic_"+l.Name, float64(r.Sent()), r.Sent() > 200)
		}
	}
	e.Packets("lost_other_lanes", lost)
	e.Want(lost == 0, "%d packets of other lanes lost", lost)
	e.Control("dead_endpoint_had_traffic", float64(before.In), before.In > 0)
	select {
	case <-slow.Done():
		e.Problem("the refresh that was to run all through it ended early: %s", slow.Tail())
	default:
	}
	return evening(ctx, e, w, dead, slow, repairs)
}

// tell reads the journal aloud, from the death on.
func tell(e *lab.Env, w *lab.World, from int64, died time.Time) {
	list, _ := events(w, from)
	for _, ev := range list {
		if ev.Time.Before(died) || ev.Command == "refresh" {
			continue
		}
		way := ""
		if ev.From != "" || ev.To != "" {
			way = fmt.Sprintf(" %s -> %s", ev.From, ev.To)
		}
		e.Say("  journal, %4d ms after the death: %s %s%s: %s", ev.Time.Sub(died).Milliseconds(), ev.Kind, ev.Object, way, ev.Reason)
	}
}

// phase spreads the death over the second between two repairs.
func phase() time.Duration { return time.Duration(time.Now().UnixNano() % int64(time.Second)) }

func isVerdict(lane, to string) func(journal.Event) bool {
	return func(ev journal.Event) bool { return ev.Kind == "verdict" && ev.Object == lane && ev.To == to }
}

// lend measures when the dead lane's users were served again, and what the loan cost them.
func lend(e *lab.Env, w *lab.World, r traffic.Result, dead *server.Endpoint, verdict time.Time) {
	var served *traffic.Packet
	for i, p := range r.Packets {
		if !p.Got.IsZero() && p.Sent.After(verdict) && w.Far.ByExit(p.Exit) != dead {
			served = &r.Packets[i]
			break
		}
	}
	if served == nil {
		e.Problem("the users of %s were never served again", victim)
		return
	}
	took := max(served.Got.Sub(verdict), 0)
	e.MS("lend", took)
	e.Say("its users are served through %s %d ms after the verdict", w.Far.ByExit(served.Exit).HostPort(), took.Milliseconds())
	e.Want(took <= 200*time.Millisecond, "lent %s after the verdict, bound 200 ms", took)
	lost := r.Between(served.Sent, time.Time{}).Lost()
	e.Packets("lost_after_lend", lost)
	e.Want(lost <= 1, "%d packets of the lent users lost, bound 1", lost)
}

// streams are TCP connections of every class, to show whom a loan resets.
type streams map[string]*traffic.TCP

func startStreams(ctx context.Context, w *lab.World) (streams, error) {
	s := streams{}
	for _, l := range w.Lanes {
		c, err := w.TCP(ctx, l.Name, traffic.Options{Every: 50 * time.Millisecond})
		if err != nil {
			return nil, err
		}
		s[l.Name] = c
	}
	return s, nil
}

func (s streams) judge(e *lab.Env, verdict time.Time) {
	for lane, c := range s {
		r := c.Stop()
		if lane == victim {
			e.Want(r.Reset && r.Ended.Sub(verdict) < time.Second, "the dead lane's TCP was not reset at its next packet (%+v)", r)
			if r.Reset {
				e.MS("tcp_reset", max(r.Ended.Sub(verdict), 0))
			}
			continue
		}
		e.Want(r.Ended.IsZero(), "a TCP flow of %s was cut: %v", lane, r.Err)
	}
}

// evening shows that the dead endpoint, alive again, is not offered by a pool whose tests
// began before its failure, though the file is newer, and is by a fresh one.
func evening(ctx context.Context, e *lab.Env, w *lab.World, dead *server.Endpoint, slow *lab.Proc, repairs *lab.Loop) error {
	if err := lab.Await(ctx, 30*time.Second, "the end of the slow refresh", func() bool {
		select {
		case <-slow.Done():
			return true
		default:
			return false
		}
	}); err != nil {
		return err
	}
	e.Want(slow.Stop() == 0, "the slow refresh ended with %d: %s", slow.Stop(), slow.Tail())
	worst := time.Duration(0)
	for _, r := range repairs.Stop() {
		if r.Code != 0 && r.Code != 3 && r.Code != 4 {
			e.Problem("a repair ended with %d: %s", r.Code, r.Stderr)
		}
		worst = max(worst, r.Took)
	}
	e.MS("longest_repair_run", worst)
	if err := dead.SetFault(server.Alive()); err != nil {
		return err
	}
	offered, err := offers(ctx, w, dead)
	if err != nil {
		return err
	}
	e.Want(!offered, "%s is offered by a pool whose tests began before it failed", dead.HostPort())
	e.Say("%s answers again; rebalance --dry-run does not offer it: its pool is older than its failure", dead.HostPort())
	if err := w.Shunt(ctx, "egress", "refresh").Err(); err != nil {
		return err
	}
	offered, err = offers(ctx, w, dead)
	if err != nil {
		return err
	}
	e.Control("offered_after_refresh", 1, offered)
	e.Say("after a refresh it is offered again: %v", offered)
	if err := w.Shunt(ctx, "egress", "rebalance").Err(); err != nil {
		return err
	}
	now, err := carried(w)
	if err != nil {
		return err
	}
	back := false
	for _, x := range now {
		back = back || x == dead
	}
	e.Want(back, "%s is not back in its place after a fresh pool", dead.HostPort())
	return noChange(ctx, e, w)
}

// noChange measures rebalances that have nothing to do.
func noChange(ctx context.Context, e *lab.Env, w *lab.World) error {
	for range 5 {
		r := w.Shunt(ctx, "egress", "rebalance", "--output", "json")
		if err := r.Err(); err != nil {
			return err
		}
		var out struct {
			Plan egress.Plan `json:"plan"`
		}
		if err := r.JSON(&out); err != nil {
			return err
		}
		e.Want(!out.Plan.Changes(), "a second rebalance changes something: %v", out.Plan.Steps)
		e.MS("no_change", r.Took)
		e.MiB("no_change_rss", r.PeakRSS)
		e.Want(r.PeakRSS <= 50<<20, "a rebalance that changes nothing takes %d MiB, bound 50", r.PeakRSS>>20)
		e.Want(r.Took <= 250*time.Millisecond, "a rebalance that changes nothing takes %s", r.Took) // 60 ms on a quiet machine
	}
	return nil
}

// offers says whether a rebalance would place the endpoint.
func offers(ctx context.Context, w *lab.World, x *server.Endpoint) (bool, error) {
	r := w.Shunt(ctx, "egress", "rebalance", "--dry-run", "--output", "json")
	if err := r.Err(); err != nil {
		return false, err
	}
	var out struct {
		Plan egress.Plan `json:"plan"`
	}
	if err := r.JSON(&out); err != nil {
		return false, err
	}
	for _, s := range out.Plan.Steps {
		if s.To == x.HostPort() {
			return true, nil
		}
	}
	return false, nil
}
