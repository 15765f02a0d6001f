package edge

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawConfig is a configuration with one to three services.
func drawConfig(t *rapid.T) Config {
	c := testConfig(0, rapid.IntRange(0, 3).Draw(t, "replicas"))
	model := c.Services[0]
	c.Services = nil
	c.VetoFor = time.Duration(rapid.IntRange(0, 30).Draw(t, "veto_for")) * time.Second
	for i := range rapid.IntRange(1, 3).Draw(t, "services") {
		s := model
		s.Name = fmt.Sprintf("service-%d", i)
		s.Port += i
		s.VIP = []netip.Addr{addr(vip)}
		if rapid.Bool().Draw(t, "v6") {
			s.VIP = append(s.VIP, addr("fd00::50"))
		}
		s.Sticky, s.Nodes = rapid.Bool().Draw(t, "sticky"), rapid.Bool().Draw(t, "nodes")
		s.ResetDead = rapid.Bool().Draw(t, "reset_dead")
		s.Protocols = rapid.SampledFrom([][]Protocol{{TCP}, {UDP}, {TCP, UDP}}).Draw(t, "protocols")
		s.Probe.Misses, s.Probe.Rise = rapid.IntRange(1, 3).Draw(t, "misses"), rapid.IntRange(1, 3).Draw(t, "rise")
		s.Probe.Login = rapid.Bool().Draw(t, "login")
		s.Candidates = nil
		for n := 1; n <= rapid.IntRange(0, 4).Draw(t, "candidates"); n++ {
			x := Candidate{Name: proxyName(n), Node: nodeName(rapid.IntRange(1, 3).Draw(t, "node")), Addresses: []netip.Addr{proxy(n).Addr()}, Port: 25577}
			if rapid.Bool().Draw(t, "has v6") {
				x.Addresses = append(x.Addresses, netip.MustParseAddr(fmt.Sprintf("fd00::%d", n)))
			}
			s.Candidates = append(s.Candidates, x)
		}
		c.Services = append(c.Services, s)
	}
	return c
}

// drawScene is a world in any condition that machines can bring about.
func drawScene(t *rapid.T) *scene {
	s := newScene(drawConfig(t))
	s.Host.Addresses = append(s.Host.Addresses, addr("fd00::50"))
	for range rapid.IntRange(0, 3).Draw(t, "runs before") {
		drawNews(t, s)
		s.run()
		s.later(time.Duration(rapid.IntRange(0, 40000).Draw(t, "ms")) * time.Millisecond)
	}
	drawNews(t, s)
	for i := range s.Views {
		drawDamage(t, &s.Views[i])
	}
	return s
}

// drawNews is what may have happened since the last run.
func drawNews(t *rapid.T, s *scene) {
	for i := range s.Config.Services {
		sv := &s.Config.Services[i]
		for _, x := range sv.Candidates {
			if rapid.IntRange(0, 4).Draw(t, "hold") == 0 {
				s.Holds = append(s.Holds, Hold{Service: sv.Name, Candidate: x.Name, Owner: "ada", Since: s.Now / 1000, Until: s.Now/1000 + rapid.Int64Range(-5, 60).Draw(t, "until")})
			}
			for _, f := range []int{4, 6} {
				k := KeyOf(*sv, x, f)
				for range rapid.IntRange(0, 3).Draw(t, "answers") {
					if k == "" {
						break
					}
					s.answer(k, rapid.SampledFrom([]Outcome{Good, Miss, Miss, OutcomeUnknown}).Draw(t, "outcome"))
					s.Answers[len(s.Answers)-1].Accepts = rapid.Bool().Draw(t, "accepts")
				}
			}
		}
	}
}

// drawDamage is what may have become of a table.
func drawDamage(t *rapid.T, v *View) {
	switch rapid.IntRange(0, 6).Draw(t, "damage of "+v.Replica) {
	case 0:
		*v = View{Replica: v.Replica, Local: v.Local, Absent: true}
	case 1:
		if !v.Local {
			*v = View{Replica: v.Replica, Error: "no answer within 2s"}
		}
	case 2:
		v.Drift = []string{"chain input: rule 1"}
	case 3: // another machine moved something
		v.Table.Targets = slices.Clone(v.Table.Targets)
		for i := range v.Table.Targets {
			e := &v.Table.Targets[i]
			if rapid.Bool().Draw(t, "moved") && e.To.Addr().Is4() {
				e.To = proxy(rapid.IntRange(1, 5).Draw(t, "to"))
				e.Claim.Epoch += rapid.Uint64Range(0, 2).Draw(t, "epoch")
			}
		}
	case 4: // somebody took something away
		v.Table.Targets, v.Table.Backends = v.Table.Targets[:len(v.Table.Targets)/2], nil
	}
}

func TestAHealthyIncumbentIsNeverMoved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		p := PlanRetarget(s.Input)
		for _, c := range p.Choices {
			sv := serviceOf(s.Config, c.Service)
			for _, x := range c.Candidates {
				if x.Addr != c.Was || c.Target == c.Was || !sv.Sticky {
					continue
				}
				if h := p.Next.Health[x.Key]; (x.State == StateUp || x.State == StateSuspect || x.State == StateUnknown) && !h.Refusing {
					t.Fatalf("%s was at %s, which is %q, and goes to %s\n%s", c.Service, c.Was, x.State, c.Target, planText(p))
				}
			}
		}
	})
}

