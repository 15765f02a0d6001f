package edge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// holdsDoc is edge-holds.json. A file that was written by us never lacks the list.
type holdsDoc struct {
	Holds []Hold `json:"holds"`
}

// world is what a pass and a session share: the prepared configuration and the ways to the
// tables.
type world struct {
	*Env
	pre   *prepared
	plain Config // without what a recorded input must not hold
	lines []*line
}

func (e *Env) world() *world {
	w := &world{Env: e, plain: withoutSecrets(e.Config)}
	w.pre = prepare(w.plain, e.Node)
	for _, r := range w.pre.replicas {
		w.lines = append(w.lines, newLine(r.Name, r.Name == e.Node, e.Replicas[r.Name], e.Config.deadline()))
	}
	return w
}

// withoutSecrets cuts the hash of a secret to what is shown anyway.
func withoutSecrets(c Config) Config {
	c.Parity = slices.Clone(c.Parity)
	for i, g := range c.Parity {
		c.Parity[i].Reference = g.Reference[:min(len(g.Reference), 12)]
	}
	return c
}

// input begins an input from the state.
func (w *world) input(command string) (in Input, damaged error) {
	in = Input{Version: InputVersion, Command: command, Config: w.plain, Node: w.Node}
	w.tick(&in)
	if err := w.State.ReadJSON(memoryFile, &in.Memory); err != nil {
		in.Damage = append(in.Damage, err.Error())
		damaged = err
	}
	in.Memory = in.Memory.clone()
	var err error
	if in.Holds, in.HoldsAre, err = w.readHolds(); err != nil {
		in.Damage = append(in.Damage, err.Error())
		damaged = errors.Join(damaged, err)
	}
	return in, damaged
}

func (w *world) tick(in *Input) { in.Now = w.Now().UnixMilli() }

// readHolds gives what is known of the operator's word, and how much that is.
func (w *world) readHolds() ([]Hold, HoldsDamage, error) {
	var doc holdsDoc
	err := w.State.ReadJSON(holdsFile, &doc)
	switch {
	case err == nil:
		return doc.Holds, HoldsWhole, nil
	case doc.Holds == nil:
		return nil, HoldsLost, err
	}
	return doc.Holds, HoldsSalvaged, err
}

// look sees every replica's table and this machine, all at once.
func (w *world) look(ctx context.Context, in *Input) error {
	views := make([]View, len(w.lines))
	var wg sync.WaitGroup
	for i, l := range w.lines {
		wg.Go(func() { views[i] = l.observe(ctx) })
	}
	host, err := w.Sight.Look(ctx, w.Config)
	wg.Wait()
	in.Host, in.Views = host, views
	if err != nil {
		return fmt.Errorf("this machine: %w", err)
	}
	return nil
}

// reached says whether any table can be planned on.
func reached(views []View) error {
	var errs error
	for _, v := range views {
		if v.Error == "" {
			return nil
		}
		errs = errors.Join(errs, fmt.Errorf("table of %s: %s", v.Replica, v.Error))
	}
	return errs
}

// self is the index of this machine's view, or -1.
func (w *world) self() int {
	return slices.IndexFunc(w.lines, func(l *line) bool { return l.local })
}

// changeHolds carries the difference of two lists into the file, onto what others wrote.
func (w *world) changeHolds(ctx context.Context, was, next []Hold) error {
	type id struct{ service, candidate, owner string }
	of := func(h Hold) id { return id{h.Service, h.Candidate, h.Owner} }
	find := func(list []Hold, h Hold) int {
		return slices.IndexFunc(list, func(o Hold) bool { return of(o) == of(h) })
	}
	var doc holdsDoc
	return w.State.UpdateJSON(ctx, holdsFile, &doc, func() error {
		if doc.Holds == nil {
			doc.Holds = []Hold{}
		}
		for _, h := range was {
			if i := find(doc.Holds, h); find(next, h) < 0 && i >= 0 {
				doc.Holds = slices.Delete(doc.Holds, i, i+1)
			}
		}
		for _, h := range next {
			if i := find(was, h); i >= 0 && was[i] == h {
				continue
			}
			if i := find(doc.Holds, h); i >= 0 {
				doc.Holds[i] = h
			} else {
				doc.Holds = append(doc.Holds, h)
			}
		}
		return nil
	})
}
