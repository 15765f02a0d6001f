package egress

import (
	"time"

	"github.com/shunt-net/shunt/internal/health"
	"github.com/shunt-net/shunt/internal/state"
)

// InputVersion is written into recorded inputs; a file of another version is refused.
const InputVersion = 1

// Input is everything that a decision depends on. Recorded with --record-input it
// plans again anywhere, with no root, network or state, to the identical Plan. It holds
// no plan and no key: pairs are fingerprints with a salt that is not in it.
type Input struct {
	Version int       `json:"version"`
	Command string    `json:"command"` // refresh | rebalance | repair
	Now     time.Time `json:"now"`
	Seed    uint64    `json:"seed"` // the run's sequence number
	Config  Config    `json:"config"`
	Options Options   `json:"options"`

	// State
	Quarantine []state.Quarantined `json:"quarantine"`
	KV         map[string]string   `json:"state_kv"`
	Count      int                 `json:"count"` // replacements of the local day
	Memory     Memory              `json:"memory"`
	DayBefore  *DayCount           `json:"day_before,omitempty"` // the counter of the last day that was counted, when it is over
	Damage     []string            `json:"damage,omitempty"`     // contract files that could not be read whole

	// Observations
	Pools   []Pool                `json:"pools,omitempty"` // in order of preference
	Lanes   []LaneView            `json:"lanes"`
	Plane   PlaneView             `json:"plane"`
	Uplink  *UplinkView           `json:"uplink,omitempty"` // nil = not looked at
	Listing *Listing              `json:"listing,omitempty"`
	Proofs  map[string]TestResult `json:"proofs,omitempty"` // endpoint -> result of this run
	Swaps   []SwapOutcome         `json:"swaps,omitempty"`  // in the order they were tried
	Busy    map[string]string     `json:"busy,omitempty"`   // lane -> holder of its lock
	Lost    map[string]string     `json:"lost,omitempty"`   // lane -> why its failure could not be recorded

	Refreshing bool        `json:"refreshing,omitempty"` // another run's refresh
	Attempting bool        `json:"attempting,omitempty"` // another run's attempt
	Ended      *AttemptEnd `json:"ended,omitempty"`      // this run's
	Placed     *RebuildEnd `json:"placed,omitempty"`
}

// Options are the flags that change a decision.
type Options struct {
	AcceptSmall bool         `json:"accept_small,omitempty"`
	Any         bool         `json:"any,omitempty"`     // any non-empty strict pool will do
	Guarded     bool         `json:"guarded,omitempty"` // part of an attempt, which books its end
	Force       bool         `json:"force,omitempty"`   // an attempt now
	Direct      *DirectOrder `json:"direct,omitempty"`
}

// DirectOrder is an operator's word about direct.
type DirectOrder struct {
	On      bool     `json:"on"`
	Classes []string `json:"classes"`      // home lanes
	By      string   `json:"by,omitempty"` // who gives it; "" = not known
	Reason  string   `json:"reason"`
}

// Memory is egress.json: what can't be observed again and state.kv has no key for.
type Memory struct {
	Lanes       map[string]LaneMemory `json:"lanes,omitempty"`
	Lends       map[string]Lend       `json:"lends,omitempty"`     // home lane -> loan
	Holds       map[string]Hold       `json:"holds,omitempty"`     // endpoint -> hold-down
	Failures    map[string]Failure    `json:"failures,omitempty"`  // endpoint -> when its quarantine began, by run sequence
	PoolSeqs    map[int64]uint64      `json:"pool_seqs,omitempty"` // began (unix seconds) -> sequence at that moment
	Modes       ModeMemory            `json:"modes,omitzero"`
	UplinkDown  bool                  `json:"uplink_down,omitempty"`
	UplinkSince time.Time             `json:"uplink_since,omitzero"`
	DoubtAt     time.Time             `json:"doubt_at,omitzero"`   // last search for a way out behind a gateway that answers
	LastSize    int                   `json:"last_size,omitempty"` // endpoints in the last list that became a pool
	Winner      string                `json:"winner,omitempty"`    // strategy that had access last
}

// LaneMemory is what a lane's verdict and search need of earlier runs.
type LaneMemory struct {
	health.Memory
	DeepAt     time.Time     `json:"deep_at,omitzero"`
	Renewed    bool          `json:"renewed,omitempty"`    // its peer was added anew since the last good round
	Cut        bool          `json:"cut,omitempty"`        // the uplink was down since its last good round
	SearchedAt time.Time     `json:"searched_at,omitzero"` // last fruitless search for a replacement
	Since      time.Time     `json:"since,omitzero"`       // current endpoint in service since
	State      string        `json:"state,omitempty"`      // last verdict, for status
	RTT        time.Duration `json:"rtt,omitempty"`
	Loss       float64       `json:"loss,omitempty"` // share of the last round's pings
}

