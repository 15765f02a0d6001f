package plane

import (
	"fmt"
	"strings"

	"github.com/shunt-net/shunt/internal/egress"
)

// prerouting chooses a lane for what users send.
func prerouting(c egress.Config) chain {
	rules := []string{
		fromOutside(c) + " return",
		"ip daddr @bypass4 return",
		"ip6 daddr @bypass6 return",
	}
	rules = append(rules, keepLanes(c)...)
	// A flow that goes direct, or was opened from outside by an uplink, stays what it is.
	rules = append(rules, fmt.Sprintf("ct mark & 0x%08x != 0x00000000 return", uint32(c.Plane.ClassMask)))
	rules = append(rules, "fib daddr type { local, broadcast, anycast, multicast } return", "meta nfproto ipv6 goto users6")
	for _, l := range c.Lanes {
		rules = append(rules, fmt.Sprintf("ip dscp @to_%d goto lane_%d", l.Table, l.Table))
	}
	return chain{"prerouting", hook("filter", "prerouting", c.Plane.Priority), rules}
}

// users6 does for IPv6 what the end of prerouting does for IPv4. nft 1.0 takes `ip6 dscp @set`
// and makes something of it that never matches (it shifts the two bytes before it puts them
// in order), while code points written out do match. So the home lane's mark stands for the
// class, and the sets hold those marks.
func users6(c egress.Config) chain {
	rules := notOfClass6(c)
	rules = append(rules, nameClass6(c)...)
	for _, l := range c.Lanes {
		rules = append(rules, fmt.Sprintf("meta mark & 0x%08x @to6_%d goto lane_%d", uint32(c.Plane.MarkMask), l.Table, l.Table))
	}
	return chain{name: "users6", rules: append(rules, clearMark(c))}
}

// leaving6 is for IPv6 that leaves by no lane: it ties what is direct to its class, and with
// the guard drops what is of a class that is not.
func leaving6(c egress.Config) chain {
	rules := notOfClass6(c)
	rules = append(rules, nameClass6(c)...)
	rules = append(rules, fmt.Sprintf("meta mark & 0x%08x @to6_direct goto direct6", uint32(c.Plane.MarkMask)))
	if !c.Plane.LeakGuard {
		return chain{name: "leaving6", rules: append(rules, clearMark(c))}
	}
	for _, l := range c.Lanes {
		if len(l.DSCP) > 0 {
			rules = append(rules, hasMark("meta", c.Plane.MarkMask, l.Mark)+fmt.Sprintf(" counter drop comment \"leak guard: class of %s\"", l.Name))
		}
	}
	return chain{name: "guard6", rules: rules}
}

// notOfClass6 returns for packets of no class, so that bits of theirs are not taken for ours.
func notOfClass6(c egress.Config) []string {
	var all []egress.DSCP
	for _, l := range c.Lanes {
		all = append(all, l.DSCP...)
	}
	if len(all) == 0 {
		return []string{"return"}
	}
	return []string{fmt.Sprintf("ip6 dscp != { %s } return", strings.Join(dscpNames(all), ", "))}
}

func nameClass6(c egress.Config) []string {
	var rules []string
	for _, l := range c.Lanes {
		if len(l.DSCP) > 0 {
			rules = append(rules, ofClass6(l)+" "+setMark("meta", c.Plane.MarkMask, l.Mark))
		}
	}
	return rules
}

func ofClass6(l egress.Lane) string {
	return fmt.Sprintf("ip6 dscp { %s }", strings.Join(dscpNames(l.DSCP), ", "))
}

func clearMark(c egress.Config) string {
	return fmt.Sprintf("meta mark set meta mark & 0x%08x", ^uint32(c.Plane.MarkMask))
}

// forward sees by which interface a packet is about to leave. Nothing that the router itself
// sends or receives comes here.
func forward(c egress.Config, f Facts) chain {
	var rules []string
	if c.Plane.ClampMSS {
		for _, way := range []string{"oifname", "iifname"} {
			rules = append(rules, clamp(way, "ipv4", f.MTU-40), clamp(way, "ipv6", f.MTU-60))
		}
	}
	rules = append(rules, fromOutside(c)+" ct state new jump arrived", fromOutside(c)+" return")
	// With no uplink known nothing says which interfaces are local ones, so the guard spares none.
	if len(c.Plane.Inputs) > 0 {
		rules = append(rules, "oifname @inputs return")
	} else if len(f.Uplinks) > 0 {
		rules = append(rules, "oifname != @outside return")
	}
	for _, l := range c.Lanes {
		rules = append(rules, hasMark("meta", c.Plane.MarkMask, l.Mark)+fmt.Sprintf(" goto leave_%d", l.Table))
	}
	// A flow that goes direct has its class's mark, for it has to be found when the class comes
	// back.
	rules = append(rules,
		hasMark("ct", c.Plane.ClassMask, c.Plane.ClassMask)+" return",
		"ip daddr @bypass4 return",
		"ip6 daddr @bypass6 return",
		"ip dscp @to_direct goto class")
	if c.Plane.LeakGuard {
		for _, l := range c.Lanes {
			rules = append(rules, fmt.Sprintf("ip dscp @class_%d counter drop comment \"leak guard: class of %s\"", l.Table, l.Name))
		}
	}
	rules = append(rules, "meta nfproto ipv6 jump "+leaving6(c).name)
	if c.Plane.LeakGuard {
		rules = append(rules, fmt.Sprintf("ct mark & 0x%08x != 0x00000000 counter drop comment \"leak guard: flow of a class\"", uint32(c.Plane.ClassMask)))
	}
	return chain{"forward", hook("filter", "forward", c.Plane.Priority), rules}
}

