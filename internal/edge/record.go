package edge

import (
	"net/netip"
	"time"
)

// The domain's own state files. What the machine concluded and what the operator said are
// kept apart, so that a healthy answer clears the one and never the other.
const (
	memoryFile = "edge.json"
	holdsFile  = "edge-holds.json"
)

// Key names one address of a candidate as one way of asking sees it: a changed probe or
// address is another key, and what was known of the old one says nothing of it.
type Key string // front/proxy-01/4/1f2e3d4c

// Memory is edge.json: what can't be observed again.
type Memory struct {
	Targets []Target           `json:"targets,omitempty"`
	Vetoes  []Veto             `json:"vetoes,omitempty"`
	Health  map[Key]Health     `json:"health,omitempty"`
	Parity  map[string]Parity  `json:"parity,omitempty"`
	Alerts  map[string]AlertAt `json:"alerts,omitempty"` // CODE/OBJECT of a complaint that lasts
	Doubts  map[string]int64   `json:"doubts,omitempty"` // difference that may be passing -> since, unix seconds
	Resets  map[Key]int64      `json:"resets,omitempty"` // when an operator had a verdict forgotten, unix milliseconds
}

// Target is what a service led to when a run last saw or moved it; after a reboot the
// tables are empty and this is all that is left.
type Target struct {
	Service string         `json:"service"`
	Family  int            `json:"family"` // 4 or 6
	To      netip.AddrPort `json:"to"`
	Epoch   uint64         `json:"epoch"`
	Since   int64          `json:"since"` // unix seconds
}

// Veto is the tool's word that a candidate is dead.
type Veto struct {
	Key    Key    `json:"key"`
	Since  int64  `json:"since"` // unix seconds
	Until  int64  `json:"until"` // unix seconds; a fresh failed probe moves it on
	Reason string `json:"reason"`
	By     string `json:"by"` // command and pid
}

// Hold is the operator's word that a candidate is to be left out.
type Hold struct {
	Service   string `json:"service"`
	Candidate string `json:"candidate"`
	Owner     string `json:"owner"`
	Reason    string `json:"reason"`
	Since     int64  `json:"since"`           // unix seconds
	Until     int64  `json:"until,omitempty"` // unix seconds; 0 = until it is taken back
}

// Health is what earlier probes of one key gave.
type Health struct {
	Misses   int           `json:"misses,omitempty"`   // in a row
	Goods    int           `json:"goods,omitempty"`    // in a row
	Asked    int64         `json:"asked"`              // unix milliseconds of the last probe
	Reason   string        `json:"reason,omitempty"`   // of the last miss
	RTT      time.Duration `json:"rtt,omitempty"`      // of the last good one
	Refusals int           `json:"refusals,omitempty"` // logins refused in a row
	Logins   int           `json:"logins,omitempty"`   // logins taken in a row
	Refusing bool          `json:"refusing,omitempty"` // it answers and takes no logins
	Lifetime time.Duration `json:"lifetime,omitempty"` // after which the server closes an idle connection; 0 = not known
	Short    int           `json:"short,omitempty"`    // lives in a row that were too short for a tripwire
}

// Parity is how a group was last found.
type Parity struct {
	At     int64             `json:"at"` // unix seconds
	Equal  bool              `json:"equal"`
	Hashes map[string]string `json:"hashes,omitempty"` // member -> first 12 hex digits
	Errors map[string]string `json:"errors,omitempty"` // member -> why it could not be read
}

// AlertAt is when an alert was last sent, so that the same one is not sent again at once.
type AlertAt struct {
	At    int64 `json:"at"` // unix seconds
	Muted int   `json:"muted,omitempty"`
}

// Outcome of one probe. Unknown is not down.
type Outcome string

// The outcomes. The zero value is unknown.
const (
	OutcomeUnknown Outcome = "" // not asked, or asked too late by a starved machine
	Good           Outcome = "good"
	Miss           Outcome = "miss"
)

// Answer is what one probe gave. Each fact is its own.
type Answer struct {
	Key     Key           `json:"key"`
	Outcome Outcome       `json:"outcome"`
	Answers bool          `json:"answers"`           // a connection came about
	Speaks  bool          `json:"speaks"`            // it spoke the probe's protocol
	Accepts bool          `json:"accepts"`           // it takes logins, or that was not asked
	Refused bool          `json:"refused,omitempty"` // the host said that nobody listens
	Reason  string        `json:"reason,omitempty"`
	RTT     time.Duration `json:"rtt,omitempty"`
	At      int64         `json:"at"` // unix milliseconds
}
