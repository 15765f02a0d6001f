package egress

import (
	"slices"
	"strings"

	"github.com/shunt-net/shunt/internal/health"
	"github.com/shunt-net/shunt/internal/state"
)

// direct is the position of a class that travels by the uplink on purpose.
const direct = "direct"

// modeState is where the machine is, with an operator's word taken in.
func (in *Input) modeState() ModeState {
	s := ModeState{Mode: state.Mode(in.KV[state.KeyMode]), Reason: in.KV[state.KeyReason], ModeMemory: in.Memory.Modes.clone()}
	if d := in.Options.Direct; d != nil {
		if s.Manual == nil {
			s.Manual = map[string]Manual{}
		}
		for _, c := range d.Classes {
			if delete(s.Manual, c); d.On {
				s.Manual[c] = Manual{Since: in.Now, By: d.By, Reason: d.Reason}
			}
		}
	}
	return s
}

// modePolicy is the configuration as the machine needs it.
func (c *Config) modePolicy() ModePolicy {
	m := c.Modes
	p := ModePolicy{Threshold: m.Threshold, Window: m.Window, Cooldown: m.Cooldown, RetryMin: m.RetryMin, RetryMax: m.RetryMax}
	for _, l := range c.Lanes {
		p.Classes = append(p.Classes, l.Name)
		p.MayDirect = p.MayDirect || l.goesDirect()
	}
	return p
}

func (l Lane) goesDirect() bool { return l.FailMode == FailDirect || l.FailMode == FailUnknown }

// belongsDirect says whether a lane's class is declared to be direct.
func (in *Input) belongsDirect(s ModeState, l Lane) bool {
	_, hand := s.Manual[l.Name]
	return hand || isDirect(s.Mode) && s.Declared && l.goesDirect()
}

// observe is what the machine may know of a run, but for what lanes showed.
func (in *Input) observe(s ModeState) ModeObservation {
	o := ModeObservation{
		Uplink: uplinkOf(in) == uplinkUp, Refreshing: in.Refreshing, Attempting: in.Attempting, Ended: in.Ended, Placed: in.Placed,
		Ready: in.Plane.Ready, Force: in.Options.Force,
	}
	o.Returned = in.Memory.UplinkDown && o.Uplink
	if in.DayBefore != nil {
		o.Counts = append(o.Counts, *in.DayBefore)
	}
	if day := Day(in.Now); day == s.Counted.Day || in.Count > 0 {
		o.Counts = append(o.Counts, DayCount{day, in.Count})
	}
	fresh := in.fresh()
	for _, l := range in.Lanes {
		if l.Round != nil && l.Round.Pass {
			o.Healthy++
		}
		if l.Strict != nil && l.Device.Present && fresh[l.Endpoint] {
			o.Filled++
			o.Strict += boolInt(*l.Strict == "")
		}
	}
	for _, l := range in.Config.Lanes {
		if at, known := in.Plane.Classes[l.Name]; known && in.belongsDirect(s, l) && at != direct {
			o.Astray = true
		}
	}
	return o
}

// fresh are the endpoints that the strict pools can fill a slot with: what failed after
// their tests is no longer one of them.
func (in *Input) fresh() map[string]bool {
	out := map[string]bool{}
	e := newEligibility(in)
	for _, p := range in.Pools {
		if p.Name == PoolWorking || p.Error != "" {
			continue
		}
		for _, r := range p.Rows {
			if _, kept := e.quarantined(p, r.Endpoint); !kept {
				out[r.Endpoint] = true
			}
		}
	}
	return out
}

// modes asks the machine, once the lanes have nothing left to be found out.
func (r *repair) modes() {
	if len(r.waits) > 0 || slices.ContainsFunc(r.plan.Steps, r.open) {
		return
	}
	s := r.in.modeState()
	o := r.in.observe(s)
	o.Healthy = 0
	down := 0
	for _, v := range r.judged {
		o.Healthy += boolInt(v == health.Up || v == health.Loaded)
		down += boolInt(v == health.Down)
	}
	o.AllUp = o.Healthy == len(r.in.Config.Lanes)
	o.Exhausted = r.spent && down == len(r.in.Config.Lanes)
	if o.Exhausted && !o.Uplink { // it is doubtful, and one that let a handshake through will do; what fails by it does not count, and pauses
		m := machine{s: s, p: r.in.Config.modePolicy(), now: r.in.Now}
		o.Uplink = r.wayOut() && m.retryDue()
	}
	r.plan.decide(r.in, s, o, r.lender)
}

