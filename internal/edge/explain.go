package edge

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
)

// Explanation says why an object is as it is.
type Explanation struct {
	Object string          `json:"object"`
	Kind   string          `json:"kind"` // service | candidate | address
	Facts  []string        `json:"facts"`
	Events []journal.Event `json:"events,omitempty"` // the last ones that name it
}

// Explain says of services, candidates and addresses why they are where they are, from
// tables, state and journal, without a probe. With no name it explains every service.
func (e *Env) Explain(ctx context.Context, names []string) ([]Explanation, error) {
	w := e.world()
	in, _ := w.input(CommandRetarget)
	if err := w.look(ctx, &in); err != nil {
		in.Damage = append(in.Damage, err.Error())
	}
	x := &explainer{world: w, in: in, plan: planWith(in, w.pre)}
	events, _ := journal.Tail(e.State, 5000)
	if len(names) == 0 {
		for _, s := range e.Config.Services {
			names = append(names, s.Name)
		}
	}
	var out []Explanation
	for _, n := range names {
		one, ok := x.explain(n)
		if !ok {
			return nil, &AskError{Msg: fmt.Sprintf("%q is no service, candidate or address", n), Known: x.known()}
		}
		one.Events = about(events, one.names, 12)
		out = append(out, one.Explanation)
	}
	return out, ctx.Err()
}

type explainer struct {
	*world
	in   Input
	plan Plan
}

type explained struct {
	Explanation
	names []string // by which the journal knows it
}

func (x *explained) say(format string, a ...any) {
	x.Facts = append(x.Facts, fmt.Sprintf(format, a...))
}

func (x *explainer) known() []string {
	var out []string
	for _, s := range x.Config.Services {
		out = append(out, s.Name)
	}
	return append(out, candidateNames(x.Config, "")...)
}

func (x *explainer) explain(name string) (explained, bool) {
	out := explained{Explanation: Explanation{Object: name}, names: []string{name}}
	if _, ok := x.pre.byName[name]; ok {
		out.Kind = "service"
		for _, c := range x.plan.Choices {
			if c.Service == name {
				x.service(&out, c)
			}
		}
		return out, true
	}
	service, candidate, both := strings.Cut(name, "/")
	for _, c := range x.plan.Choices {
		for _, st := range c.Candidates {
			byName := st.Candidate == name || both && c.Service == service && st.Candidate == candidate
			if byName || st.Addr.String() == name || st.Addr.Addr().String() == name {
				out.Kind = "candidate"
				out.names = append(out.names, c.Service+"/"+st.Candidate, st.Addr.String())
				x.candidate(&out, c, st)
			}
		}
	}
	if len(out.Facts) == 0 {
		x.address(&out, name)
	}
	return out, len(out.Facts) > 0
}

func (x *explainer) service(out *explained, c Choice) {
	where := cmp.Or(c.Address, fmt.Sprintf("nodes' own IPv%d addresses", c.Family))
	now := c
	now.asIs()
	unseen := x.bySight(&now, x.in.Views)
	switch {
	case unseen != "":
		out.say("%s: %s", where, now.Reason)
	case now.Target.IsValid():
		out.say("%s leads to %s (epoch %d)", where, now.led(), now.Epoch)
	default:
		out.say("%s leads to nobody", where)
	}
	if unseen == "" && now.Reason != "" {
		out.say("%s", now.Reason)
	}
	out.say("its writer is %s", cmp.Or(c.Writer, "nobody"))
	for _, t := range x.in.Memory.Targets {
		if t.Service == c.Service && t.Family == c.Family {
			out.say("last seen or moved by this machine: %s, epoch %d, since %s", t.To, t.Epoch, stamp(t.Since))
		}
	}
	for _, v := range x.in.Views {
		if v.Error != "" {
			out.say("replica %s: %s", v.Replica, v.Error)
			continue
		}
		for _, e := range slices.Concat(v.Table.Targets, v.Table.Nodes) {
			if e.Claim.Service == c.Service && familyOf(e.From.Addr.Addr()) == c.Family {
				out.say("replica %s: %s -> %s, epoch %d by %s", v.Replica, addressOf([]Endpoint{e.From}), e.To, e.Claim.Epoch, e.Claim.By)
			}
		}
	}
	for _, st := range c.Candidates {
		out.say("candidate %s", st.said(x.in.Now/1000))
	}
}

