package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// MaxSize is the size of the largest file that can be a profile, in bytes: room for
// five long I packets and more.
const MaxSize = 1 << 20

// Parse reads a profile; name stands for the file in errors. A syntax problem is a
// *SyntaxError, any other error came from r. Keys are case-insensitive, `#` begins a
// comment, a byte order mark and CRLF are tolerated; anything unknown is refused.
func Parse(name string, r io.Reader) (Profile, error) {
	b, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return Profile{}, fmt.Errorf("profile %s: %w", name, err)
	}
	if len(b) > MaxSize {
		return Profile{}, &SyntaxError{File: name, Msg: "larger than 1 MiB: not a profile"}
	}
	p := parser{file: name, known: settings(), lines: map[string]int{}}
	if err := p.whole(b); err != nil {
		return Profile{}, err
	}
	return p.out, nil
}

// ParseFile reads the profile at path.
func ParseFile(path string) (Profile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not hang a run
	if err != nil {
		return Profile{}, fmt.Errorf("profile %s: %w", path, cause(err))
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return Profile{}, fmt.Errorf("profile %s: not a regular file", path)
	}
	return Parse(path, f)
}

// cause drops the operation and the path that the caller's text already has.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

type section int

const (
	secNone section = iota
	secInterface
	secPeer
)

func (s section) String() string {
	switch s {
	case secInterface:
		return "[Interface]"
	case secPeer:
		return "[Peer]"
	case secNone:
	}
	return "no section"
}

type parser struct {
	file    string
	line    int
	sec     section
	secLine int // of the current section's header
	known   map[string]setting
	lines   map[string]int // lower-case key -> its line in the current section
	iface   map[string]int // the same of [Interface], kept for the checks at the end
	out     Profile
}

func (p *parser) fail(hint, format string, args ...any) error {
	return &SyntaxError{File: p.file, Line: p.line, Msg: fmt.Sprintf(format, args...), Hint: hint}
}

func (p *parser) whole(b []byte) error {
	switch {
	case bytes.HasPrefix(b, []byte{0xff, 0xfe}), bytes.HasPrefix(b, []byte{0xfe, 0xff}):
		return p.fail("save it as UTF-8", "the file is UTF-16")
	case len(bytes.TrimSpace(bytes.TrimPrefix(b, []byte("\ufeff")))) == 0:
		return p.fail("", "the file is empty")
	}
	for s := range strings.SplitSeq(string(bytes.TrimPrefix(b, []byte("\ufeff"))), "\n") {
		p.line++
		if err := p.oneLine(strings.TrimSuffix(s, "\r")); err != nil {
			return err
		}
	}
	if p.iface == nil && p.sec != secInterface {
		p.line = 0
		return p.fail("", "no [Interface] section")
	}
	if err := p.endSection(); err != nil {
		return err
	}
	return p.checkObfuscation()
}

func (p *parser) oneLine(s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return p.fail("", "a NUL byte: the file is damaged")
	}
	s, _, _ = strings.Cut(s, "#")
	s = strings.TrimSpace(s)
	if s == "" {
		return nil
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unprintable) {
		return p.fail("", "a control character or a byte that is not UTF-8")
	}
	if s[0] == '[' {
		return p.header(s)
	}
	key, val, ok := strings.Cut(s, "=")
	key, val = strings.TrimSpace(key), strings.TrimSpace(val)
	if !ok || !keyLike(key) {
		// The text is not repeated: it may be a piece of a private key.
		return p.fail("comments begin with #", "not a `Key = value` line")
	}
	return p.set(key, val)
}

func unprintable(r rune) bool {
	return r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp))
}

// keyLike reports whether a text can be a setting's name: short enough that no base64
// key is taken for one.
func keyLike(s string) bool {
	if s == "" || len(s) > 32 {
		return false
	}
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		digit := c >= '0' && c <= '9' || c == '_' || c == '-'
		if !letter && (i == 0 || !digit) {
			return false
		}
	}
	return true
}

func (p *parser) header(s string) error {
	if err := p.endSection(); err != nil {
		return err
	}
	switch strings.ToLower(s) {
	case "[interface]":
		if p.iface != nil {
			return p.fail("", "a second [Interface] section")
		}
		p.sec = secInterface
	case "[peer]":
		p.sec = secPeer
		p.out.Peers = append(p.out.Peers, Peer{})
	default:
		return &SyntaxError{
			File: p.file, Line: p.line, Err: ErrUnsupported,
			Msg:  "unsupported profile: a section that is neither [Interface] nor [Peer]",
			Hint: "comments begin with #",
		}
	}
	p.secLine, p.lines = p.line, map[string]int{}
	return nil
}

// endSection checks the section that just ended.
func (p *parser) endSection() error {
	switch p.sec {
	case secInterface:
		p.iface = p.lines
	case secPeer:
		if p.peer().PublicKey.IsZero() {
			p.line = p.secLine
			return p.fail("", "a [Peer] without PublicKey")
		}
	case secNone:
	}
	return nil
}

func (p *parser) peer() *Peer { return &p.out.Peers[len(p.out.Peers)-1] }

func (p *parser) set(key, val string) error {
	if p.sec == secNone {
		return p.fail("a profile begins with [Interface]", "%q before any section", key)
	}
	low := strings.ToLower(key)
	s, ok := p.known[low]
	if !ok {
		near := nearest(low, p.known, p.sec)
		return &SyntaxError{
			File: p.file, Line: p.line, Err: ErrUnsupported,
			Msg:  fmt.Sprintf("unsupported profile: unknown key %q in %s, the nearest known key is %q", key, p.sec, near),
			Hint: "a tunnel without a key that its server expects stays silent; correct the key or leave the profile out",
		}
	}
	if s.sec != p.sec {
		return p.fail("", "%s belongs into %s, not into %s", s.name, s.sec, p.sec)
	}
	if n, twice := p.lines[low]; twice && !s.repeats {
		return p.fail("", "%s again, it is already in line %d", s.name, n)
	}
	p.lines[low] = p.line
	if val == "" && !s.empty {
		return p.fail("", "%s has no value", s.name)
	}
	if err := s.set(p, s.name, val); err != nil {
		return p.fail("", "%s: %v", s.name, err)
	}
	return nil
}
