package edge

import (
	"strings"
)

// ConfigFile is a file to look for traps in.
type ConfigFile struct {
	Name string
	Text string
}

// stanza is one keyword of keepalived.conf with what follows it.
type stanza struct {
	line  int // from 1
	words []string
	block []stanza // between its braces
	open  bool     // it has braces
}

// word is the i-th word, "" when there is none.
func (s *stanza) word(i int) string {
	if i < len(s.words) {
		return s.words[i]
	}
	return ""
}

// find returns the last stanza of a keyword, which is the one that counts; nil = none.
func (s *stanza) find(keyword string) *stanza {
	for i := len(s.block) - 1; i >= 0; i-- {
		if s.block[i].word(0) == keyword {
			return &s.block[i]
		}
	}
	return nil
}

// value is the first word behind a keyword.
func (s *stanza) value(keyword string) string {
	if f := s.find(keyword); f != nil {
		return f.word(1)
	}
	return ""
}

// token is a word, a brace, or the end of a line ("\n").
type token struct {
	line int
	text string
}

// tokens cuts a file: words end at blanks and braces, ! and # begin a comment, quotes hold
// a word together.
func tokens(text string) []token {
	var out []token
	line := 0
	for l := range strings.Lines(text) {
		line++
		l = strings.TrimRight(l, "\r\n")
		for l != "" {
			switch c := l[0]; c {
			case ' ', '\t':
				l = l[1:]
				continue
			case '!', '#':
				l = ""
				continue
			case '{', '}':
				out = append(out, token{line, l[:1]})
				l = l[1:]
				continue
			case '"', '\'':
				end := strings.IndexByte(l[1:], c)
				if end < 0 {
					end = len(l) - 1
				}
				out = append(out, token{line, `"` + l[1:1+end]})
				l = l[min(len(l), end+2):]
				continue
			}
			end := strings.IndexAny(l, " \t{}!#")
			if end < 0 {
				end = len(l)
			}
			if end == 0 {
				end = 1
			}
			out = append(out, token{line, l[:end]})
			l = l[end:]
		}
		out = append(out, token{line, "\n"})
	}
	return out
}

// maxNested bounds blocks in blocks; keepalived itself has four.
const maxNested = 16

// parseKeepalived reads a file into stanzas. unbalanced is the line of a brace that has no
// other; 0 = all have.
func parseKeepalived(text string) (top stanza, unbalanced int) {
	type frame struct {
		line int
		list []stanza
	}
	stack := []frame{{}}
	var words []string
	line := 0
	end := func() {
		if len(words) > 0 {
			top := &stack[len(stack)-1]
			top.list = append(top.list, stanza{line: line, words: words})
		}
		words = nil
	}
	for _, t := range tokens(text) {
		switch t.text {
		case "\n":
			end()
		case "{":
			if len(words) == 0 { // a brace on a line of its own belongs to the stanza before
				list := stack[len(stack)-1].list
				if len(list) == 0 || list[len(list)-1].open {
					return top, t.line
				}
			} else {
				end()
			}
			if len(stack) > maxNested {
				return top, t.line
			}
			stack = append(stack, frame{line: t.line})
		case "}":
			end()
			if len(stack) == 1 {
				return top, t.line
			}
			inner := stack[len(stack)-1].list
			stack = stack[:len(stack)-1]
			list := stack[len(stack)-1].list
			list[len(list)-1].block, list[len(list)-1].open = inner, true
		default:
			if len(words) == 0 {
				line = t.line
			}
			words = append(words, strings.TrimPrefix(t.text, `"`))
		}
	}
	end()
	if len(stack) > 1 {
		return top, stack[len(stack)-1].line
	}
	top.block = stack[0].list
	return top, 0
}
