package config

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// inline is a value that ends with its line.
func (t *tree) inline() *yaml.Node {
	n := t.value(false)
	if n == nil || t.odd || !t.ended() {
		return t.fail()
	}
	return n
}

// value is what stands here, in brackets (flow) or not.
func (t *tree) value(flow bool) *yaml.Node {
	switch t.at(0) {
	case '[', '{':
		return t.brackets()
	case '"', '\'':
		return t.quoted()
	}
	return t.plain(flow)
}

// quoted is text in quotes, without any escapes.
func (t *tree) quoted() *yaml.Node {
	quote := t.text[t.pos]
	for i := 1; ; i++ {
		switch c := t.at(i); {
		case c == '\n', c == '\\' && quote == '"', c >= 0x7f:
			return t.fail()
		case c == quote && quote == '\'' && t.at(i+1) == quote:
			return t.fail()
		case c == quote:
			n := t.node(yaml.ScalarNode, "!!str", t.text[t.pos+1:t.pos+i])
			n.Style = yaml.SingleQuotedStyle
			if quote == '"' {
				n.Style = yaml.DoubleQuotedStyle
			}
			t.pos += i + 1
			return n
		}
	}
}

// plain is text without quotes. It begins with a letter, a digit or what means nothing to
// YAML there.
func (t *tree) plain(flow bool) *yaml.Node {
	if c := t.at(0); strings.IndexByte("-?:,[]{}#&*!|>'\"%@`= \n", c) >= 0 && (c != '-' || !letter(t.at(1))) {
		return t.fail()
	}
	end := 0 // behind the last character that is no space
	for i := 0; ; i++ {
		c := t.at(i)
		switch {
		case c == '\n', !flow && c == '#' && t.at(i-1) == ' ', flow && (c == ',' || c == ']' || c == '}'):
			n := t.word(t.text[t.pos : t.pos+end])
			t.pos += end
			return n
		case c >= 0x7f, c == ':' && blank(t.at(i+1)):
			return t.fail()
		case flow && (c == '#' || c == '?' || c == '[' || c == '{' || c == ':' && strings.IndexByte(",[]{}", t.at(i+1)) >= 0):
			return t.fail()
		case c != ' ':
			end = i + 1
		}
	}
}

func letter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// brackets is a list or a mapping within one line.
func (t *tree) brackets() *yaml.Node {
	if !t.deeper() {
		return t.fail()
	}
	kind, tag, closing := yaml.SequenceNode, "!!seq", byte(']')
	if t.at(0) == '{' {
		kind, tag, closing = yaml.MappingNode, "!!map", '}'
	}
	n, base := t.node(kind, tag, ""), len(t.stack)
	n.Style = yaml.FlowStyle
	t.pos++
	t.spaces()
	for t.at(0) != closing {
		if kind == yaml.MappingNode {
			k := t.key()
			if k == 0 || t.at(k+1) != ' ' {
				return t.fail()
			}
			t.stack = append(t.stack, t.word(t.text[t.pos:t.pos+k]))
			t.pos += k + 1
			t.spaces()
		}
		child := t.value(true)
		if child == nil {
			return t.fail()
		}
		t.stack = append(t.stack, child)
		switch t.spaces(); {
		case t.at(0) == closing:
		case t.at(0) != ',':
			return t.fail()
		default:
			t.pos++
			if t.spaces(); t.at(0) == closing { // a comma too many
				return t.fail()
			}
		}
	}
	t.pos++
	return t.adopt(n, base)
}
