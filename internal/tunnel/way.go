package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/tunnel/tcp"
)

const (
	// partWait is how long a way waits for the answer to its last ping, partTries times.
	partWait  = 300 * time.Millisecond
	partTries = 2
	// partFlush is the time for a keepalive to leave the device.
	partFlush = 20 * time.Millisecond
	// lateFor is how long the socket stays open after the way was closed. A server that
	// heard something it did not answer says so after 10 s.
	lateFor = 11 * time.Second
	// dialWait bounds the connection to one of several addresses of a name.
	dialWait = 5 * time.Second
)

// WayOptions shape a Way.
type WayOptions struct {
	Control   Control             // applied to the underlay's UDP socket: it must keep it on the uplink; nil = none
	Handshake time.Duration       // bound; 0 = DefaultHandshakeTimeout
	Targets   []netip.Addr        // pinged inside the tunnel when it is closed
	Resolvers []netip.Addr        // asked through the tunnel when the profile names none
	Busy      func(p string) bool // whether a lane has that pair now, as for Tester.Test; nil = nobody does
}

// Way is a tunnel in process that connections are made through. No interface, route or
// rule exists for it, and names are asked for inside it: all that leaves the machine is
// its own UDP.
type Way struct {
	o         WayOptions
	round     *round
	session   *session
	stack     *tcp.Stack
	unstack   func()
	resolver  *net.Resolver
	addresses []netip.Addr // the client's, inside
	took      time.Duration

	ctx    context.Context //nolint:containedctx // the way's own life: ends with Close, or when a lane takes its pair
	cancel context.CancelCauseFunc
	gone   chan struct{} // closed when nothing more is sent
	close  func() error
}

// ErrBusy says that a lane uses a pair of keys.
var ErrBusy = errBusy

// Open makes the tunnel of a target's profile and waits for its handshake; ctx bounds only
// that. ErrBusy in the error says that a lane has the pair. That is so later on, too: the
// way is cut off within 20 ms of a lane's taking it.
func Open(ctx context.Context, o WayOptions, target egress.TestTarget) (*Way, error) {
	c := withDefaults(egress.TestConfig{HandshakeTimeout: o.Handshake})
	s := &subject{target: target, pair: target.Pair}
	if err := s.read(c); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", target.Endpoint, ReasonUnsupported, err)
	}
	p, err := profile.ParseFile(target.Path)
	if err != nil {
		return nil, err
	}
	w := &Way{o: o, addresses: inside(p, s.mtu), gone: make(chan struct{})}
	if w.round, err = openRound(ctx, c, o, s); err != nil {
		return nil, fmt.Errorf("%s: %w", target.Endpoint, err)
	}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	w.close = sync.OnceValue(w.end)
	unwatch := w.round.watch.add(s.pair, w.cancel)
	err = w.open(ctx, s)
	context.AfterFunc(w.ctx, func() {
		unwatch()
		w.cut()
	})
	if err != nil {
		w.cancel(err)
		<-w.gone
		return nil, fmt.Errorf("%s: %w", target.Endpoint, err)
	}
	w.resolver = w.resolve(p.DNS)
	return w, nil
}

