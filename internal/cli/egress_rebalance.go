package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/egress"
)

func newRebalanceCommand(a *app) *cobra.Command {
	var o planFlags
	cmd := &cobra.Command{
		Use:   "rebalance",
		Short: "Place the best endpoints, touching only lanes that carry none of them",
		Long: `Takes the best unique endpoints by rank, the foreign pool before the whole one, without
those in quarantine that no later pool has cleared. A lane that carries one of them stays as
it is; each other is given one, after a proof in process, without a gap where key, addresses
and obfuscation allow it, and gets its saved profile back if the strict check fails.

Reads: configuration, pools, quarantine.tsv, egress.json, lanes.
Writes: lanes, intents, egress.json, events.jsonl, lane devices, and for swaps in place the
elements of table inet shunt_egress.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runPass(cmd.Context(), "rebalance", o, func(ctx context.Context, e *egressEnv, dryRun bool) (egress.Outcome, error) {
				return e.Rebalance(ctx, dryRun)
			})
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}
