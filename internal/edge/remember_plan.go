package edge

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// remember makes what the next run must know.
func (p *planner) remember() {
	n := &p.plan.Next
	n.Vetoes = p.vetoes
	n.Health = make(map[Key]Health, len(p.standings))
	for k, st := range p.standings {
		if st.health != (Health{}) {
			n.Health[k] = st.health
		}
	}
	n.Resets = p.reset
	p.rememberTargets()
	p.rememberAlerts()
	p.plan.Digest = p.digest()
}

func (p *planner) rememberTargets() {
	for si := range p.pre.services {
		s := &p.pre.services[si]
		for fi := range s.families {
			f, d := &s.families[fi], &p.decided[si][fi]
			old := p.targets[targetKey{s.Name, f.n}]
			if !d.to.IsValid() {
				continue
			}
			t := Target{Service: s.Name, Family: f.n, To: d.to, Epoch: d.epoch, Since: p.in.Now / 1000}
			switch {
			case old == nil:
			case old.To == d.to:
				t.Since = old.Since
			case p.self >= 0 && p.in.Views[p.self].Error != "": // its flows are not flushed yet
				t.To, t.Since = old.To, old.Since
			}
			p.plan.Next.Targets = append(p.plan.Next.Targets, t)
		}
	}
}

// rememberAlerts keeps which complaints were told. What is not complained of any more is
// forgotten, so that it is told again when it comes back.
func (p *planner) rememberAlerts() {
	now := p.in.Now / 1000
	for _, note := range p.plan.Notes {
		if !note.Loud {
			continue
		}
		if p.plan.Next.Alerts == nil {
			p.plan.Next.Alerts = map[string]AlertAt{}
		}
		at, ok := p.in.Memory.Alerts[note.ID()]
		if !ok || now-at.At >= int64(remindAfter.Seconds()) || at.At > now {
			at = AlertAt{At: now}
		}
		p.plan.Next.Alerts[note.ID()] = at
	}
}

// ID tells complaints apart: CODE/OBJECT.
func (n Note) ID() string { return n.Code + "/" + n.Object }

// digest is equal on two machines that act on one configuration, see the same targets and
// leave the same candidates out.
func (p *planner) digest() string {
	b := []byte(p.pre.digest + " " + p.opinion())
	for si := range p.pre.services {
		for fi := range p.pre.services[si].families {
			d := &p.decided[si][fi]
			b = append(b, '\n')
			b = append(b, p.pre.services[si].Name...)
			b = append(b, ' ')
			b = strconv.AppendInt(b, int64(p.pre.services[si].families[fi].n), 10)
			b = append(b, ' ')
			b = append(b, text(d.to)...)
			b = append(b, ' ')
			b = strconv.AppendUint(b, d.epoch, 10)
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6])
}

// clone is a deep copy of what plans change.
func (m Memory) clone() Memory {
	m.Targets = slices.Clone(m.Targets)
	m.Vetoes = slices.Clone(m.Vetoes)
	m.Health = cloneMap(m.Health)
	m.Parity = cloneMap(m.Parity)
	m.Alerts = cloneMap(m.Alerts)
	m.Doubts = cloneMap(m.Doubts)
	m.Resets = cloneMap(m.Resets)
	return m
}

func cloneMap[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	maps.Copy(c, m)
	return c
}

// splitKey is the service and the candidate of a key.
func splitKey(k Key) (service, candidate string) {
	parts := strings.Split(string(k), "/")
	if len(parts) != 4 {
		return string(k), ""
	}
	return parts[0], parts[1]
}
