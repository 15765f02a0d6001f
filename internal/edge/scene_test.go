package edge

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// noon is when scenes begin.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const vip = "10.0.0.50"

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// proxy is the address of candidate proxy-0N.
func proxy(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + n)}), 25577)
}

func proxyName(n int) string { return "proxy-0" + string(rune('0'+n)) }

func nodeName(n int) string { return "core-0" + string(rune('0'+n)) }

// testConfig is one service with n candidates on as many nodes, and the replicas' tables.
func testConfig(n, replicas int) Config {
	s := Service{
		Name: "front", VIP: []netip.Addr{addr(vip)}, Port: 25565, Protocols: []Protocol{TCP, UDP}, Strategy: StrategyFirstAvailable,
		Sticky: true, SNAT: SNATHairpin, Tripwire: true, OnHint: OnHintConfirm,
		Probe: Probe{Type: ProbeTCP, Interval: time.Second, Cap: 700 * time.Millisecond, Misses: 2, Rise: 1},
	}
	for i := 1; i <= n; i++ {
		s.Candidates = append(s.Candidates, Candidate{
			Name: proxyName(i), Node: nodeName(i), Addresses: []netip.Addr{proxy(i).Addr()}, Port: 25577, Weight: 1,
		})
	}
	c := Config{Writer: WriterAuto, MaxConcurrent: 64, VetoFor: 30 * time.Second, Deadline: 2 * time.Second, Services: []Service{s}}
	for i := 1; i <= replicas; i++ {
		c.Replicas = append(c.Replicas, Replica{Name: nodeName(i), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})}})
	}
	return c
}

// scene is an input in the making.
type scene struct{ Input }

// newScene is core-01, which has the virtual address, before anything was ever done.
func newScene(c Config) *scene {
	s := &scene{Input{
		Version: InputVersion, Command: CommandRetarget, Config: c, Node: nodeName(1), Now: noon.UnixMilli(),
		Host: Host{Addresses: []netip.Addr{addr("10.0.1.1"), addr(vip)}, Links: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}},
	}}
	names := []string{s.Node}
	if len(c.Replicas) > 0 {
		names = nil
		for _, r := range c.Replicas {
			names = append(names, r.Name)
		}
	}
	for _, n := range names {
		s.Views = append(s.Views, View{Replica: n, Local: n == s.Node, Absent: true})
	}
	return s
}

// atRest is the same after a run, with every candidate known to be well.
func atRest(c Config) *scene {
	s := newScene(c)
	for i := range c.Services {
		for _, x := range c.Services[i].Candidates {
			for _, f := range []int{4, 6} {
				if k := KeyOf(c.Services[i], x, f); k != "" {
					s.answer(k, Good)
				}
			}
		}
	}
	s.run()
	return s
}

func (s *scene) key(n int) Key {
	return KeyOf(s.Config.Services[0], s.Config.Services[0].Candidates[n-1], 4)
}

func (s *scene) answer(k Key, o Outcome) {
	a := Answer{Key: k, Outcome: o, At: s.Now}
	if o == Good {
		a.Answers, a.Speaks, a.Accepts, a.RTT = true, true, true, time.Millisecond
	}
	if o == Miss {
		a.Reason = "connection refused"
	}
	s.Answers = append(s.Answers, a)
}

func (s *scene) good(n int) { s.answer(s.key(n), Good) }

// dies misses as often as a veto needs.
func (s *scene) dies(n ...int) {
	for _, i := range n {
		s.answer(s.key(i), Miss)
		s.answer(s.key(i), Miss)
	}
}

func (s *scene) held(n int) {
	s.Holds = append(s.Holds, Hold{Service: "front", Candidate: proxyName(n), Owner: "ada", Reason: "upgrade", Since: s.Now/1000 - 60})
}

func (s *scene) later(d time.Duration) {
	s.Now += d.Milliseconds()
	for i := range s.Views {
		s.Views[i].Table.Leases = slices.Clone(s.Views[i].Table.Leases)
		kept := s.Views[i].Table.Leases[:0]
		for _, l := range s.Views[i].Table.Leases {
			if l.Left -= d; l.Left > 0 {
				kept = append(kept, l)
			}
		}
		s.Views[i].Table.Leases = kept
	}
}

// leads puts a target into the tables of some replicas (none = all).
func (s *scene) leads(to netip.AddrPort, epoch uint64, by string, replicas ...string) {
	for i := range s.Views {
		v := &s.Views[i]
		if len(replicas) > 0 && !slices.Contains(replicas, v.Replica) {
			continue
		}
		v.Table.Targets = slices.Clone(v.Table.Targets)
		for j := range v.Table.Targets {
			v.Table.Targets[j].To = to
			v.Table.Targets[j].Claim.Epoch, v.Table.Targets[j].Claim.By = epoch, by
		}
	}
}

// as is the same world seen by another node, which does not have the virtual address.
func (s *scene) as(n int) {
	s.Node = nodeName(n)
	s.Host.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(n)})}
	for i := range s.Views {
		s.Views[i].Local = s.Views[i].Replica == s.Node
	}
}

// run plans, and makes the world as the plan wants it.
func (s *scene) run() Plan {
	p := PlanRetarget(s.Input)
	s.carryOut(p)
	return p
}

func (s *scene) carryOut(p Plan) {
	s.Views = slices.Clone(s.Views)
	for i := range s.Views {
		v := &s.Views[i]
		if want, ok := p.Tables[v.Replica]; ok && p.behind(*v) {
			v.Table, v.Absent, v.Drift = want, false, nil
		}
	}
	s.Memory, s.Holds, s.Answers, s.Confirmed, s.Back = p.Next, p.Holds, nil, nil, nil
	if s.Command != CommandWatchdog {
		s.Command, s.Ask, s.Only = CommandRetarget, Ask{}, nil
	}
}

// target is where the table of a replica leads, both protocols the same; "" = nowhere.
func target(t *testing.T, table Table) string {
	t.Helper()
	to := ""
	for i, e := range table.Targets {
		if i > 0 && e.To.String() != to {
			t.Errorf("one service leads to %s and to %s", to, e.To)
		}
		to = e.To.String()
	}
	return to
}

func stepKinds(p Plan) []StepKind {
	var out []StepKind
	for _, s := range p.Steps {
		out = append(out, s.Kind)
	}
	return out
}

func heldCodes(p Plan) []string {
	var out []string
	for _, h := range p.Held {
		out = append(out, h.Code)
	}
	return out
}

func noteCodes(p Plan) []string {
	var out []string
	for _, n := range p.Notes {
		out = append(out, n.Code)
	}
	return out
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
