package cli

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lane"
)

// newLaneCommand is hidden: the service unit shunt-lane@ runs it, people need not.
func newLaneCommand(a *app) *cobra.Command {
	cmd := newGroup("lane", "Own a lane's userspace device", newLaneRunCommand(a))
	cmd.Hidden = true
	return cmd
}

type laneOptions struct {
	Delay time.Duration
}

func newLaneRunCommand(a *app) *cobra.Command {
	var o laneOptions
	cmd := &cobra.Command{
		Use:   "run LANE",
		Short: "Own the userspace WireGuard device of a lane until stopped",
		Long: `For hosts whose kernel has no WireGuard module: makes the lane's interface and its control
socket, applies the lane's installed profile if there is one, and runs until it is stopped.
It is a service of its own (shunt-lane@LANE): no repair parents it.`,
		Args: exactArgs("LANE"),
		RunE: func(cmd *cobra.Command, args []string) error { return runLane(cmd.Context(), a, o, args[0]) },
	}
	cmd.Flags().DurationVar(&o.Delay, "delay", 0, "hold each encrypted packet for `TIME` (labs)")
	_ = cmd.Flags().MarkHidden("delay")
	return cmd
}

func runLane(ctx context.Context, a *app, o laneOptions, name string) error {
	c, err := a.loadOrLastGood(config.SectionEgress)
	if err != nil {
		return err
	}
	l, ok := c.Egress.Lane(name)
	if !ok {
		return usageError("`shunt config show` lists the lanes", "no lane %q in the configuration", name)
	}
	return lane.Serve(ctx, lane.ServeOptions{
		Interface: l.Interface, ConfigPath: filepath.Join(c.StateDir, "lanes", l.Name+".conf"), Now: a.Now, Delay: o.Delay,
		AmneziaWG: l.Driver == egress.DriverAmneziaWG,
		Logf:      func(f string, v ...any) { a.Log.Warn("device", "message", fmt.Sprintf(f, v...)) },
		Ready:     func() { a.ready(); a.Log.Info("lane", "object", l.Name, "interface", l.Interface, "state", "ready") },
	})
}

// ready tells systemd (Type=notify) that the service is up (sd_notify(3)).
func (a *app) ready() {
	path := a.Env("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte("READY=1"))
}
