package edgestory

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/backend"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/edgeworld"
	"github.com/shunt-net/shunt/internal/lab/gap"
)

func foreignScenario() lab.Scenario {
	return lab.Scenario{
		Name: "edge-foreign", Summary: "beside tables of iptables-nft and one that crashes nft's listing all goes on as ever: theirs stay as they are, ours lists alone and loads elsewhere after each change",
		Flags: []lab.Flag{{Name: "deaths", Value: "3", Usage: "how many"}},
		Run:   playForeign,
	}
}

// oddTable is one that nft 1.0.6 loads and crashes at when it lists it.
const oddTable = `table inet odd {
  map ring {
    typeof jhash ip saddr . tcp sport mod 8 seed 0x1 : ip daddr
    size 8
    elements = { 0 : 10.0.0.1, 1 : 10.0.0.2 }
  }
  chain prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    ip daddr 10.98.0.1 dnat ip to jhash ip saddr . tcp sport mod 8 seed 0x1 map @ring
  }
}
`

// foreign is the scenario while it runs.
type foreign struct {
	*stage
	theirs  map[*edgeworld.Replica]string
	applies int
	touched int
	differs int
}

func playForeign(ctx context.Context, e *lab.Env) error {
	s, done, err := open(ctx, e, edgeworld.Options{Replicas: 2}, backend.Options{}, edgeworld.Config{Service: service(edgeworld.Settings{"nodes": true, "snat": "always"})})
	if err != nil {
		return err
	}
	defer done()
	f := &foreign{stage: s, theirs: map[*edgeworld.Replica]string{}}
	if err := f.furnish(ctx); err != nil {
		return err
	}
	for _, play := range []func(context.Context) error{f.watched, f.byHand, f.configured, f.control} {
		if err := play(ctx); err != nil {
			return err
		}
	}
	e.Count("applies", f.applies)
	e.Count("foreign_changed", f.touched)
	e.Count("listing_differs", f.differs)
	return nil
}

// furnish gives the replicas tables of others.
func (f *foreign) furnish(ctx context.Context) error {
	rules := [][]string{
		{"-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "8080", "-m", "comment", "--comment", "theirs", "-j", "REDIRECT", "--to-ports", "80"},
		{"-A", "FORWARD", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-m", "limit", "--limit", "5/s", "-j", "ACCEPT"},
	}
	for _, r := range f.w.Replicas {
		for _, args := range rules {
			if _, err := command(ctx, r.NS, "", append([]string{"iptables-nft"}, args...)...); errors.Is(err, exec.ErrNotFound) {
				f.Say("iptables-nft is not installed, so its tables are left out")
				break
			} else if err != nil {
				return err
			}
		}
		if _, err := command(ctx, r.NS, oddTable, "nft", "-f", "-"); err != nil {
			return err
		}
		var err error
		if f.theirs[r], err = belongings(ctx, r.NS); err != nil {
			return err
		}
	}
	n := strings.Count(f.theirs[f.r], "\n") + 1
	f.Control("foreign_objects", float64(n), n > 10)
	_, err := command(ctx, f.r.NS, "", "nft", "list", "ruleset")
	var exit *exec.ExitError
	crashed := errors.As(err, &exit) && !exit.Exited()
	f.Say("nft lists all of it: crashed %v", crashed)
	f.Count("nft_crashed", map[bool]int{true: 1}[crashed])
	return nil
}

// belongings is all that tables have that are not shunt's, packets that they counted aside.
func belongings(ctx context.Context, ns *cage.Namespace) (string, error) {
	var out []string
	rules, err := command(ctx, ns, "", "iptables-nft-save")
	if err != nil && !errors.Is(err, exec.ErrNotFound) {
		return "", err
	}
	for line := range strings.Lines(counted.ReplaceAllString(rules, "")) {
		if !strings.HasPrefix(line, "#") { // has the time
			out = append(out, line)
		}
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.FD()})
	if err != nil {
		return "", fmt.Errorf("%s: netlink: %w", ns.Name, err)
	}
	defer c.Close()
	for _, q := range []struct {
		kind  uint16
		names []string
	}{
		{unix.NFT_MSG_GETTABLE, nil},
		{unix.NFT_MSG_GETSET, nil},
		{unix.NFT_MSG_GETRULE, []string{"odd"}},
		{unix.NFT_MSG_GETSETELEM, []string{"odd", "ring"}},
	} {
		list, err := dumped(c, q.kind, q.names...)
		if err != nil {
			return "", fmt.Errorf("%s: netlink: %w", ns.Name, err)
		}
		out = append(out, list...)
	}
	return strings.Join(out, "\n"), nil
}

// counted is what iptables-save says of a chain's traffic.
var counted = regexp.MustCompile(`\[[0-9]+:[0-9]+\]`)

// dumped asks the kernel for objects of nftables; names are those of a table and a set.
func dumped(c *netlink.Conn, kind uint16, names ...string) ([]string, error) {
	enc := netlink.NewAttributeEncoder()
	family := byte(unix.AF_UNSPEC)
	for i, name := range names {
		family = unix.NFPROTO_INET
		enc.String(uint16(i+1), name) //nolint:gosec // NFTA_…_TABLE, NFTA_…_SET
	}
	attrs, err := enc.Encode()
	if err != nil {
		return nil, err
	}
	m := netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
	list, err := c.Execute(m)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, x := range list {
		// Each begins with the family, a version and the number of the ruleset's last change.
		if len(x.Data) > 4 && !strings.Contains(string(x.Data), "shunt_edge\x00") {
			out = append(out, fmt.Sprintf("%d %d %s", kind, x.Data[0], hex.EncodeToString(x.Data[4:])))
		}
	}
	return out, nil
}

// expiry is what differs between two listings by the time that has passed.
var expiry = regexp.MustCompile(` expires [0-9a-z]+`)

func timeless(listing string) string { return expiry.ReplaceAllString(listing, "") }

// compare compares what others have with what they had, and loads our listing elsewhere.
func (f *foreign) compare(ctx context.Context, after string) error {
	f.applies++
	for _, r := range f.w.Replicas {
		now, err := belongings(ctx, r.NS)
		if err != nil {
			return err
		}
		if now != f.theirs[r] {
			f.touched++
			f.Problem("after %s: tables of others on %s are not what they were", after, r.Name)
		}
		text, err := listing(ctx, r)
		if err != nil {
			return err
		}
		again, err := elsewhere(ctx, text)
		if err != nil {
			f.differs++
			f.Problem("after %s: the table of %s does not load: %v", after, r.Name, err)
		} else if timeless(text) != timeless(again) {
			f.differs++
			f.Problem("after %s: the table of %s, loaded elsewhere, lists differently", after, r.Name)
		}
	}
	return nil
}

// elsewhere loads a listing into an empty namespace and lists it there.
func elsewhere(ctx context.Context, text string) (string, error) {
	spaces, err := cage.New("empty")
	if err != nil {
		return "", err
	}
	defer spaces[0].Close()
	if _, err := command(ctx, spaces[0], text, "nft", "-f", "-"); err != nil {
		return "", err
	}
	return command(ctx, spaces[0], "", "nft", "list", "table", "inet", "shunt_edge")
}

// watched lets servers die under a watchdog.
func (f *foreign) watched(ctx context.Context) error {
	if err := f.watch(); err != nil {
		return err
	}
	defer f.wd.Stop()
	for i := range f.Int("deaths") {
		if err := heal(ctx, f.w); err != nil {
			return err
		}
		victim, err := f.calm(ctx, true)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := f.compare(ctx, "the first target"); err != nil {
				return err
			}
		}
		d := death{how: process, victim: victim, client: gap.Options{To: f.w.VIP(4)}, phase: 200 * time.Millisecond}
		g, err := d.play(ctx, f.w)
		if err != nil {
			return fmt.Errorf("death %d: %w", i+1, err)
		}
		f.MS("gap", g.Gap.Gap)
		if err := f.compare(ctx, "a death"); err != nil {
			return err
		}
	}
	return heal(ctx, f.w)
}

