package story

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// leakScenario swaps, restarts and reloads under the traffic of all users, from before the
// first verdict on, and counts what leaves outside a tunnel.
func leakScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-leak", Summary: "swaps, restarts of lane services and reloads of the plane at 1,000 packets/s: nothing outside a tunnel; without the guard it leaks",
		Flags: []lab.Flag{{Name: "swaps", Value: "100", Usage: "swaps, of all lanes together"}},
		Run:   playLeak,
	}
}

const (
	leakRate    = 1000            // packets per second of all users together
	leakDown    = 3 * time.Second // how long a dead lane service stays away, at most
	leakRestart = 5               // a lane service is killed before each n-th round of swaps
	leakReload  = 4               // the plane is reloaded before each n-th
)

// leaky is a run of egress-leak.
type leaky struct {
	e     *lab.Env
	w     *lab.World
	procs map[string]*lab.Proc
	flows []*traffic.UDP
	from  lab.Uplink
	began time.Time

	swaps, inPlace, restarts, reloads, sent, got int
}

func playLeak(ctx context.Context, e *lab.Env) error {
	// Two client keys, so that some swaps are made before the old peer goes and others in place.
	w, err := e.World(ctx, lab.WorldOptions{RTTs: func(int) time.Duration { return 5 * time.Millisecond }, Keys: 2, IPv6: true})
	if err != nil {
		return err
	}
	l := &leaky{e: e, w: w, procs: map[string]*lab.Proc{}}
	seen, err := w.Capture()
	if err != nil {
		return err
	}
	if err := l.boot(ctx); err != nil {
		return err
	}
	for round := 1; l.swaps < e.Int("swaps"); round++ {
		if err := l.round(ctx, round); err != nil {
			return err
		}
	}
	if err := l.judge(ctx, seen.List()); err != nil {
		return err
	}
	err = l.withoutGuard(ctx)
	seen.Stop()
	return err
}

