package story

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// swapScenario swaps a healthy lane again and again under its user's traffic, and beside it
// a lane of the same router that is driven by wg-quick.
func swapScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-swap", Summary: "healthy swaps at 50 ms of round trip under 500 packets/s: the silence, and what leaves in clear; wg-quick beside it",
		Flags: []lab.Flag{{Name: "swaps", Value: "7", Usage: "healthy swaps"}, {Name: "restarts", Value: "3", Usage: "restarts of the lane of wg-quick"}},
		Run:   playSwap,
	}
}

const (
	swapRTT     = 50 * time.Millisecond
	swapEvery   = 2 * time.Millisecond
	swapSilence = 80 * time.Millisecond // bound
	// swapStall is how long the lane beside it may be silent within a swap's silence: its
	// packets come each 2 ms, so more means that the machine stood still, and the figure is
	// not the swap's.
	swapStall   = 20 * time.Millisecond
	swapRepeats = 3 // times the number of swaps: so many are repeated at most
	swapLane    = "egress1"
	swapOther   = "egress2"
)

func playSwap(ctx context.Context, e *lab.Env) error {
	// The two endpoints at home rank after all others: no lane of shunt's ever takes them.
	w, err := morning(ctx, e, lab.WorldOptions{RTTs: func(int) time.Duration { return swapRTT }, Home: 2})
	if err != nil {
		return err
	}
	if err := healthySwaps(ctx, e, w); err != nil {
		return err
	}
	return wgQuickSwaps(ctx, e, w)
}

// swapWatch is what is looked at during a swap.
type swapWatch struct {
	user, beside *traffic.UDP
	began        time.Time
	uplink       lab.Uplink
	events       int64
	first        time.Time // when the first swap was done
}

func healthySwaps(ctx context.Context, e *lab.Env, w *lab.World) error {
	var s swapWatch
	var err error
	if s.user, err = w.UDP(ctx, swapLane, traffic.Options{Every: swapEvery}); err != nil {
		return err
	}
	if s.beside, err = w.UDP(ctx, swapOther, traffic.Options{Every: swapEvery}); err != nil {
		return err
	}
	streams, err := startStreams(ctx, w)
	if err != nil {
		return err
	}
	want, done, stalled := e.Int("swaps"), 0, 0
	for done < want {
		lab.Sleep(ctx, 300*time.Millisecond)
		calm, err := s.swap(ctx, e, w, stalled < swapRepeats*want)
		if err != nil {
			return err
		}
		if calm {
			done++
		} else {
			stalled++
		}
	}
	e.Count("repeated", stalled)
	lost := s.beside.Stop(300 * time.Millisecond).Lost()
	e.Packets("lost_other_lane", lost)
	e.Want(lost == 0, "%d packets of %s lost while %s was swapped", lost, swapOther, swapLane)
	r := s.user.Stop(300 * time.Millisecond)
	e.Control("swapped_user_packets", float64(r.Sent()-r.Lost()), r.Sent() > 500*want && r.Lost() < r.Sent()/4)
	for lane, c := range streams {
		r := c.Stop()
		if lane != swapLane {
			e.Want(r.Ended.IsZero(), "a TCP flow of %s was cut while %s was swapped: %v", lane, swapLane, r.Err)
			continue
		}
		e.Want(r.Reset && r.Ended.Sub(s.first) <= time.Second, "the swapped lane's TCP was not reset within a second (%+v)", r)
		if r.Reset {
			e.MS("tcp_reset", max(r.Ended.Sub(s.first), 0))
		}
	}
	return nil
}

// swap makes a rebalance move the lane: its endpoint's name is denied. It returns false
// where the machine stood still meanwhile and the swap has to be repeated.
func (s *swapWatch) swap(ctx context.Context, e *lab.Env, w *lab.World, repeat bool) (bool, error) {
	old, err := w.Carrying(swapLane)
	if err != nil {
		return false, err
	}
	if err := w.Configure(lab.Settings{"egress.rebalance.deny": []string{old.File()}}); err != nil {
		return false, err
	}
	if s.uplink, err = w.Uplink(); err != nil {
		return false, err
	}
	s.began, s.events = time.Now(), end(w)
	if err := w.Shunt(ctx, "egress", "rebalance").Err(); err != nil {
		return false, err
	}
	now, err := w.Carrying(swapLane)
	if err != nil {
		return false, err
	}
	back, err := s.user.WaitVia(ctx, s.began, now.Exit4)
	if err != nil {
		return false, err
	}
	lab.Sleep(ctx, 200*time.Millisecond)
	after, err := w.Uplink()
	if err != nil {
		return false, err
	}
	list, _ := events(w, s.events)
	swaps := 0
	for _, ev := range list {
		if ev.Kind == "swap" && ev.Object == swapLane && ev.From == old.HostPort() && ev.To == now.HostPort() {
			swaps++
			if s.first.IsZero() {
				s.first = ev.Time
			}
		}
		e.Want(ev.Kind != "lend", "a class was lent for a swap that needs none: %s", ev.Reason)
	}
	e.Want(swaps == 1 && now != old, "%s was not swapped once: %d swaps, %s -> %s", swapLane, swaps, old.HostPort(), now.HostPort())
	r := s.user.Result()
	silence, at := r.Between(s.began, time.Time{}).Silence()
	e.Want(r.Between(back.Sent, time.Time{}).Via()[old.Exit4] == 0, "packets went through %s after the first through %s", old.HostPort(), now.HostPort())
	stall := within(s.beside.Result(), at, at.Add(silence))
	leaked := inClear(after.Sub(s.uplink))
	e.Packets("in_clear", leaked)
	e.Want(leaked == 0, "%d packets left in clear during a healthy swap", leaked)
	e.Say("%s -> %s: silent for %.1f ms (the lane beside it for %.1f ms of them), %d packets in clear; first answer through it %.0f ms after the command",
		old.HostPort(), now.HostPort(), millis(silence), millis(stall), leaked, millis(back.Got.Sub(s.began)))
	if repeat && silence > swapSilence && stall > swapStall {
		e.Say("the machine stood still for %.0f ms, and the swap is repeated", millis(stall))
		return false, nil
	}
	e.MS("silence", silence)
	e.Want(silence <= swapSilence, "the swap silenced the lane for %s from %s on, bound %s", silence, at.Sub(s.began), swapSilence)
	return true, nil
}

