package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lane"
	"github.com/shunt-net/shunt/internal/plane"
	"github.com/shunt-net/shunt/internal/probe"
	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/provider"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tunnel"
)

// egressEnv joins the domain to the real world. The caller closes it.
type egressEnv struct {
	egress.Env
	plane  *plane.Plane
	hooks  *hooks
	alerts *alerts
	log    *slog.Logger
	temp   string // state folder of a dry run on a machine that has none yet
}

// openEgress wires everything that an egress pass needs. A run that changes nothing opens
// the state for reading only.
func (a *app) openEgress(ctx context.Context, c config.Config, command string, write bool) (*egressEnv, error) {
	e := &egressEnv{plane: plane.New(), log: a.Log}
	var err error
	if e.State, e.temp, err = openState(c.StateDir, write); err != nil {
		return nil, err
	}
	salt, err := fingerprintSalt(ctx, e.State)
	if err != nil {
		return nil, err
	}
	devices := lane.New(lane.Options{Salt: salt, Now: a.Now, StateDir: c.StateDir})
	e.Config, e.Now = c.Egress, a.Now
	e.Devices = devices
	e.Prober = probe.New(probe.Options{Rx: activeRx(devices), Lanes: interfaces(c.Egress)})
	e.Tester = tunnel.New(tunnel.Options{Now: a.Now, Control: bindTo(c.Egress.Uplink.Interface)})
	e.Plane, e.Flows = e.plane, e.plane
	e.Library = library{salt}
	e.Sources = sources{salt: salt, app: a}
	e.Recovery = a.strategies(e, c.Egress)
	e.Holder = fmt.Sprintf("shunt %s", command)
	e.hooks = startHooks(context.WithoutCancel(ctx), a, c.Hooks)
	e.alerts = a.startAlerts(c)
	e.Notify = func(_ context.Context, ev journal.Event) {
		a.logEvent(ev)
		e.hooks.add(ev)
		e.alerts.mode(ev, a.Now())
	}
	return e, nil
}

// openState opens the state folder, for reading only where nothing is to be written. A look on
// a machine that has none yet gets an empty one of its own, temp, which the caller removes.
func openState(path string, write bool) (d *state.Dir, temp string, err error) {
	if write {
		d, err = state.Open(path)
		return d, "", err
	}
	if d, err = state.OpenRead(path); !errors.Is(err, fs.ErrNotExist) {
		return d, "", err
	}
	if temp, err = os.MkdirTemp("", "shunt-state-"); err == nil {
		d, err = state.Open(temp)
	}
	return d, temp, err
}

// fingerprintSalt is that of the state folder: runs compare fingerprints that others of
// them wrote. It never leaves the folder. A run that only reads, on a folder that has none
// yet, takes one of its own.
func fingerprintSalt(ctx context.Context, d *state.Dir) ([]byte, error) {
	const size = 16
	path := d.Path("salt")
	if b, err := os.ReadFile(path); err == nil && len(b) == size {
		return b, nil
	}
	salt := make([]byte, size)
	if _, err := rand.Read(salt); err != nil {
		return nil, fmt.Errorf("salt of fingerprints: %w", err)
	}
	if d.ReadOnly() {
		return salt, nil
	}
	l, err := d.Lock(ctx, "state", "shunt", 2*time.Second)
	if err != nil {
		return nil, fmt.Errorf("salt of fingerprints: %w", err)
	}
	defer l.Unlock() //nolint:errcheck // the file is written
	if b, err := os.ReadFile(path); err == nil && len(b) == size {
		return b, nil // another run was first
	}
	if err := state.WriteFile(ctx, path, salt, 0o600); err != nil {
		return nil, fmt.Errorf("salt of fingerprints: %w", err)
	}
	return salt, nil
}

func (e *egressEnv) Close() error {
	e.hooks.wait()
	e.alerts.close(context.Background())
	if e.temp != "" {
		_ = os.RemoveAll(e.temp)
	}
	return e.plane.Close()
}

func interfaces(c egress.Config) []string {
	var out []string
	for _, l := range c.Lanes {
		out = append(out, l.Interface)
	}
	return out
}

// logEvent is one INFO line per changed thing.
func (a *app) logEvent(ev journal.Event) {
	attrs := []any{"kind", ev.Kind, "object", ev.Object}
	for _, kv := range [][2]string{{"from", ev.From}, {"to", ev.To}, {"reason", ev.Reason}} {
		if kv[1] != "" {
			attrs = append(attrs, kv[0], kv[1])
		}
	}
	if took, ok := ev.Figures["took"]; ok {
		attrs = append(attrs, "ms", took)
	}
	a.Log.Info("event", attrs...)
}

// activeRx reads what the peer that carries a lane's traffic has received.
func activeRx(d egress.Devices) func(context.Context, egress.Lane) (int64, error) {
	return func(ctx context.Context, l egress.Lane) (int64, error) {
		v, err := d.Observe(ctx, l)
		if err != nil {
			return 0, err
		}
		p, _ := v.Active()
		return p.Rx, nil
	}
}

