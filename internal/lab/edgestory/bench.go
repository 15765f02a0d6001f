package edgestory

import (
	"context"
	"errors"
	"fmt"
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
			{Name: "rounds", Value: "5", Usage: "how often each is measured in turn"},
			{Name: "deaths", Value: "8", Usage: "deaths of each kind in a round of those that a bound is about; half of it for others, an eighth where each takes seconds"},
			{Name: "limit", Value: "14m", Usage: "no round begins that would not end within it"},
			{Name: "quick", Value: "false", Usage: "two rounds of half the deaths; what takes seconds only once, what takes a minute not at all"},
			{Name: "only", Value: "", Usage: "names, with commas between; empty = all"},
		},
		Outside: true,
		Run:     playBench,
	}
}

// contender is what is measured in turn with others.
type contender struct {
	name   string
	target netip.AddrPort
	start  func(ctx context.Context) error
	stop   func()
	// ready returns who is to die next, once that death would be an ordinary one.
	ready func(ctx context.Context) (*edgeworld.Backend, error)
	fresh bool  // is started anew for each death
	calm  bool  // takes seconds for each death: fewer of them
	rival []how // a bound is about such deaths: more of them
	kinds []how
	// hang is how long clients of a dead host may wait for it; 0 = not long.
	hang  time.Duration
	phase time.Duration
	gaps  map[how][]gap.Gap
	again map[how]int // deaths that were repeated
}

// bench is the scenario while it runs.
type bench struct {
	e              *lab.Env
	w              *edgeworld.World
	list           []*contender
	rounds, deaths int
	limit          time.Duration
	quick          bool
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
	b.rounds, b.deaths, b.limit = e.Int("rounds"), e.Int("deaths"), e.Duration("limit")
	if e.Bool("quick") {
		b.quick, b.rounds, b.deaths, b.limit = true, min(2, b.rounds), max(1, b.deaths/2), min(3*time.Minute, b.limit)
	}
	b.conditions(ctx)
	return b.play(ctx)
}

// play measures everybody in turn, round after round, as long as there is time.
func (b *bench) play(ctx context.Context) error {
	began, longest := time.Now(), time.Duration(0)
	done := 0
	for round := range b.rounds {
		next := longest
		if b.quick {
			next /= 2 // the slow ones had their turn
		}
		if used := time.Since(began); used+next > b.limit {
			b.e.Say("%d of %d rounds took %.0f s: there is no time for one more", round, b.rounds, used.Seconds())
			break
		}
		at := time.Now()
		if err := b.round(ctx, round); err != nil {
			return err
		}
		if round > 0 || longest == 0 { // the first one has deaths that the others have not
			longest = time.Since(at)
		}
		done++
		b.e.Say("round %d of %d is done after %.0f s", round+1, b.rounds, time.Since(at).Seconds())
	}
	b.e.Count("rounds", done)
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
			gaps: map[how][]gap.Gap{}, again: map[how]int{},
		}
		if strings.HasSuffix(s.Name, "-default") || s.Name == "shell-loop" {
			c.phase = 2 * time.Second // the longest of their periods
			c.calm = s.Name != "nginx-default"
		}
		switch s.Name {
		case "haproxy-tuned":
			c.rival = []how{process, host}
		case "nginx-tuned":
			c.rival = []how{process}
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

// times is how many deaths of a kind a contender has in a round.
func (b *bench) times(c *contender, kind how, round int) int {
	switch {
	case !slices.Contains(c.kinds, kind), round > 0 && b.quick && c.calm:
		return 0
	case kind == host && c.hang > 0:
		if round > 0 || b.quick {
			return 0
		}
		return 1
	case c.calm:
		return max(1, b.deaths/8)
	case slices.Contains(c.rival, kind):
		return b.deaths
	}
	return max(1, b.deaths/2)
}

// turn measures a contender's deaths of one kind in one round.
func (b *bench) turn(ctx context.Context, c *contender, kind how, round int) error {
	n := b.times(c, kind, round)
	if n == 0 {
		return nil
	}
	at, was := time.Now(), len(c.gaps[kind])
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
	var gaps []string
	for _, g := range c.gaps[kind][was:] {
		gaps = append(gaps, fmt.Sprintf("%.1f", millis(g.Gap)))
	}
	b.e.Say("death of a %-7s behind %-18s in %4.1f s: %s ms", kind, c.name, time.Since(at).Seconds(), strings.Join(gaps, ", "))
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
			c.again[kind]++
			b.e.Say("%s: the client stood still for %.0f ms of a gap of %.0f ms, and the death is repeated", c.name, millis(s.Stall), millis(s.Gap.Gap))
			continue
		}
		c.gaps[kind] = append(c.gaps[kind], s.Gap)
		b.e.MS(fmt.Sprintf("%s.%s.gap", kind, c.name), s.Gap.Gap)
		b.e.Count(fmt.Sprintf("%s.%s.failed", kind, c.name), s.Failed)
		return heal(ctx, b.w)
	}
}
