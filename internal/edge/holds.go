package edge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// AskError says that an operator's wish names something that is not there.
type AskError struct {
	Msg   string
	Known []string // what there is
}

func (e *AskError) Error() string { return e.Msg }

// check refuses a wish that no run can make right.
func (a Ask) check(command string, c Config) error {
	switch command {
	case CommandDrain, CommandEnable, CommandReset:
	default:
		return nil
	}
	if a.For < 0 {
		return &AskError{Msg: "the time must not be negative"}
	}
	if a.Candidate == "" && command != CommandReset {
		return &AskError{Msg: command + ": which candidate?", Known: candidateNames(c, a.Service)}
	}
	var services []string
	found, has := false, false
	for _, s := range c.Services {
		services = append(services, s.Name)
		if a.Service == "" || s.Name == a.Service {
			found = true
			has = has || slices.ContainsFunc(s.Candidates, func(x Candidate) bool { return CandidateName(x) == a.Candidate })
		}
	}
	switch {
	case !found:
		return &AskError{Msg: fmt.Sprintf("there is no service %q", a.Service), Known: services}
	case a.Candidate != "" && !has && command != CommandEnable: // a hold may outlast its candidate
		return &AskError{Msg: fmt.Sprintf("there is no candidate %q", a.Candidate), Known: candidateNames(c, a.Service)}
	case a.Candidate == "" && a.Service == "":
		return &AskError{Msg: command + ": which service or candidate?", Known: services}
	}
	return nil
}

func candidateNames(c Config, service string) []string {
	var out []string
	for _, s := range c.Services {
		if service != "" && s.Name != service {
			continue
		}
		for _, x := range s.Candidates {
			out = append(out, CandidateName(x))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// asked is when the operator spoke, in unix milliseconds.
func (in *Input) asked() int64 {
	if in.Ask.At == 0 || in.Ask.At > in.Now {
		return in.Now
	}
	return in.Ask.At
}

// services that a wish is about.
func (a Ask) services(c Config) []string {
	var out []string
	for _, s := range c.Services {
		if a.Service != "" && s.Name != a.Service {
			continue
		}
		if a.Candidate == "" || slices.ContainsFunc(s.Candidates, func(x Candidate) bool { return CandidateName(x) == a.Candidate }) {
			out = append(out, s.Name)
		}
	}
	return out
}

// resets says whether a reset forgets a candidate's verdict.
func (p *planner) resets(service, candidate string) bool {
	a := p.in.Ask
	return (a.Service != "" || a.Candidate != "") && (a.Service == "" || a.Service == service) && (a.Candidate == "" || a.Candidate == candidate)
}

// keepHolds drops what has run out and takes in what the operator wants.
func (p *planner) keepHolds() {
	var kept []Hold
	for _, h := range p.in.Holds {
		if h.holdsNow(p.in.Now) {
			kept = append(kept, h)
			continue
		}
		p.step(Step{Kind: StepRelease, Service: h.Service, Candidate: h.Candidate, Reason: "the time of " + h.Owner + " ran out" + inBrackets(h.Reason)})
	}
	p.setHolds(kept)
	switch p.in.Command {
	case CommandDrain:
		p.drain()
	case CommandEnable:
		p.enable()
	}
}

func (p *planner) setHolds(list []Hold) {
	list = slices.Clone(list)
	slices.SortFunc(list, compareHolds)
	p.plan.Holds = list
	p.holds = make(map[holdKey]*Hold, len(list))
	for i := range list {
		k := holdKey{list[i].Service, list[i].Candidate}
		if have := p.holds[k]; have == nil || have.Until != 0 && (list[i].Until == 0 || list[i].Until > have.Until) {
			p.holds[k] = &list[i]
		}
	}
}

func compareHolds(a, b Hold) int {
	return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(a.Candidate, b.Candidate), strings.Compare(a.Owner, b.Owner))
}

func (p *planner) holdOf(service, candidate string) *Hold {
	return p.holds[holdKey{service, candidate}]
}

// drain adds a hold for each service that the candidate answers. It does all or nothing.
func (p *planner) drain() {
	a, at := p.in.Ask, p.in.asked()
	before, list := p.plan.Holds, slices.Clone(p.plan.Holds)
	var steps []Step
	names := a.services(p.in.Config)
	for _, name := range names {
		h := Hold{Service: name, Candidate: a.Candidate, Owner: a.Owner, Reason: a.Reason, Since: at / 1000}
		why := "by " + a.Owner + inBrackets(a.Reason)
		if a.For > 0 {
			h.Until = (at + a.For.Milliseconds() + 999) / 1000
			why += ", for " + a.For.Round(time.Second).String()
		}
		i := slices.IndexFunc(list, func(o Hold) bool { return o.Service == name && o.Candidate == a.Candidate && o.Owner == a.Owner })
		switch {
		case i < 0:
			list = append(list, h)
		case list[i].Reason == h.Reason && list[i].Until == h.Until:
			continue
		default:
			h.Since = list[i].Since
			list[i] = h
		}
		steps = append(steps, Step{Kind: StepHold, Service: name, Candidate: a.Candidate, Reason: why})
	}
	p.setHolds(list)
	refused := false
	for _, name := range names {
		refused = p.refuseDrain(name, a) || refused
	}
	if refused && !a.Force {
		p.setHolds(before)
		return
	}
	p.plan.Steps = append(p.plan.Steps, steps...)
}

// refuseDrain says why a drain must not be. The holds are those that it would make.
func (p *planner) refuseDrain(name string, a Ask) bool {
	s := &p.pre.services[p.pre.byName[name]]
	for fi := range s.families {
		f := &s.families[fi]
		if !slices.ContainsFunc(f.candidates, func(c candidate) bool { return c.name == a.Candidate }) {
			continue
		}
		if writer, mine := p.writers.of(f); !mine && !a.Force {
			p.hold(name, HeldNotWriter, "%s moves it: drain %s there, or --force to keep the word here", cmp.Or(writer, "no machine"), a.Candidate)
			return true
		}
		sibling := slices.ContainsFunc(f.candidates, func(c candidate) bool {
			v := p.look(s, &c)
			return c.name != a.Candidate && v.eligible && v.good
		})
		if sibling {
			continue
		}
		if a.Force {
			p.note(name, NoteForced, false, "%s is drained by force: no other candidate is known to be healthy", a.Candidate)
			continue
		}
		p.hold(name, HeldLast, "%s is the last that serves (IPv%d): no other candidate is known to be healthy", a.Candidate, f.n)
		return true
	}
	return false
}

// enable takes back the holds of one owner, by force those of all.
func (p *planner) enable() {
	a := p.in.Ask
	var kept []Hold
	for _, h := range p.plan.Holds {
		about := h.Candidate == a.Candidate && (a.Service == "" || h.Service == a.Service)
		if !about || h.Owner != a.Owner && !a.Force {
			kept = append(kept, h)
			if about {
				p.hold(h.Service+"/"+h.Candidate, HeldOwner, "held by %s%s since %s: --force takes it back", h.Owner, inBrackets(h.Reason), stamp(h.Since))
			}
			continue
		}
		p.step(Step{Kind: StepRelease, Service: h.Service, Candidate: h.Candidate, Reason: "taken back by " + a.Owner + inBrackets(a.Reason)})
	}
	p.setHolds(kept)
}

// stamp is a time for people, from unix seconds.
func stamp(s int64) string {
	if s == 0 {
		return "-"
	}
	return time.Unix(s, 0).UTC().Format(time.RFC3339)
}
