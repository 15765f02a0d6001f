package edge

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// retryAfter is between two questions to one candidate within a run.
const retryAfter = 200 * time.Millisecond

// ask probes every candidate of which no fresh answer is known, and compares the groups
// that are due; all at once, within bounds.
func (p *turn) ask(ctx context.Context) ([]Answer, map[string]Parity) {
	var (
		mu      sync.Mutex
		answers []Answer
		wg      sync.WaitGroup
		places  = make(chan struct{}, max(1, cmp.Or(p.Config.MaxConcurrent, 64)))
	)
	for _, t := range p.questions() {
		wg.Go(func() {
			for _, a := range p.question(ctx, t, places) {
				mu.Lock()
				answers = append(answers, a)
				mu.Unlock()
			}
		})
	}
	parity := map[string]Parity{}
	if p.in.Command == CommandRetarget && p.Parity != nil {
		for _, g := range p.Config.Parity {
			if last, ok := p.in.Memory.Parity[g.Name]; ok && p.in.Now/1000-last.At < int64(g.Every/time.Second) {
				continue
			}
			wg.Go(func() {
				found := p.Parity(ctx, g)
				mu.Lock()
				parity[g.Name] = found
				mu.Unlock()
			})
		}
	}
	wg.Wait()
	slices.SortStableFunc(answers, func(a, b Answer) int { return cmp.Compare(a.Key, b.Key) })
	return answers, parity
}

// questions are the targets to probe.
func (p *turn) questions() []ProbeTarget {
	only := setOf(p.in.Only)
	ended := map[Key]bool{} // a word that has run out is no reason to ask nobody
	for _, v := range p.in.Memory.Vetoes {
		ended[v.Key] = v.Until*1000 <= p.in.Now
	}
	var out []ProbeTarget
	for i := range p.pre.services {
		s := &p.pre.services[i]
		if only != nil && !only[s.Name] {
			continue
		}
		for _, t := range s.targets() {
			h, known := p.in.Memory.Health[t.Key]
			age := p.in.Now - h.Asked
			fresh := known && age >= 0 && age < freshFor(t.Probe).Milliseconds() && !ended[t.Key]
			if !fresh || p.bare || p.in.Command == CommandReset {
				out = append(out, t)
			}
		}
	}
	return out
}

// question asks one candidate until it is clear what it is: a miss is asked again, up to as
// often as a veto needs.
func (p *turn) question(ctx context.Context, t ProbeTarget, places chan struct{}) []Answer {
	st := standing{health: p.in.Memory.Health[t.Key]}
	for i := range p.in.Memory.Vetoes {
		if v := p.in.Memory.Vetoes[i]; v.Key == t.Key {
			st.veto = &v
		}
	}
	if p.in.Command == CommandReset {
		st = standing{}
	}
	var out []Answer
	for n := range max(t.Probe.Misses, t.Probe.Rise, 1) {
		if n > 0 && run.Pause(ctx, p.retry()) != nil {
			return out
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return out
		}
		a := p.probe(ctx, t)
		<-places
		out = append(out, a)
		j := judgment{now: p.Now().UnixMilli(), vetoFor: p.Config.vetoFor()}
		st = j.fold(st, t.Probe, a, false)
		if settled(st, t.Probe, a, j) {
			break
		}
	}
	return out
}

func (w *world) retry() time.Duration { return cmp.Or(w.again, retryAfter) }

// settled says whether another question would change nothing.
func settled(st standing, p Probe, a Answer, j judgment) bool {
	switch a.Outcome {
	case Miss:
		return j.live(st.veto)
	case Good:
		takes := a.Accepts || !p.Login
		return st.veto == nil && (takes && !st.health.Refusing || !takes && st.health.Refusing)
	case OutcomeUnknown:
	}
	return true
}

func (p *turn) probe(ctx context.Context, t ProbeTarget) Answer {
	bound, cancel := context.WithTimeout(ctx, t.Probe.Cap+time.Second)
	defer cancel()
	a := p.Prober.Probe(bound, t)
	a.Key = t.Key
	now := p.Now()
	if a.At == 0 {
		a.At = now.UnixMilli()
	}
	if a.Outcome == Miss {
		p.miss(t.Key, now)
	}
	return a
}

// miss notes when a candidate was first missed: what a move is measured from.
func (p *turn) miss(k Key, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.missed[k]; !ok {
		p.missed[k] = at
	}
}
