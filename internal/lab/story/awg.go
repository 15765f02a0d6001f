package story

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tunnel"
)

// awgScenario moves a lane through servers of each generation of AmneziaWG.
func awgScenario() lab.Scenario {
	return lab.Scenario{
		Name: "egress-awg", Summary: "a lane of driver amneziawg on servers of protocol 1.0, 1.5, 2.0, 3.0 and 3.1 in turn, under its user's traffic",
		Flags: []lab.Flag{{Name: "steady", Value: "2s", Usage: "how long each generation carries traffic that must not lose a packet"}},
		Run:   playAWG,
	}
}

const (
	awgLane  = "egress1"
	awgRTT   = 20 * time.Millisecond
	awgEvery = 2 * time.Millisecond
	// awgInFlight bounds the packets that a swap loses: those on their way when the old
	// session ends, and again when the old path's flows are deleted; twice as many, for the
	// servers share the cores.
	awgInFlight = 2 * 2 * int(awgRTT/awgEvery)
)

// The endpoints after those of the generations.
const (
	awgHonest = iota + 5 // plain WireGuard, and its profile says so
	awgPlain             // plain WireGuard with a profile of 3.1
	awgWrong             // 2.0 with a profile of 1.0
	awgCount
)

// awgGeneration is one generation with settings that need it.
type awgGeneration struct {
	version  amnezia.Version
	settings []profile.KeyValue
}

func awgGenerations() []awgGeneration {
	set := func(kv ...string) (out []profile.KeyValue) {
		for i := 0; i < len(kv); i += 2 {
			out = append(out, profile.KeyValue{Key: kv[i], Value: kv[i+1]})
		}
		return out
	}
	junk := set("Jc", "4", "Jmin", "40", "Jmax", "70")
	old := set("S1", "15", "S2", "18", "H1", "1020325451", "H2", "3288052141", "H3", "1766607858", "H4", "2528465083")
	ranges := set("S1", "25", "S2", "31", "S3", "17", "S4", "21",
		"H1", "100000-100900", "H2", "200000-200900", "H3", "300000-300900", "H4", "400000-400900")
	var secret profile.Key
	for i := range secret {
		secret[i] = byte(7*i + 1)
	}
	protected := slices.Concat(junk, ranges, set("HeaderProtectionKey", secret.Base64()))
	return []awgGeneration{
		{amnezia.V10, slices.Concat(junk, old)},
		{amnezia.V15, slices.Concat(junk, old, set("I1", "<b 0xc70000000108><r 24><t>", "I2", "<r 40>"))},
		{amnezia.V20, slices.Concat(junk, ranges, set("I1", "<b 0xc7ff><rc 12><rd 6>"))},
		{amnezia.V30, protected},
		{amnezia.V31, slices.Concat(protected, set("RandomTrailers", "on", "DisableCookies", "on"))},
	}
}

// awgSpeaks is what endpoint i works with, awgSays what its profile claims.
func awgSpeaks(i int) []profile.KeyValue {
	g := awgGenerations()
	switch {
	case i < len(g):
		return g[i].settings
	case i == awgWrong:
		return g[2].settings
	}
	return nil
}

func awgSays(i int) []profile.KeyValue {
	g := awgGenerations()
	switch i {
	case awgPlain:
		return g[4].settings
	case awgWrong:
		return g[0].settings
	}
	return awgSpeaks(i)
}

func playAWG(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{
		Lanes: 1, Endpoints: awgCount, RTT: awgRTT, Driver: egress.DriverAmneziaWG, Speaks: awgSpeaks, Says: awgSays,
	})
	if err != nil {
		return err
	}
	if err := awgRefused(e, w); err != nil {
		return err
	}
	flow, err := w.UDP(ctx, awgLane, traffic.Options{Every: awgEvery})
	if err != nil {
		return err
	}
	// The first swap is from a plain endpoint, the last one to it: nothing of an earlier
	// generation may stay behind.
	s := awgStory{e: e, w: w, flow: flow, steady: e.Duration("steady")}
	order := []int{awgHonest, 0, 1, 2, 3, 4, awgHonest, 4, 2, 0}
	for _, i := range order {
		if err := s.carry(ctx, i); err != nil {
			return err
		}
	}
	r := flow.Stop(300 * time.Millisecond)
	for k := range s.terms {
		s.judge(r, k)
	}
	e.Count("versions", len(s.worked))
	e.Want(len(s.worked) == len(awgGenerations()), "%d of %d generations worked", len(s.worked), len(awgGenerations()))
	e.Packets("lost", s.lost)
	e.Want(s.lost == 0, "%d packets of steady traffic were lost", s.lost)
	e.Packets("lost_in_swap", s.inFlight)
	e.Control("user_packets", float64(r.Sent()-r.Lost()), r.Sent() > len(order)*int(s.steady/awgEvery)/2 && r.Lost() < r.Sent()/4)
	return nil
}

