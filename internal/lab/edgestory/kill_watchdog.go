package edgestory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
)

// killLast is how many of a point's later passes are killed at, beside the first ones: a
// watchdog passes some of them again and again.
const killLast = 2

// watchdogs kills watchdogs around the death of a server: at each of their kill points and
// at random moments. The next watchdog must make all as it should be.
func (k *killing) watchdogs(ctx context.Context) (kills, inconsistent int, err error) {
	points, err := k.rehearseWatchdog(ctx)
	if err != nil {
		return 0, 0, err
	}
	a := act{name: "watchdog"}
	for _, p := range points {
		faults, killed, err := k.oneWatchdog(ctx, p)
		if err != nil {
			return kills, inconsistent, fmt.Errorf("killed at %s: %w", p, err)
		}
		if killed {
			kills++
			name, _, _ := strings.Cut(p, ":")
			k.points[name]++
		}
		inconsistent += k.complain(a, p, faults)
	}
	for range k.Int("watchdogs") {
		faults, _, err := k.oneWatchdog(ctx, "")
		if err != nil {
			return kills, inconsistent, fmt.Errorf("killed at random: %w", err)
		}
		kills++
		inconsistent += k.complain(a, "a random moment", faults)
	}
	k.Say("%d watchdogs killed, at %d points", kills, len(points))
	k.Control("watchdogs_killed", float64(kills), kills >= 5)
	return kills, inconsistent, nil
}

// rehearseWatchdog lets a watchdog see a server die and returns the points that it passes,
// each with its number: the first and the last ones of each.
func (k *killing) rehearseWatchdog(ctx context.Context) ([]string, error) {
	if err := k.begin(ctx, calmly()); err != nil {
		return nil, err
	}
	_ = os.Remove(k.log)
	end := k.background(ctx, "SHUNT_KILL_LOG="+k.log)
	k.die(ctx, nil)
	lab.Sleep(ctx, 500*time.Millisecond) // its records
	if r := end(true); leads(k.r.NS) != k.w.Backend("b").Addr4 {
		return nil, fmt.Errorf("it moves nothing: %s", r.Stderr)
	}
	all, err := k.passed()
	if err != nil {
		return nil, err
	}
	by := map[string][]string{}
	for _, p := range all {
		name, _, _ := strings.Cut(p, ":")
		by[name] = append(by[name], p)
	}
	var out []string
	for _, p := range all {
		name, _, _ := strings.Cut(p, ":")
		if i := slices.Index(by[name], p); i < killLast || i >= len(by[name])-killLast {
			out = append(out, p)
		}
	}
	return out, nil
}

// background runs a watchdog; the function that it gives waits for its end, or kills it.
func (k *killing) background(ctx context.Context, env ...string) (end func(kill bool) lab.Result) {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan lab.Result, 1)
	go func() { got <- k.r.Run(ctx, lab.Call{Args: []string{"-v", "watchdog", "--for", "40s"}, Env: env}) }()
	k.ended = make(chan struct{})
	ended := k.ended
	done := make(chan lab.Result, 1)
	go func() {
		done <- <-got
		close(ended)
	}()
	return func(kill bool) lab.Result {
		if kill {
			cancel()
		}
		defer cancel()
		return <-done
	}
}

// gone says whether the watchdog in the background has ended.
func (k *killing) gone() bool {
	select {
	case <-k.ended:
		return true
	default:
		return false
	}
}

// die kills the first server once the watchdog holds a tripwire at it, or has ended, and
// waits for the move or the watchdog's end.
func (k *killing) die(ctx context.Context, before func()) {
	a, b := k.w.Backend("a"), k.w.Backend("b")
	_ = lab.Await(ctx, 5*time.Second, "a tripwire", func() bool {
		n, err := a.Held(k.r.Back4)
		return k.gone() || err == nil && n > 0
	})
	if before != nil {
		before()
	}
	a.Kill()
	_ = lab.Await(ctx, 3*time.Second, "the move", func() bool {
		return k.gone() || leads(k.r.NS) == b.Addr4 && leads(k.w.Replicas[1].NS) == b.Addr4
	})
}

// oneWatchdog kills a watchdog, at a point or within 20 ms of the server's death, and looks
// at what the next one makes of it.
func (k *killing) oneWatchdog(ctx context.Context, point string) (faults []string, killed bool, err error) {
	if err := k.begin(ctx, calmly()); err != nil {
		return nil, false, err
	}
	if point != "" {
		end := k.background(ctx, "SHUNT_KILL_AT="+point)
		k.die(ctx, nil)
		_ = lab.Await(ctx, 3*time.Second, "its end", k.gone) // what it writes at its leisure
		killed = k.gone()
		end(!killed)
	} else {
		end := k.background(ctx)
		after := time.Duration(rand.Int64N(int64(20 * time.Millisecond))) //nolint:gosec // a moment
		k.die(ctx, func() { time.AfterFunc(after, func() { end(true) }) })
		_ = lab.Await(ctx, 5*time.Second, "its end", k.gone)
		killed = true
	}
	if err := k.watch(); err != nil {
		return nil, killed, err
	}
	defer k.wd.Stop()
	_ = lab.Await(ctx, 15*time.Second, "order", func() bool {
		lab.Sleep(ctx, 100*time.Millisecond)
		faults = k.faults(ctx, "b")
		return len(faults) == 0
	})
	return faults, killed, nil
}
