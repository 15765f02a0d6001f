package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
)

// sound is a configuration with two lanes and nothing wrong.
func sound() Config {
	c := Default()
	for i := range 2 {
		c.Egress.Lanes = append(c.Egress.Lanes, egress.Lane{
			Name: fmt.Sprintf("egress%d", i+1), Interface: fmt.Sprintf("vpn%d", i+1), Table: 201 + i,
			Mark: egress.Mark(0x201 + i), DSCP: []egress.DSCP{egress.DSCP(32 + 8*i)},
			Driver: egress.DriverWireGuard, NAT: egress.NATMasquerade, FailMode: egress.FailDirect,
		})
	}
	c.Egress.Sources = []egress.Source{{
		Name: "own", Type: egress.SourceDir, Path: "/etc/shunt/profiles", Timeout: time.Minute, MaxBytes: 1, MaxFiles: 1,
	}}
	return c
}

// source has the bounds that every source has.
func source(kind egress.SourceType) egress.Source {
	return egress.Source{Name: "own", Type: kind, Timeout: time.Minute, MaxBytes: 1, MaxFiles: 1}
}

// relays is a sound source of type mullvad.
func relays() egress.Source {
	s := source(egress.SourceMullvad)
	s.KeyFile, s.Addresses = "/etc/shunt/mullvad.key", []netip.Prefix{netip.MustParsePrefix("10.64.0.2/32")}
	return s
}

func TestASoundConfigurationHasNoComplaint(t *testing.T) {
	c := sound()
	c.Egress.Sources = []egress.Source{relays()}
	if cs := Check(c); len(cs) > 0 {
		t.Errorf("%v", cs)
	}
	if cs := Check(sound()); len(cs) > 0 {
		t.Errorf("%v", cs)
	}
}

