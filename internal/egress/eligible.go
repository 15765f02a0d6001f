package egress

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// The names of the pools, in the order in which they are preferred.
const (
	PoolForeign = "strict-foreign"
	PoolAll     = "strict-all"
	PoolWorking = "working"
)

// futureSlack is how far ahead a stamp may lie before it counts as one from a wrong clock.
const futureSlack = 2 * time.Second

// eligibility judges rows of pools for one input. It is pure and cheap to make.
type eligibility struct {
	in      *Input
	records map[string][]state.Quarantined
}

func newEligibility(in *Input) eligibility {
	e := eligibility{in: in, records: map[string][]state.Quarantined{}}
	for _, q := range in.Quarantine {
		e.records[q.Endpoint] = append(e.records[q.Endpoint], q)
	}
	return e
}

// judge says why a row may not be placed on any lane: code and reason are empty when it may.
func (e eligibility) judge(p Pool, r Row) (code, reason string) {
	if r.Reason != "" {
		return "unsupported", r.Reason
	}
	if why := e.in.Config.uncarried(r.Needs); why != "" {
		return "unsupported", why
	}
	if !matches(e.in.Config.Rebalance.Allow, r.File, true) || matches(e.in.Config.Rebalance.Deny, r.File, false) {
		return "filtered", "its name is not allowed by rebalance.allow and rebalance.deny"
	}
	if q, ok := e.quarantined(p, r.Endpoint); ok {
		return "quarantined", fmt.Sprintf("removed from %s at %s (%s); pool %s was tested from %s on, which is not after it",
			q.Slot, stamp(q.FailedAt), q.Reason, p.Name, stamp(p.Mtime))
	}
	h := e.in.Memory.Holds[r.Endpoint]
	if left := holdLeft(h, e.in.Now, e.in.Config.Repair.HoldMax); h.Failures > 1 && left > 0 {
		return "hold_down", fmt.Sprintf("failed %d times; held down for another %s", h.Failures, left.Round(time.Second))
	}
	return "", ""
}

// filterEmpty says whether rebalance.allow and rebalance.deny are why nothing is left: there
// are endpoints, and each that a lane could carry is kept out by its name.
func (e eligibility) filterEmpty() bool {
	some := false
	for _, p := range e.in.Pools {
		for _, r := range p.Rows {
			switch code, _ := e.judge(p, r); code {
			case "unsupported":
			case "filtered":
				some = true
			default:
				return false
			}
		}
	}
	return some
}

// quarantined returns the record that keeps an endpoint of the pool out.
func (e eligibility) quarantined(p Pool, endpoint string) (state.Quarantined, bool) {
	for _, q := range e.records[endpoint] {
		if !e.clears(p, q) {
			return q, true
		}
	}
	return state.Quarantined{}, false
}

// clears says whether the pool's tests began after the failure. Only a strict pool does.
// The run sequence decides where both ends are known by it, so that a clock that jumped
// neither blocks an endpoint for years nor brings a dead one back; else the stamps do.
func (e eligibility) clears(p Pool, q state.Quarantined) bool {
	if p.Name == PoolWorking || p.Mtime.After(e.in.Now.Add(futureSlack)) {
		return false
	}
	f, known := e.in.Memory.Failures[q.Endpoint]
	seq, tested := e.in.Memory.PoolSeqs[p.Mtime.Unix()]
	if known && tested && f.FailedAt == q.FailedAt.Unix() {
		return seq > f.Seq
	}
	if q.FailedAt.After(e.in.Now.Add(futureSlack)) {
		return false
	}
	return p.Mtime.Unix() > q.FailedAt.Unix()
}

// setAside gives records from the future a place in the run sequence, so that the next
// refresh can clear them although their stamp can't be believed.
func setAside(in *Input, next *Memory) {
	if in.Seed == 0 { // a dry run has no place in the sequence
		return
	}
	for _, q := range in.Quarantine {
		if future(in, q) {
			next.Failures[q.Endpoint] = Failure{FailedAt: q.FailedAt.Unix(), Seq: in.Seed}
		}
	}
}

// unplaced says whether some record is from the future and has no place in the sequence.
func unplaced(in *Input) bool {
	return slices.ContainsFunc(in.Quarantine, func(q state.Quarantined) bool { return future(in, q) })
}

