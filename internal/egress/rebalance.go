package egress

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// rebalance builds the plan of one rebalance.
type rebalance struct {
	in      *Input
	plan    Plan
	elig    eligibility
	failed  map[string]string // endpoint -> why it did not pass in this run
	current map[string]slot   // lane -> what it carries, after the swaps that are done
	tries   map[string]int
	where   map[string]string
}

type slot struct{ endpoint, pair, identity string }

// move is one lane's way to another endpoint.
type move struct {
	lane LaneView
	row  Row
}

// PlanRebalance places the best endpoints: the first unique ones by rank, the foreign pool
// before the whole one, without quarantined ones. A lane whose endpoint is among them stays
// as it is. It is pure, and is called again with the results of proofs and swaps.
func PlanRebalance(in Input) Plan {
	b := &rebalance{
		in: &in, elig: newEligibility(&in), failed: map[string]string{}, current: map[string]slot{}, tries: map[string]int{},
		where: cloneMap(in.Plane.Classes),
	}
	b.plan = Plan{Command: "rebalance", Next: in.Memory.clone()}
	setAside(&in, &b.plan.Next)
	tidyHolds(&in, &b.plan.Next)
	if !b.usablePools() {
		return b.plan
	}
	b.recall()
	want := b.desired()
	if len(want) == 0 {
		b.plan.hold("pool", b.emptyCode(), "no endpoint is eligible: the lanes stay as they are, and nothing goes direct")
		return b.plan
	}
	moves := b.moves(want)
	// A first plan is made before anybody looked at the uplink; that it moves lanes is why one looks.
	if len(moves) > 0 && in.Uplink != nil && uplinkOf(&in) == uplinkDown {
		b.plan.hold("lanes", HeldUplinkDown, "the uplink itself is down: no lane is moved")
		return b.plan
	}
	if b.prove(moves) {
		b.swap(moves)
	}
	return b.plan
}

func (b *rebalance) usablePools() bool {
	for _, p := range b.in.Pools {
		if p.Name != PoolWorking && p.Error != "" {
			b.plan.hold(p.Name, HeldDamage, "%s", p.Error)
		}
	}
	if slices.ContainsFunc(b.in.Pools, func(p Pool) bool { return p.Name != PoolWorking && p.Error == "" }) {
		return true
	}
	b.plan.hold("pool", HeldNoPool, "there is no strict pool to place from; run `shunt egress refresh`")
	return false
}

// recall replays what this run has shown so far, and keeps those steps in the plan.
func (b *rebalance) recall() {
	var proven []string
	for e, p := range b.in.Proofs {
		proven = append(proven, e)
		if p.Reason != "" {
			b.failed[e] = p.Reason
		}
	}
	if len(proven) > 0 {
		slices.Sort(proven)
		b.plan.add(Step{Kind: StepProve, Endpoints: proven, Reason: "candidates are proven in process before a lane is touched"})
	}
	for _, l := range b.in.Lanes {
		b.current[l.Name] = slot{l.Endpoint, l.Pair, l.Identity}
	}
	for _, s := range b.in.Swaps {
		l, ok := b.in.lane(s.Lane)
		row, found := b.row(s.Endpoint)
		if !ok || !found {
			continue
		}
		b.tries[s.Lane]++
		b.swapSteps(move{l, row})
		if s.OK {
			b.current[s.Lane] = slot{row.Endpoint, row.Pair, row.Identity}
			mem := LaneMemory{Since: b.in.Now}
			b.plan.Next.Lanes[s.Lane] = mem
			b.home(s.Lane, "the lane carries its new endpoint")
			b.plan.Held = slices.DeleteFunc(b.plan.Held, func(h Held) bool { return h.Object == s.Lane && h.Code == HeldFailed })
			continue
		}
		b.failed[s.Endpoint] = s.Reason
		if strings.HasPrefix(s.Reason, strictCheck) { // not what the router itself failed to do
			b.plan.Next.Holds[s.Endpoint] = refused(b.in.Memory.Holds[s.Endpoint], b.in.Now, b.in.Config.Repair)
		}
		b.home(s.Lane, "the swap failed and the lane has its saved profile back")
		b.plan.hold(s.Lane, HeldFailed, "%s did not pass on the lane (%s); its saved profile is back", s.Endpoint, s.Reason)
	}
}

func (b *rebalance) row(endpoint string) (Row, bool) {
	for _, p := range b.in.Pools {
		for _, r := range p.Rows {
			if r.Endpoint == endpoint {
				return r, true
			}
		}
	}
	return Row{}, false
}

