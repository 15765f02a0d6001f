package cli

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/watchdog"
)

// A run whose configuration is changed goes on with the new one: else it would undo for a
// minute what `shunt edge retarget` does by the new one. One that waits for its turn takes it
// up at once, one that works when the file has settled: by then its successor has it too.
const (
	fileEvery   = 250 * time.Millisecond
	fileSettles = 3 // looks that find the file as it was
)

// watch watches until the run is over. Where the configuration is changed, its successor in
// this process stands ready, as the next run would, before this one lets go.
func (w *watching) watch(ctx context.Context) (watchdog.Summary, error) {
	bound, end := context.WithCancel(ctx)
	defer end()
	var next *watching
	var rest watchdog.Summary
	var after error
	var following sync.WaitGroup
	if !w.opts.Once {
		following.Go(func() {
			if next = w.successor(ctx, bound); next == nil {
				return
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				rest, after = next.watch(ctx)
			}()
			select {
			case <-next.ready:
			case <-done:
			}
			end()
			<-done
		})
	}
	sum, err := watchdog.Run(bound, w.opts)
	end()
	w.close(ctx)
	following.Wait()
	if next == nil {
		return sum, err
	}
	var busy *state.BusyError
	switch {
	case ctx.Err() != nil || !errors.Is(err, context.Canceled): // it had come to its own end
	case errors.As(after, &busy): // somebody else watches, by the same configuration
		err = nil
	default:
		err = after
	}
	return plus(sum, rest), err
}

// successor waits for a change of the configuration and opens what it asks for. One that
// does not pass, or changes nothing here, is left alone; nil: bound ended.
func (w *watching) successor(ctx, bound context.Context) *watching {
	path, read := config.File(w.loadOptions()), w.from.file
	var seen fileMark
	calm, changed := 0, true
	tick := time.NewTicker(fileEvery)
	defer tick.Stop()
	for {
		select {
		case <-bound.Done():
			return nil
		case <-tick.C:
		}
		if now := fileState(path); now != seen {
			seen, calm, changed = now, 0, true
		} else {
			calm++
		}
		if !changed || w.works.Load() && calm < fileSettles {
			continue
		}
		changed = false
		raw := plainFile(path)
		if raw == nil || bytes.Equal(raw, read) {
			continue
		}
		read = raw
		if next := w.open(ctx); next != nil {
			return next
		}
	}
}

// open opens what the file asks for now. nil: it is what is watched already, or nothing that
// can be watched, which is said.
func (w *watching) open(ctx context.Context) *watching {
	l, err := w.loadWatched()
	if err != nil {
		w.Log.Warn("watchdog", "object", "configuration", "error", err)
		return nil
	}
	if l.same(w.from) {
		return nil
	}
	next, err := w.openWatching(ctx, l, w.asked)
	if err != nil {
		w.Log.Warn("watchdog", "object", "configuration", "error", err)
		return nil
	}
	w.Log.Info("watchdog", "object", "configuration", "text", "goes on with the new one", "file", l.From.File)
	return next
}

// same says whether two are made of the same bytes.
func (l *watched) same(o *watched) bool {
	equal := func(a, b *config.Config) bool {
		if a == nil || b == nil {
			return a == b
		}
		return bytes.Equal(a.From.Raw, b.From.Raw)
	}
	return equal(&l.Config, &o.Config) && equal(l.Edge, o.Edge) && equal(l.Egress, o.Egress)
}

// fileMark tells one state of a file from the next without reading it.
type fileMark struct {
	size int64
	mode fs.FileMode
	at   time.Time
}

func fileState(path string) fileMark {
	fi, err := os.Stat(path)
	if err != nil {
		return fileMark{mode: fs.ModeIrregular}
	}
	return fileMark{size: fi.Size(), mode: fi.Mode(), at: fi.ModTime()}
}

// plainFile is what stands in a file; nil where it can't be read. Of a pipe, which would keep
// us, nothing is read.
func plainFile(path string) []byte {
	if !fileState(path).mode.IsRegular() {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return raw
}

// plus is what two turns did together.
func plus(a, b watchdog.Summary) watchdog.Summary {
	a.Waited += b.Waited
	a.Probes += b.Probes
	a.Late += b.Late
	a.Hints += b.Hints
	a.Dead += b.Dead
	a.Alive += b.Alive
	a.Egress += b.Egress
	a.Failed += b.Failed
	a.Moves = append(a.Moves, b.Moves...)
	if b.Partial != nil {
		a.Partial = b.Partial
	}
	return a
}
