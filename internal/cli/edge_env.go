package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
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
	flows     *flow.Flows
	temp      string          // state folder of a look on a machine that has none yet
	unwritten *unwrittenError // State is a stand-in, or its records; nil = it is the state folder
	own       *ownTable
}

// access is what a command wants of the state folder.
type access int

const (
	looks access = iota // it changes nothing
	acts                // it keeps what it does there, or does nothing
	moves               // it leads traffic away from what is dead, whatever the disk says
)

// openEdge wires everything that an edge pass needs. A run that changes nothing opens the
// state for reading only.
func (a *app) openEdge(ctx context.Context, c config.Config, command string, want access) (*edgeEnv, error) {
	e := &edgeEnv{flows: flow.New()}
	var err error
	if e.Node, err = nodeName(c.Edge); err != nil {
		return nil, err
	}
	if err := e.openState(ctx, c.StateDir, want); err != nil {
		return nil, err
	}
	prober := knock.New(a.Now)
	e.Config, e.Now = c.Edge, a.Now
	e.Replicas = replicas(c.Edge, e.Node, a.Now)
	e.own = &ownTable{Replicated: e.Replicas[e.Node]}
	e.Replicas[e.Node] = e.own
	e.Prober, e.Parity = prober, prober.Parity
	e.Flows, e.Sight = e.flows, host.New()
	e.Way = wayTo(c.Edge)
	e.Holder = "shunt " + command
	return e, nil
}

// openState opens what is to be worked on, or looked at.
func (e *edgeEnv) openState(ctx context.Context, path string, want access) (err error) {
	switch want {
	case moves:
		e.State, e.unwritten, err = openToMove(ctx, path)
		return err
	case looks:
		if d := aheadOf(path); d != nil {
			e.State, e.unwritten = d, &unwrittenError{Path: path, StandIn: d.Path(), Err: errGoneOn}
			return nil
		}
	case acts:
	}
	e.State, e.temp, err = openState(path, want == acts)
	return err
}

// ownTable is this machine's table. It notes that we may not see it.
type ownTable struct {
	edge.Replicated
	denied atomic.Pointer[error]
}

// Observe implements edge.Replicated.
func (t *ownTable) Observe(ctx context.Context) (edge.View, error) {
	v, err := t.Replicated.Observe(ctx)
	if errors.Is(err, fs.ErrPermission) {
		t.denied.Store(&err)
	}
	return v, err
}

// blind is an error where this machine's table could not be seen for want of rights.
func (e *edgeEnv) blind() error {
	err := e.own.denied.Load()
	if err == nil {
		return nil
	}
	return &exitError{
		Code: exitFailed, Err: fmt.Errorf("this machine's tables were not seen, nor where they lead: %w", syscall.EPERM),
		Hint: "run it as root",
	}
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

// edgeWay connects as a client would. Servers that want a PROXY header get one.
type edgeWay struct {
	greetings map[netip.AddrPort]string
}

func wayTo(c edge.Config) edgeWay {
	w := edgeWay{greetings: map[netip.AddrPort]string{}}
	for _, s := range c.Services {
		for _, vip := range s.VIP {
			w.greetings[netip.AddrPortFrom(vip, uint16(s.Port))] = s.Probe.Greeting() //nolint:gosec // a port, as the configuration was checked
		}
	}
	return w
}

const (
	wayTry   = 200 * time.Millisecond
	wayPause = 2 * time.Millisecond
)

// Reach connects to a virtual address, again and again, until one connection comes about.
// Of UDP nothing can be known without its users' protocol, so that is an error at once.
func (w edgeWay) Reach(ctx context.Context, to edge.Endpoint) error {
	if to.Protocol != edge.TCP {
		return fmt.Errorf("%s: only a TCP connection shows that it is answered", to.Addr)
	}
	var last error
	for {
		if last = reachOnce(ctx, to.Addr, w.greetings[to.Addr]); last == nil {
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

func reachOnce(ctx context.Context, to netip.AddrPort, greeting string) error {
	d := net.Dialer{Timeout: wayTry}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	if greeting != "" {
		_, _ = conn.Write([]byte(greeting)) // it has answered already
	}
	return conn.Close()
}