// desired is the best endpoints, as many as there are lanes to fill. Pinned lanes and
// lanes that another run works on keep theirs. Where not every lane can carry every
// endpoint, those of the best that are in place stay there, and the others go by rank.
func (b *rebalance) desired() []Row {
	var lanes, kept []LaneView
	for _, l := range b.in.Lanes {
		if b.fixed(l) {
			kept = append(kept, l)
			continue
		}
		lanes = append(lanes, l)
	}
	best := b.pick(kept, nil, len(lanes), func([]Row) bool { return true })
	if matching(best, lanes, b.fits) == len(best) {
		return best
	}
	placed := slices.DeleteFunc(best, func(r Row) bool {
		return !slices.ContainsFunc(lanes, func(l LaneView) bool { return b.current[l.Name].endpoint == r.Endpoint })
	})
	return b.pick(kept, placed, len(lanes), func(rows []Row) bool { return matching(rows, lanes, b.fits) == len(rows) })
}

// unlisted adds what devices carry although the lane's profile is missing or damaged.
func (b *rebalance) unlisted(used taken) {
	known := map[string]bool{}
	for _, l := range b.in.Lanes {
		known[b.current[l.Name].pair], known[l.Pair] = true, true
	}
	for _, l := range b.in.Lanes {
		if p, ok := l.Device.Active(); ok && l.Pair == "" && b.current[l.Name].pair == "" && !known[p.Pair] {
			used.pairs[p.Pair] = l.Name
		}
	}
}

// pick adds the first eligible rows to those that are chosen already, up to n in all.
func (b *rebalance) pick(kept []LaneView, chosen []Row, n int, ok func([]Row) bool) []Row {
	used := taken{endpoints: map[string]string{}, pairs: map[string]string{}, prefixes: map[string]int{}}
	for _, l := range kept {
		used.add(l.Name, b.current[l.Name].endpoint, b.current[l.Name].pair)
	}
	b.unlisted(used)
	for _, r := range chosen {
		used.add("", r.Endpoint, r.Pair)
	}
	out := slices.Clone(chosen)
	for _, p := range b.in.Pools {
		if p.Name == PoolWorking || p.Error != "" {
			continue
		}
		for _, r := range p.Rows {
			if len(out) == n {
				return out
			}
			if r.Pair == "" || used.has(r) || b.failed[r.Endpoint] != "" {
				continue
			}
			if code, _ := b.elig.judge(p, r); code != "" {
				continue
			}
			if limit := b.in.Config.Rebalance.MaxPerPrefix; limit > 0 && used.prefixes[prefixOf(r.Endpoint)] >= limit {
				continue
			}
			if more := append(slices.Clone(out), r); ok(more) {
				used.add("", r.Endpoint, r.Pair)
				out = more
			}
		}
	}
	return out
}

func (b *rebalance) fixed(l LaneView) bool {
	c, _ := b.in.Config.Lane(l.Name)
	_, busy := b.in.Busy[l.Name]
	return busy || c.Pin != "" && c.Pin == b.current[l.Name].endpoint
}

// emptyCode tells a filter that matched nothing from a pool that has nothing left.
func (b *rebalance) emptyCode() string {
	for _, p := range b.in.Pools {
		for _, r := range p.Rows {
			if code, _ := b.elig.judge(p, r); code != "filtered" {
				return HeldNoCandidate
			}
		}
	}
	return HeldFilter
}

// moves pairs the lanes that carry none of the desired endpoints with those that no lane
// carries. Empty lanes come first.
func (b *rebalance) moves(want []Row) []move {
	carried := map[string]bool{}
	for _, l := range b.in.Lanes {
		carried[b.current[l.Name].endpoint] = true
	}
	free := slices.DeleteFunc(slices.Clone(want), func(r Row) bool { return carried[r.Endpoint] })
	lanes := slices.Clone(b.in.Lanes)
	slices.SortStableFunc(lanes, func(x, y LaneView) int {
		return boolInt(b.current[x.Name].endpoint != "") - boolInt(b.current[y.Name].endpoint != "")
	})
	var out []move
	for k, l := range lanes {
		if holder, busy := b.in.Busy[l.Name]; busy {
			b.plan.hold(l.Name, HeldBusy, "another run changes it: %s", holder)
			continue
		}
		if b.fixed(l) || slices.ContainsFunc(want, func(r Row) bool { return r.Endpoint == b.current[l.Name].endpoint }) {
			continue
		}
		if b.tries[l.Name] >= b.in.Config.Repair.SwapLimit {
			continue
		}
		i := b.takes(l, free, lanes[k+1:], want)
		if i < 0 {
			if !slices.ContainsFunc(free, func(r Row) bool { return b.carries(l, r) }) {
				b.plan.hold(l.Name, HeldNoCandidate, "the pools have no further eligible endpoint: it keeps %s", orNone(b.current[l.Name].endpoint))
			}
			continue
		}
		out = append(out, move{l, free[i]})
		free = slices.Delete(free, i, i+1)
	}
	return out
}

