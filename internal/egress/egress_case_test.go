package egress

import (
	"fmt"
	"slices"
	"testing"

	"github.com/shunt-net/shunt/internal/health"
)

// A filter that matches nothing is an operator's slip. With every lane dead beside it that is
// no exhaustion: nobody has tried anything, and users do not go direct by it.
func TestAFilterThatMatchesNothingNeverLeadsToDirect(t *testing.T) {
	for name, filter := range map[string]func(*RebalanceConfig){
		"allow": func(c *RebalanceConfig) { c.Allow = []string{"atlantis*"} },
		"deny":  func(c *RebalanceConfig) { c.Deny = []string{"*"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5, 9)
			w.morning(t)
			filter(&w.env.Config.Rebalance)
			before := fmt.Sprint(w.carries)
			for e := range w.alive { // the lanes die, what the filter keeps out lives
				w.alive[e] = !slices.Contains(slices.Collect(values(w.carries)), e)
			}
			w.list = nil // and the list cannot be had
			for range 300 {
				w.repair(t)
			}
			if isDirect(w.mode(t)) || slices.Contains(slices.Collect(values(w.classes)), direct) {
				t.Errorf("mode %s, classes %v", w.mode(t), w.classes)
			}
			if fmt.Sprint(w.carries) != before {
				t.Errorf("lanes changed: %v, were %s", w.carries, before)
			}
		})
	}
	// Where the filter leaves something, and that is dead too, it is exhaustion as ever.
	w := newWorld(t, 5, 9)
	w.morning(t)
	w.env.Config.Rebalance.Allow = []string{"*"}
	for e := range w.alive {
		w.alive[e] = false
	}
	w.list = nil
	for range 300 {
		w.repair(t)
	}
	if !isDirect(w.mode(t)) {
		t.Errorf("mode %s although everything is dead", w.mode(t))
	}
}

// Bytes that arrive veto silence and nothing else: a lane that answers no ping and completes
// no TLS is dead, though something trickles in.
func TestArrivingBytesDoNotVetoTheDeeperRungs(t *testing.T) {
	s := health.Sample{Device: true, Peer: true, RxGrew: 100 * health.VetoBytes, Deep: true, HalfSize: true}
	var m health.Memory
	var got []health.Verdict
	for range 2 {
		var v health.Verdict
		v, m = health.Judge(m, s, health.Policy{Threshold: 2, Rise: 2})
		got = append(got, v)
	}
	if want := []health.Verdict{health.Suspect, health.Down}; !slices.Equal(got, want) {
		t.Errorf("verdicts %v, want %v", got, want)
	}
	// A full lane completes TLS: it is busy.
	s.TLS = true
	if v, _ := health.Judge(health.Memory{}, s, health.Policy{Threshold: 2, Rise: 2}); v != health.Loaded {
		t.Errorf("a busy lane is %s", v)
	}
}