func future(in *Input, q state.Quarantined) bool {
	f, ok := in.Memory.Failures[q.Endpoint]
	return q.FailedAt.After(in.Now.Add(futureSlack)) && (!ok || f.FailedAt != q.FailedAt.Unix())
}

// holdLeft is how long an endpoint is still held down; never longer than the setting,
// whatever the clock did.
func holdLeft(h Hold, now time.Time, longest time.Duration) time.Duration {
	if h.For <= 0 {
		return 0
	}
	elapsed := max(now.Sub(h.Since), 0)
	return min(h.For, longest) - elapsed
}

// tidyHolds lets a hold-down that a wrong clock dated into the future begin now: it would
// else last until that day.
func tidyHolds(in *Input, next *Memory) {
	for e, h := range next.Holds {
		if h.Since.After(in.Now.Add(futureSlack)) {
			h.Since = in.Now
			next.Holds[e] = h
		}
	}
}

// failedAgain is the hold-down after one more failure: it doubles each time. The first one
// does not bind, since tests that began after it clear the endpoint (see judge); from the
// second on even a fresh pool has to wait, so that a server which passes one probe in ten
// swings a lane at most twice an hour. Good service pays failures back, one for every
// decay period.
func failedAgain(h Hold, served time.Duration, now time.Time, c RepairConfig) Hold {
	if c.HoldDecay > 0 && served > 0 {
		h.Failures = max(0, h.Failures-int(served/c.HoldDecay))
	}
	h.Failures++
	h.Since, h.For = now, c.HoldMin
	for i := 1; i < min(h.Failures, 64) && h.For < c.HoldMax; i++ {
		h.For *= 2
	}
	h.For = min(h.For, c.HoldMax)
	return h
}

// refused is the hold-down of an endpoint that passed in process and failed on a lane. It
// binds at once: fresh tests would pass again, and each try costs the lane's users seconds.
func refused(h Hold, now time.Time, c RepairConfig) Hold {
	h.Failures = max(h.Failures, 1)
	return failedAgain(h, 0, now, c)
}

func matches(globs []string, name string, empty bool) bool {
	if len(globs) == 0 {
		return empty
	}
	name = strings.ToLower(name)
	for _, g := range globs {
		if ok, err := path.Match(strings.ToLower(g), name); err == nil && ok {
			return true
		}
	}
	return false
}

// prefixOf is the network that max_per_prefix counts: a /24, or a /48 of IPv6.
func prefixOf(endpoint string) string {
	ap, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return endpoint
	}
	bits := 24
	if ap.Addr().Is6() && !ap.Addr().Is4In6() {
		bits = 48
	}
	p, err := ap.Addr().Unmap().Prefix(bits)
	if err != nil {
		return endpoint
	}
	return p.String()
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "(never)"
	}
	return t.UTC().Format(time.RFC3339)
}

// taken is what lanes use: endpoints and key pairs, each once.
type taken struct {
	endpoints map[string]string // endpoint -> lane
	pairs     map[string]string
	prefixes  map[string]int
}

func takenBy(in *Input, but string) taken {
	t := taken{endpoints: map[string]string{}, pairs: map[string]string{}, prefixes: map[string]int{}}
	for _, l := range in.Lanes {
		if l.Name == but {
			continue
		}
		t.add(l.Name, l.Endpoint, l.Pair)
		for _, p := range l.Device.Peers {
			t.pairs[p.Pair] = l.Name
		}
		if l.Intent != nil && l.Intent.ToPair != "" {
			t.pairs[l.Intent.ToPair] = l.Name
		}
	}
	return t
}

func (t taken) add(lane, endpoint, pair string) {
	if endpoint != "" {
		t.endpoints[endpoint] = lane
		t.prefixes[prefixOf(endpoint)]++
	}
	if pair != "" {
		t.pairs[pair] = lane
	}
}

func (t taken) drop(endpoint, pair string) {
	if endpoint != "" {
		delete(t.endpoints, endpoint)
		t.prefixes[prefixOf(endpoint)]--
	}
	delete(t.pairs, pair)
}

func (t taken) has(r Row) bool {
	_, e := t.endpoints[r.Endpoint]
	_, p := t.pairs[r.Pair]
	return e || p
}
