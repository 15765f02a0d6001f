package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/state"
)

func newEdgeCommand(a *app) *cobra.Command {
	return newGroup("edge", "A virtual address that always answers",
		newRetargetCommand(a), newDrainCommand(a), newEnableCommand(a), newResetCommand(a),
		newEdgeStatusCommand(a), newEdgeExplainCommand(a), newEdgeCheckCommand(a), newKeepalivedCommand(a))
}

// edgeFunc is one pass of a command.
type edgeFunc func(ctx context.Context, e *edgeEnv, o edge.Options) (edge.Result, error)

// edgeResult is what a command that moves targets prints.
type edgeResult struct {
	DryRun bool   `json:"dry_run"`
	Failed string `json:"failed,omitempty"`
	// Unheard are the replicas that do not know of the holds which this run made or took
	// back: those are kept on the machine that they are given on.
	Unheard []string `json:"unheard,omitempty"`
	edge.Result
}

func newRetargetCommand(a *app) *cobra.Command {
	var o planFlags
	var service string
	cmd := &cobra.Command{
		Use:   "retarget",
		Short: "Lead each virtual address to a healthy candidate",
		Long: `Looks at the tables of this machine and its replicas, asks the candidates of which no fresh
answer is known, and moves only what has to move: a target that is dead or held out, a replica
that lags behind, a table that is missing. A healthy target stays where it is (sticky), also
when a better candidate recovers.

With --dry-run it says whose traffic would move, from where to where, and why.

Exit code 3: applied in part, or replicas differ or can't be reached. 4: held back by a guard.
5: changes pending (--dry-run --exit-code). 75: another run commits. The others are those of
every command.

Reads: configuration, edge.json, edge-holds.json, nftables tables, candidates.
Writes: elements of table inet shunt_edge here and on the replicas, conntrack entries of dead
candidates, edge.json, events.jsonl.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runEdge(cmd.Context(), "retarget", o, func(ctx context.Context, e *edgeEnv, eo edge.Options) (edge.Result, error) {
				eo.Service = service
				return e.Retarget(ctx, eo)
			})
		},
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&service, "service", "", "only this `SERVICE`")
	return cmd
}

// askFlags are those of commands by which an operator says something of a candidate.
type askFlags struct {
	planFlags
	Owner  string
	Reason string
	For    time.Duration
	Force  bool
}

func (o *askFlags) addAsk(f *pflag.FlagSet, force string) {
	o.addFlags(f)
	f.StringVar(&o.Owner, "owner", "", "in whose `NAME` (default: the user who runs it)")
	f.BoolVar(&o.Force, "force", false, force)
}

// check refuses words that would break the lines they are shown in.
func (o *askFlags) check() error {
	return errors.Join(plainText("--owner", o.Owner), plainText("--reason", o.Reason))
}

// plainText refuses a word of the command line that is no single line of text.
func plainText(flag, text string) error {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return usageError("one line, without tabs and control characters", "%s %q", flag, text)
	}
	return nil
}

func (o *askFlags) ask(a *app, args []string) edge.Ask {
	ask := edge.Ask{Service: args[0], Owner: o.Owner, Reason: o.Reason, For: o.For, Force: o.Force}
	if len(args) > 1 {
		ask.Candidate = args[1]
	}
	if ask.Owner == "" {
		ask.Owner = cmp.Or(operator(a.Env), "root")
	}
	return ask
}

func newDrainCommand(a *app) *cobra.Command {
	var o askFlags
	cmd := &cobra.Command{
		Use:   "drain SERVICE CANDIDATE",
		Short: "Leave a candidate out of new connections",
		Long: `New connections go elsewhere; those that are open stay. The hold is the operator's word: it
outlasts restarts, a healthy answer does not clear it, and it ends by ` + "`shunt edge enable`" + ` or
after --for. Where no other candidate is known to be healthy it is refused (exit 4). It is kept
on this machine alone: where replicas share the address, give it on each that may hold it.

Reads and writes what ` + "`shunt edge retarget`" + ` does, and edge-holds.json.`,
		Args: exactArgs("SERVICE", "CANDIDATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.For < 0 || cmd.Flags().Changed("for") && o.For == 0 {
				return usageError("a time such as 30m", "--for %s", o.For)
			}
			if err := o.check(); err != nil {
				return err
			}
			return a.runEdge(cmd.Context(), "drain", o.planFlags, func(ctx context.Context, e *edgeEnv, eo edge.Options) (edge.Result, error) {
				return e.Drain(ctx, o.ask(a, args), eo)
			})
		},
	}
	o.addAsk(cmd.Flags(), "also when nobody else is known to serve")
	cmd.Flags().DurationVar(&o.For, "for", 0, "end the hold after this `TIME` (default: when it is taken back)")
	cmd.Flags().StringVar(&o.Reason, "reason", "", "`TEXT` that status shows")
	return cmd
}

func newEnableCommand(a *app) *cobra.Command {
	var o askFlags
	cmd := &cobra.Command{
		Use:   "enable SERVICE CANDIDATE",
		Short: "Take a drain back",
		Long: `Takes the owner's hold of a candidate back. A target that is healthy stays; the candidate
serves again when it is its turn. A hold of another owner stays, unless --force.

Reads and writes what ` + "`shunt edge retarget`" + ` does, and edge-holds.json.`,
		Args: exactArgs("SERVICE", "CANDIDATE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.runEdge(cmd.Context(), "enable", o.planFlags, func(ctx context.Context, e *edgeEnv, eo edge.Options) (edge.Result, error) {
				return e.Enable(ctx, o.ask(a, args), eo)
			})
		},
	}
	o.addAsk(cmd.Flags(), "holds of other owners too")
	return cmd
}

func newResetCommand(a *app) *cobra.Command {
	var o askFlags
	cmd := &cobra.Command{
		Use:   "reset SERVICE [CANDIDATE]",
		Short: "Forget verdicts and ask anew",
		Long: `Forgets what shunt itself concluded of a candidate, or of all of a service: vetoes and
counts of misses. It is asked anew in the same run. Holds stay.

Reads and writes what ` + "`shunt edge retarget`" + ` does.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usageError("usage: "+cmd.CommandPath()+" SERVICE [CANDIDATE]", "%s takes 1 or 2 arguments, and got %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runEdge(cmd.Context(), "reset", o.planFlags, func(ctx context.Context, e *edgeEnv, eo edge.Options) (edge.Result, error) {
				return e.Reset(ctx, o.ask(a, args), eo)
			})
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

// runEdge is a whole command: flags, configuration, world, pass, record, result.
func (a *app) runEdge(ctx context.Context, command string, o planFlags, pass edgeFunc) error {
	if err := o.check(); err != nil {
		return err
	}
	defer seldomGC()()
	if o.Input != "" {
		return a.replayEdge(command, o)
	}
	ctx = a.withPoints(ctx)
	c, err := a.loadToRun(ctx, config.SectionEdge, !o.DryRun, fitsHere)
	if err != nil {
		return err
	}
	e, err := a.openEdge(ctx, c, "edge "+command, o.access(command))
	if err != nil {
		return err
	}
	alerts := a.startAlerts(c)
	e.Alerts = alerts
	out, err := pass(ctx, e, edge.Options{DryRun: o.DryRun})
	alerts.close(ctx)
	err = errors.Join(err, e.Close())
	if o.Record != "" && out.Input.Command != "" {
		err = errors.Join(err, writeInput(ctx, o.Record, out.Input))
	}
	if err != nil {
		if blind := e.blind(); blind != nil {
			return blind
		}
		return edgeError(err)
	}
	if e.unwritten != nil && !o.DryRun {
		out.Partial = errors.Join(e.unwritten, out.Partial)
	}
	return a.edgeOutcome(o, out)
}

// access is what a command wants of the state folder: what an operator says must be kept, a
// move must not wait for a disk.
func (o planFlags) access(command string) access {
	switch {
	case o.DryRun:
		return looks
	case command == edge.CommandRetarget:
		return moves
	}
	return acts
}

// edgeError gives an operator's slip its code.
func edgeError(err error) error {
	var ask *edge.AskError
	if errors.As(err, &ask) {
		hint := "see `shunt edge status`"
		if len(ask.Known) > 0 {
			hint = "there is: " + strings.Join(ask.Known, ", ")
		}
		return &exitError{Code: exitUsage, Err: err, Hint: hint}
	}
	return err
}

// fitsHere refuses what this machine can't go by: it is not kept for later runs either.
func fitsHere(c config.Config) error {
	if err := hasServices(c); err != nil {
		return err
	}
	_, err := nodeName(c.Edge)
	return err
}

func hasServices(c config.Config) error {
	if len(c.Edge.Services) > 0 {
		return nil
	}
	return &exitError{
		Code: exitConfig, Err: fmt.Errorf("%s: edge.services: none", c.From.File),
		Hint: "`shunt config reference` shows how a service is written",
	}
}

// edgeOutcome prints the plan and turns it into an exit code.
func (a *app) edgeOutcome(o planFlags, out edge.Result) error {
	res := edgeResult{DryRun: o.DryRun, Result: out, Unheard: unheard(out)}
	if out.Partial != nil {
		res.Failed = out.Partial.Error()
	}
	err := a.print(res, func(w io.Writer) {
		if o.DryRun || out.Plan.Changes() || out.Plan.HeldBack() || out.Plan.Disagrees() || out.Plan.Unreachable() {
			out.Text(w)
		}
	})
	if err != nil {
		return err
	}
	if len(res.Unheard) > 0 {
		a.warnf("holds are kept on the machine that they are given on: %s does not know of this", strings.Join(res.Unheard, ", "))
		a.hintf("give the same word there too, with --force: else a machine that becomes the writer goes by its own")
	}
	var damage *state.DamageError
	var unwritten *unwrittenError
	p := out.Plan
	switch {
	case errors.As(out.Partial, &unwritten):
		return &exitError{Code: exitPartly, Err: out.Partial, Hint: unwrittenHint}
	case errors.As(out.Partial, &damage):
		return &exitError{Code: exitPartly, Err: out.Partial, Hint: damage.Hint}
	case out.Partial != nil:
		return &exitError{Code: exitPartly, Err: out.Partial}
	case o.DryRun && o.ExitCode && p.Changes():
		return &exitError{Code: exitPending}
	case o.DryRun && !o.ExitCode:
		return nil
	case p.Unreachable() || p.Disagrees():
		return &exitError{Code: exitPartly}
	case p.HeldBack():
		return &exitError{Code: exitHeld}
	case p.Busy() && out.Applied == 0:
		return &exitError{Code: exitBusy}
	}
	return nil
}

// unheard are the replicas that an operator's word does not get to.
func unheard(out edge.Result) []string {
	c := out.Input.Command
	if c != edge.CommandDrain && c != edge.CommandEnable ||
		!slices.ContainsFunc(out.Plan.Steps, func(s edge.Step) bool { return s.Kind == edge.StepHold || s.Kind == edge.StepRelease }) {
		return nil
	}
	var others []string
	for _, r := range out.Input.Config.Replicas {
		if r.Name != out.Input.Node {
			others = append(others, r.Name)
		}
	}
	return others
}

func (a *app) replayEdge(command string, o planFlags) error {
	in, err := readInput[edge.Input](o.Input)
	if err != nil {
		return err
	}
	if in.Command != command {
		return usageError(fmt.Sprintf("use `shunt edge %s --dry-run --input %s`", in.Command, o.Input),
			"%s was recorded by `edge %s`", o.Input, in.Command)
	}
	plan, err := edge.ReplayInput(in)
	if err != nil {
		return &exitError{Code: exitConfig, Err: fmt.Errorf("%s: %w", o.Input, err)}
	}
	return a.edgeOutcome(o, edge.Result{Input: in, Plan: plan})
}
