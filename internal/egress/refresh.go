package egress

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// PlanRefresh guards a list, says what is to be tested and, with the results, whether they
// become the source of truth. It is pure.
func PlanRefresh(in Input) Plan {
	p := planRefresh(in)
	if in.Ended != nil { // a good refresh is news to the machine, whoever made it
		s := in.modeState()
		p.decide(&in, s, in.observe(s), func(string) string { return "" })
	}
	return p
}

func planRefresh(in Input) Plan {
	p := Plan{Command: "refresh", Next: in.Memory.clone()}
	setAside(&in, &p.Next)
	l := in.Listing
	if l == nil || len(l.Entries) == 0 {
		reason := "no source gave a list"
		if l != nil && len(l.Failed) > 0 {
			reason = join(l.Failed)
		}
		p.hold("list", HeldNoList, "%s; the pools stay as they are", reason)
		return p
	}
	targets, lanes := Targets(in)
	if small := float64(len(targets)+len(lanes)) < in.Config.Pool.MinRatio*float64(in.Memory.LastSize); small && !in.Options.AcceptSmall {
		p.hold("list", HeldSmall, "%d usable endpoints, the last list had %d and pool.min_ratio is %g; --accept-small takes it all the same",
			len(targets)+len(lanes), in.Memory.LastSize, in.Config.Pool.MinRatio)
		return p
	}
	if len(targets)+len(lanes) == 0 {
		p.hold("list", HeldNoList, "none of %d entries can be tested (first: %s)", len(l.Entries), in.untestable(l.Entries[0]))
		return p
	}
	names := make([]string, 0, len(targets)+len(lanes))
	for _, t := range targets {
		names = append(names, t.Endpoint)
	}
	for _, e := range lanes {
		names = append(names, e.Endpoint)
	}
	why := "handshake for all, pings through the tunnel for those that answer"
	if len(lanes) > 0 {
		why += fmt.Sprintf("; %d carry lanes and are measured through them", len(lanes))
	}
	p.add(Step{Kind: StepTest, Endpoints: names, Reason: why})
	if l.Results == nil {
		p.add(Step{Kind: StepPublish, Pool: "new pools", Reason: "a valid result becomes the source of truth", If: "enough endpoints pass"})
		return p
	}
	judgeResults(in, &p)
	return p
}

// Targets splits a list into what is tested in process and what lanes use now: a server
// that a live lane uses is never probed from a second socket with the same key.
func Targets(in Input) (inProcess []TestTarget, throughLanes []Entry) {
	used := takenBy(&in, "")
	for _, e := range in.Listing.Entries {
		if in.untestable(e) != "" {
			continue
		}
		_, endpoint := used.endpoints[e.Endpoint]
		_, pair := used.pairs[e.Pair]
		if endpoint || pair {
			throughLanes = append(throughLanes, e)
			continue
		}
		inProcess = append(inProcess, TestTarget{Endpoint: e.Endpoint, Path: e.Path, Pair: e.Pair})
	}
	return inProcess, throughLanes
}

func judgeResults(in Input, p *Plan) {
	foreign, all, working := Rank(in)
	need := len(in.Config.Lanes)
	if in.Options.Any {
		need = 1
	}
	switch state.Mode(in.KV[state.KeyMode]) {
	case state.ModeDegraded, state.ModeDirect, state.ModeExternalRecovery:
		need = 1 // three good lanes beat none
	case state.ModeUnknown, state.ModeNormal, state.ModeSlotRepair, state.ModeEmergencyRefresh:
	}
	if len(all) < need {
		p.hold("pool", HeldFew, "%d endpoints passed the strict test, %d are needed; the pools stay as they are", len(all), need)
		return
	}
	targets, lanes := Targets(in)
	p.Next.LastSize = len(targets) + len(lanes)
	p.Next.PoolSeqs[in.Listing.Began.Unix()] = in.Listing.Seq
	p.add(Step{
		Kind: StepPublish, Pool: fmt.Sprintf("%d foreign, %d strict, %d working", len(foreign), len(all), len(working)),
		Reason: "a valid result becomes the source of truth, also when its endpoints are slower",
	})
}

// ReasonLoss is the one fault that leaves an endpoint in the working pool: some pings were
// lost. What drops data is in no pool.
const ReasonLoss = "loss"

// Rank sorts tested endpoints by evidence: latency of data plus its jitter, then the
// handshake. Strict ones lost nothing and carried a full-size packet and TCP data; foreign
// ones are strict and match none of pool.home; working ones may have lost pings.
func Rank(in Input) (foreign, all, working []state.PoolRow) {
	type tested struct {
		e Entry
		r TestResult
	}
	var list []tested
	for _, e := range in.Listing.Entries {
		if r, ok := in.Listing.Results[e.Endpoint]; ok && r.Got > 0 && (r.Reason == "" || r.Reason == ReasonLoss) {
			list = append(list, tested{e, r})
		}
	}
	slices.SortFunc(list, func(a, b tested) int {
		return cmp.Or(cmp.Compare(a.r.Avg+a.r.Jitter, b.r.Avg+b.r.Jitter), cmp.Compare(a.r.Handshake, b.r.Handshake), cmp.Compare(a.e.Endpoint, b.e.Endpoint))
	})
	for _, t := range list {
		row := state.PoolRow{File: t.e.File, Endpoint: t.e.Endpoint, Avg: t.r.Avg, Loss: loss(t.r), ConfigPath: t.e.Path}
		if t.r.Reason == "" {
			if !matches(in.Config.Pool.Home, t.e.File, false) {
				foreign = appendRanked(foreign, row)
			}
			all = appendRanked(all, row)
		}
		working = appendRanked(working, row)
	}
	return foreign, all, working
}

func appendRanked(rows []state.PoolRow, r state.PoolRow) []state.PoolRow {
	r.Rank = len(rows) + 1
	return append(rows, r)
}

// loss is in percent, as the contract's column.
func loss(r TestResult) float64 {
	if r.Sent == 0 {
		return 100
	}
	return 100 * float64(r.Sent-r.Got) / float64(r.Sent)
}

// LaneResult turns rounds through a lane into the result of its endpoint's test.
func LaneResult(e Entry, lane string, r Round, strict bool, handshake time.Duration, at time.Time) TestResult {
	t := TestResult{
		Endpoint: e.Endpoint, Path: e.Path, Handshake: handshake, Sent: r.Sent, Got: r.Got, Avg: r.RTT, FullSize: strict, TestedAt: at, Via: lane,
	}
	switch {
	case r.Got == 0:
		t.Reason = "no answer through lane " + lane
		if r.Error != "" {
			t.Reason += ": " + r.Error
		}
	case r.Got < r.Sent || !strict:
		t.Reason = "did not pass the strict check through lane " + lane
	}
	return t
}
