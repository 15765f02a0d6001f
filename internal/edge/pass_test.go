package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

func TestAFirstRunMakesTheTables(t *testing.T) {
	bubble(t, 3, 3, func(t *testing.T, w *town) {
		e := w.env(1)
		w.entry(UDP, true) // made before there was a table
		res := w.retarget(e)
		w.wantLeads("after the first run", "proxy-01")
		if res.Applied == 0 || res.Partial != nil {
			t.Errorf("%d steps applied, %v", res.Applied, res.Partial)
		}
		if n := w.entries(0); n != 0 {
			t.Errorf("%d entries are never translated", n)
		}
		w.noSteps("the second run", e)
	})
}

func TestStickyRecovery(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		w.config.Services[0].Nodes = true
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		res := w.retarget(e)
		w.wantLeads("its target died", "proxy-02")
		if len(res.Moves) != 1 || res.Moves[0].Reached < res.Moves[0].Commit || res.Moves[0].Commit < 200*time.Millisecond {
			t.Errorf("moves: %+v", res.Moves)
		}
		if got := w.node(1); got != proxy(2) {
			t.Errorf("the node's own address leads to %s while its candidate is dead", got)
		}
		w.is(alive, 1)
		time.Sleep(10 * time.Second)
		res = w.retarget(e)
		w.wantLeads("it recovered", "proxy-02")
		if got := w.node(1); got != proxy(1) {
			t.Errorf("the node's own address leads to %s, its candidate is back", got)
		}
		same(t, "steps", []StepKind{StepClear, StepNode}, stepKinds(res.Plan))
		same(t, "alerts of moves", 1, len(w.told("edge.move")))
	})
}

// node is where a replica's own address leads.
func (w *town) node(n int) netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	if nodes := w.table(n).table.Nodes; len(nodes) > 0 {
		return nodes[0].To
	}
	return netip.AddrPort{}
}

// The watchdog was killed with the target dead: no connection may reach it for as long as
// retarget runs, and when it is back the veto goes and the address stays.
func TestADeadCandidateStaysOutWithoutAWatchdog(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		w.is(dead, 1)
		w.rounds(s, 90)
		w.wantLeads("the watchdog moved", "proxy-02")
		w.close(s) // and never comes back
		for at := 0; at < 120; at++ {
			time.Sleep(time.Second)
			if at%10 == 9 {
				w.retarget(e)
			}
			if got := w.leads(); got != "proxy-02" {
				t.Fatalf("%d s after the watchdog's death: %s", at, got)
			}
		}
		m := w.memory(e)
		if len(m.Vetoes) != 1 || m.Vetoes[0].Until < time.Now().Unix() {
			t.Fatalf("vetoes: %+v", m.Vetoes)
		}
		w.is(alive, 1)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		if m := w.memory(e); len(m.Vetoes) != 0 {
			t.Errorf("10 s after it is back: %+v", m.Vetoes)
		}
		w.wantLeads("it is back", "proxy-02")
	})
}

func TestAStaleOpinionPinsNothing(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.env(1)
		w.is(dead, 2)
		w.retarget(e)
		w.is(starving, 1, 2) // nobody can be asked any more
		time.Sleep(31 * time.Second)
		w.retarget(e)
		if m := w.memory(e); len(m.Vetoes) != 0 {
			t.Errorf("a veto of 31 s ago: %+v", m.Vetoes)
		}
		w.wantLeads("unknown is not down", "proxy-01")
	})
}

func TestAllDeadAllHeld(t *testing.T) {
	bubble(t, 3, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1, 2, 3)
		for range 3 {
			time.Sleep(10 * time.Second)
			res := w.retarget(e)
			if !res.Plan.HeldBack() {
				t.Error("it is not said that nobody is left")
			}
			w.wantLeads("all dead", "proxy-01")
		}
		if a := w.told("edge.last_resort"); len(a) != 1 || a[0].Level != string(LevelCritical) {
			t.Errorf("alerts: %+v", a)
		}
		w.is(alive, 1, 2, 3)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		for _, n := range []int{1, 2, 3} {
			ask := Ask{Candidate: proxyName(n), Owner: "ada", Force: n == 3}
			if res, err := e.Drain(t.Context(), ask, Options{}); err != nil || n < 3 && res.Plan.HeldBack() {
				t.Fatal(err, planText(res.Plan))
			}
		}
		w.wantLeads("all drained", "proxy-03")
		same(t, "alerts that a drained one serves", 1, len(w.told("edge.drained_serves")))
	})
}

