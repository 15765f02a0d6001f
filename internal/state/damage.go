package state

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"strings"
)

// DamageError says what is wrong with a file, where, and what to do about it.
type DamageError struct {
	File string // path as opened
	Line int    // from 1; 0 = the file as a whole
	Msg  string
	Hint string // one sentence for the operator
	Err  error  // cause, may be nil
}

func (e DamageError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
	}
	return e.File + ": " + e.Msg
}

// Unwrap returns the cause, so that errors.Is finds fs.ErrPermission and fs.ErrNotExist.
func (e DamageError) Unwrap() error { return e.Err }

// firstDamage is what a reader that wants an intact file returns; nil when there is none.
func firstDamage(damage []DamageError) error {
	if len(damage) == 0 {
		return nil
	}
	first := damage[0]
	return &first
}

// unreadable turns an error of opening or reading into damage.
func unreadable(file string, err error) *DamageError {
	e := &DamageError{File: file, Msg: "cannot be read: " + bare(err).Error(), Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Msg = "no permission to read"
		e.Hint = "run as the user that owns the state folder, usually root, or give this one the right to read"
	case errors.Is(err, fs.ErrNotExist):
		e.Msg = "is missing"
	default:
		e.Hint = "look at the disk and at the kernel's log"
	}
	return e
}

// bare drops the operation and the path, which the message names already.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// textLine is one line of a file without its end.
type textLine struct {
	n    int // from 1
	text string
	torn bool // the last line, without its newline
}

// splitLines cuts a file of ours into lines. A byte order mark and carriage returns are
// damage, but what they surround is clear, so those lines are given all the same. Lines
// with other control characters (NUL is what a crash leaves on some file systems) are not.
func splitLines(file string, data []byte) (lines []textLine, damage []DamageError) {
	if len(data) == 0 {
		return nil, []DamageError{{
			File: file, Line: 1, Msg: "empty file",
			Hint: "not even the first line is there: restore it from last-good/, or remove both",
		}}
	}
	if rest, ok := bytes.CutPrefix(data, []byte("\xef\xbb\xbf")); ok {
		data = rest
		damage = append(damage, DamageError{
			File: file, Line: 1, Msg: "byte order mark before the first line",
			Hint: `remove it: sed -i '1s/^\xEF\xBB\xBF//' ` + file,
		})
	}
	crlf := false
	for n := 1; len(data) > 0; n++ {
		raw, rest, ended := bytes.Cut(data, []byte("\n"))
		data = rest
		l := textLine{n: n, torn: !ended}
		if cut, ok := bytes.CutSuffix(raw, []byte("\r")); ok {
			raw = cut
			if !crlf {
				crlf = true
				damage = append(damage, DamageError{
					File: file, Line: n, Msg: "line ends with CRLF",
					Hint: `an editor for Windows was here; repair it: sed -i 's/\r$//' ` + file,
				})
			}
		}
		if i := bytes.IndexFunc(raw, isControl); i >= 0 {
			damage = append(damage, DamageError{
				File: file, Line: n, Msg: fmt.Sprintf("control character %q in column %d", raw[i], i+1),
				Hint: "the line was cut off by a crash or by another program: delete it, or restore the file from last-good/",
			})
			continue
		}
		l.text = string(raw)
		if l.torn {
			damage = append(damage, DamageError{
				File: file, Line: n, Msg: "truncated line: no newline at its end",
				Hint: "complete the line and end it with a newline, or delete it",
			})
		}
		lines = append(lines, l)
	}
	return lines, damage
}

func isControl(r rune) bool { return r != '\t' && (r < 0x20 || r == 0x7f) }

// oneLine replaces what must never be written raw into a line or a column.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == '\t' || isControl(r) {
			return ' '
		}
		return r
	}, s))
}

// checkColumn refuses a value that would break its line.
func checkColumn(name, value string) error {
	if strings.ContainsFunc(value, func(r rune) bool { return r == '\t' || isControl(r) }) {
		return fmt.Errorf("%s %q: has a control character", name, value)
	}
	return nil
}

// checkEndpoint wants host:port with a port from 1 to 65535.
func checkEndpoint(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("endpoint %q: want host:port", s)
	}
	if p, err := parseUint(port); err != nil || p < 1 || p > 65535 {
		return fmt.Errorf("endpoint %q: want a port from 1 to 65535", s)
	}
	return nil
}

// maxNumber bounds the numbers of our files: as seconds it is the year 36812.
const maxNumber = 1 << 40

// parseUint reads digits and nothing else: no sign, no space, no underscore.
func parseUint(s string) (int64, error) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("bad number %q: want digits only", s)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n > maxNumber {
		return 0, fmt.Errorf("bad number %q: too large", s)
	}
	return n, nil
}
