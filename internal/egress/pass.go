package egress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/state"
)

// memoryFile is the domain's own state beside the contract files.
const memoryFile = "egress.json"

// Env is what a pass works with: the world through its ports, and the state.
type Env struct {
	Config  Config
	State   *state.Dir
	Devices Devices
	Prober  Prober
	Tester  Tester
	Plane   Plane
	Flows   Flows
	Library Library
	Sources Sources
	// Recovery finds a way to the list where the plain one fails; nil = there is none.
	Recovery Recovery
	Now      Clock
	Holder   string // names this run in locks: pid and command

	// Notify is told of each event after it is in the journal; nil = nobody.
	Notify func(context.Context, journal.Event)
	// Progress is told how many of how many tests are done; nil = nobody.
	Progress func(done, total int)
	// Later takes an attempt or a rebuild that a repair asks for off its hands, so that it
	// goes on with its rounds; nil = the repair makes it itself, after its lanes.
	Later func(context.Context, Outcome) bool
	// Watch sees the input and the plan after each step of a run; nil = nobody.
	Watch func(Input, Plan)

	unsaved *Memory // of an earlier repair that could not write it; what runs beside repairs has none
}

// Sources fetches provider lists into a folder.
type Sources interface {
	Fetch(ctx context.Context, sources []Source, workdir string) (entries []Entry, skipped int, failed []error, err error)
}

// Outcome is what a pass did.
type Outcome struct {
	Input   Input
	Plan    Plan
	Applied int           // steps that were carried out
	Partial error         // something of the plan could not be applied
	Tried   []StrategyTry // what a dry recovery would try, in order

	lock *state.Lock // of the attempt that the plan asks for
}

// pass is one run of a command.
type pass struct {
	*Env
	in      Input
	plan    Plan
	run     string
	done    map[string]bool
	locks   map[string]*state.Lock
	failed  map[string]int64 // lane -> when this pass recorded its endpoint's failure, unix seconds
	out     Outcome
	events  []journal.Event
	stored  Memory     // egress.json as it was read
	heal    bool       // egress.json is to be written, whatever the plan says
	damaged error      // pools that could not be read
	mu      sync.Mutex // in.Proofs, in.Listing.Results
}

func (e *Env) begin(command string, write bool) (*pass, error) {
	p := &pass{Env: e, done: map[string]bool{}, locks: map[string]*state.Lock{}, failed: map[string]int64{}}
	p.in = Input{
		Version: InputVersion, Command: command, Now: e.Now(), Config: e.Config,
		Proofs: map[string]TestResult{}, Busy: map[string]string{}, Lost: map[string]string{},
	}
	if write {
		for _, dir := range []string{"lanes", "intents"} { // both hold what only root may see
			if err := os.MkdirAll(e.State.Path(dir), 0o700); err != nil {
				return nil, fmt.Errorf("state: %w", err)
			}
		}
	}
	return p, nil
}

// sequence gives this run its place among all runs. A run that neither changes nor records
// anything takes none: it must not write to the disk each second.
func (p *pass) sequence(ctx context.Context) error {
	if p.in.Seed != 0 {
		return nil
	}
	seq, err := p.State.NextSeq(ctx)
	if err != nil {
		return err
	}
	p.in.Seed = seq
	p.run = fmt.Sprintf("%s-%d", p.in.Command, seq)
	return nil
}

// loadState reads the contract files. A repair goes on with what can be salvaged of a
// damaged quarantine (more is quarantined then, never less); any other command refuses.
func (p *pass) loadState(salvage bool) error {
	var err error
	p.in.Damage = nil
	if salvage {
		rows, damage := p.State.QuarantineUnion()
		p.in.Quarantine = rows
		for _, d := range damage {
			p.in.Damage = append(p.in.Damage, d.Error())
			p.out.Partial = errors.Join(p.out.Partial, &d)
		}
	} else if p.in.Quarantine, err = p.State.Quarantine(); err != nil {
		return err
	}
	kv, err := p.State.KV()
	if err != nil {
		if !salvage {
			return err
		}
		p.damage(err)
	}
	p.in.KV = map[string]string{}
	for _, pair := range kv.Pairs() {
		p.in.KV[pair.Key] = pair.Value
	}
	day := Day(p.in.Now)
	if p.in.Count, err = p.State.Count(day); err != nil {
		if !salvage {
			return err
		}
		p.damage(err)
	}
	if err = p.State.ReadJSON(memoryFile, &p.in.Memory); err != nil {
		if !salvage {
			return err
		}
		p.damage(err)
		p.heal = true
	}
	p.in.Memory = p.in.Memory.clone()
	if p.stored = p.in.Memory.clone(); p.in.Command == "repair" && p.unsaved != nil { // two failed rounds are a verdict on a full disk too
		p.in.Memory = p.unsaved.clone()
	}
	return nil
}

