package story

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tunnel"
)

// poolScenario refreshes a big list of which many endpoints are silent, while a lane carries
// traffic to one that is in the list.
func poolScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-pool", Summary: "one refresh of 1,000 endpoints, half of them silent, while a lane carries 10 Mbit/s to one of the list",
		Flags: []lab.Flag{
			{Name: "endpoints", Value: "1000", Usage: "endpoints in the list"},
			{Name: "dead", Value: "0.5", Usage: "share of silent ones"},
		},
		Run: playPool,
	}
}

const (
	poolLane = "egress1"
	poolWall = 8 * time.Second // bound
	poolRSS  = 200 << 20       // bound, bytes
	// 10 Mbit/s of IP packets: a thousand in a second, of 1,250 bytes each.
	poolEvery = time.Millisecond
	poolSize  = 1250 - 28
	// poolTaken is how long the lane is looked at after somebody took its session.
	poolTaken = 2 * time.Second
)

// poolRTT spreads true round trips over 5 to 80 ms, in no order.
func poolRTT(i int) time.Duration { return time.Duration(5+i*29%76) * time.Millisecond }

func playPool(ctx context.Context, e *lab.Env) error {
	n := e.Int("endpoints")
	w, err := morning(ctx, e, lab.WorldOptions{
		Endpoints: n, Dead: int(e.Float("dead") * float64(n)), RTTs: poolRTT,
		Settings: lab.Settings{"egress.test.tls": []string{}}, // measured apart, see withTLS
	})
	if err != nil {
		return err
	}
	lanes, err := carried(w)
	if err != nil {
		return err
	}
	used := lanes[poolLane]
	e.Say("settings of the tests are the product's own, but for the hosts that are pinged (the world's) and without a TLS handshake through each tunnel; the servers share the machine's cores")
	flow, err := w.UDP(ctx, poolLane, traffic.Options{Every: poolEvery, Size: poolSize})
	if err != nil {
		return err
	}
	if _, err := flow.WaitVia(ctx, time.Now(), used.Exit4); err != nil {
		return err
	}
	lab.Sleep(ctx, time.Second)
	links, err := watchLinks(w.Router)
	if err != nil {
		return err
	}
	e.Say("%s (%s) carries 10 Mbit/s; the refresh begins", used.HostPort(), poolLane)
	r := w.Shunt(ctx, "egress", "refresh")
	ended := time.Now()
	if err := r.Err(); err != nil {
		return err
	}
	made := links.news()
	lab.Sleep(ctx, 2*time.Second) // what a test left behind would hurt the lane now
	e.Count("endpoints", n)
	e.MS("wall", r.Took)
	e.Want(r.Took <= poolWall, "the refresh took %s, bound %s", r.Took, poolWall)
	e.MiB("peak_rss", r.PeakRSS)
	e.Want(r.PeakRSS > 0 && r.PeakRSS <= poolRSS, "the refresh took %d MiB, bound %d", r.PeakRSS>>20, int64(poolRSS)>>20)
	e.Want(len(made) == 0, "links changed in the router during the refresh: %v", made)
	if err := poolFound(e, w, used); err != nil {
		return err
	}
	res := flow.Result()
	during := res.Between(r.Began, ended)
	e.Control("lane_packets", float64(during.Sent()), during.Via()[used.Exit4] > int(r.Took/poolEvery)*8/10)
	settled := res.Between(time.Time{}, time.Now().Add(-time.Second))
	e.Packets("lane_lost", settled.Lost())
	e.Want(settled.Lost() == 0, "%d of %d packets of the lane were lost: %s", settled.Lost(), settled.Sent(), whereLost(settled, r.Began))
	e.Say("refresh: %d ms, %d MiB at most; %d packets of the lane, %d lost (the sender itself was up to %d ms late)",
		r.Took.Milliseconds(), r.PeakRSS>>20, settled.Sent(), settled.Lost(), res.Late.Milliseconds())
	if err := links.control(ctx, e, w.Router); err != nil {
		return err
	}
	if err := withTLS(ctx, e, w); err != nil {
		return err
	}
	return takeSession(ctx, e, w, flow, used)
}

// withTLS measures what the last stage costs: a TLS handshake through each live tunnel,
// whose servers share the machine's cores.
func withTLS(ctx context.Context, e *lab.Env, w *lab.World) error {
	if err := w.Configure(lab.Settings{"egress.test.tls": []map[string]any{{"address": lab.Service4a + ":443", "server_name": lab.ServerName}}}); err != nil {
		return err
	}
	r := w.Shunt(ctx, "egress", "refresh")
	if err := r.Err(); err != nil {
		return err
	}
	e.MS("wall_with_tls", r.Took)
	e.MiB("peak_rss_with_tls", r.PeakRSS)
	e.Say("the same with a TLS handshake through each live tunnel: %d ms, %d MiB at most", r.Took.Milliseconds(), r.PeakRSS>>20)
	return nil
}

