// Package amnezia speaks AmneziaWG, protocol 1.0 to 3.1, for devices that know only
// WireGuard: a conn.Bind around another one rewrites each datagram on its way out and
// in. The Noise messages inside are WireGuard's own, so keys, sessions and timers stay
// the device's; what is rewritten is what an observer sees: sizes, message types, and
// what travels ahead of a handshake. The same wrap serves initiators and responders.
package amnezia

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/shunt-net/shunt/internal/profile"
)

// Range is an inclusive range of numbers; the zero value means not set.
type Range struct{ Lo, Hi uint32 }

// IsZero reports whether the range is not set.
func (r Range) IsZero() bool { return r == Range{} }

// Has reports whether v lies in the range.
func (r Range) Has(v uint32) bool { return r.Lo <= v && v <= r.Hi }

// String is the form of `.conf` files and of the control socket: 5 or 5-9.
func (r Range) String() string {
	if r.Lo == r.Hi {
		return strconv.FormatUint(uint64(r.Lo), 10)
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

func (r Range) overlaps(o Range) bool { return r.Lo <= o.Hi && o.Lo <= r.Hi }

// Params are the obfuscation settings of one interface. The zero value is plain
// WireGuard. S, H, HeaderKey and Trailers must be equal on both ends; the rest is each
// end's own choice.
type Params struct {
	Jc, Jmin, Jmax int       // junk datagrams before an initiation, and their sizes in bytes
	S              [4]int    // S1..S4: random bytes before initiation, response, cookie reply, transport
	H              [4]Range  // H1..H4: the types of these messages; a zero range is WireGuard's own type
	I              [5]Packet // I1..I5: datagrams before an initiation
	J              [3]Packet // J1..J3 of 1.5: kept for devices that know them, never sent by this package
	Itime          Range     // of 1.5, seconds: kept likewise

	HeaderKey      profile.Key // HeaderProtectionKey; zero = off
	ContentPadding Range       // bytes that the sender adds inside: accepted, never added by this package
	// The device's timers, in seconds and tries: an upstream device has constants instead.
	RekeyAfterTime, RekeyTimeout, RejectAfterTime, KeepaliveTimeout, MaxHandshakeAttempts Range
	Keepalive                                                                             Range // the peer's PersistentKeepalive where it is a range, seconds

	Trailers  bool // random bytes after handshake messages
	NoCookies bool // answer nobody with a cookie, whatever the load
}

// FromProfile reads the settings of a profile and checks them. A key that is not known,
// or one that no generation has together with the others, makes it unsupported
// (profile.ErrUnsupported). No error holds the value of a key.
func FromProfile(p profile.Profile) (Params, error) {
	var out Params
	for _, kv := range p.Obfuscation {
		if err := out.set(kv.Key, kv.Value); err != nil {
			return Params{}, fmt.Errorf("%s: %w", kv.Key, err)
		}
	}
	for _, peer := range p.Peers {
		for _, kv := range peer.Obfuscation {
			if kv.Key != "PersistentKeepalive" {
				continue // AdvancedSecurity: a flag that kernel modules report, without effect on the wire
			}
			r, err := parseRange(kv.Value)
			if err != nil {
				return Params{}, fmt.Errorf("%s: %w", kv.Key, err)
			}
			out.Keepalive = r
		}
	}
	if err := out.Validate(); err != nil {
		return Params{}, err
	}
	out.fill()
	return out, nil
}

// fill writes WireGuard's types where none are set.
func (p *Params) fill() {
	for i := range p.H {
		p.H[i] = p.header(i)
	}
}

// header is the range of message type i+1.
func (p *Params) header(i int) Range {
	if p.H[i].IsZero() {
		return Range{uint32(i + 1), uint32(i + 1)} //nolint:gosec // 1 to 4
	}
	return p.H[i]
}

// set takes one key of [Interface].
func (p *Params) set(key, val string) (err error) {
	low := strings.ToLower(key)
	if len(low) == 2 {
		return p.setNumbered(low[0], int(low[1]-'1'), val)
	}
	switch low {
	case "jmin":
		p.Jmin, err = parseInt(val)
	case "jmax":
		p.Jmax, err = parseInt(val)
	case "itime":
		p.Itime, err = parseRange(val)
	case "headerprotectionkey":
		p.HeaderKey, err = profile.ParseKey(val)
	case "contentpaddingaddition":
		p.ContentPadding, err = parseRange(val)
	case "rekeyaftertime":
		p.RekeyAfterTime, err = parseRange(val)
	case "rekeytimeout":
		p.RekeyTimeout, err = parseRange(val)
	case "rejectaftertime":
		p.RejectAfterTime, err = parseRange(val)
	case "keepalivetimeout":
		p.KeepaliveTimeout, err = parseRange(val)
	case "maxhandshakeattempts":
		p.MaxHandshakeAttempts, err = parseRange(val)
	case "randomtrailers":
		p.Trailers, err = parseSwitch(val)
	case "disablecookies":
		p.NoCookies, err = parseSwitch(val)
	default:
		return errUnknownKey()
	}
	return err
}

// setNumbered takes the keys of one letter: Jc, S1, H1, I1, J1 …
func (p *Params) setNumbered(letter byte, i int, val string) (err error) {
	switch {
	case letter == 'j' && i == 'c'-'1':
		p.Jc, err = parseInt(val)
	case letter == 's' && i >= 0 && i < len(p.S):
		p.S[i], err = parseInt(val)
	case letter == 'h' && i >= 0 && i < len(p.H):
		p.H[i], err = parseRange(val)
	case letter == 'i' && i >= 0 && i < len(p.I):
		p.I[i], err = ParsePacket(val)
	case letter == 'j' && i >= 0 && i < len(p.J):
		p.J[i], err = ParsePacket(val)
	default:
		return errUnknownKey()
	}
	return err
}

func errUnknownKey() error {
	return fmt.Errorf("no key of any generation: %w", profile.ErrUnsupported)
}

func parseInt(s string) (int, error) {
	v, err := parseUint(s)
	if err != nil || v > maxDatagram {
		return 0, fmt.Errorf("%q is not a number from 0 to %d", s, maxDatagram)
	}
	return int(v), nil
}

func parseUint(s string) (uint32, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	v, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s is not from 0 to 4294967295", s)
	}
	return uint32(v), nil
}

func parseRange(s string) (Range, error) {
	a, b, two := strings.Cut(s, "-")
	lo, err := parseUint(strings.TrimSpace(a))
	if err != nil {
		return Range{}, err
	}
	if !two {
		return Range{lo, lo}, nil
	}
	hi, err := parseUint(strings.TrimSpace(b))
	if err != nil {
		return Range{}, err
	}
	if hi < lo {
		return Range{}, errors.New("the range is upside down")
	}
	return Range{lo, hi}, nil
}

func parseSwitch(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "on", "true", "1", "yes":
		return true, nil
	case "off", "false", "0", "no":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither on nor off", s)
}
