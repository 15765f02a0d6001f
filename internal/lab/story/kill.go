package story

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// killScenario kills running commands at every point that follows a durable write or a
// change of the kernel, and at random instants, and looks at what the next runs make of it.
func killScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-kill", Summary: "kill -9 at each kill point and at random instants of an apply: each next run ends consistent and healthy",
		Flags: []lab.Flag{
			{Name: "random", Value: "100", Usage: "kills at random instants"},
			{Name: "each", Value: "3", Usage: "kills at each point"},
			{Name: "seed", Value: "1", Usage: "of what is chosen by chance"},
		},
		Run: playKill,
	}
}

// killRounds is how many repairs may follow a kill before all is well. What a killed run
// saw of a dead lane is lost, so the verdict takes repair.threshold (2) rounds anew; one
// more gives a lane that was judged before the kill its repair.rise (2) good rounds, and
// brings its class home.
const killRounds = 4

// randomly stands for a kill at a random instant, where others name their point.
const randomly = "(random)"

// killAgain is how often a kill that did not happen (the run took another way this time) is
// tried again.
const killAgain = 4

// killer is the scenario while it runs.
type killer struct {
	e     *lab.Env
	w     *lab.World
	rng   *rand.Rand
	kinds []killKind
	turn  int // of lanes, points and first kills
	drift int // of what drifts

	flows    []*traffic.UDP
	base     lab.Uplink // what the gateway had counted at the last look
	capture  *lab.Capture
	failures map[string]int // endpoint -> how often it was made to fail under a lane

	points map[string]map[string]int // kind -> point -> how often a whole run gets there
	took   map[string]time.Duration  // kind -> a whole run
	table  killTable

	unfinished int // kills that left something for the next run
	rounds     int // most repairs that one kill took

	// Of the tours through modes.
	modeRuns            int  // most further runs that one kill took
	byHand              int  // added to the day's counter
	wasRows, wasCounted int  // records before the first tour
	mayBeDirect         bool // users were, at the last look, or nothing guards them
}

func playKill(ctx context.Context, e *lab.Env) error {
	seed := uint64(e.Int("seed")) //nolint:gosec // any number
	k := &killer{
		e: e, rng: rand.New(rand.NewPCG(seed, 1)), failures: map[string]int{}, //nolint:gosec // repeatable on purpose
		points: map[string]map[string]int{}, took: map[string]time.Duration{}, table: killTable{},
	}
	k.kinds = k.allKinds()
	if err := k.begin(ctx); err != nil {
		return err
	}
	defer k.quiet()
	for _, step := range []func(context.Context) error{k.control, k.dryRounds, k.atPoints, k.atRandom, k.atModes} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	k.judge()
	return nil
}

// begin makes the world, with one lane that is driven by commands, and its users.
func (k *killer) begin(ctx context.Context) error {
	o := lab.WorldOptions{
		Endpoints: 20, Keys: 2, Seed: 7, RTT: 2 * time.Millisecond, RTTStep: time.Millisecond,
		Settings: lab.Settings{
			"egress.check.gap": "5ms", "egress.check.wait": "200ms", "egress.check.strict_count": 3, "egress.check.tls_timeout": "600ms",
			"egress.repair.hold_min": "20ms", "egress.repair.hold_max": "20ms", "egress.repair.retry_after": "100ms",
			"egress.pool.keep": 2, "egress.test.pings": 2, "egress.test.handshake_timeout": "800ms", "egress.test.ping_timeout": "400ms",
		},
	}
	w, err := morning(ctx, k.e, o)
	if err != nil {
		return err
	}
	k.w = w
	if err := w.Configure(lab.Settings{"egress.lanes": k.lanes()}); err != nil {
		return err
	}
	if k.capture, err = w.Capture(); err != nil {
		return err
	}
	if err := k.moveCommands(ctx); err != nil { // the first swap makes the file that the commands read
		return err
	}
	if err := w.Shunt(ctx, "egress", "rebalance").Err(); err != nil {
		return err
	}
	if k.base, err = w.Uplink(); err != nil {
		return err
	}
	if err := k.loud(ctx); err != nil {
		return err
	}
	return k.mustBeWell(ctx, "the world before the first kill")
}

// lanes are the router's lanes; the last one belongs to commands.
func (k *killer) lanes() []map[string]any {
	var out []map[string]any
	for i, l := range k.w.Lanes {
		m := map[string]any{
			"name": l.Name, "interface": l.Interface, "table": l.Table, "mark": l.Mark.String(),
			"dscp": []string{l.DSCP.String()}, "driver": "wireguard", "nat": string(l.NAT),
		}
		if i == len(k.w.Lanes)-1 {
			m["driver"] = "commands"
			m["commands"] = map[string]any{"template": "wg-quick", "installed": k.installed(l)}
		}
		out = append(out, m)
	}
	return out
}

// loud makes the users of each lane send all the time; quiet ends that.
func (k *killer) loud(ctx context.Context) error {
	for _, l := range k.w.Lanes {
		f, err := k.w.UDP(ctx, l.Name, traffic.Options{Every: 20 * time.Millisecond})
		if err != nil {
			return err
		}
		k.flows = append(k.flows, f)
	}
	return nil
}