// takes chooses the lane's next endpoint: a pinned one if it is free, else the best, if it
// is so much better as the hysteresis asks for. -1 = it stays.
func (b *rebalance) takes(l LaneView, free []Row, later []LaneView, want []Row) int {
	best := b.share(l, free, later, want)
	if best < 0 {
		return -1
	}
	c, _ := b.in.Config.Lane(l.Name)
	if c.Pin != "" {
		i := slices.IndexFunc(free, func(r Row) bool { return r.Endpoint == c.Pin })
		if i < 0 && b.current[l.Name].endpoint != "" {
			b.plan.hold(l.Name, HeldPinned, "it is pinned to %s, which is not among the best now: it stays as it is", c.Pin)
			return -1
		}
		if i >= 0 && b.carries(l, free[i]) {
			return i
		}
		return best
	}
	h := b.in.Config.Rebalance.Hysteresis
	if h.Gain <= 0 && h.Ratio <= 0 {
		return best
	}
	now, ok := b.row(b.current[l.Name].endpoint)
	works := l.Round != nil && l.Round.Pass
	if !ok || !works || b.failed[now.Endpoint] != "" {
		return best
	}
	if code, _ := b.elig.judge(b.poolOf(now.Endpoint), now); code != "" {
		return best
	}
	better := now.Avg - free[best].Avg
	if better >= h.Gain && float64(better) >= h.Ratio*float64(now.Avg) {
		return best
	}
	b.plan.hold(l.Name, heldHysteresis, "%s works and %s is only %s faster", now.Endpoint, free[best].Endpoint, better.Round(time.Millisecond/10))
	return -1
}

func (b *rebalance) poolOf(endpoint string) Pool {
	for _, p := range b.in.Pools {
		if slices.ContainsFunc(p.Rows, func(r Row) bool { return r.Endpoint == endpoint }) {
			return p
		}
	}
	return Pool{}
}

// prove plans the in-process proof of what is to be placed; false while one is not known.
func (b *rebalance) prove(moves []move) bool {
	var open []string
	for _, m := range moves {
		if _, ok := b.in.Proofs[m.row.Endpoint]; !ok {
			open = append(open, m.row.Endpoint)
		}
	}
	if len(open) == 0 {
		return true
	}
	b.plan.add(Step{Kind: StepProve, Endpoints: open, Reason: "candidates are proven in process before a lane is touched"})
	for _, m := range moves {
		s := b.swapStep(m)
		s.If = m.row.Endpoint + " passes; else the next in rank"
		b.plan.add(s)
	}
	return false
}

func (b *rebalance) swap(moves []move) {
	for _, m := range moves {
		b.swapSteps(m)
		b.home(m.lane.Name, "the lane carries its new endpoint")
	}
}

func (b *rebalance) swapStep(m move) Step {
	why := fmt.Sprintf("rank %d of %s", m.row.Rank, b.poolOf(m.row.Endpoint).Name)
	if old := b.current[m.lane.Name].endpoint; old != "" {
		why += "; " + b.leaves(old)
	}
	return Step{
		Kind: StepSwap, Lane: m.lane.Name, From: b.current[m.lane.Name].endpoint, To: m.row.Endpoint, Path: m.row.Path,
		Pair: m.row.Pair, Pool: b.poolOf(m.row.Endpoint).Name, Reason: why,
	}
}

// leaves says why a lane's endpoint is not kept.
func (b *rebalance) leaves(endpoint string) string {
	r, ok := b.row(endpoint)
	if !ok {
		return endpoint + " left the pool"
	}
	if code, reason := b.elig.judge(b.poolOf(endpoint), r); code != "" {
		return endpoint + ": " + reason
	}
	return fmt.Sprintf("%s has rank %d", endpoint, r.Rank)
}

// swapSteps adds a swap, with a loan before it where the lane can't change without a gap.
func (b *rebalance) swapSteps(m move) {
	name := m.lane.Name
	if id := b.current[name].identity; id != "" && id != m.row.Identity && b.where[name] == name {
		if to := b.lender(name); to != "" {
			why := "key, addresses or obfuscation differ: the swap is in place, its users travel elsewhere meanwhile"
			b.plan.add(Step{Kind: StepLend, Class: name, From: name, To: to, Reason: why})
			b.where[name] = to
			b.plan.Next.Lends[name] = Lend{To: to, Since: b.in.Now, Reason: why}
		}
	}
	b.plan.add(b.swapStep(m))
}

func (b *rebalance) home(lane, reason string) {
	at, placed := b.where[lane]
	if !placed || at == lane || at == "direct" || at == "" {
		return
	}
	b.plan.add(Step{Kind: StepReturn, Class: lane, From: at, To: lane, Reason: reason})
	b.where[lane] = lane
	delete(b.plan.Next.Lends, lane)
}

func (b *rebalance) lender(lane string) string {
	best, rtt := "", time.Duration(0)
	for _, l := range b.in.Lanes {
		if l.Name == lane || l.Round == nil || !l.Round.Pass || b.where[l.Name] != l.Name {
			continue
		}
		if best == "" || l.Round.RTT < rtt {
			best, rtt = l.Name, l.Round.RTT
		}
	}
	return best
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
