package edge

import (
	"context"
	"net/netip"
	"time"
)

// The ways to the world that a pass needs. Adapters implement them.

// Replicated is one replica's table inet shunt_edge.
type Replicated interface {
	// Observe reads the table. A missing table is a view (Absent), not an error.
	Observe(ctx context.Context) (View, error)
	// Apply makes the table hold exactly want, in one transaction, reads it back and
	// returns what it then is. was is what Observe gave: only what differs is sent.
	Apply(ctx context.Context, was View, want Table) (View, error)
	// Close ends the transport's process.
	Close() error
}

// Prober asks one candidate once.
type Prober interface {
	Probe(ctx context.Context, t ProbeTarget) Answer
}

// ProbeTarget is one address of a candidate and how to ask it.
type ProbeTarget struct {
	Key       Key
	Service   string
	Candidate string
	Addr      netip.AddrPort // of the candidate, with the probe's port
	Probe     Probe
}

// Flows deletes conntrack entries of this machine.
type Flows interface {
	// Flush deletes exactly the entries of f and reports how many there were, where the
	// kernel says so (-1 = not known).
	Flush(ctx context.Context, f []Flush) (int, error)
}

// Sight looks at this machine.
type Sight interface {
	Look(ctx context.Context, c Config) (Host, error)
}

// Alerts tells people. It never blocks the caller for longer than a queue's lock.
type Alerts interface {
	Alert(a Alert)
}

// Alert is one thing that people should know.
type Alert struct {
	Kind    string             `json:"kind"` // edge.move, edge.last_resort, edge.disagree, edge.parity, mode …
	Object  string             `json:"object"`
	Level   string             `json:"level"`             // info | warning | critical
	Text    string             `json:"text"`              // one line
	Figures map[string]float64 `json:"figures,omitempty"` // ms unless the name says otherwise
	At      time.Time          `json:"at"`
}

// Way makes one connection as a client would, through the table of this machine.
type Way interface {
	// Reach connects to a virtual address until it is answered or ctx ends.
	Reach(ctx context.Context, to Endpoint) error
}

// Clock is the time source that cli hands to a pass.
type Clock func() time.Time
