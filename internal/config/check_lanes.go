package config

import (
	"fmt"
	"math/bits"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/shunt-net/shunt/internal/egress"
)

// taken finds values that two lanes have.
type taken map[string]string // value -> lane

func (t taken) by(lane, value string) string {
	if other, ok := t[value]; ok {
		return other
	}
	t[value] = lane
	return ""
}

func (r *reader) checkLanes(e *egress.Config) {
	names := map[string]int{}
	ifaces, tables, marks, classes, pins := taken{}, taken{}, taken{}, taken{}, taken{}
	for i, l := range e.Lanes {
		at := fmt.Sprintf("egress.lanes[%d]", i)
		name := l.Name
		if name == "" {
			name = strconv.Itoa(i + 1)
		}
		r.name(at, l.Name, names, i)
		if l.Name == "direct" || l.Name == "none" {
			r.complain(at+".name", quote(l.Name)+" is a word of shunt's own", "give the lane another name")
		}
		unique := func(t taken, key, what, value string) {
			if other := t.by(name, value); other != "" {
				r.complain(at+"."+key, fmt.Sprintf("%s %s is that of lane %s too", what, value, other), "each lane needs its own")
			}
		}
		if r.iface(at+".interface", l.Interface) {
			unique(ifaces, "interface", "interface", l.Interface)
		}
		if r.table(at+".table", l.Table) {
			unique(tables, "table", "table", strconv.Itoa(l.Table))
		}
		if r.mark(at+".mark", l.Mark, e.Plane.MarkMask) {
			unique(marks, "mark", "mark", l.Mark.String())
		}
		for j, d := range l.DSCP {
			unique(classes, fmt.Sprintf("dscp[%d]", j), "class", d.String())
		}
		if l.Pin != "" {
			if r.pin(at+".pin", l.Pin) {
				unique(pins, "pin", "endpoint", l.Pin)
			}
		}
		r.checkDriver(at, l)
	}
	if len(e.Lanes) == 0 && len(r.cfg.Edge.Services) == 0 {
		r.warn("egress.lanes", "no lane is named: there is nothing to keep up", "name lanes here, or services in edge.services")
	}
}

func (r *reader) table(path string, table int) bool {
	switch {
	case table == 0:
		r.complain(path, "is missing", "write the number of the lane's routing table, such as 201")
	case table >= 253 && table <= 255:
		r.complain(path, fmt.Sprintf("%d is a table of the kernel's own", table), "253 is default, 254 is main, 255 is local: choose another")
	case table < 1 || table > 1<<31-1:
		r.complain(path, fmt.Sprintf("%d is out of range", table), "write 1 to 2147483647, but not 253 to 255")
	default:
		return true
	}
	return false
}

func (r *reader) mark(path string, m, mask egress.Mark) bool {
	switch {
	case m == 0:
		r.complain(path, "is missing", "write the lane's firewall mark, such as 0x201; 0 is no mark")
	case m&^mask != 0:
		r.complain(path, fmt.Sprintf("%s has bits outside plane.mark_mask, %s", m, mask), "choose another mark, or a wider mask")
	default:
		return true
	}
	return false
}

func (r *reader) pin(path, pin string) bool {
	a, err := netip.ParseAddrPort(pin)
	if err != nil || a.Port() == 0 || useless(a.Addr()) {
		r.complain(path, quote(pin)+" is not an endpoint", "write it such as 192.0.2.7:51820")
		return false
	}
	return true
}

