package config

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Paths of keys and places in the file are made when something is to be said of them: most
// files are sound, and some have ten thousand keys.

// step is one key or one entry of a list on the way to a value.
type step struct {
	key   string
	index int
	entry bool // index counts, and not key
}

// at is the path of the value that is being read: egress.lanes[1].table.
func (r *reader) at() string {
	var b strings.Builder
	for _, s := range r.steps {
		switch {
		case s.entry:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case b.Len() > 0:
			b.WriteString("." + s.key)
		default:
			b.WriteString(s.key)
		}
	}
	return b.String()
}

// origin is the place of a key, or that of the nearest mapping above it that is written.
func (r *reader) origin(path string) origin {
	for p := path; p != ""; {
		if o, ok := r.set[p]; ok {
			return o
		}
		if n := r.find(p); n != nil {
			return origin{file: r.file, line: n.Line, column: n.Column}
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return origin{file: r.file}
}

// find returns the node of a path; nil when the file does not have it.
func (r *reader) find(path string) *yaml.Node {
	n := r.root
	for path != "" && n != nil {
		if rest, ok := strings.CutPrefix(path, "["); ok {
			number, after, _ := strings.Cut(rest, "]")
			i, err := strconv.Atoi(number)
			if err != nil || n.Kind != yaml.SequenceNode || i >= len(n.Content) {
				return nil
			}
			n, path = n.Content[i], strings.TrimPrefix(after, ".")
			continue
		}
		key := path
		if i := strings.IndexAny(path, ".["); i >= 0 {
			key = path[:i]
		}
		path = strings.TrimPrefix(path[len(key):], ".")
		n = child(n, key)
	}
	return n
}

// child is the value of a key, of its first one where it is written twice.
func child(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
