package amnezia

import (
	"errors"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.zx2c4.com/wireguard/conn"
)

// ErrUnknownPeer is the error of a handshake with a peer that was not added.
var ErrUnknownPeer = errors.New("amneziawg: handshake with a peer that was not added")

// Trailers have at most so many bytes, and less where the datagram would exceed what
// passes on any path.
const (
	maxTrailer = 400
	pathSize   = 1200
)

// Encode appends to out the datagrams that stand for one message of the device, in the
// order in which they must leave: custom packets, junk, the message itself. to is where
// they go; nil is allowed where the device never answers with cookies. The message's own
// buffer is used again where it has room for the prefix, as the device gives it away. A
// cookie reply that nobody is to have yields no datagram.
func (c *Codec) Encode(out [][]byte, message []byte, to conn.Endpoint) ([][]byte, error) {
	s := c.settings.Load()
	if s.plain || len(message) < messageSizes[transport] {
		return append(out, message), nil
	}
	t := typeOf(message)
	if t == transport+1 {
		return append(out, c.encodeTransport(s, message)), nil
	}
	i := int(t) - 1
	if i < 0 || i > cookieReply || len(message) != messageSizes[i] {
		return out, errors.New("amneziawg: not a message of WireGuard")
	}
	r := c.random.get()
	defer c.random.put(r)
	b, m := s.frame(i, message, r)
	if i == cookieReply {
		if s.NoCookies || !c.reseal(m, to, r) {
			return out, nil
		}
		c.cookiesGiven.Add(1)
	} else if !c.resign(s, i, m, r) {
		return out, ErrUnknownPeer
	}
	if i == initiation {
		out = c.preludes(s, out, r)
		c.initiations.Add(1)
	}
	if i == cookieReply {
		setType(m, r.between(s.H[i].Lo, s.H[i].Hi))
	}
	if s.protected {
		protect(&s.HeaderKey, b, m)
	}
	return append(out, b), nil
}

// frame is a datagram of random bytes around a copy of the message, m.
func (s *settings) frame(i int, message []byte, r *source) (b, m []byte) {
	size := s.S[i] + len(message)
	trailer := 0
	if s.Trailers {
		trailer = r.below(min(maxTrailer, max(0, pathSize-size)) + 1)
	}
	b = make([]byte, size+trailer)
	r.fill(b[:s.S[i]])
	r.fill(b[size:])
	m = b[s.S[i]:size:size]
	copy(m, message)
	return b, m
}

// preludes are the datagrams ahead of an initiation.
func (c *Codec) preludes(s *settings, out [][]byte, r *source) [][]byte {
	for _, k := range s.I {
		if b := k.render(r, s.version, c.now(), c.initiations.Load()); len(b) > 0 {
			out = append(out, b)
		}
	}
	for range s.Jc {
		b := make([]byte, s.Jmin+r.below(s.Jmax-s.Jmin+1))
		if len(b) > 0 { // an empty datagram hides nothing
			r.fill(b)
			out = append(out, b)
		}
	}
	return out
}

// resign gives a handshake message its type on the wire and the MACs that fit it. The
// device has signed it for one of the peers: that tells which.
func (c *Codec) resign(s *settings, i int, m []byte, r *source) bool {
	now := time.Now() //nolint:forbidigo // measures a cookie's age
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.peers {
		if want := firstMAC(&p.mac1, m); !equal(want[:], mac1Of(m)) {
			continue
		}
		setType(m, r.between(s.H[i].Lo, s.H[i].Hi))
		first := firstMAC(&p.mac1, m)
		copy(mac1Of(m), first[:])
		p.sent, p.index, p.mac = true, index(m), first
		clear(mac2Of(m))
		if p.taken.good(now) {
			second := secondMAC(&p.taken.cookie, m)
			copy(mac2Of(m), second[:])
		}
		return true
	}
	return false
}

// reseal makes a cookie reply of the device one that its receiver can open: the device
// has sealed it to the MAC that it was shown. The cookie is kept, since the second MAC
// that the peer makes of it has to be made again for the device.
func (c *Codec) reseal(m []byte, to conn.Endpoint, r *source) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	box, err := chacha20poly1305.NewX(c.self.cookie[:])
	if err != nil {
		panic(err) // only a key of another length fails
	}
	nonce, sealed := m[8:8+cookieNonce], m[8+cookieNonce:]
	at := place(to)
	v, ok := c.seen.last[sender{receiverOf(m), at}]
	if !ok {
		return false
	}
	cookie, err := box.Open(nil, nonce, sealed, v.shown[:])
	if err != nil {
		return false
	}
	c.give(at, given{[macSize]byte(cookie), time.Now()}) //nolint:forbidigo // measures a cookie's age
	r.fill(nonce)
	box.Seal(sealed[:0], nonce, cookie, v.sent[:])
	return true
}

// encodeTransport puts the prefix before a transport message, in place where it can.
func (c *Codec) encodeTransport(s *settings, m []byte) []byte {
	n, prefix := len(m), s.S[transport]
	b := m
	if prefix > 0 {
		if cap(m) >= prefix+n {
			b = m[:prefix+n]
		} else {
			b = make([]byte, prefix+n)
		}
		copy(b[prefix:], m[:n])
	}
	h := s.H[transport]
	if prefix == 0 && h.Lo == h.Hi {
		setType(b, h.Lo)
		return b
	}
	r := c.random.get()
	r.fill(b[:prefix])
	setType(b[prefix:], r.between(h.Lo, h.Hi))
	c.random.put(r)
	if s.protected {
		protect(&s.HeaderKey, b, b[prefix:prefix+transportHead])
	}
	return b
}
