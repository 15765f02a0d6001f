// Package strategy regains access to the provider's list when the plain way to it fails.
// A strategy is a name and a way to find a way: built in, or an executable in a folder.
// They run in the order of their names, the last winner first, each under a timeout, until
// one has found a way by which a source really answers. What a strategy says of itself is
// not believed.
//
// None of this touches a lane, a route, a rule or a class of users.
package strategy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/tunnel"
)

// The built-in strategies.
const (
	LastKnownPool = "10-last-known-pool" // a tunnel in process through an endpoint of the last pools
	Uplink        = "20-uplink"          // directly, bound to the uplink whatever the routes say
)

// reachWait bounds one attempt to reach a source.
const reachWait = 15 * time.Second

// Options are what the strategies work with.
type Options struct {
	Config egress.RecoveryConfig
	Test   egress.TestConfig // its handshake timeout and targets
	Uplink string            // interface; "" = that of the default route
	Lanes  []string          // interfaces of lanes: never a way to the list

	// Control keeps the sockets of tunnels on the uplink.
	Control tunnel.Control
	// Reach asks the sources by a way, and is the only proof of it; nil = no source is read
	// from the network, so that no way to one can help.
	Reach func(ctx context.Context, way dial.Func) error
	// Describe reads a profile.
	Describe func(path string) (egress.Description, error)
	// Busy makes the question whether a lane has a pair now; it looks until ctx ends.
	Busy func(ctx context.Context) func(pair string) bool
	// Now measures how long strategies took.
	Now func() time.Time
}

// Strategies implement egress.Recovery.
type Strategies struct{ o Options }

var _ egress.Recovery = (*Strategies)(nil)

// New returns the strategies of the options.
func New(o Options) *Strategies { return &Strategies{o} }

// access is what a strategy found.
type access struct {
	way          dial.Func
	iface, proxy string
	detail       string
	close        func() error
}

// one is a strategy that can be run.
type one struct {
	name   string
	reason string // why it cannot
	find   func(ctx context.Context, in egress.RecoveryInput) (access, error)
	says   func(in egress.RecoveryInput) string // for a dry run
}

// Recover runs the strategies until one has access. The Access of its result is a
// dial.Func. That none has is no error; the error is not nil only if ctx ended.
func (s *Strategies) Recover(ctx context.Context, in egress.RecoveryInput) (egress.RecoveryResult, error) {
	var res egress.RecoveryResult
	for _, x := range s.list(in.Winner) {
		if err := ctx.Err(); err != nil {
			return res, fmt.Errorf("recovery: %w", context.Cause(ctx))
		}
		try := egress.StrategyTry{Strategy: x.name}
		switch {
		case x.reason != "":
			try.Reason = x.reason
		case s.o.Reach == nil:
			try.Reason = "no source is read from the network"
		case in.DryRun:
			try.Reason = x.says(in)
		default:
			began := s.o.Now()
			got, err := s.run(ctx, x, in)
			try.Took = s.o.Now().Sub(began)
			if err != nil {
				try.Reason = err.Error()
				break
			}
			try.Success, try.Reason = true, got.detail
			res.Success, res.AccessOK, res.Strategy = true, true, x.name
			res.Interface, res.Proxy = got.iface, got.proxy
			res.Access, res.Close = got.way, got.close
		}
		res.Tried = append(res.Tried, try)
		if res.Success {
			break
		}
	}
	return res, nil
}

// run finds a way and proves it.
func (s *Strategies) run(ctx context.Context, x one, in egress.RecoveryInput) (access, error) {
	limited, cancel := context.WithTimeoutCause(ctx, s.o.Config.Timeout, fmt.Errorf("not done within %s", s.o.Config.Timeout))
	defer cancel()
	got, err := x.find(limited, in)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return access{}, fmt.Errorf("%w (%w)", context.Cause(limited), err)
	}
	return got, err
}

// prove asks the sources by a way.
func (s *Strategies) prove(ctx context.Context, way dial.Func) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWait, fmt.Errorf("no source answered within %s", reachWait))
	defer cancel()
	err := s.o.Reach(ctx, way)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// list is all strategies in their order; the last winner comes first.
func (s *Strategies) list(winner string) []one {
	all := map[string]one{
		LastKnownPool: {name: LastKnownPool, find: s.lastKnown, says: s.saysLastKnown},
		Uplink:        {name: Uplink, find: s.uplink, says: s.saysUplink},
	}
	found, err := s.folder()
	if err != nil {
		// The folder is not trusted: nothing of it is run, and nothing of it turns a built-in off.
		all[s.o.Config.Dir] = one{name: s.o.Config.Dir, reason: err.Error()}
	}
	for _, f := range found {
		if _, builtin := all[f.name]; f.off {
			if builtin {
				all[f.name] = one{name: f.name, reason: "turned off by " + f.path}
			}
			continue
		}
		all[f.name] = one{
			name: f.name, reason: f.reason,
			find: func(ctx context.Context, in egress.RecoveryInput) (access, error) {
				return s.executable(ctx, f.path, in)
			},
			says: func(egress.RecoveryInput) string { return "would run " + f.path },
		}
	}
	out := make([]one, 0, len(all))
	for _, x := range all {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b one) int {
		if (a.name == winner) != (b.name == winner) {
			if a.name == winner {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	return out
}

// uplink asks directly, bound to the uplink: the way that is left when the default route
// leads through a lane.
func (s *Strategies) uplink(ctx context.Context, _ egress.RecoveryInput) (access, error) {
	way := dial.New(dial.Options{Interface: s.o.Uplink})
	if err := s.prove(ctx, way); err != nil {
		return access{}, err
	}
	return access{way: way, iface: s.o.Uplink, detail: "directly by the uplink"}, nil
}

func (s *Strategies) saysUplink(egress.RecoveryInput) string {
	if s.o.Uplink == "" {
		return "would ask the sources directly, by the default route"
	}
	return "would ask the sources directly, bound to " + s.o.Uplink
}