func (k *killer) quiet() {
	for _, f := range k.flows {
		f.Stop(200 * time.Millisecond)
	}
	k.flows = nil
}

// dryRounds does each kind of run once, whole, and notes the points that it gets to.
func (k *killer) dryRounds(ctx context.Context) error {
	for _, kind := range k.kinds {
		log, err := k.log()
		if err != nil {
			return err
		}
		r, err := k.run(ctx, kind, lab.Call{Env: []string{"SHUNT_KILL_LOG=" + log}})
		if err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		k.points[kind.name], k.took[kind.name] = k.read(log), r.Took
		if bad := k.recover(ctx, kind); len(bad) > 0 {
			return fmt.Errorf("%s, not killed (exit code %d: %s%s): %v", kind.name, r.Code, r.Stdout, r.Stderr, bad)
		}
		n := 0
		for _, hits := range k.points[kind.name] {
			n += hits
		}
		k.e.Say("%-34s %4d ms, %3d points of %2d names", kind.name, r.Took.Milliseconds(), n, len(k.points[kind.name]))
	}
	return nil
}

// atPoints kills at each point as often as is asked for, in different kinds of run and at
// different times of getting there.
func (k *killer) atPoints(ctx context.Context) error {
	for _, point := range k.reached() {
		if slices.Contains(modePoints(), point) { // see atModes
			continue
		}
		done := 0
		for i, spot := range k.spots(point) {
			if done == k.e.Int("each") || i >= k.e.Int("each")*killAgain {
				break
			}
			killed, err := k.kill(ctx, spot.kind, point, lab.Call{Env: []string{fmt.Sprintf("SHUNT_KILL_AT=%s:%d", point, spot.n)}})
			if err != nil {
				return err
			}
			if killed {
				done++
			}
		}
	}
	k.e.Say("%d kills at points", k.table.kills())
	return nil
}

// atRandom kills at instants that are spread evenly over the run.
func (k *killer) atRandom(ctx context.Context) error {
	want, done := k.e.Int("random")*3/4, 0 // the rest is for the ways through modes
	for tries := 0; done < want; tries++ {
		if tries > want*killAgain {
			return fmt.Errorf("only %d of %d random kills met a running command", done, want)
		}
		kind := k.kinds[k.rng.IntN(len(k.kinds))]
		if kind.slow {
			continue
		}
		after := 2*time.Millisecond + time.Duration(k.rng.Int64N(int64(k.took[kind.name])))
		killed, err := k.kill(ctx, kind, randomly, lab.Call{Kill: after})
		if err != nil {
			return err
		}
		if killed {
			done++
		}
	}
	return nil
}

// kill starts a run that is to be killed, and judges what the next runs make of it.
func (k *killer) kill(ctx context.Context, kind killKind, point string, c lab.Call) (bool, error) {
	r, err := k.run(ctx, kind, c)
	if err != nil {
		return false, fmt.Errorf("%s: %w", kind.name, err)
	}
	killed := r.Code == 128+9
	if killed && len(k.halfDone()) > 0 {
		k.unfinished++
	}
	bad := k.recover(ctx, kind)
	if killed {
		k.table.add(point, kind.name, len(bad) > 0)
	}
	if len(bad) == 0 {
		return killed, ctx.Err()
	}
	what := fmt.Sprintf("%s, killed at %s %v after %d ms", kind.name, point, c.Env, r.Took.Milliseconds())
	if !killed {
		what = kind.name + ", not killed"
	}
	k.e.Problem("%s: %v", what, bad)
	return killed, k.mustHeal(ctx)
}

// mustHeal gives a world that was found inconsistent a last chance, so that one problem is
// not told again after each later kill.
func (k *killer) mustHeal(ctx context.Context) error {
	var bad []string
	for range 3 {
		lab.Sleep(ctx, 500*time.Millisecond)
		if bad = k.recover(ctx, killKind{}); len(bad) == 0 {
			return ctx.Err()
		}
	}
	return fmt.Errorf("the world stays inconsistent: %v", bad)
}

func (k *killer) mustBeWell(ctx context.Context, what string) error {
	if bad := k.check(ctx); len(bad) > 0 {
		return fmt.Errorf("%s: %v", what, bad)
	}
	return nil
}

// judge tells the table and the figures.
func (k *killer) judge() {
	for _, line := range k.table.lines() {
		k.e.Say("%s", line)
	}
	k.e.Count("kills", k.table.kills())
	k.e.Count("inconsistent", k.table.inconsistent())
	k.e.Count("repairs_after_kill", k.rounds)
	k.e.Count("runs_after_kill_in_modes", k.modeRuns)
	k.e.Want(k.table.inconsistent() == 0, "%d of %d kills left an inconsistent or unhealthy state", k.table.inconsistent(), k.table.kills())
	n := k.table.killsAt(randomly)
	k.e.Want(n >= k.e.Int("random"), "%d kills at random instants, want %d", n, k.e.Int("random"))
	for _, point := range killPoints() {
		n := k.table.killsAt(point)
		k.e.Want(n >= k.e.Int("each"), "point %s was killed at %d times, want %d", point, n, k.e.Int("each"))
	}
	// Kills that find nothing half done would prove nothing.
	k.e.Control("left_half_done", float64(k.unfinished), k.unfinished > 20 || k.unfinished > k.table.kills()/4)
}
