package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/flow"
	"github.com/shunt-net/shunt/internal/host"
	"github.com/shunt-net/shunt/internal/knock"
	"github.com/shunt-net/shunt/internal/nft"
)

// edgeEnv joins the domain to the real world. The caller closes it.
type edgeEnv struct {
	edge.Env
	flows *flow.Flows
	temp  string // state folder of a look on a machine that has none yet
}

// openEdge wires everything that an edge pass needs. A run that changes nothing opens the
// state for reading only.
func (a *app) openEdge(c config.Config, command string, write bool) (*edgeEnv, error) {
	e := &edgeEnv{flows: flow.New()}
	var err error
	if e.State, e.temp, err = openState(c.StateDir, write); err != nil {
		return nil, err
	}
	if e.Node, err = nodeName(c.Edge); err != nil {
		return nil, err
	}
	prober := knock.New(a.Now)
	e.Config, e.Now = c.Edge, a.Now
	e.Replicas = replicas(c.Edge, e.Node, a.Now)
	e.Prober, e.Parity = prober, prober.Parity
	e.Flows, e.Sight = e.flows, host.New()
	e.Way = edgeWay{}
	e.Holder = "shunt " + command
	return e, nil
}

// nodeName is this machine's name among the replicas.
func nodeName(c edge.Config) (string, error) {
	name := c.Node
	if name == "" {
		full, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("this machine's name: %w", err)
		}
		name = full
		for _, r := range c.Replicas {
			if short, _, _ := strings.Cut(full, "."); r.Name == short {
				name = short
			}
		}
	}
	if len(c.Replicas) == 0 {
		return name, nil
	}
	for _, r := range c.Replicas {
		if r.Name == name {
			return name, nil
		}
	}
	return "", &exitError{
		Code: exitConfig, Err: fmt.Errorf("edge.node: this machine is %q, and no replica has that name", name),
		Hint: "set edge.node to one of edge.replicas",
	}
}

// replicas are the tables of this machine and of all others.
func replicas(c edge.Config, node string, now func() time.Time) map[string]edge.Replicated {
	out := map[string]edge.Replicated{}
	for _, r := range c.Replicas {
		if len(r.Transport) > 0 && r.Name != node {
			out[r.Name] = nft.Remote(r.Name, r.Transport, nft.Options{Name: r.Name, Now: now})
		}
	}
	out[node] = nft.Local(nft.Options{Name: node, Now: now})
	return out
}

func (e *edgeEnv) Close() error {
	var errs []error
	for _, r := range e.Replicas {
		errs = append(errs, r.Close())
	}
	if e.temp != "" {
		errs = append(errs, os.RemoveAll(e.temp))
	}
	return errors.Join(errs...)
}

// edgeWay connects as a client would.
type edgeWay struct{}

const (
	wayTry   = 200 * time.Millisecond
	wayPause = 2 * time.Millisecond
)

// Reach connects to a virtual address, again and again, until one connection comes about.
// Of UDP nothing can be known without its users' protocol, so that is an error at once.
func (edgeWay) Reach(ctx context.Context, to edge.Endpoint) error {
	if to.Protocol != edge.TCP {
		return fmt.Errorf("%s: only a TCP connection shows that it is answered", to.Addr)
	}
	var last error
	for {
		if last = reachOnce(ctx, to.Addr); last == nil {
			return nil
		}
		t := time.NewTimer(wayPause)
		select {
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%s: %w: %w", to.Addr, ctx.Err(), last)
		case <-t.C:
		}
	}
}

func reachOnce(ctx context.Context, to netip.AddrPort) error {
	d := net.Dialer{Timeout: wayTry}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	return conn.Close()
}
