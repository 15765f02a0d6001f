package amnezia

import (
	"fmt"
	"strings"
)

// UAPI returns the parameters as lines of the control socket's protocol, for a device of
// that generation: always the full set of its keys, so that nothing of an earlier
// profile survives. It is an error when the generation cannot do what the parameters
// ask. The lines hold the header protection key.
//
// They must come first in a set operation, before replace_peers: a device applies line
// by line, and may refuse one. Devices of 2.0 (v0.2.16 to v0.2.19 of the reference)
// refuse to send no junk at all, so for them that is one datagram of a few bytes, which
// any peer drops. What stays behind all the same, and harms no session: a device of 1.5
// keeps I and J packets, and v0.2.16 sends an empty datagram for an I packet that went.
func (p Params) UAPI(of Version) ([]string, error) {
	if need := p.Version(); of < V10 || of > V31 || need > of {
		return nil, fmt.Errorf("amneziawg: a device of %s cannot do %s", of, need)
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("amneziawg: %w", err)
	}
	p.fill()
	var out []string
	add := func(key string, val any) { out = append(out, fmt.Sprintf("%s=%v", key, val)) }
	jc, jmin, jmax := p.Jc, p.Jmin, p.Jmax
	if of == V20 {
		if jc == 0 {
			jc, jmin, jmax = 1, leastJunk, leastJunk
		}
		jmin = max(jmin, 1)
		jmax = max(jmax, jmin)
	}
	add("jc", jc)
	add("jmin", jmin)
	add("jmax", jmax)
	sizes := 2
	if of >= V15 {
		sizes = len(p.S)
	}
	for i := range sizes {
		add(fmt.Sprintf("s%d", i+1), p.S[i])
	}
	for i, h := range p.H {
		add(fmt.Sprintf("h%d", i+1), h)
	}
	if of >= V15 {
		for i, k := range p.I {
			add(fmt.Sprintf("i%d", i+1), k)
		}
	}
	if of == V15 {
		for i, k := range p.J {
			add(fmt.Sprintf("j%d", i+1), k)
		}
		add("itime", p.Itime)
	}
	if of >= V30 {
		p.addLate(add, of)
	}
	return out, nil
}

// Conf returns the same as lines of a `.conf` file, as `awg setconf` and `awg syncconf` read
// them. Those tools cannot write an empty packet, so an I packet that went stays behind;
// it harms no session. No junk is one datagram of a few bytes here, whatever the
// generation: devices that refuse to send none have lost their peers by then.
func (p Params) Conf(of Version) ([]string, error) {
	if p.Jc == 0 {
		p.Jc, p.Jmin, p.Jmax = 1, leastJunk, leastJunk
	}
	lines, err := p.UAPI(of)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, line := range lines {
		key, v, _ := strings.Cut(line, "=")
		var name strings.Builder
		for word := range strings.SplitSeq(key, "_") {
			name.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
		switch key {
		case "header_protection_key":
			v = p.HeaderKey.Base64()
		case "random_trailers", "disable_cookies":
			v = map[string]string{"0": "off", "1": "on"}[v]
		}
		if v != "" {
			out = append(out, name.String()+" = "+v)
		}
	}
	return out, nil
}

// leastJunk is the size of the junk that stands for none, bytes.
const leastJunk = 8

// addLate adds the keys of 3.0 and 3.1.
func (p *Params) addLate(add func(string, any), of Version) {
	add("header_protection_key", p.HeaderKey.Hex())
	add("content_padding_addition", p.ContentPadding)
	add("rekey_after_time", p.RekeyAfterTime)
	add("rekey_timeout", p.RekeyTimeout)
	add("reject_after_time", p.RejectAfterTime)
	add("keepalive_timeout", p.KeepaliveTimeout)
	add("max_handshake_attempts", p.MaxHandshakeAttempts)
	if of >= V31 {
		add("random_trailers", flag(p.Trailers))
		add("disable_cookies", flag(p.NoCookies))
	}
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}
