package edgestory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

func killScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-kill", Summary: "kill -9 of retarget, drain, enable, reset and the watchdog at each of their kill points and at random moments: at most two runs later, or with the next watchdog, all is as it should be",
		Flags: []lab.Flag{
			{Name: "random", Value: "40", Usage: "kills of runs at random moments"},
			{Name: "watchdogs", Value: "6", Usage: "kills of watchdogs at random moments"},
		},
		Run: playKill,
	}
}

// act is a kind of run that is killed.
type act struct {
	name    string
	prepare func(ctx context.Context, k *killing) error
	args    []string
	want    string // who must serve when all has settled
}

// calmly is no act: a world in which a serves and nothing happens.
func calmly() act { return act{prepare: func(context.Context, *killing) error { return nil }} }

func acts() []act {
	calm := calmly().prepare
	return []act{
		{"first", func(_ context.Context, k *killing) error { return k.wipe() }, []string{"edge", "retarget"}, "a"},
		{"death", func(_ context.Context, k *killing) error { k.w.Backend("a").Kill(); return k.forgetAnswers() }, []string{"edge", "retarget"}, "b"},
		{"drain", calm, []string{"edge", "drain", "front", "a"}, ""},
		{"enable", func(ctx context.Context, k *killing) error {
			return k.r.Shunt(ctx, "edge", "drain", "front", "a").Err()
		}, []string{"edge", "enable", "front", "a"}, "b"},
		{"reset", calm, []string{"edge", "reset", "front"}, "a"},
	}
}

const (
	killTime     = 150 * time.Second // since the beginning: no kills at random moments after it
	killRandomIn = 60 * time.Millisecond
)

// killing is the scenario while it runs.
type killing struct {
	*stage
	log    string
	points map[string]int // killed at
	ended  chan struct{}  // closed when the watchdog in the background has ended
}

func playKill(ctx context.Context, e *lab.Env) error {
	s, done, err := open(ctx, e, edgeworld.Options{Replicas: 2}, backend.Options{}, edgeworld.Config{Service: service(edgeworld.Settings{"nodes": true})})
	if err != nil {
		return err
	}
	defer done()
	k := &killing{stage: s, log: filepath.Join(e.Dir, "points"), points: map[string]int{}}
	began := time.Now()
	kills, inconsistent, err := k.watchdogs(ctx)
	if err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	for _, play := range []func(ctx context.Context, began time.Time) (int, int, error){k.atPoints, k.atRandom} {
		n, bad, err := play(ctx, began)
		if err != nil {
			return err
		}
		kills, inconsistent = kills+n, inconsistent+bad
	}
	e.Count("kills", kills)
	e.Count("inconsistent", inconsistent)
	e.Control("kill_points", float64(len(k.points)), len(k.points) >= 5)
	return k.planted(ctx)
}

// atPoints kills each kind of run at each point that it passes.
func (k *killing) atPoints(ctx context.Context, _ time.Time) (kills, inconsistent int, err error) {
	missed := 0
	for _, a := range acts() {
		points, err := k.rehearse(ctx, a)
		if err != nil {
			return kills, inconsistent, fmt.Errorf("%s: %w", a.name, err)
		}
		for _, p := range points {
			faults, killed, err := k.one(ctx, a, p, 0)
			if err != nil {
				return kills, inconsistent, fmt.Errorf("%s, killed at %s: %w", a.name, p, err)
			}
			if killed {
				kills++
				name, _, _ := strings.Cut(p, ":")
				k.points[name]++
			} else {
				missed++
				k.Say("%s passed no %s this time", a.name, p)
			}
			inconsistent += k.complain(a, p, faults)
		}
	}
	k.Say("%d runs killed at points; %d passed theirs no more", kills, missed)
	k.Control("runs_killed_at_points", float64(kills), kills > 10*missed)
	return kills, inconsistent, nil
}

