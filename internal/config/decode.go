package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxComplaints bounds what is said about one file: the rest are counted.
const maxComplaints = 100

// origin is where a value came from.
type origin struct {
	file         string
	line, column int
	source       string // a flag or a variable, instead of a file
}

// reader collects a configuration, where its values came from, and what is wrong.
type reader struct {
	file       string
	cfg        Config
	root       *yaml.Node        // the file's mapping; nil = nothing was read
	set        map[string]origin // key path -> flag or variable that set it
	steps      []step            // where in the file value stands
	shapes     map[reflect.Type]*shape
	bad        map[string]bool // key paths that have a complaint already
	complaints []Complaint
	more       int  // complaints beyond maxComplaints
	unread     bool // the file is no YAML: what it does not say is not judged
}

func newReader(file string) *reader {
	return &reader{file: file, cfg: Default(), set: map[string]origin{}, shapes: map[reflect.Type]*shape{}, bad: map[string]bool{}}
}

func (r *reader) add(c Complaint) {
	if len(r.complaints) >= maxComplaints {
		r.more++
		return
	}
	r.complaints = append(r.complaints, c)
}

// node complains about a place in the file.
func (r *reader) node(n *yaml.Node, path, msg, hint string) {
	r.bad[path] = true
	r.add(Complaint{
		File: r.file, Line: n.Line, Column: n.Column, Section: sectionOf(path), Key: path, Msg: msg, Hint: hint,
	})
}

// complain reports a fault of a value, wherever it came from. One complaint per key is
// enough: a value that could not be read is not judged as well.
func (r *reader) complain(path, msg, hint string) { r.judge(path, msg, hint, false) }

func (r *reader) warn(path, msg, hint string) { r.judge(path, msg, hint, true) }

func (r *reader) judge(path, msg, hint string, warning bool) {
	if r.bad[path] {
		return
	}
	r.bad[path] = true
	o := r.origin(path)
	r.add(Complaint{
		File: o.file, Line: o.line, Column: o.column, Source: o.source,
		Section: sectionOf(path), Key: path, Msg: msg, Hint: hint, Warning: warning,
	})
}

// value reads a node into dst, which keeps what could not be read.
func (r *reader) value(n *yaml.Node, dst reflect.Value) {
	if r.foreign(n) {
		return
	}
	null := n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
	switch s := r.shape(dst.Type()); s.form {
	case formMapping:
		if null { // every key below it is a comment
			return
		}
		if n.Kind == yaml.ScalarNode && s.short != nil {
			if f := s.short(dst, n.Value); f != nil {
				r.node(n, r.at(), f.msg, f.hint)
			}
			return
		}
		if n.Kind != yaml.MappingNode {
			r.node(n, r.at(), kindName(n)+" where a mapping is wanted", mappingHint(n, dst.Type()))
			return
		}
		r.mapping(n, dst, s)
	case formList:
		if null {
			return
		}
		if n.Kind != yaml.SequenceNode {
			r.node(n, r.at(), kindName(n)+" where a list is wanted", listHint(n))
			return
		}
		r.list(n, dst)
	case formScalar, formUnknown:
		r.scalar(n, dst, null)
	}
}

// foreign reports YAML features that a configuration does not need and that hide or
// multiply content.
func (r *reader) foreign(n *yaml.Node) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		r.node(n, r.at(), fmt.Sprintf("alias %s is not supported", quote("*"+n.Value)), "write the value out")
	case n.Anchor != "":
		r.node(n, r.at(), fmt.Sprintf("anchor %s is not supported", quote("&"+n.Anchor)), "write each value out where it is used")
	case n.Style&yaml.TaggedStyle != 0:
		r.node(n, r.at(), fmt.Sprintf("tag %s is not supported", quote(n.Tag)), "write the value without a tag")
	default:
		return false
	}
	return true
}

func (r *reader) mapping(n *yaml.Node, dst reflect.Value, s *shape) {
	seen := make([]int, len(s.fields)) // line of each known key; 0 = not yet
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.Anchor != "" {
			r.node(k, join(r.at(), "?"), "a key must be a plain word", "")
			continue
		}
		j := s.index(k.Value)
		if j < 0 {
			r.unknown(n, i, dst.Type())
			continue
		}
		if seen[j] > 0 {
			r.twice(k, join(r.at(), k.Value), seen[j])
			continue
		}
		seen[j] = k.Line
		into := dst.Field(s.fields[j].index)
		if into.IsZero() {
			into.Set(prototype(into.Type()))
		}
		r.steps = append(r.steps, step{key: k.Value})
		r.value(v, into)
		r.steps = r.steps[:len(r.steps)-1]
	}
}

