package watchdog

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/state"
)

// Deaths around a hand-over move as fast as others: the successor has its tripwires armed,
// and works from the moment its predecessor lets go. WATCHDOG_REPS=20 is the whole of it.
func TestDeathsAroundAHandOver(t *testing.T) {
	w := newWorld(t)
	reps := 6
	if n, err := strconv.Atoi(os.Getenv("WATCHDOG_REPS")); err == nil {
		reps = n
	}
	const life, ahead = 3 * time.Second, time.Second
	dir, c := fresh(t), config(2, func(s *edge.Service) { s.Probe.Interval, s.Probe.Cap = 500*time.Millisecond, 450*time.Millisecond })
	procs := map[string]*server{"a": w.serve(t, backend.Options{Name: "a"}), "b": w.serve(t, backend.Options{Name: "b"})}
	next := func(turn time.Time) *dog { // its turn comes when its predecessor ends
		return w.watch(t, t.Context(), dir, c, func(o *Options) { o.Started, o.For = turn.Add(-ahead), life })
	}
	turn := time.Now()
	d := next(turn)
	d.moved("a")
	var gaps, waits []time.Duration
	dies, lives := "a", "b"
	for i := range reps {
		turn = turn.Add(life - ahead)
		time.Sleep(time.Until(turn.Add(-ahead)))
		succ := next(turn)
		offset := time.Duration(0)
		if reps > 1 {
			offset = -500*time.Millisecond + time.Second*time.Duration(i)/time.Duration(reps-1)
		}
		client := w.connect(t)
		steady(t, client, dies, 40*time.Millisecond)
		time.Sleep(time.Until(turn.Add(offset)))
		began := procs[dies].shoot(t)
		steady(t, client, lives, 20*time.Millisecond)
		g := client.Stop().After(began, lives)
		gaps = append(gaps, g.Gap)
		t.Logf("%+4d ms from the hand-over: %6s, %d failed; the client itself stood still for %s", offset.Milliseconds(), g.Gap.Round(100*time.Microsecond), g.Failed, g.Stall)
		procs[dies].kill()
		procs[dies] = w.serve(t, backend.Options{Name: dies})
		ev := succ.await("its turn", func(ev Event) bool { return ev.Kind == EventBegan })
		waits = append(waits, ev.At.Sub(turn))
		<-d.ended
		if d.err != nil {
			t.Error(d.err)
		}
		d = succ
		dies, lives = lives, dies
	}
	slices.Sort(gaps)
	slices.Sort(waits)
	t.Logf("gap: median %v, worst of %d %v; the turn comes %v after the time, at worst %v", gaps[reps/2], reps, gaps[reps-1], waits[reps/2], waits[reps-1])
	if m := gaps[reps-1]; m > 2*time.Second {
		t.Errorf("worst gap %v", m)
	}
}

// connections counts those that stand at a server.
func (w world) connections(t *testing.T, name string) int {
	t.Helper()
	n := 0
	must(t, w.far[name].Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/tcp")
		text6, err6 := os.ReadFile("/proc/thread-self/net/tcp6")
		for line := range strings.Lines(string(text) + string(text6)) {
			if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], ":0050") && f[3] == "01" {
				n++
			}
		}
		return errors.Join(err, err6)
	}))
	return n
}

// One tripwire at a candidate, and during a hand-over one more.
func TestACandidateSeesFewConnections(t *testing.T) {
	w := newWorld(t)
	dir, c := fresh(t), lazy(1, edge.OnHintConfirm)
	w.serve(t, backend.Options{Name: "a"})
	first := w.watch(t, t.Context(), dir, c, nil)
	first.moved("a")
	stands := func(n int) func() bool { return func() bool { return w.connections(t, "a") == n } }
	eventually(t, "one tripwire stands", stands(1))
	second := w.watch(t, t.Context(), dir, c, nil)
	second.await("it waits", func(ev Event) bool { return ev.Kind == EventWaiting })
	eventually(t, "two tripwires stand", stands(2))
	for range 100 {
		if n := w.connections(t, "a"); n > 2 {
			t.Fatalf("%d connections", n)
		}
	}
	first.end()
	second.await("its turn", func(ev Event) bool { return ev.Kind == EventBegan })
	eventually(t, "one tripwire stands again", stands(1))
	second.end()
	eventually(t, "all is closed", stands(0))
}

