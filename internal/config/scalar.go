package config

import (
	"encoding"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// fault is what is wrong with one value.
type fault struct{ msg, hint string }

// setScalar reads text into dst, which keeps its value when there is a fault.
func setScalar(dst reflect.Value, text string) *fault {
	t := dst.Type()
	if t == reflect.TypeFor[time.Duration]() {
		return setDuration(dst, text)
	}
	if u, ok := dst.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return setText(dst, u, text)
	}
	switch t.Kind() { //nolint:exhaustive // keys() has no other kinds, and a test proves it
	case reflect.String:
		return setString(dst, text)
	case reflect.Bool:
		switch text {
		case "true":
			dst.SetBool(true)
		case "false":
			dst.SetBool(false)
		default:
			return &fault{fmt.Sprintf("%s is not true or false", quote(text)), boolHint(text)}
		}
		return nil
	case reflect.Int, reflect.Int64:
		v, err := strconv.ParseInt(text, 10, t.Bits())
		if err != nil {
			return &fault{fmt.Sprintf("%s is not a whole number", quote(text)), "write digits only, such as 3"}
		}
		dst.SetInt(v)
		return nil
	case reflect.Float64:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return &fault{fmt.Sprintf("%s is not a number", quote(text)), "write a number such as 0.8"}
		}
		dst.SetFloat(v)
		return nil
	}
	return &fault{"cannot be set", ""}
}

func boolHint(text string) string {
	switch strings.ToLower(text) {
	case "yes", "on", "1", "y", "enable", "enabled", "true":
		return "write true"
	case "no", "off", "0", "n", "disable", "disabled", "false":
		return "write false"
	}
	return "write true or false"
}

func setString(dst reflect.Value, text string) *fault {
	known := words(dst.Type())
	if known == nil {
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return &fault{fmt.Sprintf("%s holds a control character", quote(text)), "write it on one line, without tabs"}
		}
		dst.SetString(text)
		return nil
	}
	for _, k := range known {
		if k == text {
			dst.SetString(text)
			return nil
		}
	}
	hint := "known: " + strings.Join(known, ", ")
	if n := Nearest(text, known); n != "" {
		hint = fmt.Sprintf("did you mean %q? (%s)", n, hint)
	}
	return &fault{fmt.Sprintf("%s is not a known word", quote(text)), hint}
}

func setDuration(dst reflect.Value, text string) *fault {
	v, err := time.ParseDuration(text)
	if err == nil {
		dst.SetInt(int64(v))
		return nil
	}
	hint := "write a number with its unit, such as 300ms, 2.5s, 10m or 24h"
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		hint = fmt.Sprintf("a duration needs its unit: %ss, %sms or %sm", text, text, text)
	} else if d, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(d); err == nil && n >= 0 && n < 100000 {
			hint = fmt.Sprintf("the greatest unit is the hour: write %dh", 24*n)
		}
	}
	return &fault{fmt.Sprintf("%s is not a duration", quote(text)), hint}
}

// setText reads a type that knows its own text.
func setText(dst reflect.Value, u encoding.TextUnmarshaler, text string) *fault {
	old := reflect.New(dst.Type()).Elem()
	old.Set(dst)
	err := u.UnmarshalText([]byte(text))
	if err == nil && text != "" {
		return nil
	}
	dst.Set(old)
	switch dst.Interface().(type) {
	case netip.Addr:
		return &fault{fmt.Sprintf("%s is not an IP address", quote(text)), "write an address such as 1.1.1.1 or 2606:4700:4700::1111; names are not resolved here"}
	case netip.AddrPort:
		return &fault{fmt.Sprintf("%s is not an address with a port", quote(text)), "write it such as 1.1.1.1:443 or [2606:4700:4700::1111]:443"}
	case netip.Prefix:
		return &fault{fmt.Sprintf("%s is not a prefix", quote(text)), "write it such as 10.0.0.0/8 or fd00::/8"}
	}
	if err == nil {
		return &fault{"has no value", ""}
	}
	return &fault{err.Error(), ""}
}

// quote shows a value of the file, shortened.
func quote(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:77], "") + "…"
	}
	return strconv.Quote(s)
}
