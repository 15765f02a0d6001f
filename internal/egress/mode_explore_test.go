package egress

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// deciding is the machine, whole or with one guard broken.
type deciding func(ModeState, ModeObservation, ModePolicy, time.Time) (ModeState, []Action)

// step is what one run does: it is the same for all situations that look the same to it.
type step struct {
	o                       *ModeObservation
	next                    int32 // on disk afterwards
	memory, word            int32 // on disk if it is killed between the two files: the new memory, or the new word
	kind                    AttemptKind
	enters, leaves, rebuild bool // actions; enters also moves who is astray
	goes                    bool // direct is declared
}

// view is what the machine sees of a situation.
type view struct {
	disk  int32
	sight sight
}

// explorer walks through every situation that can be reached, the nearest first.
type explorer struct {
	next   deciding
	policy ModePolicy
	sights map[sight][]*ModeObservation
	number map[durable]int32
	disks  []durable
	steps  map[view][]step
	seen   map[node]bool
	nodes  []node
	came   []int32 // from which node
	at     int32   // the node that is walked from
	done   int     // transitions
	moves  map[[2]state.Mode]int
	broken map[string]string // principle -> the path that broke it
}

// explore goes on until every situation was seen, or a principle is broken.
func explore(next deciding, p ModePolicy) *explorer {
	x := &explorer{
		next: next, policy: p, sights: map[sight][]*ModeObservation{}, number: map[durable]int32{}, steps: map[view][]step{},
		seen: map[node]bool{}, moves: map[[2]state.Mode]int{}, broken: map[string]string{},
	}
	x.push(node{disk: x.disk(durable{})})
	for ; int(x.at) < len(x.nodes) && len(x.broken) == 0; x.at++ {
		n := x.nodes[x.at]
		x.environment(n)
		steps := x.from(n)
		for i := range steps {
			x.run(n, &steps[i])
		}
		x.done += len(steps)
	}
	return x
}

// states counts situations by their mode.
func (x *explorer) states() map[state.Mode]int {
	out := map[state.Mode]int{}
	for _, n := range x.nodes {
		out[x.disks[n.disk].mode]++
	}
	return out
}

func (x *explorer) disk(d durable) int32 {
	i, ok := x.number[d]
	if !ok {
		i = int32(len(x.disks)) //nolint:gosec // some thousands
		x.number[d], x.disks = i, append(x.disks, d)
	}
	return i
}

func (x *explorer) push(n node) {
	d := &x.disks[n.disk]
	if d.attempt == "" {
		n.alive, n.despair, n.truth.before = false, false, false
	}
	if x.seen[n] {
		return
	}
	x.seen[n] = true
	x.nodes, x.came = append(x.nodes, n), append(x.came, x.at)
	if int(n.users) > d.hand && !isDirect(d.mode) {
		x.fail("users are direct only while that is declared", n, &step{o: &ModeObservation{}, next: n.disk})
	}
}

// fail notes the path on which a principle is broken; the first is enough.
func (x *explorer) fail(principle string, n node, s *step) {
	if _, ok := x.broken[principle]; ok {
		return
	}
	var path strings.Builder
	for i := x.at; ; i = x.came[i] {
		n := x.nodes[i]
		fmt.Fprintf(&path, "\n  after %s", x.text(n))
		if i == 0 {
			break
		}
	}
	x.broken[principle] = fmt.Sprintf("%s\n  saw   %s\n  did   %s\n  left  %s%s", x.text(n), set(*s.o), set(*s), set(x.disks[s.next]), path.String())
}

func (x *explorer) text(n node) string { return set(x.disks[n.disk]) + " in truth " + set(n) }

// set names the fields of a value that are not zero.
func set(v any) string { return setOf(reflect.ValueOf(v)) }

func setOf(r reflect.Value) string {
	var out []string
	for i := range r.NumField() {
		f := r.Field(i)
		name := r.Type().Field(i).Name
		for f.Kind() == reflect.Pointer && !f.IsNil() {
			f = f.Elem()
		}
		switch {
		case f.IsZero() || name == "disk" || name == "next" || name == "memory" || name == "word" || name == "o":
		case f.Kind() == reflect.Bool:
			out = append(out, name)
		case f.Kind() == reflect.Struct && name != "Began":
			out = append(out, name+setOf(f))
		default:
			out = append(out, fmt.Sprintf("%s=%v", name, f))
		}
	}
	return "{" + strings.Join(out, " ") + "}"
}

