package lane

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

// playRole is what a copy of the test binary does as a helper process.
func playRole(role string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	switch role {
	case "serve": // a lane service
		err = Serve(ctx, ServeOptions{
			Interface: os.Getenv("LANE"), ConfigPath: os.Getenv("CONF"), Now: time.Now,
			Ready: func() { fmt.Println("ready") },
			Logf:  func(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) },
		})
	case "swap": // a swap that is killed at the point numbered KILL
		var at, n int
		_, _ = fmt.Sscan(os.Getenv("KILL"), &at)
		ctx = run.WithPoints(ctx, func(name string) {
			if name == "file.renamed" || name == "file.written" {
				return // the point after the write is the same instant
			}
			if n++; n == at {
				fmt.Println(name)
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		})
		d := New(Options{Salt: []byte("salt"), Now: time.Now, HandshakeBound: 600 * time.Millisecond, StateDir: os.Getenv("STATE")})
		l := egress.Lane{Name: "lane", Interface: os.Getenv("LANE"), Driver: egress.Driver(os.Getenv("DRIVER"))}
		l.Commands.Template = os.Getenv("TEMPLATE")
		_, err = d.Swap(ctx, l, os.Getenv("FROM"), os.Getenv("TO"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
