package egress

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// node is one durable situation: what is on disk, where users are, and what is true of the
// world whatever the machine believes.
type node struct {
	mode                                                        state.Mode
	replaced, failed                                            int
	attempt                                                     AttemptKind
	emergency, prior, tried                                     bool // just now; long ago is as good as never
	guarded, declared, refreshed, rebuilt, rebuild, lured, hand bool

	users   bool // travel direct
	alive   bool // the run that makes the attempt
	truth   truth
	despair bool // of the attempt: exhaustion was seen when it began
}

// truth is what the principles speak of.
type truth struct {
	exhausted bool // direct came of exhaustion
	fresh     bool // a refresh succeeded since then
	placed    bool // and its pool was placed
	unplaced  bool // a good refresh's pool waits
	guarded   bool // a guarded refresh ended without giving users a lane, in this cooldown
	said      bool // an operator ended direct by hand
}

func clockOf(now bool) time.Time {
	if now {
		return noon.Add(-time.Second)
	}
	return time.Time{}
}

func justNow(t time.Time) bool { return !t.IsZero() && noon.Sub(t) < time.Hour }

func (n node) state() ModeState {
	s := ModeState{Mode: n.mode, ModeMemory: ModeMemory{
		Failed: n.failed, Emergency: clockOf(n.emergency), Tried: clockOf(n.tried), RetryIn: time.Duration(n.failed) * 30 * time.Second, Guarded: n.guarded,
		Declared: n.declared, Refreshed: n.refreshed, Rebuilt: n.rebuilt, Rebuild: n.rebuild, Lured: n.lured,
		Counted: DayCount{Day: "today"},
	}}
	for range n.replaced {
		s.Replaced = append(s.Replaced, noon.Add(-time.Minute))
	}
	if n.attempt != "" {
		s.Attempt = &OpenAttempt{Kind: n.attempt, Began: noon.Add(-time.Second), Prior: clockOf(n.prior)}
	}
	if n.hand {
		s.Manual = map[string]Manual{"egress1": {Since: noon, Reason: "a test"}}
	}
	return s
}

// with takes over what a state says; mode and memory are two files.
func (n node) with(mode state.Mode, m ModeMemory) node {
	n.mode, n.failed = mode, min(m.Failed, 1)
	n.replaced = min(len(m.Replaced), 2)
	n.emergency, n.tried, n.prior, n.attempt = justNow(m.Emergency), justNow(m.Tried), false, ""
	n.guarded, n.declared, n.refreshed, n.rebuilt, n.rebuild, n.lured = m.Guarded, m.Declared, m.Refreshed, m.Rebuilt, m.Rebuild, m.Lured
	n.hand = len(m.Manual) > 0
	if !isDirect(mode) && !n.hand { // the machine forgets these at its next step, whatever else it sees
		n.declared, n.refreshed, n.rebuilt, n.lured = false, false, false, false
		n.truth.exhausted, n.truth.fresh, n.truth.placed, n.truth.said = false, false, false, false
	}
	if m.Attempt != nil {
		n.attempt, n.prior = m.Attempt.Kind, justNow(m.Attempt.Prior)
	} else {
		n.alive, n.despair = false, false
	}
	return n
}

// deciding is the machine, whole or with one guard broken.
type deciding func(ModeState, ModeObservation, ModePolicy, time.Time) (ModeState, []Action)

type explorer struct {
	next   deciding
	policy ModePolicy
	seen   map[node]bool
	queue  []node
	states map[state.Mode]int
	moves  map[[2]state.Mode]int
	steps  int
	broken map[string]string // principle -> the first path's last step that broke it
}

// testPolicy has a small threshold and two pauses: what is beyond them is only more of the same.
func testPolicy() ModePolicy {
	return ModePolicy{
		Threshold: 2, Window: 24 * time.Hour, Cooldown: 2 * time.Hour, RetryMin: 30 * time.Second, RetryMax: 30 * time.Second,
		Classes: []string{"egress1"}, MayDirect: true,
	}
}