// A watchdog that did not run for seconds finds nobody dead for that.
func TestAFrozenWatchdogVetoesNobody(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b"} {
		w.serve(t, backend.Options{Name: name})
	}
	c := config(2, func(s *edge.Service) { s.Probe.Interval, s.Probe.Cap = 10*time.Millisecond, 20*time.Millisecond })
	dir := fresh(t)
	p := w.process(t, job{Dir: dir, Config: c, For: time.Minute})
	p.await("a table", func(s said) bool { return len(s.Moves) > 0 })
	vetoed := func(s said) bool {
		return slices.ContainsFunc(s.Steps, func(s string) bool { return strings.HasPrefix(s, "veto") })
	}
	for _, d := range []time.Duration{15 * time.Millisecond, 50 * time.Millisecond, 10 * time.Second} {
		must(t, p.Process.Signal(syscall.SIGSTOP))
		time.Sleep(d)
		must(t, p.Process.Signal(syscall.SIGCONT))
		time.Sleep(300 * time.Millisecond) // thirty rounds, in which nothing is to happen
	}
	p.await("that it is late is told", func(s said) bool {
		if vetoed(s) {
			t.Errorf("a veto: %+v", s)
		}
		return s.Kind == EventLate && s.Took > 9*time.Second
	})
	for len(p.lines) > 0 {
		if s := <-p.lines; vetoed(s) {
			t.Errorf("a veto: %+v", s)
		}
	}
	d, err := state.Open(dir)
	must(t, err)
	eventually(t, "the heartbeat says it too", func() bool {
		beat, err := ReadBeat(d)
		return err == nil && beat.Longest > 9*time.Second
	})
}

// A watchdog that is killed has its successor at work within the kernel's time for that.
func TestAKilledWatchdogHasASuccessor(t *testing.T) {
	w := newWorld(t)
	a := w.serve(t, backend.Options{Name: "a"})
	w.serve(t, backend.Options{Name: "b"})
	dir, c := fresh(t), config(2, nil)
	first := w.process(t, job{Dir: dir, Config: c, For: time.Minute})
	first.await("a table", func(s said) bool { return len(s.Moves) > 0 })
	second := w.process(t, job{Dir: dir, Config: c, For: time.Minute})
	second.await("it waits", func(s said) bool { return s.Kind == EventWaiting })
	client := w.connect(t)
	steady(t, client, "a", 50*time.Millisecond)
	began := time.Now()
	must(t, first.Process.Kill())
	a.shoot(t)
	took := second.await("its turn", func(s said) bool { return s.Kind == EventBegan }).At.Sub(began)
	steady(t, client, "b", 20*time.Millisecond)
	g := client.Stop().After(began, "b")
	t.Logf("both killed at once: its turn after %v, the survivor serves after %v", took, g.Gap)
	if g.Gap > 5*time.Second {
		t.Errorf("gap %v", g.Gap)
	}
}

// Silence sends no FIN: the probes find it.
func TestASilentDeathIsFoundByProbes(t *testing.T) {
	w := newWorld(t)
	w.serve(t, backend.Options{Name: "a"})
	w.serve(t, backend.Options{Name: "b"})
	c := config(2, func(s *edge.Service) { s.Probe.Interval, s.Probe.Cap = 10*time.Millisecond, 20*time.Millisecond })
	d := w.watch(t, t.Context(), fresh(t), c, nil)
	d.moved("a")
	client := w.connect(t)
	steady(t, client, "a", 50*time.Millisecond)
	t.Cleanup(func() { must(t, w.cut("a", false)) })
	began := time.Now()
	must(t, w.cut("a", true))
	steady(t, client, "b", 20*time.Millisecond)
	g := client.Stop().After(began, "b")
	t.Logf("the survivor serves after %v, %d failed", g.Gap, g.Failed)
	if g.Gap > 5*time.Second {
		t.Errorf("gap %v", g.Gap)
	}
}