// damage notes a file that could not be read whole; the run goes on with what can be salvaged.
func (p *pass) damage(err error) {
	p.in.Damage = append(p.in.Damage, err.Error())
	p.out.Partial = errors.Join(p.out.Partial, err)
}

// Day is the machine's local day, as the fail counter's file is named.
func Day(t time.Time) string { return t.Format(time.DateOnly) }

// PoolDir is where pools live.
func (e *Env) PoolDir() string {
	if e.Config.Pool.Dir != "" {
		return e.Config.Pool.Dir
	}
	return e.State.Path("pools")
}

// Installed is the path of the profile that a lane carries, also over reboots.
func (e *Env) Installed(lane string) string { return e.State.Path("lanes", lane+".conf") }

// loadPools reads the three pools and describes those rows that could matter: parsing
// hundreds of profiles would make a run that changes nothing slow.
func (p *pass) loadPools() {
	if p.in.Pools != nil {
		return
	}
	c := p.Config.Pool
	gen, err := state.CurrentGeneration(p.PoolDir()) // a refresh that publishes meanwhile must not mix its pools with these
	for _, n := range [][2]string{{PoolForeign, c.StrictForeign}, {PoolAll, c.StrictAll}, {PoolWorking, c.Working}} {
		pool := Pool{Name: n[0], File: filepath.Join(p.PoolDir(), n[1])}
		path := pool.File
		if _, lerr := os.Readlink(path); lerr == nil && err == nil { // a plain file of the operator's is read as it is
			path = filepath.Join(gen, n[1])
		}
		rows, mtime, err := state.ReadPool(path)
		pool.Mtime = mtime
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			pool.Error = err.Error()
			p.damaged = errors.Join(p.damaged, err)
		}
		for _, r := range rows {
			pool.Rows = append(pool.Rows, Row{Rank: r.Rank, File: r.File, Endpoint: r.Endpoint, Avg: r.Avg, Loss: r.Loss, Path: r.ConfigPath})
		}
		p.in.Pools = append(p.in.Pools, pool)
	}
	if p.in.Pools == nil {
		p.in.Pools = []Pool{}
	}
	p.describe()
}

// describe reads the profiles of the first eligible rows of each pool, and of the rows
// that lanes carry.
func (p *pass) describe() {
	e := newEligibility(&p.in)
	carried := map[string]bool{}
	for _, l := range p.in.Lanes {
		carried[l.Endpoint] = true
	}
	known := map[string]Description{}
	enough := 4*len(p.Config.Lanes) + p.Config.Repair.Limit + p.Config.Repair.Parallel
	for i := range p.in.Pools {
		pool := &p.in.Pools[i]
		n := 0
		for j := range pool.Rows {
			r := &pool.Rows[j]
			code, _ := e.judge(*pool, *r)
			if n >= enough && !carried[r.Endpoint] || code != "" && !carried[r.Endpoint] {
				continue
			}
			d, ok := known[r.Path]
			if !ok {
				var err error
				if d, err = p.Library.Describe(r.Path); err != nil {
					d.Reason = err.Error()
				}
				known[r.Path] = d
			}
			r.Pair, r.Identity, r.Needs, r.Reason = d.Pair, d.Identity, d.Needs, d.Reason
			if p.Config.carriedByAll(r.Needs) { // those that only some lanes can carry must not crowd out the rest
				n++
			}
			if d.Reason == "" && d.Endpoint != r.Endpoint {
				r.Reason = fmt.Sprintf("%s holds endpoint %s", r.Path, d.Endpoint)
			}
		}
	}
}

