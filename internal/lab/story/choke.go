package story

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
	"github.com/shunt-net/shunt/internal/state"
)

// chokeScenario lets handshakes and small packets of a lane pass and stops its data.
func chokeScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-choke", Summary: "a lane answers handshakes and pings and stops data after 4 KiB: caught, quarantined with its reason, replaced",
		Run: playChoke,
	}
}

const (
	chokeLane   = "egress2"
	chokeOther  = "egress1"
	chokeDetect = 10 * time.Second // bound
	// chokeTimes is how often something is choked, so that each part of the time
	// between two deep looks has its turn.
	chokeTimes = 3
)

func playChoke(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{Endpoints: 16, RTT: 10 * time.Millisecond, RTTStep: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	other, err := w.Carrying(chokeOther)
	if err != nil {
		return err
	}
	flow, err := w.UDP(ctx, chokeOther, chokeData())
	if err != nil {
		return err
	}
	repairs := w.Every(ctx, time.Second, nil, "egress", "repair")
	for i := range chokeTimes {
		if err := choke(ctx, e, w, i); err != nil {
			return err
		}
	}
	for _, r := range repairs.Stop() {
		if r.Code != 0 && r.Code != 3 && r.Code != 4 {
			e.Problem("a repair ended with %d: %s", r.Code, r.Stderr)
		}
	}
	now, err := w.Carrying(chokeOther)
	if err != nil {
		return err
	}
	r := flow.Stop(300 * time.Millisecond)
	e.Control("other_lane_kept", float64(r.Sent()-r.Lost()), now == other && r.Sent() > 200)
	e.Packets("lost_other_lane", r.Lost())
	e.Want(r.Lost() == 0, "%d packets of %s lost", r.Lost(), chokeOther)
	list, _ := events(w, 0)
	for _, ev := range list {
		mine := ev.Object == chokeOther && (ev.Kind == "verdict" || ev.Kind == "lend" || isSwap(ev) && ev.Command == "repair")
		e.Want(!mine, "%s, which is not choked, was touched: %s %s %s", chokeOther, ev.Kind, ev.To, ev.Reason)
	}
	return nil
}

// afterDeepLook waits until the lane has just been looked at more deeply than by pings: the
// next such look is as far away as can be.
func afterDeepLook(ctx context.Context, w *lab.World) error {
	at := func() (t time.Time) {
		var m egress.Memory
		if b, err := os.ReadFile(filepath.Join(w.State, "egress.json")); err == nil && json.Unmarshal(b, &m) == nil {
			t = m.Lanes[chokeLane].DeepAt
		}
		return t
	}
	for range 2 { // the first may be the one after a swap
		was := at()
		if err := lab.Await(ctx, 15*time.Second, "a deep look at "+chokeLane, func() bool { return at().After(was) }); err != nil {
			return err
		}
	}
	return nil
}

// chokeData is traffic of large packets.
func chokeData() traffic.Options {
	return traffic.Options{Every: 10 * time.Millisecond, Size: 1000}
}

// choke chokes what the lane carries now and waits until it is found out and replaced.
func choke(ctx context.Context, e *lab.Env, w *lab.World, turn int) error {
	flow, err := w.UDP(ctx, chokeLane, chokeData()) // of its own: one that was lent stays where it was lent to
	if err != nil {
		return err
	}
	defer flow.Stop(0)
	if err := afterDeepLook(ctx, w); err != nil {
		return err
	}
	lab.Sleep(ctx, time.Duration(turn)*5*time.Second/chokeTimes) // the first comes at the worst moment
	x, err := w.Carrying(chokeLane)
	if err != nil {
		return err
	}
	from := end(w)
	if err := x.SetFault(server.Choke()); err != nil {
		return err
	}
	began := time.Now()
	e.Say("%s (%s) lets small packets pass and stops data", x.HostPort(), chokeLane)
	pctx, stop := context.WithCancel(ctx)
	defer stop()
	pings := make(chan []volley, 1)
	go func() { pings <- pingAllTheTime(pctx, w) }()
	verdict, err := awaitEvent(ctx, w, from, 30*time.Second, "the verdict", isVerdict(chokeLane, "down"))
	stop()
	volleys := <-pings
	if err != nil {
		return err
	}
	sent, got := before(verdict.Time, volleys)
	took := verdict.Time.Sub(began)
	e.MS("detect", took)
	e.Want(took <= chokeDetect, "caught after %s, bound %s", took, chokeDetect)
	e.Control("pings_passed", float64(got), sent > 20 && got == sent)
	data := flow.Result().Between(began.Add(500*time.Millisecond), verdict.Time.Add(-500*time.Millisecond))
	e.Control("data_stopped", float64(data.Lost()), data.Sent() > 0 && data.Lost() == data.Sent())
	swap, err := awaitEvent(ctx, w, from, 10*time.Second, "the repair", func(ev journal.Event) bool { return isSwap(ev) && ev.Object == chokeLane })
	if err != nil {
		return err
	}
	e.MS("repair", swap.Time.Sub(verdict.Time))
	e.Say("caught as %q after %d ms, while %d of %d small pings and %d of %d data packets passed; %s replaces it %d ms after the verdict",
		verdict.Reason, took.Milliseconds(), got, sent, data.Sent()-data.Lost(), data.Sent(), swap.To, swap.Time.Sub(verdict.Time).Milliseconds())
	if _, err := awaitEvent(ctx, w, from, 10*time.Second, "the way home", func(ev journal.Event) bool { return ev.Kind == "return" && ev.Object == chokeLane }); err != nil {
		return err
	}
	return chokeRecorded(e, w, x)
}

// volley is a few pings and when the last of them was answered or given up.
type volley struct {
	ended     time.Time
	sent, got int
}

// pingAllTheTime pings through the choked lane, as a plain check would.
func pingAllTheTime(ctx context.Context, w *lab.World) (out []volley) {
	for ctx.Err() == nil {
		v := volley{sent: 3}
		v.got, _, _ = traffic.Ping(context.WithoutCancel(ctx), w.Router, traffic.Pings{ // what failed was not answered
			To: addr(lab.Service4a), Interface: w.Lane(chokeLane).Interface, Count: v.sent, Gap: 50 * time.Millisecond, Wait: time.Second,
		})
		v.ended = time.Now()
		out = append(out, v)
		lab.Sleep(ctx, 50*time.Millisecond)
	}
	return out
}

// before counts the pings of volleys that had ended before that time.
func before(t time.Time, all []volley) (sent, got int) {
	for _, v := range all {
		if v.ended.Before(t) {
			sent, got = sent+v.sent, got+v.got
		}
	}
	return sent, got
}

// chokeRecorded looks at the record: the endpoint, its lane and why.
func chokeRecorded(e *lab.Env, w *lab.World, x *server.Endpoint) error {
	d, err := state.OpenRead(w.State)
	if err != nil {
		return err
	}
	rows, err := d.Quarantine()
	if err != nil {
		return err
	}
	for _, q := range rows {
		if q.Endpoint == x.HostPort() && q.Slot == chokeLane {
			e.Want(q.Reason == "choked", "%s was quarantined as %q, not as choked", q.Endpoint, q.Reason)
			return nil
		}
	}
	e.Problem("%s is not in quarantine", x.HostPort())
	return nil
}
