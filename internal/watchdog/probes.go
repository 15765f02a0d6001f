package watchdog

import (
	"context"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/due"
	"github.com/shunt-net/shunt/internal/edge"
)

const (
	defaultConcurrent = 64
	fewest            = 5 * time.Millisecond   // of a pulse
	most              = 100 * time.Millisecond // …
	swift             = 250 * time.Millisecond // a task with such an interval goes on while the run ends
	finishLimit       = time.Second            // for probes under way when the run ends
)

// task is one key that is asked at its own interval.
type task struct {
	due.Entry
	target edge.ProbeTarget
	phase  float64   // of its first interval, so that thousands don't stay in step
	silent bool      // missed last time
	began  time.Time // under way since; zero = not
	hurry  bool      // wanted again at once
}

// probes asks every task at its interval. One goroutine keeps the time; each probe has one
// for as long as it lasts, and there are at most max. Those who were silent last time get
// at most half of the places, so that they can't keep the others waiting.
type probes struct {
	ask   func(context.Context, edge.ProbeTarget) edge.Answer
	heard func(a edge.Answer, began time.Time) // in the probe's goroutine, when its place is free again
	max   int
	pulse time.Duration // the time is looked at least so often, to notice when we did not run

	mu      sync.Mutex
	tasks   map[edge.Key]*task
	due     due.Queue[*task]
	ready   []*task
	quiet   []*task // … that were silent last time
	running int
	silent  int       // of them
	next    time.Time // when the timekeeper wakes
	stalls  stalls
	ending  time.Time // nothing slow begins any more; zero = not ending
	stopped bool
	wake    chan struct{}
	ended   chan struct{} // a probe came to its end
	work    sync.WaitGroup
}

func newProbes(targets []edge.ProbeTarget, limit int, ask func(context.Context, edge.ProbeTarget) edge.Answer, heard func(edge.Answer, time.Time)) *probes {
	if limit <= 0 {
		limit = defaultConcurrent
	}
	p := &probes{
		ask: ask, heard: heard, max: limit, pulse: most, tasks: make(map[edge.Key]*task, len(targets)),
		wake: make(chan struct{}, 1), ended: make(chan struct{}, 1),
	}
	for i, t := range targets {
		p.tasks[t.Key] = &task{target: t, phase: float64(i+1) / float64(len(targets))}
		p.pulse = max(fewest, min(p.pulse, t.Probe.Cap/4))
	}
	return p
}

// run asks until ctx ends and then waits for what is under way.
func (p *probes) run(ctx context.Context) {
	p.mu.Lock()
	now := clock()
	p.stalls.sleep(now)
	for _, t := range p.tasks {
		p.due.Set(t, now)
	}
	p.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(p.step(ctx))
		select {
		case <-timer.C:
		case <-p.wake:
		case <-ctx.Done():
		}
	}
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.work.Wait()
}

// step begins what is due and says how long to sleep.
func (p *probes) step(ctx context.Context) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := clock()
	p.stalls.woke(now)
	t, ok := p.due.First()
	for ; ok && !t.When().After(now); t, ok = p.due.First() {
		p.due.Remove(t)
		p.queue(t)
	}
	p.launch(ctx)
	p.next = now.Add(p.pulse)
	if ok && t.When().Before(p.next) {
		p.next = t.When()
	}
	p.stalls.sleep(p.next)
	return p.next.Sub(now)
}

// queue makes a task wait for its place.
func (p *probes) queue(t *task) {
	switch {
	case !p.ending.IsZero() && t.target.Probe.Interval > swift:
	case t.silent:
		p.quiet = append(p.quiet, t)
	default:
		p.ready = append(p.ready, t)
	}
}

// launch fills the free places. The caller holds mu.
func (p *probes) launch(ctx context.Context) {
	for p.running < p.max && !p.stopped {
		var t *task
		switch {
		case len(p.ready) > 0:
			t, p.ready = p.ready[0], p.ready[1:]
		case len(p.quiet) > 0 && p.silent < max(1, p.max/2):
			t, p.quiet = p.quiet[0], p.quiet[1:]
			p.silent++
		default:
			return
		}
		p.running++
		t.began, t.hurry = clock(), false
		p.work.Add(1)
		go p.probe(ctx, t, t.silent)
	}
}

// probe asks one candidate once.
func (p *probes) probe(ctx context.Context, t *task, silent bool) {
	defer p.work.Done()
	began := clock()
	a := p.ask(ctx, t.target)
	now := clock()
	p.mu.Lock()
	if a.Outcome == edge.Miss && (ctx.Err() != nil || !a.Refused && p.stalls.spoil(began, now, t.target.Probe.Cap)) {
		a.Outcome, a.Reason = edge.OutcomeUnknown, "asked by a process that did not run"
	}
	p.running--
	if silent {
		p.silent--
	}
	if a.Outcome != edge.OutcomeUnknown {
		t.silent = a.Outcome == edge.Miss
	}
	p.again(t, began, now)
	p.launch(ctx)
	p.mu.Unlock()
	select {
	case p.ended <- struct{}{}:
	default:
	}
	p.heard(a, began)
}

// again plans the next probe of a task. The caller holds mu.
func (p *probes) again(t *task, began, now time.Time) {
	pause := t.target.Probe.Interval
	if t.phase > 0 {
		pause, t.phase = time.Duration(float64(pause)*t.phase), 0
	}
	when := began.Add(pause)
	if t.hurry || when.Before(now) {
		when = now
	}
	t.began = time.Time{}
	p.due.Set(t, when)
	p.ring(when)
}

// ring wakes the timekeeper when it would sleep for too long.
func (p *probes) ring(when time.Time) {
	if when.Before(p.next) {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// now asks one key as soon as may be.
func (p *probes) now(k edge.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.tasks[k]
	switch {
	case !ok:
	case !t.began.IsZero():
		t.hurry = true
	case t.Queued():
		p.due.Set(t, clock())
		p.ring(t.When())
	}
}

// finish begins nothing slow any more and waits for the probes that are under way, but not
// for those of candidates that were silent before: nothing new comes of them.
func (p *probes) finish() {
	p.mu.Lock()
	p.ending = clock()
	p.mu.Unlock()
	limit := time.NewTimer(finishLimit)
	defer limit.Stop()
	for p.open() {
		select {
		case <-p.ended:
		case <-limit.C:
			return
		}
	}
}

// open says whether a probe is under way that may tell something new.
func (p *probes) open() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tasks {
		if !t.began.IsZero() && !t.silent && t.began.Before(p.ending) {
			return true
		}
	}
	return false
}

// news is the longest delay of ours since the last call, where people should hear of it.
func (p *probes) news() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stalls.news()
}

// longest is for how long we did not run at a stretch.
func (p *probes) longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stalls.longest
}

// runOnce asks every task once.
func (p *probes) runOnce(ctx context.Context) {
	p.mu.Lock()
	p.ending = clock() // nobody is asked again
	p.next = p.ending
	for _, t := range p.tasks {
		p.ready = append(p.ready, t)
	}
	p.launch(ctx)
	p.mu.Unlock()
	p.work.Wait()
}
