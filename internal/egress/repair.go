package egress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/health"
)

// repair builds the plan of one repair pass.
type repair struct {
	in      *Input
	plan    Plan
	elig    eligibility
	judged  map[string]health.Verdict
	reason  map[string]health.Reason
	used    taken
	where   map[string]string // class (home lane) -> lane that carries it, as the plan goes on
	waits   map[string]bool   // lanes whose peer is being added anew: nothing else yet
	proven  []Row             // candidates that passed, in pool order
	next    int               // first candidate that was not looked at
	cands   []Row
	failed  map[string]bool // endpoints whose swap failed in this run
	doubted []LaneView      // would be down, if the uplink were beyond doubt
	spent   bool            // every eligible candidate failed in this run, or none is left
	early   bool            // before the renewals: what they change isn't looked at
}

// PlanRepair judges the lanes and says what to do. It is pure; a run calls it again after
// each step with what the step showed (proofs, swaps, new rounds), and the steps that
// were already there stay: a plan only grows.
func PlanRepair(in Input) Plan {
	r := &repair{
		in: &in, elig: newEligibility(&in), judged: map[string]health.Verdict{}, reason: map[string]health.Reason{},
		used: takenBy(&in, ""), where: cloneMap(in.Plane.Classes), waits: map[string]bool{}, failed: map[string]bool{},
	}
	r.plan = Plan{Command: "repair", Next: in.Memory.clone()}
	setAside(&in, &r.plan.Next)
	tidyHolds(&in, &r.plan.Next)
	for _, l := range in.Config.Lanes { // where it belongs, whether it is there already or not
		if in.belongsDirect(in.modeState(), l) {
			r.where[l.Name] = direct
		}
	}
	r.lanes()
	r.modes()
	return r.plan
}

// lanes plans what each lane needs.
func (r *repair) lanes() {
	in := *r.in
	up := uplinkOf(&in)
	r.judge(up)
	renewals := r.renewals()
	if up == uplinkDown && r.anyFailing() {
		r.freeze()
		return
	}
	// Who needs no fresh handshake is served first: a renewal takes a round.
	if r.early = len(renewals) > 0; up != uplinkDoubtful {
		r.lend()
		r.goHome()
	}
	for _, s := range renewals {
		r.plan.add(s)
	}
	r.early = false
	if len(r.doubted) > 0 {
		r.seekWayOut()
		return
	}
	downs := r.downs()
	r.lend()
	r.goHome()
	r.quarantine(downs)
	r.replace(downs)
	r.plan.Held = slices.DeleteFunc(r.plan.Held, func(h Held) bool { // found one in the end
		return h.Code == HeldNoLender && (r.judged[r.where[h.Object]] == health.Up || r.judged[r.where[h.Object]] == health.Loaded)
	})
}

