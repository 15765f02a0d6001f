package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab/server"
)

// Lane is one lane of the router, as its configuration has it.
type Lane struct {
	Name      string         // egress1
	Interface string         // vpn1
	Table     int            // 201
	Mark      egress.Mark    // 0x201
	DSCP      egress.DSCP    // its class of users
	NAT       egress.NATMode // masquerade
	Pin       string         // endpoint; "" = none
}

// lanes are the world's lanes: classes that have names first.
func lanes(n int) []Lane {
	classes := [...]egress.DSCP{32, 40, 34, 26, 18, 10, 12, 14, 20, 22, 28, 30, 36, 38, 46, 8, 16, 24, 48, 56}
	var out []Lane
	for i := range n {
		k := i + 1
		out = append(out, Lane{
			Name: fmt.Sprintf("egress%d", k), Interface: fmt.Sprintf("vpn%d", k), Table: 200 + k,
			Mark: egress.Mark(0x200 + k), DSCP: classes[i], NAT: egress.NATMasquerade, //nolint:gosec // small
		})
	}
	return out
}

// Lane returns the lane of that name; it panics where there is none.
func (w *World) Lane(name string) Lane {
	for _, l := range w.Lanes {
		if l.Name == name {
			return l
		}
	}
	panic("lab: no lane " + name)
}

// Settings are values of the configuration by their key, for example
// {"egress.repair.threshold": 3}. A nil value takes the key out.
type Settings map[string]any

// Configure writes the router's shunt.yaml anew: the world's own settings, those of
// WorldOptions, those of earlier calls, then these.
func (w *World) Configure(s Settings) error {
	if w.settings == nil {
		w.settings = Settings{}
	}
	for k, v := range s {
		w.settings[k] = v
	}
	tree := map[string]any{}
	for _, set := range []Settings{w.base(), w.o.Settings, w.settings} {
		for k, v := range set {
			put(tree, strings.Split(k, "."), v)
		}
	}
	b, err := yaml.Marshal(tree)
	if err != nil {
		return fmt.Errorf("lab: configuration: %w", err)
	}
	return replace(w.Config, b, 0o644)
}

// put sets a value in a tree of maps.
func put(tree map[string]any, path []string, v any) {
	if len(path) == 1 {
		if v == nil {
			delete(tree, path[0])
		} else {
			tree[path[0]] = v
		}
		return
	}
	sub, ok := tree[path[0]].(map[string]any)
	if !ok {
		sub = map[string]any{}
		tree[path[0]] = sub
	}
	put(sub, path[1:], v)
}

// base is the configuration that makes the product work in this world.
func (w *World) base() Settings {
	var ls []map[string]any
	for _, l := range w.Lanes {
		m := map[string]any{
			"name": l.Name, "interface": l.Interface, "table": l.Table, "mark": l.Mark.String(),
			"dscp": []string{l.DSCP.String()}, "driver": string(w.o.Driver), "nat": string(l.NAT),
		}
		if l.Pin != "" {
			m["pin"] = l.Pin
		}
		ls = append(ls, m)
	}
	tls := []map[string]any{
		{"address": Service4a + ":443", "server_name": ServerName},
		{"address": Service4b + ":443", "server_name": OtherServerName},
	}
	s := Settings{
		"state_dir":               w.State,
		"egress.sources":          []map[string]any{{"name": "world", "type": "dir", "path": w.Sources}},
		"egress.lanes":            ls,
		"egress.test.targets":     []string{Service4a, Service4b},
		"egress.test.tls":         tls,
		"egress.check.targets":    []string{Service4a, Service4b},
		"egress.check.tls":        tls,
		"egress.uplink.interface": WANInterface,
		"egress.uplink.targets":   []string{Uplink4a, Uplink4b},
		"egress.plane.inputs":     []string{LANInterface},
		"egress.recovery.dir":     w.Strategies,
	}
	if w.o.Home > 0 {
		s["egress.pool.home"] = []string{server.HomeCountry + "*"}
	}
	return s
}

// files makes the folders, the profiles and the configuration.
func (w *World) files() error {
	for _, d := range []string{w.State, w.Sources, w.Strategies, w.Logs, filepath.Join(w.Dir, "bin"), filepath.Join(w.Dir, "tmp")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return err
		}
	}
	if err := w.Offer(w.Endpoints()); err != nil {
		return err
	}
	return w.Configure(nil)
}

// Offer makes the source hold the profiles of exactly these endpoints.
func (w *World) Offer(es []*server.Endpoint) error {
	old, err := os.ReadDir(w.Sources)
	if err != nil {
		return err
	}
	for _, f := range old {
		if !slices.ContainsFunc(es, func(e *server.Endpoint) bool { return e.File() == f.Name() }) {
			if err := os.Remove(filepath.Join(w.Sources, f.Name())); err != nil {
				return err
			}
		}
	}
	for _, e := range es {
		if err := replace(w.Profile(e), e.Profile(), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Profile is the path of an endpoint's profile in the source.
func (w *World) Profile(e *server.Endpoint) string { return filepath.Join(w.Sources, e.File()) }

// replace writes a file so that nobody reads half of it.
func replace(path string, b []byte, perm os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, perm); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
