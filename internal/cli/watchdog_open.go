package cli

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/watchdog"
)

// watched is what the configuration asks to be watched. A half that is nil is not.
type watched struct {
	config.Config
	Edge, Egress *config.Config
	faults       map[string]error // section -> why that half can't be watched
	file         []byte           // what stood in the file, whatever was taken
	mark         fileMark         // of that file
}

// errNothing says that the configuration asks for nothing to be watched.
var errNothing = errors.New("nothing to watch")

// loadWatched reads the configuration; each half may be of another copy of the file.
func (a *app) loadWatched() (*watched, error) {
	path := config.File(a.loadOptions())
	mark := fileState(path) // before it is read, and that before it is judged: a change in between is seen later
	file := plainFile(path)
	c, of, say, err := a.loadParts(config.SectionWatchdog)
	if err != nil {
		return nil, err
	}
	l := &watched{Config: c, faults: map[string]error{}, file: file, mark: mark}
	half := func(section string, wanted bool, into **config.Config) {
		if !wanted {
			return
		}
		part, err := of(section)
		if err != nil {
			l.faults[section] = err
			return
		}
		*into = &part
	}
	half(config.SectionEdge, c.Watchdog.Edge, &l.Edge)
	half(config.SectionEgress, c.Watchdog.Egress, &l.Egress)
	if l.Edge != nil && len(l.Edge.Edge.Services) == 0 {
		l.Edge = nil
	}
	if l.Egress != nil && len(l.Egress.Egress.Lanes) == 0 {
		l.Egress = nil
	}
	switch {
	case l.Edge != nil || l.Egress != nil:
		say()
		return l, nil
	case len(l.faults) > 0:
		return nil, l.fault()
	}
	return nil, &exitError{
		Code: exitConfig, Err: fmt.Errorf("%s: %w", c.From.File, errNothing),
		Hint: "edge.services or egress.lanes, with watchdog.edge or watchdog.egress on",
	}
}

// fault is all that keeps halves from being watched.
func (l *watched) fault() error {
	return errors.Join(l.faults[config.SectionEdge], l.faults[config.SectionEgress])
}

// watching is what a run has open, for one configuration.
type watching struct {
	*app
	from   *watched
	asked  watchdog.Options // by flags
	opts   watchdog.Options
	ready  chan struct{}            // closed when it waits for the lock
	works  atomic.Bool              // it has the lock
	judged atomic.Pointer[fileMark] // of the file that this run goes by
	edge   *edgeEnv
	egress *egressEnv
	turn   *laneTurn // nil = no rounds, or one only
	alerts *alerts
	work   *background
}

// openWatching opens what is to be watched. A fault of one half is a warning while the
// other half can be watched.
func (a *app) openWatching(ctx context.Context, l *watched, asked watchdog.Options) (*watching, error) {
	w := &watching{app: a, from: l, asked: asked, opts: asked, ready: make(chan struct{})}
	w.judged.Store(&l.mark)
	if w.opts.Interval == 0 {
		w.opts.Interval = l.Watchdog.Interval
	}
	if w.opts.For == 0 {
		w.opts.For = l.Watchdog.For
	}
	w.opts.Told = w.told
	if err := a.keepConfig(ctx, l.Config, config.SectionWatchdog); err != nil {
		return nil, err
	}
	if l.Edge != nil {
		if err := w.openEdge(ctx, *l.Edge); err != nil {
			l.faults[config.SectionEdge] = err
		}
	}
	if l.Egress != nil {
		if err := w.openEgress(ctx, *l.Egress); err != nil {
			l.faults[config.SectionEgress] = err
		}
	}
	if w.opts.State == nil {
		return nil, l.fault()
	}
	for _, section := range []string{config.SectionEdge, config.SectionEgress} {
		var said *configError // a warning of the file
		if err := l.faults[section]; err != nil && !errors.As(err, &said) {
			w.warnf("%s", err)
		}
	}
	return w, nil
}

func (w *watching) openEdge(ctx context.Context, c config.Config) error {
	e, err := w.app.openEdge(ctx, c, "watchdog", moves)
	if err != nil {
		return err
	}
	if e.unwritten != nil {
		w.warnf("%s", e.unwritten)
		w.hintf("%s", unwrittenHint)
	}
	if err := w.keepConfig(ctx, c, config.SectionEdge); err != nil { // what could be opened passes for later runs
		return errors.Join(err, e.Close())
	}
	w.guard(e)
	w.edge, w.opts.State, w.opts.Edge = e, e.State, &e.Env
	w.alerts = w.startAlerts(c)
	e.Alerts = w.alerts
	return nil
}

func (w *watching) openEgress(ctx context.Context, c config.Config) error {
	e, err := w.app.openEgress(ctx, c, "watchdog", true)
	if err != nil {
		return err
	}
	if err := w.keepConfig(ctx, c, config.SectionEgress); err != nil {
		return errors.Join(err, e.Close())
	}
	w.egress, w.opts.State = e, e.State
	w.work = &background{env: e}
	e.Later = w.work.take
	if !w.opts.Once {
		w.turn = &laneTurn{env: e}
	}
	w.opts.Egress = func(bound context.Context) error {
		// A new configuration does not cut a repair off; a signal does.
		round, cancel := ctx, context.CancelFunc(func() {})
		if limit, ok := bound.Deadline(); ok {
			round, cancel = context.WithDeadline(ctx, limit)
		}
		defer cancel()
		var out egress.Outcome
		var err error
		if w.turn != nil {
			err = w.turn.take(round)
		}
		if err == nil {
			out, err = e.Repair(round, false)
		}
		var busy *state.BusyError
		if errors.As(err, &busy) {
			return nil // another run looks at the same lanes
		}
		return errors.Join(err, out.Partial)
	}
	return nil
}

// told writes what happened to the log.
func (w *watching) told(ev watchdog.Event) {
	switch ev.Kind {
	case watchdog.EventFailed:
		w.Log.Warn("watchdog", "object", ev.Object, "error", ev.Err)
	case watchdog.EventDecided:
		if ev.Result != nil {
			for _, m := range ev.Result.Moves {
				w.Log.Info("moved", "service", m.Service, "address", m.Address, "from", m.From, "to", m.To, "ms", float64(m.Commit.Microseconds())/1000, "reason", m.Reason)
			}
		}
	case watchdog.EventLate, watchdog.EventBack, watchdog.EventGivenUp:
		w.Log.Info("watchdog", "kind", string(ev.Kind), "object", ev.Object, "text", ev.Text, "ms", ev.Took.Milliseconds())
	case watchdog.EventWaiting:
		close(w.ready)
		w.Log.Debug("watchdog", "kind", string(ev.Kind))
	case watchdog.EventBegan:
		w.works.Store(true)
		w.Log.Debug("watchdog", "kind", string(ev.Kind))
	case watchdog.EventHint, watchdog.EventEnded:
		w.Log.Debug("watchdog", "kind", string(ev.Kind), "object", ev.Object, "text", ev.Text)
	case watchdog.EventUnknown:
	}
}

func (w *watching) close(ctx context.Context) {
	if w.work != nil {
		w.work.wait()
	}
	if w.alerts != nil {
		w.alerts.close(ctx)
	}
	if w.edge != nil {
		if err := w.edge.Close(); err != nil {
			w.Log.Debug("closing", "error", err)
		}
	}
	if w.egress != nil {
		if err := w.egress.Close(); err != nil {
			w.Log.Debug("closing", "error", err)
		}
	}
}
