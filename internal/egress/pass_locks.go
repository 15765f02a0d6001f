package egress

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// candidatesLock is held by the run that chooses endpoints for lanes. It comes after
// lane-NAME in the order of locks and, like them, is never waited for.
const candidatesLock = "candidates"

const lockWait = 3 * time.Second

func (p *pass) locked(ctx context.Context, name string, f func() error) error {
	l, err := p.State.Lock(ctx, name, p.Holder, lockWait)
	if err != nil {
		return err
	}
	return errors.Join(f(), l.Unlock())
}

// lockLane takes a lane for the rest of the pass. False: another run has it, or it has
// changed since it was observed; the plan is made again without it.
func (p *pass) lockLane(ctx context.Context, lane string) (bool, error) {
	if p.locks[lane] != nil {
		return true, nil
	}
	l, err := p.State.Lock(ctx, "lane-"+lane, p.Holder, 0)
	var busy *state.BusyError
	if errors.As(err, &busy) {
		p.in.Busy[lane] = busy.Holder
		return false, nil
	}
	if err != nil {
		return false, err
	}
	seen, _ := p.in.lane(lane)
	d, err := p.Library.Describe(p.Installed(lane))
	if err != nil && !errors.Is(err, os.ErrNotExist) || d.Endpoint != seen.Endpoint {
		p.in.Busy[lane] = "another run changed it since it was observed"
		return false, l.Unlock()
	}
	p.locks[lane] = l
	return true, nil
}

// lockCandidates makes this pass the one that chooses endpoints: two runs that looked for
// replacements at once could prove and place the same one. Lanes that changed since they
// were observed are left alone. False: another run chooses now; what it leaves is the
// next run's.
func (p *pass) lockCandidates(ctx context.Context) (bool, error) {
	if p.locks[candidatesLock] != nil {
		return true, nil
	}
	l, err := p.State.Lock(ctx, candidatesLock, p.Holder, 0)
	var busy *state.BusyError
	if errors.As(err, &busy) {
		for _, s := range p.plan.Steps {
			if s.Kind == StepSwap {
				p.in.Busy[s.Lane] = busy.Holder
			}
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.locks[candidatesLock] = l
	for i := range p.in.Lanes {
		v := &p.in.Lanes[i]
		d, err := p.Library.Describe(p.Installed(v.Name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			continue
		}
		if d.Endpoint != v.Endpoint {
			v.Endpoint, v.Pair, v.Identity = d.Endpoint, d.Pair, d.Identity
			p.in.Busy[v.Name] = "another run changed it since it was observed"
		}
		if it, err := p.readIntent(v.Name); err == nil && v.Intent == nil && it.Run != p.in.Seed {
			v.Intent = &it
		}
	}
	return len(p.in.Busy) == 0, nil
}

func (p *pass) unlockAll() {
	for _, name := range slices.Sorted(mapsKeys(p.locks)) {
		_ = p.locks[name].Unlock()
		delete(p.locks, name)
	}
}
