package edge

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
)

// record writes what the next run must know, and the journal. The table is moved by now: a
// disk that is full is said, and undoes nothing.
func (p *turn) record(ctx context.Context) {
	p.partly(p.remember(ctx, p.stored, p.kept(p.plan.Next), p.bare))
	p.journal(ctx)
}

func (p *turn) journal(ctx context.Context) {
	events := p.journalled()
	if len(events) == 0 {
		return
	}
	seq, err := p.State.NextSeq(ctx)
	p.partly(err)
	for i := range events {
		events[i].Seq, events[i].Run = seq, fmt.Sprintf("%s-%d", p.in.Command, seq)
	}
	p.partly(journal.Append(ctx, p.State, events...))
}

// kept is a plan's memory without what is not so: where this machine's table was not
// written its targets are what they were, and where entries could not be deleted the next
// run must know that some are left there.
func (p *turn) kept(next Memory) Memory {
	lost := p.lost[p.Node] != nil && !p.wrote
	if !lost && !p.unflushed {
		return next
	}
	next = next.clone()
	if lost {
		next.Targets = slices.Clone(p.stored.Targets)
		return next
	}
	dirty := map[string]bool{}
	for _, f := range slices.Concat(p.flushes, p.plan.Flushes) {
		dirty[f.Service] = true
	}
	for i, t := range next.Targets {
		for _, old := range p.stored.Targets {
			if dirty[t.Service] && old.Service == t.Service && old.Family == t.Family {
				next.Targets[i].To = old.To
			}
		}
	}
	return next
}

// journalled is one event for each thing that changed.
func (p *turn) journalled() []journal.Event {
	var out []journal.Event
	now := p.Now()
	add := func(ev journal.Event) {
		ev.Time, ev.Command = now, "edge "+p.in.Command
		if p.in.Command == CommandWatchdog {
			ev.Command = p.in.Command
		}
		out = append(out, ev)
	}
	moved := map[string]bool{}
	for _, s := range p.doneSteps() {
		if s.Kind == StepMove {
			moved[s.Service] = true
		}
		if s.Kind != StepFlush || !moved[s.Service] {
			add(p.eventOf(s))
		}
	}
	for _, n := range p.newNotes() {
		add(journal.Event{Kind: n.Code, Object: n.Object, Reason: n.Text})
	}
	for _, id := range p.settled() {
		code, object, _ := strings.Cut(id, "/")
		add(journal.Event{Kind: "settled", Object: object, Reason: code + " is over"})
	}
	return out
}

// doneSteps are the steps that were carried out.
func (p *turn) doneSteps() []Step {
	lost := p.lost[p.Node] != nil && !p.wrote
	return slices.DeleteFunc(slices.Concat(p.steps, p.plan.Steps), func(s Step) bool {
		switch s.Kind {
		case StepMove:
			return lost && !p.elsewhere
		case StepFlush:
			return lost || p.unflushed
		case StepNode, StepTable, StepSync:
			return p.lost[s.Replica] != nil && (s.Replica != p.Node || lost)
		case StepVeto, StepClear, StepHold, StepRelease, StepUnknown:
		}
		return false
	})
}

func (p *turn) eventOf(s Step) journal.Event {
	ev := journal.Event{Kind: string(s.Kind), Object: s.Service, From: s.From, To: s.To, Reason: s.Reason}
	switch s.Kind {
	case StepVeto, StepClear, StepHold, StepRelease:
		ev.Object = s.Service + "/" + s.Candidate
	case StepNode:
		ev.Object = s.Service + " " + s.Address + " on " + s.Replica
	case StepTable:
		ev.Object = s.Replica
	case StepSync:
		ev.Object = s.Service + " on " + s.Replica
	case StepFlush:
		ev.Figures = deleted(nil, p.flushed)
	case StepMove:
		ev.Figures = map[string]float64{"epoch": float64(s.Epoch)}
		for _, m := range p.out.Moves {
			if m.Service == s.Service && m.Address == s.Address && m.Epoch == s.Epoch {
				ev.Figures["commit"] = ms(m.Commit)
				ev.Figures = deleted(ev.Figures, m.Flushed)
			}
		}
	case StepUnknown:
	}
	return ev
}

// deleted adds how many conntrack entries went, where that is known.
func deleted(figures map[string]float64, n int) map[string]float64 {
	if n < 0 {
		return figures
	}
	if figures == nil {
		figures = map[string]float64{}
	}
	figures["flows_deleted"] = float64(n)
	return figures
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// newNotes are complaints that were not told yet, or not for a long time.
func (p *turn) newNotes() []Note {
	var out []Note
	for _, n := range p.plan.Notes {
		if n.Loud && p.plan.Next.Alerts[n.ID()] != p.stored.Alerts[n.ID()] {
			out = append(out, n)
		}
	}
	return out
}

// settled are complaints that were told and are over.
func (p *turn) settled() []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(p.stored.Alerts)) {
		if _, ok := p.plan.Next.Alerts[id]; !ok {
			out = append(out, id)
		}
	}
	return out
}

// tell sends the alerts of a run.
func (p *turn) tell(moves []Move) {
	if p.Alerts == nil {
		return
	}
	now := p.Now()
	moved := map[string]bool{}
	for _, m := range moves {
		moved[m.Service] = true
		p.Alerts.Alert(m.alert(now))
	}
	for _, s := range p.doneSteps() {
		if (s.Kind == StepVeto || s.Kind == StepClear) && !moved[s.Service] {
			a := Alert{Kind: "edge." + string(s.Kind), Object: s.Service + "/" + s.Candidate, Level: string(LevelInfo), At: now}
			a.Text = fmt.Sprintf("%s: candidate %s (%s) is healthy again: %s", s.Service, s.Candidate, s.Address, s.Reason)
			if s.Kind == StepVeto {
				a.Level = string(LevelWarning)
				a.Text = fmt.Sprintf("%s: candidate %s (%s) is dead: %s", s.Service, s.Candidate, s.Address, s.Reason)
			}
			p.Alerts.Alert(a)
		}
	}
	for _, n := range p.newNotes() {
		p.Alerts.Alert(Alert{Kind: "edge." + n.Code, Object: n.Object, Level: string(n.level()), Text: n.Object + ": " + n.Text, At: now})
	}
}

// alert is how a move is told: with the time to the commit and, where it was measured, to
// the first connection.
func (m Move) alert(now time.Time) Alert {
	a := Alert{
		Kind: "edge.move", Object: m.Service, Level: string(LevelWarning), At: now,
		Text:    fmt.Sprintf("%s %s: %s -> %s (%s), %.1f ms to the commit", m.Service, m.Address, cmp.Or(m.From, "nobody"), cmp.Or(m.To, "nobody"), m.Reason, ms(m.Commit)),
		Figures: map[string]float64{"commit": ms(m.Commit), "epoch": float64(m.Epoch)},
	}
	if m.From == "" {
		a.Level = string(LevelInfo)
	}
	if m.Reached > 0 {
		a.Text += fmt.Sprintf(", %.1f ms to the first connection", ms(m.Reached))
		a.Figures["reached"] = ms(m.Reached)
	}
	return a
}

func (n Note) level() AlertLevel {
	switch n.Code {
	case NoteLastResort, NoteNoCandidate, NoteNoWriter, NoteTwoHolders:
		return LevelCritical
	}
	return LevelWarning
}
