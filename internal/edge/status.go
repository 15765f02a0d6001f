package edge

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Status is everything of edge at a glance. It is read without any write lock and without
// a probe.
type Status struct {
	Time     time.Time       `json:"time"`
	Node     string          `json:"node"`
	Digest   string          `json:"digest"` // of configuration, targets, vetoes and holds
	Services []Choice        `json:"services"`
	Replicas []ReplicaStatus `json:"replicas"`
	Holds    []Hold          `json:"holds,omitempty"`
	Vetoes   []Veto          `json:"vetoes,omitempty"`
	Parity   []ParityStatus  `json:"parity,omitempty"`
	Notes    []Note          `json:"notes,omitempty"`
	Held     []Held          `json:"held,omitempty"`
	Locks    []LockHolder    `json:"locks,omitempty"`
	Problems []string        `json:"problems,omitempty"`

	words map[int]string // of Services: what TARGET says where no table was seen to lead it
}

// ReplicaStatus is one replica's table.
type ReplicaStatus struct {
	Name    string   `json:"name"`
	Local   bool     `json:"local,omitempty"`
	State   string   `json:"state"` // equal | differs | absent | drifted | unreachable
	Reason  string   `json:"reason,omitempty"`
	Targets string   `json:"targets,omitempty"` // digest of its virtual addresses' targets
	Leases  []Lease  `json:"leases,omitempty"`
	Differs []string `json:"differs,omitempty"` // services
	Took    float64  `json:"took_ms"`
}

// ParityStatus is how a group was last found.
type ParityStatus struct {
	Name string `json:"name"`
	Parity
}

// LockHolder is a lock that is held now.
type LockHolder struct {
	Name   string `json:"name"`
	Holder string `json:"holder"`
}

// Status reads what there is.
func (e *Env) Status(ctx context.Context) (Status, error) {
	w := e.world()
	in, damaged := w.input(CommandRetarget)
	if err := w.look(ctx, &in); err != nil {
		in.Damage = append(in.Damage, err.Error())
	}
	plan := planWith(in, w.pre)
	if e.Watch != nil {
		e.Watch(in, plan)
	}
	s := Status{
		Time: e.Now(), Node: e.Node, Digest: plan.Digest, Services: plan.Choices, Holds: plan.Holds, Vetoes: plan.Next.Vetoes,
		Notes: plan.Notes, Held: plan.Held, Problems: in.Damage,
	}
	_ = damaged // its texts are among the problems
	s.words = map[int]string{}
	for i := range s.Services {
		s.Services[i].asIs()
		if word := w.bySight(&s.Services[i], in.Views); word != "" {
			s.words[i] = word
		}
	}
	for _, v := range in.Views {
		s.Replicas = append(s.Replicas, w.replicaStatus(v, plan))
	}
	for _, g := range e.Config.Parity {
		if found, ok := plan.Next.Parity[g.Name]; ok {
			s.Parity = append(s.Parity, ParityStatus{g.Name, found})
		}
	}
	for _, name := range []string{"watchdog", edgeLock, "state", "journal"} {
		if h := e.State.Holder(name); h != "" {
			s.Locks = append(s.Locks, LockHolder{name, h})
		}
	}
	return s, ctx.Err()
}

// asIs turns what would be chosen into what is.
func (c *Choice) asIs() {
	if c.Target == c.Was {
		return
	}
	c.Reason = fmt.Sprintf("the next run leads it to %s: %s", cmp.Or(c.Candidate, "nobody"), c.Reason)
	c.Target, c.Candidate = c.Was, ""
	if c.Epoch > 0 {
		c.Epoch-- // a move raises it
	}
	for _, s := range c.Candidates {
		if s.Addr == c.Target {
			c.Candidate = s.Candidate
		}
	}
}

// led is whom a choice leads to, for people.
func (c *Choice) led() string { return strings.TrimSpace(c.Candidate + " " + c.Target.String()) }

// The words for services whose target no table shows.
const (
	wordNowhere = "nowhere (no table)"
	wordUnseen  = "not seen"
)

// bySight takes back what is only remembered: a service that no table leads leads nowhere
// until the next run, and where no table can be seen nothing is known. "": a table shows it,
// or there is nothing to take back.
func (w *world) bySight(c *Choice, views []View) (word string) {
	var from []Endpoint
	for _, f := range w.pre.services[w.pre.byName[c.Service]].families {
		if f.n == c.Family {
			from = f.from
		}
	}
	blind := false
	for _, v := range views {
		blind = blind || v.Error != ""
		if v.Error == "" && slices.ContainsFunc(v.Table.Targets, func(e Element) bool { return slices.Contains(from, e.From) }) {
			return ""
		}
	}
	memory := ""
	if c.Target.IsValid() {
		memory = fmt.Sprintf("; remembered is %s (epoch %d)", c.led(), c.Epoch)
	}
	if len(from) == 0 || !blind && memory == "" {
		return ""
	}
	c.Target, c.Candidate, c.LastResort = netip.AddrPort{}, "", false
	if blind {
		c.Reason = "where it leads is not known: no table could be seen" + memory
		return wordUnseen
	}
	c.Reason = "no table leads it: it leads nowhere until the next run" + memory
	return wordNowhere
}

