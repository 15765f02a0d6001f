package plane

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ti-mo/conntrack"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
)

// flushTries bounds how often entries are deleted that came up meanwhile.
const flushTries = 5

// Flush deletes the conntrack entries of a home lane's class ("" = every class, and what came
// in by the lane) on a lane, IPv4 and IPv6, and returns how many there were. The kernel picks
// them by the bits of their mark; entries of other classes, of other lanes and of no lane are
// not touched. Lane Direct is flows of the class that went direct. Afterwards none of the class is left, or it is an error. Move the class first: a
// flow that still has its old way is there again with its next packet. With class "" the users
// stay on the lane, which has a new endpoint: what was there is gone, and busy flows are there
// anew at once, by the new path.
func (p *Plane) Flush(ctx context.Context, c egress.Config, class, lane string) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := check(c); err != nil {
		return 0, err
	}
	l, ok := c.Lane(lane)
	if lane == Direct && class != "" { // its flows have a class and no lane
		l, ok = egress.Lane{}, true
	}
	if !ok {
		return 0, fmt.Errorf("flows on %q: no such lane", lane)
	}
	mark, mask := l.Mark, c.Plane.MarkMask
	if class != "" {
		if _, ok := c.Lane(class); !ok {
			return 0, fmt.Errorf("flows of %q: no such lane", class)
		}
		mark |= c.ClassMark(class)
		mask |= c.Plane.ClassMask
	}
	n, err := p.flush(ctx, conntrack.NewFilter().Mark(uint32(mark)).MarkMask(uint32(mask)), class != "")
	if err != nil {
		err = fmt.Errorf("flows of class %s on lane %s (mark %s/%s): %w", orNone(class), lane, mark, mask, err)
	}
	return n, err
}

// flush works on the lasting connection: closing one right after a change of nftables waits
// for the kernel to tidy up. With empty it deletes until none is left; else once, for one
// deletion takes all that were there when it began.
func (p *Plane) flush(ctx context.Context, f conntrack.Filter, empty bool) (n int, err error) {
	if p.ct == nil {
		if p.ct, err = conntrack.Dial(nil); err != nil {
			return 0, fmt.Errorf("conntrack: %w", err)
		}
	}
	conn := p.ct
	// The library knows no deadline; a closed socket ends its waiting.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if !stop() || err != nil {
			_ = conn.Close()
			p.ct = nil
			err = cmp.Or(ctx.Err(), err)
		}
	}()
	for range flushTries {
		left, err := conn.DumpFilter(f, nil)
		if err != nil {
			return n, fmt.Errorf("list: %w", err)
		}
		if len(left) == 0 {
			return n, nil
		}
		if err = conn.FlushFilter(f); err != nil {
			return n, fmt.Errorf("delete: %w", err)
		}
		n += len(left)
		run.Point(ctx, "flows.deleted")
		if !empty {
			return n, nil
		}
	}
	left, err := conn.DumpFilter(f, nil)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d left after %d rounds", len(left), flushTries)
	}
	return n, err
}
