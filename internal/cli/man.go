package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manOptions are the flags of `man`.
type manOptions struct {
	Dir string
}

func (o *manOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.Dir, "dir", "", "`FOLDER` that the pages are written to")
}

func newManCommand(a *app) *cobra.Command {
	o := &manOptions{}
	cmd := &cobra.Command{
		Use:    "man --dir FOLDER",
		Short:  "Write manual pages of section 8",
		Args:   noArgs,
		Hidden: true,
		RunE:   func(cmd *cobra.Command, _ []string) error { return runMan(a, cmd.Root(), o) },
	}
	o.addFlags(cmd)
	return cmd
}

func runMan(a *app, root *cobra.Command, o *manOptions) error {
	if o.Dir == "" {
		return usageError("name the folder that the pages are written to", "man needs --dir")
	}
	date := a.Now()
	if s, err := strconv.ParseInt(a.Env("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
		date = time.Unix(s, 0).UTC() // the same pages from the same source
	}
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "8", Source: "shunt", Manual: "System administration", Date: &date}
	if err := doc.GenManTree(root, header, o.Dir); err != nil {
		return fmt.Errorf("manual pages: %w", err)
	}
	return nil
}