// explore walks through every situation, or until enough principles are broken (0: all).
func explore(next deciding, p ModePolicy, enough int) *explorer {
	x := &explorer{next: next, policy: p, seen: map[node]bool{}, states: map[state.Mode]int{}, moves: map[[2]state.Mode]int{}, broken: map[string]string{}}
	x.push(node{})
	for len(x.queue) > 0 && (enough == 0 || len(x.broken) < enough) {
		n := x.queue[len(x.queue)-1]
		x.queue = x.queue[:len(x.queue)-1]
		x.environment(n)
		for _, o := range observations(n) {
			x.run(n, o)
		}
	}
	return x
}

func (x *explorer) push(n node) {
	if x.seen[n] {
		return
	}
	x.seen[n] = true
	x.states[n.mode]++
	x.queue = append(x.queue, n)
	if n.users && !isDirect(n.mode) && !n.hand {
		x.fail("users are direct only while that is declared", n, ModeObservation{}, nil)
	}
}

func (x *explorer) fail(principle string, n node, o ModeObservation, acts []Action) {
	if _, ok := x.broken[principle]; !ok {
		x.broken[principle] = fmt.Sprintf("%+v\n  saw %+v\n  did %+v", n, o, acts)
	}
}

// environment is what happens beside runs: time, kills, reboots, operators.
func (x *explorer) environment(n node) {
	later := n
	later.emergency, later.tried, later.prior = false, false, false
	later.truth.guarded = false
	x.push(later)
	retry := n
	retry.tried = false
	x.push(retry)
	killed := n
	killed.alive = false
	x.push(killed)
	boot := killed
	boot.users = false // the table is empty after a boot
	x.push(boot)
	on, off := n, n
	on.hand, on.truth.said = true, false
	x.push(on)
	if n.hand {
		off.hand, off.truth.said = false, !n.truth.exhausted
		if !isDirect(n.mode) { // killed before the mode was written: no class has moved yet
			off.users = false
		}
		x.push(off)
	}
}

// observations are all that a run may see in a situation.
func observations(n node) []ModeObservation {
	var out []ModeObservation
	base := []ModeObservation{{Healthy: 0, Exhausted: true}, {Healthy: 0}, {Healthy: 1}, {Healthy: 1, AllUp: true}}
	direct := isDirect(n.mode) || n.hand
	for _, o := range base {
		for _, up := range []bool{false, true} {
			if !up && (o.Healthy > 0 || o.Exhausted) {
				continue // one slot that passes proves the uplink; without it nothing is searched
			}
			o.Uplink = up
			o.Astray = !n.users && (n.hand || isDirect(n.mode) && n.declared)
			out = append(out, withEvents(n, o, direct)...)
		}
	}
	return out
}

// withEvents adds what else may be seen: what ended, together with how lanes are; beside
// that each of the other things, one at a time.
func withEvents(n node, o ModeObservation, direct bool) []ModeObservation {
	main := []ModeObservation{o}
	vary := func(f func(ModeObservation) []ModeObservation) {
		var more []ModeObservation
		for _, o := range main {
			more = append(append(more, o), f(o)...)
		}
		main = more
	}
	attempting := n.attempt != "" && n.alive
	if attempting {
		main[0].Attempting = true
		vary(func(o ModeObservation) []ModeObservation {
			var ends []ModeObservation
			for _, e := range []AttemptEnd{{OK: true, Began: noon, Strategy: "first"}, {Reason: "dead list"}, {Busy: true, Reason: "busy"}} {
				o := o
				o.Attempting, o.Ended = false, &e
				ends = append(ends, o)
			}
			return ends
		})
	}
	if n.rebuild && !attempting {
		vary(func(o ModeObservation) []ModeObservation {
			var ends []ModeObservation
			for _, r := range []RebuildEnd{{OK: true}, {Reason: "none passed"}, {Busy: true}} {
				o := o
				o.Placed = &r
				ends = append(ends, o)
			}
			return ends
		})
	}
	if direct {
		vary(func(o ModeObservation) []ModeObservation {
			weak, strong := o, o
			weak.Filled, weak.Ready, weak.Strict = 2, true, min(o.Healthy, 1)
			if o.Healthy == 0 {
				return []ModeObservation{weak}
			}
			strong.Filled, strong.Strict = 2, 2
			ready := strong
			ready.Ready = true
			return []ModeObservation{weak, strong, ready}
		})
	}
	out := slices.Clone(main)
	for _, o := range main {
		if o.Filled > 0 { // what slots show matters to leaving only
			continue
		}
		count := o
		count.Counts = []DayCount{{Day: "today", N: 1}}
		out = append(out, count)
		if o.Uplink {
			o := o
			o.Returned = true
			out = append(out, o)
		}
		if o.Healthy == 0 && !direct {
			o := o
			o.Failing = "egress1: silent"
			out = append(out, o)
		}
		if attempting || o.Placed != nil {
			continue
		}
		plain, failed, busy, force := o, o, o, o
		plain.Ended = &AttemptEnd{OK: true, Plain: true, Began: noon}
		failed.Ended = &AttemptEnd{Plain: true, Reason: "dead list"}
		busy.Refreshing, force.Force = true, true
		out = append(out, plain, failed, busy, force)
	}
	return out
}

