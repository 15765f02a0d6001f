package edge

import (
	"net/netip"
	"time"
)

// InputVersion is written into recorded inputs; a file of another version is refused.
const InputVersion = 1

// Input is everything a plan is made of. It holds no secret.
type Input struct {
	Version int      `json:"version"`
	Command string   `json:"command"` // retarget, drain, enable, reset, watchdog
	Config  Config   `json:"config"`
	Node    string   `json:"node"` // this machine's name
	Now     int64    `json:"now"`  // unix milliseconds
	Memory  Memory   `json:"memory"`
	Holds   []Hold   `json:"holds,omitempty"`
	Host    Host     `json:"host"`
	Views   []View   `json:"views"`             // one for each replica
	Answers []Answer `json:"answers,omitempty"` // of this run's probes
	Ask     Ask      `json:"ask,omitzero"`      // what the operator wants

	Only      []string          `json:"only,omitempty"`      // services that may change; empty = all
	Parity    map[string]Parity `json:"parity,omitempty"`    // group -> how this run found it
	Confirmed []Key             `json:"confirmed,omitempty"` // a miss of these is a veto at once
	Diverted  []Key             `json:"diverted,omitempty"`  // under suspicion: left out while a healthy second is known
	Back      []Key             `json:"back,omitempty"`      // diverted in error: their traffic comes back
	Damage    []string          `json:"damage,omitempty"`    // state files that could not be read whole
	HoldsAre  HoldsDamage       `json:"holds_are,omitempty"` // how much of Holds is known
}

// HoldsDamage says how much of the operator's word is known.
type HoldsDamage string

// The kinds of damage to holds. The zero value is none.
const (
	HoldsWhole    HoldsDamage = ""
	HoldsSalvaged HoldsDamage = "salvaged" // from the last good copy: nobody is moved who need not be
	HoldsLost     HoldsDamage = "lost"     // no copy can be read: the same, and who is drained is not known
)

// Ask is an operator's wish.
type Ask struct {
	Service   string        `json:"service,omitempty"`
	Candidate string        `json:"candidate,omitempty"`
	Owner     string        `json:"owner,omitempty"`
	Reason    string        `json:"reason,omitempty"`
	For       time.Duration `json:"for,omitempty"` // 0 = until it is taken back
	Force     bool          `json:"force,omitempty"`
	At        int64         `json:"at,omitempty"` // unix milliseconds; 0 = now; answers from before a reset are forgotten with it
}

// Plan is the one value of a decision: it is printed by a dry run, compared by tests,
// applied by a run and written to the journal.
type Plan struct {
	Command string           `json:"command"`
	Steps   []Step           `json:"steps"`
	Held    []Held           `json:"held,omitempty"`
	Notes   []Note           `json:"notes,omitempty"` // complaints: nothing is done about them
	Choices []Choice         `json:"choices"`         // one for each service and family
	Tables  map[string]Table `json:"tables"`          // what each reachable replica's table shall hold
	Flushes []Flush          `json:"flushes,omitempty"`
	Digest  string           `json:"digest"` // of configuration, targets, vetoes and holds
	Next    Memory           `json:"next"`
	Holds   []Hold           `json:"holds,omitempty"` // what edge-holds.json shall hold
}

// StepKind is what a step does.
type StepKind string

// The kinds of steps.
const (
	StepUnknown StepKind = ""
	StepMove    StepKind = "move"    // a virtual address gets another target
	StepNode    StepKind = "node"    // a node's own address gets another target
	StepVeto    StepKind = "veto"    // a candidate is declared dead
	StepClear   StepKind = "clear"   // its veto goes
	StepHold    StepKind = "hold"    // an operator's hold begins
	StepRelease StepKind = "release" // it ends
	StepTable   StepKind = "table"   // a table is made or mended
	StepSync    StepKind = "sync"    // a replica that lagged takes the others' epoch
	StepFlush   StepKind = "flush"   // conntrack entries are deleted
)

// Step is one thing to do, with its reason.
type Step struct {
	Kind      StepKind `json:"kind"`
	Service   string   `json:"service,omitempty"`
	Candidate string   `json:"candidate,omitempty"`
	Replica   string   `json:"replica,omitempty"`
	Address   string   `json:"address,omitempty"` // whose traffic moves: 10.0.0.50:25565/tcp
	From      string   `json:"from,omitempty"`
	To        string   `json:"to,omitempty"`
	Epoch     uint64   `json:"epoch,omitempty"`
	Reason    string   `json:"reason"`
}

// Held is what was not done, and why.
type Held struct {
	Object string `json:"object"`
	Code   string `json:"code"` // not_writer, unreachable, last_serving, …
	Reason string `json:"reason"`
}

