package edge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

const (
	edgeLock   = "edge"
	lockWait   = 3 * time.Second
	flushLimit = 3 * time.Second
	reachLimit = 2 * time.Second
	maxTries   = 3 // of a commit while somebody else changes the table
)

// turn is one run of a command, or one move of a session.
type turn struct {
	*world
	in     Input
	plan   Plan
	opts   Options
	stored Memory            // edge.json as it was read
	held   []Hold            // edge-holds.json as it was read or written
	worded bool              // this run wrote it
	missed map[Key]time.Time // when this process first missed it
	out    Result
	steps  []Step // of commits before the last one
	bare   bool   // the memory could not be read: everything is asked anew
	began  time.Time

	mu        sync.Mutex       // missed, lost, out.Partial
	carried   bool             // the plan was carried out, as far as that could be
	wrote     bool             // this machine's table
	after     *View            // … as it then was
	elsewhere bool             // it was not, and another's was
	lost      map[string]error // replicas that did not take their tables
	flushes   []Flush          // of commits before the last one
	flushed   int              // entries; -1 = not known
	unflushed bool
	aside     func(func()) // runs what goes on behind the turn's back
	quiet     bool         // who watches is shown everything after the commit
	unshown   []thought
}

// thought is what Env.Watch is shown.
type thought struct {
	in   Input
	plan Plan
}

// Retarget is one full pass: load, observe, probe what has no fresh answer, plan, lock,
// look again, apply, record. With o.DryRun it ends with the plan.
func (e *Env) Retarget(ctx context.Context, o Options) (Result, error) {
	return e.pass(ctx, CommandRetarget, Ask{}, o)
}

// Drain holds a candidate out, for the operator. It is refused (Held, nothing changes)
// where no other candidate is known to be healthy, unless ask.Force.
func (e *Env) Drain(ctx context.Context, ask Ask, o Options) (Result, error) {
	return e.pass(ctx, CommandDrain, ask, o)
}

// Enable takes the holds of ask.Owner back; with ask.Force those of others too.
func (e *Env) Enable(ctx context.Context, ask Ask, o Options) (Result, error) {
	return e.pass(ctx, CommandEnable, ask, o)
}

// Reset forgets the tool's own verdicts of a candidate and asks it anew. Holds stay.
func (e *Env) Reset(ctx context.Context, ask Ask, o Options) (Result, error) {
	return e.pass(ctx, CommandReset, ask, o)
}

func (e *Env) pass(ctx context.Context, command string, ask Ask, o Options) (Result, error) {
	if o.Service != "" && ask.Service == "" {
		ask.Service = o.Service
	}
	if err := ask.check(command, e.Config); err != nil {
		return Result{}, err
	}
	p := &turn{world: e.world(), opts: o, missed: map[Key]time.Time{}, began: e.Now()}
	if err := p.begin(command, ask); err != nil {
		return Result{}, err
	}
	looked := make(chan error, 1)
	go func() { looked <- p.look(ctx, &p.in) }()
	answers, parity := p.ask(ctx)
	if err := <-looked; err != nil {
		p.partly(err)
	}
	p.in.Answers, p.in.Parity = answers, parity
	if err := errors.Join(ctx.Err(), reached(p.in.Views)); err != nil {
		return p.end(), err
	}
	p.tick(&p.in)
	p.decide()
	if o.DryRun {
		return p.end(), nil
	}
	return p.carryOut(ctx)
}

