package story

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/state"
)

// poolNames are the three pools by their usual names, the preferred one first.
func poolNames() []string {
	return []string{"ok-awg1-strict-foreign-latest.tsv", "ok-awg1-strict-all-latest.tsv", "working-awg1-latest.tsv"}
}

// records are the contract files as they are read by other programs.
type records struct {
	quarantine []state.Quarantined
	rows       map[string]bool // endpoints of the strict pool
	began      time.Time       // the pools' tests
	kv         state.KV
	counted    int // over all days
	days       int
}

// readPools reads pools and quarantine; all three pools must be of one generation.
func (k *killer) readPools() (records, error) {
	r := records{rows: map[string]bool{}}
	d, err := state.OpenRead(k.w.State)
	if err != nil {
		return r, err
	}
	if r.quarantine, err = d.Quarantine(); err != nil {
		return r, err
	}
	folder := ""
	for _, name := range poolNames() {
		rows, mtime, err := state.ReadPool(filepath.Join(k.w.State, "pools", name))
		if err != nil {
			return r, err
		}
		if len(rows) == 0 {
			return r, fmt.Errorf("pool %s is empty", name)
		}
		for _, row := range rows {
			x := k.w.Far.Find(row.Endpoint)
			b, err := os.ReadFile(row.ConfigPath)
			if err != nil {
				return r, fmt.Errorf("pool %s: %w", name, err)
			}
			if x == nil || !bytes.Equal(b, x.Profile()) {
				return r, fmt.Errorf("pool %s: the profile of %s is not its own", name, row.Endpoint)
			}
			dir := filepath.Dir(row.ConfigPath)
			if folder != "" && dir != folder || !r.began.IsZero() && !mtime.Equal(r.began) {
				return r, fmt.Errorf("pool %s is of another generation than %s: %s %s", name, poolNames()[0], dir, mtime)
			}
			folder, r.began = dir, mtime
			r.rows[row.Endpoint] = r.rows[row.Endpoint] || name != poolNames()[2]
		}
	}
	return r, nil
}

func (k *killer) readRecords() (records, error) {
	r, err := k.readPools()
	if err != nil {
		return r, err
	}
	d, err := state.OpenRead(k.w.State)
	if err != nil {
		return r, err
	}
	if r.kv, err = d.KV(); err != nil {
		return r, err
	}
	files, err := filepath.Glob(filepath.Join(k.w.State, "fail-counter", "*.count"))
	if err != nil {
		return r, err
	}
	for _, f := range files {
		n, err := d.Count(strings.TrimSuffix(filepath.Base(f), ".count"))
		if err != nil {
			return r, err
		}
		r.counted += n
		r.days++
	}
	return r, nil
}

// checkRecords holds the contract files against what the scenario itself did.
func (k *killer) checkRecords(f *findings) {
	r, err := k.readRecords()
	if err != nil {
		f.add("%v", err)
		return
	}
	rows, want := map[string]int{}, 0
	for _, q := range r.quarantine {
		rows[q.Endpoint]++
		if q.Replacement == "" {
			f.add("quarantine: %s of %s has no replacement", q.Endpoint, q.Slot)
		}
	}
	for endpoint, n := range k.failures {
		want += n
		if rows[endpoint] != n {
			f.add("quarantine: %s failed %d times and is recorded %d times", endpoint, n, rows[endpoint])
		}
	}
	if len(r.quarantine) != want {
		f.add("quarantine: %d records of %d failures", len(r.quarantine), want)
	}
	if r.counted != want {
		f.add("fail counter: %d of %d failures", r.counted, want)
	}
	if v, _ := r.kv.Int(state.KeyDailyFailureCount); r.days == 1 && v != want {
		f.add("state.kv: %s is %d, want %d", state.KeyDailyFailureCount, v, want)
	}
	if r.kv.Mode() != state.ModeNormal {
		f.add("state.kv: mode %q", r.kv.Mode())
	}
	for _, l := range k.w.Lanes {
		x, err := k.installedEndpoint(l)
		if err != nil {
			continue // told already
		}
		for _, q := range r.quarantine {
			// The record has whole seconds: tests that began in the same one are given the benefit.
			if q.Endpoint == x.HostPort() && (!r.rows[q.Endpoint] || r.began.Before(q.FailedAt)) {
				f.add("%s carries %s, which failed at %s; the pool's tests began at %s", l.Name, q.Endpoint, q.FailedAt, r.began)
			}
		}
	}
}

// checkClasses looks for each class of users in the sets by which packets are steered: in
// exactly one of them, that of its own lane.
func (k *killer) checkClasses(f *findings) {
	at, err := k.steering()
	if err != nil {
		f.add("user plane: %v", err)
		return
	}
	for _, l := range k.w.Lanes {
		for _, c := range []struct {
			key  uint32
			name string
		}{{uint32(l.DSCP), fmt.Sprintf("to_%d", l.Table)}, {uint32(l.Mark), fmt.Sprintf("to6_%d", l.Table)}} {
			var in []string
			for set, keys := range at {
				if strings.HasPrefix(set, c.name[:strings.Index(c.name, "_")+1]) && slices.Contains(keys, c.key) {
					in = append(in, set)
				}
			}
			if len(in) != 1 || in[0] != c.name {
				slices.Sort(in)
				f.add("the class of %s is in %v, want %s", l.Name, in, c.name)
			}
		}
	}
}

// steering reads the sets that say where classes travel; none = there is no table.
func (k *killer) steering() (map[string][]uint32, error) {
	c, err := nftables.New(nftables.WithNetNSFd(k.w.Router.FD()), nftables.AsLasting())
	if err != nil {
		return nil, err
	}
	defer c.CloseLasting() //nolint:errcheck // nothing was written
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil || !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == "shunt_egress" }) {
		return nil, err
	}
	sets, err := c.GetSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: "shunt_egress"})
	if err != nil {
		return nil, err
	}
	out := map[string][]uint32{}
	for _, s := range sets {
		if !strings.HasPrefix(s.Name, "to_") && !strings.HasPrefix(s.Name, "to6_") {
			continue
		}
		list, err := c.GetSetElements(s)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", s.Name, err)
		}
		for _, e := range list {
			key := uint32(e.Key[0])
			if len(e.Key) == 4 && strings.HasPrefix(s.Name, "to6_") {
				key = binary.NativeEndian.Uint32(e.Key)
			}
			out[s.Name] = append(out[s.Name], key)
		}
	}
	return out, nil
}

// linkOf reads an interface of the router: its addresses but for link-local ones, and its MTU.
func (k *killer) linkOf(name string) ([]netip.Addr, int, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(k.w.Router.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, 0, err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return nil, 0, err
	}
	list, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, 0, err
	}
	var out []netip.Addr
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLinkLocalUnicast() {
			out = append(out, ip.Unmap())
		}
	}
	return out, l.Attrs().MTU, nil
}