// atRandom kills runs within killRandomIn of their start, as long as there is time.
func (k *killing) atRandom(ctx context.Context, began time.Time) (kills, inconsistent int, err error) {
	kinds := acts()
	for range k.Int("random") {
		if time.Since(began) > killTime {
			k.Say("no more kills at random moments: %s have passed", killTime)
			break
		}
		a := kinds[rand.IntN(len(kinds))]                        //nolint:gosec // a choice
		after := time.Duration(rand.Int64N(int64(killRandomIn))) //nolint:gosec // a moment
		faults, killed, err := k.one(ctx, a, "", after)
		if err != nil {
			return kills, inconsistent, fmt.Errorf("%s, killed at random: %w", a.name, err)
		}
		if killed {
			kills++
		}
		inconsistent += k.complain(a, "a random moment", faults)
	}
	k.Say("%d runs killed at random moments", kills)
	k.Control("runs_killed_at_random", float64(kills), kills > 0 || k.Int("random") == 0)
	return kills, inconsistent, nil
}

func (k *killing) complain(a act, where string, faults []string) int {
	if len(faults) == 0 {
		return 0
	}
	k.Problem("%s, killed at %s: %s", a.name, where, strings.Join(faults, "; "))
	return 1
}

// wipe takes everything away that a run makes.
func (k *killing) wipe() error {
	for _, r := range k.w.Replicas {
		deleteTable(r)
		if err := os.RemoveAll(r.State); err != nil {
			return err
		}
		if err := os.MkdirAll(r.State, 0o750); err != nil {
			return err
		}
	}
	return nil
}

// begin brings the world to where every act begins: a serves, nobody is held.
func (k *killing) begin(ctx context.Context, a act) error {
	if err := heal(ctx, k.w); err != nil {
		return err
	}
	if err := k.wipe(); err != nil {
		return err
	}
	if err := k.r.Shunt(ctx, "edge", "retarget").Err(); err != nil {
		return err
	}
	return a.prepare(ctx, k)
}

// rehearse plays the act without a kill and returns the points that it passes, each with its
// number.
func (k *killing) rehearse(ctx context.Context, a act) ([]string, error) {
	if err := k.begin(ctx, a); err != nil {
		return nil, err
	}
	_ = os.Remove(k.log)
	if r := k.r.Run(ctx, lab.Call{Args: a.args, Env: []string{"SHUNT_KILL_LOG=" + k.log}}); r.Code != 0 {
		return nil, r.Err()
	}
	return k.passed()
}

// passed are the points that a run has written down, each with its number.
func (k *killing) passed() ([]string, error) {
	b, err := os.ReadFile(k.log)
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	var out []string
	for _, p := range strings.Fields(string(b)) {
		count[p]++
		out = append(out, fmt.Sprintf("%s:%d", p, count[p]))
	}
	return out, nil
}

// killedBy is the exit code of who was ended by kill -9.
const killedBy = 128 + 9

// one kills the act and looks at what two more runs make of it. killed is false where the
// run had ended before.
func (k *killing) one(ctx context.Context, a act, point string, after time.Duration) (faults []string, killed bool, err error) {
	if err := k.begin(ctx, a); err != nil {
		return nil, false, err
	}
	if point != "" {
		killed = k.r.Run(ctx, lab.Call{Args: a.args, Env: []string{"SHUNT_KILL_AT=" + point}}).Code == killedBy
	} else {
		p, err := k.r.Start("killed", a.args...)
		if err != nil {
			return nil, false, err
		}
		lab.Sleep(ctx, after)
		p.Kill()
		killed = p.Stop() == killedBy
	}
	want := a.want
	if a.name == "drain" && k.held() {
		want = "b"
	}
	for range 2 {
		if a.name == "death" {
			if err := k.forgetAnswers(); err != nil {
				return nil, killed, err
			}
		}
		r := k.r.Shunt(ctx, "edge", "retarget")
		faults = k.faults(ctx, want)
		if r.Code != 0 {
			faults = append(faults, fmt.Sprintf("retarget exits %d: %s", r.Code, r.Stderr))
		}
		if len(faults) == 0 {
			return nil, killed, nil
		}
	}
	return faults, killed, nil
}
