package egress

import (
	"context"
	"time"

	"github.com/shunt-net/shunt/internal/run"
)

// quiet is how long a lane may send without receiving before a round is due at once.
const quiet = time.Second

// Wait waits between two rounds, for at most d. It returns sooner when a lane has sent for
// a second and received nothing: traffic notices a death before the next round would.
func (e *Env) Wait(ctx context.Context, d time.Duration) {
	const look = 100 * time.Millisecond
	type mark struct {
		rx, tx int64
		since  time.Duration
	}
	marks := map[string]mark{}
	for left := d; left > 0 && ctx.Err() == nil; left -= look {
		_ = run.Pause(ctx, min(left, look))
		if d <= quiet {
			continue
		}
		for _, l := range e.Config.Lanes {
			v, err := e.Devices.Observe(ctx, l)
			p, ok := v.Active()
			if err != nil || !ok {
				continue
			}
			m, seen := marks[l.Name]
			switch {
			case !seen || p.Rx != m.rx:
				m = mark{rx: p.Rx, tx: p.Tx}
			case p.Tx != m.tx:
				m.since += look
			}
			if m.since >= quiet {
				return
			}
			marks[l.Name] = m
		}
	}
}

// Install puts the static part of the user plane in place, with every class where it is.
func (e *Env) Install(ctx context.Context) (PlaneView, bool, error) {
	p, err := e.begin("plane", true)
	if err != nil {
		return PlaneView{}, false, err
	}
	was, err := e.Plane.Observe(ctx, e.Config)
	if err != nil {
		return was, false, err
	}
	if err := p.observePlane(ctx, true); err != nil {
		return was, false, err
	}
	return p.in.Plane, !was.Ready, p.flushEvents(ctx)
}
