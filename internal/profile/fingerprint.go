package profile

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// Description is what may be told of a profile without its keys.
type Description struct {
	Endpoint string // host:port
	Pair     string // see Profile.Pair
	Identity string // see Profile.Identity
	MTU      int    // bytes; 0 = not said
	Needs    string // what the device must speak: amneziawg; "" = plain WireGuard
	Reason   string // why no lane can carry it; "" = one can
}

const needsAmneziaWG = "amneziawg"

// Describe reads the profile at path. A file that cannot be read or parsed is an
// error; one that parses and still fits no lane has a Reason.
func Describe(path string, salt []byte) (Description, error) {
	p, err := ParseFile(path)
	if err != nil {
		return Description{}, err
	}
	return p.Describe(salt), nil
}

// Describe tells of the profile what may be told without its keys.
func (p Profile) Describe(salt []byte) Description {
	d := Description{Endpoint: p.Endpoint(), Pair: p.Pair(salt), Identity: p.Identity(salt), MTU: p.MTU}
	if err := p.Check(); err != nil {
		d.Reason = err.Error()
	}
	if p.Obfuscated() {
		d.Needs = needsAmneziaWG
	}
	return d
}

// Pair is PairOf of the first peer's key and the own public key; "" where one of the
// two is not there. Two sockets with the same pair take each other's session.
func (p Profile) Pair(salt []byte) string {
	if len(p.Peers) == 0 || p.PrivateKey.IsZero() {
		return ""
	}
	return PairOf(salt, p.Peers[0].PublicKey, p.PrivateKey.Public())
}

// PairOf is the hex form of the first 8 bytes of HMAC-SHA256(salt, server || client),
// both public keys.
func PairOf(salt []byte, server, client Key) string {
	h := hmac.New(sha256.New, salt)
	h.Write(server[:])
	h.Write(client[:])
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Identity is a fingerprint of what belongs to the interface and not to the peer: the
// client key, the addresses in any order and the obfuscation that is not at its
// default. Two profiles of equal identity can be up at once on one interface. It is
// "" without a private key.
func (p Profile) Identity(salt []byte) string {
	if p.PrivateKey.IsZero() {
		return ""
	}
	h := hmac.New(sha256.New, salt)
	// The public key stands for the private one, so that two spellings which the
	// kernel clamps to one key are one identity.
	pub := p.PrivateKey.Public()
	h.Write(pub[:])
	addrs := make([]string, 0, len(p.Addresses))
	for _, a := range p.Addresses {
		addrs = append(addrs, a.String())
	}
	slices.Sort(addrs)
	for _, a := range slices.Compact(addrs) {
		fmt.Fprintf(h, "address=%s\n", a)
	}
	obf := p.effective()
	slices.SortFunc(obf, func(a, b KeyValue) int { return cmp.Compare(a.Key, b.Key) })
	for _, kv := range obf {
		fmt.Fprintf(h, "%s=%s\n", kv.Key, kv.Value)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
