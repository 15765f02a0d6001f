package edge

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// manyServices has 1,000 services of 4 candidates each.
func manyServices(replicas int) Config {
	c := testConfig(0, replicas)
	model := c.Services[0]
	c.Services = nil
	for i := range 1000 {
		s := model
		s.Name = fmt.Sprintf("service-%d", i)
		s.VIP = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})}
		for n := 1; n <= 4; n++ {
			s.Candidates = append(s.Candidates, Candidate{
				Name: proxyName(n), Node: nodeName(n), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n), byte(i >> 8), byte(i)})}, Port: 25577,
			})
		}
		c.Services = append(c.Services, s)
	}
	return c
}

func bigScene(replicas int) *scene {
	c := manyServices(replicas)
	s := newScene(c)
	for i := range c.Services {
		s.Host.Addresses = append(s.Host.Addresses, c.Services[i].VIP[0])
		for _, x := range c.Services[i].Candidates {
			s.answer(KeyOf(c.Services[i], x, 4), Good)
		}
	}
	s.run()
	return s
}

func BenchmarkPlanOf1000Services(b *testing.B) {
	for name, given := range map[string]func(*scene){
		"unchanged": func(*scene) {},
		"one dead":  func(s *scene) { s.dies(1) },
		"a node dead": func(s *scene) {
			for i := range s.Config.Services {
				k := KeyOf(s.Config.Services[i], s.Config.Services[i].Candidates[0], 4)
				s.answer(k, Miss)
				s.answer(k, Miss)
			}
		},
		"from nothing": func(s *scene) { s.Memory, s.Views = Memory{}, newScene(s.Config).Views },
	} {
		for _, replicas := range []int{0, 3} {
			b.Run(fmt.Sprintf("%s, %d replicas", name, replicas), func(b *testing.B) {
				s := bigScene(replicas)
				given(s)
				pre := prepare(s.Config, s.Node)
				for b.Loop() {
					planWith(s.Input, pre)
				}
			})
		}
	}
}

func BenchmarkPrepare1000Services(b *testing.B) {
	c := manyServices(3)
	for b.Loop() {
		prepare(c, "core-01")
	}
}

func bigSession(b *testing.B) *Session {
	d, err := state.Open(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	w := &town{config: manyServices(0), tables: map[string]*fakeTable{}, minds: map[netip.AddrPort]mind{}, probes: map[netip.AddrPort]int{}}
	w.tables[nodeName(1)] = &fakeTable{w: w, name: nodeName(1), absent: true}
	e := w.envAt(1, d)
	e.Way, e.Alerts = nil, nil
	s, err := e.Open(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	var answers []Answer
	for _, t := range s.Targets() {
		answers = append(answers, s.Prober.Probe(b.Context(), t))
	}
	if _, err := s.Judge(b.Context(), answers); err != nil {
		b.Fatal(err)
	}
	return s
}

func BenchmarkJudgeWithoutChange(b *testing.B) {
	s := bigSession(b)
	a := s.Prober.Probe(b.Context(), s.Targets()[17])
	for b.Loop() {
		a.At = time.Now().UnixMilli()
		if res, err := s.Judge(b.Context(), []Answer{a}); err != nil || res.Plan.Changes() {
			b.Fatal(err, res.Plan.Steps)
		}
	}
}

// BenchmarkMove is a whole move of one service among 1,000: two misses, records included.
func BenchmarkMove(b *testing.B) {
	s := bigSession(b)
	targets := s.Targets()
	var commit time.Duration
	moves := 0
	for i := 0; b.Loop(); i++ {
		q := targets[i*4%len(targets)]
		res, err := s.Confirmed(b.Context(), Answer{Key: q.Key, Outcome: Miss, Reason: "refused", At: time.Now().UnixMilli()}, time.Now())
		if err != nil || res.Partial != nil {
			b.Fatal(err, res.Partial)
		}
		for _, m := range res.Moves {
			moves++
			commit += m.Commit
		}
	}
	if moves > 0 {
		b.ReportMetric(float64(commit.Microseconds())/float64(moves)/1000, "ms-to-commit")
	}
}

func BenchmarkRefreshOf1000Services(b *testing.B) {
	s := bigSession(b)
	for b.Loop() {
		if err := s.Refresh(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// Budgets with a wide margin: the figures are in the benchmarks.
func TestBudgetsOf1000Services(t *testing.T) {
	if testing.Short() {
		t.Skip("a budget of time")
	}
	s := bigScene(3)
	s.dies(1)
	pre := prepare(s.Config, s.Node)
	best := time.Hour
	for range 5 {
		began := time.Now()
		planWith(s.Input, pre)
		best = min(best, time.Since(began))
	}
	if best > 400*time.Millisecond {
		t.Errorf("a plan takes %s", best)
	}
}
