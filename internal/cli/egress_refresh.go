package cli

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/shunt-net/shunt/internal/egress"
)

type refreshOptions struct {
	planFlags
	egress.Options
	IfDue bool
}

func newRefreshCommand(a *app) *cobra.Command {
	var o refreshOptions
	cmd := &cobra.Command{
		Use:   "refresh",
		Short: "Fetch the provider's list, test every endpoint, publish ranked pools",
		Long: `Fetches the sources, refuses a list that is empty, broken or much smaller than the last
one, tests every endpoint in process (no interface, no route; what a lane carries is measured
through that lane), and publishes the three pools together, or none of them. Their time is
the moment when the tests began. A dry run fetches and plans, and tests nothing.

Reads: configuration, sources, quarantine.tsv, state.kv, egress.json, lanes.
Writes: pools, state.kv, egress.json, events.jsonl.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runRefresh(cmd.Context(), a, o) },
	}
	o.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&o.AcceptSmall, "accept-small", false, "take a list also when it is under pool.min_ratio of the last one's size")
	cmd.Flags().BoolVar(&o.IfDue, "if-due", false, "only if the mode asks for one now: the timer's way of trying again")
	return cmd
}

func runRefresh(ctx context.Context, a *app, o refreshOptions) error {
	command := "refresh"
	if o.IfDue {
		if o.AcceptSmall {
			return usageError("leave one of them out", "--if-due and --accept-small exclude each other")
		}
		command = "recover"
	}
	return a.runPass(ctx, command, o.planFlags, func(ctx context.Context, e *egressEnv, dryRun bool) (egress.Outcome, error) {
		progress, stop := a.progress()
		defer stop()
		e.Progress = progress
		if o.IfDue {
			return e.RefreshIfDue(ctx, dryRun)
		}
		return e.Refresh(ctx, o.Options, dryRun)
	})
}

// progress is a bar on a terminal, and a log line for each tenth elsewhere.
func (a *app) progress() (func(done, total int), func()) {
	f, ok := a.Stderr.(*os.File)
	if !ok || a.flags.Quiet || !term.IsTerminal(int(f.Fd())) {
		last := 0
		return func(done, total int) {
			if tenth := done * 10 / max(total, 1); tenth > last {
				last = tenth
				a.Log.Debug("testing", "done", done, "total", total)
			}
		}, func() {}
	}
	return bar(f, "testing")
}

func bar(w io.Writer, what string) (func(done, total int), func()) {
	p := mpb.New(mpb.WithOutput(w), mpb.WithWidth(48))
	b := p.AddBar(0, mpb.PrependDecorators(decor.Name(what+" ")), mpb.AppendDecorators(decor.CountersNoUnit("%d / %d"), decor.Elapsed(decor.ET_STYLE_GO, decor.WCSyncSpace)))
	return func(done, total int) {
			b.SetTotal(int64(total), false)
			b.SetCurrent(int64(done))
		}, func() {
			b.SetTotal(-1, true)
			p.Wait()
		}
}
