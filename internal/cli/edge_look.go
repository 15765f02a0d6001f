package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/edge"
)

// lookEdge opens the world for reading.
func (a *app) lookEdge(ctx context.Context, command string, f func(context.Context, config.Config, *edgeEnv) error) error {
	defer seldomGC()()
	c, err := a.load(config.SectionEdge)
	if err != nil {
		return err
	}
	if err := hasServices(c); err != nil {
		return err
	}
	e, err := a.openEdge(ctx, c, "edge "+command, looks)
	if err != nil {
		return err
	}
	defer e.Close()
	return f(ctx, c, e)
}

func newEdgeExplainCommand(a *app) *cobra.Command {
	var o lookFlags
	cmd := &cobra.Command{
		Use:   "explain [SERVICE|CANDIDATE|ADDRESS]…",
		Short: "Say why a service leads where it leads",
		Long: `Says of each service, candidate or address why it is as it is: the target and its epoch, who
moves it, vetoes, holds, the last answers, and the journal's last lines about it. With no name
it explains every service. It asks no candidate and changes nothing.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.lookEdge(cmd.Context(), "explain", func(ctx context.Context, _ config.Config, e *edgeEnv) error {
				list, err := e.Explain(ctx, args)
				if err != nil {
					return edgeError(err)
				}
				if err := a.print(list, func(w io.Writer) { edge.ExplainText(w, list) }); err != nil {
					return err
				}
				return e.blind()
			})
		},
	}
	o.addFlags(cmd.Flags(), "accepted everywhere: an explanation is always 0")
	return cmd
}

func newEdgeCheckCommand(a *app) *cobra.Command {
	var o lookFlags
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Find what failovers would stumble over, with its mend",
		Long: `Looks at what services stand on: forwarding, connection tracking, reverse path filters, the
candidates' places and ways back (also by the connections that are under way), the replicas' tables, this machine's clock, keepalived's
configuration. Each finding comes with its mend. Nothing is changed and no candidate is asked.

Exit code 3: a replica can't be reached or differs. 4: another finding that is no warning.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.lookEdge(cmd.Context(), "check", func(ctx context.Context, c config.Config, e *edgeEnv) error {
				f, err := checkFacts(ctx, c, e)
				if err != nil {
					return err
				}
				list := edge.Check(f)
				if e.blind() != nil {
					unseen(list, e.Node)
				}
				return a.findings(list)
			})
		},
	}
	o.addFlags(cmd.Flags(), "accepted everywhere: findings always set the exit code")
	return cmd
}

func checkFacts(ctx context.Context, c config.Config, e *edgeEnv) (edge.Facts, error) {
	f := edge.Facts{Config: c.Edge, Node: e.Node, Synced: clockSynced()}
	var err error
	if f.Host, err = e.Sight.Look(ctx, c.Edge); err != nil {
		return f, err
	}
	if f.Status, err = e.Status(ctx); err != nil {
		return f, err
	}
	if text, err := os.ReadFile(keepalivedConf); err == nil {
		f.Lint = edge.LintKeepalived([]edge.ConfigFile{{Name: keepalivedConf, Text: string(text)}}, c.Edge)
	}
	addFlows(ctx, &f, e.flows)
	return f, nil
}

// unseen says of this machine's own table what we know: that is not how it is reached.
func unseen(list []edge.Finding, node string) {
	for i, f := range list {
		if f.Where == node && f.Code == edge.FindUnreachable {
			list[i].Text, list[i].Mend = "this machine's tables can't be seen by this user: whether they are right is not known", "run it as root"
		}
	}
}

const keepalivedConf = "/etc/keepalived/keepalived.conf"

// clockSynced asks the kernel whether something keeps the clock right.
func clockSynced() edge.Synced {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case err != nil:
		return edge.SyncedUnknown
	case state == unix.TIME_ERROR:
		return edge.SyncedNo
	}
	return edge.SyncedYes
}

// findings prints them and turns them into an exit code.
func (a *app) findings(list []edge.Finding) error {
	err := a.print(list, func(w io.Writer) {
		for _, f := range list {
			word := "error"
			if f.Warning {
				word = "warning"
			}
			fmt.Fprintf(w, "%-8s %s: %s\n", word, f.Where, f.Text)
			if f.Mend != "" {
				fmt.Fprintf(w, "         mend: %s\n", f.Mend)
			}
		}
		if len(list) == 0 {
			fmt.Fprintln(w, "nothing found")
		}
	})
	if err != nil {
		return err
	}
	code := exitDone
	for _, f := range list {
		switch {
		case f.Warning:
		case f.OfReplica():
			code = max(code, exitPartly)
		default:
			code = exitHeld
		}
	}
	if code == exitDone {
		return nil
	}
	return &exitError{Code: code}
}