// The codes of Held.
const (
	HeldNotWriter   = "not_writer"   // another replica moves this service
	HeldUnreachable = "unreachable"  // a replica could not be reached
	HeldLast        = "last_serving" // a drain would leave nobody
	HeldNoTarget    = "no_target"    // all candidates are out
	HeldBusy        = "lock_busy"
	HeldDamage      = "damaged_state"
	HeldOwner       = "other_owner" // somebody else's hold remains
	HeldNoSecond    = "no_second"   // a diversion has no healthy candidate to go to
)

// Note is a complaint.
type Note struct {
	Object string `json:"object"`
	Code   string `json:"code"`           // disagree, last_resort, drained_serves, parity, two_on_one_node, …
	Loud   bool   `json:"loud,omitempty"` // raises an alert
	Text   string `json:"text"`
}

// Choice is why a service leads where it leads.
type Choice struct {
	Service    string         `json:"service"`
	Family     int            `json:"family"`
	Address    string         `json:"address,omitempty"` // 10.0.0.50:25565/tcp; "" = only nodes' own addresses
	Target     netip.AddrPort `json:"target"`            // invalid = none
	Candidate  string         `json:"candidate"`         // "" = none
	Was        netip.AddrPort `json:"was"`
	Epoch      uint64         `json:"epoch"`
	Writer     string         `json:"writer"` // replica that moves it
	Reason     string         `json:"reason"`
	LastResort bool           `json:"last_resort,omitempty"`
	Candidates []Standing     `json:"candidates"`
}

// Standing is where one candidate stands.
type Standing struct {
	Candidate string         `json:"candidate"`
	Node      string         `json:"node,omitempty"`
	Addr      netip.AddrPort `json:"addr"`
	Key       Key            `json:"key"`
	State     State          `json:"state"`
	Reason    string         `json:"reason,omitempty"`
	RTT       time.Duration  `json:"rtt,omitempty"`
	Veto      *Veto          `json:"veto,omitempty"`
	Hold      *Hold          `json:"hold,omitempty"`
}

// State is the word for a candidate.
type State string

// The states. The zero value is unknown, which is not down.
const (
	StateUnknown State = ""
	StateUp      State = "up"
	StateSuspect State = "suspect" // missed, but not often enough in a row
	StateVetoed  State = "vetoed"
	StateRising  State = "rising" // vetoed, answers again, not often enough in a row
	StateHeld    State = "held"   // alive or not: the operator left it out
)

// Flush is a set of conntrack entries to delete after a move: those of the service's
// addresses whose answers come from a dead candidate.
type Flush struct {
	Service string         `json:"service"`
	From    Endpoint       `json:"from"`                   // original destination: virtual or node address
	To      netip.AddrPort `json:"to"`                     // reply source: the candidate that is dead
	Pending bool           `json:"pending,omitempty"`      // only entries that never saw an answer
	Untrans bool           `json:"untranslated,omitempty"` // entries that were made before there was a target
	Reason  string         `json:"reason"`
}

// The codes of Note.
const (
	NoteDisagree      = "disagree"        // replicas, or their configurations, differ
	NoteLastResort    = "last_resort"     // all candidates are out
	NoteDrainedServes = "drained_serves"  // all candidates are held
	NoteParity        = "parity"          // files that must be equal differ
	NoteRefuses       = "refuses_logins"  // a candidate answers and takes no logins
	NoteOneNode       = "two_on_one_node" // the second is decorative
	NoteTwoHolders    = "two_holders"     // two machines have one address
	NoteNoWriter      = "no_writer"       // nobody moves the service
	NoteDamage        = "damaged_state"   // a state file could not be read whole
	NoteNoCandidate   = "no_candidate"    // of the family
	NoteUnknownHold   = "hold_of_nothing" // of a candidate that configuration does not have
	NoteForced        = "forced"          // a guard was overridden
	NoteUnreachable   = "unreachable"     // a replica has not answered for a while
)

// Changes says whether the plan would change anything in the world.
func (p Plan) Changes() bool { return len(p.Steps) > 0 }

// HeldBack says whether a guard kept the run from something it would have done.
func (p Plan) HeldBack() bool {
	for _, h := range p.Held {
		if h.Code != HeldUnreachable && h.Code != HeldBusy {
			return true
		}
	}
	return false
}

// Unreachable says whether a replica could not be reached.
func (p Plan) Unreachable() bool {
	for _, h := range p.Held {
		if h.Code == HeldUnreachable {
			return true
		}
	}
	return false
}

// Busy says whether another run's lock kept this one from its commit.
func (p Plan) Busy() bool {
	for _, h := range p.Held {
		if h.Code == HeldBusy {
			return true
		}
	}
	return false
}

// Disagrees says whether replicas that could be reached differ.
func (p Plan) Disagrees() bool {
	for _, n := range p.Notes {
		if n.Loud && (n.Code == NoteDisagree || n.Code == NoteTwoHolders) {
			return true
		}
	}
	return false
}
