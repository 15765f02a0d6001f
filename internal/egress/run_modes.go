package egress

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// Locks of modes: attempt is held as long as one is made, mode for one change.
const (
	attemptLock = "attempt"
	modeLock    = "mode"
)

// loadModes reads again what the machine decides by, and who is at it now.
func (p *pass) loadModes(salvage bool) error {
	kv, err := p.State.KV()
	if err != nil && !salvage {
		return err
	}
	p.in.KV = map[string]string{}
	for _, pair := range kv.Pairs() {
		p.in.KV[pair.Key] = pair.Value
	}
	var m Memory
	if err := p.State.ReadJSON(memoryFile, &m); err != nil {
		if !salvage {
			return err
		}
		m = p.in.Memory
	}
	p.in.Memory.Modes = m.Modes.clone()
	if p.in.Count, err = p.State.Count(Day(p.in.Now)); err != nil && !salvage {
		return err
	}
	p.in.DayBefore = nil
	if day := p.in.Memory.Modes.Counted.Day; day != "" && day != Day(p.in.Now) {
		if n, err := p.State.Count(day); err == nil {
			p.in.DayBefore = &DayCount{day, n}
		}
	}
	p.in.Refreshing = p.in.Ended == nil && p.State.Holder("pool") != ""
	p.in.Attempting = p.out.lock == nil && p.State.Holder(attemptLock) != "" // also when a refresh that nobody asked for has just ended
	return nil
}

