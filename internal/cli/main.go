// Package cli is the command tree: flags, wiring, rendering and exit codes. It is the one
// place that knows the process's arguments, environment, clock and exit.
package cli

import (
	"context"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/cage"
)

// Main runs one command line and returns the exit code. SIGINT and SIGTERM cancel the
// run; the second of them ends it at once.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) int {
	if len(args) > 0 && args[0] == cage.Arg { // this program as the inside of a lab
		return lab.Child(args[1:], scenarios())
	}
	if len(args) > 0 && args[0] == backend.Arg { // this program as a server in a lab
		return backend.Main(args[1:], stdout)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	a := newApp(stdin, stdout, stderr, environ, time.Now)
	return a.run(ctx, args)
}

// run executes one command line.
func (a *app) run(ctx context.Context, args []string) int {
	return a.execute(ctx, newRootCommand(a), args)
}

func (a *app) execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(append([]string{}, args...)) // never nil: cobra would look at os.Args
	watchStart(a, root)
	err := root.ExecuteContext(ctx)
	return a.report(classify(err, a.started, ctx.Err() != nil))
}
