package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

const envPrefix = "SHUNT_"

// override lays the environment and the flags over the file: flags > environment > file.
// Every key with one value can be set; lists belong to the file.
func (r *reader) override(o Options) {
	v := viper.New()
	sources := map[string][2]string{} // key -> what sets it: variable, flag
	all := keys()
	find := func(ok func(Key) bool) *Key {
		if i := slices.IndexFunc(all, ok); i >= 0 {
			return &all[i]
		}
		return nil
	}
	for _, kv := range o.Env {
		name, text, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) || text == "" || reserved(name) { // empty is the same as not set
			continue
		}
		if k := find(func(k Key) bool { return k.Env == name }); k != nil {
			v.SetDefault(k.Path, text)
			sources[k.Path] = [2]string{"$" + name, sources[k.Path][1]}
			continue
		}
		r.strayVariable(name, all)
	}
	set := func(flag, path, text string) {
		path = strings.ToLower(strings.TrimSpace(path))
		if k := find(func(k Key) bool { return k.Path == path }); k == nil || k.Env == "" {
			r.add(strayFlag(flag, path, k, all))
			return
		}
		v.Set(path, text)
		sources[path] = [2]string{sources[path][0], flag}
	}
	for _, s := range o.Set {
		path, text, ok := strings.Cut(s, "=")
		if !ok {
			r.add(Complaint{Source: "--set " + s, Msg: "has no value", Hint: "write --set KEY=VALUE, such as --set egress.repair.threshold=3"})
			continue
		}
		set("--set "+strings.ToLower(strings.TrimSpace(path)), path, text)
	}
	if o.StateDir != "" {
		set("--state-dir", "state_dir", o.StateDir)
	}
	for _, k := range all {
		if k.Env == "" || !v.IsSet(k.Path) {
			continue
		}
		source := sources[k.Path][1]
		if source == "" {
			source = sources[k.Path][0]
		}
		r.setKey(k, v.GetString(k.Path), source)
	}
}

// setKey reads one value that did not come from the file.
func (r *reader) setKey(k Key, text, source string) {
	r.set[k.Path] = origin{source: source}
	delete(r.bad, k.Path) // what the file says there is another fault
	if f := setScalar(at(reflect.ValueOf(&r.cfg).Elem(), k.Path), text); f != nil {
		r.complain(k.Path, f.msg, f.hint)
	}
}

// strayVariable reports a SHUNT_ variable that sets nothing.
func (r *reader) strayVariable(name string, all []Key) {
	var names []string
	for _, k := range all {
		if envName(k.Path) == name && k.Env == "" && !strings.Contains(k.Path, "[]") {
			r.add(Complaint{
				Source: "$" + name, Section: sectionOf(k.Path), Key: k.Path,
				Msg: "only the file can set a " + formName(k), Hint: fmt.Sprintf("write %s in the configuration file", k.Path),
			})
			return
		}
		if k.Env != "" {
			names = append(names, k.Env)
		}
	}
	c := Complaint{Source: "$" + name, Msg: "sets no known key", Warning: true}
	if n := Nearest(name, names); n != "" {
		c.Hint = fmt.Sprintf("did you mean %s?", n)
	}
	r.add(c)
}

// strayFlag reports a --set of something that is no key with one value.
func strayFlag(flag, path string, k *Key, all []Key) Complaint {
	if k != nil {
		return Complaint{
			Source: flag, Section: sectionOf(path), Key: path,
			Msg: "only the file can set a " + formName(*k), Hint: fmt.Sprintf("write %s in the configuration file", path),
		}
	}
	var names []string
	for _, k := range all {
		if k.Env != "" {
			names = append(names, k.Path)
		}
	}
	c := Complaint{Source: flag, Msg: "no such key", Hint: "`shunt config reference` lists every key"}
	if n := Nearest(path, names); n != "" {
		c.Hint = fmt.Sprintf("did you mean %q?", n)
	}
	return c
}

func formName(k Key) string {
	if formOf(k.typ) == formMapping {
		return "mapping"
	}
	return "list"
}

// reserved says whether a variable is read by something else.
func reserved(name string) bool {
	return name == "SHUNT_CONFIG" || name == "SHUNT_OUT" ||
		strings.HasPrefix(name, "SHUNT_KILL_") || strings.HasPrefix(name, "SHUNT_LAB_")
}