func (r *repair) judge(up uplinkState) {
	c := r.in.Config
	for _, l := range r.in.Lanes {
		mem := r.plan.Next.Lanes[l.Name]
		if holder, ok := r.in.Busy[l.Name]; ok {
			r.plan.hold(l.Name, HeldBusy, "another run changes it: %s", holder)
		}
		if l.Round == nil {
			r.judged[l.Name] = health.Unknown
			r.plan.hold(l.Name, HeldUnchecked, "no round was made")
			continue
		}
		if mem.Cut && up == uplinkUp { // what failed while the way out was shut counts for nothing
			mem.Misses, mem.DeepMisses = 0, 0
		}
		v, m := health.Judge(mem.Memory, sample(l, r.in.Now), health.Policy{Threshold: c.Repair.Threshold, Rise: c.Repair.Rise})
		if v == health.Suspect || v == health.Down {
			if up == uplinkDown {
				m = mem.Memory
				m.Misses, m.DeepMisses, m.Goods = 0, 0, 0
				mem.Cut, mem.Renewed = true, false
				v = health.Frozen
			}
			if up == uplinkDoubtful && !r.wayOut() { // not before something shows that the way out is open
				if v == health.Down {
					r.doubted = append(r.doubted, l)
				}
				m.Down, m.Misses, m.DeepMisses, m.Goods = mem.Down, min(m.Misses, c.Repair.Threshold-1), 0, 0
				mem.Cut, mem.Renewed = true, false
				v = health.Frozen
			}
		} else {
			mem.Cut, mem.Renewed = false, false
		}
		if l.Endpoint == "" && len(l.Device.Peers) == 0 && l.Device.Present {
			v, m.Down, m.Reason = health.Down, true, health.ReasonNoPeer // an empty lane needs no second look
		}
		mem.Memory = m
		mem.State = string(v)
		mem.RTT, mem.Loss = l.Round.RTT, roundLoss(*l.Round, c.Check.Gap)
		if l.Deep != nil {
			mem.DeepAt = r.in.Now
		}
		if mem.Since.IsZero() && v == health.Up {
			mem.Since = r.in.Now
		}
		r.plan.Next.Lanes[l.Name] = mem
		r.judged[l.Name], r.reason[l.Name] = v, m.Reason
		verdict := Verdict{Lane: l.Name, Endpoint: l.Endpoint, Verdict: string(v), Reason: string(m.Reason), Loss: mem.Loss, RTT: ms(l.Round.RTT)}
		r.plan.Lanes = append(r.plan.Lanes, verdict)
	}
	if up != uplinkDoubtful {
		r.rememberUplink(up == uplinkDown)
	}
}

func (r *repair) rememberUplink(down bool) {
	if down != r.in.Memory.UplinkDown {
		r.plan.Next.UplinkDown, r.plan.Next.UplinkSince = down, r.in.Now
	}
}

func sample(l LaneView, now time.Time) health.Sample {
	p, active := l.Device.Active()
	s := health.Sample{
		Device: l.Device.Present && l.Device.Up && l.Device.Error == "", Peer: active,
		Pings: l.Round.Pass, RxGrew: l.Round.RxAfter - l.Round.RxBefore, FullSize: true, TLS: true,
	}
	if !p.Handshake.IsZero() {
		s.Handshake = now.Sub(p.Handshake)
	}
	if l.Deep != nil {
		s.Deep, s.FullSize, s.HalfSize = true, l.Deep.FullSize, l.Deep.HalfSize
		s.TLS = len(l.Deep.TLS) == 0
		for _, t := range l.Deep.TLS {
			s.TLS = s.TLS || t.OK
		}
	}
	return s
}

// roundLoss is the share of a round's pings that were lost. A round that passed ended
// early: the last pings were still on their way.
func roundLoss(r Round, gap time.Duration) float64 {
	if r.Sent == 0 {
		return 1
	}
	lost := r.Sent - r.Got
	if r.Pass && gap > 0 {
		lost -= int(r.RTT/gap) + 1
	}
	return float64(max(lost, 0)) / float64(r.Sent)
}

// renewals are the one fresh handshake that a silent lane gets before its verdict, where
// the last one is old, pending, or from before the uplink was cut.
func (r *repair) renewals() []Step {
	var out []Step
	for _, l := range r.in.Lanes {
		v := r.judged[l.Name]
		failing := v == health.Suspect || v == health.Down
		mem := r.plan.Next.Lanes[l.Name]
		switch _, busy := r.in.Busy[l.Name]; {
		case l.Renewed:
			out = append(out, renewStep(l, r.in.Memory.Lanes[l.Name]))
			mem.Renewed, mem.Cut = failing, false
		case failing && !busy && l.Path != "" && r.renewalDue(l):
			out = append(out, renewStep(l, r.in.Memory.Lanes[l.Name]))
			r.waits[l.Name] = true
		case failing:
			mem.Cut = false // from here on a failure is the lane's own
		}
		if _, ok := r.plan.Next.Lanes[l.Name]; ok {
			r.plan.Next.Lanes[l.Name] = mem
		}
	}
	return out
}

