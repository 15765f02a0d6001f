package edge

import (
	"time"
)

// open opens the watchdog's session.
func (w *town) open(e *Env) *Session {
	w.t.Helper()
	s, err := e.Open(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *town) close(s *Session) {
	w.t.Helper()
	if err := s.Close(w.t.Context()); err != nil {
		w.t.Error(err)
	}
}

// rounds asks every candidate once a second, looks around every other, and saves.
func (w *town) rounds(s *Session, n int) (moves []Move) {
	w.t.Helper()
	for i := range n {
		time.Sleep(time.Second)
		moves = append(moves, w.round(s)...)
		if i%2 == 0 {
			if err := s.Refresh(w.t.Context()); err != nil {
				w.t.Errorf("refresh: %v", err)
			}
		}
		if i%5 == 4 {
			if err := s.Save(w.t.Context()); err != nil {
				w.t.Errorf("save: %v", err)
			}
		}
	}
	return moves
}

func (w *town) round(s *Session) (moves []Move) {
	w.t.Helper()
	for _, t := range s.Targets() {
		res, err := s.Judge(w.t.Context(), []Answer{s.Prober.Probe(w.t.Context(), t)})
		if err != nil {
			w.t.Errorf("judge: %v", err)
		}
		moves = append(moves, res.Moves...)
	}
	return moves
}

// begin is the first run of a machine, which makes the tables; its alerts are forgotten.
func (w *town) begin(n int) *Env {
	w.t.Helper()
	e := w.env(n)
	w.retarget(e)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alerts = nil
	return e
}
