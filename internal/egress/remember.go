package egress

import (
	"context"
	"iter"
	"maps"
	"reflect"

	"github.com/shunt-net/shunt/internal/state"
)

// remember writes what the plan says the next run must know, onto what other runs wrote
// meanwhile: only the lanes that this run judged and the keys that it changed.
func (p *pass) remember(ctx context.Context) error {
	was, next := p.stored, p.plan.Next
	if next.Lanes == nil || !p.heal && !worthWriting(was, next) {
		p.handOn(nil)
		return nil
	}
	var m Memory
	err := p.State.UpdateJSON(ctx, memoryFile, &m, func() error {
		m = m.clone()
		for lane, mem := range next.Lanes {
			if _, busy := p.in.Busy[lane]; !busy && mem != was.Lanes[lane] {
				m.Lanes[lane] = mem
			}
		}
		state.Carry(m.Lends, was.Lends, next.Lends)
		state.Carry(m.Holds, was.Holds, next.Holds)
		state.Carry(m.Failures, was.Failures, next.Failures)
		state.Carry(m.PoolSeqs, was.PoolSeqs, next.PoolSeqs)
		if next.UplinkDown != was.UplinkDown {
			m.UplinkDown, m.UplinkSince = next.UplinkDown, next.UplinkSince
		}
		if !next.DoubtAt.Equal(was.DoubtAt) {
			m.DoubtAt = next.DoubtAt
		}
		if next.LastSize != was.LastSize {
			m.LastSize = next.LastSize
		}
		prune(m)
		return nil
	})
	if p.handOn(nil); err != nil {
		p.handOn(&next)
	}
	return err
}

// handOn leaves what a repair could not write to the next one.
func (p *pass) handOn(m *Memory) {
	if p.in.Command == "repair" {
		p.unsaved = m
	}
}

// worthWriting spares the disk: round trips and counts of good rounds change each second.
func worthWriting(was, next Memory) bool {
	quiet := func(m Memory) Memory {
		m = m.clone()
		m.Modes = ModeMemory{} // written where they are decided
		for n, l := range m.Lanes {
			l.RTT, l.Loss = 0, 0
			if !l.Down {
				l.Goods = 0
			}
			m.Lanes[n] = l
		}
		return m
	}
	return !reflect.DeepEqual(quiet(was), quiet(next))
}

// prune bounds the maps that grow with time.
func prune(m Memory) {
	const keep = 512
	for len(m.PoolSeqs) > keep {
		oldest := int64(0)
		for k := range m.PoolSeqs {
			if oldest == 0 || k < oldest {
				oldest = k
			}
		}
		delete(m.PoolSeqs, oldest)
	}
}

func mapsKeys[V any](m map[string]V) iter.Seq[string] { return maps.Keys(m) }
