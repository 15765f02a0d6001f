// Package wgtest is a test server: many WireGuard endpoints in one process, each an
// upstream wireguard-go device with its own key behind a small UDP socket, whose inner
// side answers ICMP echo and TLS at port 443 for every address. Round-trip time, silence,
// loss, a choked path, a small path MTU and TCP that gets nowhere are settings, so that no
// kernel module and no netem is needed.
package wgtest

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/curve25519"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/profile"
)

// Behaviour is how one endpoint treats its client. The zero value answers everything.
type Behaviour struct {
	Silent     bool    // no datagram is answered, and none is looked at
	Drop       float64 // share of echo requests that are lost, spread evenly: 0.5 drops every second one
	ChokeAfter int     // bytes of inner packets over 200 bytes after which no such packet passes; 0 = never
	MTU        int     // inner packets of more bytes are lost; 0 = any pass
	NoTCP      bool    // TCP segments are lost
	NoData     bool    // TCP connects, but segments with data are lost
}

// Options shapes a Server.
type Options struct {
	Listen     netip.Addr            // 127.0.0.1 when not set
	RTT        time.Duration         // added to every answer
	Behave     func(i int) Behaviour // nil = all answer
	OwnKeys    bool                  // each profile has a client key of its own; else all share one
	ProfileMTU int                   // MTU line of the profiles, bytes; 0 = none
	Seed       string                // makes the keys of two servers differ
	Refuse     []netip.Addr          // hosts inside whose TLS service cuts each connection off
	Deaf       []netip.Addr          // hosts inside that no TCP segment reaches

	// Speaks are AmneziaWG's settings of endpoint i, and Says those in its profile; nil = as Speaks.
	Speaks, Says func(i int) []profile.KeyValue
}

// Server is a set of running endpoints.
type Server struct {
	opts      Options
	endpoints []*endpoint
	delay     *delayLine
	tls       func() (*tls.Config, error)
}

// endpoint is one server key at one port.
type endpoint struct {
	index        int
	addr         netip.AddrPort
	public       [32]byte
	client       [32]byte // the client's private key
	bind         *bind
	device       *device.Device
	behaviour    atomic.Pointer[Behaviour]
	initiations  atomic.Int64
	data         atomic.Int64
	cookies      atomic.Int64
	flooder      atomic.Uint32 // port of Flood's socket
	mu           sync.Mutex
	debt         float64
	choked       int
	lastDatagram atomic.Int64 // unix nanoseconds
	web          web
}

// Start runs n endpoints on ports that the kernel chooses.
func Start(n int, o Options) (*Server, error) {
	if !o.Listen.IsValid() {
		o.Listen = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	s := &Server{opts: o, delay: newDelayLine(o.RTT), tls: sync.OnceValues(certified)}
	for i := range n {
		e, err := s.start(i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("endpoint %d: %w", i, err), s.Close())
		}
		s.endpoints = append(s.endpoints, e)
	}
	return s, nil
}

func (s *Server) start(i int) (*endpoint, error) {
	private, public := keyPair(fmt.Sprintf("%s server %d", s.opts.Seed, i))
	client := 0
	if s.opts.OwnKeys {
		client = i
	}
	clientPrivate, clientPublic := keyPair(fmt.Sprintf("%s client %d", s.opts.Seed, client))
	e := &endpoint{index: i, public: public, client: clientPrivate, web: web{conf: s.tls, refuse: s.opts.Refuse, deaf: s.opts.Deaf}}
	b := Behaviour{}
	if s.opts.Behave != nil {
		b = s.opts.Behave(i)
	}
	e.behaviour.Store(&b)
	e.bind = &bind{listen: s.opts.Listen, endpoint: e, delay: s.delay}
	if b.Silent { // a socket that nobody reads costs a twentieth of a device
		if _, _, err := e.bind.Open(0); err != nil {
			return nil, err
		}
		e.addr = e.bind.local()
		return e, nil
	}
	quiet := &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf}
	outer, err := s.wrap(e, private, clientPublic)
	if err != nil {
		return nil, err
	}
	e.device = device.NewDevice(newInside(e), outer, quiet)
	conf := fmt.Sprintf("private_key=%s\npublic_key=%s\nallowed_ip=0.0.0.0/0\nallowed_ip=::/0\n",
		hex.EncodeToString(private[:]), hex.EncodeToString(clientPublic[:]))
	if err := errors.Join(e.device.IpcSet(conf), e.device.Up()); err != nil {
		e.device.Close()
		return nil, err
	}
	e.addr = e.bind.local()
	return e, nil
}

