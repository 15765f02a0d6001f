package story_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/state"
)

// until polls a condition for at most d.
func (p place) until(d time.Duration, what string, ok func() bool) {
	p.t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end.C:
			p.t.Fatalf("not within %s: %s", d, what)
		case <-tick.C:
		}
	}
}

// holder says who holds a lock of the router.
func (p place) holder(lock string) string {
	p.t.Helper()
	d, err := state.OpenRead(p.State)
	if err != nil {
		p.t.Fatal(err)
	}
	return d.Holder(lock)
}

// slowRefresh starts a refresh that tests one endpoint each second, and returns when it
// holds its lock.
func (p place) slowRefresh() *lab.Proc {
	p.t.Helper()
	r, err := p.Start("refresh", "egress", "refresh", "--set", "egress.test.rate=1", "--set", "egress.test.parallel=1")
	if err != nil {
		p.t.Fatal(err)
	}
	p.until(5*time.Second, "the refresh holds its lock", func() bool { return p.holder("pool") != "" })
	return r
}

func TestOfTwoRefreshesOneWorksAndTheOtherNamesIt(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 1, Endpoints: 3})
	first := p.slowRefresh()
	second := p.Shunt(t.Context(), "egress", "refresh")
	want := fmt.Sprintf("lock pool: held by shunt egress refresh (pid %d, since ", first.Pid())
	if second.Code != 75 || !strings.Contains(string(second.Stderr), want) {
		t.Errorf("the second refresh: exit code %d, want 75 and %q: %s", second.Code, want, second.Stderr)
	}
	select {
	case <-first.Done():
		t.Errorf("the first one was over before the second had its answer: %s", first.Tail())
	default:
	}
	p.until(20*time.Second, "the first refresh ends", func() bool {
		select {
		case <-first.Done():
			return true
		default:
			return false
		}
	})
	if code := first.Stop(); code != 0 || p.strictRank(p.Endpoints()[0]) == 0 {
		t.Errorf("the first refresh: exit code %d, rank %d: %s", code, p.strictRank(p.Endpoints()[0]), first.Tail())
	}
	if fetched, _ := filepath.Glob(filepath.Join(p.State, "pools", ".fetch-*")); len(fetched) > 0 {
		t.Errorf("left: %v", fetched)
	}
	p.shunt("egress", "refresh")
}

// pids reads those that a hook wrote into a file of the world.
func (p place) pids(name string) []int {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.Dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	var out []int
	for _, f := range strings.Fields(string(b)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			p.t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func TestAChildThatAHookLeavesKeepsNoLock(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 2, Endpoints: 4})
	// One in a session of its own, which nothing ends, and one that is only in the background.
	hook := `cat >/dev/null; setsid sleep 3600 & echo $! >>children; sleep 3600 & echo $! >>others`
	if err := p.Configure(lab.Settings{"hooks.on_event": []string{"sh", "-c", "cd " + p.Dir + "; " + hook}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range append(p.pids("children"), p.pids("others")...) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	for _, args := range [][]string{{"egress", "refresh"}, {"egress", "rebalance"}, {"egress", "repair"}, {"egress", "refresh"}, {"egress", "rebalance"}} {
		if r := p.Shunt(t.Context(), args...); r.Code != 0 || r.Took > 20*time.Second {
			t.Fatalf("%v: exit code %d after %s: %s", args, r.Code, r.Took, r.Stderr)
		}
	}
	living := 0
	for _, pid := range append(p.pids("children"), p.pids("others")...) {
		if !alive(pid) {
			continue
		}
		living++
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil || len(links) == 0 {
			t.Fatalf("pid %d: descriptors %v %v", pid, links, err)
		}
		for _, l := range links {
			if to, err := os.Readlink(l); err == nil && strings.HasSuffix(to, ".lock") {
				t.Errorf("the hook's child %d holds %s", pid, to)
			}
		}
	}
	if living < len(p.pids("children")) || living == 0 {
		t.Errorf("%d of %d children live: the hook left none behind", living, len(p.pids("children")))
	}
}

func TestAHookThatNeverReturnsIsKilledAndTheRepairFinishes(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 2, Endpoints: 5, RTT: 5 * time.Millisecond})
	p.tell()
	p.shunt("egress", "refresh")
	p.shunt("egress", "rebalance")
	p.shunt("egress", "repair")
	// The first one does not even end when it is asked to.
	hook := "cd " + p.Dir + "; [ -e hooks ] || trap '' TERM HUP; echo $$ >>hooks; while :; do sleep 1; done"
	if err := p.Configure(lab.Settings{"hooks.on_event": []string{"sh", "-c", hook}, "hooks.timeout": "100ms"}); err != nil {
		t.Fatal(err)
	}
	dead := p.carries(one)
	p.fault(dead, server.Silent())
	began := time.Now()
	r := p.Shunt(t.Context(), "egress", "repair", "--rounds", "2", "--interval", "10ms")
	if r.Code != 0 || p.carries(one) == dead {
		t.Errorf("repair: exit code %d, the lane carries %v: %s", r.Code, p.carries(one), r.Stderr)
	}
	for _, ev := range p.journal() {
		if ev.Kind == "swap" && ev.Object == one && ev.From == dead.HostPort() && ev.Time.Sub(began) > 5*time.Second {
			t.Errorf("the lane was repaired only %s after it died", ev.Time.Sub(began))
		}
	}
	hooks := p.pids("hooks")
	for _, pid := range hooks {
		if alive(pid) {
			t.Errorf("the hook %d lives on", pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	if !strings.Contains(string(r.Stderr), "hook") || len(hooks) == 0 {
		t.Errorf("%d hooks ran, and nothing says that they were killed: %s", len(hooks), r.Stderr)
	}
	t.Logf("%d hooks were killed; the repair took %s", len(hooks), r.Took)
}

func TestStatusWaitsForNoLock(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 2, Endpoints: 5})
	p.shunt("egress", "refresh")
	p.shunt("egress", "rebalance")
	p.shunt("egress", "repair")
	refresh := p.slowRefresh()
	for _, name := range []string{"state", "plane", "journal", "count", "lane-egress1", "lane-egress2"} {
		f, err := os.OpenFile(filepath.Join(p.State, "locks", name+".lock"), os.O_CREATE|os.O_RDWR, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		// The refresh that is under way takes some of them too, for moments.
		var held error
		if err := lab.Await(t.Context(), 10*time.Second, "lock "+name, func() bool {
			held = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			return held == nil
		}); err != nil {
			t.Fatalf("%v: %v", err, held)
		}
	}
	worst := time.Duration(0)
	for range 5 {
		r := p.Shunt(t.Context(), "egress", "status")
		if r.Code != 0 || !strings.Contains(string(r.Stdout), one) || !strings.Contains(string(r.Stdout), "egress refresh") {
			t.Fatalf("status: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		worst = max(worst, r.Took)
	}
	// 200 ms is what the specification asks for; the bound here is for loaded machines.
	if worst > time.Second {
		t.Errorf("status took %s while locks are held", worst)
	}
	t.Logf("the slowest of 5 took %s", worst)
	if refresh.Kill(); p.holder("pool") != "" {
		t.Errorf("a killed refresh holds its lock: %s", p.holder("pool"))
	}
}
