package egress

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/health"
)

// guilty says whether the endpoint, and not the router, is why the lane is down. A gone
// interface or a missing peer is no fault of a server.
func (r *repair) guilty(l LaneView) bool {
	switch r.reason[l.Name] {
	case health.ReasonNoDevice, health.ReasonNoPeer:
		return false
	case health.ReasonNone, health.ReasonSilent, health.ReasonNoData, health.ReasonMTU, health.ReasonChoked:
	}
	return l.Endpoint != ""
}

// replaceable says whether another endpoint can help the lane.
func (r *repair) replaceable(l LaneView) bool {
	return r.reason[l.Name] != health.ReasonNoDevice
}

// recorded says whether the lane's endpoint stands in quarantine already, without a
// replacement: an earlier run recorded it and found nothing better.
func (r *repair) recorded(l LaneView) bool {
	for _, q := range r.in.Quarantine {
		if q.Endpoint == l.Endpoint && q.Slot == l.Name && q.Replacement == "" && !r.clearedByAny(q.Endpoint) {
			return true
		}
	}
	return false
}

func (r *repair) clearedByAny(endpoint string) bool {
	for _, p := range r.in.Pools {
		if _, kept := r.elig.quarantined(p, endpoint); !kept && p.Name != PoolWorking {
			return true
		}
	}
	return false
}

// quarantine records each failed endpoint, once, before anything replaces it.
func (r *repair) quarantine(downs []LaneView) {
	for _, l := range downs {
		if !r.guilty(l) || r.recorded(l) {
			continue
		}
		r.plan.add(Step{Kind: StepQuarantine, Lane: l.Name, From: l.Endpoint, Reason: string(r.reason[l.Name])})
		if r.in.Lost[l.Name] != "" {
			continue // it doesn't count twice because the next run records it
		}
		mem := r.in.Memory.Lanes[l.Name]
		hold := r.in.Memory.Holds[l.Endpoint]
		r.plan.Next.Holds[l.Endpoint] = failedAgain(hold, served(mem, r.in.Now), r.in.Now, r.in.Config.Repair)
	}
}

// searched says whether a fruitless search for this lane was so recent that another would
// only repeat it.
func (r *repair) searched(l LaneView) bool {
	at := r.in.Memory.Lanes[l.Name].SearchedAt
	since := r.in.Now.Sub(at)
	if at.IsZero() || since < 0 || since >= r.in.Config.Repair.RetryAfter {
		return false
	}
	return !slices.ContainsFunc(r.in.Pools, func(p Pool) bool { return p.Mtime.After(at) && !p.Mtime.After(r.in.Now) })
}

func (r *repair) markSearched(lane string) {
	mem := r.plan.Next.Lanes[lane]
	mem.SearchedAt = r.in.Now
	r.plan.Next.Lanes[lane] = mem
}

// candidates are the rows that may replace an endpoint, in pool order, each once; those
// that would crowd one prefix come last, since three good lanes beat none.
func (r *repair) candidates(downs []LaneView) {
	if r.cands != nil {
		return
	}
	r.cands = []Row{}
	var crowded []Row
	seen := map[string]bool{}
	for _, p := range r.in.Pools {
		for _, row := range p.Rows {
			if seen[row.Endpoint] || row.Pair == "" || r.used.has(row) {
				continue
			}
			if code, _ := r.elig.judge(p, row); code != "" {
				continue
			}
			if slices.ContainsFunc(downs, func(l LaneView) bool { return l.Endpoint == row.Endpoint && r.guilty(l) }) {
				continue
			}
			if !slices.ContainsFunc(downs, func(l LaneView) bool { return r.carries(l, row) }) {
				continue
			}
			seen[row.Endpoint] = true
			if limit := r.in.Config.Rebalance.MaxPerPrefix; limit > 0 && r.used.prefixes[prefixOf(row.Endpoint)] >= limit {
				crowded = append(crowded, row)
				continue
			}
			r.cands = append(r.cands, row)
		}
	}
	r.cands = append(r.cands, crowded...)
}

// lastBatch bounds what is tried at once when no lane is left.
const lastBatch = 256