// byHand drains, enables, breaks a table and has it mended.
func (f *foreign) byHand(ctx context.Context) error {
	steps := []struct {
		name string
		do   func() error
	}{
		{"a drain", func() error { return f.r.Shunt(ctx, "edge", "drain", "front", "a").Err() }},
		{"its end", func() error { return f.r.Shunt(ctx, "edge", "enable", "front", "a").Err() }},
		{"a reset", func() error { return f.r.Shunt(ctx, "edge", "reset", "front").Err() }},
		{"a mend", func() error {
			if _, err := command(ctx, f.r.NS, "", "nft", "delete", "chain", "inet", "shunt_edge", "input"); err != nil {
				return err
			}
			return f.r.Shunt(ctx, "edge", "retarget").Err()
		}},
		{"a table made anew", func() error {
			deleteTable(f.w.Replicas[1])
			return f.r.Shunt(ctx, "edge", "retarget").Err()
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := f.compare(ctx, s.name); err != nil {
			return err
		}
	}
	return nil
}

// configured adds services and takes them away.
func (f *foreign) configured(ctx context.Context) error {
	usual := edgeworld.Config{Service: service(edgeworld.Settings{"nodes": true})}
	more := edgeworld.Config{Services: []edgeworld.Settings{
		{"name": "front", "vip": []string{edgeworld.VIP4}, "port": edgeworld.Port, "candidates": f.w.Candidates()},
		{"name": "voice", "vip": []string{edgeworld.VIP4}, "port": 5000, "protocols": []string{"tcp", "udp"}, "candidates": f.ported(1, edgeworld.Port), "reset_dead": true},
	}}
	for _, x := range []struct {
		after string
		cfg   edgeworld.Config
	}{{"a service more", more}, {"a service less", usual}} {
		if err := f.w.Configure(x.cfg); err != nil {
			return err
		}
		if err := f.r.Shunt(ctx, "edge", "retarget").Err(); err != nil {
			return fmt.Errorf("%s: %w", x.after, err)
		}
		if err := f.compare(ctx, x.after); err != nil {
			return err
		}
	}
	return nil
}

// control proves that a change of others' tables, and a listing that differs, are seen.
func (f *foreign) control(ctx context.Context) error {
	if _, err := command(ctx, f.r.NS, "", "nft", "add element inet odd ring { 2 : 10.0.0.3 }"); err != nil {
		return err
	}
	now, err := belongings(ctx, f.r.NS)
	if err != nil {
		return err
	}
	f.Control("planted_change_seen", 1, now != f.theirs[f.r])
	text, err := listing(ctx, f.r)
	if err != nil {
		return err
	}
	lines := strings.SplitAfter(text, "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "masquerade") })
	if i < 0 {
		return errors.New("the table has no rule that masquerades")
	}
	again, err := elsewhere(ctx, strings.Join(slices.Delete(lines, i, i+1), ""))
	if err != nil {
		return err
	}
	f.Control("planted_difference_seen", 1, timeless(again) != timeless(text))
	return nil
}
