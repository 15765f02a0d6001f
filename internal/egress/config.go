package egress

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"
)

// Config is the `egress:` section of the configuration file. The reference file
// printed by `shunt config reference` documents every key and holds every default.
type Config struct {
	Sources   []Source        `yaml:"sources" json:"sources"`
	Pool      PoolConfig      `yaml:"pool" json:"pool"`
	Test      TestConfig      `yaml:"test" json:"test"`
	Lanes     []Lane          `yaml:"lanes" json:"lanes"`
	Check     CheckConfig     `yaml:"check" json:"check"`
	Uplink    UplinkConfig    `yaml:"uplink" json:"uplink"`
	Repair    RepairConfig    `yaml:"repair" json:"repair"`
	Rebalance RebalanceConfig `yaml:"rebalance" json:"rebalance"`
	Plane     PlaneConfig     `yaml:"plane" json:"plane"`
	Modes     ModesConfig     `yaml:"modes" json:"modes"`
	Recovery  RecoveryConfig  `yaml:"recovery" json:"recovery"`
}

// SourceType says how a provider source yields profiles.
type SourceType string

// The source types. The zero value is unknown and never valid.
const (
	SourceUnknown SourceType = ""
	SourceDir     SourceType = "dir"
	SourceArchive SourceType = "archive"
	SourceExec    SourceType = "exec"
	SourceHTTP    SourceType = "http"
	SourceMullvad SourceType = "mullvad"
)

// Ownership says whose machines a source of type mullvad takes: those that the provider
// owns, those that it rents, or any.
type Ownership string

// The kinds of ownership. The zero value is not said, which is any.
const (
	OwnershipUnknown Ownership = ""
	OwnershipAny     Ownership = "any"
	OwnershipOwned   Ownership = "owned"
	OwnershipRented  Ownership = "rented"
)

// Source is one place that profiles (.conf files) come from.
type Source struct {
	Name     string        `yaml:"name" json:"name"`           // hmn
	Type     SourceType    `yaml:"type" json:"type"`           // dir | archive | exec | http | mullvad
	Path     string        `yaml:"path" json:"path,omitempty"` // dir: folder; archive, mullvad: file
	URL      string        `yaml:"url" json:"url,omitempty"`   // archive, http, mullvad: http or https
	Command  []string      `yaml:"command" json:"command,omitempty"`
	Timeout  time.Duration `yaml:"timeout" json:"timeout"`     // 60s
	MaxBytes int64         `yaml:"max_bytes" json:"max_bytes"` // unpacked, bytes
	MaxFiles int           `yaml:"max_files" json:"max_files"`

	// HeadersFile holds secrets, one `Name: value` per line; only its path is ever shown.
	HeadersFile string `yaml:"headers_file,omitempty" json:"headers_file,omitempty"` // archive, http, mullvad

	// The keys of type mullvad.
	KeyFile   string         `yaml:"key_file,omitempty" json:"key_file,omitempty"`   // holds the private key; only its path is ever shown
	Addresses []netip.Prefix `yaml:"addresses,omitempty" json:"addresses,omitempty"` // the account's, inside the tunnel
	DNS       []netip.Addr   `yaml:"dns,omitempty" json:"dns,omitempty"`
	Port      int            `yaml:"port,omitempty" json:"port,omitempty"`           // UDP port of the relays; 0 = 51820
	Countries []string       `yaml:"countries,omitempty" json:"countries,omitempty"` // codes or names (se, Sweden); empty = all
	Cities    []string       `yaml:"cities,omitempty" json:"cities,omitempty"`       // codes or names (sto, se-sto, Stockholm); empty = all
	Ownership Ownership      `yaml:"ownership,omitempty" json:"ownership,omitempty"`
}

// PoolConfig says where ranked pools live and when a new one may replace the last.
type PoolConfig struct {
	Dir           string   `yaml:"dir" json:"dir"` // "" = STATE_DIR/pools
	StrictForeign string   `yaml:"strict_foreign" json:"strict_foreign"`
	StrictAll     string   `yaml:"strict_all" json:"strict_all"`
	Working       string   `yaml:"working" json:"working"`
	Home          []string `yaml:"home" json:"home,omitempty"` // globs of file names that are not foreign
	MinRatio      float64  `yaml:"min_ratio" json:"min_ratio"`
	Keep          int      `yaml:"keep" json:"keep"`
}

