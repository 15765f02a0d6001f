package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/watchdog"
)

// edgeStatus is the domain's, with the watchdog's last sign of life.
type edgeStatus struct {
	edge.Status
	Watchdog *watchdog.Beat `json:"watchdog,omitempty"`      // nil = there never was one
	Late     bool           `json:"watchdog_late,omitempty"` // it is overdue
	wanted   bool           // by the configuration
}

func newEdgeStatusCommand(a *app) *cobra.Command {
	var o lookFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show services, candidates, replicas and holds",
		Long: `Shows where each service leads and why, how each candidate stands, what every replica's table
holds and whether they agree, holds, vetoes, parity groups, locks and problems. A watchdog that
gives no sign of life any more is one. It asks no candidate and takes no lock. Replicas that
differ or can't be reached make the exit code 3.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.lookEdge(cmd.Context(), "status", func(ctx context.Context, c config.Config, e *edgeEnv) error {
				found, err := e.Status(ctx)
				if err != nil {
					return err
				}
				s := edgeStatus{Status: found}
				s.addBeat(e, c)
				if e.unwritten != nil {
					s.Problems = append(s.Problems, e.unwritten.Error())
				}
				if err := a.print(s, s.text); err != nil {
					return err
				}
				blind := e.blind()
				switch {
				case blind != nil:
					return blind
				case !s.Agrees():
					return &exitError{Code: exitPartly}
				case o.ExitCode && (!s.Well() || len(s.Held) > 0):
					return &exitError{Code: exitHeld}
				}
				return nil
			})
		},
	}
	o.addFlags(cmd.Flags(), "exit 4 when something is held back or there is a problem")
	return cmd
}

// addBeat reads the watchdog's last sign of life. Late, it is a problem where a watchdog is
// wanted at all.
func (s *edgeStatus) addBeat(e *edgeEnv, c config.Config) {
	s.wanted = c.Watchdog.Edge || c.Watchdog.Egress
	b, err := watchdog.ReadBeat(e.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		s.Problems = append(s.Problems, err.Error())
		return
	}
	s.Watchdog, s.Late = &b, b.Late(s.Time)
	switch {
	case !s.Late:
		for _, object := range slices.Sorted(maps.Keys(b.Troubles)) {
			s.Problems = append(s.Problems, fmt.Sprintf("watchdog: %s: %s", object, b.Troubles[object]))
		}
	case s.wanted:
		s.Problems = append(s.Problems, fmt.Sprintf("watchdog: no sign of life since %s: look at its timers, or remove %s where none is wanted",
			b.At.UTC().Format(time.RFC3339), e.State.Path(watchdog.BeatFile)))
	}
}

func (s *edgeStatus) text(w io.Writer) {
	s.Text(w)
	b := s.Watchdog
	if b == nil {
		if s.wanted {
			fmt.Fprintln(w, "watchdog: none has worked here yet")
		}
		return
	}
	ago, who := max(0, s.Time.Sub(b.At)).Round(time.Second), fmt.Sprintf("%s (pid %d)", b.Holder, b.PID)
	switch {
	case s.Late && s.wanted:
		fmt.Fprintf(w, "watchdog late: last sign of life %s ago, by %s\n", ago, who)
	case s.Late:
	case b.Ended:
		fmt.Fprintf(w, "watchdog between two runs: last sign of life %s ago, by %s\n", ago, who)
	default:
		fmt.Fprintf(w, "watchdog at work: sign of life %s ago, by %s, until %s; %d of %d tripwires armed\n", ago, who, b.Until.UTC().Format(time.TimeOnly), b.Armed, b.Wires)
	}
}
