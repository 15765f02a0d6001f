package amnezia

import (
	"errors"
	"fmt"

	"github.com/shunt-net/shunt/internal/profile"
)

// Version is a generation of the protocol; a later one is a greater number.
type Version int

// The generations, and WireGuard itself.
const (
	VersionUnknown Version = iota
	WireGuard
	V10 // junk, S1 and S2, H as single numbers
	V15 // I packets, J packets with Itime, S3 and S4
	V20 // H as ranges, tags of digits and letters
	V30 // header protection, content padding, timers
	V31 // trailers, no cookies
)

// String returns "1.0" to "3.1", or "WireGuard".
func (v Version) String() string {
	switch v {
	case WireGuard:
		return "WireGuard"
	case V10:
		return "1.0"
	case V15:
		return "1.5"
	case V20:
		return "2.0"
	case V30:
		return "3.0"
	case V31:
		return "3.1"
	case VersionUnknown:
	}
	return "unknown"
}

// What bounds the sizes, in bytes.
const (
	maxDatagram = 65507 // payload of UDP over IPv4
	maxJunk     = 128   // datagrams; the documented bound of Jc
	nonceSize   = 12    // of header protection: the first bytes of the S prefix
)

// Version is the least generation that can do what the parameters ask.
func (p Params) Version() Version {
	least := WireGuard
	need := func(v Version, when bool) {
		if when && v > least {
			least = v
		}
	}
	need(V10, p.Jc > 0 || p.S[0] > 0 || p.S[1] > 0)
	need(V15, p.S[2] > 0 || p.S[3] > 0 || !p.Itime.IsZero())
	for i := range p.H {
		h := p.header(i)
		need(V10, h.Lo != uint32(i+1)) //nolint:gosec // 1 to 4
		need(V20, h.Lo != h.Hi)
	}
	gap := false
	for _, k := range p.I {
		need(V15, !k.IsZero())
		need(k.least, !k.IsZero())
		// Devices of 1.5 take I1 to I5 only without a gap between them.
		need(V20, gap && !k.IsZero())
		gap = gap || k.IsZero()
	}
	for _, k := range p.J {
		need(V15, !k.IsZero())
		need(k.least, !k.IsZero())
	}
	for _, r := range []Range{
		p.ContentPadding, p.RekeyAfterTime, p.RekeyTimeout, p.RejectAfterTime,
		p.KeepaliveTimeout, p.MaxHandshakeAttempts, p.Keepalive,
	} {
		need(V30, !r.IsZero())
	}
	need(V30, !p.HeaderKey.IsZero())
	need(V31, p.Trailers || p.NoCookies)
	return least
}

// Plain reports whether the parameters mean WireGuard itself.
func (p Params) Plain() bool { return p.Version() == WireGuard }

// MTU is the MTU in bytes inside the tunnel where plain WireGuard's would be base: the
// S4 prefix of each packet takes its part. It is negative where S4 is larger than base.
func (p Params) MTU(base int) int { return base - p.S[3] }

// Validate says why nothing should be sent with these parameters. It refuses what every
// implementation refuses, and what the reference ones forget and then die of or stay
// silent with.
func (p Params) Validate() error {
	for _, check := range []func(*Params) error{
		(*Params).checkJunk, (*Params).checkSizes, (*Params).checkHeaders, (*Params).checkGenerations,
	} {
		if err := check(&p); err != nil {
			return err
		}
	}
	return nil
}

func (p *Params) checkJunk() error {
	switch {
	case p.Jc < 0 || p.Jc > maxJunk:
		return fmt.Errorf("jc is %d, not from 0 to %d", p.Jc, maxJunk)
	case p.Jmin < 0 || p.Jmax < 0 || p.Jmin > maxDatagram || p.Jmax > maxDatagram:
		return fmt.Errorf("jmin %d and jmax %d: not both from 0 to %d", p.Jmin, p.Jmax, maxDatagram)
	case p.Jc > 0 && p.Jmax < p.Jmin:
		return fmt.Errorf("jmax %d is less than jmin %d", p.Jmax, p.Jmin)
	}
	for i, k := range p.I {
		if k.Size() > maxDatagram {
			return fmt.Errorf("i%d has %d bytes: no datagram holds more than %d", i+1, k.Size(), maxDatagram)
		}
	}
	return nil
}

func (p *Params) checkSizes() error {
	for i, s := range p.S {
		if s < 0 || s+messageSizes[i] > maxDatagram {
			return fmt.Errorf("s%d is %d: with its message not from 0 to %d bytes", i+1, s, maxDatagram)
		}
		if !p.HeaderKey.IsZero() && s < nonceSize {
			return fmt.Errorf("s%d is %d, header protection needs at least %d", i+1, s, nonceSize)
		}
	}
	if p.Version() >= V20 {
		return nil // message types tell the messages apart there
	}
	for i := range p.S {
		for j := range i {
			if p.S[i]+messageSizes[i] == p.S[j]+messageSizes[j] {
				return fmt.Errorf("s%d and s%d give two messages one size, %d bytes", j+1, i+1, p.S[i]+messageSizes[i])
			}
		}
	}
	return nil
}

func (p *Params) checkHeaders() error {
	for i := range p.H {
		h := p.header(i)
		if h.Hi < h.Lo {
			return fmt.Errorf("h%d: the range is upside down", i+1)
		}
		for j := range i {
			if h.overlaps(p.header(j)) {
				return fmt.Errorf("h%d and h%d overlap", j+1, i+1)
			}
		}
	}
	for i := range p.H {
		h := p.header(i)
		if own := uint32(i + 1); p.Version() < V20 && h.Lo <= 4 && h.Lo != own { //nolint:gosec // 1 to 4
			return fmt.Errorf("h%d = %d means %d to devices of 1.0 and 1.5, and %d to later ones", i+1, h.Lo, own, h.Lo)
		}
	}
	return nil
}

// checkGenerations refuses what no one generation has together.
func (p *Params) checkGenerations() error {
	only := !p.Itime.IsZero()
	for _, k := range append(p.J[:], p.I[:]...) {
		only = only || k.waits
	}
	for _, k := range p.J {
		only = only || !k.IsZero()
	}
	if v := p.Version(); only && v > V15 {
		return fmt.Errorf("J1 to J3, Itime, <wt> and <wr> ended with 1.5, the rest needs %s: %w", v, profile.ErrUnsupported)
	}
	if p.Itime.Hi > maxSeconds {
		return errors.New("itime is longer than a day")
	}
	return nil
}

// maxSeconds bounds Itime.
const maxSeconds = 24 * 60 * 60

// Inside is the MTU in bytes of a tunnel whose profile states one (0 = it states none),
// where plain WireGuard's would be base: never more than leaves room for the S4 prefix.
func (p Params) Inside(stated, base int) int {
	if stated == 0 {
		return p.MTU(base)
	}
	return min(stated, p.MTU(max(stated, base)))
}
