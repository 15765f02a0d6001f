package edgestory

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

func killScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-kill", Summary: "kill -9 of retarget, drain and enable at each of their kill points and at random moments: at most two runs later all is as it should be",
		Flags: []lab.Flag{{Name: "random", Value: "40", Usage: "kills at random moments"}},
		Run:   playKill,
	}
}

// act is a kind of run that is killed.
type act struct {
	name    string
	prepare func(ctx context.Context, k *killing) error
	args    []string
	want    string // who must serve when all has settled
}

func acts() []act {
	calm := func(context.Context, *killing) error { return nil }
	return []act{
		{"first", func(_ context.Context, k *killing) error { return k.wipe() }, []string{"edge", "retarget"}, "a"},
		{"death", func(_ context.Context, k *killing) error { k.w.Backend("a").Kill(); return nil }, []string{"edge", "retarget"}, "b"},
		{"drain", calm, []string{"edge", "drain", "front", "a"}, ""},
		{"enable", func(ctx context.Context, k *killing) error {
			return k.r.Shunt(ctx, "edge", "drain", "front", "a").Err()
		}, []string{"edge", "enable", "front", "a"}, "b"},
		{"reset", calm, []string{"edge", "reset", "front"}, "a"},
	}
}

// killing is the scenario while it runs.
type killing struct {
	*stage
	log    string
	points map[string]int // killed at
}

