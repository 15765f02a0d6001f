// Package server is the far side of a lab world: a provider with many WireGuard endpoints,
// each with faults that can be set while it runs, and the services behind them.
//
// Endpoints are upstream wireguard-go devices, each on an address and with a key of its
// own; all accept the same client, as such providers do. What comes out of endpoint i goes
// through one kernel device with the source address of exit i, so that every service knows
// which endpoint a packet came through.
package server

import (
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/profile"
)

// MTUInside is the MTU of the tunnels, in bytes.
const MTUInside = 1420

// The networks of a provider.
const (
	EndpointNet = "198.18.0.0/15" // the endpoints' own addresses
	ExitNet4    = "10.100.0.0/16" // exits, as the services see them
	ExitNet6    = "fd64:100::/64" // same for IPv6
	FirstPort   = 42000           // endpoints listen on FirstPort to FirstPort+PortCount-1
	PortCount   = 1000            //
	MaxCount    = 200 * 250       // endpoints of one provider
	Inside4     = "10.64.0.1"     // the provider's own address inside every tunnel
	Inside6     = "fd64::1"       //
	clientNet4  = "10.64.%d.2"    // the client's address, by key group
	clientNet6  = "fd64:%x::2"    //
	exitFormat4 = "10.100.%d.%d"  //
	exitFormat6 = "fd64:100::%x"  //
	addrFormat  = "198.%d.%d.%d"  // of endpoints: the first 512 are in networks of their own
	keyFormat   = "shunt lab %s %d %d"
	maxNetworks = 512
)

// Options shape a provider.
type Options struct {
	Endpoints int                       // how many
	Seed      uint64                    // of keys and faults
	Dead      func(i int) bool          // endpoints that begin as Silent, without a device; nil = none
	RTT       func(i int) time.Duration // round trip added by endpoint i; nil = none
	Home      func(i int) bool          // endpoints in the home country; nil = none
	Keys      int                       // client keys (and addresses): endpoint i takes key i modulo Keys; 0 = 1

	// Speaks are the settings of AmneziaWG that endpoint i works with, none = plain
	// WireGuard; Says those that its profile has, where they differ (nil = as Speaks).
	Speaks, Says func(i int) []profile.KeyValue
}

// Provider is a set of running endpoints.
type Provider struct {
	ns   *cage.Namespace
	seed uint64
	exit *exit
	all  []*Endpoint
	svc  *services
}

// Endpoint is one WireGuard server.
type Endpoint struct {
	Index    int
	Name     string         // Germany, Berlin S5
	Home     bool           // in the home country
	Addr     netip.AddrPort // 198.18.5.10:42005
	Exit4    netip.Addr     // 10.100.0.6, as the services see its clients
	Exit6    netip.Addr
	Client4  netip.Addr // 10.64.0.2, the address its clients must use
	Client6  netip.Addr
	KeyGroup int

	p      *Provider
	client *ecdh.PrivateKey
	server *ecdh.PrivateKey
	rtt    atomic.Int64
	gate   *gate
	count  counters
	tun    *inner
	speaks amnezia.Params
	says   []profile.KeyValue

	mu   sync.Mutex
	dev  *device.Device
	hole int // descriptor of the socket of a dead endpoint that nobody reads; -1 = none
}

// Start makes a provider in a namespace that routes EndpointNet to itself.
func Start(ns *cage.Namespace, o Options) (*Provider, error) {
	if o.Endpoints < 0 || o.Endpoints > MaxCount {
		return nil, fmt.Errorf("provider: %d endpoints: want up to %d", o.Endpoints, MaxCount)
	}
	if o.Keys == 0 {
		o.Keys = 1
	}
	x, err := openExit(ns)
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	p := &Provider{ns: ns, seed: o.Seed, exit: x}
	for i := range o.Endpoints {
		e, err := p.newEndpoint(i, o)
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("provider: %w", err)
		}
		p.all = append(p.all, e)
	}
	go x.run()
	return p, nil
}

// Close ends all endpoints and services.
func (p *Provider) Close() {
	_ = p.exit.f.Close()
	var wg sync.WaitGroup
	for _, e := range p.all {
		wg.Go(e.close)
	}
	wg.Wait()
	if p.svc != nil {
		p.svc.close()
	}
}