// unknown complains about the key at i of a mapping of type t.
func (r *reader) unknown(n *yaml.Node, i int, t reflect.Type) {
	if r.more > 0 { // enough is said: a file of nothing but such keys takes no longer
		r.more++
		return
	}
	k := n.Content[i]
	path := join(r.at(), cleanKey(k.Value))
	if line := firstLine(n.Content[:i], k.Value); line > 0 {
		r.twice(k, path, line)
		return
	}
	r.node(k, path, "unknown key", keyHint(k.Value, r.at(), t))
}

func (r *reader) twice(k *yaml.Node, path string, line int) {
	r.node(k, path, fmt.Sprintf("key is written twice, first in line %d", line), "keep one of them")
}

// firstLine is the line of a key among keys and values; 0 = it is not there.
func firstLine(content []*yaml.Node, key string) int {
	for i := 0; i+1 < len(content); i += 2 {
		if content[i].Kind == yaml.ScalarNode && content[i].Value == key {
			return content[i].Line
		}
	}
	return 0
}

func (r *reader) list(n *yaml.Node, dst reflect.Value) {
	out := reflect.MakeSlice(dst.Type(), len(n.Content), len(n.Content))
	for i, c := range n.Content {
		out.Index(i).Set(prototype(dst.Type().Elem()))
		r.steps = append(r.steps, step{index: i, entry: true})
		r.value(c, out.Index(i))
		r.steps = r.steps[:len(r.steps)-1]
	}
	if len(n.Content) == 0 { // an empty list and none are the same thing
		out = reflect.Zero(dst.Type())
	}
	dst.Set(out)
}

func (r *reader) scalar(n *yaml.Node, dst reflect.Value, null bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		r.node(n, r.at(), fmt.Sprintf("%s where one value is wanted (%s)", kindName(n), typeName(dst.Type())), "")
		return
	case null:
		hint := "write a value, or remove the key to have its default"
		if dst.Kind() == reflect.String && words(dst.Type()) == nil {
			hint = `write "" for an empty text, or remove the key to have its default`
		}
		r.node(n, r.at(), "has no value", hint)
		return
	}
	quoted := n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	if quoted && typeName(dst.Type()) != "duration" {
		switch dst.Kind() { //nolint:exhaustive // only these are not text in YAML
		case reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
			r.node(n, r.at(), fmt.Sprintf("text where a value is wanted (%s)", typeName(dst.Type())), "write it without quotes")
			return
		}
	}
	if f := setScalar(dst, n.Value); f != nil {
		r.node(n, r.at(), f.msg, f.hint)
	}
}

// cleanKey makes any key printable on one line.
func cleanKey(k string) string {
	q := quote(k)
	if q[1:len(q)-1] == k && !strings.ContainsAny(k, " .:[]") {
		return k
	}
	return q
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode, yaml.DocumentNode, yaml.AliasNode:
	}
	return "one value"
}

func mappingHint(n *yaml.Node, t reflect.Type) string {
	if key, value, ok := strings.Cut(n.Value, " "); ok && n.Kind == yaml.ScalarNode && len(n.Value) < 60 {
		if slices.ContainsFunc(fields(t), func(f field) bool { return f.key == key }) {
			return fmt.Sprintf("a colon is missing: write %s: %s", key, value)
		}
	}
	return "write the keys below it, each with its value: " + keyList(t)
}

func listHint(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && len(n.Value) < 60 {
		return fmt.Sprintf("write [%s], or one entry per line, each after a dash", n.Value)
	}
	return "write one entry per line, each after a dash"
}

func keyList(t reflect.Type) string {
	var names []string
	for _, f := range fields(t) {
		names = append(names, f.key)
	}
	return strings.Join(names, ", ")
}

// keyHint says which key was meant: one beside it, else one of that name elsewhere.
func keyHint(key, path string, t reflect.Type) string {
	var names []string
	for _, f := range fields(t) {
		names = append(names, f.key)
	}
	if key == "<<" {
		return "merge keys are not supported: write the keys out"
	}
	if n := Nearest(key, names); n != "" {
		return fmt.Sprintf("did you mean %q?", n)
	}
	other := ""
	for _, k := range keys() {
		if strings.HasSuffix(k.Path, "."+key) && (other == "" || sectionOf(other) != sectionOf(path) && sectionOf(k.Path) == sectionOf(path)) {
			other = k.Path // the section's own before that of others
		}
	}
	if other != "" {
		return fmt.Sprintf("there is %s; here the keys are %s", other, strings.Join(names, ", "))
	}
	where := "here"
	if path == "" {
		where = "at the top"
	}
	return fmt.Sprintf("the keys %s are %s", where, strings.Join(names, ", "))
}