// run is one run with everything that it can leave behind: killed between its two files,
// before, in or after its action, or whole.
func (x *explorer) run(n node, o ModeObservation) {
	s := n.state()
	next, acts := x.next(s, o, x.policy, noon)
	x.steps++
	if s.Mode != next.Mode {
		x.moves[[2]state.Mode{s.Mode, next.Mode}]++
	}
	truth := n.truth.after(n, o, next)
	x.judge(n, o, truth, next, acts)
	leaves := slices.ContainsFunc(acts, func(a Action) bool { return a.Kind == ActLeave })
	if o.Ended != nil && !o.Ended.Plain {
		n.alive, n.despair = false, false
	}
	before := n.truth.unplaced
	n.truth = truth
	if leaves {
		home := n
		home.users, home.truth.unplaced = false, before
		x.push(home)                               // moved, nothing written
		x.push(home.with(next.Mode, s.ModeMemory)) // the word is written
		home = home.with(next.Mode, next.ModeMemory)
		home.truth = truthAtHome(truth)
		x.push(home)
		return
	}
	if next.Mode != s.Mode {
		x.push(n.with(s.Mode, next.ModeMemory)) // killed between the two files
	}
	n = n.with(next.Mode, next.ModeMemory)
	for _, a := range acts {
		switch a.Kind {
		case ActDirect:
			x.push(n) // killed before the transaction, or it failed
			n.users = true
		case ActRefresh:
			x.push(n) // killed before it began
			n.alive, n.despair = true, o.Exhausted
		case ActRebuild, ActLeave, ActUnknown:
		}
	}
	x.push(n)
}

func truthAtHome(t truth) truth {
	return truth{guarded: t.guarded, unplaced: t.unplaced}
}

// after is what is true once the run has seen what it saw.
func (t truth) after(n node, o ModeObservation, next ModeState) truth {
	wasDirect := isDirect(n.mode) || n.hand
	if e := o.Ended; e != nil {
		switch {
		case e.OK:
			t.unplaced = true
			t.fresh = t.fresh || wasDirect
			t.guarded = t.guarded || n.despair
		case !e.Busy && !e.Plain && n.despair && o.Uplink:
			t.guarded = true
		}
	}
	if p := o.Placed; p != nil && !p.Busy && t.unplaced {
		t.unplaced = false
		t.placed = t.placed || p.OK && wasDirect
		if p.OK && !wasDirect {
			t.guarded = false
		}
	}
	if !wasDirect && isDirect(next.Mode) && next.Declared {
		t.exhausted, t.fresh, t.placed = true, false, false
	}
	if wasDirect && o.Exhausted && o.Uplink {
		t.exhausted = true
	}
	return t
}

