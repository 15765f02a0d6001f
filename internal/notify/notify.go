// Package notify tells people what the machine did: by a web hook, by a program of theirs,
// or by a notification service. Each target has a queue and a worker of its own, so that a
// slow one keeps nobody waiting, least of all the caller.
//
// Addresses and headers are secrets. No error repeats them, nor anything that a library or
// a far end wrote: an error says in words of ours what kind of thing went wrong.
package notify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

const (
	queueLimit = 100              // alerts that wait for one target
	closeLimit = 30 * time.Second // of Close, whatever its context allows
	attempts   = 3                // of one delivery, where another may help
)

// pauses are the times between attempts.
func pauses() [attempts - 1]time.Duration {
	return [...]time.Duration{time.Second, 3 * time.Second}
}

// Notifier implements edge.Alerts.
type Notifier struct {
	now     func() time.Time
	gap     time.Duration
	targets []*target
	ctx     context.Context    // of the deliveries
	stop    context.CancelFunc // ends them
	work    sync.WaitGroup
	closing sync.Once
	problem error // what Close found
}

// target is one place that alerts go to.
type target struct {
	name    string
	events  []string
	least   int
	timeout time.Duration
	send    func(context.Context, message) error
	pauses  [attempts - 1]time.Duration

	mu      sync.Mutex
	gates   map[gateKey]*gate
	queue   []message
	dropped int // because the queue was full, and not told yet
	lost    int // … ever
	failed  int
	last    error
	running bool
	closed  bool
	wake    chan struct{}
}

// New returns a notifier for the configuration; now is the clock of min_gap. Nothing is
// opened or started before the first alert.
func New(c edge.AlertsConfig, now func() time.Time) *Notifier {
	n := &Notifier{now: now, gap: c.MinGap}
	n.ctx, n.stop = context.WithCancel(context.Background())
	for _, t := range c.Targets {
		one := &target{
			name: t.Name, events: t.Events, least: rank(string(t.Level)), timeout: t.Timeout,
			send: sender(t), pauses: pauses(), gates: map[gateKey]*gate{}, wake: make(chan struct{}, 1),
		}
		if one.timeout <= 0 {
			one.timeout = edge.DefaultAlertTimeout
		}
		n.targets = append(n.targets, one)
	}
	return n
}

// sender is how a target of that type is reached.
func sender(t edge.AlertTarget) func(context.Context, message) error {
	switch t.Type {
	case edge.AlertWebhook:
		return newHook(t).send
	case edge.AlertCommand:
		return program(t.Command).send
	case edge.AlertService:
		return newService(t).send
	case edge.AlertTypeUnknown:
	}
	return func(context.Context, message) error { return errors.New("no such type of target") }
}

// rank orders the levels; what says nothing is info.
func rank(level string) int {
	switch edge.AlertLevel(level) {
	case edge.LevelWarning:
		return 1
	case edge.LevelCritical:
		return 2
	case edge.LevelInfo, edge.LevelUnknown:
	}
	return 0
}

// Alert queues an alert for each target that wants it and returns at once. After Close it
// does nothing.
func (n *Notifier) Alert(a edge.Alert) {
	now := n.now()
	if a.At.IsZero() {
		a.At = now
	}
	if a.Level == "" {
		a.Level = string(edge.LevelInfo)
	}
	a.Figures = finite(a.Figures)
	for _, t := range n.targets {
		if t.wants(a) {
			n.offer(t, a, now)
		}
	}
}

// finite is a copy without what JSON can't say.
func finite(figures map[string]float64) map[string]float64 {
	out := maps.Clone(figures)
	maps.DeleteFunc(out, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	return out
}

func (t *target) wants(a edge.Alert) bool {
	if rank(a.Level) < t.least {
		return false
	}
	for _, e := range t.events {
		if ok, err := path.Match(e, a.Kind); ok && err == nil {
			return true
		}
	}
	return len(t.events) == 0
}

func (n *Notifier) offer(t *target, a edge.Alert, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	if m, ok := t.pass(a, now, n.gap); ok {
		t.push(m)
	}
	n.run(t)
}

// push queues a message. The caller holds mu. Of a full queue the oldest of those that
// matter least goes.
func (t *target) push(m message) {
	if len(t.queue) >= queueLimit {
		t.queue = append(t.queue, m)
		worst := 0
		for i := range t.queue {
			if rank(t.queue[i].Level) < rank(t.queue[worst].Level) {
				worst = i
			}
		}
		t.queue = append(t.queue[:worst], t.queue[worst+1:]...)
		t.dropped++
		t.lost++
	} else {
		t.queue = append(t.queue, m)
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Close tells what was muted and not told yet, delivers what waits, and says what could
// not be delivered. It returns when that is done, soon after ctx ends, or after 30 s.
func (n *Notifier) Close(ctx context.Context) error {
	n.closing.Do(func() { n.problem = n.drain(ctx) })
	return n.problem
}

func (n *Notifier) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	for _, t := range n.targets {
		n.last(t)
	}
	done := make(chan struct{})
	go func() {
		n.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	n.stop()
	<-done
	var problems []error
	for _, t := range n.targets {
		problems = append(problems, t.trouble())
	}
	return errors.Join(problems...)
}

// last closes a target's queue behind the alerts that were muted and not told yet.
func (n *Notifier) last(t *target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.untold() {
		t.push(m)
	}
	t.closed = true
	n.run(t)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run starts a target's worker when there is something to do. The caller holds the target's mu.
func (n *Notifier) run(t *target) {
	if !t.running && len(t.queue) > 0 {
		t.running = true
		n.work.Go(func() { t.work(n.ctx) })
	}
}

// work delivers until the queue is closed and empty, or ctx ends.
func (t *target) work(ctx context.Context) {
	for ctx.Err() == nil {
		m, ok, closed := t.next()
		switch {
		case ok:
			if err := t.deliver(ctx, m); err != nil {
				t.mu.Lock()
				t.failed++
				t.last = err
				t.mu.Unlock()
			}
		case closed:
			return
		default:
			select {
			case <-t.wake:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (t *target) next() (m message, ok, closed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return m, false, t.closed
	}
	m, t.queue = t.queue[0], t.queue[1:]
	m.Dropped, t.dropped = t.dropped, 0
	return m, true, t.closed
}

// deliver tries until it is done, or another attempt would not help.
func (t *target) deliver(ctx context.Context, m message) error {
	for n := 0; ; n++ {
		err := t.once(ctx, m)
		var f *failure
		if err == nil || n == len(t.pauses) || !errors.As(err, &f) || !f.again {
			return err
		}
		timer := time.NewTimer(t.pauses[n])
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

func (t *target) once(ctx context.Context, m message) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	return t.send(ctx, m)
}

// trouble says what could not be delivered.
func (t *target) trouble() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.failed + t.lost + len(t.queue)
	switch {
	case n == 0:
		return nil
	case t.last != nil:
		return fmt.Errorf("alert target %s: %d not delivered: %w", t.name, n, t.last)
	case t.lost > 0:
		return fmt.Errorf("alert target %s: %d not delivered: its queue was full", t.name, n)
	}
	return fmt.Errorf("alert target %s: %d not delivered: no time was left", t.name, n)
}