func TestCheckComplains(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(c *Config)
		want  string // key: message, of each complaint
	}{
		{"a relative state folder", func(c *Config) { c.StateDir = "state" }, `state_dir: "state" is not an absolute path`},
		{"the root as state folder", func(c *Config) { c.StateDir = "/../" }, "state_dir: the root folder cannot hold the state"},
		{"a hook that is one line", func(c *Config) { c.Hooks.OnEvent = []string{"/bin/mail root"} }, `hooks.on_event[0]: "/bin/mail root" is one word: no shell splits it`},
		{"a hook without time", func(c *Config) { c.Hooks.Timeout = 0 }, "hooks.timeout: 0s is too short"},

		{"a source without a name", func(c *Config) { c.Egress.Sources[0].Name = "" }, "egress.sources[0].name: is missing"},
		{"a source of no type", func(c *Config) { c.Egress.Sources[0].Type = "" }, "egress.sources[0].type: is missing"},
		{"a folder with an address", func(c *Config) { c.Egress.Sources[0].URL = "https://a/b" }, "egress.sources[0].url: a source of type dir has no url"},
		{"a relative folder", func(c *Config) { c.Egress.Sources[0].Path = "x" }, `egress.sources[0].path: "x" is not an absolute path`},
		{"an archive with neither", func(c *Config) { s := &c.Egress.Sources[0]; s.Type, s.Path = egress.SourceArchive, "" }, "egress.sources[0].url: is missing"},
		{"an archive with both", func(c *Config) { s := &c.Egress.Sources[0]; s.Type, s.URL = egress.SourceArchive, "https://a/b" }, "egress.sources[0].url: a source of type archive has a url or a path, not both"},
		{"an address with a secret that cannot be fetched", func(c *Config) {
			s := &c.Egress.Sources[0]
			s.Type, s.Path, s.URL = egress.SourceArchive, "", "ftp://me:secret@a/b"
		}, "egress.sources[0].url: is not an address that can be fetched"},
		{"a command source without one", func(c *Config) { s := &c.Egress.Sources[0]; s.Type, s.Path = egress.SourceExec, "" }, "egress.sources[0].command: is missing"},
		{"two sources of one name", func(c *Config) { c.Egress.Sources = append(c.Egress.Sources, c.Egress.Sources[0]) }, `egress.sources[1].name: "own" is the name of entry 1 too`},
		{"a source without bounds", func(c *Config) { s := &c.Egress.Sources[0]; s.MaxBytes, s.MaxFiles, s.Timeout = 0, 0, -1 }, "egress.sources[0].timeout: -1ns is too short\negress.sources[0].max_bytes: 0 is out of range\negress.sources[0].max_files: 0 is out of range"},

		{"a site without an address", func(c *Config) { c.Egress.Sources[0] = source(egress.SourceHTTP) }, "egress.sources[0].url: is missing"},
		{"a site with a path", func(c *Config) {
			s := source(egress.SourceHTTP)
			s.URL, s.Path = "https://a/b", "/x"
			c.Egress.Sources[0] = s
		}, "egress.sources[0].path: a source of type http has no path\negress.sources[0].url: a source of type http has a url or a path, not both"},
		{"headers without an address", func(c *Config) {
			s := &c.Egress.Sources[0]
			s.Type, s.HeadersFile = egress.SourceArchive, "/x"
		}, "egress.sources[0].headers_file: there is no url that the headers could go to"},
		{"headers of a folder", func(c *Config) { c.Egress.Sources[0].HeadersFile = "/x" }, "egress.sources[0].headers_file: a source of type dir has no headers_file"},
		{"a header where its file is named", func(c *Config) {
			s := source(egress.SourceHTTP)
			s.URL, s.HeadersFile = "https://a/b", "Authorization: hunter2"
			c.Egress.Sources[0] = s
		}, "egress.sources[0].headers_file: is not an absolute path"},
		{"relays without anything", func(c *Config) { c.Egress.Sources[0] = source(egress.SourceMullvad) }, "egress.sources[0].key_file: is missing\negress.sources[0].addresses: is missing"},
		{"a key where its file is named", func(c *Config) {
			c.Egress.Sources[0] = relays()
			c.Egress.Sources[0].KeyFile = "aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnQ="
		}, "egress.sources[0].key_file: is not an absolute path"},
		{"relays with addresses of nobody", func(c *Config) {
			c.Egress.Sources[0] = relays()
			c.Egress.Sources[0].Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.0.0.2/8")}
		}, "egress.sources[0].addresses[1]: 0.0.0.0/0 is no address of a tunnel\negress.sources[0].addresses[2]: 10.0.0.2 is named twice"},
		{"relays from two places", func(c *Config) {
			c.Egress.Sources[0] = relays()
			c.Egress.Sources[0].URL, c.Egress.Sources[0].Path = "https://a/b", "/x"
		}, "egress.sources[0].url: a source of type mullvad has a url or a path, not both"},
		{"relays with odd filters", func(c *Config) {
			c.Egress.Sources[0] = relays()
			s := &c.Egress.Sources[0]
			s.Countries, s.Cities, s.Port, s.DNS = []string{"se", ""}, []string{" sto"}, 65536, []netip.Addr{netip.IPv6Unspecified()}
		}, lines(
			"egress.sources[0].dns[0]: :: cannot be asked", "egress.sources[0].port: 65536 is out of range",
			`egress.sources[0].countries[1]: "" is not the code or the name of a place`, `egress.sources[0].cities[0]: " sto" is not the code or the name of a place`)},
		{"what only relays have", func(c *Config) {
			s := relays()
			s.Type, s.Path, s.Countries, s.Ownership = egress.SourceDir, "/x", []string{"se"}, egress.OwnershipOwned
			c.Egress.Sources[0] = s
		}, lines(
			"egress.sources[0].key_file: a source of type dir has no key_file", "egress.sources[0].addresses: a source of type dir has no addresses",
			"egress.sources[0].countries: a source of type dir has no countries", "egress.sources[0].ownership: a source of type dir has no ownership")},

		{"a pool with a path", func(c *Config) { c.Egress.Pool.Working = "/root/x.tsv" }, `egress.pool.working: "/root/x.tsv" is not a bare file name`},
		{"two pools in one file", func(c *Config) { c.Egress.Pool.StrictAll = c.Egress.Pool.StrictForeign }, `egress.pool.strict_all: "ok-awg1-strict-foreign-latest.tsv" is the name of strict_foreign too`},
		{"a pool over the link", func(c *Config) { c.Egress.Pool.Working = "current" }, `egress.pool.working: "current" is a name that the pool's folder uses itself`},
		{"a relative pool folder", func(c *Config) { c.Egress.Pool.Dir = "pools" }, `egress.pool.dir: "pools" is not an absolute path`},
		{"a ratio in percent", func(c *Config) { c.Egress.Pool.MinRatio = 80 }, "egress.pool.min_ratio: 80 is out of range"},
		{"a broken glob", func(c *Config) { c.Egress.Pool.Home = []string{"ru-*", "[a"} }, `egress.pool.home[1]: "[a" is not a glob`},
		{"nothing kept", func(c *Config) { c.Egress.Pool.Keep = 0 }, "egress.pool.keep: 0 is out of range"},

		{"no test at once", func(c *Config) { c.Egress.Test.Parallel = 0 }, "egress.test.parallel: 0 is out of range"},
		{"nothing to ping", func(c *Config) { c.Egress.Test.Targets = nil }, "egress.test.targets: names no address"},
		{"a test that may not last", func(c *Config) { c.Egress.Test.Deadline = 0 }, "egress.test.deadline: 0s is too short"},

		{"a lane named as a word of ours", func(c *Config) { c.Egress.Lanes[0].Name = "direct" }, `egress.lanes[0].name: "direct" is a word of shunt's own`},
		{"a lane that would leave its folder", func(c *Config) { c.Egress.Lanes[0].Name = "../x" }, `egress.lanes[0].name: "../x" is not a name`},
		{"two lanes alike", func(c *Config) { c.Egress.Lanes[1] = c.Egress.Lanes[0] }, lines(
			`egress.lanes[1].name: "egress1" is the name of entry 1 too`,
			"egress.lanes[1].interface: interface vpn1 is that of lane egress1 too",
			"egress.lanes[1].table: table 201 is that of lane egress1 too",
			"egress.lanes[1].mark: mark 0x201 is that of lane egress1 too",
			"egress.lanes[1].dscp[0]: class cs4 is that of lane egress1 too")},
		{"a class twice in one lane", func(c *Config) { c.Egress.Lanes[0].DSCP = []egress.DSCP{46, 46} }, "egress.lanes[0].dscp[1]: class ef is that of lane egress1 too"},
		{"a long interface", func(c *Config) { c.Egress.Lanes[0].Interface = "vpn-netherlands1" }, `egress.lanes[0].interface: "vpn-netherlands1" has 16 bytes, an interface's name at most 15`},
		{"an interface with a slash", func(c *Config) { c.Egress.Lanes[0].Interface = "a/b" }, `egress.lanes[0].interface: "a/b" is not an interface's name`},
		{"a lane of nothing", func(c *Config) { c.Egress.Lanes[0] = egress.Lane{Driver: egress.DriverWireGuard} }, lines(
			"egress.lanes[0].name: is missing", "egress.lanes[0].interface: is missing", "egress.lanes[0].table: is missing", "egress.lanes[0].mark: is missing")},
		{"the main table", func(c *Config) { c.Egress.Lanes[0].Table = 254 }, "egress.lanes[0].table: 254 is a table of the kernel's own"},
		{"a table below zero", func(c *Config) { c.Egress.Lanes[0].Table = -1 }, "egress.lanes[0].table: -1 is out of range"},
		{"a mark outside the mask", func(c *Config) { c.Egress.Lanes[0].Mark = 0x1201 }, "egress.lanes[0].mark: 0x1201 has bits outside plane.mark_mask, 0xfff"},
		{"a pin without a port", func(c *Config) { c.Egress.Lanes[0].Pin = "192.0.2.1" }, `egress.lanes[0].pin: "192.0.2.1" is not an endpoint`},
		{"two lanes pinned to one endpoint", func(c *Config) {
			c.Egress.Lanes[0].Pin, c.Egress.Lanes[1].Pin = "192.0.2.1:51820", "192.0.2.1:51820"
		}, "egress.lanes[1].pin: endpoint 192.0.2.1:51820 is that of lane egress1 too"},
		{"commands of a driver that has none", func(c *Config) { c.Egress.Lanes[0].Commands.Up = []string{"ifup"} }, "egress.lanes[0].commands: driver wireguard runs no commands"},
		{"the driver of commands without any", func(c *Config) {
			c.Egress.Lanes[0].Driver, c.Egress.Lanes[0].Commands.Timeout = egress.DriverCommands, 1
		}, "egress.lanes[0].commands: says neither how to apply a profile nor how to go down and up"},
		{"a template mistyped", func(c *Config) {
			c.Egress.Lanes[0].Driver, c.Egress.Lanes[0].Commands = egress.DriverCommands, egress.Commands{Template: "wgquick", Timeout: 1}
		}, `egress.lanes[0].commands.template: "wgquick" is not a known template`},
		{"a command that reads a file nobody named", func(c *Config) {
			c.Egress.Lanes[0].Driver, c.Egress.Lanes[0].Commands = egress.DriverCommands, egress.Commands{Apply: []string{"reload", "{installed}"}, Timeout: 1}
		}, "egress.lanes[0].commands.apply[1]: {installed} is used, and commands.installed is not set"},

		{"more answers than pings", func(c *Config) { c.Egress.Check.Need = 6 }, "egress.check.need: 6 answers can never come to 5 pings"},
		{"no answer needed", func(c *Config) { c.Egress.Check.Need = 0 }, "egress.check.need: 0 is out of range"},
		{"no gap", func(c *Config) { c.Egress.Check.Gap = 0 }, "egress.check.gap: 0s is too short"},
		{"a target twice", func(c *Config) { c.Egress.Check.Targets = append(c.Egress.Check.Targets, c.Egress.Check.Targets[0]) }, "egress.check.targets[2]: 1.1.1.1 is named twice"},
		{"a target that is nobody", func(c *Config) { c.Egress.Check.Targets = []netip.Addr{netip.IPv6Unspecified()} }, "egress.check.targets[0]: :: cannot be asked"},
		{"a TLS target of the tests without an address", func(c *Config) {
			c.Egress.Test.TLS[1].Address = netip.AddrPort{}
		}, "egress.test.tls[1].address: is missing"},
		{"no time for TLS in the tests", func(c *Config) { c.Egress.Test.TLSTimeout = 0 }, "egress.test.tls_timeout: 0s is too short"},
		{"a TLS target without a port", func(c *Config) {
			c.Egress.Check.TLS[0].Address = netip.AddrPortFrom(netip.MustParseAddr("1.1.1.1"), 0)
		}, "egress.check.tls[0].address: 1.1.1.1:0 cannot be connected to"},

		{"a lane as uplink", func(c *Config) { c.Egress.Uplink.Interface = "vpn2" }, "egress.uplink.interface: vpn2 is the interface of lane egress2"},
		{"a gateway by name", func(c *Config) { c.Egress.Uplink.Gateway = "router" }, `egress.uplink.gateway: "router" is not a gateway`},
		{"no direct target", func(c *Config) { c.Egress.Uplink.Targets = nil }, "egress.uplink.targets: names no address"},

		{"no threshold", func(c *Config) { c.Egress.Repair.Threshold = 0 }, "egress.repair.threshold: 0 is out of range"},
		{"holds the wrong way round", func(c *Config) { c.Egress.Repair.HoldMin = 25 * time.Hour }, "egress.repair.hold_max: 24h is less than hold_min, 25h"},

		{"a gain below zero", func(c *Config) { c.Egress.Rebalance.Hysteresis.Gain = -time.Second }, "egress.rebalance.hysteresis.gain: -1s is less than nothing"},
		{"an empty glob", func(c *Config) { c.Egress.Rebalance.Deny = []string{""} }, `egress.rebalance.deny[0]: "" is not a glob`},

		{"masks that share bits", func(c *Config) { c.Egress.Plane.ClassMask = 0xff00 }, "egress.plane.class_mask: 0xff00 and mark_mask, 0xfff, share bits"},
		{"a class mask with a hole", func(c *Config) { c.Egress.Plane.ClassMask = 0x5000 }, "egress.plane.class_mask: the bits of 0x5000 are not next to each other"},
		{"a class mask for one lane", func(c *Config) { c.Egress.Plane.ClassMask = 0x1000 }, "egress.plane.class_mask: 0x1000 numbers 0 classes, and there are 2 lanes"},
		{"no class mask", func(c *Config) { c.Egress.Plane.ClassMask = 0 }, "egress.plane.class_mask: 0 leaves no bit for classes"},
		{"marking before conntrack", func(c *Config) { c.Egress.Plane.Priority = -300 }, "egress.plane.priority: -300 is out of range"},
		{"rules behind main", func(c *Config) { c.Egress.Plane.RulePref = 32766 }, "egress.plane.rule_pref: 32766 is out of range"},
		{"a prefix with host bits", func(c *Config) { c.Egress.Plane.Bypass = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8")} }, "egress.plane.bypass[0]: 10.1.2.3/8 has bits behind its length"},
		{"users behind a lane", func(c *Config) { c.Egress.Plane.Inputs = []string{"eth1", "vpn1"} }, "egress.plane.inputs[1]: vpn1 is the interface of lane egress1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := sound()
			tt.spoil(&c)
			cs := Check(c)
			var got []string
			for _, c := range cs {
				got = append(got, c.Key+": "+c.Msg)
				if strings.Contains(c.String()+c.Hint, "hunter2") || strings.Contains(c.String()+c.Hint, "aHVudGVyMm") {
					t.Errorf("a secret is in %s", c)
				}
				if c.Warning || c.Section != sectionOf(c.Key) {
					t.Errorf("section %q, warning %v: %s", c.Section, c.Warning, c)
				}
			}
			if diff := cmp.Diff(strings.TrimSpace(tt.want), strings.Join(got, "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWarningsStopNothing(t *testing.T) {
	c := sound()
	c.Egress.Check.TLS = c.Egress.Check.TLS[:1]
	c.Egress.Lanes = c.Egress.Lanes[:1]
	c.Egress.Lanes[0].Driver = egress.DriverCommands
	c.Egress.Lanes[0].Commands = egress.Commands{Template: "wg-quick", Apply: []string{"reload", "{iface}"}, Timeout: 1}
	http := source(egress.SourceHTTP)
	http.URL, http.HeadersFile = "http://a/b", "/x"
	c.Egress.Sources = []egress.Source{http}
	cs := append(Check(c), Check(Default())...) // the default names no lane
	if len(cs) != 4 || len(Blocking(cs, SectionEgress)) != 0 {
		t.Errorf("want four warnings, got %v", cs)
	}
}

func TestFaultsHavePlaces(t *testing.T) {
	r := parse("f.yaml", []byte(lines(
		"egress:",
		"  lanes:",
		"    - {name: a, interface: vpn1, table: 201, mark: 0x1}",
		"    - name: b",
		"      interface: vpn1",
		"      table: 201",
		"  repair:",
		"    threshold: 0",
	)))
	r.check()
	want := "4:7 egress.lanes[1].mark: is missing | write the lane's firewall mark, such as 0x201; 0 is no mark\n" +
		"5:18 egress.lanes[1].interface: interface vpn1 is that of lane a too | each lane needs its own\n" +
		"6:14 egress.lanes[1].table: table 201 is that of lane a too | each lane needs its own\n" +
		"8:16 egress.repair.threshold: 0 is out of range | write 1 to 1000\n"
	if diff := cmp.Diff(want, said(r.sorted())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"threshold", "rise", "min_ratio", "hold_max"}
	for word, want := range map[string]string{
		"treshold": "threshold", "Threshold": "threshold", "min-ratio": "min_ratio", "ratio": "min_ratio",
		"hold": "hold_max", "rice": "rise", "rsie": "rise", "zz": "", "": "", strings.Repeat("x", 100): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
