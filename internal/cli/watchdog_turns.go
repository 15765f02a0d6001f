package cli

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

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
				end()
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
	if w.edge != nil && w.edge.unwritten != nil {
		sum.Partial = errors.Join(w.edge.unwritten, sum.Partial)
	}
	if w.turn != nil {
		w.turn.end() // its last round is over
	}
	w.close(ctx)
	following.Wait()
	if next == nil {
		if ctx.Err() == nil && errors.Is(err, context.Canceled) { // nothing is to be watched any more
			err = nil
		}
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
// does not pass, or changes nothing here, is left alone; nil: bound ended, or the file asks
// for nothing to be watched.
func (w *watching) successor(ctx, bound context.Context) *watching {
	path, read, refused := config.File(w.loadOptions()), w.from.file, w.from.mark.open()
	seen := w.from.mark
	calm, changed, left := 0, false, false
	tick := time.NewTicker(fileEvery)
	defer tick.Stop()
	for {
		select {
		case <-bound.Done():
			return nil
		case <-tick.C:
		}
		if !left && w.lostState() {
			left = true // tried once: it is not tried each moment
			next, err := w.openWatching(ctx, w.from, w.asked)
			if err == nil {
				return next
			}
			w.Log.Warn("watchdog", "object", "state folder", "text", "takes no locks any more", "error", err)
		}
		if now := fileState(path); now != seen {
			seen, calm, changed = now, 0, true
		} else {
			calm++
		}
		// A file that is gone may be in the middle of being replaced.
		if !changed || calm < fileSettles && (w.works.Load() || !seen.there()) {
			continue
		}
		changed = false
		raw := plainFile(path)
		if !bytes.Equal(raw, read) || (raw == nil) != (read == nil) || seen.open() != refused {
			read, refused = raw, seen.open()
			next, err := w.open(ctx)
			switch {
			case errors.Is(err, errNothing):
				w.Log.Info("watchdog", "object", "configuration", "text", "asks for nothing to be watched any more", "file", path)
				return nil
			case err != nil:
				w.Log.Warn("watchdog", "object", "configuration", "text", "goes on with what it has", "error", err)
			case next != nil:
				return next
			}
		}
		mark := seen
		w.judged.Store(&mark) // what is read later has another one, or was read just now
	}
}

// lostState says whether the state folder was made read-only under us, as kernels do after
// errors of a disk. Without its locks nothing can be moved: a stand-in has some.
func (w *watching) lostState() bool {
	return w.edge != nil && w.edge.unwritten == nil && errors.Is(unix.Access(w.edge.State.Path(), unix.W_OK), unix.EROFS)
}

// open opens what the file asks for now. nil: that is what is watched already.
func (w *watching) open(ctx context.Context) (*watching, error) {
	l, err := w.loadWatched()
	if err != nil || l.same(w.from) {
		return nil, err
	}
	next, err := w.openWatching(ctx, l, w.asked)
	if err != nil {
		return nil, err
	}
	// A half is not given up for a fault, which the operator may be about to mend.
	lost := errors.Join(
		lostHalf(w.edge != nil, next.edge != nil, l.faults[config.SectionEdge]),
		lostHalf(w.egress != nil, next.egress != nil, l.faults[config.SectionEgress]))
	if lost != nil {
		next.close(ctx)
		return nil, lost
	}
	w.Log.Info("watchdog", "object", "configuration", "text", "goes on with the new one", "file", l.From.File)
	return next, nil
}

// lostHalf is the fault for which a half would not be watched any longer.
func lostHalf(now, then bool, fault error) error {
	if now && !then {
		return fault
	}
	return nil
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

// fileMark tells one state of a file from the next without reading it. A file that takes
// another's place may have its size and its time: it has not its number and its change.
type fileMark struct {
	size    int64
	mode    fs.FileMode
	at      time.Time
	device  uint64
	inode   uint64
	changed syscall.Timespec
}

func fileState(path string) fileMark {
	fi, err := os.Stat(path)
	if err != nil {
		return fileMark{mode: fs.ModeIrregular}
	}
	m := fileMark{size: fi.Size(), mode: fi.Mode(), at: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		m.device, m.inode, m.changed = st.Dev, st.Ino, st.Ctim
	}
	return m
}

// there says whether there was a file.
func (m fileMark) there() bool { return m.mode&fs.ModeIrregular == 0 }

// open says whether anybody may write to the file, which is never read then.
func (m fileMark) open() bool { return m.there() && m.mode.Perm()&0o002 != 0 }

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
