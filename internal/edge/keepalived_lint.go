package edge

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// vrrp is a vrrp_instance of a file, with what keepalived would make of it.
type vrrp struct {
	file     string
	own      *stanza
	version  int
	name     string
	priority int
	weights  map[string]int // of the scripts that it tracks
}

func (v *vrrp) at(line int) string { return fmt.Sprintf("%s:%d", v.file, line) }

// line is that of a keyword, of the instance where it does not have it.
func (v *vrrp) line(keyword string) string {
	if s := v.own.find(keyword); s != nil {
		return v.at(s.line)
	}
	return v.at(v.own.line)
}

// addresses are those that advertisements name.
func (v *vrrp) addresses(keyword string) []string {
	var out []string
	if s := v.own.find(keyword); s != nil {
		for _, a := range s.block {
			out = append(out, a.word(0))
		}
	}
	slices.Sort(out)
	return out
}

// lint collects what is found.
type lint struct {
	found []Finding
}

func (l *lint) add(where, code, text, mend string) {
	l.found = append(l.found, Finding{Where: where, Code: code, Text: text, Mend: mend})
}

func (l *lint) warn(where, code, text, mend string) {
	l.found = append(l.found, Finding{Where: where, Code: code, Text: text, Mend: mend, Warning: true})
}

// LintKeepalived names the traps in keepalived's configuration. Files of several machines
// are compared with each other. c adds what the services want; an empty one wants nothing.
// No finding shows a password.
func LintKeepalived(files []ConfigFile, c Config) []Finding {
	l := &lint{}
	var all []vrrp
	routers := map[string]string{}
	for _, f := range files {
		top, bad := parseKeepalived(f.Text)
		if bad > 0 {
			l.add(fmt.Sprintf("%s:%d", f.Name, bad), "unbalanced", "a brace has no other: keepalived reads the rest of the file as something else", "count the braces of this block")
			continue
		}
		l.semicolons(f.Name, &top)
		if g := top.find("global_defs"); g != nil {
			if s := g.find("router_id"); s != nil {
				where := fmt.Sprintf("%s:%d", f.Name, s.line)
				if other, dup := routers[s.word(1)]; dup {
					l.add(where, "router_id_equal", fmt.Sprintf("router_id %s is that of %s too: nobody can tell the machines apart", s.word(1), other), "write each machine's own name")
				}
				routers[s.word(1)] = where
			}
		}
		here := instances(f.Name, &top)
		l.scripts(f.Name, &top)
		for i := range here {
			l.instance(&here[i])
			l.twice(here[:i], &here[i])
		}
		all = append(all, here...)
	}
	l.peers(all)
	l.wanted(all, c)
	return l.found
}

// instances are the vrrp_instances of a file.
func instances(file string, top *stanza) []vrrp {
	version := 2
	if g := top.find("global_defs"); g != nil && g.value("vrrp_version") == "3" {
		version = 3
	}
	weights := map[string]int{}
	for _, s := range top.block {
		if s.word(0) == "vrrp_script" {
			weights[s.word(1)], _ = strconv.Atoi(s.value("weight"))
		}
	}
	var out []vrrp
	for i := range top.block {
		s := &top.block[i]
		if s.word(0) != "vrrp_instance" {
			continue
		}
		v := vrrp{file: file, own: s, version: version, name: s.word(1), priority: 100, weights: map[string]int{}}
		switch s.value("version") {
		case "2":
			v.version = 2
		case "3":
			v.version = 3
		}
		if n, err := strconv.Atoi(s.value("priority")); err == nil {
			v.priority = n
		}
		if t := s.find("track_script"); t != nil {
			for _, tracked := range t.block {
				v.weights[tracked.word(0)] = weights[tracked.word(0)]
			}
		}
		out = append(out, v)
	}
	return out
}

// semicolons finds words that end in one: no other daemon's habit is worse here.
func (l *lint) semicolons(file string, s *stanza) {
	for i := range s.block {
		b := &s.block[i]
		for j, w := range b.words {
			if !strings.HasSuffix(w, ";") || j == 0 && w == ";" {
				continue
			}
			text, where := fmt.Sprintf("%s: keepalived ends no line with a semicolon, and takes it as a part of the word", strings.Join(b.words, " ")), fmt.Sprintf("%s:%d", file, b.line)
			switch b.word(0) {
			case "auth_pass":
				text = "auth_pass: keepalived ends no line with a semicolon, and takes it as a part of the password"
			case "auth_type":
				text = fmt.Sprintf("auth_type %s is no type that keepalived knows: it goes on WITHOUT authentication", w)
			}
			l.add(where, "semicolon", text, "remove the semicolon")
		}
		l.semicolons(file, b)
	}
}

// scripts judges what instances track.
func (l *lint) scripts(file string, top *stanza) {
	for i := range top.block {
		s := &top.block[i]
		if s.word(0) != "vrrp_script" {
			continue
		}
		for _, k := range []string{"interval", "timeout"} {
			if v := s.find(k); v != nil && strings.Contains(v.word(1), ".") {
				l.add(fmt.Sprintf("%s:%d", file, v.line), "script_interval", fmt.Sprintf("%s %s of a script takes whole seconds: keepalived ignores it", k, v.word(1)), "write 1 or more")
			}
		}
	}
}