// bindTo keeps the tunnels of tests on the uplink; with no interface named the routing
// table decides.
func bindTo(iface string) func(network, address string, c syscall.RawConn) error {
	if iface == "" {
		return nil
	}
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), iface) }); cerr != nil {
			return cerr
		}
		if err != nil {
			return fmt.Errorf("binding to %s: %w", iface, err)
		}
		return nil
	}
}

// library reads profiles for the domain, keys as fingerprints.
type library struct{ salt []byte }

func (l library) Describe(path string) (egress.Description, error) {
	p, err := profile.ParseFile(path)
	if err != nil {
		return egress.Description{}, err
	}
	return describe(p, l.salt), nil
}

// describe tells of a profile what the domain may know, with the reason why no driver
// could use its parameters.
func describe(p profile.Profile, salt []byte) egress.Description {
	d := egress.Description(p.Describe(salt))
	if d.Reason == "" && d.Needs != "" {
		if _, err := amnezia.FromProfile(p); err != nil {
			d.Reason = err.Error()
		}
	}
	return d
}

// sources fetches provider lists for the domain.
type sources struct {
	salt []byte
	app  *app
	way  dial.Func // nil = the system's own
}

// Via fetches by the way that a strategy found.
func (s sources) Via(access any) egress.Sources {
	s.way, _ = access.(dial.Func) // strategies give nothing else
	return s
}

// saidSkipped bounds the lines about profiles that were not taken; -v says them all.
const saidSkipped = 20

func (s sources) Fetch(ctx context.Context, list []egress.Source, workdir string) ([]egress.Entry, int, []error, error) {
	got, err := provider.Fetch(ctx, list, workdir, provider.Options{DialContext: s.way})
	entries := make([]egress.Entry, 0, len(got.Entries))
	for _, e := range got.Entries {
		d := describe(e.Profile, s.salt)
		entries = append(entries, egress.Entry{File: e.File, Endpoint: d.Endpoint, Path: e.Path, Pair: d.Pair, Needs: d.Needs, Reason: d.Reason})
	}
	for i, k := range got.Skipped {
		level := slog.LevelWarn
		if i >= saidSkipped {
			level = slog.LevelDebug
		}
		s.app.Log.Log(ctx, level, "skipped", "source", k.Source, "file", k.File, "reason", k.Reason)
	}
	return entries, len(got.Skipped), got.Failed, err
}

// hooks runs the operator's command for each event, one after another, beside the run: a
// hook that hangs delays no repair.
type hooks struct {
	events chan journal.Event
	done   chan struct{}
	stop   context.CancelFunc
	grace  time.Duration // for what is still queued at the run's end
}

func startHooks(ctx context.Context, a *app, c config.Hooks) *hooks {
	h := &hooks{}
	if len(c.OnEvent) == 0 {
		return h
	}
	ctx, h.stop = context.WithCancel(ctx)
	h.events, h.done, h.grace = make(chan journal.Event, 256), make(chan struct{}), c.Timeout
	go func() {
		defer close(h.done)
		for ev := range h.events {
			if ctx.Err() != nil {
				a.Log.Warn("hook", "event", ev.Kind, "object", ev.Object, "error", "not run: earlier ones took all the time")
				continue
			}
			b, err := json.Marshal(ev)
			if err == nil {
				_, err = run.Command(ctx, c.OnEvent, run.Options{Stdin: strings.NewReader(string(b) + "\n"), Timeout: c.Timeout})
			}
			if err != nil {
				a.Log.Warn("hook", "event", ev.Kind, "object", ev.Object, "error", err)
			}
		}
	}()
	return h
}

func (h *hooks) add(ev journal.Event) {
	if h.events == nil {
		return
	}
	select {
	case h.events <- ev:
	default: // a hook that is this far behind must not hold the run up
	}
}

// wait gives what is still queued the time of one hook, all together: hooks that hang must
// not keep the next run from starting.
func (h *hooks) wait() {
	if h.events == nil {
		return
	}
	close(h.events)
	late := time.AfterFunc(h.grace, h.stop)
	defer late.Stop()
	<-h.done
	h.stop()
}

// withPoints arms the kill points of tests: SHUNT_KILL_AT=NAME:N kills the process at the
// N-th time that it gets there, SHUNT_KILL_LOG=FILE lists the points that were reached.
func (a *app) withPoints(ctx context.Context) context.Context {
	at, log := a.Env("SHUNT_KILL_AT"), a.Env("SHUNT_KILL_LOG")
	if at == "" && log == "" {
		return ctx
	}
	name, count, _ := strings.Cut(at, ":")
	n, err := strconv.Atoi(count)
	if err != nil {
		n = 1
	}
	var mu sync.Mutex
	return run.WithPoints(ctx, func(point string) {
		mu.Lock()
		defer mu.Unlock()
		if log != "" {
			if f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
				_, _ = f.WriteString(point + "\n")
				_ = f.Close()
			}
		}
		if point != name {
			return
		}
		if n--; n == 0 {
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Second) // the signal is on its way
		}
	})
}
