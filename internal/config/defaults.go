package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/egress"
)

// Default returns the configuration of an empty file. This and prototype are the only
// places that hold defaults.
func Default() Config {
	cloudflare, quad9 := netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("9.9.9.9")
	return Config{
		StateDir: "/var/lib/shunt",
		Log:      Log{Level: LevelInfo},
		Hooks:    Hooks{Timeout: 10 * time.Second},
		Alerts:   edge.AlertsConfig{MinGap: edge.DefaultAlertMinGap},
		Watchdog: Watchdog{Interval: time.Second, For: 65 * time.Second, Edge: true, Egress: true},
		Edge: edge.Config{
			Writer: edge.WriterAuto, MaxConcurrent: 64, VetoFor: 30 * time.Second, Deadline: 2 * time.Second,
		},
		Egress: egress.Config{
			Pool: egress.PoolConfig{
				StrictForeign: "ok-awg1-strict-foreign-latest.tsv",
				StrictAll:     "ok-awg1-strict-all-latest.tsv",
				Working:       "working-awg1-latest.tsv",
				MinRatio:      0.8,
				Keep:          7,
			},
			Test: egress.TestConfig{
				Parallel: 128, Rate: 400, HandshakeTimeout: 2500 * time.Millisecond,
				Pings: 3, PingTimeout: time.Second, Targets: []netip.Addr{cloudflare, quad9},
				FullSize: true, TLS: hosts(), TLSTimeout: 2 * time.Second, Deadline: 10 * time.Minute,
			},
			Check: egress.CheckConfig{
				Targets: []netip.Addr{cloudflare, quad9},
				Count:   5, Need: 2, Gap: 20 * time.Millisecond, Wait: 300 * time.Millisecond,
				StrictCount: 5, MaxHandshake: 180 * time.Second,
				TLS: hosts(), TLSTimeout: 2 * time.Second, FullSize: true, DeepEvery: 5 * time.Second,
			},
			Uplink: egress.UplinkConfig{
				Gateway: "auto",
				Targets: []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("208.67.222.222")},
				Timeout: 600 * time.Millisecond,
			},
			Repair: egress.RepairConfig{
				Threshold: 2, Rise: 2, Parallel: 4, Limit: 12, ProveFor: 1500 * time.Millisecond,
				SwapLimit: 3, Readd: 120 * time.Second,
				HoldMin: 10 * time.Minute, HoldMax: 24 * time.Hour, HoldDecay: 6 * time.Hour,
				RetryAfter: 30 * time.Second,
			},
			Plane: egress.PlaneConfig{
				ManageRules: true, MarkMask: 0xfff, ClassMask: 0xff000, Priority: -150, RulePref: 20000,
				LeakGuard: true, ClampMSS: true, FlushFlows: true,
			},
			Modes: egress.ModesConfig{
				Threshold: 5, Window: 24 * time.Hour, Cooldown: 2 * time.Hour, RetryMin: 30 * time.Second, RetryMax: 10 * time.Minute,
			},
			Recovery: egress.RecoveryConfig{
				Dir: "/etc/shunt/strategies.d", Timeout: time.Minute,
				Order:    []egress.PoolName{egress.PoolNameForeign, egress.PoolNameAll, egress.PoolNameWorking},
				Parallel: 16, Resolvers: []netip.Addr{cloudflare, quad9}, OnRefresh: true,
			},
		},
	}
}

// hosts are two unrelated ones that speak TLS.
func hosts() []egress.TLSTarget {
	return []egress.TLSTarget{
		{Address: netip.MustParseAddrPort("1.1.1.1:443"), ServerName: "one.one.one.one"},
		{Address: netip.MustParseAddrPort("9.9.9.9:443"), ServerName: "dns.quad9.net"},
	}
}

// prototype returns what an entry of a list, or a mapping without a default of its own,
// holds before its keys are read.
func prototype(t reflect.Type) reflect.Value {
	switch t {
	case reflect.TypeFor[egress.Source]():
		return reflect.ValueOf(egress.Source{Timeout: 60 * time.Second, MaxBytes: 64 << 20, MaxFiles: 10000})
	case reflect.TypeFor[egress.Lane]():
		return reflect.ValueOf(egress.Lane{Driver: egress.DriverWireGuard, NAT: egress.NATMasquerade, FailMode: egress.FailDirect})
	case reflect.TypeFor[egress.Commands]():
		return reflect.ValueOf(egress.Commands{Timeout: 60 * time.Second})
	case reflect.TypeFor[edge.Service]():
		return reflect.ValueOf(edge.Service{
			Protocols: []edge.Protocol{edge.TCP}, Strategy: edge.StrategyFirstAvailable, Sticky: true,
			SNAT: edge.SNATHairpin, Tripwire: true, OnHint: edge.OnHintConfirm, Probe: probe(),
		})
	case reflect.TypeFor[edge.Probe]():
		return reflect.ValueOf(probe())
	case reflect.TypeFor[edge.Candidate]():
		return reflect.ValueOf(edge.Candidate{Weight: 1})
	case reflect.TypeFor[edge.ParityGroup]():
		return reflect.ValueOf(edge.ParityGroup{Every: time.Minute, Timeout: 5 * time.Second})
	case reflect.TypeFor[edge.AlertTarget]():
		return reflect.ValueOf(edge.AlertTarget{Timeout: edge.DefaultAlertTimeout, Level: edge.LevelInfo})
	}
	return reflect.Zero(t)
}

// probe is how a candidate is asked when nothing is said.
func probe() edge.Probe {
	return edge.Probe{
		Type: edge.ProbeTCP, Interval: time.Second, Cap: 700 * time.Millisecond, Misses: 2, Rise: 1, Status: []string{"200-399"},
	}
}

// shortForm returns what reads a mapping that is written as one word; nil = none does.
func shortForm(t reflect.Type) func(dst reflect.Value, text string) *fault {
	if t != reflect.TypeFor[edge.Candidate]() {
		return nil
	}
	return func(dst reflect.Value, text string) *fault {
		c, ok := dst.Addr().Interface().(*edge.Candidate)
		if !ok {
			return &fault{"cannot be set", ""}
		}
		if a, err := netip.ParseAddrPort(text); err == nil {
			c.Addresses, c.Port = []netip.Addr{a.Addr()}, int(a.Port())
			if c.Port == 0 {
				return &fault{fmt.Sprintf("%s has port 0", quote(text)), "write the port that the candidate listens on, or none for the service's"}
			}
			return nil
		}
		if a, err := netip.ParseAddr(text); err == nil {
			c.Addresses = []netip.Addr{a}
			return nil
		}
		return &fault{
			fmt.Sprintf("%s is not a candidate", quote(text)),
			"write an address with a port, such as 10.0.0.29:25565 or [fd00::29]:25565, an address alone, or a mapping of name, node, addresses",
		}
	}
}
