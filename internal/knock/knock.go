// Package knock asks candidates whether they live: by a TCP connection, a TLS handshake, an
// HTTP request, Minecraft's server list ping or a command. It also compares the files that
// must be equal everywhere.
//
// An answer is a miss only when the silence is the candidate's. It is unknown when this
// machine may have caused it:
//
//   - The end of the waiting was noticed late, by more than 5 ms and a twentieth of the
//     cap, or a goroutine that wanted to run every 5 ms of the probe lost a quarter of the
//     cap to lateness: the process, or the whole machine, did not run.
//   - The context ended before the cap did.
//   - The kernel refused locally: no descriptors, no ports, no route, a firewall rule here.
//   - The server took the connection and closed it before the first byte of an answer, as
//     one does that limits connections for each client.
//
// When the time is up the socket is looked at once more: an answer that lies there counts.
package knock

import (
	"context"
	"sync"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// defaultCap is the longest probe of a configuration that does not say.
const defaultCap = 700 * time.Millisecond

// Prober implements edge.Prober and is fit for concurrent use. It remembers the last login
// of each key, so that servers which limit logins are not asked too often.
type Prober struct {
	now   func() time.Time
	pulse pulse

	mu     sync.Mutex
	logins map[edge.Key]login
}

// New returns a prober. now is the clock of the answers' time stamps; durations are
// measured for themselves.
func New(now func() time.Time) *Prober {
	return &Prober{now: now, logins: map[edge.Key]login{}}
}

// Probe asks one candidate once and returns when it is known, its cap has passed, or ctx
// ended; the polite end of a connection may take 20 ms more, within the cap.
func (p *Prober) Probe(ctx context.Context, t edge.ProbeTarget) edge.Answer {
	k := newKnocking(t)
	switch t.Probe.Type {
	case edge.ProbeTCP:
		k.tcp(ctx)
	case edge.ProbeTLS:
		p.watched(k, func() { k.tls(ctx) })
	case edge.ProbeHTTP:
		p.watched(k, func() { k.http(ctx) })
	case edge.ProbeStatusPing:
		p.watched(k, func() { p.statusPing(ctx, k) })
	case edge.ProbeExec:
		p.watched(k, func() { k.exec(ctx) })
	case edge.ProbeNone:
		k.good()
	case edge.ProbeUnknown:
		k.unknown("no such probe type")
	default:
		k.unknown("no such probe type")
	}
	k.a.At = p.now().UnixMilli()
	return k.a
}

// watched runs a probe that needs this process to run at several moments.
func (p *Prober) watched(k *knocking, ask func()) {
	p.pulse.begin()
	defer p.pulse.end()
	before := p.pulse.lost()
	k.lost = func() time.Duration { return p.pulse.lost() - before }
	ask()
}
