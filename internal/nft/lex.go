package nft

import "strings"

type tokenKind int

const (
	tokenWord tokenKind = iota + 1
	tokenText           // between quotes
	tokenMark           // { } , ; =
	tokenLine           // end of a line
)

type token struct {
	kind tokenKind
	text string
}

func (t token) is(mark string) bool { return t.kind == tokenMark && t.text == mark }

// lexer takes nft's output apart. Quoted text has no escapes, and a comment lasts until the
// end of its line.
type lexer struct{ rest string }

// next returns the next token; false at the end.
func (l *lexer) next() (token, bool) {
	for {
		l.rest = strings.TrimLeft(l.rest, " \t\r")
		if l.rest == "" {
			return token{}, false
		}
		switch l.rest[0] {
		case '#':
			end := strings.IndexByte(l.rest, '\n')
			if end < 0 {
				end = len(l.rest)
			}
			l.rest = l.rest[end:]
			continue
		case '\n':
			return l.take(tokenLine, 1), true
		case '{', '}', ',', ';', '=':
			return l.take(tokenMark, 1), true
		case '"':
			end := strings.IndexByte(l.rest[1:], '"')
			if end < 0 {
				end = len(l.rest) - 1
			}
			t := token{tokenText, l.rest[1 : 1+end]}
			l.rest = l.rest[min(len(l.rest), end+2):]
			return t, true
		default:
			end := strings.IndexAny(l.rest, " \t\r\n{},;=\"#")
			if end < 0 {
				end = len(l.rest)
			}
			return l.take(tokenWord, end), true
		}
	}
}

func (l *lexer) take(k tokenKind, n int) token {
	t := token{k, l.rest[:n]}
	l.rest = l.rest[n:]
	return t
}
