package profile

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

const maxUint32 = 1<<32 - 1

// amneziaKey is one [Interface] key of AmneziaWG.
type amneziaKey struct {
	name  string
	check func(v string) error
	plain func(v string) bool // the value means plain WireGuard
}

// amneziaKeys are the keys of every generation, in the order of their appearance:
// 1.0 Jc Jmin Jmax S1 S2 H1-H4; 1.5 S3 S4 I1-I5 J1-J3 Itime; 2.0 ranges of H;
// 3.0 the header key, padding and timing; 3.1 trailers and cookies.
func amneziaKeys() []amneziaKey {
	count := func(v string) error { _, err := number(v, 0, 65535); return err }
	span := func(v string) error { _, _, _, err := numberRange(v, maxUint32); return err }
	isZero := func(v string) bool { _, hi, _, err := numberRange(v, maxUint32); return err == nil && hi == 0 }
	// Sizes of junk mean nothing by themselves: Jc says whether there is any.
	always := func(string) bool { return true }
	never := func(string) bool { return false }
	off := func(v string) bool { return !switchedOn(v) }

	keys := []amneziaKey{{"Jc", count, isZero}, {"Jmin", count, always}, {"Jmax", count, always}}
	for i := 1; i <= 4; i++ {
		keys = append(keys, amneziaKey{fmt.Sprintf("S%d", i), count, isZero})
	}
	for i := int64(1); i <= 4; i++ {
		keys = append(keys, amneziaKey{fmt.Sprintf("H%d", i), span, func(v string) bool {
			lo, hi, _, err := numberRange(v, maxUint32)
			// The first generation reads 0 as the default.
			return err == nil && lo == hi && (lo == i || lo == 0)
		}})
	}
	for i := 1; i <= 5; i++ {
		keys = append(keys, amneziaKey{fmt.Sprintf("I%d", i), checkTags, never})
	}
	for i := 1; i <= 3; i++ {
		keys = append(keys, amneziaKey{fmt.Sprintf("J%d", i), checkTags, never})
	}
	keys = append(
		keys,
		amneziaKey{"Itime", span, isZero},
		amneziaKey{"HeaderProtectionKey", checkKey, func(v string) bool { k, err := ParseKey(v); return err == nil && k.IsZero() }},
		amneziaKey{"ContentPaddingAddition", span, isZero},
	)
	for _, n := range []string{"RekeyAfterTime", "RekeyTimeout", "RejectAfterTime", "KeepaliveTimeout", "MaxHandshakeAttempts"} {
		keys = append(keys, amneziaKey{n, span, isZero})
	}
	return append(keys, amneziaKey{"RandomTrailers", checkSwitch, off}, amneziaKey{"DisableCookies", checkSwitch, off})
}

func checkKey(v string) error { _, err := ParseKey(v); return err }

func switchedOn(v string) bool {
	switch strings.ToLower(v) {
	case "off", "false", "0", "no":
		return false
	}
	return true
}

func checkSwitch(v string) error {
	switch strings.ToLower(v) {
	case "on", "true", "1", "yes", "off", "false", "0", "no":
		return nil
	}
	return fmt.Errorf("%q is neither on nor off", v)
}

// checkTags reads the text of a custom packet, `<b 0xc7ff><r 40><t>`: the tags of all
// generations, with white space between them at most.
func checkTags(v string) error {
	rest := v
	for strings.TrimSpace(rest) != "" {
		before, after, ok := strings.Cut(rest, "<")
		if !ok || strings.TrimSpace(before) != "" {
			return errors.New("text outside of <…>")
		}
		tag, tail, ok := strings.Cut(after, ">")
		if !ok {
			return errors.New("a < without its >")
		}
		if err := checkTag(strings.Fields(tag)); err != nil {
			return err
		}
		rest = tail
	}
	return nil
}

