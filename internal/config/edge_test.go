package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/edge"
)

// addrs reads addresses.
func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// front is a sound service of two candidates.
func front() edge.Service {
	s := prototype(reflect.TypeFor[edge.Service]()).Interface().(edge.Service)
	s.Name, s.VIP, s.Port = "front", addrs("10.0.0.50"), 25565
	s.Candidates = []edge.Candidate{
		{Name: "proxy-01", Node: "core-01", Addresses: addrs("10.0.0.29"), Weight: 1},
		{Name: "proxy-02", Node: "core-03", Addresses: addrs("10.0.0.17"), Weight: 1},
	}
	return s
}

// soundEdge is a configuration with three replicas, a service and nothing wrong.
func soundEdge() Config {
	c := Default()
	c.Edge.Replicas = []edge.Replica{
		{Name: "core-01", Addresses: addrs("10.0.0.1")},
		{Name: "core-02", Transport: []string{"ssh", "core-02", "nft", "-i"}, Addresses: addrs("10.0.0.2")},
		{Name: "core-03", Transport: []string{"ssh", "core-03", "nft", "-i"}, Addresses: addrs("10.0.0.3")},
	}
	c.Edge.Services = []edge.Service{front()}
	return c
}

func TestASoundEdgeHasNoComplaint(t *testing.T) {
	if cs := Check(soundEdge()); len(cs) > 0 {
		t.Errorf("%v", cs)
	}
}

