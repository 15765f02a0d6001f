package config

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shunt-net/shunt/internal/egress"
)

func same() cmp.Options {
	return cmp.Options{
		cmpopts.IgnoreFields(Config{}, "From"), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty(),
	}
}

func TestReferenceDecodesToTheDefaults(t *testing.T) {
	r := parse("reference.yaml", []byte(Reference()))
	r.check()
	if diff := cmp.Diff([]Complaint(nil), r.complaints); diff != "" {
		t.Errorf("complaints (-want +got):\n%s", diff)
	}
	got := r.cfg
	if len(got.Egress.Lanes) != 5 || len(got.Egress.Sources) != 5 {
		t.Errorf("want the example of five lanes and five sources, got %d and %d", len(got.Egress.Lanes), len(got.Egress.Sources))
	}
	if len(got.Edge.Services) != 3 || len(got.Edge.Replicas) != 3 || len(got.Edge.Parity) != 1 || len(got.Alerts.Targets) != 3 {
		t.Errorf("want the examples of three services, three replicas, one parity group and three targets, got %d, %d, %d and %d",
			len(got.Edge.Services), len(got.Edge.Replicas), len(got.Edge.Parity), len(got.Alerts.Targets))
	}
	got.Egress.Lanes, got.Egress.Sources = nil, nil
	got.Edge.Services, got.Edge.Replicas, got.Edge.Parity, got.Alerts.Targets = nil, nil, nil, nil
	if diff := cmp.Diff(Default(), got, same()); diff != "" {
		t.Errorf("values that are not the defaults (-default +reference):\n%s", diff)
	}
}

func TestReferenceDocumentsEveryKey(t *testing.T) {
	docs := comments()
	for _, k := range keys() {
		doc, there := docs[k.Path]
		switch {
		case !there:
			t.Errorf("%s is not in the reference file", k.Path)
		case len(strings.Fields(doc)) < 1:
			t.Errorf("%s has no comment", k.Path)
		}
		if formOf(k.typ) == formUnknown {
			t.Errorf("%s: type %s cannot be read", k.Path, k.typ)
		}
		if k.Env != "" && !strings.Contains(doc, "default") && !strings.Contains(doc, "Default") {
			t.Errorf("%s: the comment does not give the default: %s", k.Path, doc)
		}
	}
}

func TestReferenceExample(t *testing.T) {
	r := parse("reference.yaml", []byte(Reference()))
	l, ok := r.cfg.Egress.Lane("egress2")
	want := egress.Lane{
		Name: "egress2", FailMode: egress.FailDirect, Interface: "vpn2", Table: 202, Mark: 0x202, DSCP: []egress.DSCP{40},
		Driver: egress.DriverWireGuard, NAT: egress.NATMasquerade,
	}
	if diff := cmp.Diff(want, l); !ok || diff != "" {
		t.Errorf("lane egress2 (-want +got):\n%s", diff)
	}
}

// The comment of a key that has a default of its own kind says that very default.
func TestReferenceCommentsGiveTheRealDefault(t *testing.T) {
	for _, k := range Keys() {
		if k.Env == "" || k.Default == "" {
			continue
		}
		said := strings.NewReplacer(",", " ", ";", " ", "(", " ", ")", " ").Replace(k.Doc)
		said = " " + strings.ReplaceAll(said, ". ", " ") + " "
		if !strings.Contains(said, " "+k.Default+" ") && !strings.Contains(said, " "+k.Default+". ") &&
			!strings.HasSuffix(strings.TrimSpace(k.Doc), k.Default+".") && !sameDuration(said, k) {
			t.Errorf("%s: default %s is not in %q", k.Path, k.Default, k.Doc)
		}
	}
}

// sameDuration lets a comment say 180s or 120s where the value prints as 3m or 2m.
func sameDuration(said string, k Key) bool {
	if k.Type != "duration" {
		return false
	}
	want := at(reflect.ValueOf(Default()), k.Path).Interface()
	for _, w := range strings.Fields(strings.ReplaceAll(said, ". ", " ")) {
		v := reflect.New(k.typ).Elem()
		if setDuration(v, strings.TrimSuffix(w, ".")) == nil && v.Interface() == want {
			return true
		}
	}
	return false
}

func TestEveryFieldHasAKey(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(t reflect.Type)
	walk = func(typ reflect.Type) {
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if formOf(typ) != formMapping || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Tag.Get("yaml") == "" {
				t.Errorf("%s.%s has no yaml tag", typ, f.Name)
			}
			if f.Tag.Get("yaml") != "-" {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
}

func TestVariablesAreUnambiguous(t *testing.T) {
	seen := map[string]string{}
	for _, k := range keys() {
		if k.Env == "" {
			continue
		}
		if other := seen[k.Env]; other != "" {
			t.Errorf("%s sets %s and %s", k.Env, other, k.Path)
		}
		if reserved(k.Env) {
			t.Errorf("%s is read by something else", k.Env)
		}
		seen[k.Env] = k.Path
	}
	if got := seen["SHUNT_EGRESS_REPAIR_THRESHOLD"]; got != "egress.repair.threshold" {
		t.Errorf("SHUNT_EGRESS_REPAIR_THRESHOLD sets %q", got)
	}
}
