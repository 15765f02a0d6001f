package edgestory

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

// The exit codes that scenarios look for.
const (
	codePartly = 3
	codeHeld   = 4
)

func drainScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-drain", Summary: "a drain moves new connections and cuts none, outlasts a restart, is refused for the last one, and ends by itself",
		Run: playDrain,
	}
}

func playDrain(ctx context.Context, e *lab.Env) error {
	s, done, err := openWatched(ctx, e, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(edgeworld.Settings{"reset_dead": true})})
	if err != nil {
		return err
	}
	defer done()
	first, err := s.calm(ctx, true)
	if err != nil {
		return err
	}
	flow, err := dial(s.w, "tcp")
	if err != nil {
		return err
	}
	defer flow.Close()
	cl := gap.Start(ctx, s.w.Client, gap.Options{To: s.w.VIP(4)})
	defer cl.Stop()
	at := time.Now()
	if err := s.r.Shunt(ctx, "edge", "drain", "front", first.Name, "--for", "4s", "--reason", "update").Err(); err != nil {
		return err
	}
	other := others(s.w, first)[0]
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := cl.WaitSteady(wait, settled, gap.Only(other)); err != nil {
		return err
	}
	refused := s.r.Shunt(ctx, "edge", "drain", "front", other)
	e.Want(refused.Code == codeHeld, "draining the last one that serves: exit code %d, want %d: %s", refused.Code, codeHeld, refused.Stdout)
	s.wd.Kill()
	if err := s.watch(); err != nil { // the hold outlasts it
		return err
	}
	lab.Sleep(ctx, 1500*time.Millisecond)
	st, _, err := look(ctx, s.r)
	if err != nil {
		return err
	}
	e.Want(st.state(first.Name) == "held", "after a restart of the watchdog %s is %q, want held", first.Name, st.state(first.Name))
	e.Want(echoes(flow), "the connection that was open is cut")
	err = lab.Await(ctx, 8*time.Second, "the end of the drain", func() bool {
		st, _, err := look(ctx, s.r)
		return err == nil && st.state(first.Name) == "up"
	})
	if err != nil {
		e.Problem("%v", err)
	}
	e.Want(echoes(flow), "the connection that was open is cut")
	res := cl.Stop()
	by := res.By(at)
	e.Count("failed", by[""])
	e.Want(by[""] == 0, "%d connections failed", by[""])
	st, _, err = look(ctx, s.r)
	if err != nil {
		return err
	}
	now, _ := st.target()
	e.Want(now == other, "after the drain's end the service leads to %q, want %q: sticky", now, other)
	return s.drainAgain(ctx, first.Name, other)
}

// drainAgain drains who serves now, so that traffic goes back, and takes that back by hand.
func (s *stage) drainAgain(ctx context.Context, first, other string) error {
	if err := s.r.Shunt(ctx, "edge", "drain", "front", other).Err(); err != nil {
		return err
	}
	st, _, err := look(ctx, s.r)
	if err != nil {
		return err
	}
	now, _ := st.target()
	s.Want(now == first, "after draining %s the service leads to %q, want %q", other, now, first)
	return s.r.Shunt(ctx, "edge", "enable", "front", other).Err()
}

// echoes says whether a connection still sends back what it gets.
func echoes(c interface {
	Write([]byte) (int, error)
	Read([]byte) (int, error)
	SetReadDeadline(time.Time) error
},
) bool {
	if _, err := c.Write([]byte("are you there\n")); err != nil {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	var got strings.Builder
	b := make([]byte, 256)
	for !strings.Contains(got.String(), "there\n") {
		n, err := c.Read(b)
		if err != nil {
			return false
		}
		got.Write(b[:n])
	}
	return true
}

func idleScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-idle-close", Summary: "servers that end idle connections, and workers that are replaced, are not taken for dead; a real death still is",
		Flags: []lab.Flag{
			{Name: "time", Value: "40s", Usage: "of quiet for each kind"},
			{Name: "idle", Value: "5s,30s", Usage: "after which servers end idle connections"},
			{Name: "recycle", Value: "3s", Usage: "between replacements of workers"},
		},
		Run: playIdle,
	}
}

