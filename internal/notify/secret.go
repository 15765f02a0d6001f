package notify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

const (
	secretLimit = 64 << 10 // bytes of a file
	headerLimit = 64       // lines
)

// address is the target's URL; one that lies in a file is read for each delivery, so that
// it can be changed.
func address(t edge.AlertTarget) (string, error) {
	if t.URLFile == "" {
		return strings.TrimSpace(t.URL), nil
	}
	b, err := readSecret(t.URLFile)
	if err != nil {
		return "", fmt.Errorf("url_file %s: %w", t.URLFile, err)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("url_file %s: empty", t.URLFile)
	}
	return line, nil
}

// readSecret reads a small file that only its owner may use. No error repeats what is in it.
func readSecret(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, cause(err)
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("its mode %04o lets others than its owner use it: make it 0600", info.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, secretLimit+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(b) > secretLimit {
		return nil, fmt.Errorf("larger than %d bytes", secretLimit)
	}
	return bytes.TrimPrefix(b, []byte("\ufeff")), nil
}

// cause is the error without the path, which the message has already.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// headers reads a file of `Name: value` lines; empty lines and those that begin with # say
// nothing. Without a path there are none.
func headers(path string) (http.Header, error) {
	h := http.Header{}
	if path == "" {
		return h, nil
	}
	b, err := readSecret(path)
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