func checkTag(f []string) error {
	if len(f) == 0 {
		return errors.New("an empty tag")
	}
	switch f[0] {
	case "t", "c":
		if len(f) != 1 {
			return fmt.Errorf("<%s> takes no argument", f[0])
		}
		return nil
	case "b", "r", "rc", "rd", "wt", "wr":
	default:
		return errors.New("unknown tag, want <b>, <r>, <rc>, <rd>, <t>, <c>, <wt> or <wr>")
	}
	if len(f) != 2 {
		return fmt.Errorf("<%s> takes one argument", f[0])
	}
	if f[0] != "b" {
		if _, err := number(f[1], 0, 65535); err != nil {
			return fmt.Errorf("<%s>: %w", f[0], err)
		}
		return nil
	}
	digits := f[1]
	if len(digits) >= 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X') {
		digits = digits[2:]
	}
	if b, err := hex.DecodeString(digits); err != nil || len(b) == 0 {
		return errors.New("<b>: not an even number of hexadecimal digits")
	}
	return nil
}

// Obfuscated reports whether the profile needs AmneziaWG: whether any of its keys is
// there with a value that is not plain WireGuard's.
func (p Profile) Obfuscated() bool {
	if len(p.effective()) > 0 {
		return true
	}
	for _, peer := range p.Peers {
		for _, kv := range peer.Obfuscation {
			if kv.Key != "AdvancedSecurity" || switchedOn(kv.Value) {
				return true
			}
		}
	}
	return false
}

// effective are the [Interface] obfuscation settings that differ from plain WireGuard.
func (p Profile) effective() []KeyValue {
	if len(p.Obfuscation) == 0 {
		return nil
	}
	plain := map[string]func(string) bool{}
	for _, k := range amneziaKeys() {
		plain[k.name] = k.plain
	}
	junk := false
	var out []KeyValue
	for _, kv := range p.Obfuscation {
		if is, ok := plain[kv.Key]; ok && is(kv.Value) {
			continue
		}
		junk = junk || kv.Key == "Jc"
		out = append(out, kv)
	}
	if junk {
		for _, kv := range p.Obfuscation {
			if kv.Key == "Jmin" || kv.Key == "Jmax" {
				out = append(out, kv)
			}
		}
	}
	return out
}

// checkObfuscation refuses what AmneziaWG itself does not, or not in every version,
// and dies of: sizes of junk upside down, message types that cannot be told apart, a
// header key without room for its nonce.
func (p *parser) checkObfuscation() error {
	vals := map[string]string{}
	for _, kv := range p.out.Obfuscation {
		vals[kv.Key] = kv.Value
	}
	at := func(key string) { p.line = p.iface[strings.ToLower(key)] }
	if jc, _ := number(vals["Jc"], 0, 65535); jc > 0 {
		lo, _ := number(vals["Jmin"], 0, 65535)
		hi, _ := number(vals["Jmax"], 0, 65535)
		if hi < lo {
			at("Jmin")
			return p.fail("", "Jmax is less than Jmin")
		}
	}
	type span struct{ lo, hi int64 }
	var h [4]span
	for i := range h {
		key := fmt.Sprintf("H%d", i+1)
		lo, hi, _, err := numberRange(vals[key], maxUint32)
		if err != nil || lo == 0 && hi == 0 {
			lo, hi = int64(i+1), int64(i+1)
		}
		h[i] = span{lo, hi}
		for j := range i {
			if h[j].lo <= hi && lo <= h[j].hi {
				if at(key); p.line == 0 {
					at(fmt.Sprintf("H%d", j+1))
				}
				return p.fail("", "H%d and %s overlap", j+1, key)
			}
		}
	}
	if k, err := ParseKey(vals["HeaderProtectionKey"]); err == nil && !k.IsZero() {
		for i := 1; i <= 4; i++ {
			if s, _ := number(vals[fmt.Sprintf("S%d", i)], 0, 65535); s < 12 {
				at("HeaderProtectionKey")
				return p.fail("", "S%d must be at least 12 with HeaderProtectionKey", i)
			}
		}
	}
	return nil
}
