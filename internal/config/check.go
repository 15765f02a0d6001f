package config

import (
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

// Check judges a configuration that was not read from a file. The complaints name keys
// and no lines.
func Check(c Config) []Complaint {
	r := newReader("")
	r.cfg = c
	r.check()
	return r.sorted()
}

// check judges what was read, section by section.
func (r *reader) check() {
	if r.unread {
		return
	}
	c := &r.cfg
	r.checkCommon(c)
	r.checkAlerts(c.Alerts)
	r.checkWatchdog(c.Watchdog)
	r.checkEdge(&c.Edge)
	e := &c.Egress
	r.checkSources(e.Sources)
	r.checkPool(e.Pool)
	r.checkTest(e.Test)
	r.checkLanes(e)
	r.checkLadder(e.Check)
	r.checkUplink(e)
	r.checkRepair(e.Repair)
	r.checkRebalance(e.Rebalance)
	r.checkPlane(e)
	r.checkModes(e.Modes)
	r.checkRecovery(e.Recovery)
}

func (r *reader) checkCommon(c *Config) {
	switch {
	case !filepath.IsAbs(c.StateDir):
		r.complain("state_dir", quote(c.StateDir)+" is not an absolute path", "write it such as /var/lib/shunt")
	case filepath.Clean(c.StateDir) == "/":
		r.complain("state_dir", "the root folder cannot hold the state", "write it such as /var/lib/shunt")
	}
	r.positive("hooks.", "timeout", c.Hooks.Timeout)
	r.argv("hooks.on_event", c.Hooks.OnEvent)
}

func (r *reader) checkPool(p egress.PoolConfig) {
	const at = "egress.pool."
	if p.Dir != "" && !filepath.IsAbs(p.Dir) {
		r.complain(at+"dir", quote(p.Dir)+" is not an absolute path", `write "" for the folder pools inside state_dir`)
	}
	seen := map[string]string{}
	for _, f := range []struct{ key, name string }{
		{"strict_foreign", p.StrictForeign}, {"strict_all", p.StrictAll}, {"working", p.Working},
	} {
		switch {
		case f.name == "" || f.name == "." || f.name == ".." || strings.ContainsAny(f.name, "/\\"):
			r.complain(at+f.key, quote(f.name)+" is not a bare file name", "write the name only; pool.dir says where it is")
		case f.name == "current" || strings.HasPrefix(f.name, "gen-"):
			r.complain(at+f.key, quote(f.name)+" is a name that the pool's folder uses itself", "choose another name")
		case seen[f.name] != "":
			r.complain(at+f.key, fmt.Sprintf("%s is the name of %s too", quote(f.name), seen[f.name]), "each list needs a file of its own")
		}
		seen[f.name] = f.key
	}
	r.globs(at+"home", p.Home)
	r.share(at, "min_ratio", p.MinRatio)
	r.between(at, "keep", p.Keep, 1, 1000)
}

func (r *reader) checkTest(t egress.TestConfig) {
	const at = "egress.test."
	r.between(at, "parallel", t.Parallel, 1, 4096)
	r.between(at, "rate", t.Rate, 1, 100000)
	r.positive(at, "handshake_timeout", t.HandshakeTimeout)
	r.between(at, "pings", t.Pings, 1, 1000)
	r.positive(at, "ping_timeout", t.PingTimeout)
	r.addresses(at+"targets", t.Targets, true)
	r.hosts(at+"tls", t.TLS)
	r.positive(at, "tls_timeout", t.TLSTimeout)
	r.positive(at, "deadline", t.Deadline)
}

func (r *reader) checkLadder(c egress.CheckConfig) {
	const at = "egress.check."
	r.addresses(at+"targets", c.Targets, true)
	r.between(at, "count", c.Count, 1, 1000)
	if c.Need > c.Count && c.Count >= 1 {
		r.complain(at+"need", fmt.Sprintf("%d answers can never come to %d pings", c.Need, c.Count), "make it check.count at most")
	}
	r.between(at, "need", c.Need, 1, 1000)
	r.positive(at, "gap", c.Gap)
	r.positive(at, "wait", c.Wait)
	r.between(at, "strict_count", c.StrictCount, 1, 1000)
	r.positive(at, "max_handshake", c.MaxHandshake)
	r.positive(at, "tls_timeout", c.TLSTimeout)
	r.positive(at, "deep_every", c.DeepEvery)
	r.hosts(at+"tls", c.TLS)
	if len(c.TLS) == 1 {
		r.warn(at+"tls", "one target cannot tell a dead lane from a dead target", "name two unrelated ones, or [] for none")
	}
}

// hosts judges the targets of TLS handshakes.
func (r *reader) hosts(at string, list []egress.TLSTarget) {
	for i, t := range list {
		key := fmt.Sprintf("%s[%d].", at, i)
		switch {
		case !t.Address.IsValid():
			r.complain(key+"address", "is missing", "write it such as 1.1.1.1:443")
		case t.Address.Port() == 0 || useless(t.Address.Addr()):
			r.complain(key+"address", fmt.Sprintf("%s cannot be connected to", t.Address), "write it such as 1.1.1.1:443")
		}
		if strings.ContainsAny(t.ServerName, " /:") {
			r.complain(key+"server_name", quote(t.ServerName)+" is not a host name", "write the name only, such as one.one.one.one")
		}
	}
}

func (r *reader) checkUplink(e *egress.Config) {
	const at = "egress.uplink."
	u := e.Uplink
	if u.Interface != "" {
		r.iface(at+"interface", u.Interface)
		for _, l := range e.Lanes {
			if l.Interface == u.Interface {
				r.complain(at+"interface", fmt.Sprintf("%s is the interface of lane %s", u.Interface, l.Name), "name the interface that the tunnels themselves leave by")
			}
		}
	}
	if a, err := netip.ParseAddr(u.Gateway); u.Gateway != "auto" && (err != nil || useless(a)) {
		r.complain(at+"gateway", quote(u.Gateway)+" is not a gateway", "write auto, or its address")
	}
	r.addresses(at+"targets", u.Targets, true)
	r.positive(at, "timeout", u.Timeout)
}

func (r *reader) checkRepair(p egress.RepairConfig) {
	const at = "egress.repair."
	r.between(at, "threshold", p.Threshold, 1, 1000)
	r.between(at, "rise", p.Rise, 1, 1000)
	r.between(at, "parallel", p.Parallel, 1, 4096)
	r.between(at, "limit", p.Limit, 1, 100000)
	r.positive(at, "prove_for", p.ProveFor)
	r.between(at, "swap_limit", p.SwapLimit, 1, 1000)
	r.positive(at, "readd_after", p.Readd)
	r.positive(at, "hold_min", p.HoldMin)
	r.positive(at, "hold_max", p.HoldMax)
	if p.HoldMax > 0 && p.HoldMin > p.HoldMax {
		r.complain(at+"hold_max", fmt.Sprintf("%s is less than hold_min, %s", durationText(p.HoldMax), durationText(p.HoldMin)), "")
	}
	r.positive(at, "hold_decay", p.HoldDecay)
	r.positive(at, "retry_after", p.RetryAfter)
}

func (r *reader) checkRebalance(p egress.RebalanceConfig) {
	const at = "egress.rebalance."
	if p.Hysteresis.Gain < 0 {
		r.complain(at+"hysteresis.gain", durationText(p.Hysteresis.Gain)+" is less than nothing", "write 0s for none")
	}
	r.share(at, "hysteresis.ratio", p.Hysteresis.Ratio)
	r.between(at, "max_per_prefix", p.MaxPerPrefix, 0, 1<<20)
	r.globs(at+"allow", p.Allow)
	r.globs(at+"deny", p.Deny)
}

// The judges of single values. The path of a key is put together where there is something
// to complain about: some files have ten thousand keys.

func (r *reader) positive(at, key string, d time.Duration) {
	if d <= 0 {
		r.complain(at+key, durationText(d)+" is too short", "write a duration above zero")
	}
}

func (r *reader) between(at, key string, v, low, high int) {
	if v < low || v > high {
		r.complain(at+key, fmt.Sprintf("%d is out of range", v), fmt.Sprintf("write %d to %d", low, high))
	}
}

func (r *reader) share(at, key string, v float64) {
	if v < 0 || v > 1 {
		r.complain(at+key, fmt.Sprintf("%g is out of range", v), "write a part of the whole, 0 to 1")
	}
}

func (r *reader) globs(at string, globs []string) {
	for i, g := range globs {
		if _, err := path.Match(g, ""); err != nil || g == "" {
			r.complain(fmt.Sprintf("%s[%d]", at, i), quote(g)+" is not a glob", "write it such as nl-* or *-[0-9].conf")
		}
	}
}

// argv judges a command: none, or words of which the first names a program.
func (r *reader) argv(path string, argv []string) {
	if len(argv) == 0 {
		return
	}
	if argv[0] == "" || strings.TrimSpace(argv[0]) != argv[0] {
		r.complain(path+"[0]", quote(argv[0])+" is not a program", "write its path")
	} else if len(argv) == 1 && strings.ContainsAny(argv[0], " |;&><") {
		r.complain(path+"[0]", quote(argv[0])+" is one word: no shell splits it", "write [program, argument, …]")
	}
}

func (r *reader) addresses(path string, as []netip.Addr, some bool) {
	if some && len(as) == 0 {
		r.complain(path, "names no address", "write at least one, better two that have nothing in common")
	}
	for i, a := range as {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case useless(a):
			r.complain(at, fmt.Sprintf("%s cannot be asked", a), "write the address of one host")
		case slices.Index(as, a) < i:
			r.complain(at, fmt.Sprintf("%s is named twice", a), "remove one")
		}
	}
}