func TestAServerThatTakesNoLogins(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		w.config.Services[0].Probe.Login = true
		e := w.begin(1)
		w.is(locked, 1)
		for range 12 {
			time.Sleep(10 * time.Second)
			w.retarget(e)
			w.wantLeads("it rejects logins", "proxy-02")
		}
		same(t, "alerts", 1, len(w.told("edge.refuses_logins")))
		same(t, "moves", 1, len(w.told("edge.move")))
		if m := w.memory(e); len(m.Vetoes) != 0 {
			t.Errorf("it answers, and has a veto: %+v", m.Vetoes)
		}
		w.is(alive, 1)
		for range 3 {
			time.Sleep(10 * time.Second)
			w.retarget(e)
		}
		w.wantLeads("it takes logins again", "proxy-02")
		same(t, "moves in all", 1, len(w.told("edge.move")))
	})
}

func TestParityIsToldOnceAndChangesNothing(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		w.config.Parity = []ParityGroup{{Name: "secret", Every: 30 * time.Second, Reference: strings.Repeat("ab", 32), Members: []ParityMember{{Name: "a"}, {Name: "b"}}}}
		w.parity = Parity{Hashes: map[string]string{"a": "1f2e3d4c5b6a", "b": "9d8c7b6a5f4e"}}
		e := w.env(1)
		for range 20 {
			res := w.retarget(e)
			if strings.Contains(asJSON(t, res.Input), strings.Repeat("ab", 32)) {
				t.Fatal("a recorded input holds the whole hash of a secret")
			}
			time.Sleep(10 * time.Second)
		}
		same(t, "alerts", 1, len(w.told("edge.parity")))
		w.parity.Equal = true
		time.Sleep(30 * time.Second)
		w.retarget(e)
		if !slices.Contains(w.lines(e), "settled secret") {
			t.Error("its end is not in the journal")
		}
		w.parity.Equal = false
		time.Sleep(30 * time.Second)
		w.retarget(e)
		same(t, "alerts when it differs again", 2, len(w.told("edge.parity")))
	})
}

// One line for each state change, however long the state lasts.
func TestOneLineForEachStateChange(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		before := len(w.lines(e))
		s := w.open(e)
		w.is(dead, 1)
		for range 6 {
			w.rounds(s, 10)
			w.retarget(w.envAt(1, e.State))
		}
		w.is(alive, 1)
		w.rounds(s, 5)
		w.close(s)
		same(t, "journal", []string{"veto front/proxy-01", "move front", "clear front/proxy-01"}, w.lines(e)[before:])
	})
}

func TestOneMissedProbeMovesNothing(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		w.entry(TCP, false)
		s := w.open(e)
		w.rounds(s, 3)
		w.is(dead, 1)
		w.rounds(s, 1)
		w.is(alive, 1)
		w.rounds(s, 3)
		w.close(s)
		w.wantLeads("after a blip", "proxy-01")
		same(t, "entries", 2, w.entries(1))
		same(t, "vetoes", 0, len(w.told("edge.veto")))
	})
}

func TestDryRunChangesNothing(t *testing.T) {
	bubble(t, 2, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		files := w.folder(e.State)
		applies := w.table(1).applies
		res, err := e.Retarget(t.Context(), Options{DryRun: true})
		if err != nil || !res.Plan.Changes() || res.Applied != 0 {
			t.Errorf("%v, %d applied\n%s", err, res.Applied, planText(res.Plan))
		}
		if res, err = e.Drain(t.Context(), Ask{Candidate: "proxy-02", Owner: "ada", Force: true}, Options{DryRun: true}); err != nil || !res.Plan.Changes() {
			t.Errorf("%v\n%s", err, planText(res.Plan))
		}
		same(t, "state", files, w.folder(e.State))
		same(t, "tables written", applies, w.table(1).applies)
	})
}