// wrap is the endpoint's bind, behind AmneziaWG where it speaks that.
func (s *Server) wrap(e *endpoint, private, client profile.Key) (conn.Bind, error) {
	if s.opts.Speaks == nil || len(s.opts.Speaks(e.index)) == 0 {
		return e.bind, nil
	}
	p, err := amnezia.FromProfile(profile.Profile{Obfuscation: s.opts.Speaks(e.index)})
	if err != nil {
		return nil, err
	}
	return amnezia.Wrap(e.bind, p, amnezia.Options{Self: private.Public(), Peers: []profile.Key{client}, Now: time.Now}) //nolint:forbidigo // a test server
}

// Close stops every endpoint.
func (s *Server) Close() error {
	var errs []error
	for _, e := range s.endpoints {
		if e.device != nil {
			e.device.Close()
		}
		e.web.close()
		errs = append(errs, e.bind.Close())
	}
	s.delay.close()
	return errors.Join(errs...)
}

// Len is the number of endpoints.
func (s *Server) Len() int { return len(s.endpoints) }

// Addr is where endpoint i listens.
func (s *Server) Addr(i int) netip.AddrPort { return s.endpoints[i].addr }

// Public is the public key of endpoint i.
func (s *Server) Public(i int) [32]byte { return s.endpoints[i].public }

// ClientPrivate is the private key in the profile of endpoint i.
func (s *Server) ClientPrivate(i int) [32]byte { return s.endpoints[i].client }

// Initiations is how many handshake initiations reached endpoint i.
func (s *Server) Initiations(i int) int { return int(s.endpoints[i].initiations.Load()) }

// Data is how many transport messages reached endpoint i.
func (s *Server) Data(i int) int { return int(s.endpoints[i].data.Load()) }

// TLS is how many TLS handshakes clients began with hosts behind endpoint i, so far as
// their first message arrived.
func (s *Server) TLS(i int) int { return int(s.endpoints[i].web.begun.Load()) }

// Cookies is how many cookie replies endpoint i sent to clients that were not Flood's.
func (s *Server) Cookies(i int) int { return int(s.endpoints[i].cookies.Load()) }

// LastDatagram is when the last datagram reached endpoint i; zero = none did.
func (s *Server) LastDatagram(i int) time.Time {
	n := s.endpoints[i].lastDatagram.Load()
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// SetBehaviour changes endpoint i from now on. One that began silent stays so.
func (s *Server) SetBehaviour(i int, b Behaviour) { s.endpoints[i].behaviour.Store(&b) }

// Profile is the wg-quick profile that reaches endpoint i.
func (s *Server) Profile(i int) string {
	e := s.endpoints[i]
	var b strings.Builder
	fmt.Fprintf(&b, "[Interface]\nPrivateKey = %s\nAddress = 10.64.0.9/32, fd64::9/128\n", base64.StdEncoding.EncodeToString(e.client[:]))
	if s.opts.ProfileMTU > 0 {
		fmt.Fprintf(&b, "MTU = %d\n", s.opts.ProfileMTU)
	}
	says := s.opts.Says
	if says == nil {
		says = s.opts.Speaks
	}
	if says != nil {
		for _, kv := range says(i) {
			fmt.Fprintf(&b, "%s = %s\n", kv.Key, kv.Value)
		}
	}
	fmt.Fprintf(&b, "\n[Peer]\nPublicKey = %s\nAllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = %s\n",
		base64.StdEncoding.EncodeToString(e.public[:]), e.addr)
	return b.String()
}

// WriteProfiles writes one profile for each endpoint into dir, mode 0600, and returns the paths in order.
func (s *Server) WriteProfiles(dir string) ([]string, error) {
	paths := make([]string, s.Len())
	for i := range s.endpoints {
		paths[i] = filepath.Join(dir, fmt.Sprintf("test-%04d.conf", i))
		if err := os.WriteFile(paths[i], []byte(s.Profile(i)), 0o600); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// keyPair derives the same keys from the same name each time: profiles of one run fit the server of another.
func keyPair(name string) (private, public [32]byte) {
	private = sha256.Sum256([]byte("shunt wgtest " + name))
	private[0] &= 248
	private[31] = private[31]&127 | 64
	p, err := curve25519.X25519(private[:], curve25519.Basepoint)
	if err != nil {
		panic(err) // only an all-zero result fails, and the base point gives none
	}
	copy(public[:], p)
	return private, public
}
