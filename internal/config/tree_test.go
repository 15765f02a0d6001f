package config

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// outline is what the reader looks at in a tree.
type outline struct {
	Kind         yaml.Kind
	Style        yaml.Style
	Value        string
	Null         bool
	Line, Column int
	Content      []outline
}

func outlineOf(n *yaml.Node) outline {
	o := outline{Kind: n.Kind, Style: n.Style, Value: n.Value, Null: n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null", Line: n.Line, Column: n.Column}
	for _, c := range n.Content {
		o.Content = append(o.Content, outlineOf(c))
	}
	return o
}

// sameTree compares the quick reader with the library where the quick one knows the file;
// knows says whether it does.
func sameTree(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, raw string,
) (knows bool) {
	t.Helper()
	got := plainTree([]byte(raw))
	if got == nil {
		return false
	}
	dec := yaml.NewDecoder(strings.NewReader(raw))
	var doc, next yaml.Node
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("the library says: %v\n%s", err, raw)
	}
	if diff := cmp.Diff(outlineOf(doc.Content[0]), outlineOf(got)); diff != "" {
		t.Fatalf("(-library +quick):\n%s\n%s", diff, raw)
	}
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one document: %v\n%s", err, raw)
	}
	return true
}

func TestQuickReaderKnowsUsualFiles(t *testing.T) {
	for name, file := range map[string]string{
		"the reference":           Reference(),
		"many services":           fleet(3),
		"block style":             "edge:\n    services:\n        - candidates:\n            - addresses:\n                - 10.77.0.11\n              name: a\n          name: s0\n          vip:\n            - 10.77.0.50\nstate_dir: /x\n",
		"a list not indented":     "a:\n- 1\n- b: 2\n  c:\n  - 3\n-\n  d: 4\n- - 5\n  - 6\ne: f\n",
		"words without values":    "a:\nb: ~\nc: # nothing\nd:\n  -\n  - # nothing\n  - null\n  - x\ne:",
		"brackets":                "a: [1, [x, y ] , {b: c, d: [ ]}, {}, 'q', \"r s\"] # end\nb: {c: {d: -i}, e: fd00::1, f: 10.0.0.1:443}\n",
		"quotes":                  "a: \"b # c\" # d\ne: 'f: g'\nh: \"\"\ni: ''\n",
		"text":                    "a: b c  d # e\nf: a#b\ng: https://x/y?z=1&[b]\nh: -1\ni: -x\n",
		"comments in other words": "# größe\na: 1 # größe\n  # größe\nb: 2\n",
	} {
		t.Run(name, func(t *testing.T) {
			if !sameTree(t, file) {
				t.Error("only the library reads it")
			}
		})
	}
}

// What only the library can judge is left to it.
func TestQuickReaderKnowsNothingElse(t *testing.T) {
	for name, file := range map[string]string{
		"nothing": "", "only a comment": "# a\n", "a document mark": "---\na: 1\n", "a second document": "a: 1\n---\nb: 2\n",
		"a directive": "%YAML 1.1\n---\na: 1\n", "a list": "- a\n", "a word": "a\n", "an anchor": "a: &b c\n", "an alias": "a: *b\n", "a tag": "a: !x b\n",
		"a block of text": "a: |\n  b\n", "text over lines": "a: b\n  c\n", "text on the next line": "a:\n  b\n", "brackets over lines": "a: [b,\n  c]\n",
		"a tab": "a:\tb\n", "CRLF": "a: b\r\n", "a BOM": "\ufeffa: b\n", "a question": "? a\n: b\n", "a key in quotes": "\"a\": b\n", "a merge": "<<: {a: b}\n",
		"an escape": "a: \"\\n\"\n", "a quote in quotes": "a: 'b''c'\n", "text after quotes": "a: 'b' c\n", "two colons": "a: b: c\n", "a colon at the end": "a: b:\n",
		"no colon": "a: 1\nb\n", "deeper than its list": "a:\n  - b\n    - c\n", "between two levels": "a:\n    b: 1\n  c: 2\n", "indented at the top": "  a: 1\n",
		"a comma too many": "a: [b, ]\n", "no comma": "a: [[b] [c]]\n", "two commas": "a: [b,, c]\n", "never closed": "a: [b\n", "closed twice": "a: [b]]\n",
		"a pair in a list": "a: [b: c]\n", "other letters": "a: größe\n", "a comment at once": "a: [b]#c\n", "a control character": "a: b\x01\n", "no UTF-8": "# \xff\na: b\n",
		"too deep": "a: " + strings.Repeat("[", 60) + strings.Repeat("]", 60) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			if plainTree([]byte(file)) != nil {
				t.Errorf("read %q", file)
			}
		})
	}
}

