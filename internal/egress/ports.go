package egress

import (
	"context"
	"errors"
	"time"
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
	Reason   string `json:"reason,omitempty"` // why no lane can carry it (an unsupported key …)
}

// ErrNoHandshake says that the new peer of a swap never answered; nothing was touched.
var ErrNoHandshake = errors.New("no handshake with the new endpoint")

// Clock is the time source that cli hands to a pass.
type Clock func() time.Time