// TestConfig bounds and paces the in-process tests of endpoints.
type TestConfig struct {
	Parallel         int           `yaml:"parallel" json:"parallel"`
	Rate             int           `yaml:"rate" json:"rate"` // handshakes begun per second
	HandshakeTimeout time.Duration `yaml:"handshake_timeout" json:"handshake_timeout"`
	Pings            int           `yaml:"pings" json:"pings"`
	PingTimeout      time.Duration `yaml:"ping_timeout" json:"ping_timeout"`
	Targets          []netip.Addr  `yaml:"targets" json:"targets"`     // pinged inside the tunnel, in turn
	FullSize         bool          `yaml:"full_size" json:"full_size"` // one ping of the tunnel's MTU
	TLS              []TLSTarget   `yaml:"tls" json:"tls,omitempty"`   // one of them must complete a TLS handshake inside the tunnel; empty = not asked for
	TLSTimeout       time.Duration `yaml:"tls_timeout" json:"tls_timeout,omitempty"`
	Deadline         time.Duration `yaml:"deadline" json:"deadline"` // of a whole refresh's tests
}

// Driver names how a lane's device is changed.
type Driver string

// The lane drivers.
const (
	DriverUnknown   Driver = ""
	DriverWireGuard Driver = "wireguard"
	DriverCommands  Driver = "commands"
	DriverAmneziaWG Driver = "amneziawg"
)

// NeedsAmneziaWG is what profiles with obfuscation need of a lane.
const NeedsAmneziaWG = "amneziawg"

// Carries says whether the lane's device can carry a profile with that need (see
// Description.Needs). Of a user's own commands it is known by what they call.
func (l Lane) Carries(needs string) bool {
	if needs == "" {
		return true
	}
	if needs != NeedsAmneziaWG {
		return false
	}
	switch l.Driver {
	case DriverAmneziaWG:
		return true
	case DriverCommands:
		c := l.Commands
		for _, argv := range [][]string{c.Up, c.Down, c.Apply, {c.Template}} {
			if len(argv) > 0 && strings.HasPrefix(path.Base(argv[0]), "awg") {
				return true
			}
		}
	case DriverUnknown, DriverWireGuard:
	}
	return false
}

// NATMode says who translates the addresses of a lane's users.
type NATMode string

// The NAT modes.
const (
	NATUnknown    NATMode = ""
	NATMasquerade NATMode = "masquerade"
	NATNone       NATMode = "none"
)

// Lane is one production slot, for example `egress2 / vpn2 / 202 / 0x202 / cs5`.
type Lane struct {
	Name      string   `yaml:"name" json:"name"`
	Interface string   `yaml:"interface" json:"interface"`
	Table     int      `yaml:"table" json:"table"` // routing table
	Mark      Mark     `yaml:"mark" json:"mark"`   // fwmark under plane.mark_mask
	DSCP      []DSCP   `yaml:"dscp" json:"dscp"`   // classes of users
	Driver    Driver   `yaml:"driver" json:"driver"`
	NAT       NATMode  `yaml:"nat" json:"nat"`
	FailMode  FailMode `yaml:"fail_mode" json:"fail_mode,omitempty"`
	Pin       string   `yaml:"pin" json:"pin,omitempty"` // endpoint that rebalance never moves away from
	Commands  Commands `yaml:"commands" json:"commands,omitzero"`
}

// Commands are the user's own commands of a lane with driver `commands`.
// Each is an argv; `{interface}`, `{config}` (the new profile's path), `{lane}` and
// `{installed}` are replaced in each argument. No shell is involved.
type Commands struct {
	Template  string        `yaml:"template" json:"template,omitempty"`   // ifupdown | wg-quick | awg-quick | "" for own commands
	Installed string        `yaml:"installed" json:"installed,omitempty"` // file that the commands read: saved before and restored on undo
	Up        []string      `yaml:"up" json:"up,omitempty"`
	Down      []string      `yaml:"down" json:"down,omitempty"`
	Apply     []string      `yaml:"apply" json:"apply,omitempty"`
	Timeout   time.Duration `yaml:"timeout" json:"timeout,omitempty"`
}

// CheckConfig is the ladder of truth for a lane.
type CheckConfig struct {
	Targets      []netip.Addr  `yaml:"targets" json:"targets"`             // pinged through the lane, in turn
	Count        int           `yaml:"count" json:"count"`                 // pings of a round
	Need         int           `yaml:"need" json:"need"`                   // answers that make a round pass
	Gap          time.Duration `yaml:"gap" json:"gap"`                     // between pings
	Wait         time.Duration `yaml:"wait" json:"wait"`                   // after the last ping
	StrictCount  int           `yaml:"strict_count" json:"strict_count"`   // pings of a strict check, none may be lost
	MaxHandshake time.Duration `yaml:"max_handshake" json:"max_handshake"` // age of a handshake that a strict check accepts
	TLS          []TLSTarget   `yaml:"tls" json:"tls,omitempty"`
	TLSTimeout   time.Duration `yaml:"tls_timeout" json:"tls_timeout"`
	FullSize     bool          `yaml:"full_size" json:"full_size"`
	DeepEvery    time.Duration `yaml:"deep_every" json:"deep_every"` // TLS and full-size rungs at most this often while they pass
}

