package watchdog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/tripwire"
)

// Whatever the egress side does, candidates are watched on.
func TestEgressStopsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		round          func(context.Context) error
		least, most    uint64 // rounds in ten seconds
		failed, events int
	}{
		"it works":         {func(context.Context) error { return nil }, 10, 11, 0, 0},
		"it fails":         {func(context.Context) error { return errors.New("no way out") }, 10, 11, 10, 1},
		"it panics":        {func(context.Context) error { panic("ouch") }, 10, 11, 10, 1},
		"it hangs":         {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 5, 6, 5, 1},
		"it is slow":       {func(context.Context) error { time.Sleep(3 * time.Second); return nil }, 3, 4, 0, 0},
		"it fails at once": {func(context.Context) error { return errors.New("x") }, 10, 11, 10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, lazy(2, edge.OnHintConfirm))
				s.o.Egress, s.o.EgressLimit, s.o.For = tt.round, 2*time.Second, 10*time.Second
				s.words["a"] = []tripwire.Verdict{dead()}
				ended := background(func() {
					sum, err := Run(t.Context(), s.o)
					if err != nil {
						t.Error(err)
					}
					if sum.Egress < tt.least || sum.Egress > tt.most || int(sum.Failed) < tt.failed {
						t.Errorf("%d rounds, %d failed", sum.Egress, sum.Failed)
					}
				})
				time.Sleep(5 * time.Second)
				s.wires.trip("a")
				synctest.Wait()
				s.wants("front", "b")
				<-ended
				if n := s.told(func(ev Event) bool { return ev.Kind == EventFailed && ev.Object == "egress" }); n != tt.events {
					t.Errorf("told %d times", n)
				}
			})
		})
	}
}

// A trouble is told and journalled when it begins and when it ends, and not in between.
func TestTroublesAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, lazy(2, edge.OnHintConfirm))
		n := 0
		s.o.Egress = func(context.Context) error {
			if n++; n > 3 && n < 10 {
				return errors.New("no way out")
			}
			return nil
		}
		s.run(func() {
			time.Sleep(6 * time.Second)
			beat, err := ReadBeat(s.o.State)
			if err != nil || beat.Troubles["egress"] != "no way out" || beat.Ended || beat.Late(time.Now()) {
				t.Errorf("heartbeat %+v: %v", beat, err)
			}
			time.Sleep(20 * time.Second)
			if beat, err = ReadBeat(s.o.State); err != nil || len(beat.Troubles) > 0 {
				t.Errorf("heartbeat %+v: %v", beat, err)
			}
		})
		var got []string
		for _, ev := range s.notes {
			if ev.Command == "watchdog" && ev.Object == "egress" {
				got = append(got, ev.Kind)
			}
		}
		if strings.Join(got, " ") != "fails settled" {
			t.Errorf("journal: %v", got)
		}
	})
}
