package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// outline writes what the reader asks of a tree: kinds, texts, nulls, quotes and places.
func outline(n *yaml.Node) string {
	var b strings.Builder
	var walk func(n *yaml.Node, depth int)
	walk = func(n *yaml.Node, depth int) {
		null := n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
		quoted := n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
		fmt.Fprintf(&b, "%s%d:%d kind %d %q null %v quoted %v tagged %v anchor %q\n",
			strings.Repeat(" ", depth), n.Line, n.Column, n.Kind, n.Value, null, quoted, n.Style&yaml.TaggedStyle != 0, n.Anchor)
		for _, c := range n.Content {
			walk(c, depth+1)
		}
	}
	walk(n, 0)
	return b.String()
}

// library reads the file's one document by the library.
func library(raw []byte) (*yaml.Node, error) {
	var doc, next yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("a second document: %w", err)
	}
	return doc.Content[0], nil
}

// agree says where the two readers differ; "" = quick took nothing, or they do not.
func agree(raw []byte) (taken bool, diff string) {
	got, ok := quick(raw)
	if !ok {
		return false, ""
	}
	want, err := library(raw)
	switch {
	case err != nil:
		return true, fmt.Sprintf("the library refuses it: %v", err)
	case outline(got) != outline(want):
		return true, fmt.Sprintf("library:\n%squick:\n%s", outline(want), outline(got))
	}
	return true, ""
}

// ascii replaces what quick leaves to the library, so that the rest is compared.
func ascii(s string) string {
	return strings.Map(func(c rune) rune {
		if c > 0x7e {
			return '.'
		}
		return c
	}, s)
}

func TestQuickReadsWhatTheLibraryReads(t *testing.T) {
	for name, tt := range map[string]struct {
		text  string
		taken bool
	}{
		"a fleet":                 {fleet(3), true},
		"the reference":           {ascii(Reference()), true},
		"a list below its key":    {lines("a:", "- b", "- c: d", "  e: f", "g: h"), true},
		"a list in a list":        {lines("a:", "  - - b", "    - c", "  - - d"), true},
		"comments":                {lines("# x", "a: b # y", "  # z", "c: # w", "  d: 'e # f'", "g: h#i"), true},
		"flow":                    {lines("a: [b, {c: d, e: [1, 2]}, []] # x", "f: {}", "g: [ h ,i ]"), true},
		"addresses":               {lines("a: [10.0.0.1, fd00::1, 10.0.0.0/8]", "b: fd00::1", "c: https://x/y?z=1", "d: -150", "e: 0x201"), true},
		"a name that is a number": {lines("a: 1.5", "1: b", "true: c"), true},
		"no end of line":          {"a:\n  b: c", true},
		"nothing":                 {"", false},
		"a scalar":                {"a", false},
		"no value":                {lines("a:", "b: c"), false},
		"a null":                  {"a: null\n", false},
		"a text of two lines":     {lines("a: b", "  c", "d: e"), false},
		"a quote of two lines":    {lines(`a: "b`, `  c"`), false},
		"a flow of two lines":     {lines("a: [b,", "  c]"), false},
		"an escape":               {lines(`a: "b\n"`), false},
		"a doubled quote":         {lines("a: 'it''s'"), false},
		"a block of text":         {lines("a: |", "  b"), false},
		"an anchor":               {lines("a: &b c", "d: *b"), false},
		"a tag":                   {"a: !!str b\n", false},
		"a mapping on a line":     {"a: b: c\n", false},
		"two documents":           {lines("a: b", "---", "c: d"), false},
		"a quoted key":            {`"a": b` + "\n", false},
		"a step back too far":     {lines("a:", "    b: c", "  d: e"), false},
		"a step in":               {lines("a: b", "  c: d"), false},
		"tabs":                    {"a:\tb\n", false},
		"CRLF":                    {"a: b\r\n", false},
		"deep":                    {"a: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "\n", false},
		"a comma too many":        {"a: [b, ]\n", false},
		"text behind a list":      {"a: [b] c\n", false},
		"a pair in a list":        {"a: [b: c]\n", false},
		"an entry with a dash":    {"a: [- b]\n", false},
	} {
		taken, diff := agree([]byte(tt.text))
		if taken != tt.taken || diff != "" {
			t.Errorf("%s: taken %v, want %v\n%s", name, taken, tt.taken, diff)
		}
	}
}

// Lines of the words that YAML is made of, mostly at steps of two.
func TestQuickAgreesOnAnyLines(t *testing.T) {
	words := []string{
		"a: b", "a:", "- a", "- a: b", "-", "- - a", "a: [b, c]", "a: {b: c}", "- {a: b, c: [d]}", "# x", "a: b # x", "a: 'b'", `- "b"`, "a: 10.0.0.1:80",
		"b: [fd00::1]", "a", "a: -1", "a: - b", "a: b:c", "a:b", "'a': b", "a: {b}", "a: [b", "c]", "a: 1s", "", "...", "a: ~", "a: [a b, c#d, e #f]",
	}
	seen := 0
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		indent := 0
		for range rapid.IntRange(1, 9).Draw(t, "lines") {
			b.WriteString(strings.Repeat(" ", indent) + rapid.SampledFrom(words).Draw(t, "line") + "\n")
			indent = max(0, indent+rapid.SampledFrom([]int{-4, -2, -1, 0, 0, 0, 0, 1, 2, 2, 4}).Draw(t, "step"))
		}
		taken, diff := agree([]byte(b.String()))
		if taken {
			seen++
		}
		if diff != "" {
			t.Fatalf("%s\n%s", b.String(), diff)
		}
	})
	if seen == 0 {
		t.Error("quick took nothing")
	}
}

func FuzzQuick(f *testing.F) {
	f.Add([]byte(ascii(Reference())))
	f.Add([]byte(fleet(1)))
	for _, s := range []string{"a: b", "a:\n- b\n- c: d\n  e: f\n", "a: [b, {c: d}] # x\n", "a: 'b' # c\n", "- a", "a: b\n c", "a: [b:c]", "a: b #c", "a-: b", "a: .5", "a: +x: y", "k: [a?, b]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, diff := agree(raw); diff != "" {
			t.Errorf("%q\n%s", raw, diff)
		}
	})
}
