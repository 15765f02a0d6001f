package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/watchdog"
)

type watchdogFlags struct {
	Interval time.Duration
	For      time.Duration
	Once     bool
}

func newWatchdogCommand(a *app) *cobra.Command {
	var o watchdogFlags
	cmd := &cobra.Command{
		Use:   "watchdog",
		Short: "Watch candidates and lanes for a minute, and act at once",
		Long: `Holds an idle connection to each candidate, asks each at its own interval, and looks at the
lanes each second. A death that is confirmed moves the virtual address at once; a lane that
fails is lent and repaired, by the code of ` + "`shunt egress repair`" + `.

A run ends by itself after --for. The next one arms its tripwires, then waits for the lock
"watchdog" and works from the moment it is free, so that no second is unwatched: two timers
start it in turn, or cron once a minute.

Reads and writes what ` + "`shunt edge retarget`" + ` and ` + "`shunt egress repair`" + ` do, and watchdog.json.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWatchdog(cmd, a, o) },
	}
	f := cmd.Flags()
	f.DurationVar(&o.Interval, "interval", 0, "`TIME` between two rounds of the lanes (default: watchdog.interval)")
	f.DurationVar(&o.For, "for", 0, "end after this `TIME`, counted from the start (default: watchdog.for)")
	f.BoolVar(&o.Once, "once", false, "one round of everything")
	return cmd
}

func runWatchdog(cmd *cobra.Command, a *app, o watchdogFlags) error {
	started := a.Now()
	switch {
	case o.Interval < 0 || cmd.Flags().Changed("interval") && o.Interval < 10*time.Millisecond:
		return usageError("10ms or more", "--interval %s", o.Interval)
	case o.For < 0 || cmd.Flags().Changed("for") && o.For == 0:
		return usageError("a time such as 65s", "--for %s", o.For)
	case o.Once && cmd.Flags().Changed("for"):
		return usageError("choose one of them", "--once and --for exclude each other")
	}
	c, err := a.load(config.SectionWatchdog)
	if err != nil {
		return err
	}
	ctx := a.withPoints(cmd.Context())
	w := &watching{app: a, opts: watchdog.Options{
		Started: started, Interval: o.Interval, For: o.For, Once: o.Once, Now: a.Now, Holder: "shunt watchdog",
	}}
	if w.opts.Interval == 0 {
		w.opts.Interval = c.Watchdog.Interval
	}
	if w.opts.For == 0 {
		w.opts.For = c.Watchdog.For
	}
	defer w.close(ctx)
	if err := w.open(ctx, c); err != nil {
		return err
	}
	w.opts.Told = w.told
	sum, err := watchdog.Run(ctx, w.opts)
	if err != nil {
		return err
	}
	if err := a.print(sum, func(out io.Writer) {
		fmt.Fprintf(out, "watched: %d probes, %d hints (%d deaths), %d moves, %d rounds of lanes\n", sum.Probes, sum.Hints, sum.Dead, len(sum.Moves), sum.Egress)
	}); err != nil {
		return err
	}
	if sum.Partial != nil {
		return &exitError{Code: exitPartly, Err: sum.Partial}
	}
	return nil
}

// watching is what one run of the watchdog has open.
type watching struct {
	*app
	opts   watchdog.Options
	edge   *edgeEnv
	egress *egressEnv
	alerts *alerts
	work   *background
}

// open opens what the configuration has and asks to be watched. A fault of one half is a
// warning while the other half can be watched.
func (w *watching) open(ctx context.Context, c config.Config) error {
	var faults []error
	note := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	if c.Watchdog.Edge && len(c.Edge.Services) > 0 {
		note(w.openEdge(ctx))
	}
	if c.Watchdog.Egress && len(c.Egress.Lanes) > 0 {
		note(w.openEgress(ctx))
	}
	switch {
	case w.opts.State == nil && len(faults) > 0:
		return errors.Join(faults...)
	case w.opts.State == nil:
		return &exitError{
			Code: exitConfig, Err: fmt.Errorf("%s: nothing to watch", c.From.File),
			Hint: "edge.services or egress.lanes, with watchdog.edge or watchdog.egress on",
		}
	}
	for _, err := range faults {
		w.warnf("%s", err)
	}
	return nil
}

func (w *watching) openEdge(ctx context.Context) error {
	c, err := w.loadToRun(ctx, config.SectionEdge, true, nil)
	if err != nil {
		return err
	}
	e, err := w.app.openEdge(c, "watchdog", true)
	if err != nil {
		return err
	}
	w.edge, w.opts.State, w.opts.Edge = e, e.State, &e.Env
	w.alerts = w.startAlerts(c)
	e.Alerts = w.alerts
	return nil
}

func (w *watching) openEgress(ctx context.Context) error {
	c, err := w.loadToRun(ctx, config.SectionEgress, true, nil)
	if err != nil {
		return err
	}
	e, err := w.app.openEgress(ctx, c, "watchdog", true)
	if err != nil {
		return err
	}
	w.egress, w.opts.State = e, e.State
	w.work = &background{env: e}
	e.Later = w.work.take
	w.opts.Egress = func(ctx context.Context) error {
		out, err := e.Repair(ctx, false)
		var busy *state.BusyError
		if errors.As(err, &busy) {
			return nil // a repair is under way: it looks at the same lanes
		}
		return errors.Join(err, out.Partial)
	}
	return nil
}

// told writes what happened to the log.
func (w *watching) told(ev watchdog.Event) {
	switch ev.Kind {
	case watchdog.EventFailed:
		w.Log.Warn("watchdog", "object", ev.Object, "error", ev.Err)
	case watchdog.EventDecided:
		if ev.Result != nil {
			for _, m := range ev.Result.Moves {
				w.Log.Info("moved", "service", m.Service, "address", m.Address, "from", m.From, "to", m.To, "ms", float64(m.Commit.Microseconds())/1000, "reason", m.Reason)
			}
		}
	case watchdog.EventLate, watchdog.EventBack, watchdog.EventGivenUp:
		w.Log.Info("watchdog", "kind", string(ev.Kind), "object", ev.Object, "text", ev.Text, "ms", ev.Took.Milliseconds())
	case watchdog.EventWaiting, watchdog.EventBegan, watchdog.EventHint, watchdog.EventEnded:
		w.Log.Debug("watchdog", "kind", string(ev.Kind), "object", ev.Object, "text", ev.Text)
	case watchdog.EventUnknown:
	}
}

func (w *watching) close(ctx context.Context) {
	if w.work != nil {
		w.work.wait()
	}
	if w.alerts != nil {
		w.alerts.close(ctx)
	}
	if w.edge != nil {
		if err := w.edge.Close(); err != nil {
			w.Log.Debug("closing", "error", err)
		}
	}
	if w.egress != nil {
		if err := w.egress.Close(); err != nil {
			w.Log.Debug("closing", "error", err)
		}
	}
}