// keepalivedFlags are those of `edge keepalived`.
type keepalivedFlags struct {
	lookFlags
	Replica string
	Options edge.KeepalivedOptions
	Lint    []string
}

func newKeepalivedCommand(a *app) *cobra.Command {
	var o keepalivedFlags
	cmd := &cobra.Command{
		Use:   "keepalived",
		Short: "Print keepalived's configuration for the replicas, or find its traps",
		Long: `Prints for each replica a keepalived.conf that holds the services' addresses, with the ladder
of priorities in the order of edge.replicas: 150, 100, then each new one below all others and
within 60 of the one above.

With --lint it reads files instead and names the traps: the same virtual_router_id twice,
passwords that are cut at 8 characters or end in a semicolon, priorities that tie or leave a
gap, addresses that differ. Files of several machines are compared with each other. No
password is shown. Exit code 4: a trap that is no warning.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return runKeepalived(a, o) },
	}
	f := cmd.Flags()
	o.addFlags(f, "accepted everywhere: traps always set the exit code")
	f.StringVar(&o.Replica, "replica", "", "only that of this `REPLICA`")
	f.StringVar(&o.Options.Interface, "interface", "", "`NAME` of the interface that clients come in by (default eth0)")
	f.IntVar(&o.Options.VRID, "vrid", 0, "virtual router `ID`, 1 to 255 (default: made from the addresses)")
	f.StringVar(&o.Options.Program, "program", "", "`PATH` of shunt on the replicas (default /usr/local/bin/shunt)")
	f.StringArrayVar(&o.Lint, "lint", nil, "look for traps in `FILE` (may be given several times)")
	return cmd
}

// vrrp says whether a file of keepalived's has what the traps are about.
func vrrp(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 0 && (f[0] == "vrrp_instance" || f[0] == "vrrp_sync_group" || f[0] == "include") {
			return true
		}
	}
	return false
}

func runKeepalived(a *app, o keepalivedFlags) error {
	if o.Options.VRID < 0 || o.Options.VRID > 255 {
		return usageError("a number from 1 to 255", "--vrid %d", o.Options.VRID)
	}
	c, err := a.load(config.SectionEdge)
	if err != nil {
		return err
	}
	if len(o.Lint) > 0 {
		var files []edge.ConfigFile
		for _, name := range o.Lint {
			text, err := os.ReadFile(name)
			if err != nil {
				return &exitError{
					Code: exitConfig, Err: fmt.Errorf("--lint: %w", err),
					Hint: "name the files of keepalived's configuration that can be read here, such as " + keepalivedConf + "; copy those of other machines first",
				}
			}
			if !vrrp(text) {
				return &exitError{
					Code: exitConfig, Err: fmt.Errorf("--lint: %s: no vrrp_instance in it: this is no configuration of keepalived that holds an address", name),
					Hint: "name such a file, such as " + keepalivedConf + ", or the one that it includes",
				}
			}
			files = append(files, edge.ConfigFile{Name: name, Text: string(text)})
		}
		return a.findings(edge.LintKeepalived(files, c.Edge))
	}
	files, err := edge.Keepalived(c.Edge, o.Options)
	if err != nil {
		hint := ""
		if len(c.Edge.Replicas) == 0 {
			hint = "name the machines that may hold the addresses in edge.replicas; one that is alone holds them itself"
		}
		return &exitError{Code: exitConfig, Err: err, Hint: hint}
	}
	if o.Replica != "" {
		all := files
		files = slices.DeleteFunc(slices.Clone(files), func(f edge.KeepalivedFile) bool { return f.Replica != o.Replica })
		if len(files) == 0 {
			var names []string
			for _, f := range all {
				names = append(names, f.Replica)
			}
			return usageError("there is: "+strings.Join(names, ", "), "--replica %s: no such replica", o.Replica)
		}
	}
	return a.print(files, func(w io.Writer) {
		for _, f := range files {
			if len(files) > 1 {
				fmt.Fprintf(w, "# ---- %s\n", f.Replica)
			}
			_, _ = io.WriteString(w, f.Text)
		}
	})
}
