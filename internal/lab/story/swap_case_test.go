package story_test

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/journal"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// hasty is a user who connects anew each 50 ms, whatever became of the last connection.
type hasty struct {
	mu   sync.Mutex
	all  []attempt
	stop context.CancelFunc
	done chan struct{}
}

type attempt struct {
	began time.Time
	exit  netip.Addr // where it came out; not valid: there was no answer
	err   error
}

func (p place) hasty(lane string) *hasty {
	ctx, cancel := context.WithCancel(p.t.Context())
	h := &hasty{stop: cancel, done: make(chan struct{})}
	l := p.Lane(lane)
	i := slices.IndexFunc(p.Lanes, func(x lab.Lane) bool { return x.Name == lane })
	go func() {
		defer close(h.done)
		var wg sync.WaitGroup
		defer wg.Wait()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			wg.Go(func() {
				a := attempt{began: time.Now()}
				one, end := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
				defer end()
				a.exit, a.err = traffic.Exit(one, p.LAN, traffic.Options{From: lab.User4(i), DSCP: uint8(l.DSCP), To: netip.AddrPortFrom(netip.MustParseAddr(lab.Service4a), 0)})
				h.mu.Lock()
				defer h.mu.Unlock()
				h.all = append(h.all, a)
			})
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	p.t.Cleanup(func() { h.end() })
	return h
}

func (h *hasty) end() []attempt {
	h.stop()
	<-h.done
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortFunc(h.all, func(a, b attempt) int { return a.began.Compare(b.began) })
	return h.all
}

// last is the last event of a kind that names an object, since a time.
func (p place) last(since time.Time, kind, object string) (found journal.Event) {
	p.t.Helper()
	for _, ev := range p.journal() {
		if ev.Kind == kind && ev.Object == object && !ev.Time.Before(since) {
			found = ev
		}
	}
	return found
}

// A user who reconnects without a pause meets each instant of a change. Whoever connects
// after it is over comes out of the new endpoint, and nobody hangs on the old path.
func TestNobodyStaysOnTheOldPathHoweverFastHeReconnects(t *testing.T) {
	if !isInside(t) {
		return
	}
	for _, c := range []struct {
		name string
		keys int // client keys: with one a swap is made before the old peer goes
		dies bool
	}{
		{"made before the old peer goes", 1, false},
		{"in place, behind a loan", 8, false},
		{"of a dead lane", 8, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := build(t, lab.WorldOptions{Lanes: 3, Endpoints: 8, Keys: c.keys, RTT: 5 * time.Millisecond})
			p.tell()
			for _, cmd := range []string{"refresh", "rebalance", "repair"} {
				p.shunt("egress", cmd)
			}
			old := p.carries(one)
			flow, err := p.UDP(t.Context(), one, traffic.Options{Every: 10 * time.Millisecond}) // of one port: no pause lets its entry go
			if err != nil {
				t.Fatal(err)
			}
			h := p.hasty(one)
			p.until(5*time.Second, "the user comes out of the lane", func() bool {
				x, err := p.Exit(t.Context(), one)
				return err == nil && x == old
			})
			began := time.Now()
			if c.dies {
				p.fault(old, server.Silent())
				p.repairUntil(20*time.Second, "the lane is repaired", func() bool { return !p.last(began, "return", one).Time.IsZero() })
			} else {
				if err := p.Configure(lab.Settings{"egress.rebalance.deny": []string{old.File()}}); err != nil {
					t.Fatal(err)
				}
				p.shunt("egress", "rebalance")
			}
			over := time.Now()
			now := p.carries(one)
			if now == old || now == nil {
				t.Fatalf("the lane carries %s", name(now))
			}
			if lent := !p.last(began, "lend", one).Time.IsZero(); lent != (c.keys > 1) {
				t.Errorf("lent: %v", lent)
			}
			<-time.After(time.Second)
			r := flow.Stop(300*time.Millisecond).Between(over, time.Time{})
			if r.Lost() > 0 || r.Sent() < 50 || r.Via()[old.Exit4] > 0 {
				t.Errorf("after the change %d of %d packets of a flow that never paused were lost, %d came out of %s", r.Lost(), r.Sent(), r.Via()[old.Exit4], name(old))
			}
			after, stuck := 0, 0
			for _, a := range h.end() {
				x := p.Far.ByExit(a.exit)
				switch {
				case a.exit.IsValid() && x == nil:
					t.Errorf("%s after the change began: in clear, as %s", a.began.Sub(began), a.exit)
				case a.began.After(over):
					after++
					if x != now {
						t.Errorf("%s after the change was over: out of %s, %v", a.began.Sub(over), name(x), a.err)
					}
				case !a.exit.IsValid() && !c.dies: // a healthy lane's users hang no longer than a handshake of TCP is repeated
					stuck++
				}
			}
			if after < 15 {
				t.Errorf("%d connections after the change: nothing is tested", after)
			}
			if stuck > 2 {
				t.Errorf("%d connections that began during the change got no answer", stuck)
			}
		})
	}
}

