package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/config"
)

func newConfigCommand(a *app) *cobra.Command {
	return newGroup("config", "Check, show and explain the configuration",
		newConfigCheckCommand(a), newConfigShowCommand(a), newConfigReferenceCommand(a))
}

func newConfigCheckCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Say everything that is wrong with the configuration",
		Long: `Reads the configuration file, the environment and --set, and says everything that is
wrong, with file, line and column. Changes nothing, and needs no root where the file can
be read. Exit code 78 when anything is wrong; warnings alone are 0.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return runConfigCheck(a) },
	}
}

// checkResult is what `config check` prints.
type checkResult struct {
	File       string             `json:"file"`
	OK         bool               `json:"ok"`
	Complaints []config.Complaint `json:"complaints"`
}

func runConfigCheck(a *app) error {
	o := a.loadOptions(config.Sections()...)
	c, complaints, err := config.Load(o)
	if err != nil {
		return a.unreadable(err)
	}
	bad := config.Blocking(complaints, o.Sections...)
	res := checkResult{File: c.From.File, OK: len(bad) == 0, Complaints: append([]config.Complaint{}, complaints...)}
	err = a.print(res, func(w io.Writer) {
		if res.OK {
			fmt.Fprintf(w, "%s: ok (%d lanes, %d sources, %d services)\n", res.File, len(c.Egress.Lanes), len(c.Egress.Sources), len(c.Edge.Services))
		}
	})
	if err != nil {
		return err
	}
	for _, w := range complaints {
		if w.Warning {
			a.warnf("%s", w)
			if w.Hint != "" {
				a.hintf("%s", w.Hint)
			}
		}
	}
	if !res.OK {
		return &configError{Complaints: bad}
	}
	return nil
}

func newConfigShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print the configuration in effect",
		Long: `Prints every key with the value in effect: the file's, over it the environment's, over
that the one of --set. Secrets in addresses are hidden. The text is a configuration file.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return runConfigShow(a) },
	}
}

func runConfigShow(a *app) error {
	c, err := a.load(config.Sections()...)
	if err != nil {
		return err
	}
	text, err := config.Show(c)
	if err != nil {
		return err
	}
	return a.print(config.Tree(c), func(w io.Writer) { fmt.Fprintf(w, "%s", text) })
}

func newConfigReferenceCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "reference",
		Short: "Print a configuration file that explains every key",
		Long: `Prints a configuration file with every key, its meaning, unit and default. It needs no
configuration itself:

  shunt config reference > ` + config.DefaultPath + `

With --output json it is a list of the keys with type, default, variable and meaning.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.print(config.Keys(), func(w io.Writer) { fmt.Fprint(w, config.Reference()) })
		},
	}
}