// drawBlock draws a mapping or a list whose lines begin at an indent.
func drawBlock(t *rapid.T, indent, depth int) []string {
	word := rapid.SampledFrom([]string{
		"a", "null", "~", "1.5", "-1", "-i", "a b", "a#b", "a,b", "fd00::1", "10.0.0.1:443", "https://x/?y=z", "'x: y'", "\"# x\"", "''", "[]", "{}",
		"[a, b ]", "[ a ,'b']", "[[a], {b: c}]", "{a: b}", "{a: [b, -c], d: {e: f}}", "yes", "\"a\\n\"", "&a b", "| ", "a: b", "ä", "[a: b]", "[a,]",
	})
	comment := rapid.SampledFrom([]string{"", "", "", " # c", "  # größe", " "})
	list := rapid.Bool().Draw(t, "list") && indent > 0
	var out []string
	for i := range rapid.IntRange(1, 3).Draw(t, "entries") {
		head := strings.Repeat(" ", indent) + "-"
		if !list {
			head = strings.Repeat(" ", indent) + string(rune('a'+i)) + rapid.SampledFrom([]string{":", ":", ".b-c/d:"}).Draw(t, "key")
		}
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		switch {
		case kind == 0:
			out = append(out, head+comment.Draw(t, "comment"))
		case kind < 4 || depth == 0:
			out = append(out, head+rapid.SampledFrom([]string{" ", "  "}).Draw(t, "gap")+word.Draw(t, "word")+comment.Draw(t, "comment"))
		case kind == 4 && list: // on the line of its dash
			inner := drawBlock(t, indent+2, depth-1)
			inner[0] = head + " " + strings.TrimLeft(inner[0], " ")
			out = append(out, inner...)
		default:
			out = append(out, head+comment.Draw(t, "comment"))
			out = append(out, drawBlock(t, indent+rapid.IntRange(0, 3).Draw(t, "deeper"), depth-1)...)
		}
		if rapid.IntRange(0, 5).Draw(t, "apart") == 0 {
			out = append(out, rapid.SampledFrom([]string{"", "  ", "# c", "      # c"}).Draw(t, "between"))
		}
	}
	return out
}

// Random files, many with a fault: whatever the quick reader takes is what the library reads.
func TestQuickReaderReadsWhatTheLibraryDoes(t *testing.T) {
	known := 0
	rapid.Check(t, func(t *rapid.T) {
		file := strings.Join(drawBlock(t, 0, 3), "\n") + rapid.SampledFrom([]string{"\n", "", "\n\n"}).Draw(t, "last")
		if rapid.Bool().Draw(t, "fault") {
			at := rapid.IntRange(0, len(file)).Draw(t, "at")
			skip := rapid.IntRange(0, min(2, len(file)-at)).Draw(t, "skip")
			put := rapid.SampledFrom([]string{"", " ", "-", ":", "#", "[", "]", "{", "}", "'", "\"", "\n", "\t", ",", "?", "&", "*", "!", "|", ">", "%", "@", "`", "---\n", "- ", ": ", " #", "x"}).Draw(t, "put")
			file = file[:at] + put + file[at+skip:]
		}
		if sameTree(t, file) {
			known++
		}
	})
	if known == 0 {
		t.Error("none of the files was read")
	}
	t.Logf("%d files were read", known)
}

func FuzzTree(f *testing.F) {
	for _, s := range []string{Reference(), fleet(2), "a:\n- b: [c, {d: 'e'}]\n", "a: # b\n  - - c\n", "a: -1 #\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) { sameTree(t, raw) })
}

func BenchmarkTreeOf1000Services(b *testing.B) {
	raw := []byte(fleet(1000))
	b.Run("quick", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if plainTree(raw) == nil {
				b.Fatal("only the library reads it")
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var doc yaml.Node
			if err := yaml.Unmarshal(raw, &doc); err != nil {
				b.Fatal(err)
			}
		}
	})
}