// useless says that no single far host has the address.
func useless(a netip.Addr) bool {
	return !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// entry is the path of an entry of a list.
func entry(at string, i int) string { return at + "[" + strconv.Itoa(i) + "]" }

// named says whether a word is a name: up to 31 of letters, digits and .-_, a letter or
// digit first.
func named(word string) bool {
	for i := range len(word) {
		switch c := word[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '-' || c == '_'):
		default:
			return false
		}
	}
	return word != "" && len(word) <= 31
}

// name judges the name of an entry of a list; others are the names before it.
func (r *reader) name(at, name string, others map[string]int, i int) {
	switch j, dup := others[name]; {
	case name == "":
		r.complain(at+".name", "is missing", "give each entry a name of its own")
	case !named(name):
		r.complain(at+".name", quote(name)+" is not a name", "use letters, digits and .-_, at most 31, a letter or digit first")
	case dup:
		r.complain(at+".name", fmt.Sprintf("%s is the name of entry %d too", quote(name), j+1), "give each entry a name of its own")
	default:
		others[name] = i
	}
}

// iface judges an interface's name (as the kernel's dev_valid_name does, and no colon,
// which means an alias to older tools).
func (r *reader) iface(path, name string) bool {
	switch {
	case name == "":
		r.complain(path, "is missing", "write the interface's name, such as vpn1")
	case len(name) > 15:
		r.complain(path, fmt.Sprintf("%s has %d bytes, an interface's name at most 15", quote(name), len(name)), "")
	case name == "." || name == ".." || strings.ContainsAny(name, "/:\"'*") ||
		strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		r.complain(path, quote(name)+" is not an interface's name", "write letters, digits and .-_")
	default:
		return true
	}
	return false
}