func playKill(ctx context.Context, e *lab.Env) error {
	s, done, err := open(ctx, e, edgeworld.Options{Replicas: 2}, backend.Options{}, edgeworld.Config{Service: service(edgeworld.Settings{"nodes": true})})
	if err != nil {
		return err
	}
	defer done()
	k := &killing{stage: s, log: filepath.Join(e.Dir, "points"), points: map[string]int{}}
	kills, inconsistent := 0, 0
	for _, a := range acts() {
		points, err := k.rehearse(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		for _, p := range points {
			faults, err := k.one(ctx, a, p, 0)
			if err != nil {
				return fmt.Errorf("%s, killed at %s: %w", a.name, p, err)
			}
			kills++
			inconsistent += k.complain(a, p, faults)
		}
	}
	for range e.Int("random") {
		a := acts()[rand.IntN(len(acts()))]                                                      //nolint:gosec // a choice
		faults, err := k.one(ctx, a, "", time.Duration(rand.Int64N(int64(60*time.Millisecond)))) //nolint:gosec // a moment
		if err != nil {
			return fmt.Errorf("%s, killed at random: %w", a.name, err)
		}
		kills++
		inconsistent += k.complain(a, "a random moment", faults)
	}
	e.Count("kills", kills)
	e.Count("inconsistent", inconsistent)
	e.Control("kill_points", float64(len(k.points)), len(k.points) >= 5)
	return k.planted(ctx)
}

func (k *killing) complain(a act, where string, faults []string) int {
	if len(faults) == 0 {
		return 0
	}
	k.Problem("%s, killed at %s: %s", a.name, where, strings.Join(faults, "; "))
	return 1
}

// wipe takes everything away that a run makes.
func (k *killing) wipe() error {
	for _, r := range k.w.Replicas {
		deleteTable(r)
		if err := os.RemoveAll(r.State); err != nil {
			return err
		}
		if err := os.MkdirAll(r.State, 0o750); err != nil {
			return err
		}
	}
	return nil
}

// begin brings the world to where every act begins: a serves, nobody is held.
func (k *killing) begin(ctx context.Context, a act) error {
	if err := heal(ctx, k.w); err != nil {
		return err
	}
	if err := k.wipe(); err != nil {
		return err
	}
	if err := k.r.Shunt(ctx, "edge", "retarget").Err(); err != nil {
		return err
	}
	return a.prepare(ctx, k)
}

// rehearse plays the act without a kill and returns the points that it passes, each with its
// number.
func (k *killing) rehearse(ctx context.Context, a act) ([]string, error) {
	if err := k.begin(ctx, a); err != nil {
		return nil, err
	}
	_ = os.Remove(k.log)
	if a.name == "death" {
		lab.Sleep(ctx, 5200*time.Millisecond) // no fresh answer of who died
	}
	if r := k.r.Run(ctx, lab.Call{Args: a.args, Env: []string{"SHUNT_KILL_LOG=" + k.log}}); r.Code != 0 {
		return nil, r.Err()
	}
	b, err := os.ReadFile(k.log)
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	var out []string
	for _, p := range strings.Fields(string(b)) {
		count[p]++
		out = append(out, fmt.Sprintf("%s:%d", p, count[p]))
	}
	return out, nil
}

// one kills the act and looks at what two more runs make of it.
func (k *killing) one(ctx context.Context, a act, point string, after time.Duration) ([]string, error) {
	if err := k.begin(ctx, a); err != nil {
		return nil, err
	}
	call := lab.Call{Args: a.args}
	if point != "" {
		name, _, _ := strings.Cut(point, ":")
		k.points[name]++
		call.Env = []string{"SHUNT_KILL_AT=" + point}
		k.r.Run(ctx, call)
	} else {
		p, err := k.r.Start("killed", a.args...)
		if err != nil {
			return nil, err
		}
		lab.Sleep(ctx, after)
		p.Kill()
	}
	want := a.want
	if a.name == "drain" && k.held() {
		want = "b"
	}
	var faults []string
	for range 2 {
		if a.name == "death" {
			k.forgetAnswers()
		}
		r := k.r.Shunt(ctx, "edge", "retarget")
		faults = k.faults(ctx, want)
		if r.Code != 0 {
			faults = append(faults, fmt.Sprintf("retarget exits %d: %s", r.Code, r.Stderr))
		}
		if len(faults) == 0 {
			return nil, nil
		}
	}
	return faults, nil
}

// held says whether the drain's record was written.
func (k *killing) held() bool {
	b, err := os.ReadFile(filepath.Join(k.r.State, "edge-holds.json"))
	return err == nil && strings.Contains(string(b), `"a"`)
}

// forgetAnswers is time passing: answers of a moment ago are not asked for again.
func (k *killing) forgetAnswers() { time.Sleep(5200 * time.Millisecond) }

// faults are what is not as it should be.
func (k *killing) faults(ctx context.Context, want string) []string {
	var out []string
	st, code, err := look(ctx, k.r)
	if err != nil {
		return []string{err.Error()}
	}
	if code != 0 {
		out = append(out, fmt.Sprintf("status exits %d", code))
	}
	if got, _ := st.target(); want != "" && got != want {
		out = append(out, fmt.Sprintf("the service leads to %q, want %q", got, want))
	}
	for _, r := range k.w.Replicas {
		out = append(out, k.orphans(r, want)...)
	}
	return out
}

// orphans are elements of a table that lead nowhere that is configured.
func (k *killing) orphans(r *edgeworld.Replica, want string) []string {
	a := leads(r.NS)
	if !slices.ContainsFunc(k.w.Backends, func(b *edgeworld.Backend) bool { return b.Addr4 == a && (want == "" || b.Name == want) }) {
		return []string{fmt.Sprintf("the table of %s leads to %s", r.Name, a)}
	}
	return nil
}

// planted proves that faults are found.
func (k *killing) planted(ctx context.Context) error {
	if err := k.begin(ctx, acts()[4]); err != nil {
		return err
	}
	if f := k.faults(ctx, "a"); len(f) > 0 {
		k.Problem("without any fault: %s", strings.Join(f, "; "))
	}
	found := 0
	for _, plant := range []func() error{
		func() error { deleteTable(k.w.Replicas[1]); return nil },
		func() error { return lead(ctx, k.w.Replicas[1], k.w.Backend("b")) },
		func() error { return lead(ctx, k.r, k.w.Backend("b")) },
	} {
		if err := plant(); err != nil {
			return err
		}
		if len(k.faults(ctx, "a")) > 0 {
			found++
		}
		k.r.Shunt(ctx, "edge", "retarget")
		k.r.Shunt(ctx, "edge", "reset", "front")
	}
	k.Control("planted_faults_found", float64(found), found == 3)
	return nil
}
