package story

import (
	"context"
	"fmt"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/health"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// loadedScenario fills every lane and drops pings: busy is not dead. Then a full lane dies.
func loadedScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-loaded", Summary: "full lanes that drop 30 % of pings are not repaired; a full lane that really dies is",
		Flags: []lab.Flag{{Name: "time", Value: "60s", Usage: "how long the lanes are full"}},
		Run:   playLoaded,
	}
}

const (
	loadedShare  = 0.3 // of pings that are dropped
	loadedVictim = "egress4"
	loadedFull   = 1 << 20          // bytes per second of a download that count as a full lane on a small machine
	loadedDeath  = 15 * time.Second // bound on the repair of the lane that dies
)

func playLoaded(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{RTT: 5 * time.Millisecond, RTTStep: 5 * time.Millisecond})
	if err != nil {
		return err
	}
	lanes, err := carried(w)
	if err != nil {
		return err
	}
	bulk := map[string]*traffic.Bulk{}
	for _, l := range w.Lanes {
		if err := lanes[l.Name].SetFault(server.Lossy(loadedShare)); err != nil {
			return err
		}
		if bulk[l.Name], err = w.Bulk(ctx, l.Name, traffic.Options{}); err != nil {
			return err
		}
	}
	from, began := end(w), time.Now()
	count := verdicts{}
	repairs := w.Every(ctx, time.Second, func(r lab.Result) { count.add(e, r) }, "egress", "repair", "--output", "json")
	for left := e.Duration("time"); left > 0; left -= 5 * time.Second {
		lab.Sleep(ctx, min(left, 5*time.Second))
		for lane, s := range statusOf(w) {
			e.Want(s == string(health.Up) || s == string(health.Loaded), "after %s status says of %s: %s", time.Since(began).Round(time.Second), lane, s)
		}
	}
	loadedJudge(e, w, from, time.Since(began), lanes, bulk)
	err = loadedDies(ctx, e, w, lanes[loadedVictim])
	rounds := len(repairs.Stop())
	e.Say("%d runs of repair; verdicts: %v", rounds, count)
	e.Count("rounds", rounds)
	e.Count("loaded_verdicts", count[string(health.Loaded)])
	e.Count("suspect_verdicts", count[string(health.Suspect)])
	return err
}

// verdicts counts what repairs said of lanes; it belongs to the loop that runs them.
type verdicts map[string]int

func (v verdicts) add(e *lab.Env, r lab.Result) {
	var out struct {
		Plan egress.Plan `json:"plan"`
	}
	if r.Code != 0 && r.Code != 3 && r.Code != 4 {
		e.Problem("a repair ended with %d: %s", r.Code, r.Stderr)
	}
	if err := r.JSON(&out); err != nil {
		e.Problem("%v", err)
	}
	for _, l := range out.Plan.Lanes {
		v[l.Verdict]++
	}
}

// loadedJudge counts what must be zero while all lanes were full, and what must not.
func loadedJudge(e *lab.Env, w *lab.World, from int64, took time.Duration, lanes map[string]*server.Endpoint, bulk map[string]*traffic.Bulk) {
	repairs, quarantines, lends := 0, 0, 0
	list, _ := events(w, from)
	for _, ev := range list {
		switch ev.Kind {
		case "swap", "rollback":
			repairs++
		case "quarantine":
			quarantines++
		case "lend":
			lends++
		default:
			continue
		}
		e.Say("%s of %s: %s", ev.Kind, ev.Object, ev.Reason)
	}
	e.Count("repairs", repairs)
	e.Want(repairs == 0, "%d repairs of lanes that were only busy", repairs)
	e.Count("quarantined", quarantines)
	e.Want(quarantines == 0, "%d endpoints quarantined that were only busy", quarantines)
	e.Count("lent", lends)
	e.Want(lends == 0, "%d classes lent by lanes that were only busy", lends)
	dropped, least := uint64(0), 0.0
	for name, x := range lanes {
		dropped += x.Counts().Dropped
		if rate := float64(bulk[name].Bytes()) / took.Seconds(); least == 0 || rate < least {
			least = rate
		}
	}
	e.Say("all lanes full for %s: the slowest download had %.1f MB/s; %d pings dropped", took.Round(time.Second), least/1e6, dropped)
	e.Control("pings_dropped", float64(dropped), dropped > 0)
	e.Control("bytes_per_second_of_a_lane", least, least > loadedFull)
}

// loadedDies is the control: a full lane that is really dead is repaired.
func loadedDies(ctx context.Context, e *lab.Env, w *lab.World, dead *server.Endpoint) error {
	from := end(w)
	if err := dead.SetFault(server.Silent()); err != nil {
		return err
	}
	died := time.Now()
	swap, err := awaitEvent(ctx, w, from, loadedDeath, "the repair of the lane that died", func(ev journal.Event) bool {
		return isSwap(ev) && ev.Object == loadedVictim
	})
	if err != nil {
		e.Control("dead_lane_repaired", 0, false)
		return err
	}
	now, err := w.Carrying(loadedVictim)
	if err != nil {
		return fmt.Errorf("after the repair: %w", err)
	}
	e.Control("dead_lane_repaired", 1, swap.From == dead.HostPort() && now.HostPort() == swap.To)
	e.MS("dead_lane_repaired_after", swap.Time.Sub(died))
	e.Say("%s dies under load and %s replaces it %d ms later", dead.HostPort(), swap.To, swap.Time.Sub(died).Milliseconds())
	return nil
}