// inside are the addresses that the stack can have.
func inside(p profile.Profile, mtu int) []netip.Addr {
	var out []netip.Addr
	for _, a := range p.Addresses {
		a := a.Addr().Unmap()
		if (a.Is4() || mtu >= tcp.MinMTU6) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

func openRound(ctx context.Context, c egress.TestConfig, o WayOptions, s *subject) (*round, error) {
	family := "udp6"
	if s.endpoint.Addr().Is4() {
		family = "udp4"
	}
	sock, err := openSocket(ctx, o.Control, map[string]bool{family: true})
	if err != nil {
		return nil, err
	}
	return &round{
		c: c, ctx: ctx, sock: sock, shelf: newShelf(sock), watch: newWatch(o.Busy),
		pace: rate.NewLimiter(rate.Inf, 1), again: rate.NewLimiter(rate.Inf, 1),
	}, nil
}

// open does all that may fail; what it made is taken down by cut.
func (w *Way) open(ctx context.Context, s *subject) error {
	if w.round.watch.ask(s.pair) {
		return errBusy
	}
	t, err := w.round.openAs(kind{mtu: s.mtu, long: true}, s)
	if err != nil {
		return err
	}
	w.session = t
	if w.stack, err = tcp.New(s.mtu, w.addresses, t.send); err != nil {
		return err
	}
	w.unstack = sync.OnceFunc(func() {
		t.stack.Store(nil)
		w.stack.Close()
	})
	t.stack.Store(w.stack)
	both, stop := w.bound(ctx)
	defer stop()
	if w.took = w.round.handshake(both, t.peer, t.route, w.round.c.HandshakeTimeout); w.took > 0 {
		return nil
	}
	if both.Err() != nil {
		return context.Cause(both)
	}
	return errors.New(ReasonNoHandshake)
}

// bound is ctx, but for no longer than the way lives.
func (w *Way) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(w.ctx, func() { cancel(context.Cause(w.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// has says whether the tunnel has an address of that one's family.
func (w *Way) has(a netip.Addr) (netip.Addr, bool) {
	for _, mine := range w.addresses {
		if mine.Is4() == a.Is4() {
			return mine, true
		}
	}
	return netip.Addr{}, false
}

// Handshake is the round trip of the handshake.
func (w *Way) Handshake() time.Duration { return w.took }

// Endpoint is the server's host:port.
func (w *Way) Endpoint() string { return w.session.subj.target.Endpoint }

// resolve asks the profile's resolvers, or those of the options, in turn.
func (w *Way) resolve(dns []string) *net.Resolver {
	var named, mine []netip.Addr
	for _, text := range dns {
		if a, err := netip.ParseAddr(text); err == nil { // else it is a search domain
			named = append(named, a)
		}
	}
	for _, a := range slices.Concat(named, w.o.Resolvers) {
		if len(mine) > 0 && !slices.Contains(named, a) {
			break // the options' are for want of better ones
		}
		if _, ok := w.has(a.Unmap()); ok {
			mine = append(mine, a.Unmap())
		}
	}
	var mu sync.Mutex
	next := 0
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		if len(mine) == 0 {
			return nil, errors.New("the profile names no resolver, and none is configured")
		}
		mu.Lock()
		to := netip.AddrPortFrom(mine[next%len(mine)], 53)
		next++
		mu.Unlock()
		if strings.HasPrefix(network, "udp") {
			return w.stack.DialUDP(to)
		}
		return w.stack.Dial(ctx, to)
	}}
}

// DialContext connects through the tunnel, for net/http and the like: TCP only, and names
// are resolved inside the tunnel.
func (w *Way) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil, fmt.Errorf("%s through a tunnel: only tcp", network)
	}
	ctx, stop := w.bound(ctx)
	defer stop()
	list, err := w.lookup(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("through %s: %w", w.Endpoint(), err)
	}
	var errs []error
	for i, a := range list {
		c, err := w.dial(ctx, a, len(list)-i > 1)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (w *Way) dial(ctx context.Context, to netip.AddrPort, more bool) (net.Conn, error) {
	if more {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialWait)
		defer cancel()
	}
	return w.stack.Dial(ctx, to)
}

// lookup resolves host:port to what the tunnel has an address for.
func (w *Way) lookup(ctx context.Context, network, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: want a numeric port", address)
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		ips = []netip.Addr{ip}
	} else {
		// The final dot keeps the search list of this machine out of it.
		if ips, err = w.resolver.LookupNetIP(ctx, "ip", strings.TrimSuffix(host, ".")+"."); err != nil {
			return nil, err
		}
	}
	var out []netip.AddrPort
	for _, ip := range ips {
		ip = ip.Unmap()
		if _, ok := w.has(ip); ok && (network == "tcp" || ip.Is4() == (network == "tcp4")) {
			out = append(out, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no address that the tunnel has a family for", host)
	}
	return out, nil
}

// Close resets what is open and parts from the server so that it stays silent: a datagram
// that came after the socket is gone would be answered by the kernel with an ICMP error,
// by whatever the default route is. The socket stays open for 11 s more, as long as the
// process lives. A second call does nothing.
func (w *Way) Close() error { return w.close() }

func (w *Way) end() error {
	if w.ctx.Err() == nil {
		w.unstack()
		w.part()
	}
	w.cancel(net.ErrClosed)
	<-w.gone
	return nil
}

// part ends the conversation with a ping that the server answers and a keepalive for that
// answer: then neither side owes the other anything, and no timer of the server's runs.
func (w *Way) part() {
	t := w.session
	for try := range partTries {
		for _, to := range w.o.Targets {
			from, ok := w.has(to.Unmap())
			if !ok {
				continue
			}
			e := echo{id: t.id, seq: uint16(try), cookie: t.cookie, size: smallEcho} //nolint:gosec // a handful
			t.send(e.request(from, to.Unmap()))
			late := time.NewTimer(partWait)
			select {
			case <-t.got:
				late.Stop()
				t.peer.SendKeepalive()
				_ = run.Pause(w.ctx, partFlush)
				return
			case <-late.C:
			case <-w.ctx.Done():
				late.Stop()
				return
			}
		}
	}
}

// cut ends the tunnel at once: it was closed, it never came up, or a lane has taken its
// pair, which comes first of all.
func (w *Way) cut() {
	if w.session != nil {
		w.session.box.remove(w.session.subj, serverName)
	}
	if w.unstack != nil {
		w.unstack()
	}
	if w.session != nil {
		w.session.box.device.Close()
	}
	w.round.watch.close()
	close(w.gone)
	time.AfterFunc(lateFor, w.round.sock.close)
}