// awgStory is the lane's way from endpoint to endpoint.
type awgStory struct {
	e        *lab.Env
	w        *lab.World
	flow     *traffic.UDP
	steady   time.Duration
	terms    []awgTerm
	worked   map[string]bool
	lost     int
	inFlight int // most packets that one swap lost
}

// awgTerm is the time that one endpoint carried the lane.
type awgTerm struct {
	x             *server.Endpoint
	name          string
	began         time.Time // of the rebalance
	steady, ended time.Time // between them nothing may be lost
	shaken        bool      // the server heard its own generation's initiation
}

// carry makes a rebalance put endpoint i onto the lane, and lets it carry.
func (s *awgStory) carry(ctx context.Context, i int) error {
	x := s.w.Endpoints()[i]
	t := awgTerm{x: x, name: "plain"}
	if i < awgHonest {
		t.name = awgGenerations()[i].version.String()
	}
	if err := s.w.Configure(lab.Settings{"egress.rebalance.allow": []string{x.File()}}); err != nil {
		return err
	}
	before := x.Counts()
	t.began = time.Now()
	call := s.w.Shunt(ctx, "egress", "rebalance")
	if err := call.Err(); err != nil {
		return err
	}
	now, err := s.w.Carrying(awgLane)
	if err != nil {
		return err
	}
	if now != x {
		return fmt.Errorf("%s: the lane carries %s, not %s", t.name, now.HostPort(), x.HostPort())
	}
	back, err := s.flow.WaitVia(ctx, t.began, x.Exit4)
	if err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	t.steady = call.Began.Add(call.Took)
	lab.Sleep(ctx, s.steady)
	t.ended, t.shaken = time.Now(), x.Counts().Sub(before).Handshakes > 0
	s.terms = append(s.terms, t)
	s.e.Say("%s: rebalance %d ms, back after %d ms", t.name, call.Took.Milliseconds(), back.Got.Sub(t.began).Milliseconds())
	return nil
}

// judge looks at what term k did to the user's packets.
func (s *awgStory) judge(r traffic.Result, k int) {
	t := s.terms[k]
	steady := r.Between(t.steady, t.ended)
	lost := steady.Lost()
	s.lost += lost
	works := lost == 0 && steady.Via()[t.x.Exit4] == steady.Sent() && steady.Sent() > int(s.steady/awgEvery)/2
	if works && t.shaken && t.name != "plain" {
		if s.worked == nil {
			s.worked = map[string]bool{}
		}
		s.worked[t.name] = true
	}
	s.e.Want(works, "%s: %d of %d steady packets lost, %d through its exit", t.name, lost, steady.Sent(), steady.Via()[t.x.Exit4])
	if k == 0 {
		return // there was no session before it
	}
	n := r.Between(t.began, t.steady).Lost()
	s.inFlight = max(s.inFlight, n)
	s.e.Want(n <= awgInFlight, "the swap from %s to %s lost %d packets, more than are in flight", s.terms[k-1].name, t.name, n)
}

// awgRefused looks at what the refresh found: all generations, and not the endpoints whose
// profiles are wrong for them.
func awgRefused(e *lab.Env, w *lab.World) error {
	for i, g := range awgGenerations() {
		p, err := amnezia.FromProfile(profile.Profile{Obfuscation: g.settings})
		if err != nil {
			return fmt.Errorf("endpoint %d: %w", i, err)
		}
		e.Want(p.Version() == g.version, "the settings of %s need %s", g.version, p.Version())
	}
	rows, _, err := state.ReadPool(filepath.Join(w.State, "pools", config.Default().Egress.Pool.StrictAll))
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for _, r := range rows {
		listed[r.Endpoint] = true
	}
	found, err := readEvidence(w)
	if err != nil {
		return err
	}
	for i, x := range w.Endpoints() {
		reason := found[x.HostPort()].Reason
		want := map[int]string{awgPlain: tunnel.ReasonPlain, awgWrong: tunnel.ReasonNoHandshake}[i]
		e.Want(reason == want && listed[x.HostPort()] == (want == ""), "endpoint %d (%s): %q, in the pool: %v", i, x.HostPort(), reason, listed[x.HostPort()])
	}
	plain, wrong := w.Endpoints()[awgPlain], w.Endpoints()[awgWrong]
	e.Control("plain_peer_refused", 1, found[plain.HostPort()].Reason == tunnel.ReasonPlain && !listed[plain.HostPort()])
	e.Control("wrong_parameters_refused", 1, found[wrong.HostPort()].Reason == tunnel.ReasonNoHandshake && !listed[wrong.HostPort()])
	e.Say("%d of %d endpoints listed; %s: %s; %s: %s", len(rows), awgCount, plain.HostPort(), found[plain.HostPort()].Reason, wrong.HostPort(), found[wrong.HostPort()].Reason)
	return nil
}
