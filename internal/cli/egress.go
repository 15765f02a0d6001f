package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/state"
)

func newEgressCommand(a *app) *cobra.Command {
	return newGroup("egress", "VPN lanes that heal",
		newRefreshCommand(a), newRebalanceCommand(a), newRepairCommand(a), newDirectCommand(a), newRecoverCommand(a), newStatusCommand(a), newExplainCommand(a), newPlaneCommand(a))
}

// planFlags are those of every command that makes a plan.
type planFlags struct {
	DryRun   bool
	ExitCode bool
	Record   string
	Input    string
}

func (o *planFlags) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.DryRun, "dry-run", false, "say what would be done and why; change nothing")
	f.BoolVar(&o.ExitCode, "exit-code", false, "with --dry-run: exit 5 when changes are pending, 4 when a guard holds them back")
	f.StringVar(&o.Record, "record-input", "", "save what the decision depends on to `FILE`, without secrets")
	f.StringVar(&o.Input, "input", "", "with --dry-run: plan again from a recorded `FILE`, with no root, network or state")
}

// check refuses combinations before anything is read.
func (o *planFlags) check() error {
	switch {
	case o.ExitCode && !o.DryRun:
		return usageError("add --dry-run", "--exit-code goes with --dry-run only")
	case o.Input != "" && !o.DryRun:
		return usageError("add --dry-run: a recorded input is only planned again, never applied", "--input goes with --dry-run only")
	case o.Input != "" && o.Record != "":
		return usageError("choose one of them", "--input and --record-input exclude each other")
	}
	return nil
}

// passFunc is one pass of a command.
type passFunc func(ctx context.Context, e *egressEnv, dryRun bool) (egress.Outcome, error)

// result is what a planning command prints.
type result struct {
	DryRun  bool        `json:"dry_run"`
	Applied int         `json:"applied"`
	Failed  string      `json:"failed,omitempty"`
	Plan    egress.Plan `json:"plan"`

	Strategies []egress.StrategyTry `json:"strategies,omitempty"` // what a dry recovery would try
}

// runPass is a whole planning command: flags, configuration, world, pass, record, result.
func (a *app) runPass(ctx context.Context, command string, o planFlags, pass passFunc) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.Input != "" {
		return a.replay(command, o)
	}
	ctx = a.withPoints(ctx)
	c, err := a.loadToRun(ctx, config.SectionEgress, !o.DryRun, nil)
	if err != nil {
		return err
	}
	e, err := a.openEgress(ctx, c, "egress "+command, !o.DryRun)
	if err != nil {
		return err
	}
	out, err := pass(ctx, e, o.DryRun)
	err = errors.Join(err, e.Close())
	if o.Record != "" && out.Input.Version != 0 {
		err = errors.Join(err, a.record(ctx, o.Record, out.Input))
	}
	if err != nil {
		return err
	}
	return a.outcome(o, out)
}

func (a *app) replay(command string, o planFlags) error {
	in, err := readInput[egress.Input](o.Input)
	if err != nil {
		return err
	}
	if in.Command != command {
		return usageError(fmt.Sprintf("use `shunt egress %s --dry-run --input %s`", in.Command, o.Input),
			"%s was recorded by `egress %s`", o.Input, in.Command)
	}
	plan, err := egress.Replan(in)
	if err != nil {
		return &exitError{Code: exitConfig, Err: fmt.Errorf("%s: %w", o.Input, err)}
	}
	return a.outcome(o, egress.Outcome{Input: in, Plan: plan})
}

// outcome prints the plan and turns it into an exit code.
func (a *app) outcome(o planFlags, out egress.Outcome) error {
	res := result{DryRun: o.DryRun, Applied: out.Applied, Plan: out.Plan, Strategies: out.Tried}
	if out.Partial != nil {
		res.Failed = out.Partial.Error()
	}
	err := a.print(res, func(w io.Writer) {
		if o.DryRun || out.Plan.Changes() || out.Plan.HeldBack() {
			out.Plan.Text(w)
		}
		for _, t := range out.Tried {
			fmt.Fprintf(w, "strategy   %s: %s\n", t.Strategy, t.Reason)
		}
	})
	if err != nil {
		return err
	}
	var damage *state.DamageError
	switch {
	case out.Partial != nil && errors.As(out.Partial, &damage):
		return &exitError{Code: exitPartly, Err: out.Partial, Hint: damage.Hint}
	case out.Partial != nil:
		return &exitError{Code: exitPartly, Err: out.Partial}
	case o.DryRun && o.ExitCode && out.Plan.Changes():
		return &exitError{Code: exitPending}
	case o.DryRun && !o.ExitCode:
		return nil
	case out.Plan.Guarded() && out.Applied > 0:
		return &exitError{Code: exitPartly}
	case out.Plan.Guarded():
		return &exitError{Code: exitHeld}
	case out.Plan.Busy() && out.Applied == 0 && !o.DryRun:
		return &exitError{Code: exitBusy}
	}
	return nil
}