// whereLost says when packets were lost, seen from the refresh's begin.
func whereLost(r traffic.Result, began time.Time) string {
	var from, to time.Duration
	for _, p := range r.Packets {
		if p.Got.IsZero() {
			if to = p.Sent.Sub(began); from == 0 {
				from = to
			}
		}
	}
	return fmt.Sprintf("sent from %d to %d ms after the refresh began", from.Milliseconds(), to.Milliseconds())
}

// evidence is what a refresh writes beside its pools.
type evidence struct {
	Results map[string]egress.TestResult `json:"results"`
}

// readEvidence is what the last refresh saw of each endpoint.
func readEvidence(w *lab.World) (map[string]egress.TestResult, error) {
	b, err := os.ReadFile(filepath.Join(w.State, "pools", "current", "evidence.json"))
	if err != nil {
		return nil, err
	}
	var ev evidence
	if err := json.Unmarshal(b, &ev); err != nil {
		return nil, fmt.Errorf("evidence.json: %w", err)
	}
	return ev.Results, nil
}

// poolFound compares the published pool with the world: exactly the live ones, at their
// true round trips.
func poolFound(e *lab.Env, w *lab.World, used *server.Endpoint) error {
	dir := filepath.Join(w.State, "pools")
	rows, _, err := state.ReadPool(filepath.Join(dir, config.Default().Egress.Pool.StrictAll))
	if err != nil {
		return err
	}
	results, err := readEvidence(w)
	if err != nil {
		return err
	}
	listed := map[string]state.PoolRow{}
	for _, r := range rows {
		listed[r.Endpoint] = r
	}
	found, silent := 0, 0
	var errs []time.Duration
	for _, x := range w.Endpoints() {
		row, ok := listed[x.HostPort()]
		t := results[x.HostPort()]
		switch {
		case x.Alive() && ok:
			found++
			errs = append(errs, (row.Avg - x.RTT()).Abs())
		case x.Alive():
			e.Problem("%s lives and was not found: %s (handshake %s, %d of %d pings)", x.HostPort(), t.Reason, t.Handshake, t.Got, t.Sent)
		case ok:
			e.Problem("%s is silent and stands in the pool", x.HostPort())
		case t.Reason == tunnel.ReasonNoHandshake:
			silent++
		}
	}
	e.Count("live_found", found)
	e.Want(len(rows) == len(w.Live()), "the pool has %d rows, %d endpoints live", len(rows), len(w.Live()))
	e.Control("silent_not_found", float64(silent), silent == len(w.Endpoints())-len(w.Live()) && silent > 0)
	through := results[used.HostPort()]
	e.Control("lane_endpoint_in_list", float64(through.Got), through.Got > 0 && through.Via == poolLane)
	slices.Sort(errs)
	if len(errs) == 0 {
		return nil
	}
	median, p90 := errs[len(errs)/2], errs[len(errs)*9/10]
	e.MS("latency_error", median)
	e.MS("latency_error_p90", p90)
	e.Say("%d of %d live ones found, at 5 to 80 ms; their latency is off by %.1f ms in the middle, %.1f ms at 90 %%", found, len(w.Live()), millis(median), millis(p90))
	return nil
}

// takeSession is the control of lane_lost: the same test as a refresh's, of the server that
// the lane uses, from a second socket with the lane's key.
func takeSession(ctx context.Context, e *lab.Env, w *lab.World, flow *traffic.UDP, used *server.Endpoint) error {
	c := config.Default().Egress.Test
	c.Targets, c.TLS = nil, nil
	for _, a := range []string{lab.Service4a, lab.Service4b} {
		c.Targets = append(c.Targets, addr(a))
	}
	began := time.Now()
	var got egress.TestResult
	err := w.Router.Do(func() error { // its socket is opened on this thread
		return tunnel.New(tunnel.Options{Now: time.Now}).Test(ctx, c,
			[]egress.TestTarget{{Endpoint: used.HostPort(), Path: w.Profile(used), Pair: poolLane}}, nil, func(r egress.TestResult) { got = r })
	})
	if err != nil {
		return err
	}
	lab.Sleep(ctx, poolTaken)
	lost := flow.Stop(0).Between(began, time.Time{}).Lost()
	e.Say("a test of the lane's own server from a second socket got %d of %d pings and cost the lane %d packets in %d ms", got.Got, got.Sent, lost, time.Since(began).Milliseconds())
	e.Control("lost_when_probed", float64(lost), lost > 100)
	return nil
}
