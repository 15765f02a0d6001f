package probe

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
)

const (
	// fullTries, fullGap and fullWait bound the full-size rung: one answer is enough. A lane
	// that drops 30 % of pings because it is full fails it once in 1,400 times.
	fullTries = 6
	fullGap   = 100 * time.Millisecond
	fullWait  = 500 * time.Millisecond

	defaultTLSTimeout = 5 * time.Second

	ipv4Header, ipv6Header = 20, 40 // bytes
)

// Deep makes a TLS handshake through the lane's interface with every c.TLS target at
// once, each within c.TLSTimeout, and has one packet of the interface's MTU echoed,
// or else one of half of it.
// Rungs that are not configured pass: TLS is empty, FullSize is true.
func (p *Prober) Deep(ctx context.Context, l egress.Lane, c egress.CheckConfig) egress.Deep {
	begun := time.Now() //nolint:forbidigo // measures a duration
	d := egress.Deep{FullSize: true}
	if len(c.TLS) > 0 {
		d.TLS = make([]egress.TLSResult, len(c.TLS))
	}
	timeout := c.TLSTimeout
	if timeout <= 0 {
		timeout = defaultTLSTimeout
	}
	var wg sync.WaitGroup
	for i, t := range c.TLS {
		wg.Go(func() { d.TLS[i] = shake(ctx, l, t, timeout) })
	}
	if c.FullSize {
		wg.Go(func() {
			if d.FullSize = echoes(ctx, l, c.Targets, 1); !d.FullSize {
				d.HalfSize = echoes(ctx, l, c.Targets, 2)
			}
		})
	}
	wg.Wait()
	d.Took = time.Since(begun) //nolint:forbidigo // measures a duration
	return d
}

// shake completes one TLS handshake.
func shake(ctx context.Context, l egress.Lane, t egress.TLSTarget, timeout time.Duration) egress.TLSResult {
	begun := time.Now() //nolint:forbidigo // measures a duration
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := egress.TLSResult{Address: t.Address.String()}
	err := handshake(ctx, l.Interface, t)
	r.Took = time.Since(begun) //nolint:forbidigo // measures a duration
	if err != nil {
		r.Error = fmt.Sprintf("lane %s: tls %s: %v", l.Name, t.Address, err)
		return r
	}
	r.OK = true
	return r
}

func handshake(ctx context.Context, iface string, t egress.TLSTarget) error {
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), iface) }); e != nil {
			return e
		}
		if err != nil {
			return fmt.Errorf("bind to %s: %w", iface, err)
		}
		return nil
	}}
	conn, err := d.DialContext(ctx, "tcp", t.Address.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// The question is whether the lane carries a TLS handshake's bytes there and back,
	// not whom they come from: nothing is sent or believed. A target with an address
	// and no name, or with a certificate that ran out, is as good a witness.
	client := tls.Client(conn, &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // liveness, not trust
	return client.HandshakeContext(ctx)
}

// echoes says whether an echo request that fills the interface's MTU, or that part of it,
// comes back.
func echoes(ctx context.Context, l egress.Lane, targets []netip.Addr, part int) bool {
	i, err := net.InterfaceByName(l.Interface)
	if err != nil || len(targets) == 0 {
		return false
	}
	// All pings of a volley are of one size, so one family is enough.
	header, family := ipv4Header, []netip.Addr(nil)
	if targets[0].Unmap().Is6() {
		header = ipv6Header
	}
	for _, t := range targets {
		if t.Unmap().Is6() == (header == ipv6Header) {
			family = append(family, t)
		}
	}
	return ping(ctx, volley{
		iface: l.Interface, targets: family, n: fullTries, need: 1, gap: fullGap, wait: fullWait,
		payload: i.MTU/part - header - echoHeader, whole: true,
	}).pass
}
