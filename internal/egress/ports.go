package egress

import (
	"context"
	"errors"
	"time"

	"github.com/shunt-net/shunt/internal/state"
)

// The ways to the world that a pass needs. Adapters implement them; the domain knows
// no kernel and no network of its own.

// Devices observes and changes the tunnel devices of lanes.
type Devices interface {
	// Observe reads a lane's device. A missing interface is a view, not an error.
	Observe(ctx context.Context, l Lane) (DeviceView, error)
	// Swap makes the lane carry the profile at path: make-before-break where key,
	// addresses and obfuscation of the two profiles allow it, else in place. When the
	// new peer does not answer before anything was taken from the old one, the error
	// is ErrNoHandshake and the lane is as it was.
	Swap(ctx context.Context, l Lane, from, to string) (SwapReport, error)
	// Settle makes the device hold exactly the profile at path, adding its peer anew
	// when renew is set: the way out of a killed swap, of strays and of a pending handshake.
	Settle(ctx context.Context, l Lane, path string, renew bool) error
}

// Prober looks through lanes and at the uplink.
type Prober interface {
	// Round sends n bound pings and returns as soon as need answers are in or cannot come.
	Round(ctx context.Context, l Lane, c CheckConfig, n, need int) Round
	// Deep does the TLS rungs and the full-size one.
	Deep(ctx context.Context, l Lane, c CheckConfig) Deep
	// Uplink pings the gateway and the direct targets without any lane.
	Uplink(ctx context.Context, u UplinkConfig) UplinkView
}

// Tester proves endpoints in process, with no kernel interface.
type Tester interface {
	// Test tests every target under the bounds of c; done is called once per target.
	// busy is asked before and during each test: a pair that a lane took meanwhile is let go.
	Test(ctx context.Context, c TestConfig, targets []TestTarget, busy func(pair string) bool, done func(TestResult)) error
}

// Plane moves users between lanes.
type Plane interface {
	// Observe reads the table's elements, the rules and the routes.
	Observe(ctx context.Context, c Config) (PlaneView, error)
	// Ensure makes the static part as it should be and puts each class where classes says,
	// in one transaction where anything differs. It reports whether it changed anything.
	Ensure(ctx context.Context, c Config, classes map[string]string) (bool, error)
	// Move puts the classes of home lanes onto other lanes in one transaction
	// (moves: home lane -> lane; "" = none).
	Move(ctx context.Context, c Config, moves map[string]string) error
}

// Flows deletes conntrack entries.
type Flows interface {
	// Flush deletes the entries of a home lane's class ("" = every class) on a lane, and
	// reports how many there were. Afterwards none of the class is left, or it is an error;
	// with "" its users stay on the lane, and busy flows are there anew at once.
	Flush(ctx context.Context, c Config, class, lane string) (int, error)
}

// Library gives the profiles of pools and lanes to the domain without their keys.
type Library interface {
	// Describe reads the profile at path.
	Describe(path string) (Description, error)
}

// Description is what the domain may know of a profile.
type Description struct {
	Endpoint string `json:"endpoint"`         // host:port as written
	Pair     string `json:"pair"`             // salted fingerprint of (server, client) public keys
	Identity string `json:"identity"`         // salted fingerprint of client key, addresses and obfuscation: equal = make-before-break works
	MTU      int    `json:"mtu"`              // bytes; 0 = not said
	Needs    string `json:"needs,omitempty"`  // what a lane's driver must carry: amneziawg; "" = plain WireGuard
	Reason   string `json:"reason,omitempty"` // why no lane can carry it (an unsupported key …)
}

// ErrNoHandshake says that the new peer of a swap never answered; nothing was touched.
var ErrNoHandshake = errors.New("no handshake with the new endpoint")

// Clock is the time source that cli hands to a pass.
type Clock func() time.Time

// Recovery regains a way to the provider's list when there is no fresh pool: it runs the
// configured strategies in their order, each under its own timeout.
type Recovery interface {
	// Recover runs strategies until one has access. That none has is a result, not an
	// error. It changes no lane, no route, no rule and no class of users.
	Recover(ctx context.Context, in RecoveryInput) (RecoveryResult, error)
}

// RecoveryInput is what a strategy may know. It holds no key: profiles are paths.
type RecoveryInput struct {
	State      map[string]string   `json:"state"`      // state.kv
	Pools      []Pool              `json:"pools"`      // last known, in order of preference: strict foreign, strict all, working
	Quarantine []state.Quarantined `json:"quarantine"` // their endpoints come last, and only here
	Interfaces []RecoveryInterface `json:"interfaces"` // lanes, as they are now
	Winner     string              `json:"winner,omitempty"`
	DryRun     bool                `json:"dry_run,omitempty"` // say what would be tried; send nothing
}

// RecoveryInterface is one lane's device as a strategy sees it.
type RecoveryInterface struct {
	Lane      string `json:"lane"`
	Interface string `json:"interface"`
	Table     int    `json:"table"`
	Mark      Mark   `json:"mark"`
	Endpoint  string `json:"endpoint,omitempty"` // it carries now
	Pair      string `json:"-"`                  // never proven in process: a lane holds its session
	Healthy   bool   `json:"healthy"`            // its last round passed
}

// RecoveryResult is what the strategies found.
type RecoveryResult struct {
	Success   bool   `json:"success"`
	Strategy  string `json:"recovery_strategy,omitempty"`
	Interface string `json:"recovery_iface,omitempty"`
	Proxy     string `json:"proxy,omitempty"`
	AccessOK  bool   `json:"hmn_access_ok"` // the list itself was reached that way

	// Tried is every strategy that ran, in order, with why it did not help.
	Tried []StrategyTry `json:"tried,omitempty"`

	// Access is how Sources reach the list; opaque to the domain (see SourcesVia).
	Access any `json:"-"`
	// Close gives up what Access holds (a tunnel); nil = nothing.
	Close func() error `json:"-"`
}

// StrategyTry is how one strategy ended.
type StrategyTry struct {
	Strategy string        `json:"strategy"`
	Success  bool          `json:"success"`
	Reason   string        `json:"reason,omitempty"`
	Took     time.Duration `json:"took"`
}

// SourcesVia is a Sources that can fetch by the way that a recovery found.
type SourcesVia interface {
	Via(access any) Sources
}
