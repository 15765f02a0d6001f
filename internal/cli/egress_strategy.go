package cli

import (
	"context"
	"slices"

	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/provider"
	"github.com/shunt-net/shunt/internal/strategy"
)

// strategies are the ways to the sources of a configuration.
func (a *app) strategies(e *egressEnv, c egress.Config) *strategy.Strategies {
	o := strategy.Options{
		Config: c.Recovery, Test: c.Test, Uplink: c.Uplink.Interface, Lanes: interfaces(c),
		Control: bindTo(c.Uplink.Interface), Describe: e.Library.Describe, Busy: e.BusyPairs, Now: a.Now,
	}
	if slices.ContainsFunc(c.Sources, egress.Source.Leads) {
		o.Reach = func(ctx context.Context, way dial.Func) error {
			return provider.Reach(ctx, c.Sources, provider.Options{DialContext: way})
		}
	}
	return strategy.New(o)
}
