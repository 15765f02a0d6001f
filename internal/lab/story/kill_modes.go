package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/plane"
	"github.com/shunt-net/shunt/internal/state"
)

// modePoints are the kill points of changes of modes: the ways to direct and back, and
// attempts.
func modePoints() []string {
	return []string{"attempt.begun", "attempt.ended", "mode.written", "modes.remembered", "pool.placed", "users.moved"}
}

// furtherRuns is how many repairs may follow a kill before modes are what the world is.
const furtherRuns = 2

// modePause is every pause of the tours' configuration.
const modePause = 50 * time.Millisecond

// tour is a way through modes that begins and ends at home in mode normal. On each leg of
// it one command is killed.
type tour struct {
	name     string
	settings lab.Settings
	legs     []leg
}

// leg is one transition.
type leg struct {
	name    string
	args    []string
	prepare func(ctx context.Context) error
	modes   []state.Mode // one of which must be written at most furtherRuns after the kill
	users   string       // "home", "direct", or "" where the command may not have been heard
	heard   func(m egress.ModeMemory) bool
}

func plainRepair() []string { return []string{"egress", "repair"} }

// tours are all transitions of modes.
func (k *killer) tours() []tour {
	direct := []state.Mode{state.ModeDirect, state.ModeExternalRecovery}
	normal, degraded := []state.Mode{state.ModeNormal}, []state.Mode{state.ModeDegraded}
	return []tour{
		{
			name: "exhausted", settings: lab.Settings{"egress.modes.threshold": 1000, "egress.modes.cooldown": "2h"},
			legs: []leg{
				{name: "exhausted, to direct", args: plainRepair(), prepare: k.allSilent, modes: direct, users: plane.Direct},
				{name: "direct after a boot", args: plainRepair(), prepare: k.boots, modes: direct, users: plane.Direct},
				{name: "recovery that fails", args: []string{"egress", "recover"}, prepare: nothing, modes: direct, users: plane.Direct},
				{name: "recovery, and back", args: repairArgs(), prepare: k.allAlive, modes: normal, users: "home"},
			},
		},
		{
			name: "by hand",
			legs: []leg{
				{name: "direct on", args: order("on"), prepare: nothing, heard: func(m egress.ModeMemory) bool { return len(m.Manual) == len(k.w.Lanes) }},
				{name: "direct off", args: order("off"), prepare: nothing, heard: func(m egress.ModeMemory) bool { return len(m.Manual) == 0 }},
				{name: "direct on, one class", args: order("on", "--class", k.w.Lanes[1].Name), prepare: nothing, heard: func(m egress.ModeMemory) bool { return len(m.Manual) == 1 }},
				{name: "direct off, one class", args: order("off", "--class", k.w.Lanes[1].Name), prepare: nothing, heard: func(m egress.ModeMemory) bool { return len(m.Manual) == 0 }},
			},
		},
		{
			name: "emergency", settings: lab.Settings{"egress.modes.threshold": 5, "egress.modes.cooldown": "1ms"},
			legs: []leg{
				{name: "emergency refresh", args: repairArgs(), prepare: k.tooMany, modes: normal, users: "home"},
				{name: "emergency refresh that fails", args: plainRepair(), prepare: k.tooManyAndNoList, modes: degraded, users: "home"},
				{name: "degraded, and back", args: []string{"egress", "refresh", "--if-due"}, prepare: k.listAgain, modes: normal, users: "home"},
			},
		},
	}
}

func nothing(context.Context) error { return nil }

func order(word string, more ...string) []string {
	return append([]string{"egress", "direct", word, "--reason", "a test"}, more...)
}

// modeSpot is where a leg's run is to be killed: at a point, or so long after its begin.
type modeSpot struct {
	point string
	n     int
	after time.Duration
}

func (s modeSpot) call() lab.Call {
	if s.after > 0 {
		return lab.Call{Kill: s.after}
	}
	return lab.Call{Env: []string{fmt.Sprintf("SHUNT_KILL_AT=%s:%d", s.point, s.n)}}
}

