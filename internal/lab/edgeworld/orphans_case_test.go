package edgeworld_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// many are n services from port 1000 on, whose candidates are in turn a and b.
func (s *stage) many(n int, ports []int) (out []edgeworld.Settings) {
	for _, i := range ports[:n] {
		var candidates []edgeworld.Settings
		for j := range s.Backends {
			b := s.Backends[(i+j)%len(s.Backends)]
			candidates = append(candidates, edgeworld.Settings{"name": b.Name, "addresses": []string{b.Addr4.String()}, "port": edgeworld.Port})
		}
		out = append(out, edgeworld.Settings{
			"name": fmt.Sprint("s", i), "vip": []string{edgeworld.VIP4}, "port": i, "protocols": []string{"tcp", "udp"}, "candidates": candidates,
		})
	}
	return out
}

// elements are a replica's elements without who moved them, and how often.
func (s *stage) elements(r *edgeworld.Replica) []string {
	s.t.Helper()
	text := regexp.MustCompile(` (comment "[^"]*"|timeout \S+|expires \S+)`).ReplaceAllString(s.table(r), "")
	text = regexp.MustCompile(`(?s)set lease \{.*?\n\t\}\n`).ReplaceAllString(text, "")
	out := regexp.MustCompile(`[\d.]+ \. (tcp|udp) \. \d+( : [\d.]+ \. \d+)?`).FindAllString(text, -1)
	slices.Sort(out)
	return out
}

// Case: what a run was about to take away stays behind when it is killed. From forty services to
// two others and back, killed at each point that it passes and at random moments, on two
// replicas: after the next run both tables have the elements of a run that was not killed.
func TestAKilledRunLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	if !isInsideWithProduct(t, 5*time.Minute) {
		return
	}
	s := newStage(t, edgeworld.Options{Replicas: 2}, backend.Options{UDP: true}, edgeworld.Config{})
	ports := make([]int, 40)
	for i := range ports {
		ports[i] = 1000 + i
	}
	configs := map[string]edgeworld.Config{
		"large": {Services: s.many(40, ports)},
		"small": {Services: s.many(2, []int{1007, 2000})},
	}
	want := map[string][]string{}
	for name, c := range configs {
		s.do(s.r.NS, "nft", "add table inet shunt_edge; delete table inet shunt_edge")
		must(t, s.Configure(c))
		s.shunt(s.r, retarget())
		want[name] = s.elements(s.r)
		t.Logf("%s: %d elements", name, len(want[name]))
		if got := s.elements(s.Replicas[1]); !slices.Equal(got, want[name]) {
			t.Fatalf("%s: the replicas differ: %v, %v", name, want[name], got)
		}
	}
	killed := 0
	for from, to := range map[string]string{"large": "small", "small": "large"} {
		for _, point := range append(s.points(configs[from], configs[to]), make([]string, 12)...) {
			if s.killed(configs[from], configs[to], point) {
				killed++
			}
			s.shunt(s.r, retarget())
			where := fmt.Sprintf("to %s, killed at %q", to, point)
			for _, r := range s.Replicas {
				if got := s.elements(r); !slices.Equal(got, want[to]) {
					t.Fatalf("%s: %s has\n%v\nwant\n%v", where, r.Name, got, want[to])
				}
			}
			if x := s.status(s.r); x.Code != 0 {
				t.Errorf("%s: status exits %d", where, x.Code)
			}
			if list := s.do(s.r.NS, "nft", "list", "tables"); list != "table inet shunt_edge\n" {
				t.Errorf("%s: tables %q", where, list)
			}
		}
	}
	t.Logf("%d kills", killed)
	if killed < 10 {
		t.Errorf("only %d runs were killed", killed)
	}
}

func retarget() []string { return []string{"edge", "retarget"} }

// points are those that a run from one configuration to another passes, each with its number.
func (s *stage) points(from, to edgeworld.Config) (out []string) {
	s.t.Helper()
	must(s.t, s.Configure(from))
	s.shunt(s.r, retarget())
	must(s.t, s.Configure(to))
	log := filepath.Join(s.Dir, "points")
	_ = os.Remove(log)
	must(s.t, s.r.Run(s.t.Context(), lab.Call{Args: retarget(), Env: []string{"SHUNT_KILL_LOG=" + log}}).Err())
	text, err := os.ReadFile(log)
	must(s.t, err)
	count := map[string]int{}
	for _, p := range strings.Fields(string(text)) {
		count[p]++
		out = append(out, fmt.Sprintf("%s:%d", p, count[p]))
	}
	return out
}

// killed kills a run from one configuration to another at a point, or "" = within 90 ms, and
// says whether it was still at work.
func (s *stage) killed(from, to edgeworld.Config, point string) bool {
	s.t.Helper()
	must(s.t, s.Configure(from))
	s.shunt(s.r, retarget())
	must(s.t, s.Configure(to))
	call := lab.Call{Args: retarget(), Env: []string{"SHUNT_KILL_AT=" + point}}
	if point == "" {
		call.Kill, call.Env = time.Millisecond+time.Duration(rand.Int64N(int64(90*time.Millisecond))), nil
	}
	res := s.r.Run(s.t.Context(), call)
	if res.Code != 128+9 && point != "" {
		s.t.Errorf("not killed at %s: %v", point, res.Err())
	}
	return res.Code == 128+9
}
