// Package probe looks through lanes and at the uplink: bound pings with a verdict as
// early as it is certain, TLS handshakes, full-size packets. It changes nothing.
package probe

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

// Options of a Prober.
type Options struct {
	// Rx reads the bytes that the active peer of a lane has received. It is called
	// before and after each round; nil, or an error of it, leaves both fields zero.
	Rx func(ctx context.Context, l egress.Lane) (int64, error)
	// Lanes are interfaces that are never taken for the uplink, whatever the main table says.
	Lanes []string
}

// Prober implements egress.Prober.
type Prober struct{ opts Options }

var _ egress.Prober = (*Prober)(nil)

// New returns a Prober. It needs CAP_NET_RAW, or a group in net.ipv4.ping_group_range.
func New(o Options) *Prober { return &Prober{opts: o} }

// Round sends up to n pings through the lane's interface, c.Gap apart, to c.Targets in
// turn, and returns as soon as need answers are in or cannot come any more: a ping is
// given up c.Wait after it was sent. What makes an answer impossible (no such
// interface, no route, link down, a kernel tunnel without a peer) ends the round at
// once and is in Error.
func (p *Prober) Round(ctx context.Context, l egress.Lane, c egress.CheckConfig, n, need int) egress.Round {
	before, errBefore := p.rx(ctx, l)
	o := ping(ctx, volley{
		iface: l.Interface, targets: c.Targets, n: n, need: need, gap: c.Gap, wait: c.Wait, payload: ordinaryPayload,
	})
	r := egress.Round{Sent: o.sent, Got: o.got, Pass: o.pass, RTT: o.rtt, Took: o.took}
	if o.err != nil {
		r.Error = fmt.Sprintf("lane %s: %v", l.Name, o.err)
	}
	if after, err := p.rx(ctx, l); err == nil && errBefore == nil {
		r.RxBefore, r.RxAfter = before, after
	}
	return r
}

func (p *Prober) rx(ctx context.Context, l egress.Lane) (int64, error) {
	if p.opts.Rx == nil {
		return 0, nil
	}
	return p.opts.Rx(ctx, l)
}

// volley is a handful of pings.
type volley struct {
	iface   string // bound to
	targets []netip.Addr
	n, need int
	gap     time.Duration // between two
	wait    time.Duration // for each, from when it was sent
	payload int           // bytes after the ICMP header
	whole   bool          // never fragmented, whatever the kernel has heard of the path
	id      uint16        // of its pings; 0 = by chance
}

// outcome is what became of a volley.
type outcome struct {
	sent, got int
	pass      bool
	rtt       time.Duration // the least
	took      time.Duration
	err       error
}
