package server

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// kind is what an endpoint does wrong.
type kind int

const (
	kindAlive kind = iota
	kindSilent
	kindLossy
	kindChoke
	kindMTU
	kindNoData
	kindFlap
)

// Fault is the behaviour of an endpoint. The zero value is an endpoint without fault.
type Fault struct {
	kind   kind
	share  float64
	size   int
	window time.Duration
}

// Alive is no fault.
func Alive() Fault { return Fault{} }

// Silent drops every datagram that comes in, and sends none.
func Silent() Fault { return Fault{kind: kindSilent} }

// Lossy drops a share (0 to 1) of the ICMP echo requests inside the tunnel and nothing else.
func Lossy(share float64) Fault { return Fault{kind: kindLossy, share: share} }

// ChokeAfter is what Choke lets pass, in bytes of packets over ChokeSmall, both ways together.
const (
	ChokeAfter = 4096
	ChokeSmall = 200
)

// Choke passes handshakes and inner packets up to ChokeSmall bytes; larger ones stop for
// good once ChokeAfter bytes of them have passed since the fault was set.
func Choke() Fault { return Fault{kind: kindChoke} }

// MTU drops inner packets larger than n bytes, both ways, without a word.
func MTU(n int) Fault { return Fault{kind: kindMTU, size: n} }

// NoData answers handshakes and ICMP and drops TCP and UDP.
func NoData() Fault { return Fault{kind: kindNoData} }

// Flap passes a share of all inner packets, each by its own toss.
func Flap(pass float64) Fault { return Fault{kind: kindFlap, share: pass} }

// FlapWindow passes all inner packets in a share of the windows of that length and none in
// the others, so that a whole round of checks passes or fails.
func FlapWindow(pass float64, window time.Duration) Fault {
	return Fault{kind: kindFlap, share: pass, window: window}
}

func (f Fault) String() string {
	switch f.kind {
	case kindAlive:
		return "alive"
	case kindSilent:
		return "silent"
	case kindLossy:
		return fmt.Sprintf("lossy(%g)", f.share)
	case kindChoke:
		return "choke"
	case kindMTU:
		return fmt.Sprintf("mtu(%d)", f.size)
	case kindNoData:
		return "no-data"
	case kindFlap:
		if f.window > 0 {
			return fmt.Sprintf("flap(%g,%s)", f.share, f.window)
		}
		return fmt.Sprintf("flap(%g)", f.share)
	}
	return "unknown"
}

// gate decides, packet by packet, what a faulty endpoint lets pass.
type gate struct {
	mu     sync.Mutex
	fault  Fault
	rng    *rand.Rand
	passed int       // bytes of large packets since the fault was set
	until  time.Time // end of the present window
	open   bool      // what the present window does
}

func newGate(seed, index uint64) *gate {
	return &gate{rng: rand.New(rand.NewPCG(seed, index))} //nolint:gosec // repeatable on purpose
}

func (g *gate) set(f Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault, g.passed, g.until = f, 0, time.Time{}
}

func (g *gate) get() Fault {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault
}

// datagram says whether an encrypted datagram passes.
func (g *gate) datagram() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault.kind != kindSilent
}

// inner says whether a packet inside the tunnel passes; now is asked for windows only.
func (g *gate) inner(p []byte, now func() time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch g.fault.kind {
	case kindAlive:
		return true
	case kindSilent:
		return false
	case kindLossy:
		return !isPing(p) || g.rng.Float64() >= g.fault.share
	case kindChoke:
		if len(p) <= ChokeSmall {
			return true
		}
		if g.passed+len(p) > ChokeAfter {
			g.passed = ChokeAfter // a smaller one later must not slip through
			return false
		}
		g.passed += len(p)
		return true
	case kindMTU:
		return len(p) <= g.fault.size
	case kindNoData:
		proto, _, ok := transport(p)
		return ok && (proto == protoICMP || proto == protoICMP6)
	case kindFlap:
		if g.fault.window == 0 {
			return g.rng.Float64() < g.fault.share
		}
		if t := now(); !t.Before(g.until) {
			g.until, g.open = t.Add(g.fault.window), g.rng.Float64() < g.fault.share
		}
		return g.open
	}
	return true
}
