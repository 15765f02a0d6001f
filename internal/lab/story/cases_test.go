package story_test

import (
	"slices"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

const (
	one     = "egress1"
	working = 30 * time.Millisecond
)

// fastAndSlow are round trips of a first endpoint that is much better than all others.
func fastAndSlow(i int) time.Duration {
	if i == 0 {
		return 5 * time.Millisecond
	}
	return working + time.Duration(i-1)*40*time.Millisecond // a busy machine must not change the ranks
}

func TestTheBestPingWithoutDataIsNotChosen(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 1, Endpoints: 3, RTTs: fastAndSlow})
	p.tell()
	best, next := p.Endpoints()[0], p.Endpoints()[1]
	p.fault(best, server.NoData())
	p.shunt("egress", "refresh")
	t.Logf("tested: %+v, rank %d", p.tested(best), p.strictRank(best))
	p.shunt("egress", "rebalance")
	p.shunt("egress", "repair")
	if got := p.carries(one); got != next {
		t.Fatalf("the lane carries %v, want the second best, which carries data", got)
	}
	if s := p.laneState(one); s != "up" {
		t.Errorf("the lane is %s", s)
	}
	why := append(p.reasons(best), p.tested(best).Reason)
	if !slices.ContainsFunc(why, func(r string) bool { return r != "" }) {
		t.Error("nothing says why the best was not chosen")
	}
	t.Logf("reasons: %q", why)

	// Its users have to notice nothing of later tries, if there are any.
	flow, err := p.UDP(t.Context(), one, traffic.Options{Every: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.shunt("egress", "rebalance")
		if got := p.carries(one); got != next {
			t.Fatalf("a later rebalance put %v on the lane", got)
		}
	}
	if r := flow.Stop(300 * time.Millisecond); r.Lost() > 0 {
		silence, _ := r.Silence()
		t.Errorf("%d of %d packets were lost by tries of an endpoint without data; silent for %s", r.Lost(), r.Sent(), silence)
	}
}

func TestAnEndpointThatStopsDataLosesItsLane(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 1, Endpoints: 3, RTTs: fastAndSlow})
	p.tell()
	best, next := p.Endpoints()[0], p.Endpoints()[1]
	p.shunt("egress", "refresh")
	p.shunt("egress", "rebalance")
	if got := p.carries(one); got != best {
		t.Fatalf("the lane carries %v, want the best", got)
	}
	p.fault(best, server.NoData())
	took := p.repairUntil(20*time.Second, "the lane on the second best", func() bool { return p.carries(one) == next })
	t.Logf("took %s", took)
	if r := p.recorded(best); r != "no_data" {
		t.Errorf("quarantined as %q, want no_data", r)
	}
}

func TestSmallPacketsAloneAreNotHealth(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 1, Endpoints: 4, RTTs: fastAndSlow})
	p.tell()
	best, next := p.Endpoints()[0], p.Endpoints()[1]
	p.fault(best, server.MTU(1300))
	p.shunt("egress", "refresh")
	if r := p.tested(best); r.Reason != "mtu" || r.Got != r.Sent || r.Got == 0 {
		t.Errorf("tested as %+v, want reason mtu and no small ping lost", r)
	}
	if rank := p.strictRank(best); rank != 0 {
		t.Errorf("it has rank %d in the strict pool", rank)
	}
	p.shunt("egress", "rebalance")
	if got := p.carries(one); got != next {
		t.Fatalf("the lane carries %v, want the best whose large packets pass", got)
	}
	p.fault(next, server.MTU(1300)) // the path of a lane in service shrinks
	took := p.repairUntil(20*time.Second, "the lane on another one", func() bool {
		now := p.carries(one)
		return now != nil && now != next && now != best
	})
	t.Logf("took %s", took)
	if r := p.recorded(next); r != "mtu" {
		t.Errorf("quarantined as %q, want mtu", r)
	}
}

// hour is an hour of the two tests below: all of the product's long times are shortened alike.
const hour = 20 * time.Second

