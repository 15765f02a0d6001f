// Package plane moves users between lanes: it owns one nftables table, the policy rules
// that send marked packets to the lanes' routing tables, the default routes in them, and
// the conntrack entries of users' flows.
//
// How a packet of a user travels. The chain prerouting gives it a lane's bits in its mark:
// those of its flow if the flow has a lane (ct mark), else those of the lane whose to_N set
// holds its DSCP (IPv6: whose to6_N set holds the mark that stands for its class). `ip rule` sends the mark to table N, where the default route is the lane's
// interface, with a blackhole behind it. The chain forward sees by which interface the
// packet is about to leave. At the lane's own interface the flow gets the lane's and its
// class's bits in its ct mark; a packet of a lane or of a class that would leave by any other
// way out is dropped and counted. So flows never change lanes by themselves, what a lane
// cannot carry leaves nowhere, and what goes from one local network to another is let be.
//
// Rules are static. A run moves only elements of the to_N sets, all in one transaction.
//
// A connection that came in from outside (by a port forward, a TCP SYN to a routed address, or
// to the router itself) is answered by the way it came. Anything else that comes in unasked for
// a user gives its flow no lane: late answers to a flow that was just deleted must not tie its
// successor to the lane that was left.
package plane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"

	"github.com/shunt-net/shunt/internal/egress"
)

// Direct is the position of a class that travels by the uplink on purpose.
const Direct = "direct"

// deadline bounds one call whose context has none.
const deadline = 10 * time.Second

var (
	_ egress.Plane = (*Plane)(nil)
	_ egress.Flows = (*Plane)(nil)
)

// Plane is the door to nftables, policy routing and conntrack of the network namespace in
// which its first call was made. Its sockets are kept until Close: closing one after a
// change of nftables costs about 16 ms. The methods may be called from several goroutines;
// they take turns.
type Plane struct {
	mu     sync.Mutex
	nft    *nftables.Conn
	raw    *mdnetlink.Conn // the socket of nft
	route  *netlink.Handle
	strict *netlink.Handle // its dumps are filtered by the kernel
	ct     *conntrack.Conn
}

// New returns a plane. It opens nothing yet.
func New() *Plane { return &Plane{} }

// Close closes the sockets. The kernel keeps what it was told.
func (p *Plane) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.dropNFT()
	if p.ct != nil {
		err = errors.Join(err, p.ct.Close())
		p.ct = nil
	}
	for _, h := range []*netlink.Handle{p.route, p.strict} {
		if h != nil {
			h.Close()
		}
	}
	p.route, p.strict = nil, nil
	return err
}

// Observe reads the table, the rules and the routes, and changes nothing. Ready says that
// the static part is as it should be; Drift names everything that is not, also what Ensure
// cannot mend. A class whose code points are not all in one place counts as on no lane; a
// lane without code points is always at home.
func (p *Plane) Observe(ctx context.Context, c egress.Config) (egress.PlaneView, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := bounded(ctx)
	defer cancel()
	s, err := p.look(ctx, c)
	if err != nil {
		return egress.PlaneView{}, err
	}
	return s.view(), nil
}

// Drift reads the same as Observe and returns only what differs from the wanted state.
func (p *Plane) Drift(ctx context.Context, c egress.Config) ([]string, error) {
	v, err := p.Observe(ctx, c)
	return v.Drift, err
}

// Ensure makes routes, rules and table as they should be, in this order so that nothing
// marked ever meets a missing route, and puts each class where classes says (home lane ->
// lane, Direct, or "" for none). A class that classes does not name stays where it is; in a
// new table it is on no lane. Where everything is right already nothing is written.
//
// With manage_rules off only the elements of an existing table are touched, and what else
// is missing is the error.
func (p *Plane) Ensure(ctx context.Context, c egress.Config, classes map[string]string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := known(c, classes); err != nil {
		return false, err
	}
	s, err := p.look(ctx, c)
	if err != nil {
		return false, err
	}
	want := s.positions()
	maps.Copy(want, classes)
	if !c.Plane.ManageRules {
		return p.ensureElements(ctx, s, want)
	}

	changed, errs := p.applyRoutes(ctx, s)
	c1, err := p.applyTable(ctx, s, want)
	changed = changed || c1
	if err = errors.Join(append(errs, err)...); err != nil || !changed {
		return changed, err
	}
	if s, err = p.look(ctx, c); err != nil {
		return true, fmt.Errorf("read back: %w", err)
	}
	if left := s.staticDrift(); len(left) > 0 {
		return true, fmt.Errorf("not as it should be after the change: %s", strings.Join(left, "; "))
	}
	return true, s.placed(want)
}

// ensureElements is Ensure where the rules belong to somebody else.
func (p *Plane) ensureElements(ctx context.Context, s *seen, want map[string]string) (bool, error) {
	if missing := s.staticDrift(); len(missing) > 0 && s.table.missingSets(s.c) != nil {
		return false, fmt.Errorf("manage_rules is off, so this has to be made by hand: %s", strings.Join(missing, "; "))
	}
	changed, err := p.applyElements(ctx, s.c, s.table, want)
	if err != nil {
		return changed, err
	}
	if missing := s.staticDrift(); len(missing) > 0 {
		return changed, fmt.Errorf("manage_rules is off, so this has to be made by hand: %s", strings.Join(missing, "; "))
	}
	return changed, nil
}

// Move puts the classes of home lanes onto other lanes in one transaction (moves: home lane
// -> lane, Direct, or "" for none) and reads them back. Nothing else is touched: other
// classes, rules and routes see no change event. Established flows stay until Flush.
func (p *Plane) Move(ctx context.Context, c egress.Config, moves map[string]string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := check(c); err != nil {
		return err
	}
	if err := known(c, moves); err != nil {
		return err
	}
	t, err := p.readSets(ctx, movingSets(c))
	if err != nil {
		return err
	}
	if missing := t.missingSets(c); missing != nil {
		return fmt.Errorf("move: %s", strings.Join(missing, "; "))
	}
	_, err = p.applyElements(ctx, c, t, moves)
	return err
}

// known refuses names of lanes that the configuration does not have.
func known(c egress.Config, classes map[string]string) error {
	for _, home := range slices.Sorted(maps.Keys(classes)) {
		if _, ok := c.Lane(home); !ok {
			return fmt.Errorf("class of %q: no such lane", home)
		}
		if to := classes[home]; to != "" && to != Direct {
			if _, ok := c.Lane(to); !ok {
				return fmt.Errorf("class of %s: to %q: no such lane", home, to)
			}
		}
	}
	return nil
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, deadline)
}