func TestEdgeComplains(t *testing.T) {
	const svc = "edge.services[0]"
	first := func(c *Config) *edge.Service { return &c.Edge.Services[0] }
	tests := []struct {
		name  string
		spoil func(c *Config)
		want  string // key: message, of each complaint; warnings are marked
	}{
		{"no probe at once", func(c *Config) { c.Edge.MaxConcurrent = 0 }, "edge.max_concurrent: 0 is out of range"},
		{"a veto of no life", func(c *Config) { c.Edge.VetoFor = 0 }, "edge.veto_for: 0s is out of range"},
		{"no time for a replica", func(c *Config) { c.Edge.Deadline = time.Millisecond }, "edge.deadline: 1ms is out of range"},
		{"a node that is no replica", func(c *Config) { c.Edge.Node = "core-1" }, lines(
			`edge.replicas[0]: replica "core-01" has no transport, and edge.node says that this machine is core-1`,
			`edge.node: "core-1" is not the name of a replica`)},
		{"two machines that are this one", func(c *Config) { c.Edge.Replicas[1].Transport = nil }, `edge.replicas[1]: replica "core-02" has no transport, and core-01 has none either`},
		{"another machine without a transport", func(c *Config) { c.Edge.Node = "core-02" }, `edge.replicas[0]: replica "core-01" has no transport, and edge.node says that this machine is core-02`},
		{"a transport in one word", func(c *Config) { c.Edge.Replicas[1].Transport = []string{"ssh core-02 nft -i"} }, `edge.replicas[1].transport[0]: "ssh core-02 nft -i" is one word: no shell splits it`},
		{"two replicas of one name", func(c *Config) { c.Edge.Replicas[2].Name = "core-02" }, lines(
			`edge.replicas[2].name: "core-02" is the name of entry 2 too`,
			svc+`.candidates[1].node: "core-03" is not the name of a replica`)},
		{"two replicas of one address", func(c *Config) { c.Edge.Replicas[2].Addresses = addrs("10.0.0.2") }, "edge.replicas[2].addresses[0]: 10.0.0.2 is an address of replica core-02 too"},
		{"a name too long for a comment", func(c *Config) { c.Edge.Replicas[2].Name = strings.Repeat("x", 32) }, lines(
			`edge.replicas[2].name: "`+strings.Repeat("x", 32)+`" is not a name`,
			svc+`.candidates[1].node: "core-03" is not the name of a replica`)},
		{"always, of three", func(c *Config) { c.Edge.Writer = edge.WriterAlways }, "warning edge.writer: always, and there are several replicas"},

		{"a service of nothing", func(c *Config) { *first(c) = edge.Service{Probe: probe()} }, lines(
			svc+".name: is missing", svc+".vip: is missing", svc+".port: is missing", svc+".protocols: names none", svc+".candidates: names none")},
		{"two services of one name", func(c *Config) {
			s := front()
			s.Port = 25566
			c.Edge.Services = append(c.Edge.Services, s)
		}, `edge.services[1].name: "front" is the name of entry 1 too`},
		{"two services of one port", func(c *Config) {
			s := front()
			s.Name, s.Protocols = "again", []edge.Protocol{edge.UDP, edge.TCP}
			c.Edge.Services = append(c.Edge.Services, s)
		}, "edge.services[1].vip[0]: 10.0.0.50:25565/tcp is answered by service front too"},
		{"one port of two protocols is fine", func(c *Config) {
			s := front()
			s.Name, s.Protocols, s.Probe.Port = "voice", []edge.Protocol{edge.UDP}, 25565
			c.Edge.Services = append(c.Edge.Services, s)
		}, ""},
		{"two addresses of a family", func(c *Config) { first(c).VIP = addrs("10.0.0.50", "10.0.0.51") }, svc + ".vip[1]: 10.0.0.51 is a second IPv4 address"},
		{"an address that nobody can have", func(c *Config) { first(c).VIP = addrs("0.0.0.0") }, svc + ".vip[0]: 0.0.0.0 is not the address of one machine"},
		{"an address of this host's own", func(c *Config) { first(c).VIP = addrs("127.0.0.1") }, svc + ".vip[0]: 127.0.0.1 is never seen on a network"},
		{"an address with a zone", func(c *Config) { first(c).VIP = addrs("10.0.0.50", "fe80::1%eth0") }, lines(
			svc + ".vip[1]: fe80::1%eth0 has a zone, which no table can hold")},
		{"an IPv4 address in IPv6", func(c *Config) { first(c).Candidates[0].Addresses = addrs("::ffff:10.0.0.29") }, svc + ".candidates[0].addresses[0]: ::ffff:10.0.0.29 is an IPv4 address written as IPv6"},
		{"nobody answers IPv6", func(c *Config) { first(c).VIP = addrs("10.0.0.50", "fd00::50") }, svc + ".vip[1]: no candidate has an IPv6 address: nobody could answer fd00::50"},
		{"a candidate of the other family", func(c *Config) { first(c).Candidates[1].Addresses = addrs("fd00::17") }, svc + ".candidates[1].addresses[0]: fd00::17 is never used: the service has no IPv6 address"},
		{"an address too many", func(c *Config) { first(c).Candidates[1].Addresses = addrs("10.0.0.17", "fd00::17") }, "warning " + svc + ".candidates[1].addresses[1]: fd00::17 is never used: the service has no IPv6 address"},
		{"a port out of range", func(c *Config) { first(c).Port = 65536 }, svc + ".port: 65536 is out of range"},
		{"a candidate's port out of range", func(c *Config) { first(c).Candidates[0].Port = -1 }, svc + ".candidates[0].port: -1 is out of range"},
		{"a protocol twice", func(c *Config) { first(c).Protocols = []edge.Protocol{edge.TCP, edge.TCP} }, svc + ".protocols[1]: tcp stands there twice"},
		{"nodes without replicas", func(c *Config) { c.Edge.Replicas, first(c).Nodes = nil, true }, "warning " + svc + ".nodes: there are no replicas whose addresses could answer"},
		{"the virtual address as a node's", func(c *Config) { first(c).VIP, first(c).Nodes = addrs("10.0.0.2"), true }, svc + ".nodes: 10.0.0.2 is the virtual address and an address of replica core-02"},
		{"two services on the nodes' port", func(c *Config) {
			first(c).Nodes = true
			s := front()
			s.Name, s.VIP, s.Nodes = "again", addrs("10.0.0.51"), true
			c.Edge.Services = append(c.Edge.Services, s)
		}, "edge.services[1].nodes: 10.0.0.1:25565/tcp is answered by service front too"},
		{"reset of what has no connections", func(c *Config) {
			first(c).Protocols, first(c).ResetDead, first(c).Probe.Port = []edge.Protocol{edge.UDP}, true, 1
		}, "warning " + svc + ".reset_dead: means nothing without TCP"},
		{"a hint without a tripwire", func(c *Config) { first(c).OnHint, first(c).Tripwire = edge.OnHintDivert, false }, "warning " + svc + ".on_hint: means nothing without a tripwire"},

		{"no candidate", func(c *Config) { first(c).Candidates = nil }, svc + ".candidates: names none"},
		{"a candidate of nothing", func(c *Config) { first(c).Candidates[0] = edge.Candidate{Weight: 1} }, svc + ".candidates[0].addresses: is missing"},
		{"two candidates of one name", func(c *Config) { first(c).Candidates[1].Name = "proxy-01" }, svc + `.candidates[1].name: "proxy-01" is the name of entry 1 too`},
		{"two unnamed candidates of one address", func(c *Config) {
			first(c).Candidates = []edge.Candidate{{Addresses: addrs("10.0.0.29"), Port: 1, Weight: 1}, {Addresses: addrs("10.0.0.29"), Port: 2, Weight: 1}}
		}, svc + ".candidates[1].name: is missing, and candidate 1 is called 10.0.0.29 already"},
		{"one server twice", func(c *Config) {
			first(c).Candidates[1].Addresses, first(c).Candidates[1].Port = addrs("10.0.0.29"), 25565
		}, svc + ".candidates[1].addresses[0]: 10.0.0.29:25565 is that of candidate 1 too"},
		{"a candidate that is the service", func(c *Config) { first(c).Candidates[1].Addresses = addrs("10.0.0.50") }, svc + ".candidates[1].addresses[0]: 10.0.0.50:25565 is the service's own address"},
		{"two candidates on one node", func(c *Config) { first(c).Candidates[1].Node = "core-01" }, "warning " + svc + ".candidates[1].node: a decorative second: candidate 1 runs on core-01 too, and both are gone with it"},
		{"a node that nobody is", func(c *Config) { first(c).Candidates[1].Node = "core-30" }, svc + `.candidates[1].node: "core-30" is not the name of a replica`},
		{"a weight that means nothing", func(c *Config) { first(c).Candidates[0].Weight = 3 }, "warning " + svc + ".candidates[0].weight: means nothing to strategy first_available"},
		{"a weight below one", func(c *Config) { first(c).Candidates[0].Weight = 0 }, svc + ".candidates[0].weight: 0 is out of range"},
		{"a candidate that only this host reaches", func(c *Config) { first(c).Candidates[0].Addresses = addrs("127.0.0.1") }, "warning " + svc + ".candidates[0].addresses[0]: 127.0.0.1 is not reached from other machines"},

		{"a probe of no type", func(c *Config) { first(c).Probe.Type = "" }, svc + ".probe.type: is missing"},
		{"asked too often", func(c *Config) { first(c).Probe.Interval = time.Millisecond }, lines(
			svc+".probe.interval: 1ms is out of range", svc+".probe.cap: 700ms is more than 2 intervals: a verdict would wait for it")},
		{"a cap over the rounds", func(c *Config) { first(c).Probe.Cap = 2100 * time.Millisecond }, svc + ".probe.cap: 2.1s is more than 2 intervals: a verdict would wait for it"},
		{"a veto that ends between two probes", func(c *Config) { first(c).Probe.Interval = 30 * time.Second }, svc + ".probe.interval: a veto (edge.veto_for, 30s) would end before the next probe (30s, and 700ms for its answer)"},
		{"no miss needed", func(c *Config) { first(c).Probe.Misses = 0 }, svc + ".probe.misses: 0 is out of range"},
		{"no answer needed", func(c *Config) { first(c).Probe.Rise = 0 }, svc + ".probe.rise: 0 is out of range"},
		{"keys of other probes", func(c *Config) {
			p := &first(c).Probe
			p.Path, p.Login, p.TLS, p.Body, p.Status, p.Command = "/x", true, true, "x", []string{"200"}, []string{"x"}
		}, lines(
			svc+".probe.tls: a probe of type tcp has no tls", svc+".probe.path: a probe of type tcp has no path",
			svc+".probe.status: a probe of type tcp has no status", svc+".probe.body: a probe of type tcp has no body",
			svc+".probe.login: a probe of type tcp has no login", svc+".probe.command: a probe of type tcp has no command")},
		{"a command probe without one", func(c *Config) { first(c).Probe.Type = edge.ProbeExec }, svc + ".probe.command: is missing"},
		{"UDP alone, asked by TCP", func(c *Config) { first(c).Protocols = []edge.Protocol{edge.UDP} }, svc + ".probe.port: is missing: the service is UDP only, and a probe of type tcp needs a TCP port"},
		{"UDP alone, each candidate with a port", func(c *Config) {
			first(c).Protocols = []edge.Protocol{edge.UDP}
			first(c).Candidates[0].ProbePort, first(c).Candidates[1].ProbePort = 80, 80
		}, ""},
		{"UDP alone, not asked", func(c *Config) {
			first(c).Protocols, first(c).Probe.Type = []edge.Protocol{edge.UDP}, edge.ProbeNone
		}, ""},
		{"statuses", func(c *Config) {
			p := &first(c).Probe
			p.Type, p.Status, p.Path, p.Verify = edge.ProbeHTTP, []string{"200", "2xx", "399-200", "200-600", ""}, "healthz", true
		}, lines(
			svc+`.probe.path: "healthz" does not begin with /`, "warning "+svc+".probe.verify: means nothing without TLS",
			svc+`.probe.status[1]: "2xx" is not a status`, svc+`.probe.status[2]: "399-200" is not a status`,
			svc+`.probe.status[3]: "200-600" is not a status`, svc+`.probe.status[4]: "" is not a status`)},

		{"a group with nothing to compare", func(c *Config) {
			c.Edge.Parity = []edge.ParityGroup{{Name: "secret", Every: time.Minute, Timeout: time.Second, Members: []edge.ParityMember{{Name: "a", Path: "/x"}}}}
		}, "edge.parity[0].members: one member has nothing to be compared with"},
		{"a secret where its hash is wanted", func(c *Config) {
			c.Edge.Parity = []edge.ParityGroup{{Name: "secret", Every: time.Minute, Timeout: time.Second, Reference: "hunter2", Members: []edge.ParityMember{{Name: "a", Path: "x"}, {Name: "a", Path: "/x", Command: []string{"y"}}, {Name: "b"}}}}
		}, lines(
			"edge.parity[0].reference: is not a SHA-256 in hex", `edge.parity[0].members[0].path: "x" is not an absolute path`,
			`edge.parity[0].members[1].name: "a" is the name of entry 1 too`, "edge.parity[0].members[1].command: a member has a path or a command, not both",
			"edge.parity[0].members[2].path: is missing")},

		{"a watchdog that ends at once", func(c *Config) { c.Watchdog.For = 0 }, "watchdog.for: 0s is out of range"},
		{"a watchdog of one round", func(c *Config) { c.Watchdog.Interval = 2 * time.Minute }, "watchdog.for: 1m5s ends before the second round, at 2m"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := soundEdge()
			tt.spoil(&c)
			compareComplaints(t, tt.want, Check(c))
		})
	}
}

