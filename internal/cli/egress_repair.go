package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/egress"
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
seldom from cron: the verdict then takes longer, the rest is the same.

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
		var all egress.Outcome
		work := &background{env: e}
		if o.Rounds > 1 {
			e.Later = work.take
		}
		defer work.wait()
		for i := 0; i < o.Rounds || work.busy() && ctx.Err() == nil; i++ {
			began := a.Now()
			out, err := e.Repair(ctx, dryRun)
			if err != nil && (ctx.Err() != nil || o.Rounds == 1) {
				return out, err
			}
			all = egress.Outcome{
				Input: out.Input, Plan: out.Plan, Applied: all.Applied + out.Applied,
				Partial: errors.Join(all.Partial, out.Partial, err),
			}
			if i+1 < o.Rounds || work.busy() {
				e.Wait(ctx, o.Interval-a.Now().Sub(began))
			}
			if ctx.Err() != nil {
				return all, ctx.Err()
			}
		}
		return all, nil
	})
}