// Lend is a class of users away from home.
type Lend struct {
	To     string    `json:"to"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// Hold is the growing hold-down of an endpoint that failed more than once.
type Hold struct {
	Since    time.Time     `json:"since"`
	For      time.Duration `json:"for"` // 10 min doubling to 24 h
	Failures int           `json:"failures"`
}

// Failure orders a quarantine among refreshes independently of the clock.
type Failure struct {
	FailedAt int64  `json:"failed_at"` // unix seconds, as written in quarantine.tsv
	Seq      uint64 `json:"seq"`
}

// Pool is one ranked list.
type Pool struct {
	Name  string    `json:"name"`
	File  string    `json:"file"`
	Mtime time.Time `json:"mtime"` // the moment its tests began
	Rows  []Row     `json:"rows"`
	Error string    `json:"error,omitempty"`
}

// Row is one endpoint of a pool.
type Row struct {
	Rank     int           `json:"rank"`
	File     string        `json:"file"`
	Endpoint string        `json:"endpoint"`
	Avg      time.Duration `json:"avg"`
	Loss     float64       `json:"loss"`
	Path     string        `json:"path"`
	Pair     string        `json:"pair"`
	Identity string        `json:"identity"`
	Needs    string        `json:"needs,omitempty"`  // see Description
	Reason   string        `json:"reason,omitempty"` // why no lane can carry it
}

// LaneView is one lane as it is now.
type LaneView struct {
	Name     string     `json:"name"`
	Device   DeviceView `json:"device"`
	Endpoint string     `json:"endpoint"` // of its installed profile; "" = none
	Pair     string     `json:"pair"`
	Identity string     `json:"identity"`
	Path     string     `json:"path"` // of its installed profile
	Round    *Round     `json:"round,omitempty"`
	Deep     *Deep      `json:"deep,omitempty"`
	Renewed  bool       `json:"renewed,omitempty"` // its peer was added anew in this run, and Round is from after that
	Strict   *string    `json:"strict,omitempty"`  // what failed of a strict check; "" = it passed
	Intent   *Intent    `json:"intent,omitempty"`  // left by a run that was killed
}

// SwapOutcome is how one swap of this run ended.
type SwapOutcome struct {
	Lane     string        `json:"lane"`
	From     string        `json:"from"`
	Endpoint string        `json:"endpoint"`
	OK       bool          `json:"ok"`
	Reason   string        `json:"reason,omitempty"`
	Method   string        `json:"method,omitempty"`
	Took     time.Duration `json:"took"`
}

// Intent is the record on disk of a change that is under way on one lane.
type Intent struct {
	Command   string    `json:"command"`
	Run       uint64    `json:"run"`
	Began     time.Time `json:"began"`
	Lane      string    `json:"lane"`
	From      string    `json:"from"` // endpoint
	FromPath  string    `json:"from_path"`
	To        string    `json:"to,omitempty"`
	ToPath    string    `json:"to_path,omitempty"`
	ToPair    string    `json:"to_pair,omitempty"`
	FailedAt  int64     `json:"failed_at,omitempty"` // unix seconds; 0 = not a repair
	Reason    string    `json:"reason,omitempty"`
	PoolMtime int64     `json:"pool_mtime,omitempty"`
	Day       string    `json:"day,omitempty"`
	Count     int       `json:"count,omitempty"` // what the day's counter must at least be
}

// Listing is what the sources gave to a refresh, with the results of its tests.
type Listing struct {
	Entries []Entry               `json:"entries"`
	Skipped int                   `json:"skipped"`
	Failed  []string              `json:"failed,omitempty"` // sources that gave nothing
	Via     string                `json:"via,omitempty"`    // strategy by which they were reached; "" = plainly
	Began   time.Time             `json:"began,omitzero"`   // of the tests
	Seq     uint64                `json:"seq,omitempty"`    // run sequence at that moment
	Results map[string]TestResult `json:"results,omitempty"`
}

// Entry is one endpoint of a listing.
type Entry struct {
	File     string `json:"file"`
	Endpoint string `json:"endpoint"`
	Path     string `json:"path"`
	Pair     string `json:"pair"`
	Needs    string `json:"needs,omitempty"`  // see Description
	Reason   string `json:"reason,omitempty"` // why it can't be tested
}

func (in *Input) lane(name string) (LaneView, bool) {
	for _, l := range in.Lanes {
		if l.Name == name {
			return l, true
		}
	}
	return LaneView{}, false
}