// TLSTarget is one far host that must complete a TLS handshake through a lane.
type TLSTarget struct {
	Address    netip.AddrPort `yaml:"address" json:"address"` // 1.1.1.1:443
	ServerName string         `yaml:"server_name" json:"server_name,omitempty"`
}

// UplinkConfig says how to tell a dead lane from a dead uplink.
type UplinkConfig struct {
	Interface string        `yaml:"interface" json:"interface"` // "" = that of the default route
	Gateway   string        `yaml:"gateway" json:"gateway"`     // auto | address
	Targets   []netip.Addr  `yaml:"targets" json:"targets"`     // pinged directly
	Timeout   time.Duration `yaml:"timeout" json:"timeout"`
}

// RepairConfig bounds a repair.
type RepairConfig struct {
	Threshold  int           `yaml:"threshold" json:"threshold"`     // failed rounds in a row that make a lane down
	Rise       int           `yaml:"rise" json:"rise"`               // good rounds in a row that bring a lent class home without a swap
	Parallel   int           `yaml:"parallel" json:"parallel"`       // candidates proven at once
	Limit      int           `yaml:"limit" json:"limit"`             // candidates proven in one run
	ProveFor   time.Duration `yaml:"prove_for" json:"prove_for"`     // bound of one proof
	SwapLimit  int           `yaml:"swap_limit" json:"swap_limit"`   // swaps tried on one lane in one run
	Readd      time.Duration `yaml:"readd_after" json:"readd_after"` // handshake age from which a peer is added anew before the verdict
	HoldMin    time.Duration `yaml:"hold_min" json:"hold_min"`
	HoldMax    time.Duration `yaml:"hold_max" json:"hold_max"`
	HoldDecay  time.Duration `yaml:"hold_decay" json:"hold_decay"` // good service that halves a hold-down
	RetryAfter time.Duration `yaml:"retry_after" json:"retry_after"`
}

// Hysteresis leaves a working endpoint only for a much better one.
type Hysteresis struct {
	Gain  time.Duration `yaml:"gain" json:"gain"`
	Ratio float64       `yaml:"ratio" json:"ratio"`
}

// RebalanceConfig shapes the choice of endpoints.
type RebalanceConfig struct {
	Hysteresis   Hysteresis `yaml:"hysteresis" json:"hysteresis"`
	MaxPerPrefix int        `yaml:"max_per_prefix" json:"max_per_prefix"` // lanes in one /24 or /48; 0 = any
	Allow        []string   `yaml:"allow" json:"allow,omitempty"`         // globs of file names; empty = all
	Deny         []string   `yaml:"deny" json:"deny,omitempty"`
}

// PlaneConfig is the user plane: marks, rules, routes and translation.
type PlaneConfig struct {
	ManageRules bool           `yaml:"manage_rules" json:"manage_rules"`
	MarkMask    Mark           `yaml:"mark_mask" json:"mark_mask"`     // bits of fwmark and ct mark that name a lane
	ClassMask   Mark           `yaml:"class_mask" json:"class_mask"`   // bits of ct mark that name a class
	Priority    int            `yaml:"priority" json:"priority"`       // of the prerouting and forward chains
	RulePref    int            `yaml:"rule_pref" json:"rule_pref"`     // of the first ip rule
	LeakGuard   bool           `yaml:"leak_guard" json:"leak_guard"`   // blackhole routes and drop rules
	Bypass      []netip.Prefix `yaml:"bypass" json:"bypass,omitempty"` // destinations that never go through a lane
	Inputs      []string       `yaml:"inputs" json:"inputs,omitempty"` // interfaces of users; empty = all but lanes and uplink
	ClampMSS    bool           `yaml:"clamp_mss" json:"clamp_mss"`     // TCP MSS to the least of the lanes
	FlushFlows  bool           `yaml:"flush_flows" json:"flush_flows"` // delete conntrack entries on lend and swap
}

// PoolName names one of the three pools where an order of them is set.
type PoolName string

// The names of pools in settings. The zero value is unknown and never valid.
const (
	PoolNameUnknown PoolName = ""
	PoolNameForeign PoolName = "strict_foreign"
	PoolNameAll     PoolName = "strict_all"
	PoolNameWorking PoolName = "working"
)