func shortHours() lab.Settings {
	return lab.Settings{
		"egress.repair.hold_min": (hour / 6).String(), "egress.repair.hold_max": (24 * hour).String(),
		"egress.repair.hold_decay": (6 * hour).String(), "egress.repair.retry_after": "500ms",
	}
}

// visits follows which endpoint a lane carries.
type visits struct {
	p       place
	bad     *server.Endpoint
	last    *server.Endpoint
	changes int
	returns int
	tempted int // refreshes that found the bad one to be the best
}

func (v *visits) look() {
	v.p.t.Helper()
	now := v.p.carries(one)
	if now == v.last {
		return
	}
	v.changes++
	if now == v.bad {
		v.returns++
	}
	v.p.t.Logf("%s: %s -> %s", time.Now().Format("05.000"), name(v.last), name(now))
	v.last = now
}

func name(x *server.Endpoint) string {
	if x == nil {
		return "nothing"
	}
	return x.Name
}

// play plays an hour of repairs, and of refreshes that find the bad endpoint to be the best:
// it is good while it is tested, and, where stays is set, until a rebalance has placed it.
func (v *visits) play(every time.Duration, flap server.Fault, stays bool) {
	p := v.p
	p.t.Helper()
	for began, next := time.Now(), time.Now().Add(every); time.Since(began) < hour; {
		p.shunt("egress", "repair")
		v.look()
		if time.Now().Before(next) {
			<-time.After(300 * time.Millisecond)
			continue
		}
		next = time.Now().Add(every)
		p.fault(v.bad, server.Alive())
		p.shunt("egress", "refresh")
		if rank := p.strictRank(v.bad); rank == 1 {
			v.tempted++
		} else { // a busy machine lost a ping of its test
			p.t.Logf("rank %d: %+v", rank, p.tested(v.bad))
		}
		if stays {
			p.shunt("egress", "rebalance")
		}
		p.fault(v.bad, flap)
		if !stays {
			p.shunt("egress", "rebalance")
		}
		v.look()
	}
	if v.tempted < 2 {
		p.t.Errorf("%d refreshes found it to be the best, want two at least: nothing tempted the lane", v.tempted)
	}
}

func flapping(t *testing.T) *visits {
	t.Helper()
	p := build(t, lab.WorldOptions{Lanes: 1, Endpoints: 5, RTTs: fastAndSlow, Settings: shortHours()})
	p.tell()
	p.shunt("egress", "refresh")
	p.shunt("egress", "rebalance")
	p.shunt("egress", "repair")
	v := &visits{p: p, bad: p.Endpoints()[0], last: p.carries(one)}
	if v.last != v.bad {
		t.Fatalf("the lane carries %s, want the best", name(v.last))
	}
	return v
}

func TestAnEndpointThatPassesOneRoundInTenIsLeft(t *testing.T) {
	if !isInside(t) {
		return
	}
	v := flapping(t)
	flap := server.FlapWindow(0.1, 100*time.Millisecond)
	was := v.bad.Counts()
	v.p.fault(v.bad, flap)
	v.play(hour/5, flap, false)
	if v.changes < 1 || v.changes > 2 || v.last == v.bad {
		t.Errorf("%d changes in an hour, and %s at its end; want one, away from the bad endpoint", v.changes, name(v.last))
	}
	if got := v.bad.Counts().Sub(was); got.Dropped == 0 || got.In == 0 {
		t.Errorf("%+v: it was not flapping", got)
	}
}

func TestALaneGoesBackToABadEndpointTwiceAnHourAtMost(t *testing.T) {
	if !isInside(t) {
		return
	}
	v := flapping(t)
	flap := server.FlapWindow(0.1, time.Second)
	v.p.fault(v.bad, flap)
	v.play(hour/10, flap, true)
	if v.returns > 2 {
		t.Errorf("the lane went back to it %d times in an hour, want 2 at most", v.returns)
	}
	if v.changes == 0 {
		t.Error("the lane never left it")
	}
}
