package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

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
fails is lent and repaired, by the code of ` + "`shunt egress repair`" + `. A configuration that is
changed meanwhile is taken up within seconds.

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
	l, err := a.loadWatched()
	if err != nil {
		return err
	}
	ctx := a.withPoints(cmd.Context())
	w, err := a.openWatching(ctx, l, watchdog.Options{
		Started: started, Interval: o.Interval, For: o.For, Once: o.Once, Now: a.Now, Holder: "shunt watchdog",
	})
	if err != nil {
		return err
	}
	sum, err := w.watch(ctx)
	if err != nil {
		return err
	}
	if err := a.print(sum, func(out io.Writer) {
		if quiet := !a.flags.Verbose && !o.Once && len(sum.Moves)+int(sum.Hints+sum.Failed) == 0; quiet { //nolint:gosec // counts
			return // a line each minute of each day tells nothing
		}
		fmt.Fprintf(out, "watched: %d probes, %d hints (%d deaths), %d moves, %d rounds of lanes\n", sum.Probes, sum.Hints, sum.Dead, len(sum.Moves), sum.Egress)
	}); err != nil {
		return err
	}
	var unwritten *unwrittenError
	switch {
	case errors.As(sum.Partial, &unwritten):
		return &exitError{Code: exitPartly, Err: sum.Partial, Hint: unwrittenHint}
	case sum.Partial != nil && !errors.Is(sum.Partial, errBehind):
		return &exitError{Code: exitPartly, Err: sum.Partial}
	}
	return nil
}