// arrived tells connections that somebody outside opened from late answers to flows that
// are gone.
func arrived() chain {
	return chain{name: "arrived", rules: []string{
		"ct status dnat goto origin",
		"tcp flags & (fin | syn | rst | ack) == syn goto origin",
	}}
}

// origin notes in the flow that it came in, by all bits of the class mask, and by which lane
// (no lane's bits: by an uplink), so that its answers leave by the same way.
func origin(c egress.Config, f Facts) chain {
	var rules []string
	both := c.Plane.MarkMask | c.Plane.ClassMask
	for _, l := range c.Lanes {
		rules = append(rules, fmt.Sprintf("iifname %q %s", l.Interface, setMark("ct", both, l.Mark|c.Plane.ClassMask)))
	}
	if len(f.Uplinks) > 0 {
		rules = append(rules, "iifname @uplinks "+setMark("ct", both, c.Plane.ClassMask))
	}
	return chain{name: "origin", rules: rules}
}

// input ties what comes in by a lane for the router itself to that lane. Late answers to flows
// that are gone come here too, since the lane's address is the router's: without this the
// router would tell their senders so by the uplink.
func input(c egress.Config) chain {
	var rules []string
	if c.Plane.LeakGuard {
		rules = append(rules, "iifname @lanes meta l4proto tcp ct state invalid counter drop comment \"leak guard: a reset would leave by the uplink\"")
	}
	rules = append(rules, fmt.Sprintf("iifname @lanes ct direction original ct mark & 0x%08x == 0x00000000 goto origin", uint32(c.Plane.MarkMask|c.Plane.ClassMask)))
	return chain{"input", hook("filter", "input", c.Plane.Priority), rules}
}

// output lets the router answer by the lane that it was asked by, and report errors of users'
// flows by their lane. Flows that the router opens have no lane.
func output(c egress.Config) chain {
	rules := append([]string{hasMark("ct", c.Plane.MarkMask, 0) + " return"}, keepLanes(c)...)
	return chain{"output", hook("route", "output", c.Plane.Priority), rules}
}

// keepLanes keeps a flow that has a lane on it.
func keepLanes(c egress.Config) []string {
	var rules []string
	for _, l := range c.Lanes {
		rules = append(rules, hasMark("ct", c.Plane.MarkMask, l.Mark)+fmt.Sprintf(" goto lane_%d", l.Table))
	}
	return rules
}

// leave ties a flow to the lane by which it leaves.
func leave(c egress.Config, l egress.Lane) chain {
	astray := fmt.Sprintf("oifname != %q return", l.Interface)
	if c.Plane.LeakGuard {
		astray = fmt.Sprintf("oifname != %q counter drop comment \"leak guard: lane %s\"", l.Interface, l.Name)
	}
	return chain{name: fmt.Sprintf("leave_%d", l.Table), rules: []string{
		astray,
		hasMark("ct", c.Plane.MarkMask, l.Mark) + " return",
		setMark("ct", c.Plane.MarkMask, l.Mark),
		"goto class",
	}}
}

// classChain notes in a flow which class it is of.
func classChain(c egress.Config) chain {
	var rules []string
	for _, l := range c.Lanes {
		if len(l.DSCP) > 0 {
			set := setMark("ct", c.Plane.ClassMask, c.ClassMark(l.Name))
			rules = append(rules, fmt.Sprintf("ip dscp @class_%d %s", l.Table, set), ofClass6(l)+" "+set)
		}
	}
	return chain{name: "class", rules: rules}
}

func postrouting(c egress.Config) chain {
	var rules []string
	for _, l := range c.Lanes {
		if l.NAT == egress.NATMasquerade {
			rules = append(rules, fmt.Sprintf("oifname %q masquerade", l.Interface))
		}
	}
	return chain{"postrouting", "type nat hook postrouting priority srcnat; policy accept;", rules}
}

func hook(kind, name string, priority int) string {
	at := fmt.Sprint(priority)
	if priority == -150 {
		at = "mangle"
	}
	return fmt.Sprintf("type %s hook %s priority %s; policy accept;", kind, name, at)
}

func fromOutside(c egress.Config) string {
	if len(c.Plane.Inputs) > 0 {
		return "iifname != @inputs"
	}
	return "iifname @outside"
}

func clamp(way, family string, mss int) string {
	return fmt.Sprintf("%s @lanes meta nfproto %s tcp flags syn tcp option maxseg size > %d tcp option maxseg size set %d", way, family, mss, mss)
}

func hasMark(of string, mask, mark egress.Mark) string {
	return fmt.Sprintf("%s mark & 0x%08x == 0x%08x", of, uint32(mask), uint32(mark))
}

// setMark changes the bits of mask only.
func setMark(of string, mask, mark egress.Mark) string {
	return fmt.Sprintf("%s mark set %s mark & 0x%08x | 0x%08x", of, of, ^uint32(mask), uint32(mark))
}
