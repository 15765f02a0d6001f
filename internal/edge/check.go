package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Finding is a fault of what shunt stands on, with its mend.
type Finding struct {
	Where   string `json:"where"`             // keepalived.conf:12, core-02, net.ipv4.ip_forward
	Code    string `json:"code"`              // ip_forward, vrid_twice, …
	Warning bool   `json:"warning,omitempty"` // it works all the same
	Text    string `json:"text"`
	Mend    string `json:"mend,omitempty"` // what to do, best as a command
}

// The codes of findings about replicas: a run applies to the others all the same.
const (
	FindUnreachable = "unreachable"
	FindDiffers     = "differs"
	FindAbsent      = "absent"
	FindDrifted     = "drifted"
)

// OfReplica says whether the finding is that a replica is not as the others are.
func (f Finding) OfReplica() bool {
	return slices.Contains([]string{FindUnreachable, FindDiffers, FindAbsent, FindDrifted}, f.Code)
}

// Facts is what Check judges.
type Facts struct {
	Config Config
	Node   string // this machine's name
	Host   Host   // as Sight sees it
	Status Status // tables and choices
	Synced Synced // this machine's clock
	Flows  []FlowFact
	Lint   []Finding // of keepalived's configuration on this machine
}

// Synced says whether a clock follows others.
type Synced string

// The states of a clock. The zero value is not known.
const (
	SyncedUnknown Synced = ""
	SyncedYes     Synced = "yes"
	SyncedNo      Synced = "no"
)

// FlowFact is how many connections to a virtual address went on to a candidate, and how
// many of them never saw an answer.
type FlowFact struct {
	Service   string
	Candidate netip.AddrPort
	All       int
	Pending   int
}

// findings collects.
type findings struct {
	list []Finding
}

func (l *findings) add(where, code, mend, format string, args ...any) {
	l.list = append(l.list, Finding{Where: where, Code: code, Text: fmt.Sprintf(format, args...), Mend: mend})
}

func (l *findings) warn(where, code, mend, format string, args ...any) {
	l.list = append(l.list, Finding{Where: where, Code: code, Text: fmt.Sprintf(format, args...), Mend: mend, Warning: true})
}

// Check judges what shunt stands on: this machine's settings, the candidates' places and
// ways back, the replicas, the clock. It is pure.
func Check(f Facts) []Finding {
	l := &findings{}
	l.forwarding(f)
	l.conntrack(f)
	l.reversePath(f)
	l.arp(f)
	for i := range f.Config.Services {
		s := &f.Config.Services[i]
		l.places(f, s)
		l.wayBack(f, s)
		l.holder(f, s)
	}
	l.flows(f)
	l.replicas(f)
	l.clock(f)
	l.list = append(l.list, f.Lint...)
	slices.SortStableFunc(l.list, func(a, b Finding) int {
		switch {
		case a.Warning == b.Warning:
			return 0
		case a.Warning:
			return 1
		}
		return -1
	})
	return l.list
}

// sysctlName is net.ipv4.ip_forward of net/ipv4/ip_forward; a dot in an interface's name
// stays a slash, as sysctl(8) wants it.
func sysctlName(key string) string {
	return strings.NewReplacer("/", ".", ".", "/").Replace(key)
}

// setTo is the command that sets a key now and at each boot.
func setTo(key string, value int) string {
	line := fmt.Sprintf("%s=%d", sysctlName(key), value)
	return fmt.Sprintf("sysctl -w %s && echo %s >> /etc/sysctl.d/90-shunt.conf", line, line)
}

// remote says whether a service has a candidate of the family that is another machine.
func remote(f Facts, six bool) bool {
	for _, s := range f.Config.Services {
		for _, c := range s.Candidates {
			for _, a := range c.Addresses {
				if a.Is6() == six && !slices.Contains(f.Host.Local, a) && !slices.Contains(f.Host.Addresses, a) {
					return true
				}
			}
		}
	}
	return false
}

func (l *findings) forwarding(f Facts) {
	for _, k := range []struct {
		key string
		six bool
	}{{"net/ipv4/ip_forward", false}, {"net/ipv6/conf/all/forwarding", true}} {
		v, known := f.Host.Sysctl[k.key]
		switch {
		case !remote(f, k.six):
		case !known:
			l.warn(sysctlName(k.key), "ip_forward", "run it as root", "can't be read: whether this machine forwards is not known")
		case v == 0:
			l.add(sysctlName(k.key), "ip_forward", setTo(k.key, 1), "is 0: the kernel forwards nothing to candidates on other machines")
		}
	}
}

func (l *findings) conntrack(f Facts) {
	const loose = "net/netfilter/nf_conntrack_tcp_loose"
	var wants []string
	for _, s := range f.Config.Services {
		if s.ResetDead && slices.Contains(s.Protocols, TCP) {
			wants = append(wants, s.Name)
		}
	}
	if len(wants) == 0 {
		return
	}
	switch v, known := f.Host.Sysctl[loose]; {
	case !known:
		l.warn(sysctlName(loose), "tcp_loose", "modprobe nf_conntrack", "can't be read: reset_dead (%s) needs it to be 1", someOf(wants))
	case v == 0:
		l.add(sysctlName(loose), "tcp_loose", setTo(loose, 1), "is 0: reset_dead (%s) cuts connections, and their clients hang instead of hearing of it", someOf(wants))
	}
}

// some names a few of many.
func someOf(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// interfaces are those that have settings of their own.
func interfaces(h Host) []string {
	var out []string
	for key := range h.Sysctl {
		name, ok := strings.CutPrefix(key, "net/ipv4/conf/")
		if name, of := strings.CutSuffix(name, "/rp_filter"); ok && of && name != "all" && name != "lo" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// setting is a value of an interface: the kernel takes the greater one of its own and that of all.
func setting(h Host, name, key string) (int, bool) {
	own, known := h.Sysctl["net/ipv4/conf/"+name+"/"+key]
	return max(own, h.Sysctl["net/ipv4/conf/all/"+key]), known
}

func (l *findings) reversePath(f Facts) {
	list := interfaces(f.Host)
	if len(list) < 2 {
		return // every way is the same one
	}
	for _, name := range list {
		if v, known := setting(f.Host, name, "rp_filter"); known && v == 1 {
			l.warn(sysctlName("net/ipv4/conf/"+name+"/rp_filter"), "rp_filter", setTo("net/ipv4/conf/"+name+"/rp_filter", 2),
				"is strict (1, its own or that of all): what comes in by %s and would go back by another interface is dropped unseen", name)
		}
	}
}

// arp finds two interfaces on one network that both answer for each other's addresses.
func (l *findings) arp(f Facts) {
	networks := 0
	for _, p := range f.Host.Links {
		if p.Addr().Is4() {
			networks++
		}
	}
	list := interfaces(f.Host)
	if networks == 0 || len(list) <= networks {
		return
	}
	for _, name := range list {
		ignore, known := setting(f.Host, name, "arp_ignore")
		announce, _ := setting(f.Host, name, "arp_announce")
		if known && (ignore == 0 || announce < 2) {
			l.warn(name, "arp", setTo("net/ipv4/conf/all/arp_ignore", 1)+"; "+setTo("net/ipv4/conf/all/arp_announce", 2),
				"%d interfaces share %d networks, and %s answers ARP for addresses of the others: clients may learn either's", len(list), networks, name)
			return
		}
	}
}