// within is the longest silence of a flow between two times.
func within(r traffic.Result, a, b time.Time) time.Duration {
	got := []time.Time{a, b}
	for _, p := range r.Packets {
		if p.Got.After(a) && p.Got.Before(b) {
			got = append(got, p.Got)
		}
	}
	slices.SortFunc(got, time.Time.Compare)
	var most time.Duration
	for i := 1; i < len(got); i++ {
		most = max(most, got[i].Sub(got[i-1]))
	}
	return most
}

// inClear is the number of packets outside any tunnel, by whichever counter saw most.
func inClear(u lab.Uplink) int { return int(max(u.Clear, u.Users, u.Marked)) } //nolint:gosec // far below

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// wgQuickSwaps restarts a lane of the router's own admin by wg-quick, under the same
// traffic: what shunt's swaps are measured against.
func wgQuickSwaps(ctx context.Context, e *lab.Env, w *lab.World) error {
	ends := w.Endpoints()[len(w.Endpoints())-2:]
	q, err := newWGQuick(ctx, w)
	if err != nil {
		return err
	}
	if err := q.up(ctx, ends[0]); err != nil {
		return err
	}
	flow, err := w.UDP(ctx, swapLane, traffic.Options{From: q.user, DSCP: q.class, Every: swapEvery, ID: 99})
	if err != nil {
		return err
	}
	if _, err := flow.WaitVia(ctx, time.Now(), ends[0].Exit4); err != nil {
		return err
	}
	least := 0
	for i := range e.Int("restarts") {
		leaked, err := q.restart(ctx, e, flow, ends[(i+1)%2])
		if err != nil {
			return err
		}
		if i == 0 || leaked < least {
			least = leaked
		}
	}
	e.Control("wg_quick_in_clear", float64(least), least > 0)
	r := flow.Stop(300 * time.Millisecond)
	e.Control("wg_quick_user_packets", float64(r.Sent()-r.Lost()), r.Sent() > 0 && r.Lost() < r.Sent()/2)
	return q.down(ctx)
}

// restart gives the lane another endpoint in wg-quick's way, and returns what left in clear.
func (q *wgQuick) restart(ctx context.Context, e *lab.Env, flow *traffic.UDP, to *server.Endpoint) (int, error) {
	lab.Sleep(ctx, 300*time.Millisecond)
	before, err := q.w.Uplink()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := errors.Join(q.down(ctx), q.up(ctx, to)); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if _, err := flow.WaitVia(ctx, began, to.Exit4); err != nil {
		return 0, err
	}
	lab.Sleep(ctx, 200*time.Millisecond)
	after, err := q.w.Uplink()
	if err != nil {
		return 0, err
	}
	leaked := inClear(after.Sub(before))
	r := flow.Result().Between(began.Add(-100*time.Millisecond), time.Time{}) // the last answer came before it
	r.Packets = tunnelled(q.w, r.Packets)
	silence, _ := r.Silence()
	e.MS("wgquick_silence", silence)
	e.Packets("wgquick_in_clear", leaked)
	e.Say("wg-quick down and up took %.0f ms: silent for %.0f ms, %d packets in clear", millis(took), millis(silence), leaked)
	return leaked, nil
}

// tunnelled leaves out what was answered in clear: that is no service of the lane.
func tunnelled(w *lab.World, in []traffic.Packet) []traffic.Packet {
	var out []traffic.Packet
	for _, p := range in {
		if !p.Exit.IsValid() || w.Far.ByExit(p.Exit) != nil {
			out = append(out, p)
		}
	}
	return out
}

// isSwap says whether an event is a swap that passed.
func isSwap(ev journal.Event) bool { return ev.Kind == "swap" }
