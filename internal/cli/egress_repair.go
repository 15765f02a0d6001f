package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

type repairOptions struct {
	planFlags
	Rounds   int
	Interval time.Duration
}

func newRepairCommand(a *app) *cobra.Command {
	var o repairOptions
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Look at every lane; lend, record and replace where one is down",
		Long: `Makes a round through every lane. A lane that failed repair.threshold rounds in a row
is down: its users travel through the healthiest other lane at once, its endpoint goes into
quarantine, candidates are proven in process, the first of the pool's order that passes is
put in place and checked on the lane, and the users come home. While the uplink itself is
down nothing is recorded, counted or replaced.

Run it each second from a service (--rounds 60 --interval 1s, started anew at its end), or more
seldom from cron: the verdict then takes longer, the rest is the same. While a watchdog or
another such run looks at the lanes each second, rounds of --rounds are left to it.

Reads: configuration, quarantine.tsv, state.kv, fail-counter, egress.json, pools, lanes.
Writes: the same but pools, events.jsonl, lane devices, table inet shunt_egress, rules,
routes, conntrack entries of the lanes that change.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runRepair(cmd.Context(), a, o) },
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().IntVar(&o.Rounds, "rounds", 1, "make `N` rounds")
	cmd.Flags().DurationVar(&o.Interval, "interval", time.Second, "begin a round every `TIME`; sooner when a lane sends and receives nothing for a second")
	return cmd
}

func runRepair(ctx context.Context, a *app, o repairOptions) error {
	switch {
	case o.Rounds < 1:
		return usageError("a number from 1 on", "--rounds %d", o.Rounds)
	case o.Interval < 10*time.Millisecond:
		return usageError("10ms or more", "--interval %s", o.Interval)
	case o.Rounds > 1 && o.DryRun:
		return usageError("leave --rounds out", "--rounds and --dry-run exclude each other")
	}
	return a.runPass(ctx, "repair", o.planFlags, func(ctx context.Context, e *egressEnv, dryRun bool) (egress.Outcome, error) {
		if o.Rounds == 1 { // what was asked for by hand, or by cron, is looked at whoever else looks
			return e.Repair(ctx, dryRun)
		}
		return a.repairRounds(ctx, e, o)
	})
}

// repairRounds makes the rounds that are nobody else's. Where all of them were, the error
// says whose.
func (a *app) repairRounds(ctx context.Context, e *egressEnv, o repairOptions) (egress.Outcome, error) {
	var all egress.Outcome
	var busy *state.BusyError
	work := &background{env: e}
	e.Later = work.take
	defer work.wait()
	turn := &laneTurn{env: e}
	defer turn.end()
	made := 0
	for i := 0; i < o.Rounds || work.busy() && ctx.Err() == nil; i++ {
		began := a.Now()
		pause := e.Wait
		err := turn.take(ctx)
		if errors.As(err, &busy) {
			err, pause = nil, func(ctx context.Context, d time.Duration) { _ = run.Pause(ctx, d) }
		} else if err == nil {
			var out egress.Outcome
			out, err = e.Repair(ctx, false)
			if err != nil && ctx.Err() != nil {
				return out, err
			}
			made++
			all = egress.Outcome{Input: out.Input, Plan: out.Plan, Applied: all.Applied + out.Applied, Partial: errors.Join(all.Partial, out.Partial)}
		}
		all.Partial = errors.Join(all.Partial, err)
		if i+1 < o.Rounds || work.busy() {
			pause(ctx, o.Interval-a.Now().Sub(began))
		}
		if ctx.Err() != nil {
			return all, ctx.Err()
		}
	}
	if made == 0 && all.Partial == nil {
		return all, busy
	}
	return all, nil
}