// from is what each run may do in a situation.
func (x *explorer) from(n node) []step {
	d := x.disks[n.disk]
	v := view{n.disk, sight{open: d.attempt != "", alive: n.alive, direct: d.direct(), astray: n.users < d.belong(x.policy), owed: d.rebuild}}
	if steps, ok := x.steps[v]; ok {
		return steps
	}
	if x.sights[v.sight] == nil {
		x.sights[v.sight] = v.sight.observations()
	}
	steps := make([]step, 0, len(x.sights[v.sight]))
	s := d.state()
	for _, o := range x.sights[v.sight] {
		steps = append(steps, x.decide(n, s, o))
	}
	x.steps[v] = steps
	return steps
}

// decide asks the machine, and asserts what does not depend on the truth.
func (x *explorer) decide(n node, s ModeState, o *ModeObservation) step {
	next, acts := x.next(s, *o, x.policy, noon)
	out := step{
		o: o, next: x.disk(written(next.Mode, next.ModeMemory)),
		memory: x.disk(written(s.Mode, next.ModeMemory)), word: x.disk(written(next.Mode, s.ModeMemory)),
	}
	out.goes = !isDirect(s.Mode) && isDirect(next.Mode) && next.Declared
	done := map[ActionKind]bool{}
	for _, a := range acts {
		switch a.Kind {
		case ActRefresh:
			out.kind = a.For
		case ActRebuild:
			out.rebuild = true
		case ActDirect:
			out.enters = true
		case ActLeave:
			out.leaves = true
		case ActUnknown:
			x.fail("an action is a known one", n, &out)
		}
		if a.Reason == "" {
			x.fail("6 every action has its reason", n, &out)
		}
		if done[a.Kind] {
			x.fail("nothing is done twice in one step", n, &out)
		}
		done[a.Kind] = true
	}
	if s.Mode != next.Mode {
		x.moves[[2]state.Mode{s.Mode, next.Mode}]++
	}
	x.judgeMemory(n, s, next, &out)
	return out
}

// environment is what happens beside runs: time, kills, reboots, operators.
func (x *explorer) environment(n node) {
	d := x.disks[n.disk]
	with := func(d durable, n node) { n.disk = x.disk(d); x.push(n) }
	later, cool := d, n
	later.emergency, later.tried, later.prior = false, false, false
	cool.truth.cooling, cool.truth.tried, cool.truth.before, cool.truth.fruitless = false, false, false, false
	with(later, cool)
	retry, waited := d, n
	retry.tried, waited.truth.tried = false, false
	with(retry, waited)
	killed := n
	killed.alive = false
	x.push(killed)
	boot := killed
	boot.users = 0 // the table is empty after a boot
	x.push(boot)
	for hand := range len(bothClasses) + 1 {
		said, word := d, n
		said.hand = hand
		switch {
		case hand > d.hand && hand == len(bothClasses):
			word.truth.said = false
		case hand < d.hand:
			word.truth.said = !n.truth.exhausted
			if !isDirect(d.mode) { // killed before the mode was written, or classes move with the word
				word.users = min(n.users, int8(hand)) //nolint:gosec // two at most
			}
		}
		with(said, word)
	}
}

// run is one run with everything that it can leave behind: killed between its two files,
// before, in or after its action, or whole.
func (x *explorer) run(n node, s *step) {
	d := &x.disks[n.disk]
	saw := n.truth.saw(n, *d, s.o)
	x.judge(n, *d, saw, s)
	before := n.truth
	n.truth = saw.did(s, *d)
	if e := s.o.Ended; e != nil && !e.Plain {
		n.alive, n.despair = false, false
	}
	to := func(disk int32, n node) { n.disk = disk; x.push(n) }
	after := &x.disks[s.next]
	if s.leaves {
		home := n
		home.users = int8(after.hand) //nolint:gosec // two at most
		to(s.next, home)
		home.truth = before // what the memory was to say is lost
		x.push(home)        // moved, nothing written
		to(s.word, home)    // the word is written
		return
	}
	to(s.memory, n) // killed between the two files
	to(s.next, n)   // killed before its action
	if s.enters {
		n.users = max(n.users, after.belong(x.policy))
		to(s.next, n)
	}
	if s.kind != AttemptUnknown {
		n.alive, n.despair = true, spent(s.o)
		to(s.next, n)
	}
}
