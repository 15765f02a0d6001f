package profile

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/curve25519"
)

// Key is a Curve25519 key or a preshared key. No verb of fmt and no encoder prints
// it; Base64 and Hex do, on purpose.
type Key [32]byte

const hidden = "(hidden)"

// ParseKey reads the base64 form of 44 characters. The error does not repeat the text.
func ParseKey(s string) (Key, error) {
	var k Key
	if len(s) != 44 {
		return k, fmt.Errorf("not a key: %d characters, want 44 of base64", len(s))
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(k) {
		return k, errors.New("not a key: not the base64 of 32 bytes")
	}
	copy(k[:], b)
	return k, nil
}

// String returns "(hidden)".
func (k Key) String() string { return hidden }

// Format prints "(hidden)" for every verb, so that %d and %#v tell nothing either.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText returns "(hidden)": a key never reaches JSON or a log by accident.
func (k Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// IsZero reports whether no key is set.
func (k Key) IsZero() bool { return k == Key{} }

// Base64 is the form of `.conf` files.
func (k Key) Base64() string { return base64.StdEncoding.EncodeToString(k[:]) }

// Hex is the form of the userspace control socket.
func (k Key) Hex() string { return hex.EncodeToString(k[:]) }

// Public is the public key of a private key; zero for a zero key.
func (k Key) Public() Key {
	var pub Key
	if k.IsZero() {
		return pub
	}
	// With the base point this cannot fail: the scalar has 32 bytes and the product
	// of a clamped scalar and the base point is never zero.
	if b, err := curve25519.X25519(k[:], curve25519.Basepoint); err == nil {
		copy(pub[:], b)
	}
	return pub
}
