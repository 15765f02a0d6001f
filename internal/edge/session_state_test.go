package edge

import (
	"slices"
	"testing"
	"time"
)

// A veto outlives the process that raised it: the next one starts from what is on the disk.
func TestVerdictsPersistOverRestarts(t *testing.T) {
	for name, restart := range map[string]func(*town, *Session){
		"closed": func(w *town, s *Session) { w.close(s) },
		"killed": func(*town, *Session) {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, 1, func(t *testing.T, w *town) {
				w.config.Services[0].Sticky = false // else nothing would show
				e := w.begin(1)
				s := w.open(e)
				w.is(dead, 1)
				w.rounds(s, 2)
				w.wantLeads("dead", "proxy-02")
				restart(w, s)
				w.is(starving, 1, 2) // the new one has no answers yet
				next := w.open(w.envAt(1, e.State))
				w.rounds(next, 20)
				w.wantLeads("20 s after the restart", "proxy-02")
				w.is(alive, 1, 2)
				w.rounds(next, 2)
				w.wantLeads("it answers", "proxy-01")
				w.close(next)
			})
		})
	}
}

// What configuration says now wins over what was known of other addresses and questions.
func TestConfigurationWinsOverState(t *testing.T) {
	bubble(t, 2, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.retarget(e)
		if m := w.memory(e); len(m.Vetoes) != 1 {
			t.Fatal(m.Vetoes)
		}
		w.config.Services = slices.Clone(w.config.Services)
		w.config.Services[0].Candidates = slices.Clone(w.config.Services[0].Candidates)
		w.config.Services[0].Candidates[0].Addresses = w.config.Services[0].Candidates[1].Addresses
		w.config.Services[0].Candidates[1].Addresses = nil
		w.config.Services[0].Candidates[1].Addresses = append(w.config.Services[0].Candidates[1].Addresses, proxy(3).Addr())
		s := w.open(w.envAt(1, e.State))
		w.rounds(s, 6)
		w.close(s)
		m := w.memory(e)
		if len(m.Vetoes) != 0 || len(m.Health) != 2 {
			t.Errorf("of other addresses: %+v", m)
		}
		w.wantLeads("the same address by another name", "proxy-02")
	})
}

// A session and retarget remember into one file: neither undoes the other.
func TestAWatchdogAndRetargetSideBySide(t *testing.T) {
	bubble(t, 3, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		key := s.Targets()[1].Key
		s.Learn(key, 30*time.Second, 0)
		for i := range 40 {
			if i == 10 {
				w.is(dead, 1)
			}
			if i == 20 {
				w.is(alive, 1)
			}
			w.rounds(s, 1)
			if i%5 == 0 {
				w.retarget(w.envAt(1, e.State))
			}
		}
		w.wantLeads("at last", "proxy-02")
		same(t, "epoch", uint64(2), w.epoch(1))
		same(t, "moves", 1, len(w.told("edge.move")))
		w.close(s)
		m := w.memory(e)
		if m.Health[key].Lifetime != 30*time.Second || len(m.Vetoes) != 0 {
			t.Errorf("%+v", m)
		}

		s = w.open(w.envAt(1, e.State)) // an operator has a verdict forgotten under a session
		w.is(dead, 2)
		w.rounds(s, 3)
		same(t, "moves", 2, len(w.told("edge.move")))
		w.is(starving, 1, 2, 3)
		time.Sleep(time.Second)
		if _, err := w.envAt(1, e.State).Reset(t.Context(), Ask{Service: "front", Owner: "ada"}, Options{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Refresh(t.Context()); err != nil {
			t.Error(err)
		}
		w.close(s)
		if m := w.memory(e); len(m.Vetoes) != 0 {
			t.Errorf("the session brought it back: %+v", m.Vetoes)
		}
	})
}

// What another process found out is known to the session as soon as it looks.
func TestASessionTakesInWhatOthersRemember(t *testing.T) {
	bubble(t, 3, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		w.is(dead, 1)
		time.Sleep(10 * time.Second)
		w.retarget(w.envAt(1, e.State))
		w.wantLeads("by the other", "proxy-02")
		s.Reload()
		if h := s.Health(s.Targets()[0].Key); h.Misses != 2 {
			t.Errorf("the session knows of %d misses", h.Misses)
		}
		if err := s.Refresh(t.Context()); err != nil {
			t.Error(err)
		}
		same(t, "vetoes told", 0, len(w.told("edge.veto")))
		w.is(dead, 2)
		time.Sleep(time.Second)
		w.round(s)
		w.round(s)
		w.wantLeads("the first is known to be dead", "proxy-03")
		w.close(s)
	})
}

func TestASessionTakesTheOperatorsWordIn(t *testing.T) {
	bubble(t, 3, 1, func(t *testing.T, w *town) {
		e := w.begin(1)
		s := w.open(e)
		w.round(s)
		if _, err := w.envAt(1, e.State).Drain(t.Context(), Ask{Candidate: "proxy-02", Owner: "ada", For: time.Minute}, Options{}); err != nil {
			t.Fatal(err)
		}
		w.is(dead, 1) // before the session looks around again
		w.round(s)
		w.round(s)
		w.wantLeads("the second is drained", "proxy-03")
		w.is(alive, 1)
		w.rounds(s, 70)
		if lines := w.lines(e); !slices.Contains(lines, "release front/proxy-02") {
			t.Errorf("the hold's end is not told: %v", lines)
		}
		w.close(s)
		holds, are, err := e.world().readHolds()
		if len(holds) != 0 || are != HoldsWhole || err != nil {
			t.Errorf("holds %v, %s, %v", holds, are, err)
		}
	})
}

func TestCompare(t *testing.T) {
	bubble(t, 2, 0, func(t *testing.T, w *town) {
		g := ParityGroup{Name: "secret", Every: 30 * time.Second, Members: []ParityMember{{Name: "a"}, {Name: "b"}}}
		w.config.Parity = []ParityGroup{g}
		w.parity = Parity{Hashes: map[string]string{"a": "1f2e3d4c5b6a", "b": "9d8c7b6a5f4e"}}
		e := w.env(1)
		s := w.open(e)
		for range 60 {
			if _, err := s.Compare(t.Context(), g); err != nil {
				t.Fatal(err)
			}
			w.rounds(s, 1)
			w.retarget(w.envAt(1, e.State))
		}
		same(t, "alerts of both", 1, len(w.told("edge.parity")))
		w.close(s)
	})
}
