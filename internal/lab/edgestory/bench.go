package edgestory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
	"github.com/shunt-net/shunt/internal/lab/peer"
)

// benchScenario lets servers and hosts die behind shunt and behind each peer in turn.
func benchScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-bench", Summary: "deaths behind shunt, HAProxy, nginx, keepalived and a shell loop, in turn: gaps, failed connections and their ratios",
		Flags: []lab.Flag{
			{Name: "rounds", Value: "3", Usage: "how often each is measured in turn"},
			{Name: "deaths", Value: "8", Usage: "deaths of each kind in a round; the slow ones have a quarter"},
			{Name: "quick", Value: "false", Usage: "one round of half the deaths, without those that clients hang at for a minute"},
			{Name: "only", Value: "", Usage: "names, with commas between; empty = all"},
		},
		Outside: true,
		Run:     playBench,
	}
}

// The bounds of edge-bench.
const (
	benchDivert = 1.2  // of the better tuned proxy's median gap at a process's death
	benchSilent = 0.65 // of tuned HAProxy's median gap at a host's death
)

// contender is what is measured in turn with others.
type contender struct {
	name   string
	target netip.AddrPort
	start  func(ctx context.Context) error
	stop   func()
	// ready returns who is to die next, once that death would be an ordinary one.
	ready func(ctx context.Context) (*edgeworld.Backend, error)
	fresh bool // is started anew for each death
	calm  bool // takes seconds for each death: fewer of them
	kinds []how
	// hang is how long clients of a dead host may wait for it; 0 = not long.
	hang  time.Duration
	phase time.Duration
	gaps  map[how][]gap.Gap
}

// bench is the scenario while it runs.
type bench struct {
	e              *lab.Env
	w              *edgeworld.World
	list           []*contender
	rounds, deaths int
	repeated       int
}

func playBench(ctx context.Context, e *lab.Env) error {
	w, done, err := newWorld(ctx, e, edgeworld.Options{})
	if err != nil {
		return err
	}
	defer done()
	if err := serve(ctx, w, backend.Options{}); err != nil {
		return err
	}
	b := &bench{e: e, w: w}
	b.list = slices.Concat(b.shunts(), b.peers())
	if only := e.Flag("only"); only != "" {
		b.list = slices.DeleteFunc(b.list, func(c *contender) bool { return !slices.Contains(strings.Split(only, ","), c.name) })
	}
	b.rounds, b.deaths = e.Int("rounds"), e.Int("deaths")
	if e.Bool("quick") {
		b.rounds, b.deaths = 1, max(1, b.deaths/2)
		for _, c := range b.list {
			if c.hang > 0 {
				c.kinds = []how{process}
			}
		}
	}
	for round := range b.rounds {
		if err := b.round(ctx, round); err != nil {
			return err
		}
		e.Say("round %d of %d is done", round+1, b.rounds)
	}
	b.e.Count("repeated", b.repeated)
	b.judge()
	return nil
}

// round measures everybody in turn. Who fails is a problem, and the others go on.
func (b *bench) round(ctx context.Context, round int) error {
	for _, kind := range []how{process, host} {
		for _, c := range b.list {
			err := b.turn(ctx, c, kind, round)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, peer.ErrOutside), errors.Is(err, lab.ErrInside):
				b.e.Say("left out: %v", err)
				c.kinds = nil
			case err != nil:
				b.e.Problem("%s, death of a %s: %v", c.name, kind, err)
			}
		}
	}
	return nil
}

// peers are the peers as contenders; one that this machine cannot run is told and left out.
func (b *bench) peers() []*contender {
	var out []*contender
	for _, s := range peer.Settings() {
		p, err := peer.New(s, peer.Options{World: b.w, Outside: b.e.Outside})
		if err != nil {
			b.e.Say("left out: %v", err)
			continue
		}
		c := &contender{
			name: s.Name, target: p.Target(), start: p.Start, stop: p.Stop, fresh: s.Fresh, phase: 300 * time.Millisecond, kinds: []how{process, host},
			ready: func(ctx context.Context) (*edgeworld.Backend, error) {
				return b.w.Backend("a"), b.first(ctx, p.Target())
			},
		}
		if strings.HasSuffix(s.Name, "-default") || s.Name == "shell-loop" {
			c.phase = 2 * time.Second // the longest of their periods
			c.calm = s.Name != "nginx-default"
		}
		if s.Slow {
			c.hang = 75 * time.Second
		}
		out = append(out, c)
	}
	return out
}

// first waits until clients are answered by the first backend: peers go back to it.
func (b *bench) first(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	cl := gap.Start(ctx, b.w.Client, gap.Options{To: to, Every: 10 * time.Millisecond})
	defer cl.Stop()
	_, err := cl.WaitSteady(ctx, settled, gap.Only("a"))
	return err
}

// turn measures a contender's deaths of one kind in one round.
func (b *bench) turn(ctx context.Context, c *contender, kind how, round int) error {
	n := b.deaths
	switch {
	case !slices.Contains(c.kinds, kind), kind == host && c.hang > 0 && round > 0:
		return nil
	case kind == host && c.hang > 0:
		n = 1
	case c.calm:
		n = max(1, n/4)
	}
	err := b.begin(ctx, c)
	defer c.stop()
	for i := 0; err == nil && i < n; i++ {
		if c.fresh && i > 0 {
			c.stop()
			err = b.begin(ctx, c)
		}
		if err == nil {
			err = b.one(ctx, c, kind)
		}
	}
	return err
}

