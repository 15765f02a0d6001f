package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/health"
	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// Refresh is one pass: fetch the list, guard it, test every endpoint in process, and make
// the result the source of truth, whole or not at all.
func (e *Env) Refresh(ctx context.Context, opts Options, dryRun bool) (Outcome, error) {
	p, err := e.begin("refresh", !dryRun)
	if err != nil {
		return Outcome{}, err
	}
	p.in.Options = opts
	if err := p.loadState(false); err != nil {
		return Outcome{}, err
	}
	if !dryRun {
		if err := p.sequence(ctx); err != nil {
			return Outcome{}, err
		}
		lock, err := p.State.Lock(ctx, "pool", p.Holder, 0)
		if err != nil {
			return Outcome{}, err
		}
		defer lock.Unlock() //nolint:errcheck // the process ends next
	}
	work, err := p.workdir(dryRun)
	if err != nil {
		return Outcome{}, err
	}
	defer os.RemoveAll(work)
	p.observeLanes(ctx)
	if err := p.fetch(ctx, work, dryRun); err != nil {
		return p.refreshEnds(ctx, dryRun, err)
	}
	p.plan = PlanRefresh(p.in)
	p.watch()
	if dryRun || !p.plan.Changes() {
		return p.refreshEnds(ctx, dryRun, nil)
	}
	if err := p.testAll(ctx); err != nil {
		return p.refreshEnds(ctx, dryRun, err)
	}
	p.plan = PlanRefresh(p.in)
	p.watch()
	err = nil
	if s := p.plan.Steps[len(p.plan.Steps)-1]; s.Kind == StepPublish && s.If == "" {
		err = p.publish(ctx, s)
	}
	return p.refreshEnds(ctx, dryRun, err)
}

// workdir is where the sources put profiles: beside the pools, or for a dry run in the
// system's place for temporary files. The lock "pool" is held, so that any other one beside
// the pools is of a run that was killed; there are keys in it.
func (p *pass) workdir(dryRun bool) (string, error) {
	if dryRun {
		return os.MkdirTemp("", "shunt-refresh-")
	}
	if err := os.MkdirAll(p.PoolDir(), 0o750); err != nil {
		return "", fmt.Errorf("pools: %w", err)
	}
	old, _ := filepath.Glob(filepath.Join(p.PoolDir(), ".fetch-*"))
	for _, d := range old {
		_ = os.RemoveAll(d)
	}
	return os.MkdirTemp(p.PoolDir(), ".fetch-")
}

// fetch gets the list, by a strategy where the plain way leads to no remote source.
func (p *pass) fetch(ctx context.Context, work string, dryRun bool) error {
	if p.Recovery != nil && !dryRun && isDirect(state.Mode(p.in.KV[state.KeyMode])) && slices.ContainsFunc(p.Config.Sources, Source.Leads) {
		return p.fetchInDirect(ctx, work)
	}
	l, failed, err := p.list(ctx, p.Sources, p.Config.Sources, work)
	p.in.Listing = l
	if err != nil || dryRun || p.Recovery == nil || !p.Config.Recovery.OnRefresh || !cutOff(p.Config.Sources, failed) {
		return err
	}
	return p.fetchAnother(ctx, work)
}

