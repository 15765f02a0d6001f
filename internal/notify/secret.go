package notify

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/secret"
)

const headerLimit = 64 // lines

// address is the target's URL; one that lies in a file is read for each delivery, so that
// it can be changed.
func address(t edge.AlertTarget) (string, error) {
	if t.URLFile == "" {
		return strings.TrimSpace(t.URL), nil
	}
	b, err := secret.ReadFile(t.URLFile)
	if err != nil {
		return "", fmt.Errorf("url_file %s: %w", t.URLFile, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("url_file %s: empty", t.URLFile)
	}
	return line, nil
}

// headers reads a file of `Name: value` lines; empty lines and those that begin with # say
// nothing. Without a path there are none.
func headers(path string) (http.Header, error) {
	h := http.Header{}
	if path == "" {
		return h, nil
	}
	b, err := secret.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("headers_file %s: %w", path, err)
	}
	count := 0
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if value = strings.TrimSpace(value); !ok || !fieldName(name) || strings.ContainsFunc(value, control) {
			return nil, fmt.Errorf("headers_file %s: line %d is not `Name: value`", path, i+1)
		}
		if count++; count > headerLimit {
			return nil, fmt.Errorf("headers_file %s: more than %d headers", path, headerLimit)
		}
		h.Add(name, value)
	}
	return h, nil
}

func control(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// fieldName says whether s can be the name of a header (RFC 9110, 5.6.2).
func fieldName(s string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(marks, r) {
			return false
		}
	}
	return s != ""
}
