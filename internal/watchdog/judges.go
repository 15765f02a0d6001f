package watchdog

import (
	"context"
	"sync"

	"github.com/shunt-net/shunt/internal/edge"
)

// benches is how many judgments may be under way: one that moves something waits for the
// disk and for far replicas in the end, and others must not wait for it.
const benches = 32

// judges hand answers to the domain, at once where they can. What comes while all of them
// are busy is judged together by the next.
type judges struct {
	ctx     context.Context // never ends: the parts of a judgment have deadlines of their own
	judge   func(context.Context, []edge.Answer) (edge.Result, error)
	done    func(edge.Result, error)
	changed func() // something that a successor must know

	mu      sync.Mutex
	inbox   []edge.Answer
	sitting int
	work    sync.WaitGroup
}

// hear takes one answer and judges it in this goroutine, unless enough others do.
func (j *judges) hear(a edge.Answer) {
	if a.Outcome == edge.OutcomeUnknown {
		return
	}
	j.mu.Lock()
	j.inbox = append(j.inbox, a)
	if j.sitting >= benches {
		j.mu.Unlock()
		return
	}
	j.sitting++
	j.work.Add(1)
	defer j.work.Done()
	for len(j.inbox) > 0 {
		batch := j.inbox
		j.inbox = nil
		j.mu.Unlock()
		res, err := j.judge(j.ctx, batch)
		if res.Plan.Changes() || res.Joined || err != nil {
			j.changed()
		}
		j.done(res, err)
		j.mu.Lock()
	}
	j.sitting--
	j.mu.Unlock()
}

// wait waits until all that was heard is judged.
func (j *judges) wait() { j.work.Wait() }