// refreshEnds records the attempt and how it ended.
func (p *pass) refreshEnds(ctx context.Context, dryRun bool, err error) (Outcome, error) {
	if dryRun {
		p.out.Input, p.out.Plan = p.in, p.plan
		return p.out, err
	}
	rc, reason := 0, "published"
	switch {
	case err != nil:
		rc, reason = 1, err.Error()
	case p.plan.HeldBack():
		rc, reason = 4, p.plan.Held[0].Reason
	}
	kvErr := p.State.UpdateKV(context.WithoutCancel(ctx), func(kv *state.KV) {
		kv.SetTime(state.KeyLastRefreshAttempt, p.in.Now)
		kv.SetInt(state.KeyLastRefreshRC, rc)
		if rc == 0 && p.in.Listing != nil {
			kv.SetTime(state.KeyLastPoolMtime, p.in.Listing.Began)
		}
	})
	p.event(journal.Event{Kind: "refresh", Object: "pool", To: map[bool]string{true: "done", false: "failed"}[rc == 0], Reason: reason, Figures: p.figures()})
	var modeErr error
	if !p.in.Options.Guarded {
		p.in.Ended = &AttemptEnd{OK: rc == 0, Plain: true, Reason: reason}
		if p.in.Listing != nil {
			p.in.Ended.Began, p.in.Ended.Strategy = p.in.Listing.Began, p.in.Listing.Via
		}
		modeErr = p.modes(ctx, true, func() Plan { return PlanRefresh(p.in) })
	}
	out, ferr := p.finish(ctx)
	return out, errors.Join(err, kvErr, modeErr, ferr)
}

func (p *pass) figures() map[string]float64 {
	f := map[string]float64{}
	if l := p.in.Listing; l != nil {
		f["entries"], f["skipped"] = float64(len(l.Entries)), float64(l.Skipped)
		passed := 0
		for _, r := range l.Results {
			if r.Reason == "" {
				passed++
			}
		}
		f["tested"], f["passed"] = float64(len(l.Results)), float64(passed)
	}
	return f
}

// testAll tests what no lane uses in process, and what lanes use through them.
func (p *pass) testAll(ctx context.Context) error {
	l := p.in.Listing
	seq, err := p.State.NextSeq(ctx)
	if err != nil {
		return err
	}
	l.Began, l.Seq, l.Results = p.Now(), seq, map[string]TestResult{}
	targets, through := Targets(p.in)
	total, done := len(targets)+len(through), 0
	note := func(t TestResult) {
		p.mu.Lock()
		defer p.mu.Unlock()
		l.Results[t.Endpoint] = t
		done++
		if p.Progress != nil {
			p.Progress(done, total)
		}
	}
	var wg sync.WaitGroup
	for _, e := range through {
		wg.Go(func() { note(p.throughLane(ctx, e)) })
	}
	tctx, cancel := context.WithTimeout(ctx, p.Config.Test.Deadline)
	defer cancel()
	busy := p.busyPairs(tctx)
	err = p.Tester.Test(tctx, p.Config.Test, targets, busy, note)
	wg.Wait()
	if err != nil && ctx.Err() == nil && tctx.Err() != nil {
		return fmt.Errorf("the tests did not end within test.deadline (%s): %w", p.Config.Test.Deadline, err)
	}
	return err
}

// throughLane measures an endpoint that a lane carries by the lane itself.
func (p *pass) throughLane(ctx context.Context, e Entry) TestResult {
	for i, v := range p.in.Lanes {
		if v.Endpoint != e.Endpoint && v.Pair != e.Pair {
			continue
		}
		l := p.Config.Lanes[i]
		if v.Endpoint != e.Endpoint { // another address of the server that the lane uses
			return TestResult{Endpoint: e.Endpoint, Path: e.Path, TestedAt: p.Now(), Via: l.Name, Reason: "busy: lane " + l.Name + " uses this server"}
		}
		return p.measureLane(ctx, e, l)
	}
	return TestResult{Endpoint: e.Endpoint, Path: e.Path, TestedAt: p.Now(), Reason: "busy"}
}

// measureLane is a strict check of a lane as the result of its endpoint's test. A full lane
// drops pings and is not worse for it: what it answers counts, if data arrives meanwhile
// and the deeper rungs pass.
func (p *pass) measureLane(ctx context.Context, e Entry, l Lane) TestResult {
	n := p.Config.Check.StrictCount
	r := p.Prober.Round(ctx, l, p.Config.Check, n, n)
	reason := ""
	switch loaded := r.Got > 0 && r.RxAfter-r.RxBefore >= health.VetoBytes; {
	case r.Got == n:
		reason = p.strict(ctx, l)
	case loaded:
		reason = p.deep(ctx, l)
		r.Sent = r.Got
	}
	t := LaneResult(e, l.Name, r, reason == "" && r.Got == r.Sent, 0, p.Now())
	if reason != "" {
		t.Reason += ": " + reason
	}
	return t
}