// told is what a monitor says, line by line.
type told struct {
	mu    sync.Mutex
	lines []string
}

// monitor starts a command in the router that tells of changes until the test ends.
func (p place) monitor(argv ...string) *told {
	p.t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.Router.Start(cmd); err != nil {
		p.t.Fatal(err)
	}
	m := &told{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			m.mu.Lock()
			m.lines = append(m.lines, s.Text())
			m.mu.Unlock()
		}
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	return m
}

func (m *told) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.lines)
}

// The repair of one lane is no business of the others: not one link, address, route, rule or
// element of theirs sees an event. Encrypted packets leave by the uplink only, and a lane
// whose interface is gone is not green by another one.
func TestARepairTouchesItsOwnLaneOnly(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := bare(t, lab.WorldOptions{Endpoints: 9, Keys: 9, RTT: 5 * time.Millisecond})
	p.tell()
	services := p.services()
	for _, c := range []string{"refresh", "rebalance", "repair"} {
		p.shunt("egress", c)
	}
	const lane = "egress4"
	mine := p.Lane(lane)
	p.inRouter("nft", fmt.Sprintf(`add table inet outer; add chain inet outer out { type filter hook postrouting priority 300; };
add rule inet outer out ip daddr %[1]s udp dport 42000-43000 oifname %[2]q counter comment "uplink";
add rule inet outer out ip daddr %[1]s udp dport 42000-43000 oifname != %[2]q counter comment "elsewhere"`, server.EndpointNet, lab.WANInterface))
	kernel, table := p.monitor("ip", "-o", "monitor", "link", "address", "route", "rule"), p.monitor("nft", "monitor")
	p.until(5*time.Second, "both monitors listen", func() bool {
		p.inRouter("ip", "address", "add", "192.0.2.99/32", "dev", "lo")
		p.inRouter("ip", "address", "del", "192.0.2.99/32", "dev", "lo")
		p.inRouter("nft", "add table inet seen; delete table inet seen")
		said := func(m *told, what string) bool {
			return slices.ContainsFunc(m.all(), func(l string) bool { return strings.Contains(l, what) })
		}
		return said(kernel, "192.0.2.99") && said(table, "seen")
	})
	old := p.carries(lane)
	p.fault(old, server.Silent())
	p.repairUntil(20*time.Second, "the lane is repaired and its users are home", func() bool {
		x, err := p.Exit(t.Context(), lane)
		return err == nil && x != old && x == p.carries(lane)
	})
	for _, l := range p.Lanes {
		if l.Name == lane {
			continue
		}
		for _, line := range kernel.all() {
			for _, theirs := range []string{l.Interface + ":", l.Interface + " ", "table " + fmt.Sprint(l.Table) + " ", "lookup " + fmt.Sprint(l.Table) + " ", l.Mark.String() + "/"} {
				if strings.Contains(line+" ", theirs) {
					t.Errorf("%s was touched: %s", l.Name, line)
				}
			}
		}
	}
	moves := 0
	for _, line := range table.all() {
		if strings.Contains(line, "seen") || !strings.Contains(line, "shunt_egress") {
			continue
		}
		if moves++; !strings.HasPrefix(line, "add element ") && !strings.HasPrefix(line, "delete element ") {
			t.Errorf("more than elements changed: %s", line)
		}
		if !strings.Contains(line, "{ "+mine.DSCP.String()+" }") && !strings.Contains(line, fmt.Sprintf("{ 0x%08x }", uint32(mine.Mark))) {
			t.Errorf("an element of another class moved: %s", line)
		}
	}
	if moves < 4 { // away and back, at least of IPv4
		t.Errorf("%d elements moved: nothing was seen of the loan: %q", moves, table.all())
	}
	// Every lane has sent much by now.
	for line := range strings.Lines(p.inRouter("nft", "list table inet outer")) {
		switch none := strings.Contains(line, "packets 0 "); {
		case strings.Contains(line, `"uplink"`) && none, strings.Contains(line, `"elsewhere"`) && !none:
			t.Errorf("encrypted packets: %s", line)
		}
	}
	services["egress2"].Kill()
	for range 2 {
		p.shunt("egress", "repair")
	}
	if ev := p.last(time.Time{}, "verdict", "egress2"); ev.To != "down" || ev.Reason != "no_device" {
		t.Errorf("a lane without its interface: %+v", ev)
	}
	if s := p.laneState(one); !strings.HasPrefix(s, "up") {
		t.Errorf("%s is %s", one, s)
	}
}