// boot starts the users' traffic before anything that could carry it is there.
func (l *leaky) boot(ctx context.Context) error {
	if err := l.shunt(ctx, "egress", "plane"); err != nil {
		return err
	}
	var err error
	if l.from, err = l.w.Uplink(); err != nil {
		return err
	}
	l.began = time.Now()
	if err := l.traffic(ctx); err != nil {
		return err
	}
	lab.Sleep(ctx, 200*time.Millisecond)
	if l.procs, err = l.w.StartLanes(ctx); err != nil {
		return err
	}
	for _, c := range []string{"refresh", "rebalance", "repair"} {
		if err := l.shunt(ctx, "egress", c); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, f := range l.flows {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := f.WaitAny(ctx, began)
		cancel()
		if err != nil {
			return err
		}
	}
	l.e.Say("%d flows, %d packets/s together: all were closed in until the first verdict, and all are served now", len(l.flows), leakRate)
	return nil
}

// traffic starts flows of two users of each class, of IPv4 and, where there is one, of IPv6,
// in place of those that run: flows keep the way that they began on.
func (l *leaky) traffic(ctx context.Context) error {
	to := []traffic.Options{{}, {}}
	if hasIPv6() {
		to[1].To = netip.AddrPortFrom(netip.MustParseAddr(lab.Service6a), 0)
	}
	every := time.Second * time.Duration(len(l.w.Lanes)*len(to)) / leakRate
	var flows []*traffic.UDP
	for i, lane := range l.w.Lanes {
		for j, o := range to {
			o.Every, o.ID = every, uint32(100+10*i+j) //nolint:gosec // small
			f, err := l.w.UDP(ctx, lane.Name, o)
			if err != nil {
				return err
			}
			flows = append(flows, f)
		}
	}
	l.endTraffic()
	l.flows = flows
	return nil
}

func (l *leaky) endTraffic() {
	for _, f := range l.flows {
		r := f.Stop(0)
		l.sent += r.Sent()
		l.got += r.Sent() - r.Lost()
	}
	l.flows = nil
}

func (l *leaky) shunt(ctx context.Context, args ...string) error {
	return l.w.Shunt(ctx, args...).Err()
}

// round moves every lane, by denying the names of the endpoints that they carry.
func (l *leaky) round(ctx context.Context, n int) error {
	if n%leakReload == 0 {
		if err := l.reload(ctx); err != nil {
			return err
		}
	}
	if n%leakRestart == 0 {
		if err := l.restart(ctx, l.w.Lanes[n/leakRestart%len(l.w.Lanes)].Name); err != nil {
			return err
		}
	}
	now, err := carried(l.w)
	if err != nil {
		return err
	}
	var deny []string
	for _, x := range now {
		deny = append(deny, x.File())
	}
	if err := l.w.Configure(lab.Settings{"egress.rebalance.deny": deny}); err != nil {
		return err
	}
	if err := l.traffic(ctx); err != nil {
		return err
	}
	from := end(l.w)
	if err := l.shunt(ctx, "egress", "rebalance"); err != nil {
		return err
	}
	list, _ := events(l.w, from)
	was := l.swaps
	for _, ev := range list {
		switch ev.Kind {
		case "swap":
			l.swaps++
		case "lend":
			l.inPlace++
		}
	}
	if l.swaps == was {
		return errors.New("a rebalance with every carried endpoint denied moved no lane")
	}
	return nil
}

// reload changes something of the plane's static part, so that its table is loaded anew.
func (l *leaky) reload(ctx context.Context) error {
	l.reloads++
	if err := l.w.Configure(lab.Settings{"egress.plane.clamp_mss": l.reloads%2 == 0}); err != nil {
		return err
	}
	return l.reloaded(ctx)
}

func (l *leaky) reloaded(ctx context.Context) error {
	r := l.w.Shunt(ctx, "egress", "plane", "--output", "json")
	var out struct {
		Changed bool `json:"changed"`
	}
	if err := errors.Join(r.Err(), r.JSON(&out)); err != nil {
		return err
	}
	if !out.Changed {
		return errors.New("the plane was not loaded anew")
	}
	return nil
}

// restart kills a lane's service, looks what a repair makes of the gone interface, starts
// the service again and waits for its users to be served by their own lane.
func (l *leaky) restart(ctx context.Context, lane string) error {
	l.restarts++
	own, err := l.w.Carrying(lane)
	if err != nil {
		return err
	}
	from := end(l.w)
	l.procs[lane].Kill()
	lab.Sleep(ctx, 150*time.Millisecond)
	for i := range 2 { // two rounds make a verdict; other lanes must not lend it their green
		if r := l.w.Shunt(ctx, "egress", "repair"); i == 1 && r.Code != 3 && r.Code != 4 {
			l.e.Problem("a repair without the interface of %s ended with %d: %s", lane, r.Code, r.Stderr)
		}
	}
	if _, err := awaitEvent(ctx, l.w, from, leakDown, "the verdict on the gone interface of "+lane, isVerdict(lane, "down")); err != nil {
		return err
	}
	if l.procs[lane], err = l.w.StartLane(ctx, lane); err != nil {
		return err
	}
	return lab.Await(ctx, 5*time.Second, "the return of the users of "+lane, func() bool {
		_ = l.shunt(ctx, "egress", "repair") // what it could not do shows in who serves the users
		x, err := l.w.Exit(ctx, lane)
		return err == nil && x == own
	})
}

func (l *leaky) judge(ctx context.Context, seen []lab.Leak) error {
	lab.Sleep(ctx, 300*time.Millisecond)
	l.endTraffic()
	now, err := l.w.Uplink()
	if err != nil {
		return err
	}
	d := now.Sub(l.from)
	leaked := inClear(d)
	l.e.Count("swaps", l.swaps)
	l.e.Packets("leaked", leaked)
	l.e.Want(leaked == 0, "%d packets outside a tunnel (%+v), the first: %v", leaked, d, seen[:min(5, len(seen))])
	l.e.Control("in_tunnels", float64(d.Tunnel), d.Tunnel > 0)
	var inside uint64
	used := 0
	for _, x := range l.w.Endpoints() {
		if c := x.Counts(); c.In > 100 {
			inside += c.In
			used++
		}
	}
	l.e.Control("came_out_of_tunnels", float64(inside), inside > 0)
	l.e.Control("endpoints_that_carried", float64(used), used >= len(l.w.Lanes))
	l.e.Control("service_restarts", float64(l.restarts), l.restarts > 0 || l.swaps < leakRestart*len(l.w.Lanes))
	l.e.Control("plane_reloads", float64(l.reloads), l.reloads > 0 || l.swaps < leakReload*len(l.w.Lanes))
	l.e.Control("loans_for_swaps", float64(l.inPlace), l.inPlace > 0 || l.swaps < 2*len(l.w.Lanes))
	rate := float64(l.sent) / time.Since(l.began).Seconds()
	l.e.Control("users_packets_per_second", float64(int(rate)), rate > 0.9*leakRate)
	l.e.Control("users_answered_share", float64(l.got)/float64(l.sent), l.got > l.sent/2)
	l.e.Say("%d swaps, %d of them in place behind a loan, %d services killed and restarted, %d reloads: %d packets in tunnels, %d outside",
		l.swaps, l.inPlace, l.restarts, l.reloads, d.Tunnel, leaked)
	return nil
}

// withoutGuard takes the guard out and kills a service: the same event must leak now.
func (l *leaky) withoutGuard(ctx context.Context) error {
	if err := l.w.Configure(lab.Settings{"egress.plane.leak_guard": false}); err != nil {
		return err
	}
	if err := l.reloaded(ctx); err != nil {
		return err
	}
	if err := l.traffic(ctx); err != nil {
		return err
	}
	lab.Sleep(ctx, 200*time.Millisecond)
	before, err := l.w.Uplink()
	if err != nil {
		return err
	}
	l.procs[victim].Kill()
	lab.Sleep(ctx, 500*time.Millisecond)
	after, err := l.w.Uplink()
	if err != nil {
		return err
	}
	leaked := inClear(after.Sub(before))
	l.e.Control("leaked_without_guard", float64(leaked), leaked > 0)
	l.e.Say("without the guard a killed service lets %d packets out in half a second", leaked)
	l.endTraffic()
	return nil
}

// hasIPv6 says whether the kernel knows IPv6; the world has it then.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