// judge asserts the principles and the criteria on one step.
func (x *explorer) judge(n node, o ModeObservation, t truth, next ModeState, acts []Action) {
	did := map[ActionKind]bool{}
	var attempt AttemptKind
	for _, a := range acts {
		did[a.Kind] = true
		if a.Kind == ActRefresh {
			attempt = a.For
		}
		if a.Reason == "" {
			x.fail("6 every action has its reason", n, o, acts)
		}
	}
	if next.Mode != n.mode && next.Reason == "" {
		x.fail("6 every transition is logged with its reason", n, o, acts)
	}
	x.judgeDirect(n, o, t, next, acts, did)
	if did[ActRebuild] && !t.unplaced {
		x.fail("1 nothing is placed again from a stale pool", n, o, acts)
	}
	if did[ActLeave] && (did[ActRefresh] || did[ActRebuild] || did[ActDirect]) {
		x.fail("4 users and recovery never move in one step", n, o, acts)
	}
	quiet := n.attempt == "" && !o.Refreshing && !o.Attempting && o.Ended == nil && o.Placed == nil && !n.rebuild
	if isDirect(n.mode) && n.declared && (!n.refreshed || o.Exhausted) && quiet && o.Uplink && !n.tried && !did[ActRefresh] && !did[ActLeave] {
		x.fail("3 recovery never stops because users are direct", n, o, acts)
	}
	if o.Astray && !did[ActDirect] && !did[ActLeave] {
		x.fail("5 what failed or was killed is made good by the next run", n, o, acts)
	}
	if n.attempt != "" && !n.alive && next.Attempt != nil && next.Attempt.Began.Before(noon) {
		x.fail("5 an attempt that was killed blocks nothing", n, o, acts)
	}
	if attempt == AttemptEmergency && (n.replaced+len(o.Counts) < 2 || n.emergency && n.attempt == "") {
		x.fail("as many replacements as the threshold give one emergency refresh in a cooldown", n, o, acts)
	}
	if attempt == AttemptExhaustion && !o.Exhausted {
		x.fail("the cooldown is only bypassed by exhaustion", n, o, acts)
	}
	if did[ActRefresh] && (n.attempt != "" && n.alive && o.Ended == nil || o.Refreshing || !o.Uplink) {
		x.fail("no two refreshes at once, and none without an uplink", n, o, acts)
	}
	if e := o.Ended; e != nil && e.OK {
		other := o
		end := *e
		end.Strategy = "another"
		other.Ended = &end
		s2, acts2 := x.next(n.state(), other, x.policy, noon)
		if !slices.Equal(acts, acts2) || s2.Mode != next.Mode {
			x.fail("7 the machine does not know strategies", n, o, acts)
		}
	}
}

func (x *explorer) judgeDirect(n node, o ModeObservation, t truth, next ModeState, acts []Action, did map[ActionKind]bool) {
	entered := did[ActDirect] && !isDirect(n.mode) && !n.hand
	failed := o.Ended != nil && !o.Ended.OK && !o.Ended.Busy && !o.Ended.Plain
	switch {
	case entered && (!o.Uplink || o.Healthy != 0):
		x.fail("2 direct needs a live uplink and no slot that passes", n, o, acts)
	case entered && !o.Exhausted && (!failed || !n.despair):
		x.fail("2 direct needs exhaustion, not only a failed refresh", n, o, acts)
	case entered && !t.guarded:
		x.fail("2 direct needs a guarded refresh that gave no lane", n, o, acts)
	case entered && !x.policy.MayDirect:
		x.fail("2 a class that must not go direct does not", n, o, acts)
	case !entered && did[ActDirect] && !n.hand && !n.declared && !isDirect(n.mode):
		x.fail("2 direct is declared before users move", n, o, acts)
	}
	if isDirect(n.mode) && !isDirect(next.Mode) && !did[ActLeave] {
		x.fail("direct ends by moving users, never by the word alone", n, o, acts)
	}
	if !did[ActLeave] {
		return
	}
	if n.hand {
		x.fail("direct by hand is never left automatically", n, o, acts)
	}
	declared := t.exhausted || !t.said
	for criterion, holds := range map[string]bool{
		"criterion 1 to 3: access, refresh and a fresh pool": t.fresh || !declared,
		"criterion 4: the fresh pool is placed":              t.placed || !declared,
		"criterion 5: the slots it fills pass strictly":      o.Filled > 0 && o.Strict == o.Filled,
		"criterion 6: users can return safely":               o.Ready && o.Uplink,
	} {
		if !holds {
			x.fail(criterion, n, o, acts)
		}
	}
}