// modes carries out what the machine says, apart from attempts and rebuilds, which take long
// and are the caller's. A quiet run neither locks nor writes.
func (p *pass) modes(ctx context.Context, salvage bool, plan func() Plan) error {
	if err := p.loadModes(salvage); err != nil {
		return err
	}
	if p.plan = plan(); !p.modesDiffer() {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	return p.locked(ctx, modeLock, func() error {
		if err := p.loadModes(salvage); err != nil {
			return err
		}
		if v, err := p.Plane.Observe(ctx, p.Config); err == nil {
			p.in.Plane = v
		}
		if p.plan = plan(); !p.modesDiffer() {
			return nil
		}
		if _, wanted := p.plan.wants(); wanted && p.out.lock == nil {
			l, err := p.State.Lock(ctx, attemptLock, p.Holder, 0) // before anybody can take the open attempt for a killed one
			if err != nil {
				return err
			}
			p.out.lock = l
		}
		p.watch()
		return errors.Join(p.changeModes(ctx), p.sequenceEvents(ctx))
	})
}

// changeModes writes what the machine says and moves users: to direct once that is
// declared, and back before it no longer is. That they are on the move is written before
// either, for the flows that they leave behind: a run that finds it written deletes them.
func (p *pass) changeModes(ctx context.Context) error {
	left := p.in.Memory.Modes.Moving
	if p.moving(StepLeave) {
		if err := p.writeMoving(ctx, true); err != nil {
			return err
		}
		if err := p.moveDirect(ctx, StepLeave); err != nil {
			return err
		}
		if err := p.sweep(ctx, left); err != nil {
			return err
		}
		p.plan.Next.Modes.Moving = false
		return p.writeModes(ctx, true)
	}
	p.plan.Next.Modes.Moving = left || p.moving(StepDirect)
	if err := p.writeModes(ctx, false); err != nil {
		return err
	}
	if err := p.moveDirect(ctx, StepDirect); err != nil || !p.plan.Next.Modes.Moving {
		return err
	}
	if err := p.sweep(ctx, left); err != nil {
		return err
	}
	return p.writeMoving(ctx, false)
}

// writeMoving writes that users are on the move, or no longer.
func (p *pass) writeMoving(ctx context.Context, moving bool) error {
	var m Memory
	err := p.State.UpdateJSON(ctx, memoryFile, &m, func() error {
		m = m.clone()
		m.Modes.Moving = moving
		return nil
	})
	if err != nil {
		return fmt.Errorf("modes: %w", err)
	}
	p.plan.Next.Modes.Moving = moving
	run.Point(ctx, "modes.remembered")
	return nil
}

// sweep deletes what flows of each class a killed run left where the class is no more: on
// lanes, or on direct.
func (p *pass) sweep(ctx context.Context, left bool) error {
	if !left || !p.Config.Plane.FlushFlows {
		return nil
	}
	v, err := p.Plane.Observe(ctx, p.Config)
	if err != nil {
		return fmt.Errorf("user plane: %w", err)
	}
	var errs error
	for _, class := range p.Config.Lanes {
		if v.Classes[class.Name] != direct {
			_, err := p.Flows.Flush(ctx, p.Config, class.Name, direct)
			errs = errors.Join(errs, err)
			continue
		}
		for _, l := range p.Config.Lanes {
			_, err := p.Flows.Flush(ctx, p.Config, class.Name, l.Name)
			errs = errors.Join(errs, err)
		}
	}
	return errs
}

func (p *pass) sequenceEvents(ctx context.Context) error {
	return errors.Join(p.sequence(ctx), p.flushEvents(ctx))
}

func (p *pass) modesDiffer() bool {
	return p.plan.Mode != nil || p.in.Memory.Modes.Moving || p.moving(StepDirect) || p.moving(StepLeave) || !reflect.DeepEqual(p.plan.Next.Modes, p.in.Memory.Modes)
}

func (p *pass) moving(kind StepKind) bool {
	for _, s := range p.plan.Steps {
		if s.Kind == kind && !p.done[s.ID()] {
			return true
		}
	}
	return false
}

// writeModes writes both files. Each order leaves, between them, a state that the next run
// makes good: direct is declared with its cause, and undeclared by the word first.
func (p *pass) writeModes(ctx context.Context, wordFirst bool) error {
	word := func() error {
		c := p.plan.Mode
		if c == nil {
			return nil
		}
		err := p.State.UpdateKV(ctx, func(kv *state.KV) { kv.SetMode(state.Mode(c.To), c.Reason, p.Now()) })
		run.Point(ctx, "mode.written")
		if err == nil {
			p.event(journal.Event{Kind: "mode", Object: "mode", From: c.From, To: c.To, Reason: c.Reason})
		}
		return err
	}
	memory := func() error {
		var m Memory
		err := p.State.UpdateJSON(ctx, memoryFile, &m, func() error {
			m = m.clone()
			m.Modes = p.plan.Next.Modes.clone()
			return nil
		})
		run.Point(ctx, "modes.remembered")
		return err
	}
	if wordFirst {
		memory, word = word, memory
	}
	if err := memory(); err != nil {
		return fmt.Errorf("modes: %w", err)
	}
	if err := word(); err != nil {
		return fmt.Errorf("modes: %w", err)
	}
	return nil
}

// moveDirect moves classes to direct or back, all in one transaction, and then deletes what
// flows they left behind.
func (p *pass) moveDirect(ctx context.Context, kind StepKind) error {
	var steps []Step
	for _, s := range p.plan.Steps {
		if s.Kind == kind && !p.done[s.ID()] {
			steps = append(steps, s)
		}
	}
	if len(steps) == 0 {
		return nil
	}
	if err := p.move(ctx, steps); err != nil {
		return err
	}
	run.Point(ctx, "users.moved")
	for _, s := range steps {
		p.done[s.ID()] = true
	}
	p.out.Applied += len(steps)
	return nil
}

// wants is the attempt that the plan asks for.
func (p *Plan) wants() (AttemptKind, bool) {
	for _, s := range p.Steps {
		if s.Kind == StepRefresh {
			return AttemptKind(s.Pool), true
		}
	}
	return AttemptUnknown, false
}

func (p *Plan) rebuilds() bool {
	for _, s := range p.Steps {
		if s.Kind == StepRebuild {
			return true
		}
	}
	return false
}
