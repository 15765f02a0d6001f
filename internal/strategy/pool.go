package strategy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/tunnel"
)

// reachMax tunnels ask the sources at once: a site need not see sixteen of us.
const reachMax = 3

// candidate is an endpoint to be tried.
type candidate struct {
	row         egress.Row
	quarantined bool
}

// candidates are the endpoints of the last pools in the configured order, then those of
// profiles on this machine, each once, and quarantined ones last.
func (s *Strategies) candidates(in egress.RecoveryInput) []candidate {
	names := map[egress.PoolName]string{
		egress.PoolNameForeign: egress.PoolForeign, egress.PoolNameAll: egress.PoolAll, egress.PoolNameWorking: egress.PoolWorking,
	}
	bad := map[string]bool{}
	for _, q := range in.Quarantine {
		bad[q.Endpoint] = true
	}
	var first, last []candidate
	seen := map[string]bool{}
	order := []string{}
	for _, n := range s.o.Config.Order {
		order = append(order, names[n])
	}
	for _, n := range append(order, egress.PoolSources) {
		i := slices.IndexFunc(in.Pools, func(p egress.Pool) bool { return p.Name == n })
		if i < 0 {
			continue
		}
		for _, r := range in.Pools[i].Rows {
			if seen[r.Endpoint] {
				continue
			}
			seen[r.Endpoint] = true
			if bad[r.Endpoint] {
				last = append(last, candidate{r, true})
			} else {
				first = append(first, candidate{r, false})
			}
		}
	}
	return append(first, last...)
}

func (s *Strategies) saysLastKnown(in egress.RecoveryInput) string {
	list := s.candidates(in)
	q := 0
	for _, c := range list {
		if c.quarantined {
			q++
		}
	}
	text := fmt.Sprintf("would try %d endpoints of the last pools, %d at once, %d quarantined ones last", len(list), s.o.Config.Parallel, q)
	if len(list) > 0 {
		text += ", " + list[0].row.Endpoint + " first"
	}
	return text
}

// race is one run of the last-known-pool strategy.
type race struct {
	s     *Strategies
	busy  func(pair string) bool
	taken map[string]bool // pairs of lanes when the run began
	reach *semaphore.Weighted

	mu    sync.Mutex
	won   *tunnel.Way
	tally map[string]int
	last  error
}

// lastKnown opens tunnels through endpoints of the last pools, several at once, and takes
// the first by which a source answers.
func (s *Strategies) lastKnown(ctx context.Context, in egress.RecoveryInput) (access, error) {
	list := s.candidates(in)
	if len(list) == 0 {
		return access{}, errors.New("there is no pool yet")
	}
	// The question must be answered as long as the tunnel is open, which is after this.
	looking, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &race{
		s: s, busy: s.o.Busy(looking), taken: map[string]bool{}, tally: map[string]int{},
		reach: semaphore.NewWeighted(reachMax),
	}
	for _, i := range in.Interfaces {
		r.taken[i.Pair] = i.Pair != ""
	}
	r.run(ctx, list)
	if r.won == nil {
		stop()
		return access{}, r.failure(len(list))
	}
	detail := fmt.Sprintf("through %s", r.won.Endpoint())
	return access{way: r.won.DialContext, detail: detail, close: func() error {
		defer stop()
		return r.won.Close()
	}}, nil
}

func (r *race) run(ctx context.Context, list []candidate) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	room := semaphore.NewWeighted(int64(max(r.s.o.Config.Parallel, 1)))
	var wg sync.WaitGroup
	for _, c := range list {
		if room.Acquire(ctx, 1) != nil {
			break
		}
		wg.Go(func() {
			defer room.Release(1)
			if way := r.try(ctx, c); way != nil {
				cancel()
			}
		})
	}
	wg.Wait()
}

// try takes one candidate as far as it gets; nil = it is not the winner.
func (r *race) try(ctx context.Context, c candidate) *tunnel.Way {
	d, err := r.s.o.Describe(c.row.Path)
	switch {
	case err != nil:
		return r.note("unusable", err)
	case d.Reason != "":
		return r.note("unusable", errors.New(d.Reason))
	case d.Endpoint != c.row.Endpoint:
		return r.note("unusable", fmt.Errorf("%s holds endpoint %s now", c.row.Path, d.Endpoint))
	case r.taken[d.Pair]:
		return r.note("in use by a lane", nil)
	}
	o := r.s.o
	way, err := tunnel.Open(ctx, tunnel.WayOptions{
		Control: o.Control, Handshake: o.Test.HandshakeTimeout, Targets: o.Test.Targets,
		Resolvers: o.Config.Resolvers, Busy: r.busy,
	}, egress.TestTarget{Endpoint: c.row.Endpoint, Path: c.row.Path, Pair: d.Pair})
	switch {
	case errors.Is(err, tunnel.ErrBusy):
		return r.note("in use by a lane", nil)
	case ctx.Err() != nil && err != nil:
		return nil
	case err != nil:
		return r.note("without an answer", err)
	}
	if err = r.reach.Acquire(ctx, 1); err == nil {
		err = r.s.prove(ctx, dial.Func(way.DialContext))
		r.reach.Release(1)
	}
	r.mu.Lock()
	if err == nil && r.won == nil {
		r.won = way
		r.mu.Unlock()
		return way
	}
	r.mu.Unlock()
	_ = way.Close() // never fails
	if err != nil && ctx.Err() == nil {
		return r.note("up without access", fmt.Errorf("%s: %w", c.row.Endpoint, err))
	}
	return nil
}

func (r *race) note(what string, err error) *tunnel.Way {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally[what]++
	if err != nil && (what == "up without access" || r.last == nil) {
		r.last = err
	}
	return nil
}

func (r *race) failure(n int) error {
	text := fmt.Sprintf("%d endpoints of the last pools", n)
	tried := 0
	for _, what := range []string{"without an answer", "up without access", "in use by a lane", "unusable"} {
		if r.tally[what] > 0 {
			text += fmt.Sprintf(", %d %s", r.tally[what], what)
			tried += r.tally[what]
		}
	}
	if tried < n {
		text += fmt.Sprintf(", %d not tried to the end", n-tried)
	}
	if r.last != nil {
		return fmt.Errorf("%s: %w", text, r.last)
	}
	return errors.New(text)
}