// Endpoints are all endpoints, by index.
func (p *Provider) Endpoints() []*Endpoint { return p.all }

// Find returns the endpoint with that host:port; nil = none.
func (p *Provider) Find(hostport string) *Endpoint {
	for _, e := range p.all {
		if e.Addr.String() == hostport {
			return e
		}
	}
	return nil
}

// ByExit returns the endpoint whose clients the services see under that address; nil = none.
func (p *Provider) ByExit(a netip.Addr) *Endpoint { return p.exit.find(a.Unmap()) }

// key makes a private key that depends on the seed alone.
func (p *Provider) key(who string, i int) (*ecdh.PrivateKey, error) {
	h := sha256.Sum256(fmt.Appendf(nil, keyFormat, who, p.seed, i))
	h[0] &= 248
	h[31] = h[31]&127 | 64
	return ecdh.X25519().NewPrivateKey(h[:])
}

func (p *Provider) newEndpoint(i int, o Options) (*Endpoint, error) {
	group := i % o.Keys
	e := &Endpoint{
		Index: i, Name: placeName(i, o.Home != nil && o.Home(i)), Home: o.Home != nil && o.Home(i), KeyGroup: group,
		Addr: netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(addrFormat, 18+i/256%2, i%256, 10+i/maxNetworks)),
			uint16(FirstPort+i%PortCount)), //nolint:gosec // below 65536
		Exit4:   netip.MustParseAddr(fmt.Sprintf(exitFormat4, i/200, 1+i%200)),
		Exit6:   netip.MustParseAddr(fmt.Sprintf(exitFormat6, i+1)),
		Client4: netip.MustParseAddr(fmt.Sprintf(clientNet4, group)),
		Client6: netip.MustParseAddr(fmt.Sprintf(clientNet6, group)),
		p:       p, gate: newGate(p.seed, uint64(i)), hole: -1,
	}
	var err error
	if e.client, err = p.key("client", group); err != nil {
		return nil, err
	}
	if e.server, err = p.key("server", i); err != nil {
		return nil, err
	}
	if o.RTT != nil {
		e.SetRTT(o.RTT(i))
	}
	if err := e.hide(o); err != nil {
		return nil, err
	}
	p.exit.add(e)
	if o.Dead != nil && o.Dead(i) {
		e.gate.set(Silent())
		return e, e.dig()
	}
	return e, e.start()
}

// hide gives the endpoint its settings of AmneziaWG.
func (e *Endpoint) hide(o Options) (err error) {
	if o.Speaks != nil {
		e.says = o.Speaks(e.Index)
		e.speaks, err = amnezia.FromProfile(profile.Profile{Obfuscation: e.says})
	}
	if o.Says != nil {
		e.says = o.Says(e.Index)
	}
	return err
}

// bind is the socket of the endpoint's device.
func (e *Endpoint) bind() (conn.Bind, error) {
	if e.speaks.Plain() {
		return &bind{e: e}, nil
	}
	return amnezia.Wrap(&bind{e: e}, e.speaks, amnezia.Options{
		Self: profile.Key(e.server.PublicKey().Bytes()), Peers: []profile.Key{profile.Key(e.client.PublicKey().Bytes())}, Now: time.Now,
		Heard: func(k amnezia.Kind, _ conn.Endpoint) {
			if k == amnezia.KindInitiation {
				e.count.handshakes.Add(1)
			}
		},
	})
}

// dig binds a socket that nobody reads: a dead server says nothing, not even "unreachable".
func (e *Endpoint) dig() error {
	return e.p.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(e.Addr.Port()), Addr: e.Addr.Addr().As4()}); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("endpoint %s: %w", e.Addr, err)
		}
		e.hole = fd
		return nil
	})
}

// start makes the endpoint's device; the caller holds mu or is alone.
func (e *Endpoint) start() error {
	if e.hole >= 0 {
		_ = unix.Close(e.hole)
		e.hole = -1
	}
	b, err := e.bind()
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.Addr, err)
	}
	e.tun = newInner(e)
	d := device.NewDevice(e.tun, b, device.NewLogger(device.LogLevelSilent, ""))
	conf := fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nallowed_ip=%s/32\nallowed_ip=%s/128\n",
		hex.EncodeToString(e.server.Bytes()), e.Addr.Port(), hex.EncodeToString(e.client.PublicKey().Bytes()), e.Client4, e.Client6)
	err = d.IpcSet(conf)
	if err == nil {
		err = d.Up()
	}
	if err != nil {
		d.Close()
		return fmt.Errorf("endpoint %s: %w", e.Addr, err)
	}
	e.dev = d
	return nil
}

