package egress

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

func listing(n int) *Listing {
	l := &Listing{Began: noon, Seq: 101}
	for i := 1; i <= n; i++ {
		r := row(i)
		l.Entries = append(l.Entries, Entry{File: r.File, Endpoint: r.Endpoint, Path: r.Path, Pair: r.Pair})
	}
	return l
}

func (l *Listing) results(pass int) *Listing {
	l.Results = map[string]TestResult{}
	for i, e := range l.Entries {
		r := TestResult{Endpoint: e.Endpoint, Sent: 3, Got: 3, Avg: time.Duration(100-i) * time.Millisecond, FullSize: true}
		if i >= pass {
			r.Got, r.Reason = 0, "no handshake"
		}
		l.Results[e.Endpoint] = r
	}
	return l
}

func TestPlanRefresh(t *testing.T) {
	tests := map[string]struct {
		change func(*Input)
		last   StepKind // of the plan; "" = no step
		sure   bool     // it depends on nothing
		held   []string
	}{
		"no list": {func(in *Input) { in.Listing = nil }, "", true, []string{"list no_list"}},
		"an empty list": {
			func(in *Input) { in.Listing = &Listing{Failed: []string{"source hmn: the answer is an HTML page"}} },
			"", true,
			[]string{"list no_list"},
		},
		"a list that shrank (gluetun#2241)": {
			func(in *Input) { in.Listing = listing(9); in.Memory.LastSize = 12 }, "", true, []string{"list list_too_small"},
		},
		"a list that shrank, accepted": {
			func(in *Input) { in.Listing = listing(9); in.Memory.LastSize = 12; in.Options.AcceptSmall = true }, StepPublish, false, nil,
		},
		"a list that shrank by less than min_ratio": {
			func(in *Input) { in.Listing = listing(10); in.Memory.LastSize = 12 }, StepPublish, false, nil,
		},
		"enough pass":  {func(in *Input) { in.Listing = listing(9).results(6) }, StepPublish, true, nil},
		"too few pass": {func(in *Input) { in.Listing = listing(9).results(4) }, StepTest, true, []string{"pool too_few_endpoints"}},
		"three good lanes beat none": {
			func(in *Input) {
				in.Listing = listing(9).results(3)
				in.KV["mode"] = string(state.ModeDegraded)
			}, StepPublish, true, nil,
		},
		"none pass, in degraded too": {
			func(in *Input) {
				in.Listing = listing(9).results(0)
				in.KV["mode"] = string(state.ModeDegraded)
			}, StepTest, true, []string{"pool too_few_endpoints"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := healthy("refresh")
			tt.change(&in)
			p := PlanRefresh(in)
			var last Step
			if n := len(p.Steps); n > 0 {
				last = p.Steps[n-1]
			}
			if last.Kind != tt.last || (last.If == "") != tt.sure {
				t.Errorf("last step %q (if %q), want %q (sure: %v)", last.Kind, last.If, tt.last, tt.sure)
			}
			if d := cmp.Diff(tt.held, codes(p)); d != "" {
				t.Errorf("held (-want +got):\n%s", d)
			}
			replayed(t, in, p)
		})
	}
}

func TestTargetsSpareLanes(t *testing.T) {
	in := healthy("refresh")
	in.Listing = listing(9)
	in.Listing.Entries[6].Pair = "pair1" // another address of lane 1's server
	in.Lanes[1].Intent = &Intent{ToPair: "pair8"}
	targets, through := Targets(in)
	var got, lanes []string
	for _, x := range targets {
		got = append(got, x.Endpoint)
	}
	for _, x := range through {
		lanes = append(lanes, x.Endpoint)
	}
	if d := cmp.Diff([]string{endpoint(6), endpoint(9)}, got); d != "" {
		t.Errorf("tested in process (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{endpoint(1), endpoint(2), endpoint(3), endpoint(4), endpoint(5), endpoint(7), endpoint(8)}, lanes); d != "" {
		t.Errorf("left to lanes (-want +got):\n%s", d)
	}
}

func TestRank(t *testing.T) {
	in := healthy("refresh")
	in.Config.Pool.Home = []string{"russia*"}
	in.Listing = listing(5)
	in.Listing.Entries[1].File = "Russia, Moscow S1.conf"
	in.Listing.Results = map[string]TestResult{
		endpoint(1): {Sent: 3, Got: 3, Avg: 30 * time.Millisecond, Jitter: 20 * time.Millisecond},
		endpoint(2): {Sent: 3, Got: 3, Avg: 10 * time.Millisecond},
		endpoint(3): {Sent: 3, Got: 3, Avg: 40 * time.Millisecond},
		endpoint(4): {Sent: 3, Got: 2, Avg: 5 * time.Millisecond, Reason: ReasonLoss},
		endpoint(5): {Sent: 3, Got: 3, Avg: 2 * time.Millisecond, Reason: "choked"},
	}
	foreign, all, working := Rank(in)
	names := func(rows []state.PoolRow) (out []string) {
		for i, r := range rows {
			if r.Rank != i+1 {
				t.Errorf("rank %d at place %d", r.Rank, i+1)
			}
			out = append(out, r.Endpoint)
		}
		return out
	}
	e := endpoint
	if d := cmp.Diff([]string{e(3), e(1)}, names(foreign)); d != "" {
		t.Errorf("foreign: jitter counts, home does not (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{e(2), e(3), e(1)}, names(all)); d != "" {
		t.Errorf("all: what loses pings or drops data is out (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{e(4), e(2), e(3), e(1)}, names(working)); d != "" {
		t.Errorf("working (-want +got):\n%s", d)
	}
}