func (r *repair) anyHealthy() bool {
	for _, v := range r.judged {
		if v != health.Down {
			return true
		}
	}
	return false
}

// batch is the next candidates to be proven at once.
func (r *repair) batch(lanes int) []Row {
	c := r.in.Config.Repair
	n := max(c.Parallel, lanes+1)
	end := min(r.next+n, len(r.cands), max(c.Limit, n))
	if end <= r.next && !r.anyHealthy() { // with no lane left, whatever there is has to be tried
		end = min(r.next+lastBatch, len(r.cands))
	}
	if end <= r.next {
		return nil
	}
	return r.cands[r.next:end]
}

// replace finds each down lane another endpoint: prove several at once, take the first of
// the pool's order that passes, check it on the lane; else the next, up to a limit.
func (r *repair) replace(downs []LaneView) {
	var lanes []LaneView
	for _, l := range downs {
		switch {
		case r.in.Lost[l.Name] != "": // without its record the next rebalance would bring the endpoint back
			r.plan.hold(l.Name, HeldDamage, "its failure could not be recorded, and nothing replaces an endpoint before that: %s", r.in.Lost[l.Name])
		case !r.replaceable(l):
			r.plan.hold(l.Name, HeldNoCandidate, "its interface %s is gone: no endpoint can help; start the service that owns it", r.iface(l.Name))
		case r.searched(l):
			r.plan.hold(l.Name, HeldWaiting, "no candidate passed at %s; the next search follows after %s or with a new pool",
				stamp(r.in.Memory.Lanes[l.Name].SearchedAt), r.in.Config.Repair.RetryAfter)
		default:
			lanes = append(lanes, l)
		}
	}
	if len(lanes) == 0 {
		return
	}
	r.candidates(downs)
	r.recallFailures()
	r.fill(lanes)
}

// recallFailures takes what earlier steps of this run showed about endpoints.
func (r *repair) recallFailures() {
	for _, s := range r.in.Swaps {
		if s.OK {
			continue
		}
		r.failed[s.Endpoint] = true
		if strings.HasPrefix(s.Reason, strictCheck) { // not what the router itself failed to do
			r.plan.Next.Holds[s.Endpoint] = refused(r.in.Memory.Holds[s.Endpoint], r.in.Now, r.in.Config.Repair)
		}
	}
}

// fill proves batches until every lane has its endpoint or the candidates end.
func (r *repair) fill(lanes []LaneView) {
	open := slices.Clone(lanes)
	tries := map[string]int{}
	for len(open) > 0 {
		open = r.place(open, tries)
		if len(open) == 0 {
			return
		}
		batch := r.batch(len(open))
		if len(batch) == 0 {
			break
		}
		r.plan.add(Step{Kind: StepProve, Endpoints: endpoints(batch), Reason: "candidates are proven in process before a lane is touched"})
		r.next += len(batch)
		pending := false
		for _, c := range batch {
			proof, ok := r.in.Proofs[c.Endpoint]
			pending = pending || !ok
			if ok && proof.Reason == "" {
				r.proven = append(r.proven, c)
			}
		}
		if pending {
			r.assume(open, batch)
			return
		}
	}
	empty := r.elig.filterEmpty()
	r.spent = !empty && r.next >= len(r.cands) && !slices.ContainsFunc(r.proven, func(c Row) bool {
		return slices.ContainsFunc(open, func(l LaneView) bool { return r.carries(l, c) })
	})
	for _, l := range open {
		if empty {
			r.plan.hold(l.Name, HeldFilter, "rebalance.allow and rebalance.deny leave no endpoint; nothing was touched")
			r.markSearched(l.Name)
			continue
		}
		r.plan.hold(l.Name, HeldNoCandidate, "%s; nothing was touched", r.noneBecause(l))
		r.markSearched(l.Name)
	}
}

func (r *repair) noneBecause(l LaneView) string {
	if r.next == 0 {
		return "no pool has an eligible endpoint left"
	}
	return fmt.Sprintf("none of %d candidates passed", r.next)
}

