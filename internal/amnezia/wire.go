package amnezia

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"hash"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20"

	"github.com/shunt-net/shunt/internal/profile"
)

// WireGuard's messages (its white paper, section 5.4): index into messageSizes and
// Params.S and H, and with 1 added the type on the wire.
const (
	initiation = iota
	response
	cookieReply
	transport
)

// messageSizes are the sizes in bytes; of transport the least one, that of a keepalive.
var messageSizes = [4]int{148, 92, 64, 32} //nolint:gochecknoglobals // a table that nothing changes

const (
	transportHead = 16 // type, receiver, counter
	macSize       = 16
	cookieNonce   = 24
)

// Kind is what a datagram is to us.
type Kind int

// The kinds of datagrams.
const (
	KindUnknown     Kind = iota // junk, a custom packet, noise, or a message for somebody else
	KindInitiation              // its first MAC is right: the sender knows our public key
	KindResponse                // likewise
	KindCookieReply             // by its form; whether it can be opened is another matter
	KindTransport               // by its form; only the device can tell whether it is genuine
	KindPlain                   // a handshake message of plain WireGuard whose first MAC is right
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case KindInitiation:
		return "initiation"
	case KindResponse:
		return "response"
	case KindCookieReply:
		return "cookie reply"
	case KindTransport:
		return "transport"
	case KindPlain:
		return "plain WireGuard"
	case KindUnknown:
	}
	return "unknown"
}

// ErrPlainPeer tells of a peer that knows our key and speaks WireGuard without the
// obfuscation that the parameters ask for.
var ErrPlainPeer = errors.New("the peer speaks plain WireGuard, not AmneziaWG")

// Err is ErrPlainPeer for KindPlain, else nil.
func (k Kind) Err() error {
	if k == KindPlain {
		return ErrPlainPeer
	}
	return nil
}

// labelled is the key that WireGuard derives from a public key for one purpose.
func labelled(label string, public profile.Key) [32]byte {
	return blake2s.Sum256(append([]byte(label), public[:]...))
}

func mac1Key(public profile.Key) [32]byte   { return labelled("mac1----", public) }
func cookieKey(public profile.Key) [32]byte { return labelled("cookie--", public) }

// mac is the keyed hash of both MACs of a handshake message.
func mac(key, message []byte) (sum [macSize]byte) {
	var h hash.Hash
	h, err := blake2s.New128(key)
	if err != nil {
		panic(err) // only a key that is too long fails
	}
	h.Write(message)
	h.Sum(sum[:0])
	return sum
}

// mac1Of and mac2Of are the places of the MACs in a handshake message.
func mac1Of(m []byte) []byte { return m[len(m)-2*macSize : len(m)-macSize] }
func mac2Of(m []byte) []byte { return m[len(m)-macSize:] }

// firstMAC and secondMAC are what should be there.
func firstMAC(key *[32]byte, m []byte) [macSize]byte { return mac(key[:], m[:len(m)-2*macSize]) }

func secondMAC(cookie *[macSize]byte, m []byte) [macSize]byte {
	return mac(cookie[:], m[:len(m)-macSize])
}

func equal(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }

// index is the sender's index in a handshake message.
func index(m []byte) uint32 { return binary.LittleEndian.Uint32(m[4:]) }

// setType writes a message's type: one of WireGuard's, or what stands for it.
func setType(m []byte, t uint32) { binary.LittleEndian.PutUint32(m, t) }

func typeOf(m []byte) uint32 { return binary.LittleEndian.Uint32(m) }

// protect hides what it is given, or reveals it: the header protection of 3.0. The
// first bytes of the datagram, in the S prefix, are the nonce, whatever the message.
func protect(key *profile.Key, datagram, head []byte) {
	c, err := chacha20.NewUnauthenticatedCipher(key[:], datagram[:nonceSize])
	if err != nil {
		panic(err) // only wrong lengths fail
	}
	c.XORKeyStream(head, head)
}
