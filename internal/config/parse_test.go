package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// said is a file's complaints, one per line: line:column, key, message, hint.
func said(cs []Complaint) string {
	var b strings.Builder
	for _, c := range cs {
		fmt.Fprintf(&b, "%d:%d %s: %s", c.Line, c.Column, c.Key, c.Msg)
		if c.Hint != "" {
			fmt.Fprintf(&b, " | %s", c.Hint)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func lines(s ...string) string { return strings.Join(s, "\n") + "\n" }

func TestFaultsOfAFile(t *testing.T) {
	tests := []struct {
		name, file, want string
	}{
		{"nothing", "", ""},
		{"only comments", "# nothing yet\n", ""},
		{"only a document mark", "---\n", ""},
		{"sections whose keys are comments", lines("log:", "egress:", "  sources:", "  # - name: x", "  check:"), ""},
		{
			"a mistyped key names the nearest", lines("egress:", "  lane: []"),
			"2:3 egress.lane: unknown key | did you mean \"lanes\"?\n",
		},
		{
			"a key of another section says where it belongs", lines("egress:", "  repair:", "    targets: [1.1.1.1]"),
			"3:5 egress.repair.targets: unknown key | there is egress.test.targets; here the keys are threshold, rise, parallel, limit, prove_for, swap_limit, readd_after, hold_min, hold_max, hold_decay, retry_after\n",
		},
		{
			"a word from nowhere lists the keys", lines("log:", "  destination: x"),
			"2:3 log.destination: unknown key | the keys here are level\n",
		},
		{
			"all faults at once", lines("state_dri: /x", "log: {level: loud}", "egress:", "  repair:", "    threshold: many", "    hold_min: 5", "    rise: 2.5"),
			"1:1 state_dri: unknown key | did you mean \"state_dir\"?\n" +
				"2:14 log.level: \"loud\" is not a known word | known: debug, info, warn, error\n" +
				"5:16 egress.repair.threshold: \"many\" is not a whole number | write digits only, such as 3\n" +
				"6:15 egress.repair.hold_min: \"5\" is not a duration | a duration needs its unit: 5s, 5ms or 5m\n" +
				"7:11 egress.repair.rise: \"2.5\" is not a whole number | write digits only, such as 3\n",
		},
		{
			"a key twice", lines("log: {level: info}", "state_dir: /a", "log: {level: warn}"),
			"3:1 log: key is written twice, first in line 1 | keep one of them\n",
		},
		{
			"a list for a value and a value for a list", lines("state_dir: [/a]", "egress:", "  check:", "    targets: 1.1.1.1", "    tls: {a: 1}"),
			"1:12 state_dir: a list where one value is wanted (text)\n" +
				"4:14 egress.check.targets: one value where a list is wanted | write [1.1.1.1], or one entry per line, each after a dash\n" +
				"5:10 egress.check.tls: a mapping where a list is wanted | write one entry per line, each after a dash\n",
		},
		{
			"a value for a mapping", "log: info\n",
			"1:6 log: one value where a mapping is wanted | write the keys below it, each with its value: level\n",
		},
		{
			"words for a switch", lines("egress:", "  plane:", "    leak_guard: yes", "    clamp_mss: \"true\"", "    flush_flows: 0"),
			"3:17 egress.plane.leak_guard: \"yes\" is not true or false | write true\n" +
				"4:16 egress.plane.clamp_mss: text where a value is wanted (true | false) | write it without quotes\n" +
				"5:18 egress.plane.flush_flows: \"0\" is not true or false | write false\n",
		},
		{
			"days", lines("egress:", "  repair:", "    hold_max: 2d"),
			"3:15 egress.repair.hold_max: \"2d\" is not a duration | the greatest unit is the hour: write 48h\n",
		},
		{
			"no value", lines("state_dir:", "log:", "  level: ~"),
			"1:11 state_dir: has no value | write \"\" for an empty text, or remove the key to have its default\n" +
				"3:10 log.level: has no value | write a value, or remove the key to have its default\n",
		},
		{
			"addresses", lines("egress:", "  check:", "    targets: [one.one.one.one, 1.1.1]", "    tls: [{address: 1.1.1.1}]", "  plane:", "    bypass: [10.0.0.0, '']"),
			"3:15 egress.check.targets[0]: \"one.one.one.one\" is not an IP address | write an address such as 1.1.1.1 or 2606:4700:4700::1111; names are not resolved here\n" +
				"3:32 egress.check.targets[1]: \"1.1.1\" is not an IP address | write an address such as 1.1.1.1 or 2606:4700:4700::1111; names are not resolved here\n" +
				"4:21 egress.check.tls[0].address: \"1.1.1.1\" is not an address with a port | write it such as 1.1.1.1:443 or [2606:4700:4700::1111]:443\n" +
				"6:14 egress.plane.bypass[0]: \"10.0.0.0\" is not a prefix | write it such as 10.0.0.0/8 or fd00::/8\n" +
				"6:24 egress.plane.bypass[1]: \"\" is not a prefix | write it such as 10.0.0.0/8 or fd00::/8\n",
		},
		{
			"marks and classes", lines("egress:", "  lanes:", "    - {mark: vpn2, dscp: [cs9, 64]}", "  plane: {mark_mask: 0x1ffffffff}"),
			"3:14 egress.lanes[0].mark: mark \"vpn2\": want a number up to 0xffffffff\n" +
				"3:27 egress.lanes[0].dscp[0]: dscp \"cs9\": want cs0…cs7, af11…af43, ef, va, le or a number from 0 to 63\n" +
				"3:32 egress.lanes[0].dscp[1]: dscp \"64\": want cs0…cs7, af11…af43, ef, va, le or a number from 0 to 63\n" +
				"4:22 egress.plane.mark_mask: mark \"0x1ffffffff\": want a number up to 0xffffffff\n",
		},
		{
			"an enumerated word mistyped", lines("egress:", "  lanes:", "    - driver: wiregaurd"),
			"3:15 egress.lanes[0].driver: \"wiregaurd\" is not a known word | did you mean \"wireguard\"? (known: wireguard, amneziawg, commands)\n",
		},
		{
			"numbers beyond their type", lines("egress:", "  pool: {keep: 99999999999999999999, min_ratio: .inf}"),
			"2:16 egress.pool.keep: \"99999999999999999999\" is not a whole number | write digits only, such as 3\n" +
				"2:49 egress.pool.min_ratio: \".inf\" is not a number | write a number such as 0.8\n",
		},
		{
			"tabs", "log:\n\tlevel: info\n  # fine\n\t# fine\n",
			"2:1 : indented with a tab | YAML takes spaces only: two for each step\n",
		},
		{
			"several documents", "log: {level: info}\n---\nlog: {level: warn}\n",
			"2:1 : the file holds more than one document | keep what is before the second ---\n",
		},
		{
			"an anchor and an alias", lines("egress:", "  check: {targets: &t [1.1.1.1]}", "  test: {targets: *t}"),
			"2:20 egress.check.targets: anchor \"&t\" is not supported | write each value out where it is used\n" +
				"3:19 egress.test.targets: alias \"*t\" is not supported | write the value out\n",
		},
		{
			"an alias of nothing", "a: 1\nstate_dir: *none\n",
			"2:12 : not valid YAML: unknown anchor 'none' referenced | aliases are not supported: write the value out, and put text that begins with * in quotes\n",
		},
		{
			"a merge key", lines("egress:", "  check: {<<: {count: 3}}"),
			"2:11 egress.check.<<: unknown key | merge keys are not supported: write the keys out\n",
		},
		{
			"a tag", "state_dir: !!binary L3Zhcg==\n",
			"1:12 state_dir: tag \"!!binary\" is not supported | write the value without a tag\n",
		},
		{
			"a mapping as a key", "? {a: b}\n: c\n",
			"1:3 ?: a key must be a plain word\n",
		},
		{
			"a list at the top", "- a\n",
			"1:1 : a list where the file's mapping is wanted | the keys at the top are state_dir, log, hooks, alerts, watchdog, edge, egress\n",
		},
		{
			"a missing colon below a section", lines("log:", "  level info", "state_dir: /a"),
			"2:3 log: one value where a mapping is wanted | a colon is missing: write level: info\n",
		},
		{
			"a missing colon", lines("log: {level: info}", "state_dir /a", "egress: {}"),
			"2:1 : not valid YAML: could not find expected ':' | look at the indentation, at colons and at quotes in that line and the one before\n",
		},
		{
			"binary", "log:\n  level: in\x00fo\n",
			"2:1 : holds a NUL byte: this is not a text file\n",
		},
		{
			"a control character in a value", `state_dir: "/var/\nlib"` + "\n",
			"1:12 state_dir: \"/var/\\nlib\" holds a control character | write it on one line, without tabs\n",
		},
		{
			"a key that would break the line", "\"a\\nb\": 1\n",
			"1:1 \"a\\nb\": unknown key | the keys at the top are state_dir, log, hooks, alerts, watchdog, edge, egress\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := parse("f.yaml", []byte(tt.file))
			if diff := cmp.Diff(tt.want, said(r.sorted())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEncodings(t *testing.T) {
	for name, file := range map[string]string{
		"CRLF":       "log:\r\n  level: debug\r\n",
		"BOM":        "\ufefflog:\n  level: debug\n",
		"no newline": "log:\n  level: debug",
	} {
		t.Run(name, func(t *testing.T) {
			r := parse("f.yaml", []byte(file))
			if got := said(r.complaints); got != "" || r.cfg.Log.Level != LevelDebug {
				t.Errorf("level %q, complaints:\n%s", r.cfg.Log.Level, got)
			}
		})
	}
}

func TestABombIsRefusedAtOnce(t *testing.T) {
	var b strings.Builder
	b.WriteString("a: &a [x, x, x, x, x, x, x, x, x]\n")
	for c := 'b'; c < 'z'; c++ {
		p := string(c - 1)
		fmt.Fprintf(&b, "%c: &%c [*%s, *%s, *%s, *%s, *%s, *%s, *%s, *%s, *%s]\n", c, c, p, p, p, p, p, p, p, p, p)
	}
	r := parse("f.yaml", []byte(b.String()))
	if len(r.complaints) != 25 {
		t.Errorf("want one complaint per key, got:\n%s", said(r.complaints))
	}
}

func TestComplaintsAreBounded(t *testing.T) {
	r := parse("f.yaml", []byte(strings.Repeat("? [x]\n: 1\n", 1000)))
	cs := r.sorted()
	if len(cs) != maxComplaints+1 || cs[maxComplaints].Msg != "and 900 more complaints" {
		t.Errorf("got %d, the last: %s", len(cs), cs[len(cs)-1])
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(Reference()))
	for _, s := range []string{"", "a: &a [*a]\n", "log:\n\tlevel: x\n", "---\n---\n", "? {}\n: ", "egress: {lanes: [{name: a, dscp: [cs5]}]}", "egress: {lanes: [~, [], 1]}", "edge: {services: [{name: a, vip: [10.0.0.50], port: 80, candidates: [10.0.0.1, '[fd00::1]:80', {addresses: [10.0.0.2], weight: 2}]}]}", "alerts: {targets: [{name: a, type: service, url: 'mailto:x@y'}]}", "\xff\xfe"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := parse("f.yaml", raw)
		r.check()
		blocking := Blocking(r.sorted(), Sections()...)
		for _, c := range blocking {
			if c.Msg == "" || strings.ContainsAny(c.String(), "\n\r\x00") {
				t.Errorf("complaint is not one line: %q", c)
			}
		}
		if len(blocking) > 0 {
			return
		}
		// What passes can be shown, and what is shown passes and is the same.
		shown, err := Show(r.cfg)
		if err != nil {
			t.Fatal(err)
		}
		again := parse("f.yaml", shown)
		again.check()
		if bad := Blocking(again.sorted(), Sections()...); len(bad) > 0 {
			t.Fatalf("shown configuration does not pass:\n%s\n%s", said(bad), shown)
		}
		second, err := Show(again.cfg)
		if err != nil || string(second) != string(shown) {
			t.Errorf("shown twice (%v):\n%s\n%s", err, shown, second)
		}
	})
}
