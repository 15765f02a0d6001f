package edge

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// Several processes remember at once: a run writes the difference that it made, onto what
// is on the disk by then. What a tripwire learned of a server is known to one process alone
// and goes its own way.

// merge carries what changed from was to next over to m. Of one key the newer answer
// counts, and what an operator had forgotten stays forgotten.
func merge(m, was, next Memory) Memory {
	m = m.clone()
	state.Carry(m.Resets, was.Resets, next.Resets)
	state.Carry(m.Alerts, was.Alerts, next.Alerts)
	state.Carry(m.Doubts, was.Doubts, next.Doubts)
	for name, p := range next.Parity {
		if have, ok := m.Parity[name]; !ok || p.At >= have.At {
			m.Parity[name] = p
		}
	}
	for name := range was.Parity {
		if _, ok := next.Parity[name]; !ok {
			delete(m.Parity, name)
		}
	}
	m.Health, m.Vetoes = mergeVerdicts(m, was, next)
	m.Targets = mergeTargets(m.Targets, was.Targets, next.Targets)
	return m
}

func mergeVerdicts(m, was, next Memory) (map[Key]Health, []Veto) {
	health := m.Health
	vetoes := map[Key]Veto{}
	for _, v := range m.Vetoes {
		vetoes[v.Key] = v
	}
	mine := map[Key]Veto{}
	for _, v := range next.Vetoes {
		mine[v.Key] = v
	}
	drop := func(k Key) {
		delete(health, k)
		delete(vetoes, k)
	}
	for k, h := range next.Health {
		have, ok := health[k]
		if old := was.Health[k]; ok && old.Lifetime == h.Lifetime && old.Short == h.Short {
			h.Lifetime, h.Short = have.Lifetime, have.Short
		} else if ok {
			have.Lifetime, have.Short = h.Lifetime, h.Short
		}
		if ok && have.Asked > h.Asked {
			health[k] = have
			continue
		}
		health[k] = h
		delete(vetoes, k)
		if v, ok := mine[k]; ok {
			vetoes[k] = v
		}
	}
	for k := range was.Health {
		if _, ok := next.Health[k]; !ok {
			drop(k)
		}
	}
	for _, v := range was.Vetoes { // one without any answer beside it
		if _, ok := next.Health[v.Key]; !ok {
			drop(v.Key)
		}
	}
	for k, at := range m.Resets {
		if health[k].Asked < at {
			drop(k)
		}
	}
	out := make([]Veto, 0, len(vetoes))
	for _, v := range vetoes {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Veto) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return health, out
}

// mergeTargets lets the higher epoch win; what configuration dropped goes.
func mergeTargets(have, was, next []Target) []Target {
	out := map[targetKey]Target{}
	for _, t := range have {
		out[targetKey{t.Service, t.Family}] = t
	}
	keep := map[targetKey]bool{}
	for _, t := range next {
		k := targetKey{t.Service, t.Family}
		keep[k] = true
		if old, ok := out[k]; !ok || t.Epoch >= old.Epoch {
			out[k] = t
		}
	}
	for _, t := range was {
		if k := (targetKey{t.Service, t.Family}); !keep[k] {
			delete(out, k)
		}
	}
	list := make([]Target, 0, len(out))
	for _, t := range out {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b Target) int {
		if c := strings.Compare(a.Service, b.Service); c != 0 {
			return c
		}
		return a.Family - b.Family
	})
	return list
}

// askedEvery is how old the times of answers on the disk may become when nothing else changes.
const askedEvery = time.Minute

// worthWriting spares the disk: round trips and times of good answers change with each run.
func worthWriting(was, next Memory) bool {
	oldest := int64(0)
	quiet := func(m Memory) Memory {
		m = m.clone()
		for k, h := range m.Health {
			h.Asked, h.RTT, h.Goods, h.Logins = 0, 0, min(h.Goods, 1), 0
			m.Health[k] = h
		}
		for i := range m.Vetoes {
			m.Vetoes[i].Until = 0
		}
		m.Targets = slices.Clone(m.Targets)
		slices.SortFunc(m.Targets, func(a, b Target) int {
			if c := strings.Compare(a.Service, b.Service); c != 0 {
				return c
			}
			return a.Family - b.Family
		})
		if len(m.Targets) == 0 {
			m.Targets = nil
		}
		if len(m.Vetoes) == 0 {
			m.Vetoes = nil
		}
		return m
	}
	for k, h := range next.Health {
		oldest = max(oldest, h.Asked-was.Health[k].Asked)
	}
	if oldest > askedEvery.Milliseconds() || len(next.Vetoes) > 0 && vetoesMoved(was, next) {
		return true
	}
	return !reflect.DeepEqual(quiet(was), quiet(next))
}

// vetoesMoved says whether the life of a veto went on: another run must know.
func vetoesMoved(was, next Memory) bool { return !slices.Equal(was.Vetoes, next.Vetoes) }

// remember writes what the plan says the next run must know.
func (w *world) remember(ctx context.Context, was, next Memory, always bool) error {
	if !always && !worthWriting(was, next) {
		return nil
	}
	var m Memory
	err := w.State.UpdateJSON(ctx, memoryFile, &m, func() error {
		m = merge(m, was, next)
		return nil
	})
	if err == nil {
		run.Point(ctx, "edge.remembered")
	}
	return err
}
