package egress

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shunt-net/shunt/internal/health"
	"github.com/shunt-net/shunt/internal/state"
)

// Status is everything of egress at a glance. It is read without any write lock and
// without sending a packet.
type Status struct {
	Time       time.Time      `json:"time"`
	Mode       string         `json:"mode"`
	Reason     string         `json:"reason,omitempty"`
	Since      time.Time      `json:"since,omitzero"`
	Lanes      []LaneStatus   `json:"lanes"`
	Pools      []PoolStatus   `json:"pools"`
	Quarantine []Quarantine   `json:"quarantine,omitempty"`
	CountToday int            `json:"replacements_today"`
	Refresh    Attempt        `json:"last_refresh"`
	Manual     []ManualStatus `json:"direct_by_hand,omitempty"`
	Attempts   AttemptStatus  `json:"attempts"`
	Uplink     string         `json:"uplink"`
	Locks      []LockHolder   `json:"locks,omitempty"`
	Problems   []string       `json:"problems,omitempty"`
}

// LaneStatus is one line of the table.
type LaneStatus struct {
	Name      string        `json:"name"`
	Interface string        `json:"interface"`
	State     string        `json:"state"` // verdict of the last repair, or what the device shows
	Reason    string        `json:"reason,omitempty"`
	Endpoint  string        `json:"endpoint,omitempty"`
	RTT       time.Duration `json:"rtt,omitempty"`
	Loss      float64       `json:"loss"`
	Handshake time.Duration `json:"handshake_age,omitempty"`
	Rx        int64         `json:"rx"`
	Tx        int64         `json:"tx"`
	Class     []DSCP        `json:"class"`
	Carries   []string      `json:"carries"`           // classes (home lanes) that travel here now
	LentTo    string        `json:"lent_to,omitempty"` // where its own class is
	Since     time.Time     `json:"since,omitzero"`
}

// PoolStatus is one pool's age and size.
type PoolStatus struct {
	Name  string    `json:"name"`
	Rows  int       `json:"rows"`
	Began time.Time `json:"began,omitzero"`
	Error string    `json:"error,omitempty"`
}

// Quarantine is an endpoint that is kept out now.
type Quarantine struct {
	Endpoint string    `json:"endpoint"`
	Since    time.Time `json:"since"`
	Slot     string    `json:"slot"`
	Reason   string    `json:"reason"`
}

// Attempt is the last refresh.
type Attempt struct {
	At time.Time `json:"at,omitzero"`
	RC string    `json:"rc,omitempty"`
}

// LockHolder names who holds a lock now.
type LockHolder struct {
	Name   string `json:"name"`
	Holder string `json:"holder"`
}

// Status reads state, devices and the user plane. What it may not see is a problem in the
// result, not an error.
func (e *Env) Status(ctx context.Context) Status {
	p, _ := e.begin("status", false)
	s := Status{Time: p.in.Now, Uplink: "unknown"}
	if err := p.loadState(true); err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	p.observeLanes(ctx)
	if err := p.observePlane(ctx, false); err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	s.Problems = append(s.Problems, p.in.Damage...)
	s.Problems = append(s.Problems, drift(p.in.Plane.Drift)...)
	s.Mode, s.Reason = p.in.KV[state.KeyMode], p.in.KV[state.KeyReason]
	s.Since = epoch(p.in.KV[state.KeySince])
	s.CountToday = p.in.Count
	s.Refresh = Attempt{At: epoch(p.in.KV[state.KeyLastRefreshAttempt]), RC: p.in.KV[state.KeyLastRefreshRC]}
	s.Manual, s.Attempts = p.manualStatus(), p.attemptStatus()
	if len(p.in.Memory.Lanes) > 0 {
		s.Uplink = "up"
	}
	if p.in.Memory.UplinkDown {
		s.Uplink = "down since " + stamp(p.in.Memory.UplinkSince)
	}
	for _, l := range e.Config.Lanes {
		s.Lanes = append(s.Lanes, p.laneStatus(l))
		if _, ok := p.in.lane(l.Name); ok && p.in.Lanes[p.index(l.Name)].Intent != nil {
			s.Problems = append(s.Problems, "lane "+l.Name+": a change was begun and not finished; the next run settles it")
		}
	}
	p.poolStatus(&s)
	for _, name := range e.lockNames() {
		if h := e.State.Holder(name); h != "" {
			s.Locks = append(s.Locks, LockHolder{name, h})
		}
	}
	return s
}

// Well says whether every lane is up and carries its own class, and nothing is a problem.
func (s Status) Well() bool {
	for _, l := range s.Lanes {
		if l.State != string(health.Up) && l.State != string(health.Loaded) || l.LentTo != "" {
			return false
		}
	}
	return len(s.Problems) == 0
}

// drift is what differs in the user plane, on one screen.
func drift(all []string) []string {
	const most = 3
	if len(all) <= most {
		return all
	}
	return append(slices.Clone(all[:most]), fmt.Sprintf("the user plane differs in %d more points; `shunt egress plane` mends it, `shunt egress plane --dry-run` shows what it should be", len(all)-most))
}