func TestAnyoneElseServesOnlyWhenAllAreHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		p := PlanRetarget(s.Input)
		for _, c := range p.Choices {
			var serves *Standing
			held, dead := 0, 0
			for i, x := range c.Candidates {
				if x.Addr == c.Target {
					serves = &c.Candidates[i]
				}
				if x.Hold != nil {
					held++
				} else if x.Veto != nil {
					dead++
				}
			}
			all := len(c.Candidates)
			switch {
			case serves == nil && all > 0:
				t.Fatalf("%s leads to %s, no candidate, of %d", c.Service, c.Target, all)
			case serves == nil:
			case serves.Hold != nil && held < all:
				t.Fatalf("a drained one serves %s, %d of %d are drained\n%s", c.Service, held, all, planText(p))
			case serves.Veto != nil && held+dead < all:
				t.Fatalf("a dead one serves %s, %d drained and %d dead of %d\n%s", c.Service, held, dead, all, planText(p))
			case c.LastResort != (serves.Veto != nil && serves.Hold == nil):
				t.Fatalf("last resort: %v, by one that is %q\n%s", c.LastResort, serves.State, planText(p))
			}
		}
	})
}

func TestNodesNeverLeadToOneThatIsOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		p := PlanRetarget(s.Input)
		out, any := map[netip.AddrPort]map[string]bool{}, map[string]bool{}
		for _, c := range p.Choices {
			for _, x := range c.Candidates {
				if x.Hold == nil && x.Veto == nil {
					any[fmt.Sprint(c.Service, c.Family)] = true
					continue
				}
				if out[x.Addr] == nil {
					out[x.Addr] = map[string]bool{}
				}
				out[x.Addr][c.Service] = true
			}
		}
		for name, table := range p.Tables {
			for _, e := range table.Nodes {
				if out[e.To][e.Claim.Service] && any[fmt.Sprint(e.Claim.Service, familyOf(e.From.Addr.Addr()))] {
					t.Fatalf("node table of %s: %v leads to %s, which is out\n%s", name, e.From, e.To, planText(p))
				}
			}
		}
	})
}

// Every table that this machine writes says the same of virtual addresses.
func TestReplicasWithEqualInputsGetEqualTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		p := PlanRetarget(s.Input)
		first, of := "", ""
		for _, v := range s.Views {
			table, ok := p.Tables[v.Replica]
			if !ok {
				continue
			}
			said := tableText(table)
			if of == "" {
				first, of = said, v.Replica
			}
			if said != first {
				t.Fatalf("%s:\n%s\n%s:\n%s", of, first, v.Replica, said)
			}
		}
	})
}

// Two machines that both have the address and know the same lead it to the same target.
func TestTwoHoldersChooseTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		other := *s
		other.Views = slices.Clone(s.Views)
		host := s.Host
		other.as(2)
		other.Host = host
		a, b := PlanRetarget(s.Input), PlanRetarget(other.Input)
		for i, c := range a.Choices {
			if o := b.Choices[i]; o.Target != c.Target || o.Epoch != c.Epoch {
				t.Fatalf("%s: %s epoch %d here, %s epoch %d there", c.Service, c.Target, c.Epoch, o.Target, o.Epoch)
			}
		}
		if a.Digest != b.Digest {
			t.Fatalf("digests %s and %s", a.Digest, b.Digest)
		}
	})
}

// tableText is a table without what is a machine's own: who wrote it, leases, links, nodes.
func tableText(table Table) string {
	var b strings.Builder
	for _, e := range table.Targets {
		fmt.Fprintln(&b, e.From, e.To, e.Claim.Service, e.Claim.Epoch)
	}
	fmt.Fprintln(&b, table.Backends, table.Always)
	return b.String()
}

func TestEpochsNeverFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		p := PlanRetarget(s.Input)
		for _, c := range p.Choices {
			highest, to := uint64(0), netip.AddrPort{}
			see := func(epoch uint64, at netip.AddrPort) {
				if epoch > highest {
					highest, to = epoch, at
				}
			}
			for _, v := range s.Views {
				for _, e := range v.Table.Targets {
					if e.Claim.Service == c.Service && familyOf(e.From.Addr.Addr()) == c.Family {
						see(e.Claim.Epoch, e.To)
					}
				}
			}
			for _, m := range s.Memory.Targets {
				if m.Service == c.Service && m.Family == c.Family {
					see(m.Epoch, m.To)
				}
			}
			if c.Epoch < highest || c.Epoch == highest && c.Target.IsValid() && to.IsValid() && c.Target != to {
				t.Fatalf("%s: epoch %d to %s was seen, and it is led to %s with epoch %d\n%s", c.Service, highest, to, c.Target, c.Epoch, planText(p))
			}
		}
	})
}

func TestPlanningTwiceIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		first := s.run()
		second := s.run()
		if len(second.Steps) > 0 {
			t.Fatalf("first:\n%s\nthen:\n%s", planText(first), planText(second))
		}
		for _, v := range s.Views {
			if second.behind(v) {
				t.Fatalf("table of %s is written again and no step says so", v.Replica)
			}
		}
		third := s.run() // a complaint that the first run ended is forgotten by the second
		if worthWriting(second.Next, third.Next) {
			t.Fatalf("remembered anew:\n%+v\n%+v", second.Next, third.Next)
		}
	})
}

func TestARecordedInputPlansTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		s.Damage = []string{"edge.json:1: truncated"}
		want, err := json.Marshal(PlanRetarget(s.Input))
		if err != nil {
			t.Fatal(err)
		}
		record, err := json.Marshal(s.Input)
		if err != nil {
			t.Fatal(err)
		}
		var in Input
		if err := json.Unmarshal(record, &in); err != nil {
			t.Fatal(err)
		}
		p, err := ReplayInput(in)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := json.Marshal(p); string(got) != string(want) {
			t.Fatalf("live:\n%s\nreplayed:\n%s", want, got)
		}
	})
}

func serviceOf(c Config, name string) Service {
	i := slices.IndexFunc(c.Services, func(s Service) bool { return s.Name == name })
	return c.Services[i]
}