func (r *repair) renewalDue(l LaneView) bool {
	p, active := l.Device.Active()
	if !active || !l.Device.Up || !l.Device.Present {
		return true
	}
	mem := r.in.Memory.Lanes[l.Name]
	if r.reason[l.Name] != health.ReasonSilent || mem.Renewed {
		return false
	}
	age := r.in.Now.Sub(p.Handshake)
	return p.Handshake.IsZero() || age < 0 || age >= r.in.Config.Repair.Readd || mem.Cut || strange(l, p)
}

// strange says whether the device carries another pair than the lane's profile: somebody
// changed its key or its peer, and that is no fault of the server.
func strange(l LaneView, active PeerView) bool {
	return l.Pair != "" && active.Pair != "" && active.Pair != l.Pair
}

// tooEarly says whether a lane's turn comes after the renewals.
func (r *repair) tooEarly(lane string) bool {
	l, _ := r.in.lane(lane)
	return r.early && (l.Renewed || r.waits[lane])
}

func renewStep(l LaneView, mem LaneMemory) Step {
	active, _ := l.Device.Active()
	reason := "its handshake is old or pending: one lost initiation looks like a dead server"
	switch {
	case !l.Device.Present || !l.Device.Up:
		reason = "its interface is gone or down"
	case len(l.Device.Peers) == 0:
		reason = "its device has no peer"
	case mem.Cut:
		reason = "the uplink was down since its last good round"
	case strange(l, active):
		reason = "its device carries another pair than its profile"
	}
	return Step{Kind: StepRenew, Lane: l.Name, From: l.Endpoint, Path: l.Path, Reason: reason}
}

func (r *repair) anyFailing() bool {
	for _, v := range r.judged {
		if v == health.Suspect || v == health.Down || v == health.Frozen {
			return true
		}
	}
	return false
}

// freeze is the uplink guard: one cut cable must not burn the pool.
func (r *repair) freeze() {
	for _, l := range r.in.Lanes {
		if r.judged[l.Name] == health.Frozen {
			r.plan.hold(l.Name, HeldUplinkDown, "the uplink itself is down: nothing is quarantined, counted or replaced")
		}
	}
}

// downs are the lanes to be repaired now.
func (r *repair) downs() []LaneView {
	var out []LaneView
	for _, l := range r.in.Lanes {
		if _, busy := r.in.Busy[l.Name]; r.judged[l.Name] == health.Down && !r.waits[l.Name] && !busy {
			out = append(out, l)
		}
	}
	return out
}

// wayOut says whether a proof of this run shook hands with an endpoint.
func (r *repair) wayOut() bool {
	for _, p := range r.in.Proofs {
		if p.Handshake > 0 {
			return true
		}
	}
	return false
}

// seekWayOut settles a doubtful uplink by evidence: the gateway answers and nothing behind
// it does. One candidate's handshake shows that the way out is open; until then no lane is
// down, and nothing is concluded against an endpoint.
func (r *repair) seekWayOut() {
	lanes := r.doubted
	since := r.in.Now.Sub(r.in.Memory.DoubtAt)
	if recent := since >= 0 && since < r.in.Config.Repair.RetryAfter; !recent {
		r.candidates(lanes)
		batch := r.batch(len(lanes))
		if len(batch) > 0 {
			r.plan.add(Step{Kind: StepProve, Endpoints: endpoints(batch), Reason: "the gateway answers, nothing behind it does: a handshake would show that the uplink works"})
		}
		if slices.ContainsFunc(batch, func(c Row) bool { _, ok := r.in.Proofs[c.Endpoint]; return !ok }) {
			return
		}
		r.plan.Next.DoubtAt = r.in.Now
	}
	r.rememberUplink(true)
	for _, l := range lanes {
		r.plan.hold(l.Name, HeldUplinkDown, "the gateway answers but neither the direct targets nor any endpoint: nothing is quarantined, counted or replaced")
	}
}