// open says whether a step's outcome is not known yet. A step with a condition follows one
// that is.
func (r *repair) open(s Step) bool {
	switch s.Kind {
	case StepProve:
		return slices.ContainsFunc(s.Endpoints, func(e string) bool { _, ok := r.in.Proofs[e]; return !ok })
	case StepSwap:
		_, known := r.outcome(s.Lane, s.To)
		return !known
	case StepRenew, StepLend, StepReturn, StepQuarantine, StepTest, StepPublish, StepRefresh, StepRebuild, StepDirect, StepLeave, StepUnknown:
	}
	return false
}

// decide adds what the machine says to the plan.
func (p *Plan) decide(in *Input, s ModeState, o ModeObservation, lender func(string) string) {
	was := state.Mode(in.KV[state.KeyMode])
	next, acts := NextMode(s, o, in.Config.modePolicy(), in.Now)
	p.Next.Modes = next.ModeMemory
	if next.Mode != was {
		p.Mode = &ModeChange{From: string(was), To: string(next.Mode), Reason: next.Reason}
	}
	for _, a := range acts {
		switch a.Kind {
		case ActRefresh:
			p.add(Step{Kind: StepRefresh, Pool: string(a.For), Reason: a.Reason})
		case ActRebuild:
			p.add(Step{Kind: StepRebuild, Reason: a.Reason})
		case ActDirect, ActLeave:
			p.moveAll(in, next, a, lender)
		case ActUnknown:
		}
	}
}

// moveAll puts each class where the next state wants it, all in one transaction.
func (p *Plan) moveAll(in *Input, next ModeState, a Action, lender func(string) string) {
	for _, l := range in.Config.Lanes {
		at, belongs := in.Plane.Classes[l.Name], in.belongsDirect(next, l)
		switch {
		case belongs && at != direct:
			why := a.Reason
			if m, hand := next.Manual[l.Name]; hand {
				why = m.text()
			}
			p.add(Step{Kind: StepDirect, Class: l.Name, From: at, To: direct, Reason: why})
			delete(p.Next.Lends, l.Name)
		case !belongs && at == direct && a.Kind == ActLeave:
			to := l.Name
			if v, _ := in.lane(l.Name); v.Round == nil || !v.Round.Pass {
				to = first(lender(l.Name), l.Name)
			}
			p.add(Step{Kind: StepLeave, Class: l.Name, From: direct, To: to, Reason: a.Reason})
			if to != l.Name {
				p.Next.Lends[l.Name] = Lend{To: to, Since: in.Now, Reason: "its own lane does not pass yet"}
			}
		}
	}
}

// PlanRecover is the plan of an attempt, and of an operator's word about direct. It is pure,
// and is made again with what the attempt showed.
func PlanRecover(in Input) Plan {
	p := Plan{Command: in.Command, Next: in.Memory.clone()}
	s := in.modeState()
	o := in.observe(s)
	o.AllUp = o.Healthy == len(in.Config.Lanes)
	p.decide(&in, s, o, func(string) string { // asked for a class whose own lane does not pass
		best := ""
		for _, l := range in.Lanes {
			if l.Round != nil && l.Round.Pass && l.Strict != nil && *l.Strict == "" && best == "" {
				best = l.Name
			}
		}
		return best
	})
	if d := in.Options.Direct; d != nil && !d.On { // classes that were direct by hand only
		for _, l := range in.Config.Lanes {
			if slices.Contains(d.Classes, l.Name) && !isDirect(s.Mode) && in.Plane.Classes[l.Name] == direct {
				p.add(Step{Kind: StepLeave, Class: l.Name, From: direct, To: l.Name, Reason: Manual{By: d.By, Reason: d.Reason}.text()})
			}
		}
		if isDirect(s.Mode) && p.Mode == nil {
			p.hold("mode", HeldWaiting, "%s", "users stay direct until "+strings.Join(missing(s, o), ", "))
		}
	}
	return p
}

// missing names what keeps users on direct.
func missing(s ModeState, o ModeObservation) []string {
	var out []string
	if s.Declared && !s.Refreshed {
		out = append(out, "a refresh has succeeded by a way that recovery found")
	}
	if s.Declared && !s.Rebuilt {
		out = append(out, "the fresh pool is placed")
	}
	if o.Filled == 0 || o.Strict < o.Filled {
		out = append(out, "every lane with a fresh endpoint, at least one, passes the strict check")
	}
	if !o.Ready || !o.Uplink {
		out = append(out, "rules, routes and uplink are as they should be")
	}
	return out
}
