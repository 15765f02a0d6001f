package edgestory

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

// shunts are shunt's own settings as contenders.
func (b *bench) shunts() []*contender {
	return []*contender{
		b.shunt("shunt-confirm", []how{process}, []how{process}, nil, nil),
		b.shunt("shunt-divert", []how{process}, []how{process}, edgeworld.Settings{"on_hint": "divert"}, nil),
		b.shunt("shunt-20ms", []how{process, host}, []how{host}, nil, probes("20ms", "20ms")),
		b.shunt("shunt-1s", []how{host}, nil, nil, nil),
	}
}

// alike is the peers' task: one address of IPv4.
func (s *stage) alike(more, probe edgeworld.Settings) edgeworld.Config {
	return edgeworld.Config{Services: []edgeworld.Settings{service(over(edgeworld.Settings{
		"name": "front", "vip": []string{edgeworld.VIP4}, "port": edgeworld.Port, "candidates": s.ported(0, edgeworld.Port),
		"probe": over(edgeworld.Settings{"type": "tcp"}, probe),
	}, more))}}
}

// shunt is a watchdog with its settings. When it stops its table goes too: the peers are to
// have the address for themselves.
func (b *bench) shunt(name string, kinds, rival []how, more, probe edgeworld.Settings) *contender {
	s := &stage{Env: b.e, w: b.w, r: b.w.Replicas[0]}
	phase, slow := 300*time.Millisecond, name == "shunt-1s"
	if slow {
		phase = time.Second // between its probes
	}
	return &contender{
		gaps: map[how][]gap.Gap{}, again: map[how]int{},
		name: name, target: b.w.VIP(4), kinds: kinds, rival: rival, phase: phase, calm: slow,
		start: func(context.Context) error {
			if err := os.RemoveAll(s.r.State); err != nil {
				return err
			}
			if err := os.MkdirAll(s.r.State, 0o750); err != nil {
				return err
			}
			if err := s.r.Configure(s.alike(more, probe)); err != nil {
				return err
			}
			return s.watch()
		},
		stop: func() {
			if s.wd != nil {
				s.wd.Stop()
			}
			deleteTable(s.r)
			_ = os.Remove(filepath.Join(s.r.State, "watchdog.json"))
		},
		ready: func(ctx context.Context) (*edgeworld.Backend, error) { return s.calm(ctx, true) },
	}
}
