package config

import (
	"encoding"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// field is one key of a mapping.
type field struct {
	key    string
	index  int
	typ    reflect.Type
	brief  bool // left out of what is shown while it has no value
	secret bool // an address that is a secret as a whole
}

// shape is what the reader asks of a type again and again.
type shape struct {
	form   form
	fields []field                                     // of a mapping
	short  func(dst reflect.Value, text string) *fault // a mapping's form in one word; nil = it has none
}

// shape looks a type up.
func (r *reader) shape(t reflect.Type) *shape {
	s := r.shapes[t]
	if s == nil {
		s = &shape{form: formOf(t), short: shortForm(t)}
		if s.form == formMapping {
			s.fields = fields(t)
		}
		r.shapes[t] = s
	}
	return s
}

// index is the field of a key; -1 = there is none.
func (s *shape) index(key string) int {
	for i := range s.fields {
		if s.fields[i].key == key {
			return i
		}
	}
	return -1
}

// fields lists the keys of a struct in the order of the file.
func fields(t reflect.Type) []field {
	out := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		name, option, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			secret := t == reflect.TypeFor[edge.AlertTarget]() && name == "url"
			out = append(out, field{key: name, index: i, typ: t.Field(i).Type, brief: option == "omitempty", secret: secret})
		}
	}
	return out
}

// form is how a type is written.
type form int

const (
	formUnknown form = iota
	formScalar
	formList
	formMapping
)

func formOf(t reflect.Type) form {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return formScalar
	}
	switch t.Kind() { //nolint:exhaustive // the rest is scalar or unsupported
	case reflect.Struct:
		return formMapping
	case reflect.Slice:
		return formList
	case reflect.String, reflect.Bool, reflect.Float64, reflect.Int, reflect.Int64:
		return formScalar
	}
	return formUnknown
}

// Key is one key of the file. Keys inside a list are written with [], as in
// egress.lanes[].table.
type Key struct {
	Path    string `json:"path"`
	Type    string `json:"type"`          // text, integer, duration, list of addresses …
	Env     string `json:"env,omitempty"` // variable that sets it; "" = only the file can
	Default string `json:"default,omitempty"`
	Doc     string `json:"doc,omitempty"` // the reference file's comment

	typ reflect.Type
}

// keys lists every key in the order of the file.
func keys() []Key {
	var out []Key
	var walk func(t reflect.Type, path string, settable bool)
	walk = func(t reflect.Type, path string, settable bool) {
		for _, f := range fields(t) {
			k := Key{Path: join(path, f.key), Type: typeName(f.typ), typ: f.typ}
			switch formOf(f.typ) {
			case formScalar:
				if settable {
					k.Env = envName(k.Path)
				}
				out = append(out, k)
			case formMapping:
				out = append(out, k)
				walk(f.typ, k.Path, settable)
			case formList:
				out = append(out, k)
				if formOf(f.typ.Elem()) == formMapping {
					walk(f.typ.Elem(), k.Path+"[]", false)
				}
			case formUnknown:
				out = append(out, k)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", true)
	return out
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// envName is the variable of a key: egress.repair.threshold -> SHUNT_EGRESS_REPAIR_THRESHOLD.
func envName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// typeName says in a user's words what a key takes.
func typeName(t reflect.Type) string {
	if t == reflect.TypeFor[time.Duration]() {
		return "duration"
	}
	if w := words(t); w != nil {
		return strings.Join(w, " | ")
	}
	switch formOf(t) {
	case formMapping:
		return "mapping"
	case formList:
		return "list of " + typeName(t.Elem())
	case formScalar, formUnknown:
	}
	switch t.Kind() { //nolint:exhaustive // the rest is named by its type
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true | false"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Float64:
		return "number"
	}
	return strings.ToLower(t.Name()) // addr, addrport, prefix, mark, dscp
}

// at returns the value of a path without list indices.
func at(v reflect.Value, path string) reflect.Value {
	for part := range strings.SplitSeq(path, ".") {
		fs := fields(v.Type())
		i := slices.IndexFunc(fs, func(f field) bool { return f.key == part })
		v = v.Field(fs[i].index)
	}
	return v
}