func (x *explainer) candidate(out *explained, c Choice, st Standing) {
	out.say("%s (%s): %s", st.Addr, c.Service, strings.TrimPrefix(st.said(x.in.Now/1000), st.Candidate+" "))
	if st.Node != "" {
		out.say("it runs on %s", st.Node)
	}
	now := c
	now.asIs()
	if x.bySight(&now, x.in.Views) != "" {
		out.say("%s: %s", c.Address, now.Reason)
	} else if c.Was == st.Addr {
		out.say("%s leads to it, epoch %d", c.Address, c.Epoch)
	} else {
		out.say("%s does not lead to it: %s", cmp.Or(c.Address, "the virtual address"), c.Reason)
	}
	for _, v := range x.in.Views {
		for _, e := range v.Table.Nodes {
			if e.To == st.Addr && e.Claim.Service == c.Service {
				out.say("%s of %s leads to it", addressOf([]Endpoint{e.From}), v.Replica)
			}
		}
	}
	h := x.in.Memory.Health[st.Key]
	if h.Asked == 0 {
		out.say("never asked as it is configured now (%s)", st.Key)
		return
	}
	out.say("asked %s ago: %d misses, %d good answers in a row", age(time.Duration(x.in.Now-h.Asked)*time.Millisecond), h.Misses, h.Goods)
	if h.Reason != "" {
		out.say("last complaint: %s", h.Reason)
	}
	if h.Refusing {
		out.say("it answers and takes no logins")
	}
	if h.Lifetime > 0 {
		out.say("it closes an idle connection after %s", h.Lifetime.Round(time.Second))
	}
	if h.Short > 0 {
		out.say("it closed %d idle connections in a row early: a tripwire tells little of it", h.Short)
	}
	if st.Veto != nil {
		out.say("veto since %s by %s", stamp(st.Veto.Since), st.Veto.By)
	}
}

func (x *explainer) address(out *explained, name string) {
	out.Kind = "address"
	for _, v := range x.in.Views {
		for _, e := range slices.Concat(v.Table.Targets, v.Table.Nodes) {
			if e.From.Addr.String() == name || e.From.Addr.Addr().String() == name || addressOf([]Endpoint{e.From}) == name {
				out.names = append(out.names, e.Claim.Service)
				out.say("replica %s: %s (%s) -> %s, epoch %d by %s", v.Replica, addressOf([]Endpoint{e.From}), e.Claim.Service, e.To, e.Claim.Epoch, e.Claim.By)
			}
		}
	}
	for _, a := range x.in.Host.Addresses {
		if a.String() == name {
			out.say("this machine has it")
		}
	}
}

func age(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// about picks the last n events that name one of some objects.
func about(events []journal.Event, names []string, n int) []journal.Event {
	var out []journal.Event
	for i := len(events) - 1; i >= 0 && len(out) < n; i-- {
		ev := events[i]
		if !strings.HasPrefix(ev.Command, "edge ") && ev.Command != CommandWatchdog {
			continue
		}
		for _, name := range names {
			first, _, _ := strings.Cut(ev.Object, " ")
			service, _, _ := strings.Cut(first, "/")
			if ev.Object == name || ev.From == name || ev.To == name || first == name || service == name {
				out = append([]journal.Event{ev}, out...)
				break
			}
		}
	}
	return out
}

// ExplainText renders explanations for people.
func ExplainText(w io.Writer, list []Explanation) {
	for i, x := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s\n", x.Kind, x.Object)
		for _, f := range x.Facts {
			fmt.Fprintf(w, "  %s\n", f)
		}
		for _, ev := range x.Events {
			fmt.Fprintf(w, "  %s %-8s %s\n", ev.Time.UTC().Format(time.RFC3339), ev.Kind, eventText(ev))
		}
	}
}

func eventText(ev journal.Event) string {
	s := ev.Object
	if ev.From != "" || ev.To != "" {
		s += fmt.Sprintf(" %s -> %s", cmp.Or(ev.From, "nobody"), cmp.Or(ev.To, "nobody"))
	}
	if ev.Reason != "" {
		s += ": " + ev.Reason
	}
	return s
}
