package edge

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/state"
)

// Twins plan on the same world; one waits for the other's lock and finds its work done.
func TestTwoPassesAtOnce(t *testing.T) {
	bubble(t, 3, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := w.envAt(1, e.State).Retarget(t.Context(), Options{}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		w.wantLeads("four passes at once", "proxy-02")
		for n := 1; n <= 3; n++ {
			if got := w.epoch(n); got != 2 {
				t.Errorf("epoch %d on %s, want 2: one move", got, nodeName(n))
			}
		}
		same(t, "moves told", 1, len(w.told("edge.move")))
		w.noSteps("then", e)
	})
}

func TestALockThatIsKept(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		lock, err := e.State.Lock(t.Context(), edgeLock, "somebody", 0)
		if err != nil {
			t.Fatal(err)
		}
		w.noSteps("nothing to do needs no lock", e)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		res, err := e.Retarget(t.Context(), Options{})
		if busy := (*state.BusyError)(nil); !errors.As(err, &busy) || !res.Plan.Busy() {
			t.Errorf("%v\n%s", err, planText(res.Plan))
		}
		if err := lock.Unlock(); err != nil {
			t.Fatal(err)
		}
		w.retarget(e)
		w.wantLeads("the next run", "proxy-02")
	})
}

// Somebody else changes the table between look and write: what is there then is planned on.
func TestATableThatChangesUnderTheLock(t *testing.T) {
	bubble(t, 3, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.table(1).leadsOnce(proxy(3), 5, &w.table(1).sneak)
		w.retarget(e)
		w.wantLeads("the other's epoch is higher", "proxy-03")
		same(t, "epoch", uint64(5), w.epoch(1))
	})
}

// leadsOnce changes a table as another machine does, and lets it be after that.
func (f *fakeTable) leadsOnce(to netip.AddrPort, epoch uint64, hook *func(*Table)) {
	*hook = func(table *Table) {
		table.Targets = slices.Clone(table.Targets)
		for i := range table.Targets {
			table.Targets[i].To, table.Targets[i].Claim.Epoch = to, epoch
		}
		*hook = nil
	}
}

// Another machine writes right after this one has: what it made of it is planned on.
func TestATableThatChangesAfterTheWrite(t *testing.T) {
	for name, tt := range map[string]struct {
		run   func(*town, *Env) (Result, error)
		want  string
		holds int
		steps []StepKind
	}{
		"a drain": {
			func(w *town, e *Env) (Result, error) {
				return e.Drain(w.t.Context(), Ask{Candidate: "proxy-01", Owner: "ada", For: time.Hour}, Options{})
			}, "proxy-02", 1, []StepKind{StepHold, StepMove},
		},
		"a reset": {
			func(w *town, e *Env) (Result, error) {
				w.is(dead, 1, 3)
				return e.Reset(w.t.Context(), Ask{Service: "front", Owner: "ada"}, Options{})
			}, "proxy-02", 0, []StepKind{StepVeto, StepVeto, StepMove, StepFlush, StepFlush},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 3, 1, func(t *testing.T, w *town) {
				e := w.begin(1)
				time.Sleep(10 * time.Second)
				w.table(1).leadsOnce(proxy(2), 5, &w.table(1).meddle)
				res, err := tt.run(w, e)
				if err != nil || res.Partial != nil {
					t.Fatal(err, res.Partial)
				}
				w.wantLeads(name, tt.want)
				if diff := cmp.Diff(tt.steps, stepKinds(res.Plan)); diff != "" {
					t.Errorf("steps (-want +got):\n%s\n%s", diff, planText(res.Plan))
				}
				holds, _, _ := e.world().readHolds()
				same(t, "holds", tt.holds, len(holds))
				if name == "a reset" {
					same(t, "vetoes", 2, len(w.memory(e).Vetoes))
				}
				w.noSteps("then", e)
			})
		})
	}
}

// Another machine moves a replica's table between this one's look and write.
func TestAReplicaThatChangesMeanwhile(t *testing.T) {
	bubble(t, 3, 2, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.table(2).leadsOnce(proxy(3), 5, &w.table(2).sneak)
		w.retarget(e)
		w.wantLeads("the higher epoch is not overwritten", "proxy-02 proxy-03")
		time.Sleep(10 * time.Second)
		w.retarget(e)
		w.wantLeads("and wins", "proxy-03")
	})
}

func TestAnOperatorSpeaksWhileAPassIsUnderWay(t *testing.T) {
	bubble(t, 3, 0, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.table(1).slow = 20 * time.Millisecond
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.retarget(w.envAt(1, e.State)) // asks for 200 ms and would move to the second
		}()
		time.Sleep(100 * time.Millisecond)
		if res, err := e.Drain(t.Context(), Ask{Candidate: "proxy-02", Owner: "ada"}, Options{}); err != nil || res.Plan.HeldBack() {
			t.Error(err, planText(res.Plan))
		}
		<-done
		w.wantLeads("the second was drained meanwhile", "proxy-03")
	})
}