func (w *world) replicaStatus(v View, plan Plan) ReplicaStatus {
	r := ReplicaStatus{Name: v.Replica, Local: v.Local, State: "equal", Took: ms(v.Took), Leases: v.Table.Leases}
	switch {
	case v.Error != "":
		r.State, r.Reason = "unreachable", v.Error
		return r
	case v.Absent:
		r.State, r.Reason = "absent", "there is no table inet shunt_edge"
	case len(v.Drift) > 0:
		r.State, r.Reason = "drifted", some(v.Drift, 3)
	}
	to := map[Endpoint]netip.AddrPort{}
	for _, e := range v.Table.Targets {
		to[e.From] = e.To
	}
	var b strings.Builder
	for _, c := range plan.Choices {
		s := &w.pre.services[w.pre.byName[c.Service]]
		for fi := range s.families {
			f := &s.families[fi]
			if f.n != c.Family {
				continue
			}
			for _, from := range f.from {
				fmt.Fprintf(&b, "%s %s\n", from.Addr, to[from])
				if to[from] != c.Was && !slices.Contains(r.Differs, c.Service) {
					r.Differs = append(r.Differs, c.Service)
				}
			}
		}
	}
	r.Targets = short([]byte(b.String()))
	if len(r.Differs) > 0 && r.State == "equal" {
		r.State, r.Reason = "differs", "other targets for "+some(r.Differs, 4)
	}
	return r
}

// Well says whether every service leads to a healthy candidate, every replica agrees and
// nothing is a problem.
func (s Status) Well() bool {
	for _, c := range s.Services {
		if !c.Target.IsValid() || c.LastResort {
			return false
		}
		for _, x := range c.Candidates {
			if x.Addr == c.Target && (x.State == StateVetoed || x.State == StateHeld || x.State == StateRising) {
				return false
			}
		}
	}
	loud := slices.ContainsFunc(s.Notes, func(n Note) bool { return n.Loud })
	return s.Agrees() && !loud && len(s.Problems) == 0
}

// Agrees says whether all replicas can be reached and lead to the same targets.
func (s Status) Agrees() bool {
	for _, r := range s.Replicas {
		if r.State != "equal" {
			return false
		}
	}
	return !Plan{Notes: s.Notes}.Disagrees()
}

// Text renders the status for people: one screen.
func (s Status) Text(w io.Writer) {
	fmt.Fprintf(w, "edge on %s, digest %s\n\n", s.Node, s.Digest)
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "SERVICE\tADDRESS\tTARGET\tEPOCH\tWRITER\tCANDIDATES")
	for i, c := range s.Services {
		var list []string
		for _, x := range c.Candidates {
			list = append(list, x.said(s.Time.Unix()))
		}
		target := cmp.Or(s.words[i], "nobody")
		if c.Target.IsValid() {
			target = c.led()
		}
		if c.LastResort {
			target += " (last resort)"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\n", c.Service, cmp.Or(c.Address, "nodes only"), target, c.Epoch, cmp.Or(c.Writer, "nobody"), strings.Join(list, ", "))
	}
	_ = tw.Flush()
	fmt.Fprintln(w)
	for _, r := range s.Replicas {
		fmt.Fprintf(w, "replica %s: %s%s", r.Name, r.State, inBrackets(r.Reason))
		for _, l := range r.Leases {
			fmt.Fprintf(w, "; %s at work for another %s", l.Node, l.Left.Round(time.Second))
		}
		fmt.Fprintln(w)
	}
	for _, h := range s.Holds {
		fmt.Fprintf(w, "held %s/%s by %s since %s%s\n", h.Service, h.Candidate, h.Owner, stamp(h.Since), inBrackets(h.Reason))
	}
	for _, p := range s.Parity {
		state := "equal"
		switch {
		case !p.Equal:
			state = "differs: " + islands(p.Hashes)
		case len(p.Errors) > 0:
			state = "equal where it could be read, not at " + some(slices.Sorted(maps.Keys(p.Errors)), 3)
		}
		fmt.Fprintf(w, "parity %s: %s (compared at %s)\n", p.Name, state, stamp(p.At))
	}
	for _, h := range s.Held {
		fmt.Fprintf(w, "held back %s: %s (%s)\n", h.Object, h.Reason, h.Code)
	}
	for _, n := range s.Notes {
		fmt.Fprintf(w, "note %s: %s (%s)\n", n.Object, n.Text, n.Code)
	}
	for _, l := range s.Locks {
		fmt.Fprintf(w, "lock %s held by %s\n", l.Name, l.Holder)
	}
	for _, p := range s.Problems {
		fmt.Fprintf(w, "problem: %s\n", p)
	}
}
