package edgeworld_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

// begun is how many connections of clients have come to a candidate's host.
func (s *stage) begun(b *edgeworld.Backend) int {
	s.t.Helper()
	n, err := b.Begun()
	must(s.t, err)
	return n
}

// asking opens a connection of a client's each 5 ms for as long as f lasts, and returns who
// answered how many; "" = nobody.
func (s *stage) asking(f func()) map[string]int {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	c := gap.Start(ctx, s.Client, gap.Options{To: s.VIP(4), Every: 5 * time.Millisecond})
	f()
	return c.Stop().By(time.Time{})
}

// Cases: a restart loses what was known of candidates, so that dead ones get traffic until they
// are asked, or live ones stay out. The watchdog is killed with a dead; then the machine even
// loses its table, as by a reboot. No connection comes to a, until it answers; the address stays.
func TestWhatIsKnownOutlastsARestart(t *testing.T) {
	t.Parallel()
	if !isInsideWithProduct(t, 2*time.Minute) {
		return
	}
	s := newStage(t, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(nil)})
	wd := s.watch(s.r)
	a, b := s.Backend("a"), s.Backend("b")
	if first := s.calm(s.r); first != a {
		t.Fatalf("it leads to %s", first.Name)
	}
	asked(t, s.World, s.VIP(4)) // the switch lets the client in after a moment
	must(t, a.Count())
	if by := s.asking(func() { <-time.After(200 * time.Millisecond) }); by["a"] == 0 || s.begun(a) == 0 {
		t.Fatalf("answered %v, %d came to a: nothing to prove", by, s.begun(a))
	}
	a.Kill()
	s.await(10*time.Second, "a to be out", func() bool { return s.leads(s.r) == "b" && s.status(s.r).state("a") == "vetoed" })
	<-time.After(3 * time.Second) // what is known is written down each two seconds
	for name, lose := range map[string]func(){
		"the watchdog":           func() {},
		"the watchdog and table": func() { s.do(s.r.NS, "nft", "delete table inet shunt_edge") },
	} {
		wd.Kill()
		lose()
		must(t, a.Count()) // from zero
		by := s.asking(func() {
			if got := s.status(s.r).state("a"); got != "vetoed" {
				t.Errorf("%s: a is %q while nobody watches, want vetoed", name, got)
			}
			wd = s.watch(s.r)
			s.await(10*time.Second, "b to serve", func() bool { return s.leads(s.r) == "b" })
			<-time.After(2 * time.Second) // rounds
		})
		if n := s.begun(a); n != 0 {
			t.Errorf("%s is lost: %d connections came to the dead one", name, n)
		}
		if by["b"] == 0 {
			t.Errorf("%s: answered by %v", name, by)
		}
	}
	must(t, a.Restart(t.Context()))
	s.await(10*time.Second, "a to be back", func() bool { return s.status(s.r).state("a") == "up" })
	if got := s.leads(s.r); got != b.Name {
		t.Errorf("a is back, and it leads to %s", got)
	}
}

// Case: a veto that is only kept alive by being added again runs out unseen. With a life of
// vetoes of 8 s a is dead for two of them under a watchdog, which says so once, then for more
// than one with the timer's runs alone. No connection comes to it. Alive again its veto ends in time,
// and the address stays.
func TestADeadOneStaysOutForAsLongAsItIsDead(t *testing.T) {
	t.Parallel()
	if !isInsideWithProduct(t, 2*time.Minute) {
		return
	}
	const life = 8 * time.Second
	s := newStage(t, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(nil), Edge: edgeworld.Settings{"veto_for": life.String()}})
	wd := s.watch(s.r)
	a := s.Backend("a")
	if first := s.calm(s.r); first != a {
		t.Fatalf("it leads to %s", first.Name)
	}
	asked(t, s.World, s.VIP(4)) // the switch lets the client in after a moment
	a.Kill()
	s.await(10*time.Second, "a to be out", func() bool { return s.leads(s.r) == "b" && s.status(s.r).state("a") == "vetoed" })
	must(t, a.Count())
	began := time.Now()
	out := func(d time.Duration) {
		t.Helper()
		by := s.asking(func() {
			for end := time.Now().Add(d); time.Now().Before(end); <-time.After(100 * time.Millisecond) {
				if got := s.status(s.r).state("a"); got != "vetoed" {
					t.Fatalf("after %s a is %q, want vetoed", time.Since(began), got)
				}
			}
		})
		if n := s.begun(a); n != 0 || by["b"] == 0 || by[""] > 0 {
			t.Errorf("%d connections came to the dead one; answered by %v", n, by)
		}
	}
	out(2 * life)
	log, err := os.ReadFile(wd.Log)
	must(t, err)
	about := 0
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "a is dead") || strings.Contains(line, "10.20.0.11") && !strings.Contains(line, "nobody") && !strings.Contains(line, `from=""`) {
			about++
		}
	}
	if about > 4 { // of each family: that it moved, and the alert
		t.Errorf("%d lines about one death:\n%s", about, log)
	}
	if n := len(s.told(s.r, "veto")); n > 2 {
		t.Errorf("%d lines of vetoes in the journal, want one for each family", n)
	}
	wd.Kill()
	loop := s.r.Every(t.Context(), time.Second, nil, "edge", "retarget")
	defer loop.Stop()
	out(3 * life / 2)
	must(t, a.Restart(t.Context()))
	took := s.await(life+5*time.Second, "the end of the veto", func() bool { return s.status(s.r).state("a") == "up" })
	t.Logf("the veto ended after %s", took.Round(time.Millisecond))
	if got := s.leads(s.r); got != "b" {
		t.Errorf("the address went back to %s", got)
	}
	for _, res := range loop.Stop() {
		if res.Code != 0 {
			t.Errorf("a timer's run: %v\n%s", res.Err(), res.Stdout)
		}
	}
}