// atModes kills at each point of each transition of modes, each time that its run gets
// there, and where a leg has no such place left, at a random instant of it.
func (k *killer) atModes(ctx context.Context) error {
	if err := k.beginModes(ctx); err != nil {
		return err
	}
	began := k.table.kills()
	for _, t := range k.tours() {
		if err := k.w.Configure(t.settings); err != nil {
			return err
		}
		if err := k.dryTour(ctx, t); err != nil {
			return err
		}
		spots := k.modeSpots(t)
		for slices.ContainsFunc(slices.Collect(maps.Values(spots)), func(list []modeSpot) bool { return len(list) > 0 }) {
			if err := k.play(ctx, t, spots); err != nil {
				return fmt.Errorf("tour %s: %w", t.name, err)
			}
		}
	}
	for n := 0; k.table.killsAt(randomly) < k.e.Int("random"); n++ {
		t := k.tours()[n%len(k.tours())]
		if n > k.e.Int("random")*killAgain {
			return fmt.Errorf("only %d of %d random kills met a running command", k.table.killsAt(randomly), k.e.Int("random"))
		}
		if err := errors.Join(k.w.Configure(t.settings), k.play(ctx, t, nil)); err != nil {
			return fmt.Errorf("tour %s: %w", t.name, err)
		}
	}
	k.e.Say("%d kills on the ways through modes; at most %d runs made them good", k.table.kills()-began, k.modeRuns)
	return nil
}

// beginModes makes the list short and the pauses too: a tour passes both several times.
func (k *killer) beginModes(ctx context.Context) error {
	if err := k.w.Offer(k.w.Endpoints()[:len(k.w.Lanes)+3]); err != nil {
		return err
	}
	err := k.w.Configure(lab.Settings{
		"egress.rebalance.allow": nil, "egress.modes.retry_min": modePause.String(), "egress.modes.retry_max": modePause.String(), "egress.repair.retry_after": modePause.String(),
		"egress.test.handshake_timeout": "300ms", "egress.test.ping_timeout": "200ms", "egress.repair.prove_for": "400ms", "egress.check.wait": "120ms",
	})
	if err != nil {
		return err
	}
	if err := k.w.Shunt(ctx, "egress", "refresh", "--accept-small").Err(); err != nil {
		return err
	}
	if err := k.w.Shunt(ctx, "egress", "rebalance").Err(); err != nil {
		return err
	}
	r, err := k.readRecords()
	if err != nil {
		return err
	}
	k.wasRows, k.wasCounted = len(r.quarantine), r.counted
	if err := k.homeAgain(ctx, "the world before the first tour"); err != nil {
		return err
	}
	return k.controlModes(ctx)
}

// dryTour plays a tour whole, and notes the points of its legs.
func (k *killer) dryTour(ctx context.Context, t tour) error {
	for _, l := range t.legs {
		log, err := k.log()
		if err != nil {
			return err
		}
		r, err := k.walk(ctx, l, lab.Call{Env: []string{"SHUNT_KILL_LOG=" + log}})
		if err != nil {
			return fmt.Errorf("tour %s, %s, not killed: %w", t.name, l.name, err)
		}
		k.points[l.name], k.took[l.name] = k.read(log), r.Took
	}
	return k.homeAgain(ctx, "tour "+t.name+", not killed")
}

// modeSpots are the places of each leg: every time that its run gets to a point of modes,
// and of each point at least as many as are asked for, where the tour gets there at all.
func (k *killer) modeSpots(t tour) map[string][]modeSpot {
	out, per := map[string][]modeSpot{}, map[string]int{}
	add := func(l leg, point string, n int) {
		out[l.name] = append(out[l.name], modeSpot{point: point, n: n})
		per[point]++
	}
	for _, l := range t.legs {
		for _, point := range modePoints() {
			for n := range min(k.points[l.name][point], 3) {
				add(l, point, n+1)
			}
		}
	}
	share := (k.e.Int("each") + len(k.tours()) - 1) / len(k.tours())
	for _, point := range modePoints() {
		for _, l := range t.legs {
			for n := k.points[l.name][point]; n > 0 && per[point] < share; {
				add(l, point, n)
			}
		}
	}
	return out
}

