package egress

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Plan is the one value of a decision: it is printed by a dry run, compared by tests,
// applied by a run and written to the journal.
type Plan struct {
	Command string      `json:"command"`
	Steps   []Step      `json:"steps"`
	Mode    *ModeChange `json:"mode,omitempty"`
	Held    []Held      `json:"held,omitempty"`
	Lanes   []Verdict   `json:"lanes,omitempty"`
	Next    Memory      `json:"next"` // what the next run must know
}

// ModeChange is a change of the mode word.
type ModeChange struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Reason string `json:"reason"`
}

// StepKind is what a step does.
type StepKind string

// The kinds of steps.
const (
	StepUnknown    StepKind = ""
	StepRenew      StepKind = "renew"      // add a lane's peer anew and look again
	StepLend       StepKind = "lend"       // a class of users travels through another lane
	StepQuarantine StepKind = "quarantine" // record the failed endpoint and count it
	StepProve      StepKind = "prove"      // test candidates in process
	StepSwap       StepKind = "swap"       // a lane takes another endpoint, strict-checked
	StepReturn     StepKind = "return"     // a class comes home
	StepTest       StepKind = "test"       // test a list's endpoints
	StepPublish    StepKind = "publish"    // the new pools become the source of truth
	StepRefresh    StepKind = "refresh"    // a guarded refresh
	StepRebuild    StepKind = "rebuild"    // place a fresh pool
	StepDirect     StepKind = "direct"     // a class goes direct
	StepLeave      StepKind = "leave"      // a class comes back from direct
)

// Step is one thing to do, with its reason.
type Step struct {
	Kind      StepKind `json:"kind"`
	Lane      string   `json:"lane,omitempty"`
	From      string   `json:"from,omitempty"` // endpoint, or lane of a class
	To        string   `json:"to,omitempty"`
	Path      string   `json:"path,omitempty"` // profile of To
	Pair      string   `json:"pair,omitempty"`
	Class     string   `json:"class,omitempty"` // home lane of the class that moves
	Endpoints []string `json:"endpoints,omitempty"`
	Pool      string   `json:"pool,omitempty"`
	Reason    string   `json:"reason"`
	If        string   `json:"if,omitempty"` // assumed by a dry run, because it can't be known before
}

// ID tells steps of one plan apart.
func (s Step) ID() string {
	return strings.Join([]string{string(s.Kind), s.Lane, s.Class, s.From, s.To, strings.Join(s.Endpoints, ",")}, "|")
}

// Held is what was not done, and why.
type Held struct {
	Object string `json:"object"`
	Code   string `json:"code"` // uplink_down, no_pool, quarantined, hold_down, …
	Reason string `json:"reason"`
}

// Verdict is the judgment of one lane.
type Verdict struct {
	Lane     string  `json:"lane"`
	Endpoint string  `json:"endpoint,omitempty"`
	Verdict  string  `json:"verdict"`
	Reason   string  `json:"reason,omitempty"`
	RTT      float64 `json:"rtt_ms,omitempty"`
	Loss     float64 `json:"loss"` // share
}

// The codes of Held.
const (
	HeldUplinkDown  = "uplink_down"
	HeldNoPool      = "no_pool"
	HeldNoCandidate = "no_candidate"
	HeldNoLender    = "no_lender"
	HeldWaiting     = "waiting"
	HeldBusy        = "lock_busy"
	HeldDamage      = "damaged_state"
	HeldSmall       = "list_too_small"
	HeldFew         = "too_few_endpoints"
	HeldNoList      = "no_list"
	HeldFilter      = "filter_empty"
	HeldPinned      = "pinned"
	HeldFailed      = "swap_failed"
	HeldUnchecked   = "not_checked"
	heldHysteresis  = "hysteresis"
)

// Changes says whether the plan would change anything in the world.
func (p Plan) Changes() bool { return len(p.Steps) > 0 }

// HeldBack says whether a guard kept the run from something it would have done.
func (p Plan) HeldBack() bool { return len(p.Held) > 0 }

// Guarded says whether something that was to be done was not: the run is held back, or
// partly applied.
func (p Plan) Guarded() bool {
	for _, h := range p.Held {
		switch h.Code {
		case HeldBusy, HeldPinned, HeldUnchecked, heldHysteresis:
		default:
			return true
		}
	}
	return false
}

// Busy says whether another run's lock kept this one from a lane.
func (p Plan) Busy() bool {
	for _, h := range p.Held {
		if h.Code == HeldBusy {
			return true
		}
	}
	return false
}

func (p *Plan) hold(object, code, format string, a ...any) {
	if slices.ContainsFunc(p.Held, func(h Held) bool { return h.Object == object && h.Code == code }) {
		return
	}
	p.Held = append(p.Held, Held{Object: object, Code: code, Reason: fmt.Sprintf(format, a...)})
}

func (p *Plan) add(s Step) { p.Steps = append(p.Steps, s) }

// Text renders the plan for people.
func (p Plan) Text(w io.Writer) {
	for _, v := range p.Lanes {
		if v.Verdict != "up" {
			fmt.Fprintf(w, "lane %s: %s", v.Lane, v.Verdict)
			if v.Reason != "" {
				fmt.Fprintf(w, " (%s)", v.Reason)
			}
			fmt.Fprintln(w)
		}
	}
	for _, s := range p.Steps {
		fmt.Fprintf(w, "%-10s %s", s.Kind, s.what())
		if s.If != "" {
			fmt.Fprintf(w, " [if %s]", s.If)
		}
		fmt.Fprintf(w, ": %s\n", s.Reason)
	}
	if p.Mode != nil {
		fmt.Fprintf(w, "mode       %s -> %s: %s\n", orNone(p.Mode.From), p.Mode.To, p.Mode.Reason)
	}
	for _, h := range p.Held {
		fmt.Fprintf(w, "held       %s: %s (%s)\n", h.Object, h.Reason, h.Code)
	}
	if len(p.Steps) == 0 && len(p.Held) == 0 && p.Mode == nil {
		fmt.Fprintln(w, "nothing to do")
	}
}

func (s Step) what() string {
	switch s.Kind {
	case StepLend, StepReturn, StepDirect, StepLeave:
		return fmt.Sprintf("class %s: %s -> %s", s.Class, orNone(s.From), orNone(s.To))
	case StepSwap:
		return fmt.Sprintf("lane %s: %s -> %s", s.Lane, orNone(s.From), orNone(s.To))
	case StepQuarantine:
		return fmt.Sprintf("endpoint %s of lane %s", orNone(s.From), s.Lane)
	case StepRenew:
		return fmt.Sprintf("lane %s: peer %s", s.Lane, s.From)
	case StepProve, StepTest:
		n := len(s.Endpoints)
		if n == 1 {
			return "endpoint " + s.Endpoints[0]
		}
		if n > 6 {
			return fmt.Sprintf("%d endpoints: %s …", n, strings.Join(s.Endpoints[:6], " "))
		}
		return fmt.Sprintf("%d endpoints: %s", n, strings.Join(s.Endpoints, " "))
	case StepPublish, StepRefresh, StepRebuild:
		return s.Pool
	case StepUnknown:
	}
	return s.Lane
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}