func (e *Endpoint) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dev != nil {
		e.dev.Close()
		e.dev = nil
	}
	if e.hole >= 0 {
		_ = unix.Close(e.hole)
		e.hole = -1
	}
}

// SetFault changes what the endpoint does wrong, from the next packet on. An endpoint that
// began dead gets its device by the first fault that is not Silent; only that can fail.
func (e *Endpoint) SetFault(f Fault) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dev == nil && f.kind != kindSilent {
		if err := e.start(); err != nil {
			return err
		}
	}
	e.gate.set(f)
	return nil
}

// Fault is the one set now.
func (e *Endpoint) Fault() Fault { return e.gate.get() }

// SetRTT changes the round trip that the endpoint adds to all that it sends.
func (e *Endpoint) SetRTT(d time.Duration) { e.rtt.Store(int64(d)) }

// RTT is the round trip that the endpoint adds.
func (e *Endpoint) RTT() time.Duration { return time.Duration(e.rtt.Load()) }

// Counts are the endpoint's counters.
func (e *Endpoint) Counts() Counts { return e.count.read() }

// Alive says whether the endpoint has no fault.
func (e *Endpoint) Alive() bool { return e.Fault().kind == kindAlive }

// HostPort is the endpoint's identity as profiles write it.
func (e *Endpoint) HostPort() string { return e.Addr.String() }

// PublicKey is the server's, in base64.
func (e *Endpoint) PublicKey() string {
	return base64.StdEncoding.EncodeToString(e.server.PublicKey().Bytes())
}

// PrivateKey is the client's, in base64.
func (e *Endpoint) PrivateKey() string { return base64.StdEncoding.EncodeToString(e.client.Bytes()) }

// UAPI is the client's configuration in wireguard-go's form.
func (e *Endpoint) UAPI() string {
	return fmt.Sprintf("private_key=%s\nreplace_peers=true\npublic_key=%s\nendpoint=%s\nallowed_ip=0.0.0.0/0\nallowed_ip=::/0\npersistent_keepalive_interval=25\n",
		hex.EncodeToString(e.client.Bytes()), hex.EncodeToString(e.server.PublicKey().Bytes()), e.Addr)
}

// Profile is the client's wg-quick configuration, as a provider hands it out.
func (e *Endpoint) Profile() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "[Interface]\nPrivateKey = %s\nAddress = %s/32, %s/128\nDNS = %s\nMTU = %d\n", e.PrivateKey(), e.Client4, e.Client6, Inside4, MTUInside)
	for _, kv := range e.says {
		fmt.Fprintf(&b, "%s = %s\n", kv.Key, kv.Value)
	}
	fmt.Fprintf(&b, "\n[Peer]\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = 0.0.0.0/0, ::/0\nPersistentKeepalive = 25\n", e.PublicKey(), e.Addr)
	return []byte(b.String())
}

// File is the profile's file name.
func (e *Endpoint) File() string { return e.Name + ".conf" }

// placeName invents where an endpoint stands; each index has a name of its own.
func placeName(i int, home bool) string {
	places := [...]string{
		"Germany, Berlin", "Netherlands, Amsterdam", "Finland, Helsinki", "Sweden, Stockholm", "France, Paris",
		"Austria, Vienna", "Poland, Warsaw", "Latvia, Riga", "Serbia, Belgrade", "Spain, Madrid",
		"Italy, Milan", "Norway, Oslo", "Turkey, Istanbul", "Japan, Tokyo", "Canada, Toronto", "Estonia, Tallinn",
	}
	if home {
		return fmt.Sprintf("%s, Central S%d", HomeCountry, i+1)
	}
	return fmt.Sprintf("%s S%d", places[i%len(places)], i+1)
}

// HomeCountry begins the names of endpoints that are at home.
const HomeCountry = "Homeland"

// listenUDP opens a UDP socket in the provider's namespace.
func (p *Provider) listenUDP(a netip.AddrPort) (c *net.UDPConn, err error) {
	err = p.ns.Do(func() error {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
		return err
	})
	return c, err
}
