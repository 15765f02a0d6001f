package edgestory

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// shunts are shunt's own settings as contenders.
func (b *bench) shunts() []*contender {
	return []*contender{
		b.shunt("shunt-confirm", []how{process}, edgeworld.Config{Service: service(nil)}),
		b.shunt("shunt-divert", []how{process}, edgeworld.Config{Service: service(edgeworld.Settings{"on_hint": "divert"})}),
		b.shunt("shunt-20ms", []how{process, host}, edgeworld.Config{Service: service(nil), Probe: probes("20ms", "20ms")}),
		b.shunt("shunt-1s", []how{host}, edgeworld.Config{Service: service(nil)}),
	}
}

// shunt is a watchdog with its settings. When it stops its table goes too: the peers are to
// have the address for themselves.
func (b *bench) shunt(name string, kinds []how, cfg edgeworld.Config) *contender {
	s := &stage{Env: b.e, w: b.w, r: b.w.Replicas[0]}
	return &contender{
		name: name, target: b.w.VIP(4), kinds: kinds, phase: 300 * time.Millisecond, calm: name == "shunt-1s",
		start: func(context.Context) error {
			if err := os.RemoveAll(s.r.State); err != nil {
				return err
			}
			if err := os.MkdirAll(s.r.State, 0o750); err != nil {
				return err
			}
			if err := s.r.Configure(cfg); err != nil {
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