func compareComplaints(t *testing.T, want string, cs []Complaint) {
	t.Helper()
	var got []string
	for _, x := range cs {
		s := x.String()
		if x.Warning {
			s = "warning " + s
		}
		got = append(got, s)
		if strings.HasPrefix(x.Key, "edge") && x.Section != SectionEdge {
			t.Errorf("%s is of section %q", x.Key, x.Section)
		}
	}
	if diff := cmp.Diff(strings.TrimSuffix(want, "\n"), strings.Join(got, "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAlertsComplain(t *testing.T) {
	const at = "alerts.targets[0]"
	target := func(change func(t *edge.AlertTarget)) edge.AlertTarget {
		a := edge.AlertTarget{Name: "a", Type: edge.AlertWebhook, URL: "https://a/hunter2", Timeout: time.Second, Level: edge.LevelInfo}
		change(&a)
		return a
	}
	for name, tt := range map[string]struct {
		change func(t *edge.AlertTarget)
		want   string
	}{
		"sound":               {func(*edge.AlertTarget) {}, ""},
		"no type":             {func(a *edge.AlertTarget) { a.Type = "" }, at + ".type: is missing"},
		"no address":          {func(a *edge.AlertTarget) { a.URL = "" }, at + ".url: is missing"},
		"address by a file":   {func(a *edge.AlertTarget) { a.URL, a.URLFile = "", "/etc/x" }, ""},
		"both":                {func(a *edge.AlertTarget) { a.URLFile = "/etc/x" }, at + ".url_file: a target has a url or a url_file, not both"},
		"the secret as path":  {func(a *edge.AlertTarget) { a.URL, a.URLFile = "", "hunter2" }, at + ".url_file: is not an absolute path"},
		"a service as a site": {func(a *edge.AlertTarget) { a.URL = "discord://hunter2@1" }, at + ".url: is not an address that can be posted to"},
		"a site as a service": {func(a *edge.AlertTarget) { a.Type = edge.AlertService }, at + ".url: is a web address"},
		"no scheme":           {func(a *edge.AlertTarget) { a.Type, a.URL = edge.AlertService, "hunter2" }, at + ".url: is not the address of a notification service"},
		"headers in clear":    {func(a *edge.AlertTarget) { a.URL, a.HeadersFile = "http://a/hunter2", "/x" }, "warning " + at + ".headers_file: the headers travel unencrypted"},
		"a program with a site": {
			func(a *edge.AlertTarget) { a.Type, a.Command = edge.AlertCommand, []string{"/bin/tell"} },
			at + ".url: a target of type command has no url",
		},
		"no program":            {func(a *edge.AlertTarget) { a.Type, a.URL = edge.AlertCommand, "" }, at + ".command: is missing"},
		"a site with a program": {func(a *edge.AlertTarget) { a.Command = []string{"x"} }, at + ".command: a target of type webhook has no command"},
		"an odd kind":           {func(a *edge.AlertTarget) { a.Events = []string{"edge.*", "Edge Move"} }, at + `.events[1]: "Edge Move" is not a kind of alert`},
		"no time":               {func(a *edge.AlertTarget) { a.Timeout = 0 }, at + ".timeout: 0s is out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			c := soundEdge()
			c.Alerts.Targets = []edge.AlertTarget{target(tt.change)}
			cs := Check(c)
			compareComplaints(t, tt.want, cs)
			for _, x := range cs {
				if strings.Contains(fmt.Sprint(x), "hunter2") {
					t.Errorf("the secret is told: %v", x)
				}
			}
		})
	}
}

// A command that needs another section goes on, and tells whom it can.
func TestATargetThatIsWrongIsLeftOut(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "shunt.yaml"), lines("alerts:", "  min_gap: -1s", "  targets:",
		"    - {name: a, type: webhook, url: https://a/b}", "    - {name: b, type: webhook, url: ftp://a}", "    - {name: c, typ: command}", "    - {name: d, type: command, command: [x]}"))
	c, cs, err := Load(Options{Path: file, Sections: []string{SectionEdge}})
	if err != nil || len(Blocking(cs, SectionEdge)) > 0 || len(Blocking(cs, SectionAlerts)) == 0 {
		t.Fatal(err, said(cs))
	}
	var names []string
	for _, a := range c.Alerts.Targets {
		names = append(names, a.Name)
	}
	if diff := cmp.Diff([]string{"a", "d"}, names); diff != "" || c.Alerts.MinGap != edge.DefaultAlertMinGap {
		t.Errorf("%s %s", c.Alerts.MinGap, diff)
	}
}

