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
	Watchdog *watchdog.Beat `json:"watchdog,omitempty"` // nil = there never was one
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
				if err := a.print(s, s.text); err != nil {
					return err
				}
				switch {
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
	b, err := watchdog.ReadBeat(e.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		s.Problems = append(s.Problems, err.Error())
		return
	}
	s.Watchdog = &b
	switch {
	case !b.Late(s.Time):
		for _, object := range slices.Sorted(maps.Keys(b.Troubles)) {
			s.Problems = append(s.Problems, fmt.Sprintf("watchdog: %s: %s", object, b.Troubles[object]))
		}
	case c.Watchdog.Edge || c.Watchdog.Egress:
		s.Problems = append(s.Problems, fmt.Sprintf("watchdog: no sign of life since %s: look at its timers, or remove %s where none is wanted",
			b.At.UTC().Format(time.RFC3339), e.State.Path(watchdog.BeatFile)))
	}
}

func (s *edgeStatus) text(w io.Writer) {
	s.Text(w)
	if b := s.Watchdog; b != nil && !b.Ended && !b.Late(s.Time) {
		fmt.Fprintf(w, "watchdog at work: sign of life %s ago, %d of %d tripwires armed\n", max(0, s.Time.Sub(b.At)).Round(time.Second), b.Armed, b.Wires)
	}
}