// instance judges one instance by itself.
func (l *lint) instance(v *vrrp) {
	s := v.own
	if s.value("interface") == "" {
		l.add(v.at(s.line), "no_interface", fmt.Sprintf("instance %s names no interface", v.name), "write the one that clients' traffic comes in by")
	}
	if id, err := strconv.Atoi(strings.TrimSuffix(s.value("virtual_router_id"), ";")); err != nil || id < 1 || id > 255 {
		l.add(v.line("virtual_router_id"), "vrid_range", fmt.Sprintf("instance %s: virtual_router_id %q is not 1 to 255", v.name, s.value("virtual_router_id")), "write the same number on all replicas")
	} else if id == 51 {
		l.warn(v.line("virtual_router_id"), "vrid_example", "virtual_router_id 51 is that of every example: another pair on this network has it too, sooner or later", "choose another one, the same on all replicas")
	}
	if p := s.value("priority"); p == "" {
		l.warn(v.at(s.line), "no_priority", fmt.Sprintf("instance %s has no priority: it is 100, as that of every other without one", v.name), "write the replica's rung (`shunt edge keepalived`)")
	} else if v.priority < 1 || v.priority > 254 {
		l.add(v.line("priority"), "priority_range", fmt.Sprintf("priority %s: 255 is the owner's, who never gives the address up, and 0 means to resign", p), "write 1 to 254")
	}
	l.authentication(v)
	l.preempt(v)
	if a := s.value("advert_int"); strings.Contains(a, ".") && v.version == 2 {
		l.add(v.line("advert_int"), "advert_v2", fmt.Sprintf("advert_int %s: VRRP 2 knows whole seconds only, and keepalived rounds it", a), "write vrrp_version 3 into global_defs, on all replicas")
	}
	l.addressesOf(v)
}

func (l *lint) authentication(v *vrrp) {
	a := v.own.find("authentication")
	if a == nil {
		return
	}
	if v.version == 3 {
		l.warn(v.at(a.line), "auth_v3", "VRRP 3 has no authentication: keepalived ignores it", "remove the block; unicast_peer says who may speak")
		return
	}
	if t := a.find("auth_type"); t == nil || t.word(1) != "PASS" && t.word(1) != "AH" {
		where, said := v.at(a.line), "no auth_type"
		if t != nil {
			where, said = v.at(t.line), fmt.Sprintf("auth_type %q", t.word(1))
		}
		if t == nil || !strings.HasSuffix(t.word(1), ";") { // that has its finding already
			l.add(where, "auth_type", said+": keepalived knows PASS and AH, and goes on WITHOUT authentication", "write auth_type PASS")
		}
	}
	if p := a.find("auth_pass"); p != nil && len(strings.TrimSuffix(p.word(1), ";")) > 8 {
		l.add(v.at(p.line), "auth_long", fmt.Sprintf("auth_pass has %d bytes, and keepalived cuts it to 8: what differs behind them does not count", len(p.word(1))), "write 8 at most, the same on all replicas")
	}
}

func (l *lint) preempt(v *vrrp) {
	if v.own.find("nopreempt") == nil {
		return
	}
	if v.own.value("state") == "MASTER" {
		l.add(v.line("nopreempt"), "nopreempt_master", "nopreempt goes with state BACKUP only: keepalived drops it", "write state BACKUP on every replica")
	}
	for name, weight := range v.weights {
		if weight != 0 {
			l.add(v.line("nopreempt"), "nopreempt_weight", fmt.Sprintf("nopreempt, and script %s has a weight: a holder whose script fails loses rank, and nobody may take the address from it", name), "remove nopreempt, or the weight (a failing script is then a fault of the instance)")
		}
	}
}

func (l *lint) addressesOf(v *vrrp) {
	list := v.own.find("virtual_ipaddress")
	if list == nil || len(list.block) == 0 {
		l.add(v.at(v.own.line), "no_address", fmt.Sprintf("instance %s has no virtual_ipaddress", v.name), "write the services' addresses")
		return
	}
	first, known := wordFamily(list.block[0].word(0))
	for _, a := range list.block[1:] {
		if f, ok := wordFamily(a.word(0)); known && ok && f != first {
			l.add(v.at(a.line), "family", fmt.Sprintf("%s is of another family than %s: keepalived ignores it", a.word(0), list.block[0].word(0)), "put it into virtual_ipaddress_excluded")
		}
	}
	own := v.own.value("unicast_src_ip")
	if own != "" && slices.Contains(v.addresses("unicast_peer"), own) {
		l.add(v.line("unicast_peer"), "peer_self", fmt.Sprintf("%s is this machine itself, and its own peer", own), "list the others only")
	}
}

// wordFamily is 4 or 6 of 10.0.0.50/24 and such.
func wordFamily(word string) (int, bool) {
	text, _, _ := strings.Cut(word, "/")
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return 0, false
	case a.Is4():
		return 4, true
	}
	return 6, true
}
