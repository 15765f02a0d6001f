package config

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A library of all of YAML takes most of the time that a file of a thousand services needs.
// quick reads what such files are written in, line by line: plain ASCII, block mappings and
// lists, scalars and flow collections that end on their line. Whatever else a file has, it
// gives up and leaves the whole file to the library; a fuzz test holds that what it takes is
// what the library makes of it.

// maxDepth bounds nested collections.
const maxDepth = 32

// quickLine is a line that has more than a comment.
type quickLine struct {
	no     int    // from 1
	indent int    // spaces before text; after "- " those are counted too
	text   string // without comment lines; ends without spaces
}

type quickReader struct {
	lines []quickLine
	next  int
	nodes []yaml.Node  // nodes that are made at once
	refs  []*yaml.Node // room for contents
	open  []*yaml.Node // contents of the collections that are being read
	depth int
	odd   bool // something is left to the library
}

// quick returns the file's mapping as the library would read it; false = ask the library.
func quick(raw []byte) (*yaml.Node, bool) {
	q := &quickReader{}
	if !q.split(raw) || len(q.lines) == 0 || q.lines[0].indent != 0 {
		return nil, false
	}
	root := q.block(0)
	if q.odd || q.next < len(q.lines) || root.Kind != yaml.MappingNode {
		return nil, false
	}
	return root, true
}

// split makes lines of the text.
func (q *quickReader) split(raw []byte) bool {
	for _, c := range raw {
		if c >= 0x7f || c < ' ' && c != '\n' {
			return false
		}
	}
	q.lines = make([]quickLine, 0, bytes.Count(raw, []byte("\n"))+1)
	no := 0
	for line := range strings.SplitSeq(string(raw), "\n") {
		no++
		line = strings.TrimRight(line, " ")
		text := strings.TrimLeft(line, " ")
		if text == "" || text[0] == '#' {
			continue
		}
		indent := len(line) - len(text)
		if indent == 0 && (text[0] == '%' || strings.HasPrefix(text, "---") || strings.HasPrefix(text, "...")) {
			return false // directives and documents
		}
		q.lines = append(q.lines, quickLine{no, indent, text})
	}
	return true
}

func (q *quickReader) node(kind yaml.Kind, line, column int) *yaml.Node {
	if len(q.nodes) == 0 {
		q.nodes = make([]yaml.Node, 512)
	}
	n := &q.nodes[0]
	q.nodes = q.nodes[1:]
	n.Kind, n.Line, n.Column = kind, line, column
	return n
}

// take gives n what was opened since from.
func (q *quickReader) take(n *yaml.Node, from int) {
	size := len(q.open) - from
	if len(q.refs) < size {
		q.refs = make([]*yaml.Node, max(1024, size))
	}
	n.Content = q.refs[:size:size]
	q.refs = q.refs[size:]
	copy(n.Content, q.open[from:])
	q.open = q.open[:from]
}

// leave hands the file to the library.
func (q *quickReader) leave() *yaml.Node {
	q.odd = true
	return &yaml.Node{}
}

// block reads the collection whose entries begin in column indent.
func (q *quickReader) block(indent int) *yaml.Node {
	if q.depth++; q.depth > maxDepth {
		return q.leave()
	}
	defer func() { q.depth-- }()
	if isEntry(q.lines[q.next].text) {
		return q.list(indent)
	}
	return q.mapping(indent)
}

func isEntry(text string) bool {
	return text[0] == '-' && (len(text) == 1 || text[1] == ' ')
}

func (q *quickReader) list(indent int) *yaml.Node {
	n := q.node(yaml.SequenceNode, q.lines[q.next].no, indent+1)
	from := len(q.open)
	for q.next < len(q.lines) && !q.odd {
		l := &q.lines[q.next]
		if l.indent != indent || !isEntry(l.text) {
			break
		}
		rest := strings.TrimLeft(l.text[1:], " ")
		if rest == "" || rest[0] == '#' {
			q.next++
			q.open = append(q.open, q.below(indent+1))
			continue
		}
		column := indent + len(l.text) - len(rest)
		if _, _, ok := cutKey(rest); ok || isEntry(rest) {
			l.indent, l.text = column, rest
			q.open = append(q.open, q.block(column))
			continue
		}
		q.open = append(q.open, q.value(rest, l.no, column, indent))
	}
	q.take(n, from)
	return n
}

func (q *quickReader) mapping(indent int) *yaml.Node {
	n := q.node(yaml.MappingNode, q.lines[q.next].no, indent+1)
	from := len(q.open)
	for q.next < len(q.lines) && !q.odd {
		l := q.lines[q.next]
		if l.indent != indent || isEntry(l.text) {
			break
		}
		key, rest, ok := cutKey(l.text)
		if !ok {
			return q.leave()
		}
		k := q.node(yaml.ScalarNode, l.no, indent+1)
		k.Value = key
		q.open = append(q.open, k)
		if rest != "" && rest[0] != '#' {
			q.open = append(q.open, q.value(rest, l.no, indent+len(l.text)-len(rest), indent))
			continue
		}
		q.next++
		least := indent + 1
		if q.next < len(q.lines) && isEntry(q.lines[q.next].text) {
			least = indent // a list may stand right below its key
		}
		q.open = append(q.open, q.below(least))
	}
	q.take(n, from)
	return n
}

// below reads what stands on the lines after a key or a dash; nothing at all is left to the
// library.
func (q *quickReader) below(least int) *yaml.Node {
	if q.next >= len(q.lines) || q.lines[q.next].indent < least {
		return q.leave()
	}
	return q.block(q.lines[q.next].indent)
}

// value reads what begins and ends on one line; parent is the indent of what it belongs to.
func (q *quickReader) value(text string, line, column, parent int) *yaml.Node {
	q.next++
	if q.next < len(q.lines) && q.lines[q.next].indent > parent {
		return q.leave() // goes on there
	}
	f := flow{q: q, text: text, line: line, column: column}
	n := f.value(false)
	if rest := f.text[f.at:]; rest != "" && (rest[0] != ' ' || strings.TrimLeft(rest, " ")[0] != '#') {
		return q.leave()
	}
	return n
}

// cutKey cuts a plain key and its colon off.
func cutKey(text string) (key, rest string, ok bool) {
	i := 0
	for i < len(text) && isWord(text[i]) {
		i++
	}
	if i == 0 || i > 100 || i == len(text) || text[i] != ':' || text[0] == '-' {
		return "", "", false
	}
	rest = text[i+1:]
	if rest != "" && rest[0] != ' ' {
		return "", "", false
	}
	return text[:i], strings.TrimLeft(rest, " "), true
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}
