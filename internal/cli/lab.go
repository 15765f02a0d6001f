package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/edgestory"
	"github.com/shunt-net/shunt/internal/lab/story"
)

// scenarios are all scenarios, in the order that they are listed in.
func scenarios() []lab.Scenario {
	return slices.Concat(story.Scenarios(), edgestory.Scenarios())
}

func newLabCommand(a *app) *cobra.Command {
	return newGroup("lab", "Throw-away worlds that prove and measure",
		newLabListCommand(a), newLabRunCommand(a), newLabShellCommand(a))
}

func newLabListCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the scenarios",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			type item struct {
				Name    string     `json:"name"`
				Summary string     `json:"summary"`
				Flags   []lab.Flag `json:"flags,omitempty"`
			}
			var list []item
			for _, s := range scenarios() {
				list = append(list, item{s.Name, s.Summary, s.Flags})
			}
			return a.print(list, func(w io.Writer) {
				tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
				for _, s := range list {
					fmt.Fprintf(tw, "%s\t%s\n", s.Name, s.Summary)
				}
				_ = tw.Flush()
			})
		},
	}
}

type labOptions struct {
	Runs  int
	Keep  string
	flags map[string]*string
}

func newLabRunCommand(a *app) *cobra.Command {
	o := labOptions{flags: map[string]*string{}}
	cmd := &cobra.Command{
		Use:   "run SCENARIO…",
		Short: "Play scenarios and print their figures",
		Long: `Plays each scenario in namespaces of its own and prints its figures. The host's own
network is never touched, and nothing is left behind, also after Ctrl-C or kill -9. Exit
code 1 when a bound is broken or a control is missing. Needs root.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runLab(cmd, a, o, args) },
	}
	cmd.Flags().IntVar(&o.Runs, "runs", 1, "play each scenario `N` times")
	cmd.Flags().StringVar(&o.Keep, "keep", "", "copy each run's work folder (configuration, state, logs) to `FOLDER`")
	for _, s := range scenarios() {
		for _, f := range s.Flags {
			if o.flags[f.Name] == nil {
				o.flags[f.Name] = cmd.Flags().String(f.Name, "", fmt.Sprintf("%s (%s; default %s)", f.Usage, s.Name, f.Value))
				if f.Value == "false" {
					cmd.Flags().Lookup(f.Name).NoOptDefVal = "true"
				}
			}
		}
	}
	return cmd
}

func runLab(cmd *cobra.Command, a *app, o labOptions, names []string) error {
	switch {
	case len(names) == 0:
		return usageError("`shunt lab list` lists them", "lab run takes the names of scenarios")
	case o.Runs < 1:
		return usageError("a number from 1 on", "--runs %d", o.Runs)
	}
	if err := needRoot("a lab makes network namespaces"); err != nil {
		return err
	}
	byName := map[string]lab.Scenario{}
	for _, s := range scenarios() {
		byName[s.Name] = s
	}
	requests := make([]lab.Request, 0, len(names))
	for _, n := range names {
		s, ok := byName[n]
		if !ok {
			return usageError("`shunt lab list` lists them", "unknown scenario %q", n)
		}
		flags := map[string]string{}
		for _, f := range s.Flags {
			if cmd.Flags().Changed(f.Name) {
				flags[f.Name] = *o.flags[f.Name]
			}
		}
		requests = append(requests, lab.Request{Scenario: n, Runs: o.Runs, Flags: flags, Story: a.Stderr, Env: a.Environ, Keep: o.Keep})
	}
	return a.playAll(cmd.Context(), requests)
}

func (a *app) playAll(ctx context.Context, requests []lab.Request) error {
	var broken []string
	for _, r := range requests {
		rep, err := lab.Run(ctx, scenarios(), r)
		if err != nil {
			return err
		}
		if err := a.print(rep, func(w io.Writer) { _ = rep.Text(w) }); err != nil {
			return err
		}
		if !rep.OK {
			broken = append(broken, r.Scenario)
		}
	}
	if len(broken) > 0 {
		return &exitError{Code: exitFailed, Err: fmt.Errorf("did not hold: %v", broken)}
	}
	return nil
}

func newLabShellCommand(a *app) *cobra.Command {
	o := labOptions{flags: map[string]*string{}}
	cmd := &cobra.Command{
		Use:   "shell",
		Short: "Keep a world up and open a shell in its router",
		Long: `Builds a world, starts its lanes and opens a shell in its router, where shunt, ip, nft and
wg work on the world. Everything is gone when the shell ends. Needs root.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("a lab makes network namespaces"); err != nil {
				return err
			}
			flags := map[string]string{}
			for n, v := range o.flags {
				if cmd.Flags().Changed(n) {
					flags[n] = *v
				}
			}
			stdin, _ := a.Stdin.(*os.File) // a shell wants the terminal itself
			stdout, _ := a.Stdout.(*os.File)
			code, err := lab.Shell(cmd.Context(), lab.Request{Flags: flags, Story: a.Stderr, Env: a.Environ, Stdin: stdin, Stdout: stdout})
			if err == nil && code != 0 {
				err = &exitError{Code: code}
			}
			return err
		},
	}
	for _, f := range lab.ShellFlags() {
		o.flags[f.Name] = cmd.Flags().String(f.Name, f.Value, f.Usage)
	}
	return cmd
}

func needRoot(why string) error {
	if os.Geteuid() != 0 {
		return &exitError{Code: exitFailed, Err: fmt.Errorf("%s, and only root may", why), Hint: "run it as root"}
	}
	return nil
}