// folder is what a state folder holds.
func (w *town) folder(d *state.Dir) map[string]string {
	w.t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(d.Path())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			b, err := os.ReadFile(d.Path(e.Name()))
			if err != nil {
				w.t.Fatal(err)
			}
			out[e.Name()] = string(b)
		}
	}
	return out
}

func TestOneServiceAlone(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		other := w.config.Services[0]
		other.Name, other.Port = "voice", 24454
		w.config.Services = append(w.config.Services, other)
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		probes := w.probes[proxy(1)]
		if _, err := e.Retarget(t.Context(), Options{Service: "voice"}); err != nil {
			t.Fatal(err)
		}
		to := map[string]netip.AddrPort{}
		for _, el := range w.table(1).table.Targets {
			to[el.Claim.Service] = el.To
		}
		same(t, "targets", fmt.Sprint(map[string]netip.AddrPort{"front": proxy(1), "voice": proxy(2)}), fmt.Sprint(to))
		if n := w.probes[proxy(1)] - probes; n != 2 {
			t.Errorf("%d probes for one service", n)
		}
		var ask *AskError
		if _, err := e.Retarget(t.Context(), Options{Service: "nope"}); !errors.As(err, &ask) || !slices.Contains(ask.Known, "voice") {
			t.Errorf("a service that is not there: %v", err)
		}
	})
}

func TestFreshAnswersAreNotAskedAgain(t *testing.T) {
	bubble(t, 3, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		before := w.probes[proxy(1)]
		time.Sleep(4 * time.Second)
		w.retarget(e)
		if n := w.probes[proxy(1)] - before; n != 0 {
			t.Errorf("an answer of 4 s ago was not good enough: %d probes", n)
		}
		time.Sleep(2 * time.Second)
		w.retarget(e)
		if n := w.probes[proxy(1)] - before; n != 1 {
			t.Errorf("an answer of 6 s ago: %d probes", n)
		}
	})
}

func TestNothingIsToldOfAMoveThatWasNone(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		before := len(w.lines(e))
		w.table(1).stiff = errors.New("device or resource busy")
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		res := w.retarget(e)
		if res.Partial == nil || len(res.Moves) != 0 || res.Applied != 1 {
			t.Errorf("%v, moves %+v, %d applied", res.Partial, res.Moves, res.Applied)
		}
		same(t, "journal", []string{"veto front/proxy-01"}, w.lines(e)[before:])
		same(t, "moves told", 0, len(w.told("edge.move")))
	})
}

func TestAHoldRunsOut(t *testing.T) {
	bubble(t, 2, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		if _, err := e.Drain(t.Context(), Ask{Candidate: "proxy-02", Owner: "ada", For: 15 * time.Second}, Options{}); err != nil {
			t.Fatal(err)
		}
		before := len(w.lines(e))
		for range 4 {
			time.Sleep(10 * time.Second)
			w.retarget(w.envAt(1, e.State))
		}
		same(t, "journal", []string{"release front/proxy-02"}, w.lines(e)[before:])
	})
}

func TestARunThatIsCancelled(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := e.Retarget(ctx, Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		w.wantLeads("nothing was decided", "proxy-01")
	})
}

// Without a look at itself a machine does not know whether it has the address. It says
// nothing untrue of that to the others, and what needs no such knowledge goes on.
func TestAMachineThatCannotSeeItself(t *testing.T) {
	bubble(t, 2, 2, func(t *testing.T, w *town) {
		e := w.begin(1)
		lease := w.table(2).table.Leases[0]
		w.look = errors.New("netlink: no buffer space")
		time.Sleep(12 * time.Second)
		if res := w.retarget(e); !errors.Is(res.Partial, w.look) {
			t.Errorf("it is not told: %v", res.Partial)
		}
		if got := w.table(2).table.Leases[0]; !sameLease(lease, got) {
			t.Errorf("its lease is now %+v", got)
		}
		if _, err := e.Open(t.Context()); !errors.Is(err, w.look) {
			t.Errorf("a session was opened: %v", err)
		}
	})
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.look = errors.New("netlink: no buffer space")
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		w.wantLeads("alone", "proxy-02")
	})
}
