// Package lab makes throw-away worlds in which the product's commands run on real kernel
// devices, real WireGuard servers and real traffic, and the scenarios that measure them.
//
//	lan ----- router ----- isp ----- provider
//	users     shunt        counts,   WireGuard endpoints, and
//	(Flow)    runs here    cuts      the services behind them
//
// Each is a network namespace inside a cage (see package cage): the host's own namespace is
// never touched, and nothing is left when the world ends, however it ends.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/wire"
	"github.com/shunt-net/shunt/internal/profile"
)

// WorldOptions shape a world. The zero value is five lanes, twelve live endpoints and no
// added round trip, without IPv6.
type WorldOptions struct {
	Lanes     int                       // 0 = 5; at most 20
	Endpoints int                       // 0 = 12
	Dead      int                       // of these, how many begin as silent; they are spread evenly
	RTT       time.Duration             // round trip added by endpoint 0 …
	RTTStep   time.Duration             // … and how much more by each next one
	RTTs      func(i int) time.Duration // instead of RTT and RTTStep
	Home      int                       // the last so many endpoints are in the home country
	Keys      int                       // client keys: endpoint i takes key i modulo Keys; 0 = 1
	IPv6      bool                      // addresses and routes for IPv6, where the kernel has it
	Seed      uint64                    // of keys and faults
	Dir       string                    // work folder, which exists; see Env.World
	Binary    string                    // the product; "" = /proc/self/exe
	BinaryArg []string                  // put before each command's arguments
	// LaneCommand is the argv (without the binary) that owns a lane's device in the
	// foreground; nil = `lane run NAME`.
	LaneCommand func(lane string) []string
	Driver      egress.Driver                  // of all lanes; "" = wireguard
	Speaks      func(i int) []profile.KeyValue // see server.Options
	Says        func(i int) []profile.KeyValue //
	// Settings differ from the world's usual configuration; see World.Configure.
	Settings Settings
}

// World is a world that is up. The machine in it is the router.
type World struct {
	Machine
	Dir     string // work folder
	Config  string // the router's shunt.yaml
	State   string // its state_dir
	Sources string // its folder of profiles
	// Strategies is its folder of strategies.
	Strategies string
	Logs       string // what background processes write
	CA         string // certificate (PEM) of the TLS services

	LAN, Router, ISP, Provider *cage.Namespace

	Far   *server.Provider
	Site  *server.List // the provider's web site
	Lanes []Lane

	Took time.Duration // to build

	o        WorldOptions
	settings Settings
	spaces   []*cage.Namespace
}

// Build makes a world. It works only in a cage, one world at a time.
func Build(ctx context.Context, o WorldOptions) (*World, error) {
	began := time.Now()
	o = o.full()
	if o.Dir == "" || o.Lanes > 20 || o.Dead > o.Endpoints {
		return nil, errors.New("lab: world: want a work folder, at most 20 lanes and no more dead endpoints than endpoints")
	}
	w := &World{
		Dir: o.Dir, Config: filepath.Join(o.Dir, "shunt.yaml"), State: filepath.Join(o.Dir, "state"),
		Sources: filepath.Join(o.Dir, "sources"), Logs: filepath.Join(o.Dir, "log"), CA: filepath.Join(o.Dir, "ca.pem"),
		Strategies: filepath.Join(o.Dir, "strategies.d"),
		Lanes:      lanes(o.Lanes), o: o,
	}
	if err := w.build(ctx); err != nil {
		return nil, fmt.Errorf("lab: world: %w", errors.Join(err, w.Close()))
	}
	w.Took = time.Since(began)
	return w, nil
}

func (o WorldOptions) full() WorldOptions {
	if o.Lanes == 0 {
		o.Lanes = 5
	}
	if o.Endpoints == 0 {
		o.Endpoints = 12
	}
	if o.Binary == "" {
		o.Binary = "/proc/self/exe"
	}
	if o.LaneCommand == nil {
		o.LaneCommand = func(lane string) []string { return []string{"lane", "run", lane} }
	}
	if o.Driver == egress.DriverUnknown {
		o.Driver = egress.DriverWireGuard
	}
	o.IPv6 = o.IPv6 && wire.HasIPv6()
	return o
}

func (w *World) build(ctx context.Context) error {
	spaces, err := cage.New("lan", "router", "isp", "provider")
	if err != nil {
		return err
	}
	w.spaces = spaces
	w.LAN, w.Router, w.ISP, w.Provider = spaces[0], spaces[1], spaces[2], spaces[3]
	w.Machine = Machine{NS: w.Router, Dir: w.Dir, Logs: w.Logs, Env: w.Environ(), Binary: w.o.Binary, BinaryArg: w.o.BinaryArg}
	if err := w.topology(); err != nil {
		return err
	}
	if err := w.installCounters(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	w.Far, err = server.Start(w.Provider, server.Options{
		Endpoints: w.o.Endpoints, Seed: w.o.Seed, Keys: w.o.Keys, RTT: w.rtt, Dead: w.dead, Speaks: w.o.Speaks, Says: w.o.Says,
		Home: func(i int) bool { return i >= w.o.Endpoints-w.o.Home },
	})
	if err != nil {
		return err
	}
	if err := w.exitLink(); err != nil {
		return err
	}
	addrs := []netip.Addr{netip.MustParseAddr(Service4a), netip.MustParseAddr(Service4b)}
	if w.o.IPv6 {
		addrs = append(addrs, netip.MustParseAddr(Service6a), netip.MustParseAddr(Service6b))
	}
	cert, err := w.Far.Serve(addrs, []string{ServerName, OtherServerName})
	if err != nil {
		return err
	}
	w.Site, err = w.Far.ServeList(netip.MustParseAddr(List4), netip.MustParseAddr(server.Inside4), ListName)
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.CA, cert, 0o644); err != nil { //nolint:gosec // public
		return err
	}
	return w.files()
}

// The names that the TLS services have certificates for.
const (
	ServerName      = "one.example.net"
	OtherServerName = "two.example.org"
)

func (w *World) rtt(i int) time.Duration {
	if w.o.RTTs != nil {
		return w.o.RTTs(i)
	}
	return w.o.RTT + time.Duration(i)*w.o.RTTStep
}

// dead spreads the dead endpoints evenly; the first one is alive where one is.
func (w *World) dead(i int) bool {
	return (i+1)*w.o.Dead/w.o.Endpoints != i*w.o.Dead/w.o.Endpoints
}

// Close takes the world down: processes, servers, namespaces. The files stay, for the work
// folder is the caller's.
func (w *World) Close() error {
	w.StopAll()
	if w.Far != nil {
		w.Far.Close()
	}
	var err error
	for _, n := range w.spaces {
		err = errors.Join(err, n.Close())
	}
	w.spaces = nil
	return err
}

// Endpoints are all endpoints, by index.
func (w *World) Endpoints() []*server.Endpoint { return w.Far.Endpoints() }

// Live are the endpoints without a fault now.
func (w *World) Live() []*server.Endpoint {
	var out []*server.Endpoint
	for _, e := range w.Endpoints() {
		if e.Alive() {
			out = append(out, e)
		}
	}
	return out
}