// place gives proven candidates to lanes, and returns the lanes that are still open. A
// swap whose outcome isn't known yet ends the plan for its lane.
func (r *repair) place(lanes []LaneView, tries map[string]int) []LaneView {
	var open []LaneView
	for _, l := range lanes {
		if !r.placeOne(l, tries) {
			open = append(open, l)
		}
	}
	return open
}

func (r *repair) placeOne(l LaneView, tries map[string]int) (settled bool) {
	for {
		i := slices.IndexFunc(r.proven, func(c Row) bool { return r.carries(l, c) })
		if i < 0 {
			return false
		}
		if tries[l.Name] >= r.in.Config.Repair.SwapLimit {
			r.plan.hold(l.Name, HeldFailed, "%d endpoints were tried on it and none passed the strict check", tries[l.Name])
			r.markSearched(l.Name)
			return true
		}
		c := r.proven[i]
		outcome, known := r.outcome(l.Name, c.Endpoint)
		if !known && r.failed[c.Endpoint] || r.used.has(c) && r.used.endpoints[c.Endpoint] != l.Name {
			r.proven = slices.Delete(r.proven, i, i+1) // failed on another lane, or taken meanwhile
			continue
		}
		r.proven = slices.Delete(r.proven, i, i+1)
		tries[l.Name]++
		r.plan.add(Step{
			Kind: StepSwap, Lane: l.Name, From: l.Endpoint, To: c.Endpoint, Path: c.Path, Pair: c.Pair,
			Reason: fmt.Sprintf("rank %d of its pool, proven in process", c.Rank),
		})
		if !known {
			r.used.add(l.Name, c.Endpoint, c.Pair)
			r.goHomeIf(l.Name, "the swap to "+c.Endpoint+" passes its strict check")
			return true
		}
		if outcome.OK {
			r.settle(l, c)
			return true
		}
	}
}

// settle books a lane that carries its new endpoint and passed.
func (r *repair) settle(l LaneView, c Row) {
	r.used.drop(l.Endpoint, l.Pair)
	r.used.add(l.Name, c.Endpoint, c.Pair)
	r.judged[l.Name] = health.Up
	r.plan.Next.Lanes[l.Name] = LaneMemory{Since: r.in.Now, State: string(health.Up)}
	if at, placed := r.where[l.Name]; placed && at != l.Name && at != "direct" {
		r.goHomeClass(l.Name, "the lane is repaired")
	}
	r.lend() // classes that found no lender before may have one now
}

// goHomeIf shows in a dry run what follows when a swap passes.
func (r *repair) goHomeIf(lane, assumed string) {
	if at, placed := r.where[lane]; placed && at != lane && at != "direct" {
		r.plan.add(Step{Kind: StepReturn, Class: lane, From: at, To: lane, Reason: "the lane is repaired", If: assumed})
	}
}

// assume shows what follows when the first candidates pass.
func (r *repair) assume(lanes []LaneView, batch []Row) {
	batch = slices.Clone(batch)
	for _, l := range lanes {
		i := slices.IndexFunc(batch, func(c Row) bool { return r.carries(l, c) })
		if i < 0 {
			continue
		}
		c := batch[i]
		batch = slices.Delete(batch, i, i+1)
		r.plan.add(Step{
			Kind: StepSwap, Lane: l.Name, From: l.Endpoint, To: c.Endpoint, Path: c.Path, Pair: c.Pair,
			Reason: "first in pool order", If: c.Endpoint + " passes; else the next one that does",
		})
		r.goHomeIf(l.Name, "the swap passes its strict check")
	}
}

func (r *repair) outcome(lane, endpoint string) (SwapOutcome, bool) {
	for _, s := range r.in.Swaps {
		if s.Lane == lane && s.Endpoint == endpoint {
			return s, true
		}
	}
	return SwapOutcome{}, false
}

func (r *repair) iface(lane string) string {
	l, _ := r.in.Config.Lane(lane)
	return l.Interface
}

// served is how long the lane's endpoint gave good service.
func served(m LaneMemory, now time.Time) time.Duration {
	if m.Since.IsZero() {
		return 0
	}
	return max(now.Sub(m.Since), 0)
}
