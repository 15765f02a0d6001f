package edge

import (
	"context"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// Env is what a pass works with: the world through its ports, and the state.
type Env struct {
	Config   Config
	Node     string // this machine's name among the replicas, never empty
	State    *state.Dir
	Replicas map[string]Replicated // by name; Replicas[Node] is this machine's table
	Prober   Prober
	Flows    Flows
	Sight    Sight
	Alerts   Alerts // nil = nobody
	Way      Way    // nil = the first connection through the table is not measured
	Now      Clock
	Holder   string // names this run in locks: pid and command

	// Parity compares the members of one group; nil = groups are not compared.
	Parity func(context.Context, ParityGroup) Parity
	// Watch sees the input and the plan of each decision, one at a time, in a session when
	// this machine's table is moved already; nil = nobody.
	Watch func(Input, Plan)

	again time.Duration // between two questions to one candidate; 0 = 200 ms
}

// Options are the flags of a pass.
type Options struct {
	DryRun  bool
	Service string // only this one; "" = all
}

// Result is what a pass did.
type Result struct {
	Input   Input  `json:"input"`
	Plan    Plan   `json:"plan"`
	Applied int    `json:"applied"`         // steps that were carried out
	Moves   []Move `json:"moves,omitempty"` // with their measured times
	Joined  bool   `json:"-"`               // decided together with what another caller wanted, whose result has it all
	Partial error  `json:"-"`               // something of the plan could not be applied
}

// Move is one virtual address that leads elsewhere now.
type Move struct {
	Service string        `json:"service"`
	Family  int           `json:"family"`
	Address string        `json:"address"` // 10.0.0.50:25565/tcp
	From    string        `json:"from,omitempty"`
	To      string        `json:"to"`
	Epoch   uint64        `json:"epoch"`
	Reason  string        `json:"reason"`
	Commit  time.Duration `json:"commit"`            // from the hint, or the first miss, to the commit of this machine's table
	Reached time.Duration `json:"reached,omitempty"` // … to the first connection through the table; 0 = not measured
	Flushed int           `json:"flushed,omitempty"` // conntrack entries deleted for it; -1 = not known

	began time.Time // hint, first miss, or the run's beginning
	first Endpoint  // one of its endpoints
}
