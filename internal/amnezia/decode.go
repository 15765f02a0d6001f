package amnezia

import (
	"crypto/subtle"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.zx2c4.com/wireguard/conn"
)

// Decode turns the datagram in buf[:n] into a message of WireGuard, in place, and
// returns its size, 0 = the device must not see it. Junk and custom packets are dropped,
// and cookie replies too: Encode makes use of what they bring. from is the sender; nil
// is allowed where the device never answers with cookies.
func (c *Codec) Decode(buf []byte, n int, from conn.Endpoint) (size int, kind Kind) {
	s := c.settings.Load()
	if s.plain {
		return n, plainKind(buf[:n])
	}
	var stream [transportHead]byte
	i, h := c.match(s, buf[:n], &stream)
	switch i {
	case initiation, response:
		c.admit(i, h, from)
		size, kind = copy(buf, h), Kind(i+1)
	case cookieReply:
		c.take(h)
		kind = KindCookieReply
	case transport:
		return s.decodeTransport(buf, n, &stream), KindTransport
	default:
		if !c.plainHandshake(buf[:n]) {
			if n > 0 {
				c.dropped.Add(1)
			}
			return 0, KindUnknown
		}
		c.plain.Add(1)
		kind = KindPlain
	}
	c.tell(kind, from)
	return size, kind
}

// Classify tells what a datagram is and changes nothing.
func (c *Codec) Classify(datagram []byte) Kind {
	s := c.settings.Load()
	if s.plain {
		return plainKind(datagram)
	}
	var stream [transportHead]byte
	i, _ := c.match(s, datagram, &stream)
	if i < 0 && c.plainHandshake(datagram) {
		return KindPlain
	}
	return Kind(i + 1)
}

// match finds out which message a datagram holds, -1 = none; for those of a fixed size it
// returns a copy without prefix, protection and trailer, for transport only the key
// stream over its head. A transport message can have the size and, where H is wide, the
// type of a handshake message: only a right MAC makes it one. A cookie reply is taken
// for one only if it cannot be transport.
func (c *Codec) match(s *settings, d []byte, stream *[transportHead]byte) (int, []byte) {
	if s.protected {
		if len(d) < nonceSize+messageSizes[transport] {
			return -1, nil
		}
		protect(&s.HeaderKey, d, stream[:])
	}
	word := typeOf(stream[:])
	for i := initiation; i <= response; i++ {
		if s.fits(d, i, word) {
			if h := s.extract(d, i); c.signed(h) {
				return i, h
			}
		}
	}
	if s.isTransport(d, word) {
		return transport, nil
	}
	if s.fits(d, cookieReply, word) {
		return cookieReply, s.extract(d, cookieReply)
	}
	return -1, nil
}

// fits tells whether size and type are those of message i of a fixed size.
func (s *settings) fits(d []byte, i int, word uint32) bool {
	size := s.S[i] + messageSizes[i]
	if len(d) < size || len(d) > size && !s.Trailers {
		return false
	}
	return s.H[i].Has(typeOf(d[s.S[i]:]) ^ word)
}

func (s *settings) extract(d []byte, i int) []byte {
	h := make([]byte, messageSizes[i])
	copy(h, d[s.S[i]:])
	if s.protected {
		protect(&s.HeaderKey, d, h)
	}
	return h
}

// isTransport tells whether size and type are those of transport.
func (s *settings) isTransport(d []byte, word uint32) bool {
	prefix, least := s.S[transport], messageSizes[transport]
	if len(d) >= prefix+least {
		return s.H[transport].Has(typeOf(d[prefix:]) ^ word)
	}
	// v0.2.15 and v0.2.16 of the reference send keepalives without the prefix.
	return !s.protected && len(d) == least && s.H[transport].Has(typeOf(d))
}

func (s *settings) decodeTransport(buf []byte, n int, stream *[transportHead]byte) int {
	prefix := s.S[transport]
	if n < prefix+messageSizes[transport] { // the keepalive that isTransport lets pass
		prefix = 0
	}
	copy(buf, buf[prefix:n])
	if s.protected {
		subtle.XORBytes(buf, buf[:transportHead], stream[:])
	}
	setType(buf, transport+1)
	return n - prefix
}

// signed tells whether a handshake message is for our public key.
func (c *Codec) signed(h []byte) bool {
	c.mu.Lock()
	key := c.self.mac1
	c.mu.Unlock()
	want := firstMAC(&key, h)
	return equal(want[:], mac1Of(h))
}

// admit gives a handshake message WireGuard's type and the MACs that fit it.
func (c *Codec) admit(i int, h []byte, from conn.Endpoint) {
	now := time.Now() //nolint:forbidigo // measures a cookie's age
	c.mu.Lock()
	defer c.mu.Unlock()
	at, v := place(from), sighting{sent: [macSize]byte(mac1Of(h))}
	g := c.given[at]
	proved := g.good(now)
	if proved {
		want := secondMAC(&g.cookie, h)
		proved = equal(want[:], mac2Of(h))
	}
	setType(h, uint32(i+1)) //nolint:gosec // 1 or 2
	v.shown = firstMAC(&c.self.mac1, h)
	copy(mac1Of(h), v.shown[:])
	clear(mac2Of(h))
	if proved {
		second := secondMAC(&g.cookie, h)
		copy(mac2Of(h), second[:])
	}
	c.seen.add(sender{index(h), at}, v)
}

// take opens a cookie reply with what the peer's last message from us was signed with.
func (c *Codec) take(h []byte) {
	now := time.Now() //nolint:forbidigo // measures a cookie's age
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.peers {
		if !p.sent || p.index != receiverOf(h) {
			continue
		}
		box, err := chacha20poly1305.NewX(p.cookie[:])
		if err != nil {
			panic(err) // only a key of another length fails
		}
		cookie, err := box.Open(nil, h[8:8+cookieNonce], h[8+cookieNonce:], p.mac[:])
		if err != nil {
			continue
		}
		p.taken = given{[macSize]byte(cookie), now}
		c.cookiesTaken.Add(1)
	}
}

// plainHandshake tells whether a datagram is plain WireGuard's initiation or response to
// our public key.
func (c *Codec) plainHandshake(d []byte) bool {
	switch plainKind(d) {
	case KindInitiation, KindResponse:
		return c.signed(d)
	case KindUnknown, KindCookieReply, KindTransport, KindPlain:
	}
	return false
}

// plainKind is a datagram's kind by the form that plain WireGuard gives it.
func plainKind(d []byte) Kind {
	if len(d) < messageSizes[transport] {
		return KindUnknown
	}
	t := typeOf(d)
	if t == transport+1 || t >= 1 && t <= transport && len(d) == messageSizes[t-1] {
		return Kind(t) //nolint:gosec // 1 to 4
	}
	return KindUnknown
}
