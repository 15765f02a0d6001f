package edgestory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

// how is a way to die.
type how string

// The ways to die.
const (
	process how = "process" // kill -9 of the server: the kernel says so to whoever is connected
	host    how = "host"    // the switch's port goes down: silence
)

// death is one death under a client's eyes.
type death struct {
	how    how
	victim *edgeworld.Backend
	client gap.Options
	phase  time.Duration // the death comes at a random time within it
	limit  time.Duration // longest wait for the survivor; 0 = 15 s
	at     time.Time     // where it is known when it is to be; zero = by phase
}

const (
	// settled is how long a client must be answered by one server for that to be a state.
	settled = 200 * time.Millisecond
	// still is a stall of the client's own in a gap above which the gap may be the machine's
	// figure: its connections are opened each 2 ms.
	still = 10 * time.Millisecond
)

// spoilt says whether the client itself stood still for a good part of the gap, so that the
// figure is the machine's.
func (s seen) spoilt() bool { return s.Stall > still && s.Stall > s.Gap.Gap/10 }

// seen is what a death was like.
type seen struct {
	gap.Gap
	died     time.Time
	survivor string
	result   gap.Result
}

// play lets the victim die while a client asks, once it is the one that answers, and waits
// for the survivor.
func (d death) play(ctx context.Context, w *edgeworld.World) (seen, error) {
	cl := gap.Start(ctx, w.Client, d.client)
	defer cl.Stop()
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := cl.WaitSteady(ready, settled, gap.Only(d.victim.Name)); err != nil {
		return seen{}, fmt.Errorf("before the death of %s: %w", d.victim.Name, err)
	}
	if d.at.IsZero() {
		lab.Sleep(ctx, spread(d.phase))
	} else {
		lab.Sleep(ctx, time.Until(d.at))
	}
	died, err := d.kill()
	if err != nil {
		return seen{}, err
	}
	s := seen{died: died}
	limit := d.limit
	if limit == 0 {
		limit = 15 * time.Second
	}
	after, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s.survivor, err = cl.WaitSteady(after, settled, gap.Not(d.victim.Name))
	s.result = cl.Stop()
	s.Gap = s.result.After(s.died, others(w, d.victim)...)
	return s, err
}

func (d death) kill() (time.Time, error) {
	if d.how == host {
		return d.victim.Unplug()
	}
	return d.victim.Kill(), nil
}

// spread is a random part of a time.
func spread(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d) //nolint:gosec // a phase
}

// others are the names of all backends but one.
func others(w *edgeworld.World, not *edgeworld.Backend) []string {
	var out []string
	for _, b := range w.Backends {
		if b != not {
			out = append(out, b.Name)
		}
	}
	return out
}

// heal brings back whatever died.
func heal(ctx context.Context, w *edgeworld.World) error {
	for _, b := range w.Backends {
		if err := b.Plug(); err != nil {
			return err
		}
		if b.Alive() {
			continue
		}
		if err := b.Restart(ctx); err != nil {
			return err
		}
	}
	return nil
}

// serve starts a server of the same kind on every backend.
func serve(ctx context.Context, w *edgeworld.World, o backend.Options) error {
	for _, b := range w.Backends {
		o.Name = b.Name
		if err := b.Start(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// newWorld builds a world that is taken down with the run.
func newWorld(ctx context.Context, e *lab.Env, o edgeworld.Options) (*edgeworld.World, func(), error) {
	o.Dir, o.Binary = e.Dir, e.Binary
	w, err := edgeworld.Build(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	e.Say("world up in %d ms: %d replicas, %d backends", w.Took.Milliseconds(), len(w.Replicas), len(w.Backends))
	return w, func() {
		for _, b := range w.Backends {
			if b.Alive() {
				_ = b.Signal(unix.SIGCONT)
			}
		}
		if err := w.Close(); err != nil {
			e.Problem("taking the world down: %v", err)
		}
	}, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