// begin starts a contender in a world that has forgotten the one before it.
func (b *bench) begin(ctx context.Context, c *contender) error {
	if err := heal(ctx, b.w); err != nil {
		return err
	}
	b.forget(ctx)
	return c.start(ctx)
}

// forget empties the holder's connection tracking: a client that takes a port again would
// be led where its last connection went.
func (b *bench) forget(ctx context.Context) {
	cmd := exec.CommandContext(ctx, "conntrack", "-F")
	if err := b.w.Replicas[0].NS.Start(cmd); err == nil {
		_ = cmd.Wait() // empty is fine too
	}
}

// one measures one death; it is repeated where the client itself stood still in it.
func (b *bench) one(ctx context.Context, c *contender, kind how) error {
	for try := 0; ; try++ {
		if c.fresh && try > 0 {
			c.stop()
			if err := b.begin(ctx, c); err != nil {
				return err
			}
		}
		if err := heal(ctx, b.w); err != nil {
			return err
		}
		b.forget(ctx)
		victim, err := c.ready(ctx)
		if err != nil {
			return err
		}
		d := death{how: kind, victim: victim, client: gap.Options{To: c.target}, phase: c.phase, limit: 30 * time.Second}
		if kind == host && c.hang > 0 {
			d.limit, d.client.Every = c.hang, 5*time.Millisecond
		}
		s, err := d.play(ctx, b.w)
		if err != nil {
			return err
		}
		if s.spoilt() && try < 2 {
			b.repeated++
			b.e.Say("%s: the machine stood still for %.0f ms, and the death is repeated", c.name, millis(s.Stall))
			continue
		}
		if c.gaps == nil {
			c.gaps = map[how][]gap.Gap{}
		}
		c.gaps[kind] = append(c.gaps[kind], s.Gap)
		b.e.MS(fmt.Sprintf("%s.%s.gap", kind, c.name), s.Gap.Gap)
		b.e.Count(fmt.Sprintf("%s.%s.failed", kind, c.name), s.Failed)
		return heal(ctx, b.w)
	}
}

// row is what is told of a contender's deaths of one kind.
type row struct {
	name          string
	n             int
	median, p99   float64 // ms
	failed, worst int     // median and most
	slow          int     // most
}

func rowOf(name string, gaps []gap.Gap) row {
	var ms, failed []float64
	r := row{name: name, n: len(gaps)}
	for _, g := range gaps {
		ms, failed = append(ms, millis(g.Gap)), append(failed, float64(g.Failed))
		r.worst, r.slow = max(r.worst, g.Failed), max(r.slow, g.Slow)
	}
	r.median, r.p99, r.failed = quantile(ms, 0.5), quantile(ms, 0.99), int(quantile(failed, 0.5))
	return r
}

// quantile is a quantile by nearest rank; the median of an even number is between two.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	if n := len(v); q == 0.5 && n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[max(0, int(math.Ceil(q*float64(len(v))))-1)]
}

// judge tells the table and compares.
func (b *bench) judge() {
	for _, kind := range []how{process, host} {
		rows := map[string]row{}
		best := math.Inf(1)
		for _, c := range b.list {
			if len(c.gaps[kind]) == 0 {
				continue
			}
			r := rowOf(c.name, c.gaps[kind])
			rows[c.name] = r
			if strings.HasPrefix(c.name, "shunt") {
				best = min(best, r.median)
			}
		}
		b.e.Say("death of a %s: %20s %4s %10s %10s %8s %8s %8s %8s", kind, "", "n", "median ms", "p99 ms", "failed", "most", "slow", "ratio")
		for _, c := range b.list {
			if r, ok := rows[c.name]; ok {
				b.e.Add(fmt.Sprintf("%s.%s.ratio", kind, c.name), "ratio", r.median/best)
				b.e.Say("  %-34s %6d %10.1f %10.1f %8d %8d %8d %8.2f", r.name, r.n, r.median, r.p99, r.failed, r.worst, r.slow, r.median/best)
			}
		}
		b.compare(kind, rows)
	}
}

// compare holds shunt to its bounds where both sides were measured.
func (b *bench) compare(kind how, rows map[string]row) {
	ratio := func(name, ours string, theirs ...string) (float64, bool) {
		least := math.Inf(1)
		for _, t := range theirs {
			if r, ok := rows[t]; ok {
				least = min(least, r.median)
			}
		}
		our, ok := rows[ours]
		if !ok || math.IsInf(least, 1) {
			return 0, false
		}
		b.e.Add(string(kind)+"."+name, "ratio", our.median/least)
		return our.median / least, true
	}
	switch kind {
	case process:
		ratio("confirm_to_best_proxy", "shunt-confirm", "haproxy-tuned", "nginx-tuned")
		if r, ok := ratio("divert_to_best_proxy", "shunt-divert", "haproxy-tuned", "nginx-tuned"); ok {
			b.e.Want(r <= benchDivert, "divert takes %.2f of the better tuned proxy's gap, bound %.2f", r, benchDivert)
		}
	case host:
		if r, ok := ratio("probes_to_haproxy", "shunt-20ms", "haproxy-tuned"); ok {
			b.e.Want(r <= benchSilent, "probes each 20 ms take %.2f of tuned HAProxy's gap, bound %.2f", r, benchSilent)
		}
	}
}
