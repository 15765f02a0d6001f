package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parse reads the file's bytes over the defaults.
func parse(file string, raw []byte) *reader {
	r := newReader(file)
	tabs := r.tabs(raw)
	if i := bytes.IndexByte(raw, 0); i >= 0 {
		r.add(Complaint{File: file, Line: 1 + bytes.Count(raw[:i], []byte("\n")), Column: 1, Msg: "holds a NUL byte: this is not a text file"})
		r.unread = true
		return r
	}
	if r.root = plainTree(raw); r.root != nil {
		r.value(r.root, reflect.ValueOf(&r.cfg).Elem())
		return r
	}
	var doc, next yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return r // nothing but comments: the defaults
	case err != nil:
		r.unread = true
		if !tabs { // a tab is the reason, and is said already
			r.syntax(raw, err)
		}
		return r
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		return r
	}
	if root.Kind != yaml.MappingNode {
		r.unread = true
		r.node(root, "", kindName(root)+" where the file's mapping is wanted", "the keys at the top are "+keyList(reflect.TypeFor[Config]()))
		return r
	}
	r.root = root
	r.value(root, reflect.ValueOf(&r.cfg).Elem())
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		r.second(raw, &next, err)
	}
	return r
}

// tabs complains about each line that is indented with a tab, and says whether it did.
func (r *reader) tabs(raw []byte) bool {
	found := false
	if bytes.IndexByte(raw, '\t') < 0 {
		return false
	}
	for i, line := range strings.Split(string(raw), "\n") {
		body := strings.TrimLeft(line, " \t")
		indent := line[:len(line)-len(body)]
		at := strings.IndexByte(indent, '\t')
		if at < 0 || body == "" || body == "\r" || body[0] == '#' {
			continue
		}
		found = true
		r.add(Complaint{File: r.file, Line: i + 1, Column: at + 1, Msg: "indented with a tab", Hint: "YAML takes spaces only: two for each step"})
	}
	return found
}

// broken finds the line that the library stumbled over: what it names is often where the
// mapping around it began. The file is sound up to the line before.
func (r *reader) broken(c *Complaint, raw []byte, msg string) {
	lines := bytes.SplitAfter(raw, []byte("\n"))
	fails := func(n int) bool {
		var doc yaml.Node
		err := yaml.Unmarshal(bytes.Join(lines[:n], nil), &doc)
		return err != nil && strings.HasSuffix(err.Error(), ": "+msg)
	}
	n := sort.Search(len(lines), func(i int) bool { return fails(i + 1) }) // none fails: the file as a whole does
	if n < c.Line || n >= len(lines) {
		return
	}
	body := bytes.TrimLeft(lines[n], " ")
	if len(bytes.TrimSpace(body)) > 0 {
		c.Line, c.Column = n+1, len(lines[n])-len(body)+1
	}
}

// second complains about whatever follows the first document.
func (r *reader) second(raw []byte, next *yaml.Node, err error) {
	if err != nil {
		r.syntax(raw, err)
		return
	}
	r.node(next, "", "the file holds more than one document", "keep what is before the second ---")
}

// syntax turns an error of the YAML library into a complaint.
func (r *reader) syntax(raw []byte, err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	c := Complaint{File: r.file, Hint: "look at the indentation, at colons and at quotes in that line and the one before"}
	if m := regexp.MustCompile(`^line (\d+): (?s)(.*)$`).FindStringSubmatch(msg); m != nil {
		c.Line, _ = strconv.Atoi(m[1])
		c.Column = 1
		msg = m[2]
		r.broken(&c, raw, msg)
	} else if m := regexp.MustCompile(`^unknown anchor '(.*)' referenced$`).FindStringSubmatch(msg); m != nil {
		if i := bytes.Index(raw, []byte("*"+m[1])); i >= 0 {
			c.Line, c.Column = 1+bytes.Count(raw[:i], []byte("\n")), i-bytes.LastIndexByte(raw[:i], '\n')
		}
		c.Hint = "aliases are not supported: write the value out, and put text that begins with * in quotes"
	}
	c.Msg = fmt.Sprintf("not valid YAML: %s", strings.ReplaceAll(msg, "\n", " "))
	r.add(c)
}
