package edge

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestAnUnreachableReplicaConvergesLater(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.table(3).down = errors.New("connection timed out")
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		res := w.retarget(e)
		w.wantLeads("one is out of reach", "proxy-02 proxy-02 proxy-01")
		if !res.Plan.Unreachable() {
			t.Error("it is not said that one was not reached")
		}
		w.table(3).down = nil
		time.Sleep(10 * time.Second)
		w.retarget(e)
		w.wantLeads("it is back", "proxy-02")
		w.noSteps("then", e)
		same(t, "moves told", 1, len(w.told("edge.move")))
	})
}

// A replica that hangs costs the run its own deadline, and the others nothing.
func TestAReplicaThatHangsDelaysNobody(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		w.rounds(s, 3)
		w.table(2).hangs = true
		w.is(dead, 1)
		began := time.Now()
		w.round(s)
		w.round(s)
		if took := time.Since(began); took > 2*patience {
			t.Errorf("two rounds of judging took %s", took)
		}
		w.wantLeads("the others", "proxy-02 proxy-01 proxy-02")
		w.mu.Lock()
		w.table(2).hangs = false
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if err := s.Refresh(t.Context()); err != nil {
			t.Error(err)
		}
		w.wantLeads("it answers again", "proxy-02")
		w.close(s)

		w.table(2).hangs = true
		began = time.Now()
		if res := w.retarget(w.envAt(1, e.State)); !res.Plan.Unreachable() {
			t.Errorf("\n%s", planText(res.Plan))
		}
		if took := time.Since(began); took > 2*e.Config.Deadline {
			t.Errorf("a pass took %s", took)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestAnUnreachableReplicaIsToldOnce(t *testing.T) {
	bubble(t, 2, 3, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.table(3).down = errors.New("connection timed out")
		for range 30 {
			time.Sleep(10 * time.Second)
			w.retarget(e)
		}
		same(t, "alerts", 1, len(w.told("edge.unreachable")))
	})
}

// A replica was away while the others moved on. When the address comes to it, it is the
// writer, and goes on from the highest epoch.
func TestAnAbsentReplicaAdoptsTheHighestEpoch(t *testing.T) {
	bubble(t, 3, 3, func(t *testing.T, w *town) {
		first, third := w.begin(1), w.env(3)
		w.retarget(third)
		w.table(3).down = errors.New("no route to host")
		for _, n := range []int{1, 2} { // two moves that it does not see
			w.is(dead, n)
			time.Sleep(10 * time.Second)
			w.retarget(first)
		}
		w.wantLeads("it was away", "proxy-03 proxy-03 proxy-01")
		if got := w.epoch(1); got != 3 {
			t.Fatalf("epoch %d, want 3", got)
		}
		w.is(alive, 1, 2, 3)
		w.table(3).down = nil
		w.table(1).down = errors.New("the machine is off")
		w.holder = nodeName(3)
		time.Sleep(40 * time.Second) // the first one's lease is over
		res := w.retarget(third)
		if to := target(t, w.table(3).table); to != proxy(3).String() || w.epoch(3) != 3 {
			t.Errorf("it leads to %s, epoch %d\n%s", to, w.epoch(3), planText(res.Plan))
		}
		same(t, "no move of its own", false, slices.Contains(stepKinds(res.Plan), StepMove))
		w.is(dead, 3)
		time.Sleep(10 * time.Second)
		w.retarget(third)
		same(t, "the next move's epoch", uint64(4), w.epoch(3))
		w.table(1).down = nil
		time.Sleep(10 * time.Second)
		w.retarget(third)
		w.wantLeads("the first one is back", "proxy-01")
	})
}

func TestAReplicaThatWasRebuilt(t *testing.T) {
	bubble(t, 2, 2, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		w.is(alive, 1)
		for n := 1; n <= 2; n++ { // both reboot: only memories are left
			w.table(n).table, w.table(n).absent = Table{}, true
		}
		w.retarget(e)
		w.wantLeads("after a reboot", "proxy-02")
		same(t, "epoch", uint64(2), w.epoch(2))
	})
}

