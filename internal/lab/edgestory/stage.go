package edgestory

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/nftables"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
)

// answersLast is how long a run takes a candidate's answer for fresh, and does not ask again.
const answersLast = 5 * time.Second

// stage is a world with the product at work in it.
type stage struct {
	*lab.Env
	w  *edgeworld.World
	r  *edgeworld.Replica // holds the virtual address
	wd *lab.Proc          // its watchdog; nil = none
}

// open builds a world with servers and its configuration. The caller calls the function
// that it gets.
func open(ctx context.Context, e *lab.Env, wo edgeworld.Options, so backend.Options, c edgeworld.Config) (*stage, func(), error) {
	w, done, err := newWorld(ctx, e, wo)
	if err != nil {
		return nil, nil, err
	}
	s := &stage{Env: e, w: w, r: w.Replicas[0]}
	if err = w.Configure(c); err == nil {
		err = serve(ctx, w, so)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return s, done, nil
}

// openWatched is open with a watchdog at work.
func openWatched(ctx context.Context, e *lab.Env, wo edgeworld.Options, so backend.Options, c edgeworld.Config) (*stage, func(), error) {
	s, done, err := open(ctx, e, wo, so, c)
	if err != nil {
		return nil, nil, err
	}
	if err := s.watch(); err != nil {
		done()
		return nil, nil, err
	}
	return s, done, nil
}

// watch starts a watchdog that lasts as long as the scenario.
func (s *stage) watch(args ...string) error {
	p, err := s.r.Start("watchdog", append([]string{"-v", "watchdog", "--for", "1h"}, args...)...)
	s.wd = p
	return err
}

// status is `edge status` as scenarios read it.
type status struct{ edgeworld.Status }

// look is the status as a replica tells it, with the exit code.
func look(ctx context.Context, r *edgeworld.Replica) (status, int, error) {
	st, code, err := r.Status(ctx)
	return status{st}, code, err
}

// target is whom the service leads to, and state how a candidate of it stands: up where it
// is up in every family, else what it is in the first one where it is not.
func (s status) target() (name string, epoch uint64) {
	for _, x := range s.Services {
		if x.Family == 4 {
			return x.Candidate, x.Epoch
		}
	}
	return "", 0
}

func (s status) state(candidate string) string {
	found := ""
	for _, x := range s.Services {
		for _, c := range x.Candidates {
			if c.Candidate == candidate && (found == "" || found == "up") {
				found = c.State
			}
		}
	}
	return found
}

// calm waits until every candidate is up, the service has a target, and where there are
// tripwires the target's is armed. It returns the target.
func (s *stage) calm(ctx context.Context, tripwire bool) (*edgeworld.Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	why := "nothing seen"
	for ctx.Err() == nil {
		st, _, err := look(ctx, s.r)
		name, _ := st.target()
		switch {
		case err != nil:
			why = err.Error()
		case name == "":
			why = "there is no target"
		default:
			b := s.w.Backend(name)
			if why = s.unready(ctx, st, b, tripwire); why == "" {
				return b, nil
			}
		}
		lab.Sleep(ctx, 50*time.Millisecond)
	}
	return nil, fmt.Errorf("the service does not become calm: %s", why)
}

// nextVictim brings back whatever died, waits until all is calm, and returns who serves.
func (s *stage) nextVictim(ctx context.Context) (*edgeworld.Backend, error) {
	if err := heal(ctx, s.w); err != nil {
		return nil, err
	}
	return s.calm(ctx, true)
}

func (s *stage) unready(ctx context.Context, st status, b *edgeworld.Backend, tripwire bool) string {
	for _, x := range s.w.Backends {
		if got := st.state(x.Name); got != "up" {
			return fmt.Sprintf("%s is %q", x.Name, got)
		}
	}
	if !tripwire {
		return ""
	}
	first, err := b.HeldPorts(s.r.Back4)
	if err != nil || len(first) == 0 {
		return fmt.Sprintf("no tripwire at %s (%v)", b.Name, err)
	}
	lab.Sleep(ctx, 40*time.Millisecond) // a probe's connection is gone by then
	second, err := b.HeldPorts(s.r.Back4)
	if err != nil || common(first, second) == 0 {
		return fmt.Sprintf("no tripwire at %s (%v), probes only", b.Name, err)
	}
	return ""
}

// event is a line of a replica's journal.
type event struct {
	Time   time.Time          `json:"time"`
	Kind   string             `json:"kind"`
	Object string             `json:"object"`
	From   string             `json:"from"`
	To     string             `json:"to"`
	Fig    map[string]float64 `json:"figures"`
}

// events are the journal's lines of a kind from a time on.
func events(r *edgeworld.Replica, kind string, from time.Time) []event {
	b, _ := os.ReadFile(filepath.Join(r.State, "events.jsonl"))
	var out []event
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) == nil && e.Kind == kind && !e.Time.Before(from.Round(0)) {
			out = append(out, e)
		}
	}
	return out
}

// waitEvent waits for a journal's line of a kind from a time on.
func (s *stage) waitEvent(ctx context.Context, kind string, from time.Time, d time.Duration) (event, error) {
	var found event
	err := lab.Await(ctx, d, "an event "+kind, func() bool {
		if list := events(s.r, kind, from); len(list) > 0 {
			found = list[0]
			return true
		}
		return false
	})
	return found, err
}

// leads reads from a replica's kernel where its table leads the virtual address; the zero
// value when it does not.
func leads(ns *cage.Namespace) netip.Addr {
	c, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	if err != nil {
		return netip.Addr{}
	}
	return leadsOver(c)
}

// leadsOver is leads over a connection of the caller's. Closing one waits for the kernel to tidy
// up after others' commits.
func leadsOver(c *nftables.Conn) netip.Addr {
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: "shunt_edge"}
	set, err := c.GetSetByName(t, "target4")
	if err != nil {
		return netip.Addr{}
	}
	list, err := c.GetSetElements(set)
	if err != nil || len(list) == 0 || len(list[0].Val) < 4 {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(list[0].Val[:4]))
}

// service is a service of TCP with more settings.
func service(more edgeworld.Settings) edgeworld.Settings {
	return over(edgeworld.Settings{"protocols": []string{"tcp"}}, more)
}

func over(base, more edgeworld.Settings) edgeworld.Settings {
	for k, v := range more {
		base[k] = v
	}
	return base
}

// probes are the settings of quick probes.
func probes(interval, limit string) edgeworld.Settings {
	return edgeworld.Settings{"interval": interval, "cap": limit}
}
