package story_test

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

// bare makes a world in which the test binary is the product; nothing is started in it.
func bare(t *testing.T, o lab.WorldOptions) place {
	t.Helper()
	o.Dir, o.BinaryArg = os.Getenv("SHUNT_LAB_DIR"), []string{product}
	w, err := lab.Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return place{w, t}
}

// services starts those of all lanes.
func (p place) services() map[string]*lab.Proc {
	p.t.Helper()
	all, err := p.StartLanes(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// hasIPv6 says whether the kernel knows IPv6; the world has it then.
func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

// outside is the number of packets outside any tunnel, by whichever counter saw most.
func outside(u lab.Uplink) uint64 { return max(u.Clear, u.Users, u.Marked) }

// inRouter runs a command in the router and returns what it says.
func (p place) inRouter(argv ...string) string {
	p.t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := p.Router.Start(cmd); err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		p.t.Fatalf("%v: %v: %s", argv, err, out.String())
	}
	return out.String()
}

// reboot ends the lanes' services and takes what a kernel forgets: tables, rules, routes and
// flows. What is on disk stays.
func (p place) reboot(lanes map[string]*lab.Proc) {
	p.t.Helper()
	for _, l := range lanes {
		l.Kill()
	}
	p.inRouter("nft", "delete", "table", "inet", "shunt_egress")
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(p.inRouter("ip", family, "rule")) {
			if pref, rule, _ := strings.Cut(line, ":"); strings.Contains(rule, "fwmark") {
				p.inRouter("ip", family, "rule", "del", "pref", pref)
			}
		}
	}
	p.inRouter("sh", "-c", "for t in "+p.tables()+"; do ip route flush table $t; ip -6 route flush table $t; done")
	p.inRouter("conntrack", "-F")
	if left := p.inRouter("ip", "rule"); strings.Contains(left, "fwmark") {
		p.t.Fatalf("rules are left: %s", left)
	}
}

func (p place) tables() string {
	var out []string
	for _, l := range p.Lanes {
		out = append(out, strconv.Itoa(l.Table))
	}
	return strings.Join(out, " ")
}

// crowd starts the traffic of all classes, of both families, 1,000 packets a second together.
func (p place) crowd() []*traffic.UDP {
	p.t.Helper()
	to := []netip.AddrPort{{}}
	if hasIPv6() {
		to = append(to, netip.AddrPortFrom(netip.MustParseAddr(lab.Service6a), 0))
	}
	var flows []*traffic.UDP
	for i, l := range p.Lanes {
		for j, a := range to {
			f, err := p.UDP(p.t.Context(), l.Name, traffic.Options{
				To: a, Every: time.Duration(len(p.Lanes)*len(to)) * time.Millisecond, ID: uint32(100 + 10*i + j),
			})
			if err != nil {
				p.t.Fatal(err)
			}
			flows = append(flows, f)
		}
	}
	return flows
}

// After a boot a lane carries what it carried, and its users wait until a round has passed
// through it: no packet leaves by the uplink, and none by a lane that nobody has looked at.
func TestABootIsClosedUntilTheFirstVerdict(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := bare(t, lab.WorldOptions{Lanes: 2, Endpoints: 4, Keys: 2, IPv6: true, RTT: 5 * time.Millisecond})
	p.tell()
	services := p.services()
	for _, c := range []string{"plane", "refresh", "rebalance", "repair"} {
		p.shunt("egress", c)
	}
	for turn := range 3 {
		dead := turn == 2 // what a lane carried has died meanwhile
		was := p.carries("egress2")
		p.reboot(services)
		flows := p.crowd()
		from, err := p.Uplink()
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(300 * time.Millisecond)
		if now, err := p.Uplink(); err != nil || outside(now.Sub(from)) == 0 {
			t.Fatalf("without rules nothing leaves in clear: nothing is tested (%v)", err)
		}
		p.shunt("egress", "plane")
		<-time.After(50 * time.Millisecond) // what was on its way
		if from, err = p.Uplink(); err != nil {
			t.Fatal(err)
		}
		served := time.Now()
		if dead {
			p.fault(was, server.Silent())
		}
		services = p.services()
		p.until(5*time.Second, "egress2 carries what it carried before the boot", func() bool { return p.carries("egress2") == was })
		<-time.After(500 * time.Millisecond)
		for _, f := range flows {
			r := f.Result().Between(served, time.Now().Add(-100*time.Millisecond))
			if got := r.Sent() - r.Lost(); r.Sent() == 0 || got > 0 {
				t.Errorf("turn %d: %d of %d packets were answered before anything had looked at the lanes", turn, got, r.Sent())
			}
		}
		p.repairUntil(30*time.Second, "users are served", func() bool {
			for _, l := range p.Lanes {
				if _, err := p.Exit(t.Context(), l.Name); err != nil {
					return false
				}
			}
			return true
		})
		for _, f := range flows {
			f.Stop(0)
		}
		now, err := p.Uplink()
		if err != nil {
			t.Fatal(err)
		}
		if d := now.Sub(from); outside(d) > 0 || d.Tunnel == 0 {
			t.Errorf("turn %d: %d packets outside a tunnel, %d in tunnels", turn, outside(d), d.Tunnel)
		}
	}
}
