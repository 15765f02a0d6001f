package config

import (
	"bytes"
	"encoding"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Show writes the effective configuration as a file that can be loaded again, with
// secrets hidden (the user and the query of URLs, and a key where there should be none).
func Show(c Config) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(toNode(reflect.ValueOf(c))); err != nil {
		return nil, fmt.Errorf("show configuration: %w", err)
	}
	return b.Bytes(), nil
}

// Tree is what Show writes, as maps, lists and plain values for JSON.
func Tree(c Config) any { return toTree(toNode(reflect.ValueOf(c))) }

// toNode writes a value in the words of the file.
func toNode(v reflect.Value) *yaml.Node {
	switch formOf(v.Type()) {
	case formMapping:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, f := range fields(v.Type()) {
			fv := v.Field(f.index)
			if formOf(f.typ) == formMapping && fv.IsZero() && !prototype(f.typ).IsZero() {
				continue // a mapping that was not written
			}
			if f.brief && (fv.IsZero() || fv.Kind() == reflect.Slice && fv.Len() == 0) {
				continue
			}
			value := toNode(fv)
			if f.secret {
				value.Value = hide(fv.String())
			}
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: f.key}, value)
		}
		return n
	case formList:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if formOf(v.Type().Elem()) != formMapping || v.Len() == 0 {
			n.Style = yaml.FlowStyle
		}
		for i := range v.Len() {
			n.Content = append(n.Content, toNode(v.Index(i)))
		}
		return n
	case formScalar, formUnknown:
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: scalarText(v)}
	if v.Kind() == reflect.String {
		n.Tag = "!!str" // quoted where it would read as something else
	}
	return n
}

func scalarText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return durationText(x)
	case encoding.TextMarshaler:
		if b, err := x.MarshalText(); err == nil {
			return string(b)
		}
	}
	switch v.Kind() { //nolint:exhaustive // keys() has no other kinds, and a test proves it
	case reflect.String:
		return redact(v.String())
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	}
	return strconv.FormatInt(v.Int(), 10)
}

// durationText is 10m where String says 10m0s.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// keyForm is a key of WireGuard: the base64 of 32 bytes, which no setting takes.
var keyForm = regexp.MustCompile(`(^|[^A-Za-z0-9+/])[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=`)

// redact hides a key, and what a URL, or an argument that holds one, may carry in secret.
func redact(s string) string {
	s = keyForm.ReplaceAllString(s, "$1(hidden)")
	at := strings.Index(s, "://")
	if at < 0 {
		return s
	}
	start := at
	for start > 0 && isSchemeByte(s[start-1]) {
		start--
	}
	u, err := url.Parse(s[start:])
	if err != nil {
		return s[:at] + "://(hidden)"
	}
	if u.User != nil {
		u.User = url.User("hidden")
	}
	if u.RawQuery != "" {
		u.RawQuery = "hidden"
	}
	u.Fragment, u.RawFragment = "", ""
	return s[:start] + u.String()
}

// hide leaves of an address that is a secret (tokens of notification services are in host
// and path too) nothing but its scheme.
func hide(s string) string {
	if s == "" {
		return ""
	}
	scheme, rest, found := strings.Cut(s, ":")
	if !found || strings.ContainsFunc(scheme, func(c rune) bool { return c > 0x7f || !isSchemeByte(byte(c)) }) {
		return "(hidden)"
	}
	if strings.HasPrefix(rest, "//") {
		return scheme + "://hidden"
	}
	return scheme + ":hidden"
}

func isSchemeByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '+' || b == '-' || b == '.'
}

func toTree(n *yaml.Node) any {
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			m[n.Content[i].Value] = toTree(n.Content[i+1])
		}
		return m
	case yaml.SequenceNode:
		l := make([]any, 0, len(n.Content))
		for _, c := range n.Content {
			l = append(l, toTree(c))
		}
		return l
	case yaml.ScalarNode, yaml.DocumentNode, yaml.AliasNode:
	}
	switch n.ShortTag() {
	case "!!bool":
		return n.Value == "true"
	case "!!int":
		if v, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
			return v
		}
	case "!!float":
		if v, err := strconv.ParseFloat(n.Value, 64); err == nil {
			return v
		}
	}
	return n.Value
}
