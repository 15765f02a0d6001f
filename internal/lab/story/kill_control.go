package story

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/plane"
	"github.com/shunt-net/shunt/internal/state"
)

// planted is something wrong that the checker must find.
type planted struct {
	what  string // in what it says
	plant func() (undo func() error, err error)
}

// control plants one wrong thing after another in a healthy world: a checker that does not
// find them all is none.
func (k *killer) control(ctx context.Context) error {
	now, err := carried(k.w)
	if err != nil {
		return err
	}
	spare, err := k.spares(ctx, 1, func(*server.Endpoint) bool { return true })
	if err != nil {
		return err
	}
	first, second := k.w.Lanes[0], k.w.Lanes[1]
	list := append([]planted{
		{"its device has 2 peers", k.strayPeer(first, spare[0])},
		{"another peer or key", k.rewrite("lanes/"+first.Name+".conf", func([]byte) []byte { return spare[0].Profile() })},
		{"share", k.rewrite("lanes/"+first.Name+".conf", func([]byte) []byte { return now[second.Name].Profile() })},
		{"intent", k.rewrite("intents/"+first.Name+".json", func([]byte) []byte { return []byte("{}\n") })},
		{"the class of " + first.Name, k.movedClass(ctx, first, second)},
		{"is held", k.heldLock("plane")},
		{"left in clear", k.packetInClear},
	}, k.plantedRecords(first, now[first.Name])...)
	found := 0
	for _, p := range list {
		undo, err := p.plant()
		if err != nil {
			return fmt.Errorf("planting %q: %w", p.what, err)
		}
		bad := strings.Join(k.check(ctx), "; ")
		if err := undo(); err != nil {
			return fmt.Errorf("taking %q away: %w", p.what, err)
		}
		if k.e.Want(strings.Contains(bad, p.what), "the checker did not find %q: %q", p.what, bad) {
			found++
		}
		if err := k.mustBeWell(ctx, "after "+p.what); err != nil {
			return err
		}
	}
	k.e.Control("planted_found", float64(found), found == len(list))
	k.e.Say("the checker found all %d wrong things that were planted", found)
	return nil
}

// plantedRecords are wrong contract files.
func (k *killer) plantedRecords(l lab.Lane, x *server.Endpoint) []planted {
	day := time.Now().Format(time.DateOnly)
	row := fmt.Sprintf("%s\t%d\t%s\t%s\t%s\tsilent\t0\t%s\n", x.HostPort(), time.Now().Unix(), time.Now().UTC().Format(time.RFC3339), l.Name, l.Interface, x.HostPort())
	header := "endpoint\tfailed_at_epoch\tfailed_at_iso\tslot\tiface\treason\told_pool_mtime_epoch\treplacement_endpoint\n"
	return []planted{
		{"fail counter", k.rewrite("fail-counter/"+day+".count", func([]byte) []byte { return []byte("1\n") })},
		{"carries " + x.HostPort(), k.rewrite("quarantine.tsv", func(b []byte) []byte {
			if len(b) == 0 {
				b = []byte(header)
			}
			return append(b, row...)
		})},
		{"state.kv", k.rewrite("state.kv", func(b []byte) []byte { return []byte(strings.Replace(string(b), "mode=normal", "mode=slot_repair", 1)) })},
		{"another generation", k.otherTime},
	}
}

// rewrite changes a file of the state folder.
func (k *killer) rewrite(name string, change func([]byte) []byte) func() (func() error, error) {
	return func() (func() error, error) {
		path := filepath.Join(k.w.State, name)
		was, err := os.ReadFile(path)
		undo := func() error { return os.WriteFile(path, was, 0o600) }
		if errors.Is(err, os.ErrNotExist) {
			undo, err = func() error { return os.Remove(path) }, nil
		}
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return nil, err
		}
		return undo, os.WriteFile(path, change(append([]byte(nil), was...)), 0o600)
	}
}

func (k *killer) strayPeer(l lab.Lane, x *server.Endpoint) func() (func() error, error) {
	return func() (func() error, error) {
		key, err := wgtypes.ParseKey(x.PublicKey())
		if err != nil {
			return nil, err
		}
		set := func(remove bool) error {
			return k.configureDevice(l.Interface, wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: key, Remove: remove}}})
		}
		return func() error { return set(true) }, set(false)
	}
}

func (k *killer) movedClass(ctx context.Context, from, to lab.Lane) func() (func() error, error) {
	return k.movedTo(ctx, from, fmt.Sprint(to.Table))
}

