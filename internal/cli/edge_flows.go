package cli

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/flow"
)

// addFlows counts the connections that went on to each candidate. Where they can't be read,
// that is a warning of its own.
func addFlows(ctx context.Context, f *edge.Facts, flows *flow.Flows) {
	facts, list := wayQuestions(f.Config, f.Node, f.Status)
	found, err := flows.Tally(ctx, list)
	if err != nil {
		f.Lint = append(f.Lint, edge.Finding{
			Where: "conntrack", Code: "conntrack", Warning: true, Mend: "run it as root",
			Text: fmt.Sprintf("can't be read (%v): whether candidates' answers come back this way is not known", err),
		})
		return
	}
	for i, t := range found {
		facts[i].All, facts[i].Pending = t.All, t.Pending
	}
	f.Flows = sums(facts)
}

// wayQuestions are the entries that say something of a candidate's way back. One that is
// known to be dead answers nobody, whatever its way.
func wayQuestions(c edge.Config, node string, s edge.Status) (facts []edge.FlowFact, list []edge.Flush) {
	dead := map[string]map[netip.AddrPort]bool{}
	for _, choice := range s.Services {
		for _, x := range choice.Candidates {
			if x.State != edge.StateVetoed && x.State != edge.StateSuspect {
				continue
			}
			if dead[choice.Service] == nil {
				dead[choice.Service] = map[netip.AddrPort]bool{}
			}
			dead[choice.Service][x.Addr] = true
		}
	}
	for _, s := range c.Services {
		from := vips(c, s, node)
		for _, to := range ends(s) {
			if dead[s.Name][to] {
				continue
			}
			for _, e := range from {
				if e.Addr.Addr().Is4() != to.Addr().Is4() {
					continue
				}
				facts = append(facts, edge.FlowFact{Service: s.Name, Candidate: to})
				list = append(list, edge.Flush{Service: s.Name, From: e, To: to})
			}
		}
	}
	return facts, list
}

// vips are what clients of a service connect to at this machine.
func vips(c edge.Config, s edge.Service, node string) []edge.Endpoint {
	addrs := s.VIP[:len(s.VIP):len(s.VIP)]
	for _, r := range c.Replicas {
		if s.Nodes && r.Name == node {
			addrs = append(addrs, r.Addresses...)
		}
	}
	var out []edge.Endpoint
	for _, a := range addrs {
		for _, p := range s.Protocols {
			out = append(out, edge.Endpoint{Protocol: p, Addr: netip.AddrPortFrom(a, uint16(s.Port))}) //nolint:gosec // a configuration that passed has ports
		}
	}
	return out
}

// sums makes one fact of those of a service's candidate.
func sums(facts []edge.FlowFact) []edge.FlowFact {
	type id struct {
		service   string
		candidate netip.AddrPort
	}
	at := map[id]int{}
	var out []edge.FlowFact
	for _, f := range facts {
		k := id{f.Service, f.Candidate}
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out = append(out, f)
			continue
		}
		out[i].All += f.All
		out[i].Pending += f.Pending
	}
	return out
}
