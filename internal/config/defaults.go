package config

import (
	"net/netip"
	"reflect"
	"time"

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
	}
	return reflect.Zero(t)
}

// words returns the words of an enumerated type; nil when the type is not one.
func words(t reflect.Type) []string {
	switch t {
	case reflect.TypeFor[Level]():
		return []string{string(LevelDebug), string(LevelInfo), string(LevelWarn), string(LevelError)}
	case reflect.TypeFor[egress.SourceType]():
		return []string{string(egress.SourceDir), string(egress.SourceArchive), string(egress.SourceExec), string(egress.SourceHTTP), string(egress.SourceMullvad)}
	case reflect.TypeFor[egress.Ownership]():
		return []string{string(egress.OwnershipAny), string(egress.OwnershipOwned), string(egress.OwnershipRented)}
	case reflect.TypeFor[egress.Driver]():
		return []string{string(egress.DriverWireGuard), string(egress.DriverAmneziaWG), string(egress.DriverCommands)}
	case reflect.TypeFor[egress.PoolName]():
		return []string{string(egress.PoolNameForeign), string(egress.PoolNameAll), string(egress.PoolNameWorking)}
	case reflect.TypeFor[egress.FailMode]():
		return []string{string(egress.FailDirect), string(egress.FailOtherLane), string(egress.FailClosed)}
	case reflect.TypeFor[egress.NATMode]():
		return []string{string(egress.NATMasquerade), string(egress.NATNone)}
	}
	return nil
}