func (e *Env) lockNames() []string {
	names := []string{"pool", attemptLock, modeLock, candidatesLock, "plane", "state", "count"}
	for _, l := range e.Config.Lanes {
		names = append(names, "lane-"+l.Name)
	}
	return names
}

func (p *pass) laneStatus(l Lane) LaneStatus {
	v, _ := p.in.lane(l.Name)
	mem := p.in.Memory.Lanes[l.Name]
	s := LaneStatus{
		Name: l.Name, Interface: l.Interface, State: mem.State, Reason: string(mem.Reason), Endpoint: v.Endpoint,
		RTT: mem.RTT, Loss: mem.Loss, Class: l.DSCP, Since: mem.Since, Carries: []string{},
	}
	if peer, ok := v.Device.Active(); ok {
		s.Rx, s.Tx = peer.Rx, peer.Tx
		if !peer.Handshake.IsZero() {
			s.Handshake = p.in.Now.Sub(peer.Handshake)
		}
	}
	switch {
	case !v.Device.Present:
		s.State, s.Reason = "gone", "no interface "+l.Interface
	case v.Device.Error != "":
		s.State, s.Reason = "unknown", v.Device.Error
	case s.Endpoint == "":
		s.State = "empty"
	case s.State == "":
		s.State = "unchecked"
	}
	for class, at := range p.in.Plane.Classes {
		if at == l.Name {
			s.Carries = append(s.Carries, class)
		}
	}
	slices.Sort(s.Carries)
	if at, ok := p.in.Plane.Classes[l.Name]; ok && at != l.Name {
		nobody := "nobody (closed)"
		if !p.in.Plane.Ready {
			nobody = "nobody (the user plane is not in place)"
		}
		s.LentTo = first(at, nobody)
	}
	return s
}

func (p *pass) poolStatus(s *Status) {
	p.loadPools()
	e := newEligibility(&p.in)
	kept := map[string]bool{}
	for _, pool := range p.in.Pools {
		s.Pools = append(s.Pools, PoolStatus{Name: pool.Name, Rows: len(pool.Rows), Began: pool.Mtime, Error: pool.Error})
		if pool.Error != "" {
			s.Problems = append(s.Problems, pool.Error)
		}
	}
	for _, q := range slices.Backward(p.in.Quarantine) {
		cleared := slices.ContainsFunc(p.in.Pools, func(pool Pool) bool { return pool.Error == "" && e.clears(pool, q) })
		if !cleared && !kept[q.Endpoint] {
			kept[q.Endpoint] = true
			s.Quarantine = append(s.Quarantine, Quarantine{q.Endpoint, q.FailedAt, q.Slot, q.Reason})
		}
	}
}

func epoch(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n == 0 {
		return time.Time{}
	}
	return unix(n)
}

// Text renders the status for people: one screen.
func (s Status) Text(w io.Writer) {
	fmt.Fprintf(w, "mode %s", first(s.Mode, "unknown"))
	if !s.Since.IsZero() {
		fmt.Fprintf(w, " since %s", stamp(s.Since))
	}
	if s.Reason != "" {
		fmt.Fprintf(w, " (%s)", s.Reason)
	}
	fmt.Fprintf(w, " · uplink %s · %d replacements today\n\n", s.Uplink, s.CountToday)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "LANE\tINTERFACE\tSTATE\tENDPOINT\tRTT\tLOSS\tHANDSHAKE\tRX\tTX\tCARRIES")
	for _, l := range s.Lanes {
		st := l.State
		if l.Reason != "" && l.State != "up" {
			st += " (" + l.Reason + ")"
		}
		carries := strings.Join(l.Carries, ",")
		if l.LentTo != "" {
			carries = strings.TrimPrefix(carries+" own class lent to "+l.LentTo, " ")
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%.0f %%\t%s\t%s\t%s\t%s\n", l.Name, l.Interface, st, orNone(l.Endpoint),
			rttText(l.RTT), 100*l.Loss, age(l.Handshake), bytesText(l.Rx), bytesText(l.Tx), carries)
	}
	_ = tw.Flush()
	fmt.Fprintln(w)
	for _, p := range s.Pools {
		fmt.Fprintf(w, "pool %-15s %4d endpoints, tested from %s on (%s ago)\n", p.Name, p.Rows, stamp(p.Began), age(s.Time.Sub(p.Began)))
	}
	if len(s.Pools) == 0 {
		fmt.Fprintln(w, "no pool yet: run `shunt egress refresh`")
	}
	s.modesText(w)
	for _, q := range s.Quarantine {
		fmt.Fprintf(w, "quarantined %s since %s: removed from %s (%s)\n", q.Endpoint, stamp(q.Since), q.Slot, q.Reason)
	}
	for _, l := range s.Locks {
		fmt.Fprintf(w, "lock %s held by %s\n", l.Name, l.Holder)
	}
	for _, p := range s.Problems {
		fmt.Fprintf(w, "problem: %s\n", p)
	}
}

func rttText(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return d.Round(100 * time.Microsecond).String()
}

func age(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func bytesText(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/unit, 0
	for f >= unit && i < 4 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTP"[i])
}
