package story

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// What the scenarios about ways to the list have in common.

// outside measures the packets of a download that leave the router outside a tunnel: to
// the provider's site, and questions to resolvers. It begins when it is made.
type outside struct {
	w    *lab.World
	from lab.Uplink
}

func newOutside(w *lab.World) (*outside, error) {
	u, err := w.Uplink()
	return &outside{w, u}, err
}

// packets are those up to now: to the site, and questions.
func (o *outside) packets() (site, names int, err error) {
	now, err := o.w.Uplink()
	d := now.Sub(o.from)
	return int(d.List), int(d.Names), err //nolint:gosec // a handful
}

// outsideControl asks the site and a resolver plainly: the counters must see both.
func outsideControl(e *lab.Env, w *lab.World) error {
	o, err := newOutside(w)
	if err != nil {
		return err
	}
	_ = w.Router.Do(func() error { // whether it answers does not matter
		if c, err := net.DialTimeout("tcp4", lab.List4+":80", 200*time.Millisecond); err == nil { //nolint:noctx // a short one
			_ = c.Close()
		}
		c, err := net.Dial("udp4", lab.Uplink4a+":53") //nolint:noctx // sends nothing
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("which way?"))
		return err
	})
	lab.Sleep(context.Background(), 20*time.Millisecond)
	site, names, err := o.packets()
	e.Control("seen_when_asked_plainly", float64(min(site, names)), err == nil && site > 0 && names > 0)
	return err
}

// crowd is a user of each lane's class.
type crowd struct {
	flows []*traffic.UDP
}

// users start 1,000 packets a second together.
func users(ctx context.Context, w *lab.World) (*crowd, error) {
	c := &crowd{}
	for _, l := range w.Lanes {
		f, err := w.UDP(ctx, l.Name, traffic.Options{Every: time.Duration(len(w.Lanes)) * time.Millisecond})
		if err != nil {
			return nil, err
		}
		c.flows = append(c.flows, f)
	}
	return c, nil
}

// stop ends the flows and counts.
func (c *crowd) stop() (sent, lost int) {
	for _, f := range c.flows {
		r := f.Stop(300 * time.Millisecond)
		sent, lost = sent+r.Sent(), lost+r.Lost()
	}
	return sent, lost
}

// ofUsers are packets of users outside any tunnel.
func ofUsers(u lab.Uplink) int { return int(max(u.Users, u.Marked)) } //nolint:gosec // far below

// plumbing is the router's rules, routes and tables as text, without counters and without
// the addresses that IPv6 gives each link some time after it is up.
func plumbing(w *lab.World) (string, error) {
	var all strings.Builder
	for _, argv := range [][]string{{"ip", "rule"}, {"ip", "route", "show", "table", "all"}, {"nft", "-s", "list", "ruleset"}} {
		var out bytes.Buffer
		cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // these three
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := w.Router.Start(cmd); err != nil {
			return "", fmt.Errorf("%s: %w", argv[0], err)
		}
		if err := cmd.Wait(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", argv[0], err, out.String())
		}
		for l := range strings.Lines(out.String()) {
			if !strings.Contains(l, "fe80:") && !strings.Contains(l, "ff00:") {
				all.WriteString(l)
			}
		}
	}
	return all.String(), nil
}

// routingWatch lists each change of the router's rules and routes.
type routingWatch struct {
	w    *lab.World
	cmd  *exec.Cmd
	file string
}

func watchRouting(ctx context.Context, w *lab.World) (*routingWatch, error) {
	f, err := os.CreateTemp(w.Dir, "routing-*.log")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &routingWatch{w: w, file: f.Name(), cmd: exec.Command("ip", "-o", "monitor", "rule", "route")} //nolint:noctx // stopped by its owner
	r.cmd.Stdout, r.cmd.Stderr = f, f
	if err := w.Router.Start(r.cmd); err != nil {
		return nil, err
	}
	// It has begun once it sees what is not there to stay.
	err = lab.Await(ctx, 5*time.Second, "the watch of rules and routes", func() bool {
		return r.probe(ctx) == nil && strings.Contains(strings.Join(r.lines(), "\n"), routingProbe)
	})
	if err != nil {
		r.stop()
		return nil, err
	}
	return r, os.Truncate(r.file, 0)
}

// routingProbe is a priority that no rule of the world has.
const routingProbe = "31999"

// probe adds a rule and takes it away.
func (r *routingWatch) probe(ctx context.Context) error {
	return shellIn(ctx, r.w, "ip rule add pref "+routingProbe+" fwmark 0x7fffffff lookup main; ip rule del pref "+routingProbe)
}

// lines are the changes so far, without those of the addresses that IPv6 gives each link.
func (r *routingWatch) lines() []string {
	b, _ := os.ReadFile(r.file)
	var out []string
	for l := range strings.Lines(string(b)) {
		if l = strings.Trim(l, "\x00 \n"); l != "" && !strings.Contains(l, "fe80:") && !strings.Contains(l, "ff00:") {
			out = append(out, l)
		}
	}
	return out
}

func (r *routingWatch) stop() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// differing are the lines that only one of two texts has.
func differing(was, now string) []string {
	var out []string
	a, b := strings.Split(was, "\n"), strings.Split(now, "\n")
	for _, l := range a {
		if !slices.Contains(b, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			out = append(out, "+ "+l)
		}
	}
	return out
}

// tried is how the strategies ended of which the journal tells after an offset, in order; took is the winner's time.
func tried(w *lab.World, from int64) (names []string, reasons map[string]string, winner string, took time.Duration) {
	reasons = map[string]string{}
	list, _ := events(w, from)
	for _, ev := range list {
		if ev.Kind != "strategy" {
			continue
		}
		names = append(names, ev.Object)
		reasons[ev.Object] = ev.Reason
		if ev.To == "access" {
			winner, took = ev.Object, time.Duration(ev.Figures["took"]*float64(time.Millisecond))
		}
	}
	return names, reasons, winner, took
}

// throughLane makes a lane the router's default route, as some routers are set up; the
// endpoints keep a route of their own.
func throughLane(w *lab.World, iface string) error {
	h, err := netlink.NewHandleAt(netns.NsHandle(w.Router.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(iface)
	if err != nil {
		return err
	}
	wan, err := h.LinkByName(lab.WANInterface)
	if err != nil {
		return err
	}
	gw := net.ParseIP(lab.Gateway4)
	for _, r := range []netlink.Route{
		{Dst: cidr(server.EndpointNet), Gw: gw, LinkIndex: wan.Attrs().Index},
		{Dst: cidr("0.0.0.0/0"), Gw: gw, LinkIndex: wan.Attrs().Index, Priority: 100},
		{Dst: cidr("0.0.0.0/0"), LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK},
	} {
		if err := h.RouteReplace(&r); err != nil {
			return fmt.Errorf("route %s: %w", r.Dst, err)
		}
	}
	return nil
}

func cidr(s string) *net.IPNet {
	_, n, _ := net.ParseCIDR(s) // constants
	return n
}
