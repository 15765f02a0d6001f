package profile

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// setting is one known key.
type setting struct {
	name    string // canonical spelling
	sec     section
	repeats bool // may stand more than once
	empty   bool // may have no value
	set     func(p *parser, name, val string) error
}

// settings are the known keys by lower-case name: those of wg and wg-quick, and those
// of AmneziaWG 1.0 to 3.1.
func settings() map[string]setting {
	m := make(map[string]setting, 64)
	add := func(s setting) { m[strings.ToLower(s.name)] = s }
	add(setting{name: "PrivateKey", sec: secInterface, set: func(p *parser, _, v string) (err error) {
		p.out.PrivateKey, err = ParseKey(v)
		return err
	}})
	add(setting{name: "Address", sec: secInterface, repeats: true, set: setAddress})
	add(setting{name: "DNS", sec: secInterface, repeats: true, empty: true, set: func(p *parser, _, v string) error {
		p.out.DNS = append(p.out.DNS, words(v)...)
		return nil
	}})
	add(setting{name: "MTU", sec: secInterface, set: func(p *parser, _, v string) error {
		n, err := number(v, 68, 65535)
		p.out.MTU = int(n)
		return err
	}})
	add(setting{name: "ListenPort", sec: secInterface, set: func(p *parser, _, v string) error {
		n, err := number(v, 0, 65535)
		p.out.ListenPort = int(n)
		return err
	}})
	for _, n := range []string{"Table", "FwMark", "SaveConfig"} {
		add(setting{name: n, sec: secInterface, set: setExtra})
	}
	for _, n := range []string{"PreUp", "PostUp", "PreDown", "PostDown"} {
		add(setting{name: n, sec: secInterface, repeats: true, set: setExtra})
	}
	for _, k := range amneziaKeys() {
		add(setting{name: k.name, sec: secInterface, set: func(p *parser, name, v string) error {
			p.out.Obfuscation = append(p.out.Obfuscation, KeyValue{name, v})
			return k.check(v)
		}})
	}
	add(setting{name: "PublicKey", sec: secPeer, set: func(p *parser, _, v string) (err error) {
		p.peer().PublicKey, err = ParseKey(v)
		return err
	}})
	add(setting{name: "PresharedKey", sec: secPeer, set: func(p *parser, _, v string) (err error) {
		p.peer().PresharedKey, err = ParseKey(v)
		return err
	}})
	add(setting{name: "Endpoint", sec: secPeer, set: func(p *parser, _, v string) (err error) {
		p.peer().Endpoint, err = canonicalEndpoint(v)
		return err
	}})
	add(setting{name: "AllowedIPs", sec: secPeer, repeats: true, empty: true, set: setAllowed})
	add(setting{name: "PersistentKeepalive", sec: secPeer, set: setKeepalive})
	add(setting{name: "AdvancedSecurity", sec: secPeer, set: func(p *parser, name, v string) error {
		p.peer().Obfuscation = append(p.peer().Obfuscation, KeyValue{name, v})
		return checkSwitch(v)
	}})
	return m
}

func setExtra(p *parser, name, v string) error {
	p.out.Extra = append(p.out.Extra, KeyValue{name, v})
	return nil
}

func setAddress(p *parser, _, v string) error {
	for _, w := range words(v) {
		a, err := prefix(w)
		if err != nil {
			return err
		}
		p.out.Addresses = append(p.out.Addresses, a)
	}
	return nil
}

func setAllowed(p *parser, _, v string) error {
	for _, w := range words(v) {
		a, err := prefix(w)
		if err != nil {
			return err
		}
		p.peer().AllowedIPs = append(p.peer().AllowedIPs, a.Masked())
	}
	return nil
}

func setKeepalive(p *parser, name, v string) error {
	if strings.EqualFold(v, "off") {
		return nil
	}
	lo, _, isRange, err := numberRange(v, 65535)
	if err != nil {
		return err
	}
	p.peer().Keepalive = time.Duration(lo) * time.Second
	if isRange {
		p.peer().Obfuscation = append(p.peer().Obfuscation, KeyValue{name, v})
	}
	return nil
}

// words splits a list at commas and white space, as wg-quick does.
func words(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
}

// prefix reads an address with or without a length; an IPv4 address written inside
// IPv6 is refused, since it would never equal its plain form.
func prefix(s string) (netip.Prefix, error) {
	var out netip.Prefix
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return out, fmt.Errorf("%q is not a prefix", s)
		}
		out = p
	} else {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return out, fmt.Errorf("%q is not an address", s)
		}
		out = netip.PrefixFrom(a, a.BitLen())
	}
	if out.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4 address inside IPv6", s)
	}
	return out, nil
}

// canonicalEndpoint brings host:port to one spelling, so that equal endpoints are
// equal texts. The port may be 0 here: EndpointAddr refuses it with a reason.
func canonicalEndpoint(s string) (string, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 1 {
		return "", fmt.Errorf("%q is not host:port", s)
	}
	host, portText := s[:i], s[i+1:]
	port, err := number(portText, 0, 65535)
	if err != nil {
		return "", fmt.Errorf("port %w", err)
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		if !ok || err != nil || !a.Is6() {
			return "", fmt.Errorf("%q is not [IPv6]:port", s)
		}
		if a.Zone() == "" {
			a = a.Unmap()
		}
		return netip.AddrPortFrom(a, uint16(port)).String(), nil
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		return netip.AddrPortFrom(a, uint16(port)).String(), nil
	}
	if !hostName(host) {
		return "", fmt.Errorf("%q is neither an address nor a host name", host)
	}
	return strings.ToLower(host) + ":" + strconv.FormatInt(port, 10), nil
}

// hostName reports whether s can be a DNS name. One of digits and dots alone is a
// mistyped address.
func hostName(s string) bool {
	if len(s) > 253 || strings.HasPrefix(s, ".") || strings.Contains(s, "..") {
		return false
	}
	letter := false
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			letter = true
		case c >= '0' && c <= '9', c == '-', c == '.', c == '_':
		default:
			return false
		}
	}
	return letter
}

// number reads decimal digits. It is 64 bits wide: message types are uint32, and int
// is no wider than 31 on small routers.
func number(s string, lo, hi int64) (int64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < lo || v > hi {
		return 0, fmt.Errorf("%s is not from %d to %d", s, lo, hi)
	}
	return v, nil
}

// numberRange reads n or lo-hi.
func numberRange(s string, most int64) (lo, hi int64, isRange bool, err error) {
	a, b, isRange := strings.Cut(s, "-")
	if lo, err = number(strings.TrimSpace(a), 0, most); err != nil {
		return 0, 0, false, err
	}
	if !isRange {
		return lo, lo, false, nil
	}
	if hi, err = number(strings.TrimSpace(b), 0, most); err != nil {
		return 0, 0, false, err
	}
	if hi < lo {
		return 0, 0, false, errors.New("the range is upside down")
	}
	return lo, hi, true, nil
}

// nearest is the known key of that section with the least edit distance.
func nearest(low string, known map[string]setting, sec section) string {
	best, least := "", 1<<30
	for k, s := range known {
		if s.sec != sec {
			continue
		}
		if d := distance(low, k); d < least || d == least && s.name < best {
			best, least = s.name, d
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diag+cost)
		}
	}
	return row[len(b)]
}
