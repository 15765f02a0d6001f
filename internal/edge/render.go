package edge

import (
	"cmp"
	"fmt"
	"io"
	"strings"
)

// Text renders the plan for people: what is done, whose traffic moves, what is held back.
func (p Plan) Text(w io.Writer) {
	names := p.names()
	nodes := 0
	for _, s := range p.Steps {
		fmt.Fprintf(w, "%-8s %s: %s\n", s.Kind, s.what(names), s.Reason)
		if s.Kind == StepNode {
			nodes++
		}
	}
	if nodes > 0 {
		fmt.Fprintf(w, "%8s placement changes are routing changes: %s above lead%s elsewhere for new connections\n", "",
			count2(nodes, "node address", "node addresses"), map[bool]string{true: "s"}[nodes == 1])
	}
	for _, h := range p.Held {
		fmt.Fprintf(w, "held     %s: %s (%s)\n", h.Object, h.Reason, h.Code)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(w, "note     %s: %s (%s)\n", n.Object, n.Text, n.Code)
	}
	if len(p.Steps)+len(p.Held)+len(p.Notes) == 0 {
		fmt.Fprintln(w, "nothing to do")
	}
}

func count2(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

type nameKey struct{ service, addr string }

// names of candidates by service and address.
func (p Plan) names() map[nameKey]string {
	m := map[nameKey]string{}
	for _, c := range p.Choices {
		for _, s := range c.Candidates {
			m[nameKey{c.Service, s.Addr.String()}] = s.Candidate
		}
	}
	return m
}

// what says which object a step is about, and whose traffic moves.
func (s Step) what(names map[nameKey]string) string {
	side := func(addr string) string {
		if addr == "" {
			return "nobody"
		}
		if n := names[nameKey{s.Service, addr}]; n != "" && !strings.HasPrefix(addr, n+":") {
			return n + " " + addr
		}
		return addr
	}
	switch s.Kind {
	case StepMove:
		return fmt.Sprintf("%s, clients of %s: %s -> %s (epoch %d)", s.Service, cmp.Or(s.Address, "no address"), side(s.From), side(s.To), s.Epoch)
	case StepNode:
		return fmt.Sprintf("%s, clients of %s's own %s: %s -> %s", s.Service, s.Replica, s.Address, side(s.From), side(s.To))
	case StepSync:
		return fmt.Sprintf("%s on %s, %s: %s -> %s (epoch %d)", s.Service, s.Replica, s.Address, side(s.From), side(s.To), s.Epoch)
	case StepVeto, StepClear:
		return fmt.Sprintf("%s, candidate %s (%s)", s.Service, s.Candidate, s.Address)
	case StepHold, StepRelease:
		return fmt.Sprintf("%s, candidate %s", s.Service, s.Candidate)
	case StepTable:
		return "table of " + s.Replica
	case StepFlush:
		return fmt.Sprintf("%s, entries of %s that lead to %s", s.Service, s.Address, side(s.From))
	case StepUnknown:
	}
	return s.Service
}

// Text renders what a pass did, with its times.
func (r Result) Text(w io.Writer) {
	r.Plan.Text(w)
	for _, m := range r.Moves {
		fmt.Fprintf(w, "moved    %s %s: %.1f ms to the commit", m.Service, m.Address, ms(m.Commit))
		if m.Reached > 0 {
			fmt.Fprintf(w, ", %.1f ms to the first connection", ms(m.Reached))
		}
		if m.Flushed > 0 {
			fmt.Fprintf(w, ", %d conntrack entries deleted", m.Flushed)
		}
		fmt.Fprintln(w)
	}
}

// said is a standing in a few words: proxy-01 up 0.8ms.
func (s Standing) said(now int64) string {
	state := string(cmp.Or(s.State, "unknown"))
	switch {
	case s.Hold != nil:
		state += " by " + s.Hold.Owner + inBrackets(s.Hold.Reason)
		if s.Hold.Until > 0 {
			state += ", until " + stamp(s.Hold.Until)
		}
		if s.Veto != nil {
			state += ", and dead"
		}
	case s.Veto != nil:
		state += fmt.Sprintf(" (%s; for another %d s)", s.Veto.Reason, max(0, s.Veto.Until-now))
	case s.Reason != "":
		state += inBrackets(s.Reason)
	case s.RTT > 0:
		state += " " + s.RTT.Round(10_000).String()
	}
	return s.Candidate + " " + state
}
