package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

func (e *Env) intentPath(lane string) string { return e.State.Path("intents", lane+".json") }

func (e *Env) readIntent(lane string) (Intent, error) {
	var it Intent
	b, err := os.ReadFile(e.intentPath(lane))
	if err != nil {
		return it, err
	}
	if err := json.Unmarshal(b, &it); err != nil {
		return it, fmt.Errorf("%s: %w", e.intentPath(lane), err)
	}
	return it, nil
}

func (p *pass) writeIntent(ctx context.Context, it Intent) error {
	b, err := json.MarshalIndent(it, "", "  ")
	if err != nil {
		return err
	}
	if err := state.WriteFile(ctx, p.intentPath(it.Lane), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("intent of lane %s: %w", it.Lane, err)
	}
	run.Point(ctx, "intent.written")
	return nil
}

func (p *pass) dropIntent(ctx context.Context, lane string) error {
	if err := os.Remove(p.intentPath(lane)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	run.Point(ctx, "intent.removed")
	return nil
}

// recoverIntents finishes or undoes what a killed run left, lane by lane. A lane whose
// lock is held belongs to a run that is alive. The state is read again after it: a failure
// that was recorded just now must not be recorded by this run too.
func (p *pass) recoverIntents(ctx context.Context, salvage bool) error {
	var errs error
	tried := false
	for _, l := range p.Config.Lanes {
		if _, err := os.Stat(p.intentPath(l.Name)); err != nil {
			continue
		}
		if err := p.sequence(ctx); err != nil {
			return err
		}
		lock, err := p.State.Lock(ctx, "lane-"+l.Name, p.Holder, 0)
		var busy *state.BusyError
		if errors.As(err, &busy) {
			continue
		}
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		if err := p.recoverLane(ctx, l); err != nil {
			errs = errors.Join(errs, fmt.Errorf("lane %s: a killed run's change could not be settled: %w", l.Name, err))
		}
		_ = lock.Unlock()
		tried = true
	}
	if !tried {
		return errs
	}
	return errors.Join(errs, p.loadState(salvage))
}

func (p *pass) recoverLane(ctx context.Context, l Lane) error {
	it, err := p.readIntent(l.Name)
	if errors.Is(err, os.ErrNotExist) {
		return nil // finished between the look and the lock
	}
	if err != nil { // never torn by us: rename is atomic. Keep what the lane has.
		p.event(journal.Event{Kind: "recover", Object: l.Name, Reason: err.Error()})
		return p.dropIntent(ctx, l.Name)
	}
	if it.FailedAt != 0 {
		if err := p.recordFailure(ctx, l, it); err != nil {
			return err
		}
	}
	how, err := p.settleIntent(ctx, l, it)
	if err != nil {
		return err
	}
	p.event(journal.Event{Kind: "recover", Object: l.Name, From: it.From, To: it.To, Reason: "run " + it.Command + " was killed: " + how})
	return p.dropIntent(ctx, l.Name)
}

// settleIntent decides by what is installed and by what the kernel holds: the new endpoint,
// if it had passed its check already or is in place and passes; else the installed profile.
func (p *pass) settleIntent(ctx context.Context, l Lane, it Intent) (string, error) {
	if it.To == "" {
		return "nothing had been swapped yet", nil
	}
	d, err := p.Devices.Observe(ctx, l)
	present := err == nil && d.Present
	if own, err := p.Library.Describe(p.Installed(l.Name)); err == nil && own.Endpoint == it.To {
		return "the new endpoint was installed already", p.keep(ctx, l, it, present)
	}
	if !present {
		return "its device is gone; the installed profile stays", nil // the ladder judges the lane next
	}
	why := ""
	if peer, ok := d.Active(); ok && peer.Pair == it.ToPair {
		if why = p.strict(ctx, l); why == "" {
			return "the new endpoint passes and is kept", p.keep(ctx, l, it, true)
		}
		why = " (" + why + ")"
	}
	if it.FromPath == "" {
		return "there is no earlier profile to go back to" + why, nil
	}
	return "the installed profile is back" + why, p.Devices.Settle(ctx, l, p.Installed(l.Name), false)
}

// keep ends a killed swap to an endpoint that passes: also what came after the peer, old
// addresses and the MTU. What is remembered of the lane is of the endpoint before.
func (p *pass) keep(ctx context.Context, l Lane, it Intent, present bool) error {
	err := p.install(ctx, l, it)
	if err == nil {
		var m Memory
		err = p.State.UpdateJSON(ctx, memoryFile, &m, func() error {
			m = m.clone()
			m.Lanes[l.Name] = LaneMemory{Since: p.Now()}
			return nil
		})
	}
	if err != nil || !present {
		return err
	}
	return errors.Join(p.Devices.Settle(ctx, l, p.Installed(l.Name), false), p.flushLane(ctx, l))
}

// install makes the new profile the lane's own, also over reboots, and closes the
// quarantine's record.
func (p *pass) install(ctx context.Context, l Lane, it Intent) error {
	b, err := os.ReadFile(it.ToPath)
	if err != nil {
		return fmt.Errorf("profile of %s: %w", it.To, err)
	}
	if err := state.WriteFile(ctx, p.Installed(l.Name), b, 0o600); err != nil {
		return err
	}
	run.Point(ctx, "lane.installed")
	if it.FailedAt != 0 && it.From != "" {
		if err := p.State.FillReplacement(ctx, it.From, unix(it.FailedAt), it.To); err != nil {
			return err
		}
		run.Point(ctx, "quarantine.filled")
	}
	return nil
}

// flushLane deletes the flows that used the lane's old path. The lane has its new endpoint
// by then, so that a failure is no failed swap: the intent stays, and the next run does it.
func (p *pass) flushLane(ctx context.Context, l Lane) error {
	if !p.Config.Plane.FlushFlows {
		return nil
	}
	if _, err := p.Flows.Flush(ctx, p.Config, "", l.Name); err != nil {
		return fmt.Errorf("flows of lane %s: %w", l.Name, err)
	}
	return nil
}

// recordFailure writes the quarantine and the day's count, each exactly once also when it
// is done again after a kill.
func (p *pass) recordFailure(ctx context.Context, l Lane, it Intent) error {
	at := unix(it.FailedAt)
	rows, _ := p.State.QuarantineUnion()
	known := false
	for _, q := range rows {
		known = known || q.Endpoint == it.From && q.FailedAt.Unix() == it.FailedAt
	}
	if !known {
		q := state.Quarantined{Endpoint: it.From, FailedAt: at, Slot: l.Name, Iface: l.Interface, Reason: it.Reason}
		if it.PoolMtime != 0 {
			q.PoolMtime = unix(it.PoolMtime)
		}
		if err := p.State.AppendQuarantine(ctx, q); err != nil {
			return err
		}
		run.Point(ctx, "quarantine.appended")
	}
	var n int
	err := p.locked(ctx, "count", func() (err error) {
		n, err = p.raiseCount(ctx, it)
		return err
	})
	if err != nil {
		return err
	}
	return p.failing(ctx, "lane "+l.Name+": "+it.Reason, n)
}

// failing tells the machine that a lane is being repaired, and publishes the day's count.
func (p *pass) failing(ctx context.Context, reason string, count int) error {
	was, to, changed := state.ModeUnknown, state.ModeUnknown, false
	err := p.State.UpdateKV(ctx, func(kv *state.KV) {
		kv.SetInt(state.KeyDailyFailureCount, count)
		was = kv.Mode()
		next, _ := NextMode(ModeState{Mode: was}, ModeObservation{Failing: reason, Attempting: true}, p.Config.modePolicy(), p.Now())
		to = next.Mode
		if changed = to != was; changed {
			kv.SetMode(to, reason, p.Now())
		}
	})
	run.Point(ctx, "kv.updated")
	if err == nil && changed {
		p.in.KV[state.KeyMode] = string(to)
		p.event(journal.Event{Kind: "mode", Object: "mode", From: string(was), To: string(to), Reason: reason})
	}
	return err
}

// raiseCount makes the day's counter at least what the intent says. A count raised by hand
// stays raised. An intent without a count is of a failure that was counted when it was recorded.
func (p *pass) raiseCount(ctx context.Context, it Intent) (int, error) {
	if it.Count == 0 {
		return p.dayCount(ctx, Day(p.Now()))
	}
	n, err := p.dayCount(ctx, it.Day)
	if err != nil || n >= it.Count {
		return n, err
	}
	n, err = p.State.AddCount(ctx, it.Day, it.Count-n)
	run.Point(ctx, "count.added")
	return n, err
}

// dayCount is the day's count. A damaged file goes on from its last good copy, if there is one.
func (p *pass) dayCount(ctx context.Context, day string) (int, error) {
	n, err := p.State.Count(day)
	var damaged *state.DamageError
	if errors.As(err, &damaged) {
		return p.State.AddCount(ctx, day, 0)
	}
	return n, err
}