// movedTo puts a class, in both families, into the sets of another table, or of direct.
func (k *killer) movedTo(ctx context.Context, l lab.Lane, to string) func() (func() error, error) {
	return func() (func() error, error) {
		move := func(a, b string) error {
			return k.shell(ctx, fmt.Sprintf("nft 'delete element inet shunt_egress to_%[1]s { %[3]s }; add element inet shunt_egress to_%[2]s { %[3]s }; "+
				"delete element inet shunt_egress to6_%[1]s { %[4]s }; add element inet shunt_egress to6_%[2]s { %[4]s }'", a, b, l.DSCP, l.Mark))
		}
		home := fmt.Sprint(l.Table)
		return func() error { return move(to, home) }, move(home, to)
	}
}

func (k *killer) heldLock(name string) func() (func() error, error) {
	return func() (func() error, error) {
		f, err := os.Open(filepath.Join(k.w.State, "locks", name+".lock"))
		if err != nil {
			return nil, err
		}
		return f.Close, unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
}

// packetInClear sends one from the router itself, past every tunnel.
func (k *killer) packetInClear() (func() error, error) {
	return func() error { return nil }, k.w.Router.Do(func() error {
		c, err := net.Dial("udp", lab.Service4a+":9") //nolint:noctx // only sends
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("in clear"))
		return err
	})
}

// otherTime gives one pool another time than the rest.
func (k *killer) otherTime() (func() error, error) {
	path := filepath.Join(k.w.State, "pools", poolNames()[1])
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	set := func(t time.Time) error { return os.Chtimes(path, t, t) }
	return func() error { return set(fi.ModTime()) }, set(fi.ModTime().Add(-time.Hour))
}

// controlModes does so with what only the tours through modes look for.
func (k *killer) controlModes(ctx context.Context) error {
	first := k.w.Lanes[0]
	home := leg{modes: []state.Mode{state.ModeNormal}, users: "home"}
	memory := func(more string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.Replace(b, []byte(`"modes": {`), []byte(`"modes": {`+more), 1) }
	}
	list := []planted{
		{"neither mode", k.movedTo(ctx, first, plane.Direct)},
		{"is declared direct, and is on", k.rewrite("egress.json", memory(`"manual": {"`+first.Name+`": {"since": "2026-01-01T00:00:00Z", "reason": "x"}},`))},
		{"is open", k.rewrite("egress.json", memory(`"attempt": {"kind": "retry", "began": "2026-01-01T00:00:00Z"},`))},
		{"want one of", k.rewrite("state.kv", func(b []byte) []byte {
			return bytes.Replace(b, []byte("mode=normal"), []byte("mode=degraded_no_fresh_pool"), 1)
		})},
		{"of its flows are still where it was", k.leftFlow(first)},
	}
	found := 0
	for _, p := range list {
		undo, err := p.plant()
		if err != nil {
			return fmt.Errorf("planting %q: %w", p.what, err)
		}
		f := &findings{}
		k.checkInstant(f)
		k.checkModes(home, f)
		if err := undo(); err != nil {
			return fmt.Errorf("taking %q away: %w", p.what, err)
		}
		bad := strings.Join(f.list, "; ")
		if k.e.Want(strings.Contains(bad, p.what), "the checker of modes did not find %q: %q", p.what, bad) {
			found++
		}
	}
	k.e.Control("planted_found_in_modes", float64(found), found == len(list))
	f := &findings{}
	if k.checkModes(home, f); len(f.list) > 0 {
		return fmt.Errorf("after the control: %v", f.list)
	}
	base, err := k.w.Uplink() // whom the control sent direct was in clear
	k.base = base
	return err
}

// leftFlow makes an entry of conntrack as a flow has that went direct.
func (k *killer) leftFlow(l lab.Lane) func() (func() error, error) {
	c := egress.Config{Plane: config.Default().Egress.Plane, Lanes: []egress.Lane{{Name: l.Name}}}
	flow := conntrack.NewFlow(17, conntrack.StatusConfirmed, netip.MustParseAddr("10.20.0.250"), netip.MustParseAddr(lab.Service4a), 9, 9, 60, uint32(c.ClassMark(l.Name)))
	do := func(f func(*conntrack.Conn) error) error {
		return k.w.Router.Do(func() error {
			conn, err := conntrack.Dial(nil)
			if err != nil {
				return err
			}
			defer conn.Close()
			return f(conn)
		})
	}
	return func() (func() error, error) {
		return func() error { return do(func(c *conntrack.Conn) error { return c.Delete(flow) }) },
			do(func(c *conntrack.Conn) error { return c.Create(flow) })
	}
}