// Idle connections that a healthy server closes all the time cause no veto.
func TestIdleClosesCauseNoVeto(t *testing.T) {
	w := newWorld(t)
	w.serve(t, backend.Options{Name: "a", Idle: 100 * time.Millisecond})
	w.serve(t, backend.Options{Name: "b", Recycle: 150 * time.Millisecond})
	c := config(2, nil)
	d := w.watch(t, t.Context(), fresh(t), c, nil)
	d.moved("a")
	hints := 0
	d.await("some hints", func(ev Event) bool {
		if ev.Kind == EventHint {
			hints++
		}
		return hints > 20
	})
	if ev, bad := d.find(func(ev Event) bool { return steps(ev, edge.StepVeto, "") > 0 }); bad {
		t.Errorf("a veto: %+v", ev.Result.Plan.Steps)
	}
	sum := d.end()
	if sum.Dead > 0 || len(sum.Moves) != 1 {
		t.Errorf("%+v", sum)
	}
}

// Candidates of this machine are watched by the kernel's word: no connection, no idle limit.
func TestALocalCandidate(t *testing.T) {
	w := newWorld(t)
	w.serve(t, backend.Options{Name: "b"})
	o := backend.Options{Name: "here", Port: 8080}
	cmd := exec.Command("/proc/self/exe", o.Args()...)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	local := &server{cmd, "here"}
	t.Cleanup(local.kill)
	_, err = out.Read(make([]byte, 64))
	must(t, err)
	c := lazy(2, edge.OnHintConfirm)
	c.Services[0].Candidates[0].Addresses = []netip.Addr{netip.MustParseAddr("10.20.1.1")}
	c.Services[0].Candidates[0].Port = 8080
	var set keptSet
	d := w.watch(t, t.Context(), fresh(t), c, func(o *Options) {
		o.arm = set.arm
	})
	eventually(t, "both are watched", func() bool { return set.armed() == 2 })
	client := w.connect(t)
	steady(t, client, "here", 20*time.Millisecond)
	d.mark()
	began := local.shoot(t)
	hint := d.await("a hint", func(ev Event) bool { return ev.Kind == EventHint })
	if !strings.HasPrefix(hint.Text, "listener") {
		t.Errorf("hint %q", hint.Text)
	}
	steady(t, client, "b", 20*time.Millisecond)
	t.Logf("the survivor serves after %v", client.Stop().After(began, "b").Gap)
}

// A tripwire is older than the table, and than connection tracking, when the first run of
// all begins: its end must be heard of all the same.
func TestADeathRightAfterTheTableWasMade(t *testing.T) {
	w := newWorld(t)
	a := w.serve(t, backend.Options{Name: "a"})
	w.serve(t, backend.Options{Name: "b"})
	var set keptSet
	d := w.watch(t, t.Context(), fresh(t), lazy(2, edge.OnHintConfirm), func(o *Options) {
		o.lock = func(context.Context) (func() error, error) {
			eventually(t, "both are watched", func() bool { return set.armed() == 2 })
			return func() error { return nil }, nil
		}
		o.arm = set.arm
	})
	d.moved("a")
	eventually(t, "both are watched again", func() bool { return set.armed() == 2 })
	began := a.shoot(t)
	hint := d.await("a hint", func(ev Event) bool { return ev.Kind == EventHint })
	t.Logf("heard of after %v", hint.At.Sub(began))
	if d := hint.At.Sub(began); d > 5*time.Second { // the probes come after ten
		t.Errorf("heard of after %v", d)
	}
}
