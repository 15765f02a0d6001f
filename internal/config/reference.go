package config

import (
	_ "embed"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed reference.yaml
var reference string

// Reference is the file that documents every key, with every default.
func Reference() string { return reference }

// Keys lists every key with its type, its variable, its default and the reference
// file's comment.
func Keys() []Key {
	docs := comments()
	def := reflect.ValueOf(Default())
	out := keys()
	for i, k := range out {
		out[i].Doc = docs[k.Path]
		if k.Env != "" {
			out[i].Default = scalarText(at(def, k.Path))
		}
	}
	return out
}

// comments maps each key of the reference file to the comment above or behind it.
func comments() map[string]string {
	out := map[string]string{}
	var doc yaml.Node
	if yaml.Unmarshal([]byte(reference), &doc) != nil {
		return out // a test proves that it parses
	}
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		switch n.Kind {
		case yaml.SequenceNode:
			for _, c := range n.Content {
				walk(c, path+"[]")
			}
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				k, v := n.Content[i], n.Content[i+1]
				at := join(path, k.Value)
				if out[at] == "" {
					out[at] = commentText(k.HeadComment, k.LineComment, v.LineComment)
				}
				walk(v, at)
			}
		case yaml.DocumentNode, yaml.ScalarNode, yaml.AliasNode:
		}
	}
	walk(doc.Content[0], "")
	return out
}

// commentText joins comments to one line; what stands apart above a key is a heading.
func commentText(head string, rest ...string) string {
	if i := strings.LastIndex(head, "\n\n"); i >= 0 {
		head = head[i:]
	}
	var words []string
	for _, c := range append([]string{head}, rest...) {
		for line := range strings.Lines(c) {
			words = append(words, strings.Fields(strings.TrimLeft(strings.TrimSpace(line), "#"))...)
		}
	}
	return strings.Join(words, " ")
}