// lend moves every class that travels through a down lane to the healthiest other lane.
func (r *repair) lend() {
	for _, home := range r.in.Config.Lanes {
		at, placed := r.where[home.Name]
		if at == direct && !r.in.belongsDirect(r.in.modeState(), home) {
			r.undeclared(home.Name)
			continue
		}
		if !placed || at == home.Name && r.judged[home.Name] != health.Down || r.waits[at] || r.tooEarly(at) || r.tooEarly(home.Name) {
			continue
		}
		if at != "" && r.judged[at] != health.Down || at == "" && r.judged[home.Name] != health.Down || at == "direct" {
			continue
		}
		r.lendClass(home.Name, at)
	}
}

// undeclared takes a class off direct that does not belong there: to a lane that passes, or
// home behind the leak guard.
func (r *repair) undeclared(home string) {
	to := home
	if v := r.judged[home]; v != health.Up && v != health.Loaded {
		to = first(r.lender(home), home)
	}
	r.plan.add(Step{Kind: StepLeave, Class: home, From: direct, To: to, Reason: "direct is not declared"})
	r.where[home] = to
}

func (r *repair) lendClass(home, at string) {
	if l, _ := r.in.Config.Lane(home); l.FailMode == FailClosed && at != "" {
		r.plan.hold(home, HeldNoLender, "lane %s is down (%s), and its class is closed without it (fail_mode)", home, r.reason[home])
		return
	}
	to := r.lender(home)
	why := fmt.Sprintf("lane %s is down (%s)", at, r.reason[at])
	if at == "" {
		why = fmt.Sprintf("lane %s is down (%s) and its class travels nowhere", home, r.reason[home])
	}
	if to == "" {
		r.plan.hold(home, HeldNoLender, "%s, and no other lane is healthy: its users stay behind the leak guard", why)
		return
	}
	r.plan.add(Step{Kind: StepLend, Class: home, From: at, To: to, Reason: why})
	r.where[home] = to
	r.plan.Next.Lends[home] = Lend{To: to, Since: r.in.Now, Reason: why}
}

// lender is the healthiest lane: least loss, then fewest guests, then least round trip.
func (r *repair) lender(home string) string {
	type option struct {
		name   string
		loss   float64
		guests int
		rtt    time.Duration
	}
	var options []option
	for _, l := range r.in.Lanes {
		ok := r.judged[l.Name] == health.Up || r.judged[l.Name] == health.Loaded
		if !ok || r.tooEarly(l.Name) {
			continue
		}
		o := option{name: l.Name, loss: r.plan.Next.Lanes[l.Name].Loss, rtt: r.plan.Next.Lanes[l.Name].RTT}
		for class, at := range r.where {
			if at == l.Name && class != l.Name {
				o.guests++
			}
		}
		options = append(options, o)
	}
	if len(options) == 0 {
		return ""
	}
	return slices.MinFunc(options, func(a, b option) int {
		return cmp.Or(cmp.Compare(a.loss, b.loss), cmp.Compare(a.guests, b.guests), cmp.Compare(a.rtt, b.rtt))
	}).name
}

// goHome brings classes back to lanes that are up again without a swap.
func (r *repair) goHome() {
	for _, home := range r.in.Config.Lanes {
		at, placed := r.where[home.Name]
		v := r.judged[home.Name]
		if !placed || at == home.Name || at == "direct" || v != health.Up && v != health.Loaded || r.tooEarly(home.Name) || r.in.Busy[home.Name] != "" {
			continue // also a lane that rises: its users come home once it has
		}
		reason := "the lane passes again"
		if at == "" {
			reason = "first verdict: the lane passes"
		}
		r.goHomeClass(home.Name, reason)
	}
}

func (r *repair) goHomeClass(home, reason string) {
	r.plan.add(Step{Kind: StepReturn, Class: home, From: r.where[home], To: home, Reason: reason})
	r.where[home] = home
	delete(r.plan.Next.Lends, home)
}

func endpoints(rows []Row) []string {
	out := make([]string, len(rows))
	for i, c := range rows {
		out[i] = c.Endpoint
	}
	return out
}

func ms(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

func join(s []string) string { return strings.Join(s, ", ") }
