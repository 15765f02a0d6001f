package config

import (
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Most files are written in a small part of YAML: words on their own lines, one value each,
// short lists in brackets. A thousand services take the YAML library 60 ms, and this reader
// of that part less than a fifth of it. It never judges: where it meets anything else it
// gives the whole file up, and the library reads it, and says what is wrong.

// treeDepth bounds how deep a file is nested for the quick reader.
const treeDepth = 40

// tree reads a file line by line. odd says that it holds something else than it knows.
type tree struct {
	text   string
	start  int  // where the line begins
	pos    int  // where its content begins, or goes on
	line   int  // from 1
	indent int  // of the content; -1 = the file has ended
	odd    bool // the rest tells nothing
	depth  int
	nodes  []yaml.Node  // not yet used
	lists  []*yaml.Node // not yet used
	stack  []*yaml.Node // children of what is being read
}

// plainTree is the file's mapping as the YAML library gives it, but for comments; nil = it
// holds what only the library can judge.
func plainTree(raw []byte) *yaml.Node {
	if !plainText(raw) {
		return nil
	}
	t := &tree{text: string(raw)}
	t.seek(0, 1)
	if t.odd || t.indent != 0 || t.dash() {
		return nil
	}
	root := t.block()
	if t.odd || t.indent >= 0 {
		return nil
	}
	return root
}

// plainText says whether a file is text whose lines and columns are beyond doubt. Letters
// beyond ASCII may stand in comments, which the reader sees to.
func plainText(raw []byte) bool {
	ascii := true
	for _, c := range raw {
		switch {
		case c >= utf8.RuneSelf:
			ascii = false
		case c < ' ' && c != '\n' || c == 0x7f:
			return false
		}
	}
	if ascii {
		return true
	}
	for len(raw) > 0 {
		c, n := utf8.DecodeRune(raw)
		switch {
		case c == utf8.RuneError, c == 0xfeff, c == 0x2028, c == 0x2029, c >= utf8.RuneSelf && c < 0xa0, c >= 0xfffe && c < 0x10000:
			return false
		}
		raw = raw[n:]
	}
	return true
}

// seek goes to the next line with content; at is where line begins.
func (t *tree) seek(at, line int) {
	for ; at < len(t.text); line++ {
		pos := at
		for pos < len(t.text) && t.text[pos] == ' ' {
			pos++
		}
		if pos < len(t.text) && t.text[pos] != '\n' && t.text[pos] != '#' {
			t.start, t.pos, t.line, t.indent = at, pos, line, pos-at
			rest := t.text[pos:]
			if t.indent == 0 && (rest[0] == '%' || strings.HasPrefix(rest, "---") || strings.HasPrefix(rest, "...")) {
				t.odd = true
			}
			return
		}
		end := strings.IndexByte(t.text[pos:], '\n')
		if end < 0 {
			break
		}
		at = pos + end + 1
	}
	t.indent = -1
}

// at is the character n places on; a line's end where there is none.
func (t *tree) at(n int) byte {
	if t.pos+n < len(t.text) {
		return t.text[t.pos+n]
	}
	return '\n'
}

func blank(c byte) bool { return c == ' ' || c == '\n' }

func (t *tree) spaces() {
	for t.at(0) == ' ' {
		t.pos++
	}
}

// ended says whether nothing but a comment is left of the line, and goes to the next one
// then. A comment stands apart from what is before it.
func (t *tree) ended() bool {
	from := t.pos
	t.spaces()
	switch c := t.at(0); {
	case c == '\n', c == '#' && t.pos > from:
	default:
		return false
	}
	end := strings.IndexByte(t.text[min(t.pos, len(t.text)):], '\n')
	if end < 0 {
		t.indent = -1
		return true
	}
	t.seek(t.pos+end+1, t.line+1)
	return true
}

// dash says whether an entry of a list begins here.
func (t *tree) dash() bool { return t.at(0) == '-' && blank(t.at(1)) }

// key is the length of the key that stands here; 0 = none that is a plain word.
func (t *tree) key() int {
	for n := 0; ; n++ {
		switch c := t.at(n); {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_':
		case n > 0 && (c == '-' || c == '.' || c == '/'):
		case n > 0 && n < 256 && c == ':' && blank(t.at(n+1)):
			return n
		default:
			return 0
		}
	}
}

// fail gives the file up.
func (t *tree) fail() *yaml.Node {
	t.odd = true
	t.indent = -1 // every loop over lines ends
	return nil
}

// node is a new one that begins here.
func (t *tree) node(kind yaml.Kind, tag, value string) *yaml.Node {
	if len(t.nodes) == 0 {
		t.nodes = make([]yaml.Node, min(512, 16+len(t.text)/16))
	}
	n := &t.nodes[0]
	t.nodes = t.nodes[1:]
	n.Kind, n.Tag, n.Value, n.Line, n.Column = kind, tag, value, t.line, t.pos-t.start+1
	return n
}

// adopt gives a node what was put on the stack since base.
func (t *tree) adopt(n *yaml.Node, base int) *yaml.Node {
	k := len(t.stack) - base
	if len(t.lists) < k {
		t.lists = make([]*yaml.Node, max(k, min(512, 16+len(t.text)/16)))
	}
	n.Content, t.lists = t.lists[:k:k], t.lists[k:]
	copy(n.Content, t.stack[base:])
	t.stack = t.stack[:base]
	t.depth--
	return n
}

// deeper counts the levels.
func (t *tree) deeper() bool {
	t.depth++
	return t.depth <= treeDepth
}

// block is a list or a mapping over lines that begin where this one does.
func (t *tree) block() *yaml.Node {
	if t.odd || !t.deeper() {
		return t.fail()
	}
	if t.dash() {
		return t.sequence(t.indent)
	}
	return t.mapping(t.indent)
}

func (t *tree) sequence(indent int) *yaml.Node {
	n, base := t.node(yaml.SequenceNode, "!!seq", ""), len(t.stack)
	for t.indent == indent && t.dash() {
		t.pos++
		line, column := t.line, t.pos-t.start+1
		var child *yaml.Node
		switch {
		case t.ended() && t.indent > indent:
			child = t.block()
		case t.line > line || t.indent < 0:
			child = t.none(line, column)
		case t.dash() || t.key() > 0:
			t.indent = t.pos - t.start
			child = t.block()
		default:
			child = t.inline()
		}
		if child == nil || t.odd || t.indent > indent {
			return t.fail()
		}
		t.stack = append(t.stack, child)
	}
	return t.adopt(n, base)
}

func (t *tree) mapping(indent int) *yaml.Node {
	n, base := t.node(yaml.MappingNode, "!!map", ""), len(t.stack)
	for t.indent == indent {
		k := t.key()
		if k == 0 {
			return t.fail()
		}
		t.stack = append(t.stack, t.word(t.text[t.pos:t.pos+k]))
		t.pos += k + 1
		line, column := t.line, t.pos-t.start+1
		var child *yaml.Node
		switch {
		case !t.ended():
			child = t.inline()
		case t.indent > indent || t.indent == indent && t.dash(): // a list need not be indented
			child = t.block()
		default:
			child = t.none(line, column)
		}
		if child == nil || t.odd || t.indent > indent {
			return t.fail()
		}
		t.stack = append(t.stack, child)
	}
	return t.adopt(n, base)
}

// none is the value of what has none.
func (t *tree) none(line, column int) *yaml.Node {
	n := t.node(yaml.ScalarNode, "!!null", "")
	n.Line, n.Column = line, column
	return n
}

// word is text without quotes.
func (t *tree) word(s string) *yaml.Node {
	tag := "!!str" // or a number: who reads it knows what is wanted
	switch s {
	case "~", "null", "Null", "NULL":
		tag = "!!null"
	}
	return t.node(yaml.ScalarNode, tag, s)
}
