package provider

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/run"
)

// watchEvery is how often the folder of a running command is weighed.
const watchEvery = 200 * time.Millisecond

// errEnough ends a command that has shown what it was run for.
var errEnough = errors.New("enough")

// exec runs a command that fills the folder named by SHUNT_OUT, and reads that folder.
func (b *batch) exec(ctx context.Context, argv []string, opts Options) error {
	out, err := os.MkdirTemp(b.shelf.dir, ".out-")
	if err != nil {
		return fmt.Errorf("folder for the command: %w", err)
	}
	defer os.RemoveAll(out)
	if err := b.command(ctx, argv, out, opts, nil); err != nil {
		return err
	}
	return b.dir(ctx, out)
}

// command runs a command that fills out, led by the way of the options if they have one.
// Once enough says so it is ended, which is no error; nil = never.
func (b *batch) command(ctx context.Context, argv []string, out string, opts Options, enough func() bool) error {
	if len(argv) == 0 {
		return errors.New("no command")
	}
	watched, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.watch(watched, stop, out, enough)
	}()
	o := run.Options{Env: []string{"SHUNT_OUT=" + out}, Timeout: b.timeout}
	var err error
	if opts.DialContext != nil {
		err = led(watched, argv, o, opts.DialContext)
	} else {
		_, err = run.Command(watched, argv, o)
	}
	why := context.Cause(watched)
	stop(nil)
	<-ended
	switch {
	case err != nil && errors.Is(why, errEnough):
		return nil
	case err != nil && why != nil && ctx.Err() == nil:
		return fmt.Errorf("command %s: %w", printable(argv[0]), why)
	}
	return err
}

// proof runs a command until it has filled its folder with a usable profile, which is the
// proof that the way of the options is one to where it gets them from.
func (b *batch) proof(ctx context.Context, argv []string, opts Options) error {
	out, err := os.MkdirTemp("", "shunt-reach-")
	if err != nil {
		return fmt.Errorf("folder for the command: %w", err)
	}
	defer os.RemoveAll(out)
	var heard atomic.Int64
	way := opts.DialContext
	opts.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := way(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &counted{c, &heard}, nil
	}
	err = b.command(ctx, argv, out, opts, func() bool { return heard.Load() > 0 && holdsProfile(out) })
	switch {
	case err != nil:
		return err
	case heard.Load() == 0:
		return fmt.Errorf("command %s reads nothing from the network", printable(argv[0]))
	case !holdsProfile(out):
		return fmt.Errorf("command %s gave no profile", printable(argv[0]))
	}
	return nil
}

// holdsProfile says whether one of a folder's files is a usable profile.
func holdsProfile(folder string) bool {
	found := false
	// What cannot be read is none.
	_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !isConf(path) {
			return nil
		}
		if p, err := profile.ParseFile(path); err == nil && p.Check() == nil {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// watch stops a command that fills its folder beyond the source's bounds, or enough.
func (b *batch) watch(ctx context.Context, stop context.CancelCauseFunc, out string, enough func() bool) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var size int64
		n := 0
		// What cannot be read now was just removed, or the reading after the end tells.
		_ = filepath.WalkDir(out, func(_ string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return nil
			}
			if fi, err := e.Info(); err == nil {
				size += fi.Size()
			}
			if n++; n > b.maxMembers() {
				return fs.SkipAll
			}
			return nil
		})
		switch {
		case n > b.maxMembers():
			stop(b.tooMany())
			return
		case size > b.maxBytes:
			stop(b.tooBig())
			return
		case enough != nil && enough():
			stop(errEnough)
			return
		}
	}
}
