package cli

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/edge"
)

// errBehind says that somebody acts on a configuration that this run has not taken up yet.
var errBehind = errors.New("the configuration is being changed, and somebody goes by the new one already: this run follows in a moment")

// guarded is a replica's table in the hands of a run whose file may be another one by now.
// Until the run goes on with that, it undoes nothing that others have done by it: a target
// that is no candidate of ours, a service that we do not know or that is gone. Deaths of our
// own candidates are moved as ever.
type guarded struct {
	edge.Replicated
	behind func() bool
	known  map[netip.AddrPort]bool // candidates of our configuration
}

// guard puts all of a run's tables into such hands.
func (w *watching) guard(e *edgeEnv) {
	path := config.File(w.loadOptions())
	behind := func() bool { return *w.judged.Load() != fileState(path) }
	known := candidates(e.Config)
	for name, r := range e.Replicas {
		e.Replicas[name] = guarded{Replicated: r, behind: behind, known: known}
	}
}

// candidates are all addresses that services of a configuration may lead to.
func candidates(c edge.Config) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for _, s := range c.Services {
		for _, to := range ends(s) {
			out[to] = true
		}
	}
	return out
}

// ends are the addresses that a service may lead to.
func ends(s edge.Service) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range s.Candidates {
		for _, family := range []int{4, 6} {
			if at := s.Candidates[i].Reached(&s, family); at.IsValid() {
				out = append(out, at)
			}
		}
	}
	return out
}

// Apply implements edge.Replicated.
func (g guarded) Apply(ctx context.Context, was edge.View, want edge.Table) (edge.View, error) {
	if !was.Absent && g.foreign(was.Table, want) && g.behind() {
		return edge.View{}, errBehind
	}
	return g.Replicated.Apply(ctx, was, want)
}

// foreign says whether a table was made by another configuration than what is wanted.
func (g guarded) foreign(was, want edge.Table) bool {
	led := func(list []edge.Element) bool {
		return slices.ContainsFunc(list, func(e edge.Element) bool { return e.To.IsValid() && !g.known[e.To] })
	}
	return led(was.Targets) || led(was.Nodes) || !slices.Equal(was.Services, want.Services)
}
