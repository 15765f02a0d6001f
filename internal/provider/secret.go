package provider

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/secret"
)

// Bounds of the files that hold secrets.
const (
	maxHeaders = 64
)

// readKey reads a private key that stands alone in a file.
func readKey(path string) (profile.Key, error) {
	fail := func(err error) (profile.Key, error) {
		return profile.Key{}, fmt.Errorf("key_file %s: %w", printable(path), err)
	}
	if path == "" {
		return profile.Key{}, errors.New("no key_file")
	}
	b, err := secret.ReadFile(path)
	if err != nil {
		return fail(err)
	}
	text := string(bytes.TrimSpace(b))
	switch {
	case text == "":
		return fail(errors.New("empty"))
	case strings.ContainsAny(text, "\r\n"):
		return fail(errors.New("more than one line, want the private key and nothing else"))
	}
	key, err := profile.ParseKey(text)
	if err != nil {
		return fail(err)
	}
	if key.IsZero() {
		return fail(errors.New("not a key: all zero"))
	}
	return key, nil
}

// readHeaders reads a file of `Name: value` lines; empty lines and those that begin with
// # say nothing. Without a path there are no headers.
func readHeaders(path string) (http.Header, error) {
	if path == "" {
		return nil, nil
	}
	b, err := secret.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("headers_file %s: %w", printable(path), err)
	}
	h := http.Header{}
	n, count := 0, 0
	for line := range strings.Lines(string(b)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if count++; count > maxHeaders {
			return nil, fmt.Errorf("headers_file %s: more than %d headers", printable(path), maxHeaders)
		}
		name, value, err := parseHeader(line)
		if err != nil {
			return nil, fmt.Errorf("headers_file %s:%d: %w", printable(path), n, err)
		}
		h.Add(name, value)
	}
	if len(h) == 0 {
		return nil, fmt.Errorf("headers_file %s: no header in it", printable(path))
	}
	return h, nil
}

// parseHeader reads `Name: value`. Even the name is not repeated: in a damaged line it may
// be a part of the value.
func parseHeader(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch {
	case !ok:
		return "", "", errors.New("no colon, want `Name: value`")
	case !headerName(name):
		return "", "", errors.New("what stands before the colon is not the name of a header")
	case value == "":
		return "", "", errors.New("a header without a value")
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
		return "", "", errors.New("a control character in the value")
	}
	name = http.CanonicalHeaderKey(name)
	switch name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Upgrade", "Te", "Trailer",
		"Expect", "Accept-Encoding", "Range", "Proxy-Connection", "Proxy-Authorization":
		return "", "", errors.New("a header of the connection itself, which cannot be set: " + name)
	}
	return name, value, nil
}

// headerName reports whether a text is a token (RFC 9110, 5.6.2).
func headerName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// headerSecrets are the values of headers and the parts of them that are secret alone: a
// token without its scheme, a cookie without its name, a password without its user.
func headerSecrets(h http.Header) []string {
	const least = 8 // shorter parts are words such as Bearer
	var out []string
	for _, values := range h {
		for _, v := range values {
			out = append(out, v)
			for _, part := range strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune(" \t;,", r) }) {
				_, after, _ := strings.Cut(part, "=")
				for _, s := range []string{part, after, strings.Trim(after, `"`)} {
					if len(s) >= least {
						out = append(out, s)
					}
				}
			}
			if pair, ok := strings.CutPrefix(v, "Basic "); ok {
				if b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(pair)); err == nil {
					_, pass, _ := strings.Cut(string(b), ":")
					out = append(out, string(b), pass)
				}
			}
		}
	}
	return out
}
