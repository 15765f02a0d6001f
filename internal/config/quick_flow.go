package config

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// flow reads what stands on one line: scalars, [lists] and {mappings}.
type flow struct {
	q      *quickReader
	text   string
	at     int // in text
	line   int
	column int // of text, from 0
}

func (f *flow) skip() {
	for f.at < len(f.text) && f.text[f.at] == ' ' {
		f.at++
	}
}

// is takes the byte c, if it is next.
func (f *flow) is(c byte) bool {
	if f.at < len(f.text) && f.text[f.at] == c {
		f.at++
		return true
	}
	return false
}

// value reads one value; inside says that it stands in a list or mapping.
func (f *flow) value(inside bool) *yaml.Node {
	if f.at >= len(f.text) || f.q.odd {
		return f.q.leave()
	}
	start := f.at
	switch f.text[f.at] {
	case '[', '{':
		return f.collection(f.text[f.at])
	case '"', '\'':
		return f.quoted(f.text[f.at])
	}
	end := f.plain(inside)
	text := strings.TrimRight(f.text[start:end], " ")
	if text == "" || isNull(text) {
		return f.q.leave()
	}
	f.at = start + len(text)
	n := f.q.node(yaml.ScalarNode, f.line, f.column+start+1)
	n.Value, n.Tag = text, "!!str"
	return n
}

// plain is where the plain scalar that begins here ends; 0 = leave it.
func (f *flow) plain(inside bool) int {
	c := f.text[f.at]
	if !isWord(c) && c != '/' && c != '.' && c != '+' || c == '-' && (f.at+1 == len(f.text) || !isWord(f.text[f.at+1])) {
		return f.at
	}
	i := f.at
	for ; i < len(f.text); i++ {
		switch c := f.text[i]; c {
		case '#':
			if f.text[i-1] == ' ' {
				return i
			}
		case ':':
			if i+1 == len(f.text) || f.text[i+1] != ':' && !isWord(f.text[i+1]) && f.text[i+1] != '/' {
				if inside {
					return i
				}
				return f.at
			}
		case ',', '[', ']', '{', '}', '?':
			if inside {
				return i
			}
		}
	}
	return i
}

func isNull(text string) bool {
	switch text {
	case "null", "Null", "NULL":
		return true
	}
	return false
}

// quoted reads a text in quotes that has no escape.
func (f *flow) quoted(mark byte) *yaml.Node {
	start := f.at
	end := strings.IndexByte(f.text[start+1:], mark)
	if end < 0 {
		return f.q.leave()
	}
	text := f.text[start+1 : start+1+end]
	f.at = start + end + 2
	if mark == '"' && strings.Contains(text, `\`) || f.at < len(f.text) && f.text[f.at] == mark {
		return f.q.leave()
	}
	n := f.q.node(yaml.ScalarNode, f.line, f.column+start+1)
	n.Value, n.Tag, n.Style = text, "!!str", yaml.DoubleQuotedStyle
	if mark == '\'' {
		n.Style = yaml.SingleQuotedStyle
	}
	return n
}

// collection reads a list or a mapping with plain keys.
func (f *flow) collection(open byte) *yaml.Node {
	q := f.q
	if q.depth++; q.depth > maxDepth {
		return q.leave()
	}
	defer func() { q.depth-- }()
	kind, end := yaml.SequenceNode, byte(']')
	if open == '{' {
		kind, end = yaml.MappingNode, '}'
	}
	n := q.node(kind, f.line, f.column+f.at+1)
	n.Style = yaml.FlowStyle
	f.at++
	from := len(q.open)
	for first := true; !q.odd; first = false {
		f.skip()
		if f.is(end) {
			if !first { // a comma too many
				q.leave()
			}
			break
		}
		if kind == yaml.MappingNode {
			q.open = append(q.open, f.key())
			f.skip()
		}
		q.open = append(q.open, f.value(true))
		f.skip()
		if f.is(end) {
			break
		}
		if !f.is(',') {
			return q.leave()
		}
	}
	q.take(n, from)
	return n
}

// key reads a plain key and its colon.
func (f *flow) key() *yaml.Node {
	key, _, ok := cutKey(f.text[f.at:])
	if !ok {
		return f.q.leave()
	}
	n := f.q.node(yaml.ScalarNode, f.line, f.column+f.at+1)
	n.Value = key
	f.at += len(key) + 1
	return n
}