func playIdle(ctx context.Context, e *lab.Env) error {
	var kinds []backend.Options
	for _, t := range strings.Split(e.Flag("idle"), ",") {
		d, err := time.ParseDuration(t)
		if err != nil {
			return fmt.Errorf("--idle %q: %w", t, err)
		}
		kinds = append(kinds, backend.Options{Idle: d})
	}
	kinds = append(kinds, backend.Options{Recycle: e.Duration("recycle")})
	s, done, err := open(ctx, e, edgeworld.Options{}, kinds[0], edgeworld.Config{Service: service(edgeworld.Settings{"on_hint": "divert"})})
	if err != nil {
		return err
	}
	defer done()
	for i, k := range kinds {
		if i > 0 {
			for _, b := range s.w.Backends {
				b.Kill()
				_ = lab.Await(ctx, 5*time.Second, "its end", func() bool { return !b.Alive() })
			}
			if err := serve(ctx, s.w, k); err != nil {
				return err
			}
		}
		name := fmt.Sprintf("idle %s", k.Idle)
		if k.Recycle > 0 {
			name = fmt.Sprintf("recycling each %s", k.Recycle)
		}
		quiet := max(e.Duration("time"), 2*k.Idle+5*time.Second) // lifetimes are learned by the first close
		if err := s.quiet(ctx, name, func() { s.rearms(ctx, quiet) }); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// rearms lets time pass and proves that idle connections did end: others took their place.
func (s *stage) rearms(ctx context.Context, d time.Duration) {
	seen := map[string]bool{}
	for end := time.Now().Add(d); ctx.Err() == nil && time.Now().Before(end); lab.Sleep(ctx, 100*time.Millisecond) {
		for _, b := range s.w.Backends {
			ports, err := b.HeldPorts(s.r.Back4)
			if err != nil {
				s.Problem("%v", err)
				return
			}
			for _, p := range ports {
				seen[fmt.Sprint(b.Name, p)] = true
			}
		}
	}
	s.Control("idle_connections_remade", float64(len(seen)-len(s.w.Backends)), len(seen) > len(s.w.Backends))
}

// quiet watches a time in which nobody dies, and then a death, which must be seen.
func (s *stage) quiet(ctx context.Context, name string, during func()) error {
	if err := s.watch(); err != nil {
		return err
	}
	defer s.wd.Stop()
	victim, err := s.calm(ctx, false)
	if err != nil {
		return err
	}
	from := time.Now()
	during()
	n := len(events(s.r, "veto", from))
	s.Count("false_vetoes", n)
	s.Want(n == 0, "%s: %d vetoes while nobody was dead", name, n)
	st, _, err := look(ctx, s.r)
	if err != nil {
		return err
	}
	now, _ := st.target()
	s.Want(now == victim.Name, "%s: the service leads to %q, and led to %q", name, now, victim.Name)
	died := victim.Kill()
	ev, err := s.waitEvent(ctx, "veto", died, 6*time.Second)
	s.Control("real_death_seen", 1, err == nil)
	if err == nil {
		s.Say("%s: no veto in %.0f s; then a real death was seen after %.0f ms", name, time.Since(from).Seconds(), millis(ev.Time.Sub(died)))
	}
	return heal(ctx, s.w)
}

func starvedScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-starved", Summary: "a watchdog that is frozen for a while, or starved of the processor, takes nobody for dead; a real death still is",
		Flags: []lab.Flag{
			{Name: "frozen", Value: "10s", Usage: "how long it is stopped"},
			{Name: "burn", Value: "15s", Usage: "how long others take the processor"},
		},
		Run: playStarved,
	}
}

func playStarved(ctx context.Context, e *lab.Env) error {
	s, done, err := open(ctx, e, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(nil), Probe: probes("200ms", "50ms")})
	if err != nil {
		return err
	}
	defer done()
	err = s.quiet(ctx, "frozen", func() {
		for range 3 {
			_ = unix.Kill(s.wd.Pid(), unix.SIGSTOP)
			lab.Sleep(ctx, e.Duration("frozen")/3)
			_ = unix.Kill(s.wd.Pid(), unix.SIGCONT)
			lab.Sleep(ctx, time.Second)
		}
	})
	if err != nil {
		return err
	}
	return s.quiet(ctx, "burnt", func() {
		burning, stop := context.WithTimeout(ctx, e.Duration("burn"))
		defer stop()
		for range 6 {
			go func() { _ = exec.CommandContext(burning, "sh", "-c", "while :; do :; done").Run() }()
		}
		<-burning.Done()
		lab.Sleep(ctx, time.Second)
	})
}

func handoverScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-handover", Summary: "servers die within half a second of one watchdog's end and the next one's beginning, and move as fast as at other times",
		Flags: []lab.Flag{{Name: "deaths", Value: "20", Usage: "how many"}},
		Run:   playHandover,
	}
}

// handoverLife is how long each watchdog lives here, and handoverLead how much sooner the
// next one starts.
const (
	handoverLife = 5 * time.Second
	handoverLead = 2 * time.Second
)

func playHandover(ctx context.Context, e *lab.Env) error {
	s, done, err := open(ctx, e, edgeworld.Options{}, backend.Options{}, edgeworld.Config{Service: service(nil)})
	if err != nil {
		return err
	}
	defer done()
	next := make(chan time.Time, 100) // the ends to come
	loop, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for i := 0; loop.Err() == nil; i++ {
			if _, err := s.r.Start(fmt.Sprintf("watchdog-%d", i), "-v", "watchdog", "--for", handoverLife.String()); err != nil {
				e.Problem("%v", err)
				return
			}
			select {
			case next <- time.Now().Add(handoverLife):
			default:
			}
			lab.Sleep(loop, handoverLife-handoverLead)
		}
	}()
	var gaps []gap.Gap
	n := e.Int("deaths")
	connections := s.countLasting(loop)
	for i := 0; i < n; i++ {
		victim, err := s.nextVictim(ctx)
		if err != nil {
			return err
		}
		at := time.Now().Add(time.Second)
		for end := range next { // the next end that lies far enough ahead
			if end.After(at) {
				at = end
				break
			}
		}
		at = at.Add(-500*time.Millisecond + time.Second*time.Duration(i)/time.Duration(max(1, n-1)))
		d := death{how: process, victim: victim, client: gap.Options{To: s.w.VIP(4)}, at: at}
		g, err := d.play(ctx, s.w)
		if err != nil {
			return fmt.Errorf("death %d: %w", i+1, err)
		}
		gaps = append(gaps, g.Gap)
		e.MS("gap", g.Gap.Gap)
		e.Count("failed", g.Failed)
	}
	stop()
	most := <-connections
	r := rowOf("hand-over", gaps)
	e.Say("%d deaths around hand-overs: median %.1f ms, p99 %.1f ms; at most %d idle connections at a candidate", r.n, r.median, r.p99, most)
	e.Count("connections", most)
	e.Want(r.median <= 2*deathMedian && r.p99 <= 2*deathP99, "median %.1f ms and p99 %.1f ms: not as fast as at other times", r.median, r.p99)
	e.Control("overlap_seen", float64(most), most > 1)
	e.Want(most <= 2, "a candidate had %d idle connections, want at most 2", most)
	return nil
}

// lasting is how long a connection stands that is no probe's.
const lasting = 300 * time.Millisecond

// countLasting looks every 50 ms until ctx ends and gives the most connections that a
// candidate had at once and that lasted.
func (s *stage) countLasting(ctx context.Context) <-chan int {
	out := make(chan int, 1)
	go func() {
		most, since := 0, map[string]map[uint16]time.Time{}
		for ; ctx.Err() == nil; lab.Sleep(ctx, 50*time.Millisecond) {
			for _, b := range s.w.Backends {
				ports, err := b.HeldPorts(s.r.Back4)
				if err != nil {
					continue
				}
				since[b.Name] = stay(since[b.Name], ports, time.Now())
				n := 0
				for _, at := range since[b.Name] {
					if time.Since(at) >= lasting {
						n++
					}
				}
				most = max(most, n)
			}
		}
		out <- most
	}()
	return out
}

// stay is since when each port is there: as before, or from now on.
func stay(before map[uint16]time.Time, ports []uint16, now time.Time) map[uint16]time.Time {
	out := map[uint16]time.Time{}
	for _, p := range ports {
		out[p] = now
		if at, ok := before[p]; ok {
			out[p] = at
		}
	}
	return out
}

// common is how many ports are in both lists.
func common(a, b []uint16) int {
	n := 0
	for _, p := range a {
		if slices.Contains(b, p) {
			n++
		}
	}
	return n
}
