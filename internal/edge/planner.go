package edge

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PlanRetarget is the one decision of edge: what each address shall lead to, what each
// reachable table shall hold, and what is to be remembered. It is pure: the same input
// gives the same plan. Drain, enable and reset plan through it too, by in.Ask.
func PlanRetarget(in Input) Plan { return planWith(in, prepare(in.Config, in.Node)) }

// ReplayInput plans a recorded input again.
func ReplayInput(in Input) (Plan, error) {
	if in.Version != InputVersion {
		return Plan{}, fmt.Errorf("input version %d: this program reads version %d", in.Version, InputVersion)
	}
	switch in.Command {
	case CommandRetarget, CommandDrain, CommandEnable, CommandReset, CommandWatchdog:
	default:
		return Plan{}, fmt.Errorf("input of command %q: want retarget, drain, enable, reset or watchdog", in.Command)
	}
	if err := in.Ask.check(in.Command, in.Config); err != nil {
		return Plan{}, err
	}
	return PlanRetarget(in), nil
}

// The commands, as they stand in Input.Command and Plan.Command.
const (
	CommandRetarget = "retarget"
	CommandDrain    = "drain"
	CommandEnable   = "enable"
	CommandReset    = "reset"
	CommandWatchdog = "watchdog"
)

// planner is one decision in the making.
type planner struct {
	in   *Input
	pre  *prepared
	plan Plan

	judge     judgment
	standings map[Key]standing
	fresh     map[Key]bool // vetoes that are new
	diverted  map[Key]bool
	back      map[Key]bool
	holds     map[holdKey]*Hold // the one that lasts longest
	index     []index           // of in.Views
	self      int               // index of this machine's view, -1 = none
	targets   map[targetKey]*Target
	writers   *writers
	decided   [][]decision // service, family
	only      map[string]bool
	noted     map[string]bool
	gone      []Element // of removed services, from this machine's table
	vetoes    []Veto    // that hold, by key
	reset     map[Key]int64
	forgotten map[Key]bool // in this run
	flushed   map[Flush]bool
	links     []OnLink
}

type (
	holdKey   struct{ service, candidate string }
	targetKey struct {
		service string
		family  int
	}
)

// index finds elements of one view.
type index struct {
	targets map[Endpoint]*Element
	nodes   map[Endpoint]*Element
}

// decision is what becomes of one service and family.
type decision struct {
	seen   seen
	was    int // index of the incumbent, -1 = none
	choice choice
	views  []view
	to     netip.AddrPort // invalid = none
	epoch  uint64
	writer string
	writes bool // this machine is its writer
	mine   bool // … and the service may change in this run
	moves  bool
}

func planWith(in Input, pre *prepared) Plan {
	p := &planner{
		in: &in, pre: pre, plan: Plan{Command: in.Command, Steps: []Step{}, Choices: []Choice{}, Tables: map[string]Table{}},
		judge: judgment{now: in.Now, vetoFor: in.Config.vetoFor(), by: cmp.Or(in.Command, CommandRetarget) + " on " + in.Node},
		noted: map[string]bool{},
	}
	p.gather()
	p.writers = p.findWriters()
	p.verdicts()
	p.keepHolds()
	p.decide()
	p.tables()
	p.flushes()
	p.complain()
	p.remember()
	slices.SortStableFunc(p.plan.Steps, func(a, b Step) int { return cmp.Compare(stepOrder(a.Kind), stepOrder(b.Kind)) })
	return p.plan
}

// stepOrder is the order in which steps are told: words, verdicts, what follows from them.
func stepOrder(k StepKind) int {
	return slices.Index([]StepKind{StepHold, StepRelease, StepVeto, StepClear, StepTable, StepMove, StepNode, StepSync, StepFlush}, k)
}

func (p *planner) step(s Step) { p.plan.Steps = append(p.plan.Steps, s) }

// gather makes what is looked up often quick to find.
func (p *planner) gather() {
	p.only = setOf(p.in.Only)
	p.diverted, p.back = setOf(p.in.Diverted), setOf(p.in.Back)
	p.self = -1
	p.in.Views = slices.Clone(p.in.Views)
	p.index = make([]index, len(p.in.Views))
	for i := range p.in.Views {
		v := &p.in.Views[i]
		if v.Local || v.Replica == p.in.Node {
			p.self = i
		}
		if v.Error != "" {
			p.hold(v.Replica, HeldUnreachable, "%s", v.Error)
			continue
		}
		v.Table = v.Table.sorted()
		p.index[i] = index{elements(v.Table.Targets), elements(v.Table.Nodes)}
	}
	p.targets = make(map[targetKey]*Target, len(p.in.Memory.Targets))
	for i := range p.in.Memory.Targets {
		t := &p.in.Memory.Targets[i]
		p.targets[targetKey{t.Service, t.Family}] = t
	}
}

