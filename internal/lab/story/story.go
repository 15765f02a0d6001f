// Package story holds the lab's scenarios: each plays a day of the product in a world of
// its own and measures it. A scenario that must show a zero has a positive control in the
// same run, so that nothing can pass by doing nothing.
package story

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/state"
)

// Scenarios are all scenarios, in the order that they are listed in.
func Scenarios() []lab.Scenario {
	return []lab.Scenario{
		day(),
		poolScenario(),
		loadedScenario(),
		chokeScenario(),
		swapScenario(),
		uplinkScenario(),
		leakScenario(),
		awgScenario(),
		killScenario(),
		strategyScenario(),
		coldstartScenario(),
		emergencyScenario(),
		degradedScenario(),
		directScenario(),
	}
}

// morning builds a world, starts its lanes and does what a first morning does: refresh,
// rebalance, and a repair that gives the first verdict.
func morning(ctx context.Context, e *lab.Env, o lab.WorldOptions) (*lab.World, error) {
	w, err := e.World(ctx, o)
	if err != nil {
		return nil, err
	}
	e.Say("world up in %d ms: %d endpoints, %d lanes", w.Took.Milliseconds(), len(w.Endpoints()), len(w.Lanes))
	if _, err := w.StartLanes(ctx); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"egress", "refresh"}, {"egress", "rebalance"}, {"egress", "repair"}} {
		r := w.Shunt(ctx, args...)
		if err := r.Err(); err != nil {
			return nil, err
		}
		e.Say("shunt %s %s: %d ms", args[0], args[1], r.Took.Milliseconds())
	}
	return w, nil
}

// events reads the router's journal from an offset on, and returns the new offset.
func events(w *lab.World, from int64) ([]journal.Event, int64) {
	f, err := os.Open(filepath.Join(w.State, journal.File))
	if err != nil {
		return nil, from
	}
	defer f.Close()
	if _, err := f.Seek(from, 0); err != nil {
		return nil, from
	}
	var out []journal.Event
	s := bufio.NewScanner(f)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		from += int64(len(s.Bytes())) + 1
		var ev journal.Event
		if json.Unmarshal(bytes.TrimSpace(s.Bytes()), &ev) == nil {
			out = append(out, ev)
		}
	}
	return out, from
}

// awaitEvent waits for an event of the journal after an offset.
func awaitEvent(ctx context.Context, w *lab.World, from int64, d time.Duration, what string, match func(journal.Event) bool) (journal.Event, error) {
	var found journal.Event
	err := lab.Await(ctx, d, what, func() bool {
		list, _ := events(w, from)
		for _, ev := range list {
			if match(ev) {
				found = ev
				return true
			}
		}
		return false
	})
	return found, err
}

// end is where the journal ends now.
func end(w *lab.World) int64 {
	_, n := events(w, 0)
	return n
}

// carried maps lanes to the endpoints that their devices send to now.
func carried(w *lab.World) (map[string]*server.Endpoint, error) {
	out := map[string]*server.Endpoint{}
	for _, l := range w.Lanes {
		x, err := w.Carrying(l.Name)
		if err != nil {
			return nil, fmt.Errorf("lane %s: %w", l.Name, err)
		}
		out[l.Name] = x
	}
	return out, nil
}

// ranked is the first n endpoints of a published pool.
func ranked(w *lab.World, name string, n int) ([]string, error) {
	rows, _, err := state.ReadPool(filepath.Join(w.State, "pools", name))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, r := range rows[:min(n, len(rows))] {
		out = append(out, r.Endpoint)
	}
	return out, nil
}
