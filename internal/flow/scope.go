package flow

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

// scope is which entries are meant.
type scope struct {
	proto   uint8
	from    netip.AddrPort // original destination
	reply   netip.Addr     // source of the answers
	port    uint16         // their source port; 0 = any
	pending bool           // only what was never answered
}

// of reads the scope of a flush. Each part must be there: a filter that lacks one would
// delete what belongs to others.
func of(f edge.Flush) (scope, error) {
	s := scope{pending: f.Pending}
	switch f.From.Protocol {
	case edge.TCP:
		s.proto = unix.IPPROTO_TCP
	case edge.UDP:
		s.proto = unix.IPPROTO_UDP
	case edge.ProtocolUnknown:
		return s, fmt.Errorf("flush of service %s: no protocol", f.Service)
	default:
		return s, fmt.Errorf("flush of service %s: protocol %q is neither tcp nor udp", f.Service, f.From.Protocol)
	}
	s.from = netip.AddrPortFrom(f.From.Addr.Addr().Unmap(), f.From.Addr.Port())
	to := f.To
	if f.Untrans { // without a translation the answers come from the address itself
		to = s.from
	}
	s.reply, s.port = to.Addr().Unmap(), to.Port()
	switch {
	case !plain(s.from.Addr()) || s.from.Port() == 0:
		return s, fmt.Errorf("flush of service %s: %s is no address with a port", f.Service, f.From.Addr)
	case !plain(s.reply):
		return s, fmt.Errorf("flush of service %s: no candidate address (%s)", f.Service, f.To)
	case s.reply.Is4() != s.from.Addr().Is4():
		return s, fmt.Errorf("flush of service %s: %s and %s are of two families", f.Service, s.from, f.To)
	}
	return s, nil
}

func plain(a netip.Addr) bool { return a.IsValid() && !a.IsUnspecified() && a.Zone() == "" }

func (s scope) family() uint8 {
	if s.from.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (s scope) String() string {
	name := "udp"
	if s.proto == unix.IPPROTO_TCP {
		name = "tcp"
	}
	return fmt.Sprintf("%s/%s answered by %s", s.from, name, netip.AddrPortFrom(s.reply, s.port))
}

// matches says whether an entry is in scope.
func (s scope) matches(e entry) bool {
	return e.family == s.family() && e.proto == s.proto && e.from == s.from && e.reply.Addr() == s.reply &&
		(s.port == 0 || e.reply.Port() == s.port) && (!s.pending || e.status&statusSeenReply == 0)
}

// job is one walk of the kernel through its table.
type job struct {
	scopes []scope
	family uint8
	reply  netip.Addr // of all scopes; invalid = they differ
	index  map[netip.AddrPort][]int
}

func newJob(scopes []scope) job {
	j := job{scopes: scopes, family: scopes[0].family(), reply: scopes[0].reply, index: map[netip.AddrPort][]int{}}
	for i, s := range scopes {
		j.index[s.from] = append(j.index[s.from], i)
		if s.reply != j.reply {
			j.reply = netip.Addr{}
		}
	}
	return j
}

// match returns the first of the job's scopes that an entry is in.
func (j job) match(e entry) (int, bool) {
	for _, i := range j.index[e.from] {
		if j.scopes[i].matches(e) {
			return i, true
		}
	}
	return 0, false
}

// plan makes the jobs of a list: one for each scope while there are at most most of them,
// else one for each source of answers, else one for each family.
func plan(list []edge.Flush, most int) ([]job, error) {
	var all []scope
	seen := map[scope]bool{}
	for _, f := range list {
		s, err := of(f)
		if err != nil {
			return nil, err
		}
		wide := s
		wide.pending = false
		if seen[s] || seen[wide] { // all of them includes the pending ones
			continue
		}
		seen[s] = true
		all = append(all, s)
	}
	groups := group(all, func(s scope) any { return s })
	if len(groups) > most {
		groups = group(all, func(s scope) any { return s.reply })
	}
	if len(groups) > most {
		groups = group(all, func(s scope) any { return s.family() })
	}
	jobs := make([]job, 0, len(groups))
	for _, g := range groups {
		jobs = append(jobs, newJob(g))
	}
	return jobs, nil
}

// group splits scopes by a key, in the order in which the keys first appear.
func group(all []scope, key func(scope) any) [][]scope {
	var out [][]scope
	at := map[any]int{}
	for _, s := range all {
		k := key(s)
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], s)
	}
	return out
}
