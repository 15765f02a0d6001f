// Package tunnel proves endpoints in process: upstream WireGuard devices over a tiny
// in-memory TUN that knows only ICMP echo, without kernel interface, route or rule. What
// answers is asked for a TLS handshake, over a TCP stack that exists only meanwhile.
//
// A large set is sieved first: one device holds many servers as peers and does nothing
// but handshakes, so that a silent server costs two goroutines and no descriptor. Each
// server that answers then gets a device of its own for the pings. A small set goes
// straight to devices of its own, which saves one round trip per proof.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
)

// Reasons in a TestResult. An unsupported profile has ReasonUnsupported, a colon and what is wrong.
const (
	ReasonNoHandshake = "no handshake"
	ReasonNoAnswer    = "no answer through the tunnel"
	ReasonLoss        = egress.ReasonLoss
	ReasonMTU         = "mtu"      // small packets pass, full-size ones never did
	ReasonChoked      = "choked"   // full-size packets stopped passing after a few KiB
	ReasonNoData      = "no data"  // pings of every size pass, TCP does not
	ReasonBusy        = "busy"     // a lane uses the pair
	ReasonUntested    = "untested" // the tests ended before its own did
	ReasonUnsupported = "unsupported profile"
	ReasonPlain       = "plain WireGuard peer: the profile is for AmneziaWG" // it answers, but not in AmneziaWG
)

// Values for settings of a TestConfig that are zero.
const (
	DefaultParallel         = 64
	DefaultRate             = 200 // per second
	DefaultHandshakeTimeout = 3 * time.Second
	DefaultPingTimeout      = time.Second
	DefaultTLSTimeout       = 2 * time.Second
	DefaultMTU              = 1420 // bytes
)

const (
	// directMax is the largest set that is tested without a sieve.
	directMax = 32
	// waitersPerTunnel is how many servers may be waited for in the sieve for each
	// tunnel that may be open: a peer costs a tenth of a device.
	waitersPerTunnel = 4
	// loneDevice is what a sieve device with one peer weighs, in peers.
	loneDevice = 2
	// busyEvery is how often each pair under test is asked for.
	busyEvery = 20 * time.Millisecond
)

// Options of a Tester.
type Options struct {
	Control Control          // applied to the underlay's UDP socket; nil = none
	Now     func() time.Time // wall clock, for TestedAt; must be set
}

// Tester implements egress.Tester.
type Tester struct{ opts Options }

var _ egress.Tester = (*Tester)(nil)

// New returns a Tester. It holds nothing open between tests.
func New(o Options) *Tester { return &Tester{opts: o} }

// Test tests every target and calls done once for each, never two at a time; the
// tunnel is closed before done is called for its target. Parallel bounds the tunnels open at
// once, Rate the handshakes begun per second, and apart from them the repeated tries (the
// handshake of a tunnel after the sieve is not counted: the sieve has spread them already). Without Pings, FullSize and TLS nothing but
// handshakes is done, which leaves a session that somebody else has with the same pair alone.
// TLS comes last, for those that passed all else, at most 16 at once; it counts as one
// more handshake of Rate.
//
// busy, nil or quick and safe to call from another goroutine, is asked right before a
// target's first packet and every 20 ms while it is under test; calls never overlap.
// Targets of one pair are tested one after another, as two sockets with one pair take
// each other's session.
//
// The error is nil when every target had its test, also when none passed; else it says
// how many had not, wraps the context's (for c.Deadline context.DeadlineExceeded), and
// those targets were reported with ReasonUntested. When Test returns, its devices,
// sockets and goroutines are gone.
func (t *Tester) Test(ctx context.Context, c egress.TestConfig, targets []egress.TestTarget, busy func(pair string) bool, done func(egress.TestResult)) error {
	c = withDefaults(c)
	if (c.Pings > 0 || c.FullSize) && len(c.Targets) == 0 {
		return errors.New("test: no targets to ping")
	}
	if c.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Deadline)
		defer cancel()
	}
	subjects, families := load(targets, c)
	groups := byPair(subjects)
	sock, err := openSocket(ctx, t.opts.Control, families)
	if err != nil {
		for _, s := range subjects {
			done(s.result(ReasonUntested))
		}
		return err
	}
	r := &round{
		c: c, ctx: ctx, now: t.opts.Now, sock: sock, done: done,
		direct:  len(groups) <= min(directMax, c.Parallel),
		tunnels: semaphore.NewWeighted(int64(c.Parallel)),
		waiters: semaphore.NewWeighted(int64(c.Parallel) * waitersPerTunnel),
		streams: semaphore.NewWeighted(int64(min(streamsMax, c.Parallel))),
		pace:    rate.NewLimiter(rate.Limit(c.Rate), 1),
		again:   rate.NewLimiter(rate.Limit(c.Rate), 1),
		watch:   newWatch(busy),
		shelf:   newShelf(sock),
	}
	r.sieve = newSieve(r.shelf, keyUses(groups))
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() {
			for _, s := range g {
				r.report(r.test(s))
			}
		})
	}
	wg.Wait()
	r.watch.close()
	r.shelf.close()
	sock.close()
	if r.untested > 0 {
		return fmt.Errorf("test: %d of %d endpoints not tested: %w", r.untested, len(targets), context.Cause(ctx))
	}
	return nil
}

