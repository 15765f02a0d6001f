package cli

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shunt-net/shunt/internal/config"
)

const rootLong = `shunt keeps traffic on paths that work.

Results go to stdout, as text or with --output json as one JSON value. Errors, hints,
warnings and the log go to stderr.

Exit codes:
  0    done, or nothing to do
  1    failed
  3    partly applied, or replicas disagree
  4    held back by a guard
  5    changes pending (a dry run with --exit-code)
  64   wrong command line
  75   a lock is busy
  78   wrong configuration
  130  interrupted`

func newRootCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "shunt",
		Short:         "Keep traffic on paths that work",
		Long:          rootLong,
		Args:          knownCommand,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if a.flags.Quiet && a.flags.Verbose {
				return usageError("choose one of them", "--quiet and --verbose exclude each other")
			}
			a.setLevel(slog.LevelInfo)
			return nil
		},
	}
	cmd.SetIn(a.Stdin)
	cmd.SetOut(a.Stdout)
	cmd.SetErr(a.Stderr)
	cmd.SetFlagErrorFunc(flagError)
	a.flags.addFlags(cmd.PersistentFlags())
	cmd.AddCommand(
		newEgressCommand(a),
		newEdgeCommand(a),
		newWatchdogCommand(a),
		newConfigCommand(a),
		newLabCommand(a),
		newLaneCommand(a),
		newVersionCommand(a),
		newManCommand(a),
	)
	cmd.SetHelpCommand(newHelpCommand())
	cmd.SetUsageFunc(plainUsage(cmd.UsageFunc()))
	return cmd
}

func (o *globalFlags) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Config, "config", "", "configuration `FILE` (default $SHUNT_CONFIG, else "+config.DefaultPath+")")
	f.StringVar(&o.StateDir, "state-dir", "", "`FOLDER` for state, over the key state_dir")
	f.StringArrayVar(&o.Set, "set", nil, "set a key of the configuration, as `KEY=VALUE`; can be given again")
	f.Var(&o.Output, "output", "how the result is written")
	f.BoolVarP(&o.Quiet, "quiet", "q", false, "log warnings and errors only")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "log details too")
}

// plainUsage leaves out what pflag writes behind every switch.
func plainUsage(usage func(*cobra.Command) error) func(*cobra.Command) error {
	const noise = "[=true|false]"
	return func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		var b bytes.Buffer
		cmd.SetOut(&b)
		err := usage(cmd)
		cmd.SetOut(out)
		fmt.Fprint(out, strings.ReplaceAll(b.String(), noise, strings.Repeat(" ", len(noise))))
		return err
	}
}

// watchStart notes when a command's own code begins, and hands cobra's own commands the
// same argument errors as ours.
func watchStart(a *app, root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.HasSubCommands() && !c.Runnable() {
			c.Args, c.RunE = knownCommand, needsCommand
		}
		if run := c.RunE; run != nil {
			c.RunE = func(cmd *cobra.Command, args []string) error {
				a.started = true
				return run(cmd, args)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}

// newGroup is a command that only holds others.
func newGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  knownCommand,
		RunE:  needsCommand,
	}
	cmd.AddCommand(commands...)
	return cmd
}

func needsCommand(cmd *cobra.Command, _ []string) error {
	return usageError("one of "+strings.Join(names(cmd), ", ")+"; see "+cmd.CommandPath()+" --help",
		"%s needs a command", cmd.CommandPath())
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			if err != nil {
				return usageError("see shunt --help", "%w", err)
			}
			if len(rest) > 0 {
				return knownCommand(target, rest)
			}
			target.InitDefaultHelpFlag()
			return target.Help()
		},
	}
}

// knownCommand refuses the arguments of a command that only holds others: they are
// mistyped commands.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "see " + cmd.CommandPath() + " --help"
	if n := config.Nearest(args[0], names(cmd)); n != "" {
		hint = "did you mean " + cmd.CommandPath() + " " + n + "?"
	}
	return usageError(hint, "unknown command %q for %s", args[0], cmd.CommandPath())
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError("see "+cmd.CommandPath()+" --help", "%s takes no argument, and got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// exactArgs wants one argument for each of the words, such as LANE.
func exactArgs(words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(words) {
			return usageError("usage: "+cmd.CommandPath()+" "+strings.Join(words, " "),
				"%s takes %d arguments, and got %d", cmd.CommandPath(), len(words), len(args))
		}
		return nil
	}
}

func names(cmd *cobra.Command) []string {
	var out []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			out = append(out, c.Name())
		}
	}
	return out
}

// flagError makes every fault of a flag a usage error, and names the nearest flag.
func flagError(cmd *cobra.Command, err error) error {
	hint := "see " + cmd.CommandPath() + " --help"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				known = append(known, f.Name)
			}
		})
		if n := config.Nearest(unknown.GetSpecifiedName(), known); n != "" && unknown.GetSpecifiedShortnames() == "" {
			hint = "did you mean --" + n + "?"
		}
	}
	return usageError(hint, "%w", err)
}