// ModesConfig says when a refresh is made out of turn, and how often it is tried again.
type ModesConfig struct {
	Threshold int           `yaml:"threshold" json:"threshold"` // replacements since the last good refresh that ask for another
	Window    time.Duration `yaml:"window" json:"window"`       // in which they count
	Cooldown  time.Duration `yaml:"cooldown" json:"cooldown"`   // between emergency refreshes
	RetryMin  time.Duration `yaml:"retry_min" json:"retry_min"` // after the first one that failed
	RetryMax  time.Duration `yaml:"retry_max" json:"retry_max"` // doubling up to it
}

// FailMode says what becomes of a class when no lane carries it.
type FailMode string

// The fail modes. The zero value is not said, which is direct.
const (
	FailUnknown   FailMode = ""
	FailDirect    FailMode = "direct"     // lent; direct once VPN is exhausted
	FailOtherLane FailMode = "other_lane" // lent, never direct
	FailClosed    FailMode = "closed"     // neither
)

// RecoveryConfig shapes the ways to the list that are tried when the plain one fails.
type RecoveryConfig struct {
	Dir       string        `yaml:"dir" json:"dir"`               // of strategies
	Timeout   time.Duration `yaml:"timeout" json:"timeout"`       // of each strategy
	Order     []PoolName    `yaml:"order" json:"order"`           // of last known pools whose endpoints are tried; quarantined ones come last
	Parallel  int           `yaml:"parallel" json:"parallel"`     // endpoints tried at once
	Resolvers []netip.Addr  `yaml:"resolvers" json:"resolvers"`   // asked through a tunnel whose profile names none, and through interfaces
	OnRefresh bool          `yaml:"on_refresh" json:"on_refresh"` // also for a plain refresh that cannot get the list
}

// Mark is an fwmark or a mask, written in hexadecimal.
type Mark uint32

// UnmarshalText reads 0x202, 514 or 0b10.
func (m *Mark) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 32)
	if err != nil {
		return fmt.Errorf("mark %q: want a number up to 0xffffffff", b)
	}
	*m = Mark(v)
	return nil
}

// MarshalText writes 0x202.
func (m Mark) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m Mark) String() string { return fmt.Sprintf("0x%x", uint32(m)) }

// DSCP is a differentiated services code point, 0 to 63 (RFC 2474).
type DSCP uint8

// dscpNames are the names that nft prints (RFC 2474, 2597, 3246, 5865, 8622).
func dscpNames() map[string]DSCP {
	return map[string]DSCP{
		"cs0": 0, "cs1": 8, "cs2": 16, "cs3": 24, "cs4": 32, "cs5": 40, "cs6": 48, "cs7": 56,
		"af11": 10, "af12": 12, "af13": 14, "af21": 18, "af22": 20, "af23": 22,
		"af31": 26, "af32": 28, "af33": 30, "af41": 34, "af42": 36, "af43": 38, "ef": 46, "va": 44, "le": 1,
	}
}

// UnmarshalText reads cs5, af41, ef or a number from 0 to 63.
func (d *DSCP) UnmarshalText(b []byte) error {
	s := strings.ToLower(strings.TrimSpace(string(b)))
	if v, ok := dscpNames()[s]; ok {
		*d = v
		return nil
	}
	v, err := strconv.ParseUint(s, 0, 8)
	if err != nil || v > 63 {
		return fmt.Errorf("dscp %q: want cs0…cs7, af11…af43, ef, va, le or a number from 0 to 63", b)
	}
	*d = DSCP(v)
	return nil
}

// MarshalText writes cs5, or 0x03 where the code point has no name.
func (d DSCP) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d DSCP) String() string {
	for n, v := range dscpNames() {
		if v == d {
			return n
		}
	}
	return fmt.Sprintf("0x%02x", uint8(d))
}

// Lane returns the lane of that name.
func (c *Config) Lane(name string) (Lane, bool) {
	for _, l := range c.Lanes {
		if l.Name == name {
			return l, true
		}
	}
	return Lane{}, false
}

// ClassMark is the value, inside plane.class_mask, that marks flows of the lane's own
// class in conntrack: the lane's place in the list, counted from 1.
func (c *Config) ClassMark(lane string) Mark {
	shift := 0
	for m := uint32(c.Plane.ClassMask); m != 0 && m&1 == 0; m >>= 1 {
		shift++
	}
	for i, l := range c.Lanes {
		if l.Name == lane {
			return Mark(uint32(i+1) << shift)
		}
	}
	return 0
}