// observeLanes reads every lane's device and installed profile.
func (p *pass) observeLanes(ctx context.Context) {
	views := make([]LaneView, len(p.Config.Lanes))
	damaged := make([]error, len(p.Config.Lanes))
	var wg sync.WaitGroup
	for i, l := range p.Config.Lanes {
		wg.Go(func() { views[i], damaged[i] = p.observeLane(ctx, l) })
	}
	wg.Wait()
	p.in.Lanes = views
	for _, err := range damaged {
		if err != nil {
			p.damage(err)
		}
	}
}

// observeLane returns an error when the lane's installed profile is there and can't be read.
func (p *pass) observeLane(ctx context.Context, l Lane) (v LaneView, damaged error) {
	v.Name = l.Name
	var err error
	if v.Device, err = p.Devices.Observe(ctx, l); err != nil {
		v.Device.Error = err.Error()
	}
	path := p.Installed(l.Name)
	if d, err := p.Library.Describe(path); err == nil {
		v.Endpoint, v.Pair, v.Identity, v.Path = d.Endpoint, d.Pair, d.Identity, path
	} else if !errors.Is(err, os.ErrNotExist) {
		damaged = err
	}
	if it, err := p.readIntent(l.Name); err == nil {
		v.Intent = &it
	}
	return v, damaged
}

// observePlane reads where each class travels. A missing or drifted static part is put
// right first, with every class where it was; after a boot that is nowhere, until a verdict.
func (p *pass) observePlane(ctx context.Context, write bool) error {
	v, err := p.Plane.Observe(ctx, p.Config)
	if err != nil {
		return fmt.Errorf("user plane: %w", err)
	}
	if !v.Ready && write && p.Config.Plane.ManageRules {
		if err := p.ensurePlane(ctx, v.Classes); err != nil {
			return err
		}
		if v, err = p.Plane.Observe(ctx, p.Config); err != nil {
			return fmt.Errorf("user plane: %w", err)
		}
	}
	p.in.Plane = v
	return nil
}

// mendPlane puts the static part right after a lane's addresses or interface changed.
func (p *pass) mendPlane(ctx context.Context) error {
	v, err := p.Plane.Observe(ctx, p.Config)
	if err != nil {
		return fmt.Errorf("user plane: %w", err)
	}
	if v.Ready || !p.Config.Plane.ManageRules {
		return nil
	}
	return p.ensurePlane(ctx, v.Classes)
}

func (p *pass) ensurePlane(ctx context.Context, classes map[string]string) error {
	return p.locked(ctx, "plane", func() error {
		changed, err := p.Plane.Ensure(ctx, p.Config, classes)
		if err != nil {
			return fmt.Errorf("user plane: %w", err)
		}
		if changed {
			p.event(journal.Event{Kind: "plane", Object: "inet shunt_egress", Reason: "the static part was missing or out of date"})
		}
		return nil
	})
}

// event notes something for the journal; flushEvents writes it. Times are those of the event.
func (p *pass) event(ev journal.Event) {
	ev.Time, ev.Command = p.Now(), p.in.Command
	p.events = append(p.events, ev)
}

func (p *pass) flushEvents(ctx context.Context) error {
	if len(p.events) == 0 {
		return nil
	}
	err := p.sequence(ctx)
	evs := p.events
	p.events = nil
	for i := range evs {
		evs[i].Run, evs[i].Seq = p.run, p.in.Seed
	}
	err = errors.Join(err, journal.Append(ctx, p.State, evs...))
	if p.Notify != nil {
		for _, ev := range evs {
			p.Notify(ctx, ev)
		}
	}
	return err
}

func (p *pass) watch() {
	if p.Watch != nil {
		p.Watch(p.in, p.plan)
	}
}

// finish remembers what the plan says, closes the record and releases the lanes.
func (p *pass) finish(ctx context.Context) (Outcome, error) {
	ctx = context.WithoutCancel(ctx)
	err := errors.Join(p.remember(ctx), p.flushEvents(ctx))
	p.unlockAll()
	p.out.Input, p.out.Plan = p.in, p.plan
	return p.out, err
}