func elements(list []Element) map[Endpoint]*Element {
	m := make(map[Endpoint]*Element, len(list))
	for i := range list {
		m[list[i].From] = &list[i]
	}
	return m
}

func setOf[K comparable](list []K) map[K]bool {
	if len(list) == 0 {
		return nil
	}
	m := make(map[K]bool, len(list))
	for _, k := range list {
		m[k] = true
	}
	return m
}

// scope says whether a service may change in this run.
func (p *planner) scope(service string) bool { return p.only == nil || p.only[service] }

// decide chooses for every service and family.
func (p *planner) decide() {
	p.decided = make([][]decision, len(p.pre.services))
	for si := range p.pre.services {
		s := &p.pre.services[si]
		p.decided[si] = make([]decision, len(s.families))
		for fi := range s.families {
			f := &s.families[fi]
			d := p.decideOne(s, f)
			p.decided[si][fi] = d
			if d.moves && len(f.from) > 0 {
				p.moveStep(s, f, &d)
			}
		}
	}
}

func (p *planner) decideOne(s *service, f *family) decision {
	d := decision{was: -1, views: make([]view, len(f.candidates))}
	for i := range f.candidates {
		d.views[i] = p.look(s, &f.candidates[i])
	}
	d.seen = p.newest(f, p.targets[targetKey{s.Name, f.n}])
	for i, c := range f.candidates {
		if c.addr == d.seen.to {
			d.was = i
			break
		}
	}
	d.choice = choose(s, f, d.views, d.was, p.back)
	p.careful(s, f, &d)
	d.writer, d.writes = p.writers.of(f)
	d.mine = d.writes && p.scope(s.Name)
	d.epoch = d.seen.epoch
	if d.choice.at >= 0 {
		d.to = f.candidates[d.choice.at].addr
	}
	d.moves = d.to != d.seen.to
	switch {
	case !d.mine:
		if d.moves && p.scope(s.Name) {
			p.notMine(s, f, &d)
		}
		d.to, d.moves = d.seen.to, false
	case d.moves, d.seen.conflict:
		d.epoch = raised(d.seen.epoch)
	}
	return d
}

// careful holds back what need not be while the operator's word is not wholly known. Away
// from a dead candidate is always right: even one that is drained answers better.
func (p *planner) careful(s *service, f *family, d *decision) {
	if p.in.HoldsAre == HoldsWhole || d.choice.at == d.was {
		return
	}
	if d.was < 0 || d.views[d.was].vetoed {
		return
	}
	to := "nobody"
	if d.choice.at >= 0 {
		to = f.candidates[d.choice.at].name
	}
	p.hold(s.Name, HeldDamage, "%s is damaged, who is drained is not known for certain: no move to %s", holdsFile, to)
	d.choice.at, d.choice.reason = d.was, "holds are damaged: stays"
}

func (p *planner) notMine(s *service, f *family, d *decision) {
	to := "nobody"
	if d.choice.at >= 0 {
		to = f.candidates[d.choice.at].name
	}
	switch d.writer {
	case "":
		p.hold(s.Name, HeldNotWriter, "would lead to %s (%s), and no machine is its writer", to, d.choice.reason)
	default:
		p.hold(s.Name, HeldNotWriter, "%s moves it; here it would lead to %s: %s", d.writer, to, d.choice.reason)
	}
}

func (p *planner) moveStep(s *service, f *family, d *decision) {
	st := Step{
		Kind: StepMove, Service: s.Name, Address: addressOf(f.from), From: text(d.seen.to), To: text(d.to),
		Epoch: d.epoch, Reason: d.choice.reason,
	}
	if d.choice.at >= 0 {
		st.Candidate = f.candidates[d.choice.at].name
	}
	if d.was < 0 && d.seen.to.IsValid() {
		st.Reason = "what it led to is no candidate any more: " + st.Reason
	}
	p.step(st)
}

// addressOf names the endpoints that are moved as one: 10.0.0.50:25565/tcp+udp.
func addressOf(from []Endpoint) string {
	if len(from) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(from[0].Addr.String())
	for i, e := range from {
		b.WriteByte("/+"[min(i, 1)])
		b.WriteString(string(e.Protocol))
	}
	return b.String()
}

func text(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func (p *planner) hold(object, code, format string, a ...any) {
	if p.noted["held/"+code+"/"+object] {
		return
	}
	p.noted["held/"+code+"/"+object] = true
	p.plan.Held = append(p.plan.Held, Held{Object: object, Code: code, Reason: fmt.Sprintf(format, a...)})
}

func (p *planner) note(object, code string, loud bool, format string, a ...any) {
	if p.noted[code+"/"+object] {
		return
	}
	p.noted[code+"/"+object] = true
	p.plan.Notes = append(p.plan.Notes, Note{Object: object, Code: code, Loud: loud, Text: fmt.Sprintf(format, a...)})
}
