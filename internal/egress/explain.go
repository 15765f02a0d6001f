package egress

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/state"
)

// Explanation says why an object is as it is.
type Explanation struct {
	Object string          `json:"object"`
	Kind   string          `json:"kind"` // lane | endpoint
	Facts  []string        `json:"facts"`
	Events []journal.Event `json:"events,omitempty"` // the last ones that name it
}

// Explain says of lanes and endpoints why they are where they are, from state and
// journal, without a probe. With no name it explains every lane.
func (e *Env) Explain(ctx context.Context, names []string) ([]Explanation, error) {
	p, _ := e.begin("explain", false)
	if err := p.loadState(true); err != nil {
		return nil, err
	}
	p.observeLanes(ctx)
	if err := p.observePlane(ctx, false); err != nil {
		p.in.Damage = append(p.in.Damage, err.Error())
	}
	p.loadPools()
	events, _ := journal.Tail(p.State, 5000)
	if len(names) == 0 {
		for _, l := range e.Config.Lanes {
			names = append(names, l.Name)
		}
	}
	var out []Explanation
	for _, n := range names {
		x, err := p.explain(n)
		if err != nil {
			return nil, err
		}
		x.Events = about(events, n, 12)
		out = append(out, x)
	}
	return out, nil
}

func (p *pass) explain(name string) (Explanation, error) {
	if l, ok := p.Config.Lane(name); ok {
		return p.explainLane(l), nil
	}
	if x := p.explainEndpoint(name); len(x.Facts) > 0 {
		return x, nil
	}
	return Explanation{}, fmt.Errorf("%q is neither a lane nor an endpoint of a pool, a lane or the quarantine", name)
}

func (p *pass) explainLane(l Lane) Explanation {
	x := Explanation{Object: l.Name, Kind: "lane"}
	v, _ := p.in.lane(l.Name)
	mem := p.in.Memory.Lanes[l.Name]
	say := func(format string, a ...any) { x.Facts = append(x.Facts, fmt.Sprintf(format, a...)) }
	say("interface %s, table %d, mark %s, class %v", l.Interface, l.Table, l.Mark, l.DSCP)
	if v.Endpoint == "" {
		say("it carries no endpoint yet: the next rebalance places one")
	} else {
		say("it carries %s since %s", v.Endpoint, stamp(mem.Since))
	}
	say("last verdict: %s %s (%d failed rounds in a row, %d good)", first(mem.State, "none"), mem.Reason, mem.Misses, mem.Goods)
	if lend, ok := p.in.Memory.Lends[l.Name]; ok {
		say("its users travel through %s since %s: %s", lend.To, stamp(lend.Since), lend.Reason)
	}
	if v.Intent != nil {
		say("run %s began to put %s in its place at %s and did not finish; the next run settles it", v.Intent.Command, orNone(v.Intent.To), stamp(v.Intent.Began))
	}
	if v.Endpoint != "" {
		x.Facts = append(x.Facts, p.explainEndpoint(v.Endpoint).Facts...)
	}
	return x
}

func (p *pass) explainEndpoint(endpoint string) Explanation {
	x := Explanation{Object: endpoint, Kind: "endpoint"}
	say := func(format string, a ...any) { x.Facts = append(x.Facts, fmt.Sprintf(format, a...)) }
	e := newEligibility(&p.in)
	for _, l := range p.in.Lanes {
		if l.Endpoint == endpoint {
			say("%s is carried by lane %s", endpoint, l.Name)
		}
	}
	for _, pool := range p.in.Pools {
		found := false
		for _, r := range pool.Rows {
			if r.Endpoint != endpoint {
				continue
			}
			found = true
			say("pool %s (tested from %s on): rank %d, %.1f ms, %g %% loss, file %s", pool.Name, stamp(pool.Mtime), r.Rank, ms(r.Avg), r.Loss, r.File)
			if code, reason := e.judge(pool, r); code != "" {
				say("pool %s: not eligible, %s: %s", pool.Name, code, reason)
			} else {
				say("pool %s: eligible", pool.Name)
			}
		}
		if !found && len(x.Facts) > 0 {
			say("pool %s does not list it", pool.Name)
		}
	}
	if r, ok := p.evidence()[endpoint]; ok {
		how := "in process"
		if r.Via != "" {
			how = "through lane " + r.Via
		}
		verdict := "passed"
		if r.Reason != "" {
			verdict = "did not pass: " + r.Reason
		}
		say("tested at %s %s: handshake %.1f ms, %d of %d pings, %.1f ms, jitter %.1f ms; %s",
			stamp(r.TestedAt), how, ms(r.Handshake), r.Got, r.Sent, ms(r.Avg), ms(r.Jitter), verdict)
	}
	for _, q := range e.records[endpoint] {
		by := "no pool that was tested after that lists it"
		for _, pool := range p.in.Pools {
			if e.clears(pool, q) {
				by = "cleared by pool " + pool.Name + ", tested from " + stamp(pool.Mtime) + " on"
				break
			}
		}
		say("quarantined at %s from lane %s (%s), replaced by %s; %s", stamp(q.FailedAt), q.Slot, q.Reason, orNone(q.Replacement), by)
	}
	if h, ok := p.in.Memory.Holds[endpoint]; ok && h.Failures > 1 {
		say("failed %d times lately; held down for another %s", h.Failures, max(0, holdLeft(h, p.in.Now, p.Config.Repair.HoldMax)).Round(time.Second))
	}
	return x
}

// evidence is what the last refresh saw of every endpoint, also of those in no pool.
func (p *pass) evidence() map[string]TestResult {
	var doc struct {
		Results map[string]TestResult `json:"results"`
	}
	dir, err := state.CurrentGeneration(p.PoolDir())
	if err != nil {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(dir, evidenceFile))
	if err != nil || json.Unmarshal(b, &doc) != nil {
		return nil
	}
	return doc.Results
}

// about picks the last n events that name an object.
func about(events []journal.Event, name string, n int) []journal.Event {
	var out []journal.Event
	for i := len(events) - 1; i >= 0 && len(out) < n; i-- {
		ev := events[i]
		if ev.Object == name || ev.From == name || ev.To == name || strings.Contains(ev.Object, name) {
			out = append([]journal.Event{ev}, out...)
		}
	}
	return out
}

// ExplainText renders explanations for people.
func ExplainText(w io.Writer, list []Explanation) {
	for i, x := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s\n", x.Kind, x.Object)
		for _, f := range x.Facts {
			fmt.Fprintf(w, "  %s\n", f)
		}
		for _, ev := range x.Events {
			fmt.Fprintf(w, "  %s %-10s %s\n", stamp(ev.Time), ev.Kind, eventText(ev))
		}
	}
}

func eventText(ev journal.Event) string {
	s := ev.Object
	if ev.From != "" || ev.To != "" {
		s += fmt.Sprintf(" %s -> %s", orNone(ev.From), orNone(ev.To))
	}
	if ev.Reason != "" {
		s += ": " + ev.Reason
	}
	return s
}