// busyPairs tells the tests which servers lanes took meanwhile: devices and intents are
// looked at a few times a second.
func (p *pass) busyPairs(ctx context.Context) func(string) bool {
	var mu sync.Mutex
	pairs := map[string]bool{}
	look := func() {
		now := map[string]bool{}
		for _, l := range p.Config.Lanes {
			if it, err := p.readIntent(l.Name); err == nil {
				now[it.ToPair] = true
			}
			if d, err := p.Devices.Observe(ctx, l); err == nil {
				for _, peer := range d.Peers {
					now[peer.Pair] = true
				}
			}
		}
		mu.Lock()
		pairs = now
		mu.Unlock()
	}
	look()
	go func() {
		t := time.NewTicker(40 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				look()
			}
		}
	}()
	return func(pair string) bool {
		mu.Lock()
		defer mu.Unlock()
		return pairs[pair]
	}
}

// evidenceFile holds what the pools' columns don't, for every endpoint that was tested.
const evidenceFile = "evidence.json"

// publish writes the three pools, the evidence and the profiles as one generation.
func (p *pass) publish(ctx context.Context, s Step) error {
	foreign, all, working := Rank(p.in)
	c := p.Config.Pool
	files := map[string][]byte{}
	dir := state.GenerationDir(p.PoolDir(), p.in.Listing.Began)
	for _, rows := range [][]state.PoolRow{working, all, foreign} {
		for i := range rows {
			rel := filepath.Join("conf", confName(rows[i]))
			if _, ok := files[rel]; !ok {
				b, err := os.ReadFile(rows[i].ConfigPath)
				if err != nil {
					return fmt.Errorf("profile of %s: %w", rows[i].Endpoint, err)
				}
				files[rel] = b
			}
			rows[i].ConfigPath = filepath.Join(dir, rel)
		}
	}
	files[c.StrictForeign], files[c.StrictAll], files[c.Working] = state.FormatPool(foreign), state.FormatPool(all), state.FormatPool(working)
	results := maps.Clone(p.in.Listing.Results)
	for e, r := range results {
		r.Path = "" // of the folder that goes with this run
		results[e] = r
	}
	evidence, err := json.MarshalIndent(map[string]any{"began": p.in.Listing.Began, "results": results}, "", " ")
	if err != nil {
		return err
	}
	files[evidenceFile] = append(evidence, '\n')
	names := []string{c.StrictForeign, c.StrictAll, c.Working}
	_, err = state.WriteGeneration(ctx, p.PoolDir(), p.in.Listing.Began, files, names, c.Keep, p.pathsInUse())
	var prune *state.PruneError
	if errors.As(err, &prune) { // the new pools are in place all the same
		p.out.Partial = errors.Join(p.out.Partial, err)
	} else if err != nil {
		return err
	}
	run.Point(ctx, "pool.published")
	p.out.Applied++
	p.event(journal.Event{Kind: "pool", Object: dir, To: s.Pool, Reason: s.Reason})
	return nil
}

// pathsInUse are profiles that a killed run's intent still points to.
func (p *pass) pathsInUse() []string {
	var out []string
	for _, l := range p.Config.Lanes {
		if it, err := p.readIntent(l.Name); err == nil && it.ToPath != "" {
			out = append(out, it.ToPath)
		}
	}
	return out
}

// confName is unique in a generation and safe as a file name, whatever the list said.
func confName(r state.PoolRow) string {
	return strings.NewReplacer(":", "_", "[", "", "]", "", "/", "_").Replace(r.Endpoint) + ".conf"
}