// unlessShort leaves the exploration to the run without -short: the race detector makes it
// ten times slower and has nothing to find in a pure function. `make test` does both.
func unlessShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("millions of transitions: without -short")
	}
}

func TestModesOnEveryPath(t *testing.T) {
	unlessShort(t)
	for name, may := range map[string]bool{"a class may go direct": true, "no class may": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testPolicy()
			p.MayDirect = may
			x := explore(NextMode, p, 0)
			for principle, where := range x.broken {
				t.Errorf("%s: broken in\n  %s", principle, where)
			}
			t.Logf("%d states, %d transitions, %d changes of mode", len(x.seen), x.steps, len(x.moves))
			for _, m := range state.Modes() {
				if x.states[m] == 0 && (may || !isDirect(m)) {
					t.Errorf("mode %s is never reached", m)
				}
				t.Logf("  %s: %d states", m, x.states[m])
			}
		})
	}
}

// Each guard of the machine is broken in turn, by what it is made to believe: the same
// exploration must find a path on which a principle or a criterion no longer holds.
func TestABrokenGuardIsFound(t *testing.T) {
	unlessShort(t)
	type lie func(*ModeState, *ModeObservation, *ModePolicy)
	guards := map[string]lie{
		"a failed refresh alone is exhaustion": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) {
			if s.Attempt != nil {
				s.Attempt.Kind = AttemptExhaustion
			}
		},
		"no look at the uplink":            func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Uplink = true },
		"no guarded refresh before direct": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Guarded, s.Emergency = true, noon },
		"no cooldown":                      func(_ *ModeState, _ *ModeObservation, p *ModePolicy) { p.Cooldown = 0 },
		"no threshold":                     func(_ *ModeState, _ *ModeObservation, p *ModePolicy) { p.Threshold = 1 },
		"any class may go direct":          func(_ *ModeState, _ *ModeObservation, p *ModePolicy) { p.MayDirect = true },
		"a refresh is not needed to leave": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Refreshed = true },
		"a rebuild is not needed to leave": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Rebuilt = true },
		"one good slot is enough to leave": func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Filled = o.Strict },
		"rules are not looked at to leave": func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Ready = true },
		"an operator's word is forgotten":  func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Manual = nil },
		"a pool is placed again and again": func(s *ModeState, _ *ModeObservation, _ *ModePolicy) { s.Rebuild = true },
		"a killed attempt is waited for":   func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Attempting = o.Ended == nil },
		"recovery waits while users are direct": func(s *ModeState, o *ModeObservation, _ *ModePolicy) {
			o.Refreshing = o.Refreshing || isDirect(s.Mode)
		},
		"two refreshes at once":          func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Refreshing = false },
		"users astray are not put right": func(_ *ModeState, o *ModeObservation, _ *ModePolicy) { o.Astray = false },
	}
	for name, lie := range guards {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := func(s ModeState, o ModeObservation, p ModePolicy, now time.Time) (ModeState, []Action) {
				s = s.clone()
				lie(&s, &o, &p)
				return NextMode(s, o, p, now)
			}
			var found []string
			for _, may := range []bool{true, false} {
				p := testPolicy()
				p.MayDirect = may
				if len(found) == 0 {
					for principle := range explore(broken, p, 1).broken {
						found = append(found, principle)
					}
				}
			}
			if len(found) == 0 {
				t.Error("nothing noticed it")
			}
			t.Logf("breaks: %q", found)
		})
	}
}