// begin loads the state. Operators' words are not changed while they can't be read whole.
func (p *turn) begin(command string, ask Ask) error {
	in, damaged := p.input(command)
	if command == CommandDrain || command == CommandEnable {
		if in.HoldsAre != HoldsWhole {
			return fmt.Errorf("%s: %w", command, damaged)
		}
		in.Only = ask.services(p.Config)
	}
	if command == CommandReset {
		in.Only = ask.services(p.Config)
	}
	ask.At = in.Now
	if command == CommandRetarget && p.opts.Service != "" {
		if !slices.ContainsFunc(p.Config.Services, func(s Service) bool { return s.Name == p.opts.Service }) {
			return Ask{Service: p.opts.Service}.check(CommandReset, p.Config)
		}
		in.Only = []string{p.opts.Service}
	}
	if damaged != nil {
		p.partly(damaged)
	}
	if command == CommandRetarget {
		ask = Ask{}
	}
	in.Ask = ask
	p.in, p.stored, p.held = in, in.Memory.clone(), in.Holds
	p.bare = len(in.Damage) > 0 && in.HoldsAre == HoldsWhole || len(in.Damage) > 1
	return nil
}

func (p *turn) partly(err error) {
	if err != nil {
		p.out.Partial = errors.Join(p.out.Partial, err)
	}
}

func (p *turn) decide() {
	p.plan = planWith(p.in, p.pre)
	if p.Watch == nil {
		return
	}
	p.unshown = append(p.unshown, thought{p.in, p.plan})
	if !p.quiet {
		p.show()
	}
}

// show lets who watches see what was decided.
func (p *turn) show() {
	for _, t := range p.unshown {
		p.Watch(t.in, t.plan)
	}
	p.unshown = nil
}

func (p *turn) end() Result {
	p.out.Input, p.out.Plan = p.in, p.plan
	if len(p.steps) > 0 {
		p.out.Plan.Steps = slices.Concat(p.steps, p.plan.Steps)
	}
	if p.carried {
		p.out.Applied = len(p.doneSteps())
	}
	return p.out
}

// carryOut is all that changes something, in its order: the operator's word is made
// durable, this machine's table is moved, flows are flushed, then the other replicas
// follow, and last come records and alerts.
func (p *turn) carryOut(ctx context.Context) (Result, error) {
	p.secondLook(ctx)
	if err := p.keepWord(ctx); err != nil {
		return p.end(), err
	}
	if err := p.commit(ctx); err != nil {
		if busy := (*state.BusyError)(nil); errors.As(err, &busy) {
			p.plan.Held = append(p.plan.Held, Held{Object: "table", Code: HeldBusy, Reason: err.Error()})
		}
		return p.end(), err
	}
	after := context.WithoutCancel(ctx) // what was begun is brought to its end, within its bounds
	p.carried = true
	reached := p.reaching(ctx, func(f func()) { go f() })
	gather := p.spread(after)
	p.flush(after)
	gather(nil, nil)
	p.record(after)
	p.out.Moves = reached(p.out.Moves)
	p.tell(p.out.Moves)
	return p.end(), ctx.Err()
}

// secondLook makes sure of a difference between tables before it is called one: a writer
// may be in the middle of its replicas.
func (p *turn) secondLook(ctx context.Context) {
	if !p.plan.Disagrees() {
		return
	}
	if run.Pause(ctx, retryAfter) != nil {
		return
	}
	again := p.in
	if err := p.look(ctx, &again); err == nil {
		p.in.Host, p.in.Views = again.Host, again.Views
		p.tick(&p.in)
		p.decide()
	}
}

// keepWord makes what the operator wants durable, before it is acted on: a run that is
// killed right after is made good by the next. Holds that ran out go the same way.
func (p *turn) keepWord(ctx context.Context) error {
	if p.in.HoldsAre != HoldsWhole || slices.Equal(p.held, p.plan.Holds) {
		return nil
	}
	if err := p.changeHolds(ctx, p.held, p.plan.Holds); err != nil {
		return err
	}
	p.held, p.worded = p.plan.Holds, true
	run.Point(ctx, "edge.held")
	return nil
}

// sameHolds says whether two lists say the same at a moment (unix milliseconds): one that
// ran out is none.
func sameHolds(a, b []Hold, now int64) bool {
	live := func(list []Hold) []Hold {
		list = slices.DeleteFunc(slices.Clone(list), func(h Hold) bool { return !h.holdsNow(now) })
		slices.SortFunc(list, compareHolds)
		return list
	}
	return slices.Equal(live(a), live(b))
}