func (r *reader) checkDriver(at string, l egress.Lane) {
	c := l.Commands
	if l.Driver != egress.DriverCommands {
		own := c
		own.Timeout = 0
		if own.Template != "" || own.Installed != "" || len(own.Up)+len(own.Down)+len(own.Apply) > 0 {
			r.complain(at+".commands", fmt.Sprintf("driver %s runs no commands", l.Driver), "remove them, or write driver: commands")
		}
		return
	}
	switch c.Template {
	case "":
		if len(c.Apply) == 0 && (len(c.Up) == 0 || len(c.Down) == 0) {
			r.complain(at+".commands", "says neither how to apply a profile nor how to go down and up", "write a template (awg-quick, ifupdown, wg-quick), or apply, or down and up")
		}
	case "awg-quick", "ifupdown", "wg-quick":
	default:
		hint := "known: awg-quick, ifupdown, wg-quick"
		if n := Nearest(c.Template, []string{"awg-quick", "ifupdown", "wg-quick"}); n != "" {
			hint = fmt.Sprintf("did you mean %q?", n)
		}
		r.complain(at+".commands.template", quote(c.Template)+" is not a known template", hint)
	}
	if c.Installed != "" && !filepath.IsAbs(c.Installed) {
		r.complain(at+".commands.installed", quote(c.Installed)+" is not an absolute path", "")
	}
	r.argv(at+".commands.up", c.Up)
	r.argv(at+".commands.down", c.Down)
	r.argv(at+".commands.apply", c.Apply)
	for _, f := range []struct {
		key  string
		argv []string
	}{{"up", c.Up}, {"down", c.Down}, {"apply", c.Apply}} {
		r.placeholders(at+".commands."+f.key, f.argv, c.Installed != "" || c.Template != "")
	}
	r.positive(at, ".commands.timeout", c.Timeout)
}

var braced = regexp.MustCompile(`\{([a-z]+)\}`)

// placeholders judges what a lane's command has in braces.
func (r *reader) placeholders(path string, argv []string, installed bool) {
	known := []string{"interface", "lane", "config", "installed", "stripped"}
	for i, word := range argv {
		at := fmt.Sprintf("%s[%d]", path, i)
		for _, m := range braced.FindAllStringSubmatch(word, -1) {
			switch {
			case m[1] == "installed" && !installed:
				r.complain(at, "{installed} is used, and commands.installed is not set", "write the path of the file that the command reads")
			case !slices.Contains(known, m[1]):
				hint := "known: {interface}, {lane}, {config}, {installed}, {stripped}"
				if n := Nearest(m[1], known); n != "" {
					hint = fmt.Sprintf("did you mean {%s}?", n)
				}
				r.warn(at, m[0]+" is not replaced by anything", hint)
			}
		}
	}
}

func (r *reader) checkPlane(e *egress.Config) {
	const at = "egress.plane."
	p := e.Plane
	if p.MarkMask == 0 {
		r.complain(at+"mark_mask", "0 leaves no bit for marks", "write it such as 0xfff")
	}
	r.classMask(at+"class_mask", p, len(e.Lanes))
	r.between(at, "priority", p.Priority, -199, 300)
	r.between(at, "rule_pref", p.RulePref, 1, 32000)
	for i, b := range p.Bypass {
		if b.Masked() != b {
			r.complain(fmt.Sprintf("%sbypass[%d]", at, i), fmt.Sprintf("%s has bits behind its length", b), fmt.Sprintf("write %s, or %s for the one host", b.Masked(), netip.PrefixFrom(b.Addr(), b.Addr().BitLen())))
		}
	}
	for i, in := range p.Inputs {
		key := fmt.Sprintf("%sinputs[%d]", at, i)
		if !r.iface(key, in) {
			continue
		}
		for _, l := range e.Lanes {
			if l.Interface == in {
				r.complain(key, fmt.Sprintf("%s is the interface of lane %s", in, l.Name), "users do not come in by a lane")
			}
		}
	}
}

// classMask judges that the mask can number every lane: its bits are next to each other,
// none is the mark mask's, and their greatest value is not below the number of lanes.
func (r *reader) classMask(path string, p egress.PlaneConfig, lanes int) {
	m := uint32(p.ClassMask)
	if m == 0 {
		r.complain(path, "0 leaves no bit for classes", "write it such as 0xff000")
		return
	}
	ids := m >> bits.TrailingZeros32(m)
	switch {
	case p.ClassMask&p.MarkMask != 0:
		r.complain(path, fmt.Sprintf("%s and mark_mask, %s, share bits", p.ClassMask, p.MarkMask), "lane and class are told apart by them: choose other bits")
	case ids&(ids+1) != 0:
		r.complain(path, fmt.Sprintf("the bits of %s are not next to each other", p.ClassMask), "write it such as 0xff000")
	case uint64(lanes) >= uint64(ids): // the highest one marks what came in from outside
		r.complain(path, fmt.Sprintf("%s numbers %d classes, and there are %d lanes", p.ClassMask, ids-1, lanes), "choose a wider mask")
	}
}