// Two machines that have the address at once, each with probes of its own, lead to the
// same target, and it is told when it lasts.
func TestTwoHoldersForLong(t *testing.T) {
	bubble(t, 3, 2, func(t *testing.T, w *town) {
		a, b := w.begin(1), w.env(2)
		w.retarget(b)
		b.Sight = alsoHolder{fakeSight{w, nodeName(2)}}
		for i := range 12 {
			if i == 4 {
				w.is(dead, 1)
			}
			time.Sleep(10 * time.Second)
			w.retarget(a)
			w.retarget(b)
			want := "proxy-01"
			if i >= 4 {
				want = "proxy-02"
			}
			w.wantLeads("two holders", want)
		}
		if a.digest(w) != b.digest(w) {
			t.Error("their digests differ")
		}
		if len(w.told("edge.two_holders")) == 0 {
			t.Error("nobody was told")
		}
		same(t, "epoch", uint64(2), w.epoch(1))
	})
}

// TestWritersTakeTurns: nobody has the address, and the lowest-named one at work moves it.
func TestWritersTakeTurns(t *testing.T) {
	bubble(t, 3, 3, func(t *testing.T, w *town) {
		w.holder = "nobody"
		second, third := w.env(2), w.env(3)
		for range 5 {
			w.retarget(second)
			w.retarget(third)
			time.Sleep(10 * time.Second)
		}
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		if res := w.retarget(third); !res.Plan.HeldBack() || slices.Contains(stepKinds(res.Plan), StepMove) {
			t.Errorf("the third moves beside the second:\n%s", planText(res.Plan))
		}
		w.wantLeads("the third", "proxy-01")
		w.retarget(second)
		w.wantLeads("the second", "proxy-02")

		w.is(alive, 1) // the second dies, its lease runs out
		w.is(dead, 2)
		time.Sleep(31 * time.Second)
		w.retarget(third)
		w.wantLeads("the third took over", "proxy-01")
		for n := 1; n <= 3; n++ {
			same(t, "epoch on "+nodeName(n), uint64(3), w.epoch(n))
		}
	})
}

// A machine that acts on another configuration is not swept, and it is told.
func TestTwoConfigurations(t *testing.T) {
	bubble(t, 2, 2, func(t *testing.T, w *town) {
		a := w.begin(1)
		voice := w.config.Services[0]
		voice.Name, voice.Port = "voice", 24454
		w.config.Services = append(slices.Clone(w.config.Services), voice)
		w.holder = nodeName(2)
		b := w.env(2)
		time.Sleep(31 * time.Second)
		w.retarget(b) // has one more service
		have := len(w.table(1).table.Targets)
		same(t, "elements", 4, have)
		w.holder = nodeName(1)
		res := w.retarget(a)
		same(t, "elements after the old configuration", have, len(w.table(1).table.Targets))
		if !res.Plan.Disagrees() {
			t.Error("it is not said")
		}
		time.Sleep(31 * time.Second) // the other one's lease is over
		w.retarget(a)
		same(t, "elements when nobody has it any more", 2, len(w.table(1).table.Targets))
	})
}

// This machine's own table can't be written: the others move, and it follows later.
func TestTheOwnTableIsStiff(t *testing.T) {
	bubble(t, 2, 2, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.entry(UDP, true)
		w.table(1).stiff = errors.New("device or resource busy")
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		if res := w.retarget(e); res.Partial == nil || len(res.Moves) != 1 {
			t.Errorf("%v, moves %+v", res.Partial, res.Moves)
		}
		w.wantLeads("the other moved", "proxy-01 proxy-02")
		w.table(1).stiff = nil
		time.Sleep(10 * time.Second)
		w.retarget(e)
		w.wantLeads("it followed", "proxy-02")
		same(t, "entries to the dead one", 0, w.entries(1))
		w.noSteps("then", e)
	})
}
