package egress

import (
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// untilHome makes rounds, one a second, until every class is at home in mode normal, and
// returns how many that took; -1 = more than most.
func (w *world) untilHome(t *testing.T, most int) int {
	t.Helper()
	for n := range most {
		home := w.mode(t) == state.ModeNormal
		for _, l := range w.env.Config.Lanes {
			home = home && w.classes[l.Name] == l.Name
		}
		if home {
			return n
		}
		w.repair(t)
	}
	return -1
}

// onDirect is a world whose users are direct because everything is dead, since so long.
func (w *world) onDirect(t *testing.T, since int) {
	t.Helper()
	w.everything(false)
	w.repairs(t, 3+since)
	w.allOn(t, direct)
}

// A list that lies on this machine needs no way to it. No strategy could ever find one, and
// users would stay direct for good.
func TestDirectIsLeftWhereTheListIsOnThisMachine(t *testing.T) {
	for name, sources := range map[string][]Source{
		"a folder":                         {{Name: "own", Type: SourceDir, Path: "/x"}},
		"a command that asks nobody":       {{Name: "own", Type: SourceExec, Command: []string{"/x"}}},
		"a command that is led, and a way": {{Name: "own", Type: SourceExec, Command: []string{"/x"}}},
		"an archive in a file":             {{Name: "own", Type: SourceArchive, Path: "/x.zip"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, g := far(t, 9)
			w.env.Config.Sources = sources
			w.morning(t)
			led := strings.Contains(name, "a way")
			g.fails = !led // as strategies do, with no source that they could lead to anything
			w.onDirect(t, 10)
			w.everything(true)
			if n := w.untilHome(t, 60); n < 0 || n > 32 {
				t.Errorf("home after %d s; mode %s, %+v", n, w.mode(t), w.modes(t))
			}
			if asked := len(g.in) > 0; asked != (sources[0].Type == SourceExec) || g.closed > 0 != led {
				t.Errorf("%d runs of strategies, %d ways", len(g.in), g.closed)
			}
		})
	}
}

// While a source is remote, what lies on this machine is not the list: it only helps to find
// a way to it.
func TestDirectIsLeftByTheRemoteListOnly(t *testing.T) {
	w, g := far(t, 9)
	w.morning(t)
	g.in = nil
	w.onDirect(t, 10)
	w.everything(true)
	g.fails = true
	w.repairs(t, 300)
	w.allOn(t, direct)
	last := g.in[len(g.in)-1]
	if own := last.Pools[len(last.Pools)-1]; own.Name != PoolSources || len(own.Rows) != 9 {
		t.Errorf("strategies do not hear of the folder: %s, %d rows", own.Name, len(own.Rows))
	}
	g.fails = false
	if n := w.untilHome(t, 700); n < 0 {
		t.Errorf("mode %s, %+v", w.mode(t), w.modes(t))
	}
}

// Hours of failed attempts must not keep users from their lanes for minutes, once those pass.
func TestThePauseOfALongOutageIsNotWaitedFor(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	list := w.list
	w.list = nil
	w.onDirect(t, 0)
	for range 120 { // an hour, with a round in each half minute
		w.pass(29 * time.Second)
		w.repair(t)
	}
	if in := w.modes(t).RetryIn; in != w.env.Config.Modes.RetryMax {
		t.Fatalf("the pause is %s after an hour", in)
	}
	w.everything(true)
	w.repairs(t, 40) // the lanes pass at once, the list is there a bit later
	w.allOn(t, direct)
	w.list = list
	if n := w.untilHome(t, 120); n < 0 || n > 62 {
		t.Errorf("home %d s after the list was; %+v", n, w.modes(t))
	}
}

// A short cut of the uplink right after an attempt is news all the same.
func TestTheUplinksReturnIsNotForgotten(t *testing.T) {
	w := newWorld(t, 5, 9)
	w.morning(t)
	list := w.list
	w.list = nil
	if _, err := w.env.State.AddCount(t.Context(), Day(w.now), 5); err != nil {
		t.Fatal(err)
	}
	for tried := w.refreshes(t); w.modes(t).RetryIn < w.env.Config.Modes.RetryMax || w.refreshes(t) == tried; {
		tried = w.refreshes(t)
		w.repair(t)
	}
	w.uplink = false
	w.repairs(t, 5)
	w.uplink = true
	w.list = list
	w.repairs(t, 40)
	if w.mode(t) != state.ModeNormal {
		t.Errorf("40 s after the uplink returned: mode %s, %+v", w.mode(t), w.modes(t))
	}
}

// An endpoint of the fresh pool that dies again before users come back is no slot that the
// pool can fill: its class is lent, and the others do not wait for it.
func TestALaneThatNothingCanFillKeepsNobodyDirect(t *testing.T) {
	for name, dies := range map[string]func(*world){
		"its endpoint dies":     func(w *world) { w.alive[w.carries["egress5"]] = false },
		"its interface is gone": func(w *world) { w.gone = "egress5" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, 5)
			w.morning(t)
			w.onDirect(t, 100)
			w.everything(true)
			w.drifts = true // rules are not as they should be: users stay where they are
			for range 100 {
				if m := w.modes(t); m.Refreshed && m.Rebuilt {
					break
				}
				w.repair(t)
			}
			w.allOn(t, direct)
			dies(w)
			w.repairs(t, 5)
			w.drifts = false
			w.repairs(t, 5)
			if isDirect(w.mode(t)) || w.classes["egress1"] != "egress1" || w.classes["egress5"] == direct || w.classes["egress5"] == "egress5" {
				t.Errorf("mode %s, classes %v", w.mode(t), w.classes)
			}
		})
	}
}

// What was placed in direct and died before users came back asks for another list.
func TestRecoveryGoesOnWhenTheFreshPoolDies(t *testing.T) {
	w := newWorld(t, 3, 12)
	list := w.list
	w.list = list[:4]
	w.morning(t)
	w.onDirect(t, 100)
	for _, e := range list[:4] {
		w.alive[e] = true
	}
	w.drifts = true
	for range 100 {
		if m := w.modes(t); m.Refreshed && m.Rebuilt {
			break
		}
		w.repair(t)
	}
	w.everything(false)
	w.repairs(t, 40)
	w.drifts = false
	w.list = list[4:] // the provider has others now
	for _, e := range w.list {
		w.alive[e] = true
	}
	if n := w.untilHome(t, 700); n < 0 {
		t.Errorf("mode %s, %+v", w.mode(t), w.modes(t))
	}
}
