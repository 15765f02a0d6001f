package state

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestJSON(t *testing.T) {
	type inner struct {
		Misses map[string]int `json:"misses"`
		Lent   []string       `json:"lent,omitempty"`
	}
	d := open(t, t.TempDir())
	got := inner{Lent: []string{"stale"}}
	must(t, d.ReadJSON("egress.json", &got))
	if diff := cmp.Diff(inner{}, got); diff != "" {
		t.Errorf("a file that never was (-want +got):\n%s", diff)
	}
	var v inner
	must(t, d.UpdateJSON(t.Context(), "egress.json", &v, func() error {
		v.Misses = map[string]int{"vpn2": 1, "vpn3": 2}
		return nil
	}))
	must(t, d.UpdateJSON(t.Context(), "egress.json", &v, func() error {
		delete(v.Misses, "vpn2")
		return nil
	}))
	v.Misses["stale"] = 9
	must(t, d.ReadJSON("egress.json", &v))
	if diff := cmp.Diff(inner{Misses: map[string]int{"vpn3": 2}}, v); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	before := read(t, d.Path("egress.json"))
	if err := d.UpdateJSON(t.Context(), "egress.json", &v, func() error { v.Misses = nil; return context.Canceled }); err == nil {
		t.Error("the error of change was lost")
	}
	if got := read(t, d.Path("egress.json")); got != before {
		t.Errorf("a failed change was written: %s", got)
	}
	for _, name := range []string{"", "../x", "a/b", ".x"} {
		if err := d.ReadJSON(name, &v); err == nil {
			t.Errorf("name %q was read", name)
		}
	}
	if err := d.ReadJSON("egress.json", v); err == nil {
		t.Error("read into something that is no pointer")
	}
}

func TestDamagedJSON(t *testing.T) {
	type doc struct {
		A int    `json:"a"`
		B string `json:"b"`
	}
	tests := map[string]struct {
		text string
		line int
		msg  string
	}{
		"truncated":       {"{\n  \"a\": 1,\n  \"b\": \"x", 3, "truncated"},
		"a comma":         {"{\n  \"a\": 1,\n}\n", 3, "invalid character"},
		"another type":    {"{\n  \"b\": \"y\",\n  \"a\": \"one\"\n}\n", 3, "cannot unmarshal"},
		"two documents":   {"{\"a\":5}\n{}\n", 2, "after top-level"},
		"byte order mark": {"\xef\xbb\xbf{\"a\":5}\n", 1, "byte order mark"},
		"empty file":      {"", 1, "empty file"},
		"NUL bytes":       {"{\"a\":5}\n\x00\x00", 2, "invalid character"},
		"only NUL bytes":  {strings.Repeat("\x00", 10), 1, "invalid character"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := open(t, t.TempDir())
			var v doc
			must(t, d.UpdateJSON(t.Context(), "egress.json", &v, func() error { v = doc{7, "good"}; return nil }))
			write(t, d.Path("egress.json"), tt.text)
			v = doc{}
			wantDamage(t, d.ReadJSON("egress.json", &v), d.Path("egress.json"), tt.line, tt.msg)
			if v != (doc{7, "good"}) {
				t.Errorf("got %+v, want the last good copy", v)
			}
			must(t, d.UpdateJSON(t.Context(), "egress.json", &v, func() error { v.A++; return nil }))
			wantAside(t, d.Path("egress.json"), tt.text)
			must(t, d.ReadJSON("egress.json", &v))
			if v != (doc{8, "good"}) {
				t.Errorf("after an update: %+v", v)
			}
			write(t, d.Path("egress.json"), tt.text)
			must(t, os.Remove(d.Path("last-good", "egress.json")))
			if err := d.ReadJSON("egress.json", &v); err == nil || v != (doc{}) {
				t.Errorf("with no copy: %+v, %v", v, err)
			}
		})
	}
}