func withDefaults(c egress.TestConfig) egress.TestConfig {
	if c.Parallel <= 0 {
		c.Parallel = DefaultParallel
	}
	if c.Rate <= 0 {
		c.Rate = DefaultRate
	}
	if c.HandshakeTimeout <= 0 {
		c.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if c.PingTimeout <= 0 {
		c.PingTimeout = DefaultPingTimeout
	}
	if c.TLSTimeout <= 0 {
		c.TLSTimeout = DefaultTLSTimeout
	}
	for i, a := range c.Targets {
		if a.Is4In6() {
			c.Targets = append([]netip.Addr(nil), c.Targets...)
			c.Targets[i] = a.Unmap()
		}
	}
	return c
}

// errBusy is the cause of a test's end when a lane took the pair.
var errBusy = errors.New("the pair is in use")

// round is one call of Test.
type round struct {
	c        egress.TestConfig
	ctx      context.Context //nolint:containedctx // lives exactly as long as one Test
	now      func() time.Time
	sock     *socket
	shelf    *shelf
	sieve    *sieve
	direct   bool
	tunnels  *semaphore.Weighted
	waiters  *semaphore.Weighted
	streams  *semaphore.Weighted
	pace     *rate.Limiter
	again    *rate.Limiter // of tries after the first: silent servers must not hold up the others' turns
	watch    *watch
	mu       sync.Mutex // done is called under it
	done     func(egress.TestResult)
	untested int
}

func (r *round) report(res egress.TestResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if res.Reason == ReasonUntested {
		r.untested++
	}
	r.done(res)
}

// test takes one subject through all stages. All that it opened is closed when it returns.
func (r *round) test(s *subject) egress.TestResult {
	res := s.result("")
	switch {
	case s.unsupported != "":
		res.Reason = s.unsupported
		return res
	case r.ctx.Err() != nil:
		res.Reason = ReasonUntested
		return res
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	reason := r.stages(ctx, cancel, s, &res)
	if err := context.Cause(ctx); errors.Is(err, errBusy) {
		reason = ReasonBusy
	} else if err != nil {
		reason = ReasonUntested
	}
	res.Reason = reason
	return res
}

// stages returns the reason for which the subject fails; "" = it passes. What it
// returns after the end of ctx is meaningless.
func (r *round) stages(ctx context.Context, cancel context.CancelCauseFunc, s *subject, res *egress.TestResult) string {
	inside := r.c.Pings > 0 || r.c.FullSize || len(r.c.TLS) > 0
	if r.direct && inside {
		release, ok := r.begin(ctx, cancel, s, r.tunnels, 1, res)
		if !ok {
			return ReasonUntested
		}
		defer release()
		return r.through(ctx, s, res, time.Time{})
	}
	release, ok := r.begin(ctx, cancel, s, r.waiters, r.sieve.weight(s, r.c.Parallel), res)
	if !ok {
		return ReasonUntested
	}
	took, initiated, err := r.sift(ctx, s)
	release()
	if errors.Is(err, amnezia.ErrPlainPeer) {
		return ReasonPlain
	}
	if err != nil {
		return ReasonUnsupported + ": " + err.Error()
	}
	if took == 0 {
		return ReasonNoHandshake
	}
	res.Handshake = took
	if !inside {
		return ""
	}
	if r.tunnels.Acquire(ctx, 1) != nil {
		return ReasonUntested
	}
	defer r.tunnels.Release(1)
	// The pair may have been taken while this one waited for its turn.
	if r.watch.ask(s.pair) {
		cancel(errBusy)
		return ReasonBusy
	}
	defer r.watch.add(s.pair, cancel)()
	return r.through(ctx, s, res, initiated)
}

// begin waits for room and for the pace, then makes sure that no lane has the pair.
// The pair is watched until release is called.
func (r *round) begin(ctx context.Context, cancel context.CancelCauseFunc, s *subject, room *semaphore.Weighted, weight int64, res *egress.TestResult) (release func(), ok bool) {
	if room.Acquire(ctx, weight) != nil {
		return nil, false
	}
	if r.pace.Wait(ctx) != nil {
		room.Release(weight)
		// The limiter gives up early when the deadline would pass in its queue.
		<-ctx.Done()
		return nil, false
	}
	unwatch := r.watch.add(s.pair, cancel)
	release = func() { unwatch(); room.Release(weight) }
	if r.watch.ask(s.pair) {
		cancel(errBusy)
		release()
		return nil, false
	}
	res.TestedAt = r.now()
	return release, true
}
