package edge

import (
	"maps"
	"slices"
	"time"
)

// verdicts folds the answers into what is known of every key that configuration has.
func (p *planner) verdicts() {
	mem := &p.in.Memory
	p.standings = make(map[Key]standing, len(p.pre.homes))
	p.fresh = map[Key]bool{}
	before := map[Key]bool{}
	p.forget()
	for k := range p.pre.homes {
		if h, ok := mem.Health[k]; ok && !p.forgotten[k] {
			p.standings[k] = standing{health: h}
		}
	}
	for _, v := range mem.Vetoes {
		h, ok := p.pre.homes[v.Key]
		if !ok {
			continue
		}
		before[v.Key] = true
		if p.forgotten[v.Key] {
			continue
		}
		st := p.standings[v.Key]
		st.veto = p.judge.bounded(v, p.pre.services[h.service].Probe)
		p.standings[v.Key] = st
	}
	confirmed := setOf(p.in.Confirmed)
	for _, a := range p.in.Answers {
		h, ok := p.pre.homes[a.Key]
		if !ok || p.pre.services[h.service].Probe.Type == ProbeNone {
			continue
		}
		st := p.standings[a.Key]
		st = p.judge.fold(st, p.pre.services[h.service].Probe, a, confirmed[a.Key])
		p.standings[a.Key] = st
		if st.veto != nil && !before[a.Key] {
			p.fresh[a.Key] = true
		}
	}
	keys := slices.Collect(maps.Keys(before)) // of which there is something to say
	for k, st := range p.standings {
		if st.veto != nil && !before[k] {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		p.verdict(k, before[k])
		if v := p.standings[k].veto; v != nil {
			p.vetoes = append(p.vetoes, *v)
		}
	}
}

// resetsKept bounds how long a reset is told to others who remember.
const resetsKept = time.Hour

// forget keeps what an operator had forgotten, now and lately.
func (p *planner) forget() {
	p.forgotten = map[Key]bool{}
	for k, at := range p.in.Memory.Resets {
		if _, ok := p.pre.homes[k]; ok && p.in.Now-at < resetsKept.Milliseconds() {
			p.setReset(k, at)
		}
	}
	if p.in.Command != CommandReset {
		return
	}
	at := p.in.asked()
	for k, h := range p.pre.homes {
		s := &p.pre.services[h.service]
		done := p.in.Memory.Resets[k] == at // this run planned already, what is known now is new
		if !done && p.resets(s.Name, s.families[h.family].candidates[h.candidate].name) {
			p.setReset(k, at)
			p.forgotten[k] = true
		}
	}
}

func (p *planner) setReset(k Key, at int64) {
	if p.reset == nil {
		p.reset = map[Key]int64{}
	}
	p.reset[k] = at
}

// verdict says whether a veto came or went.
func (p *planner) verdict(k Key, before bool) {
	st := p.standings[k]
	home := p.pre.homes[k]
	s := &p.pre.services[home.service]
	c := &s.families[home.family].candidates[home.candidate]
	lapsed := st.veto != nil && !p.judge.live(st.veto)
	if lapsed {
		st.veto = nil
		p.standings[k] = st
	}
	step := Step{Service: s.Name, Candidate: c.name, Address: c.addr.String()}
	switch {
	case st.veto != nil:
		st.veto.Key = k
		if before {
			return
		}
		step.Kind, step.Reason = StepVeto, st.veto.Reason
	case !before:
		return
	case p.forgotten[k]:
		step.Kind, step.Reason = StepClear, "forgotten on request"+inBrackets(p.in.Ask.Owner)
	case lapsed || st.health.Misses > 0:
		step.Kind, step.Reason = StepClear, "its veto ran out and no probe renewed it"
	case s.Probe.Type == ProbeNone:
		step.Kind, step.Reason = StepClear, "it is not probed any more"
	default:
		step.Kind, step.Reason = StepClear, "it answers"
	}
	p.step(step)
}
