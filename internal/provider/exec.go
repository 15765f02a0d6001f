package provider

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// watchEvery is how often the folder of a running command is weighed.
const watchEvery = 200 * time.Millisecond

// exec runs a command that fills the folder named by SHUNT_OUT, and reads that folder.
func (b *batch) exec(ctx context.Context, argv []string) error {
	if len(argv) == 0 {
		return errors.New("no command")
	}
	out, err := os.MkdirTemp(b.shelf.dir, ".out-")
	if err != nil {
		return fmt.Errorf("folder for the command: %w", err)
	}
	defer os.RemoveAll(out)
	watched, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.watch(watched, stop, out)
	}()
	_, err = run.Command(watched, argv, run.Options{Env: []string{"SHUNT_OUT=" + out}, Timeout: b.timeout})
	why := context.Cause(watched)
	stop(nil)
	<-ended
	switch {
	case err != nil && why != nil && ctx.Err() == nil:
		return fmt.Errorf("command %s: %w", printable(argv[0]), why)
	case err != nil:
		return err
	}
	return b.dir(ctx, out)
}

// watch stops a command that fills its folder beyond the source's bounds.
func (b *batch) watch(ctx context.Context, stop context.CancelCauseFunc, out string) {
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
		}
	}
}