// play kills a command on each leg, and ends at home.
func (k *killer) play(ctx context.Context, t tour, spots map[string][]modeSpot) error {
	for _, l := range t.legs {
		at := modeSpot{point: randomly, after: 2*time.Millisecond + time.Duration(k.rng.Int64N(int64(k.took[l.name])))}
		if list := spots[l.name]; len(list) > 0 {
			at, spots[l.name] = list[0], list[1:]
		}
		r, err := k.walk(ctx, l, at.call())
		if r.Code == codeKilled {
			k.table.add(at.point, l.name, err != nil)
		}
		if err == nil {
			continue
		}
		k.e.Problem("%s, killed at %s %d after %s: %v", l.name, at.point, at.n, r.Took.Round(time.Millisecond), err)
		if err := k.allAlive(ctx); err != nil {
			return err
		}
		return k.homeAgain(ctx, "after that")
	}
	return k.homeAgain(ctx, "tour "+t.name)
}

// codeKilled is the exit code of a command that was killed.
const codeKilled = 128 + 9

// walk does one leg. What must be so at once is looked at where the command ended; what the
// next runs must make good, after at most furtherRuns of them.
func (k *killer) walk(ctx context.Context, l leg, c lab.Call) (lab.Result, error) {
	if err := l.prepare(ctx); err != nil {
		return lab.Result{}, err
	}
	c.Args = l.args
	r := k.w.Run(ctx, c)
	if !slices.Contains([]int{0, 1, 3, 4, codeKilled}, r.Code) {
		return r, fmt.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	f := &findings{}
	k.checkInstant(f)
	for n := 0; len(f.list) == 0; n++ {
		after := &findings{}
		k.checkModes(l, after)
		if len(after.list) == 0 {
			k.modeRuns = max(k.modeRuns, n)
			break
		}
		if n == 0 && r.Code == codeKilled {
			k.unfinished++
		}
		if n == furtherRuns {
			f.list = append([]string{fmt.Sprintf("after %d further runs", n)}, after.list...)
			break
		}
		lab.Sleep(ctx, modePause) // no pause of the product is longer
		if r := k.w.Shunt(ctx, plainRepair()...); !slices.Contains([]int{0, 3, 4}, r.Code) {
			f.add("repair: exit code %d: %s", r.Code, r.Stderr)
		}
		k.checkInstant(f)
	}
	if len(f.list) > 0 {
		return r, fmt.Errorf("%v", f.list)
	}
	return r, k.heard(ctx, l)
}

// heard gives an order again that a killed command may not have taken down.
func (k *killer) heard(ctx context.Context, l leg) error {
	if l.heard == nil {
		return ctx.Err()
	}
	s, err := k.readModes()
	if err != nil {
		return err
	}
	if !l.heard(s.memory) {
		if err := k.w.Shunt(ctx, l.args...).Err(); err != nil {
			return err
		}
		if s, err = k.readModes(); err != nil || !l.heard(s.memory) {
			return fmt.Errorf("the order is not taken down: %+v, %w", s.memory.Manual, err)
		}
	}
	f := &findings{}
	k.checkInstant(f)
	if k.checkModes(l, f); len(f.list) > 0 {
		return fmt.Errorf("ordered again: %v", f.list)
	}
	return ctx.Err()
}

// allSilent makes every endpoint fall silent, and has the first round that fails behind it.
func (k *killer) allSilent(ctx context.Context) error {
	if err := setAll(k.w.Endpoints(), server.Silent()); err != nil {
		return err
	}
	k.w.Shunt(ctx, plainRepair()...)
	return ctx.Err()
}

func (k *killer) allAlive(context.Context) error { return setAll(k.w.Endpoints(), server.Alive()) }

// tooMany raises the day's counter by hand.
func (k *killer) tooMany(context.Context) error {
	path := filepath.Join(k.w.State, "fail-counter", time.Now().Format(time.DateOnly)+".count")
	n := 0
	if b, err := os.ReadFile(path); err == nil {
		_, _ = fmt.Sscan(string(b), &n)
	}
	k.byHand += 5
	return os.WriteFile(path, fmt.Appendf(nil, "%d\n", n+5), 0o640) //nolint:gosec // as an operator's script would
}

func (k *killer) tooManyAndNoList(ctx context.Context) error {
	if err := k.w.Offer(nil); err != nil {
		return err
	}
	return k.tooMany(ctx)
}

func (k *killer) listAgain(context.Context) error {
	return k.w.Offer(k.w.Endpoints()[:len(k.w.Lanes)+3])
}
