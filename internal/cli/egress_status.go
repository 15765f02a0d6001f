package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/plane"
	"github.com/shunt-net/shunt/internal/state"
)

// lookFlags are those of commands that only look: planning commands have them too.
type lookFlags struct {
	DryRun   bool
	ExitCode bool
}

func (o *lookFlags) addFlags(f *pflag.FlagSet, code string) {
	f.BoolVar(&o.DryRun, "dry-run", false, "accepted everywhere: this command never changes anything")
	f.BoolVar(&o.ExitCode, "exit-code", false, code)
}

func newStatusCommand(a *app) *cobra.Command {
	var o lookFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show lanes, pools, quarantine and mode",
		Long: `Shows every lane with its endpoint, the last verdict, what it carries and for whom; the
pools' age; what is in quarantine; mode, uplink, locks and problems. It sends no packet, takes
no lock and needs no root for what the state folder's rights let it see.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.look(cmd.Context(), func(ctx context.Context, e *egressEnv) error {
				s := e.Status(ctx)
				if err := a.print(s, s.Text); err != nil || !o.ExitCode || s.Well() {
					return err
				}
				return &exitError{Code: exitHeld}
			})
		},
	}
	o.addFlags(cmd.Flags(), "exit 4 when a lane is not up, a class is not at home or there is a problem")
	return cmd
}

func newExplainCommand(a *app) *cobra.Command {
	var o lookFlags
	cmd := &cobra.Command{
		Use:   "explain [LANE|ENDPOINT]…",
		Short: "Say why a lane or an endpoint is where it is",
		Long: `Says of each lane or endpoint why it is as it is: ranks, quarantine and what clears it,
hold-downs, loans, the last verdict, and the journal's last lines about it. With no name it
explains every lane. It sends no packet and changes nothing.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.look(cmd.Context(), func(ctx context.Context, e *egressEnv) error {
				list, err := e.Explain(ctx, args)
				if err != nil {
					return &exitError{Code: exitUsage, Err: err, Hint: "`shunt egress status` lists lanes and endpoints"}
				}
				return a.print(list, func(w io.Writer) { egress.ExplainText(w, list) })
			})
		},
	}
	o.addFlags(cmd.Flags(), "accepted everywhere: an explanation is always 0")
	return cmd
}

// look opens the world for reading.
func (a *app) look(ctx context.Context, f func(context.Context, *egressEnv) error) error {
	c, err := a.load(config.SectionEgress)
	if err != nil {
		return err
	}
	e, err := a.openEgress(ctx, c, "egress", false)
	if err != nil {
		return err
	}
	defer e.Close()
	return f(ctx, e)
}

type planeOptions struct {
	DryRun   bool
	ExitCode bool
	Remove   bool
}

// planeResult is what `egress plane` prints.
type planeResult struct {
	Text    string           `json:"text,omitempty"`
	Changed bool             `json:"changed"`
	Drift   []string         `json:"drift,omitempty"` // what a run would mend
	View    egress.PlaneView `json:"view"`
}

func newPlaneCommand(a *app) *cobra.Command {
	var o planeOptions
	cmd := &cobra.Command{
		Use:   "plane",
		Short: "Install the user plane: nftables table, rules and routes",
		Long: `Puts table inet shunt_egress, the ip rules and the routes of the lanes in place. Every
other command does so too where it is missing; run it early at boot, so that no packet of a
class leaves before the first verdict. Classes stay where they are; after a boot they travel
nowhere until a repair has seen a lane pass.

With --dry-run it prints what it would install. With --remove it takes away what is shunt's,
and nothing else.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPlane(cmd.Context(), a, o) },
	}
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "print the table, rules and routes; change nothing")
	cmd.Flags().BoolVar(&o.ExitCode, "exit-code", false, "with --dry-run: exit 5 when something differs")
	cmd.Flags().BoolVar(&o.Remove, "remove", false, "take shunt's table, rules and routes away")
	return cmd
}

func runPlane(ctx context.Context, a *app, o planeOptions) error {
	switch {
	case o.DryRun && o.Remove:
		return usageError("choose one of them", "--dry-run and --remove exclude each other")
	case o.ExitCode && !o.DryRun:
		return usageError("add --dry-run", "--exit-code goes with --dry-run only")
	}
	c, err := a.load(config.SectionEgress)
	if err != nil {
		return err
	}
	ctx = a.withPoints(ctx)
	p := plane.New()
	defer p.Close()
	var res planeResult
	switch {
	case o.DryRun:
		if res.Text, err = p.Text(ctx, c.Egress, nil); err != nil {
			return err
		}
		if res.Drift, err = p.Drift(ctx, c.Egress); err != nil {
			return err
		}
	case o.Remove:
		if err := a.removePlane(ctx, c, p); err != nil {
			return err
		}
		res.Changed = true
	default:
		if res, err = a.installPlane(ctx, c); err != nil {
			return err
		}
	}
	err = a.print(res, func(w io.Writer) {
		if res.Text != "" {
			_, _ = io.WriteString(w, res.Text)
		}
		for _, d := range res.Drift {
			fmt.Fprintf(w, "# differs now: %s\n", d)
		}
	})
	if err == nil && o.ExitCode && len(res.Drift) > 0 {
		return &exitError{Code: exitPending}
	}
	return err
}

// removePlane takes the user plane away, under the lock of those who move classes.
func (a *app) removePlane(ctx context.Context, c config.Config, p *plane.Plane) error {
	d, err := state.Open(c.StateDir)
	if err != nil {
		return err
	}
	l, err := d.Lock(ctx, "plane", "shunt egress plane --remove", 3*time.Second)
	if err != nil {
		return err
	}
	defer l.Unlock() //nolint:errcheck // the process ends next
	if err := p.Remove(ctx, c.Egress); err != nil {
		return err
	}
	ev := journal.Event{Time: a.Now(), Command: "plane", Kind: "plane", Object: "inet shunt_egress", To: "removed", Reason: "by hand"}
	a.logEvent(ev)
	return journal.Append(ctx, d, ev)
}

func (a *app) installPlane(ctx context.Context, c config.Config) (planeResult, error) {
	e, err := a.openEgress(ctx, c, "egress plane", true)
	if err != nil {
		return planeResult{}, err
	}
	defer e.Close()
	v, changed, err := e.Install(ctx)
	if changed {
		a.Log.Info("plane", "object", "inet shunt_egress", "reason", "installed")
	}
	return planeResult{Changed: changed, View: v}, err
}
