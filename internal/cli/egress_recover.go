package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/egress"
)

func newRecoverCommand(a *app) *cobra.Command {
	var o planFlags
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Try now to get a fresh pool, by a recovery strategy where need be",
		Long: `Makes one guarded refresh now, whatever the mode's timer says, and places what it found.
While users are direct the list is fetched by a way that a strategy finds, and by no other;
users come back once the refresh has succeeded, its pool is placed, every lane that carries an
endpoint of it passes the strict check, and rules, routes and uplink are as they should be.

Reads: configuration, sources, strategies, quarantine.tsv, state.kv, egress.json, pools, lanes.
Writes: pools, state.kv, egress.json, events.jsonl, lane devices, table inet shunt_egress.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runPass(cmd.Context(), "recover", o, func(ctx context.Context, e *egressEnv, dryRun bool) (egress.Outcome, error) {
				return e.Recover(ctx, dryRun)
			})
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

type directOptions struct {
	planFlags
	egress.DirectOrder
}

func newDirectCommand(a *app) *cobra.Command {
	var o directOptions
	cmd := &cobra.Command{
		Use:   "direct on|off --reason TEXT",
		Short: "Put users on the uplink by hand, or end that",
		Long: `With on, classes of users travel by the uplink, by one change, until somebody says off; no
run ends it. With off they come back: at once where direct was by hand only and lanes pass the
strict check, and by all criteria where no lane was left in the meantime.

Reads: configuration, state.kv, egress.json, pools, lanes.
Writes: state.kv, egress.json, events.jsonl, table inet shunt_egress, conntrack entries of the
classes that move.`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"on", "off"},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.On = args[0] == "on"
			return runDirect(cmd.Context(), a, o)
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().StringSliceVar(&o.Classes, "class", nil, "only the class of this `LANE`; may be repeated")
	cmd.Flags().StringVar(&o.Reason, "reason", "", "why; kept with the mode and in the journal")
	return cmd
}

func runDirect(ctx context.Context, a *app, o directOptions) error {
	if strings.TrimSpace(o.Reason) == "" && o.Input == "" {
		return usageError("add --reason TEXT", "direct by hand needs a reason")
	}
	if err := plainText("--reason", o.Reason); err != nil {
		return err
	}
	return a.runPass(ctx, "recover", o.planFlags, func(ctx context.Context, e *egressEnv, dryRun bool) (egress.Outcome, error) {
		for _, c := range o.Classes {
			if _, ok := e.Config.Lane(c); !ok {
				return egress.Outcome{}, usageError("`shunt egress status` lists the lanes", "--class %s: no such lane", c)
			}
		}
		order := o.DirectOrder
		if order.Classes = slices.Clone(order.Classes); len(order.Classes) == 0 {
			for _, l := range e.Config.Lanes {
				order.Classes = append(order.Classes, l.Name)
			}
		}
		return e.Direct(ctx, order, dryRun)
	})
}
