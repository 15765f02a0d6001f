package amnezia

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/shunt-net/shunt/internal/profile"
)

// Options say who speaks to whom.
type Options struct {
	Self  profile.Key                      // our own public key; zero = set later, by SetSelf
	Peers []profile.Key                    // public keys of the peers; more can be added later
	Now   func() time.Time                 // wall clock for the tag <t>; must be set
	Heard func(k Kind, from conn.Endpoint) // told of each handshake message, cookie reply and plain peer; may be nil, must be quick
}

// Stats count what a Codec has done.
type Stats struct {
	Initiations  uint64 // sent, retries included
	CookiesTaken uint64 // from peers under load
	CookiesGiven uint64 // while under load ourselves
	Dropped      uint64 // datagrams received that are no message of ours
	Plain        uint64 // handshake messages of plain WireGuard peers, dropped too
}

// Codec turns the messages of one device into datagrams of AmneziaWG, and back. It is
// what Wrap puts around a bind, for binds that share a socket or time what passes. It is
// safe for use by many goroutines.
type Codec struct {
	settings atomic.Pointer[settings]
	now      func() time.Time
	heard    func(Kind, conn.Endpoint)
	random   sources

	initiations, cookiesTaken, cookiesGiven, dropped, plain atomic.Uint64

	mu    sync.Mutex
	self  keys
	peers map[profile.Key]*peer
	seen  seen
	given map[string]given // cookies that our device gave, by the bytes of the address it gave them to
}

// settings are parameters made ready for use.
type settings struct {
	Params
	version   Version
	plain     bool
	protected bool
}

// keys are what a public key gives.
type keys struct{ mac1, cookie [32]byte }

func keysOf(public profile.Key) keys { return keys{mac1Key(public), cookieKey(public)} }

// peer is what is kept of one peer.
type peer struct {
	keys
	sent  bool          // a handshake message went to it
	index uint32        // of the last one
	mac   [macSize]byte // the first MAC of that
	taken given         // its cookie; zero = none
}

// cookieLife is how long a cookie is good for (WireGuard's white paper, section 5.3).
const cookieLife = 120 * time.Second

// NewCodec checks the parameters and returns a Codec.
func NewCodec(p Params, o Options) (*Codec, error) {
	if o.Now == nil {
		return nil, errors.New("amneziawg: no clock")
	}
	c := &Codec{now: o.Now, heard: o.Heard, peers: map[profile.Key]*peer{}, given: map[string]given{}}
	if err := c.SetParams(p); err != nil {
		return nil, err
	}
	c.SetSelf(o.Self)
	for _, k := range o.Peers {
		c.AddPeer(k)
	}
	return c, nil
}

// SetParams checks the parameters and uses them from now on, both ways; on an error the
// old ones stay. Sessions of the device live on where both ends change together.
func (c *Codec) SetParams(p Params) error {
	if err := p.Validate(); err != nil {
		return fmt.Errorf("amneziawg: %w", err)
	}
	p.fill()
	v := p.Version()
	c.settings.Store(&settings{Params: p, version: v, plain: v == WireGuard, protected: !p.HeaderKey.IsZero()})
	return nil
}

// SetSelf sets our own public key, that of the device.
func (c *Codec) SetSelf(public profile.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.self = keysOf(public)
}

// AddPeer makes handshakes with that public key possible. It must be called before the
// first of them; a peer that is there already stays as it is.
func (c *Codec) AddPeer(public profile.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peers[public] == nil {
		c.peers[public] = &peer{keys: keysOf(public)}
	}
}

// RemovePeer forgets a peer and its cookie.
func (c *Codec) RemovePeer(public profile.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.peers, public)
}

// Stats returns the counts so far.
func (c *Codec) Stats() Stats {
	return Stats{
		Initiations: c.initiations.Load(), CookiesTaken: c.cookiesTaken.Load(), CookiesGiven: c.cookiesGiven.Load(),
		Dropped: c.dropped.Load(), Plain: c.plain.Load(),
	}
}

func (c *Codec) tell(k Kind, from conn.Endpoint) {
	if c.heard != nil {
		c.heard(k, from)
	}
}

// seen remembers the MACs of the handshake messages that came in last: the device seals
// a cookie to the MAC that it was shown, the peer opens it with the one that it sent.
type seen struct {
	last  map[sender]sighting
	order []sender
	next  int
}

// sender tells handshake messages apart: by the index in them and the address that they came from.
type sender struct {
	index uint32
	from  string
}

type sighting struct{ sent, shown [macSize]byte }

// seenMost is as many as can wait in the device's own queue.
const seenMost = 1024

func (s *seen) add(k sender, v sighting) {
	if s.last == nil {
		s.last = map[sender]sighting{}
	}
	if _, again := s.last[k]; !again {
		if len(s.order) < seenMost {
			s.order = append(s.order, k)
		} else {
			delete(s.last, s.order[s.next])
			s.order[s.next] = k
			s.next = (s.next + 1) % seenMost
		}
	}
	s.last[k] = v
}

// place is an endpoint's address as a key; "" without one.
func place(e conn.Endpoint) string {
	if e == nil {
		return ""
	}
	return string(e.DstToBytes())
}

// given is a cookie and when it was given.
type given struct {
	cookie [macSize]byte
	at     time.Time
}

// givenMost bounds the addresses that are remembered: a flood has many.
const givenMost = 4096

// give remembers a cookie. Where too many are there, the old ones go, or all: a peer
// whose cookie is forgotten is sent another one.
func (c *Codec) give(to string, g given) {
	if len(c.given) >= givenMost {
		for k, old := range c.given {
			if !old.good(g.at) {
				delete(c.given, k)
			}
		}
		if len(c.given) >= givenMost {
			clear(c.given)
		}
	}
	c.given[to] = g
}

func (g given) good(now time.Time) bool { return !g.at.IsZero() && now.Sub(g.at) < cookieLife }

func receiverOf(reply []byte) uint32 { return binary.LittleEndian.Uint32(reply[4:]) }