func TestShortCandidates(t *testing.T) {
	r := parse("f.yaml", []byte(lines("edge:", "  services:", "    - name: a", "      candidates:",
		"        - 10.0.0.29:25565", `        - "[fd00::29]:25565"`, "        - 10.0.0.29", "        - {addresses: [10.0.0.17], weight: 2}", "        - fd00::29",
		"        - proxy-01:25565", "        - 10.0.0.29:0", "        - [10.0.0.1]")))
	want := []edge.Candidate{
		{Addresses: addrs("10.0.0.29"), Port: 25565, Weight: 1},
		{Addresses: addrs("fd00::29"), Port: 25565, Weight: 1},
		{Addresses: addrs("10.0.0.29"), Weight: 1},
		{Addresses: addrs("10.0.0.17"), Weight: 2},
		{Addresses: addrs("fd00::29"), Weight: 1},
	}
	if diff := cmp.Diff(want, r.cfg.Edge.Services[0].Candidates[:5], same()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const hint = " | write an address with a port, such as 10.0.0.29:25565 or [fd00::29]:25565, an address alone, or a mapping of name, node, addresses\n"
	wanted := `10:11 edge.services[0].candidates[5]: "proxy-01:25565" is not a candidate` + hint +
		`11:11 edge.services[0].candidates[6]: "10.0.0.29:0" has port 0 | write the port that the candidate listens on, or none for the service's` + "\n" +
		"12:11 edge.services[0].candidates[7]: a list where a mapping is wanted | write the keys below it, each with its value: name, node, addresses, port, weight, probe_port\n"
	if diff := cmp.Diff(wanted, said(r.complaints)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnEdgeFaultHasItsPlaceAndTheNearestKey(t *testing.T) {
	r := parse("f.yaml", []byte(lines("edge:", "  services:", "    - name: a", "      vip: [10.0.0.50]", "      port: 80", "      stickey: true",
		"      probe: {type: htttp}", "      candidates: [10.0.0.1, {addresses: [10.0.0.2], node: core-9, probe_prt: 3}]", "  replicas: [{name: core-01}]")))
	r.check()
	want := `6:7 edge.services[0].stickey: unknown key | did you mean "sticky"?` + "\n" +
		`7:21 edge.services[0].probe.type: "htttp" is not a known word | did you mean "http"? (known: tcp, tls, http, status_ping, exec, none)` + "\n" +
		`8:60 edge.services[0].candidates[1].node: "core-9" is not the name of a replica | did you mean "core-01"?` + "\n" +
		`8:68 edge.services[0].candidates[1].probe_prt: unknown key | did you mean "probe_port"?` + "\n"
	if diff := cmp.Diff(want, said(r.sorted())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestShowHidesWhereAlertsGo(t *testing.T) {
	c := Default()
	for i, u := range []string{"https://hooks.example/services/hunter2", "discord://hunter2@123", "mailto:hunter2@example.org", "hunter2"} {
		c.Alerts.Targets = append(c.Alerts.Targets, edge.AlertTarget{Name: fmt.Sprintf("t%d", i), Type: edge.AlertService, URL: u, Timeout: time.Second, Level: edge.LevelInfo})
	}
	shown, err := Show(c)
	if err != nil || strings.Contains(string(shown), "hunter2") || strings.Contains(fmt.Sprint(Tree(c)), "hunter2") {
		t.Errorf("%v\n%s", err, shown)
	}
	for _, want := range []string{"url: https://hidden\n", "url: discord://hidden\n", "url: mailto:hidden\n", "url: (hidden)\n"} {
		if !strings.Contains(string(shown), want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
}

func TestShownEdgeLoadsAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := soundEdge()
		s := &c.Edge.Services[0]
		s.Sticky, s.Nodes, s.Tripwire = rapid.Bool().Draw(t, "sticky"), rapid.Bool().Draw(t, "nodes"), rapid.Bool().Draw(t, "tripwire")
		s.Probe.Type = rapid.SampledFrom([]edge.ProbeType{edge.ProbeTCP, edge.ProbeHTTP, edge.ProbeExec, edge.ProbeNone}).Draw(t, "type")
		s.Probe.Status = rapid.SliceOf(rapid.SampledFrom([]string{"200", "300-399"})).Draw(t, "status")
		s.Probe.Path, s.Probe.Body = rapid.StringMatching(`(/[ -~]{0,9})?`).Draw(t, "path"), rapid.StringMatching(`[ -~]{0,9}`).Draw(t, "body")
		s.Probe.Command = rapid.SliceOf(rapid.StringMatching(`[ -~]{1,9}`)).Draw(t, "command")
		s.Candidates[0].Weight, s.Candidates[1].Port = rapid.IntRange(0, 9).Draw(t, "weight"), rapid.IntRange(0, 65535).Draw(t, "port")
		s.Candidates[0].Name = rapid.SampledFrom([]string{"", "a", "1.5", "null"}).Draw(t, "name")
		if len(Blocking(Check(c), Sections()...)) > 0 || strings.Contains(fmt.Sprint(s), "://") {
			return
		}
		shown, err := Show(c)
		if err != nil {
			t.Fatal(err)
		}
		r := parse("shown", shown)
		r.check()
		if diff := cmp.Diff(c, r.cfg, same()); diff != "" || len(Blocking(r.complaints, Sections()...)) > 0 {
			t.Fatalf("(-want +got):\n%s\n%s\n%s", diff, said(r.complaints), shown)
		}
	})
}

// fleet is a file of many services, each with four candidates as mappings.
func fleet(services int) string {
	var b strings.Builder
	b.WriteString("edge:\n  replicas:\n")
	for i := range 4 {
		fmt.Fprintf(&b, "    - {name: core-0%d, transport: [ssh, core-0%d, nft, -i], addresses: [10.0.0.%d]}\n", i+1, i+1, i+1)
	}
	b.WriteString("  services:\n")
	for i := range services {
		fmt.Fprintf(&b, "    - name: service-%d\n      vip: [10.%d.%d.50]\n      port: 25565\n      protocols: [tcp, udp]\n      reset_dead: true\n      probe:\n        type: tcp\n        interval: 500ms\n      candidates:\n", i, 100+i/250, i%250)
		for j := range 4 {
			fmt.Fprintf(&b, "        - name: proxy-%d\n          node: core-0%d\n          addresses: [10.%d.%d.%d]\n          port: 25577\n", j, j+1, 100+i/250, i%250, j+1)
		}
	}
	return b.String()
}

// The bound only finds work that grows with the square of the services; the best of several
// loads counts.
func TestAThousandServicesLoadInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("measures a time")
	}
	file := write(t, filepath.Join(t.TempDir(), "shunt.yaml"), fleet(1000))
	best := time.Hour
	for range 5 {
		begun := time.Now()
		c, cs, err := Load(Options{Path: file, Sections: Sections()})
		best = min(best, time.Since(begun))
		if err != nil || len(cs) > 0 || len(c.Edge.Services) != 1000 || len(c.Edge.Services[999].Candidates) != 4 {
			t.Fatal(err, said(cs))
		}
	}
	t.Logf("1,000 services of 4 candidates: %v", best)
	if best > 2*time.Second {
		t.Errorf("loading takes %v", best)
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "shunt.yaml")
			write(b, path, fleet(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, cs, err := Load(Options{Path: path, Sections: Sections()}); err != nil || len(cs) > 0 {
					b.Fatal(err, said(cs))
				}
			}
		})
	}
}
