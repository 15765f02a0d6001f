package tunnel

import (
	"context"
	"crypto/tls"
	"net/netip"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/tunnel/tcp"
)

const (
	// streamsMax is how many tunnels have a TCP stack at once.
	streamsMax = 16
	// leaveWait and leaveEvery bound the wait for the last segments to leave the device.
	leaveWait  = 100 * time.Millisecond
	leaveEvery = time.Millisecond
)

// witness is a host that must complete a TLS handshake inside the tunnel.
type witness struct {
	from netip.Addr
	to   egress.TLSTarget
}

// witnesses are the targets that the client's addresses can speak to.
func witnesses(addresses []netip.Prefix, mtu int, targets []egress.TLSTarget) []witness {
	var out []witness
	for _, t := range targets {
		t.Address = netip.AddrPortFrom(t.Address.Addr().Unmap(), t.Address.Port())
		if t.Address.Addr().Is6() && mtu < tcp.MinMTU6 {
			continue
		}
		for _, a := range addresses {
			if a.Addr().Unmap().Is4() == t.Address.Addr().Is4() {
				out = append(out, witness{a.Addr().Unmap(), t})
				break
			}
		}
	}
	return out
}

// data returns why no data flows through the tunnel; "" = it does. An endpoint may answer
// pings of every size and drop or choke all else. The stack that this takes is heavy next
// to a tunnel, so that it exists only here, and few at once.
func (r *round) data(ctx context.Context, t *session) string {
	if len(t.subj.witnesses) == 0 {
		return ""
	}
	if r.streams.Acquire(ctx, 1) != nil {
		return ReasonUntested
	}
	defer r.streams.Release(1)
	// It costs more processor time than all before it: unpaced, it would take the cores
	// from the pings of others, and those would be late or lost.
	if r.pace.Wait(ctx) != nil {
		<-ctx.Done() // the limiter gives up early when the deadline would pass in its queue
		return ReasonUntested
	}
	var addresses []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, w := range t.subj.witnesses {
		if !seen[w.from] {
			addresses = append(addresses, w.from)
		}
		seen[w.from] = true
	}
	s, err := tcp.New(t.subj.mtu, addresses, func(ip []byte) { t.send(ip) })
	if err != nil {
		return ReasonUnsupported + ": " + err.Error()
	}
	t.stack.Store(s)
	defer func() {
		t.stack.Store(nil)
		s.Close()
		t.spoilt = !t.leave(ctx)
	}()
	if !handshakes(ctx, s, t.subj.witnesses, r.c.TLSTimeout) {
		return ReasonNoData
	}
	return ""
}

// handshakes says whether one of the hosts completes a TLS handshake in time. The next one
// is tried when those before it have failed, and when they keep silent: one that is down
// must not use the time of all.
func handshakes(ctx context.Context, s *tcp.Stack, list []witness, timeout time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	patience := timeout / time.Duration(2*len(list))
	results := make(chan bool, len(list))
	begun, failed := 0, 0
	defer func() { // the stack must not be closed under them
		cancel()
		for ; failed < begun; failed++ {
			<-results
		}
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	for failed < len(list) {
		select {
		case <-ctx.Done():
			return false
		case <-next.C:
			if begun == len(list) {
				continue
			}
			go func(w witness) { results <- shake(ctx, s, w.to) == nil }(list[begun])
			begun++
			next.Reset(patience)
		case ok := <-results:
			failed++ // or passed: one that waits no more
			if ok {
				return true
			}
			if failed == begun {
				next.Reset(0)
			}
		}
	}
	return false
}

// shake completes one TLS handshake.
func shake(ctx context.Context, s *tcp.Stack, to egress.TLSTarget) error {
	c, err := s.Dial(ctx, to.Address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	// The question is whether bytes pass there and back, not whom they come from: nothing
	// is sent or believed.
	conf := &tls.Config{ServerName: to.ServerName, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} //nolint:gosec // liveness, not trust
	return tls.Client(c, conf).HandshakeContext(ctx)
}

// leave waits until all that was handed to the tunnel has left it: the device's next
// session is with another server. False = something may still be on its way.
func (t *session) leave(ctx context.Context) bool {
	last := int(t.handed.Load()) - 1
	end := time.NewTimer(leaveWait)
	defer end.Stop()
	for last >= 0 && t.route.sentAt(last).IsZero() {
		select {
		case <-end.C:
			return false
		default:
		}
		if run.Pause(ctx, leaveEvery) != nil {
			return false
		}
	}
	return true
}
