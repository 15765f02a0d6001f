package edgeworld

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/wire"
)

// Replica is a machine that has the edge's table. The product runs on it with a
// configuration and a state folder of its own.
type Replica struct {
	lab.Machine
	Name           string // r1
	Config         string // its shunt.yaml
	State          string // its state_dir
	Front4, Front6 netip.Addr
	Back4, Back6   netip.Addr

	w *World
}

func (w *World) replica(i int, ns *cage.Namespace) *Replica {
	r := &Replica{
		Name: ns.Name, w: w, Config: filepath.Join(w.Dir, ns.Name+".yaml"), State: filepath.Join(w.Dir, "state-"+ns.Name),
		Front4: netip.AddrFrom4([4]byte{10, 10, 0, byte(11 + i)}), Front6: netip.MustParseAddr(fmt.Sprintf("fd10::%x", 0x11+i)),
		Back4: netip.AddrFrom4([4]byte{10, 20, 0, byte(101 + i)}), Back6: netip.MustParseAddr(fmt.Sprintf("fd20::%x", 0x101+i)),
	}
	r.Machine = w.machine(ns, "SHUNT_CONFIG="+r.Config)
	return r
}

// Claim gives the replica the virtual addresses and the gateway's, or takes them away;
// that it is so already is no error.
func (r *Replica) Claim(on bool) error {
	h, err := wire.Handle(r.NS)
	if err != nil {
		return err
	}
	defer h.Close()
	for _, x := range []struct{ dev, addr string }{
		{FrontInterface, VIP4 + "/32"},
		{FrontInterface, VIP6 + "/128"},
		{BackInterface, gateway4 + "/24"},
		{BackInterface, gateway6 + "/64"},
	} {
		p := netip.MustParsePrefix(x.addr)
		if p.Addr().Is6() && !r.w.IPv6 {
			continue
		}
		l, err := h.LinkByName(x.dev)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", r.Name, x.dev, err)
		}
		a := &netlink.Addr{IPNet: wire.IPNet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if on {
			err = h.AddrAdd(l, a)
		} else {
			err = h.AddrDel(l, a)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("%s: %s: %w", r.Name, x.addr, err)
		}
	}
	return nil
}

// Settings are values of a part of the configuration by their key.
type Settings map[string]any

// Config is what the scenario wants of the replicas' configurations, over what makes the
// product work in this world: one service, front, at the virtual addresses, with every
// backend as a candidate in their order. A backend belongs to the replica of its number.
type Config struct {
	Top      Settings   // keys beside edge:, for example watchdog
	Edge     Settings   // keys of edge:
	Service  Settings   // keys of the service
	Probe    Settings   // keys of its probe
	Services []Settings // instead of the service; it gets nothing by itself
}

// Configure writes the configuration of every replica anew.
func (w *World) Configure(c Config) error {
	for _, r := range w.Replicas {
		if err := r.Configure(c); err != nil {
			return err
		}
	}
	return nil
}

// Configure writes the configuration of this replica alone.
func (r *Replica) Configure(c Config) error {
	services := c.Services
	if services == nil {
		services = []Settings{r.w.service(c)}
	}
	e := Settings{"node": r.Name, "services": services}
	if len(r.w.Replicas) > 1 {
		e["replicas"] = r.replicas()
	}
	b, err := yaml.Marshal(over(Settings{"state_dir": r.State, "edge": over(e, c.Edge)}, c.Top))
	if err != nil {
		return fmt.Errorf("%s: configuration: %w", r.Name, err)
	}
	tmp := r.Config + ".new"
	if err := os.WriteFile(tmp, b, 0o644); err != nil { //nolint:gosec // holds no secret
		return err
	}
	return os.Rename(tmp, r.Config)
}

// over puts settings into others.
func over(base, more Settings) Settings {
	for k, v := range more {
		base[k] = v
	}
	return base
}

// service is the usual service.
func (w *World) service(c Config) Settings {
	vip := []string{VIP4}
	if w.IPv6 {
		vip = append(vip, VIP6)
	}
	return over(Settings{
		"name": "front", "vip": vip, "port": Port, "candidates": w.Candidates(), "probe": over(Settings{"type": "tcp"}, c.Probe),
	}, c.Service)
}

// Candidates are the backends as candidates of a service.
func (w *World) Candidates() []Settings {
	var out []Settings
	for i, b := range w.Backends {
		s := Settings{"name": b.Name, "addresses": []string{b.Addr4.String()}}
		if w.IPv6 {
			s["addresses"] = []string{b.Addr4.String(), b.Addr6.String()}
		}
		if i < len(w.Replicas) && len(w.Replicas) > 1 {
			s["node"] = w.Replicas[i].Name
		}
		out = append(out, s)
	}
	return out
}

// replicas are all replicas as this one reaches them.
func (r *Replica) replicas() []Settings {
	var out []Settings
	for _, x := range r.w.Replicas {
		s := Settings{"name": x.Name, "addresses": []string{x.Front4.String()}}
		if r.w.IPv6 {
			s["addresses"] = []string{x.Front4.String(), x.Front6.String()}
		}
		if x != r {
			s["transport"] = []string{r.transport(x)}
		}
		out = append(out, s)
	}
	return out
}

// transport is the executable by which this replica reaches another's nft.
func (r *Replica) transport(to *Replica) string {
	return filepath.Join(r.w.Dir, "bin", "nft-"+r.Name+"-"+to.Name)
}

// down is the file that makes transports to this replica hang.
func (r *Replica) down() string { return filepath.Join(r.w.Dir, "down-"+r.Name) }

// files makes the state folder and the transports.
func (r *Replica) files() error {
	if err := os.MkdirAll(r.State, 0o750); err != nil {
		return err
	}
	for _, x := range r.w.Replicas {
		if x == r {
			continue
		}
		script := fmt.Sprintf(`#!/bin/sh
[ -e %s ] && exec sleep 1000
%s
exec ip netns exec %s nft -i
`, x.down(), r.w.sleep(), x.Name)
		if err := os.WriteFile(r.transport(x), []byte(script), 0o755); err != nil { //nolint:gosec // an executable
			return err
		}
	}
	return nil
}

func (w *World) sleep() string {
	if w.o.Delay == 0 {
		return ""
	}
	return fmt.Sprintf("sleep %.3f", w.o.Delay.Seconds())
}

// Isolate makes every transport to this replica hang, those that are open already too, or
// lets them go on.
func (r *Replica) Isolate(on bool) error {
	sig := unix.SIGCONT
	if on {
		sig = unix.SIGSTOP
		if err := os.WriteFile(r.down(), nil, 0o600); err != nil {
			return err
		}
	} else if err := os.Remove(r.down()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	pids, err := r.transports()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("%s: transport %d: %w", r.Name, pid, err)
		}
	}
	return nil
}

// transports are the nft processes that others have open in this replica's namespace.
func (r *Replica) transports() ([]int, error) {
	var own unix.Stat_t
	if err := unix.Fstat(r.NS.FD(), &own); err != nil {
		return nil, err
	}
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, d := range dirs {
		pid := 0
		if _, err := fmt.Sscan(d.Name(), &pid); err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join("/proc", d.Name(), "comm"))
		if err != nil || strings.TrimSpace(string(comm)) != "nft" {
			continue
		}
		var ns unix.Stat_t
		if unix.Stat(filepath.Join("/proc", d.Name(), "ns/net"), &ns) == nil && ns.Ino == own.Ino {
			out = append(out, pid)
		}
	}
	return out, nil
}
