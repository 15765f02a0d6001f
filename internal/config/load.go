package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/shunt-net/shunt/internal/edge"
)

// maxBytes bounds a configuration file.
const maxBytes = 8 << 20

// Options say what to load.
type Options struct {
	Path     string   // "" = $SHUNT_CONFIG, else DefaultPath
	Set      []string // KEY=VALUE, over everything else
	StateDir string   // the value of --state-dir; "" = not given
	Env      []string // as of os.Environ
	Sections []string // that must pass beside the common one
	// LastGood allows the last good copy where the file does not pass: the path of the
	// copy, relative to the state folder, or absolute. "" = not allowed.
	LastGood string
}

// Load reads the file and lays environment and flags over it. The configuration is
// whole only where Blocking(complaints, sections…) is empty; the error says that nothing
// could be read at all. Complaints come in the order of the file.
//
// Where the file does not pass and a last good copy is allowed and passes, the copy's
// configuration is returned; the file's complaints are warnings then, led by one that
// says what happened. A wrong flag or variable is never healed that way.
func Load(o Options) (Config, []Complaint, error) {
	path := File(o)
	raw, refusal, err := readFile(path)
	var r *reader
	switch {
	case err != nil:
		r = newReader(path)
	case refusal != nil:
		r = newReader(path)
		r.add(*refusal)
	default:
		r = parse(path, raw)
	}
	r.override(o)
	if refusal == nil && err == nil {
		r.check()
	}
	r.cfg.From = From{File: path, Raw: raw}
	cs := r.sorted()
	r.dropTargets(cs)
	if err == nil && len(Blocking(cs, o.Sections...)) == 0 {
		return r.cfg, cs, nil
	}
	if o.LastGood != "" {
		if cfg, copied, ok := lastGood(o, r, raw); ok {
			return cfg, append(explain(path, cfg.From.File, cs, err), copied...), nil
		}
	}
	return r.cfg, cs, err
}

// dropTargets leaves out what is wrong of the alerts: no command needs that section to
// pass, and the targets that are right go on being told.
func (r *reader) dropTargets(cs []Complaint) {
	bad := map[int]bool{}
	for _, c := range Blocking(cs, SectionAlerts) {
		var i int
		switch {
		case c.Section != SectionAlerts:
		case c.Key == "alerts.min_gap":
			r.cfg.Alerts.MinGap = Default().Alerts.MinGap
		default:
			if _, err := fmt.Sscanf(c.Key, "alerts.targets[%d]", &i); err == nil {
				bad[i] = true
			}
		}
	}
	if len(bad) == 0 {
		return
	}
	var sound []edge.AlertTarget
	for i, t := range r.cfg.Alerts.Targets {
		if !bad[i] {
			sound = append(sound, t)
		}
	}
	r.cfg.Alerts.Targets = sound
}

// File is the path of the file that Load reads.
func File(o Options) string {
	if o.Path != "" {
		return o.Path
	}
	for _, kv := range o.Env {
		if p, ok := strings.CutPrefix(kv, "SHUNT_CONFIG="); ok && p != "" {
			return p
		}
	}
	return DefaultPath
}

// readFile reads the file unless its mode or kind forbids that.
func readFile(path string) ([]byte, *Complaint, error) {
	// Without O_NONBLOCK a named pipe would hold us until somebody writes to it.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, &Complaint{File: path, Msg: "is not a regular file"}, nil
	case st.Mode().Perm()&0o002 != 0:
		return nil, &Complaint{
			File: path, Msg: "anybody may write to it, and shunt would run what it says",
			Hint: "chmod o-w " + path,
		}, nil
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("configuration: %w", err)
	case len(raw) > maxBytes:
		return nil, &Complaint{File: path, Msg: fmt.Sprintf("is larger than %d bytes", maxBytes)}, nil
	}
	return raw, nil, nil
}

// sorted returns the complaints in the order of the file, then those about flags and
// variables.
func (r *reader) sorted() []Complaint {
	out := slices.Clone(r.complaints)
	slices.SortStableFunc(out, func(a, b Complaint) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if r.more > 0 {
		out = append(out, Complaint{File: r.file, Msg: fmt.Sprintf("and %d more complaints", r.more)})
	}
	return out
}

// lastGood loads the last good copy in place of a file that did not pass.
func lastGood(o Options, failed *reader, raw []byte) (Config, []Complaint, bool) {
	path := o.LastGood
	if !filepath.IsAbs(path) {
		path = filepath.Join(stateDir(failed, raw), path)
	}
	good, refusal, err := readFile(path)
	if err != nil || refusal != nil {
		return Config{}, nil, false
	}
	r := parse(path, good)
	r.override(o)
	r.check()
	r.cfg.From = From{File: path, Raw: good, LastGood: true}
	cs := r.sorted()
	r.dropTargets(cs)
	return r.cfg, cs, len(Blocking(cs, o.Sections...)) == 0
}

// stateDir is the state folder of a file that did not pass. Its line is looked for in the
// text where the file is not even YAML.
func stateDir(failed *reader, raw []byte) string {
	if _, ok := failed.set["state_dir"]; !ok && failed.find("state_dir") == nil {
		if m := regexp.MustCompile(`(?m)^state_dir:[ \t]*["']?(/[^"'#\s]*)`).FindSubmatch(raw); m != nil {
			return string(m[1])
		}
	}
	return failed.cfg.StateDir
}

// explain makes the complaints of a file that did not pass warnings, and leads them.
func explain(path, used string, cs []Complaint, err error) []Complaint {
	lead := Complaint{
		File: path, Msg: fmt.Sprintf("DOES NOT PASS: going on with the last configuration that did, %s", used),
		Hint: "correct the file; `shunt config check` says when it passes", Warning: true,
	}
	out := []Complaint{lead}
	if err != nil {
		out = append(out, Complaint{Msg: err.Error(), Warning: true})
	}
	for _, c := range cs {
		c.Warning = true
		out = append(out, c)
	}
	return out
}

// Missing says whether the error of Load is that there is no file.
func Missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// LastGoodName is the name, inside the state folder, of the last good copy of the file at
// path: each file has a copy of its own, so that trying another one spoils nothing, and
// each section that a run needs (egress has none written into the name): a file whose
// other section is broken says nothing of this one.
func LastGoodName(path, section string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	name := strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-")
	if section != SectionEgress && section != SectionCommon {
		name = section + "@" + name
	}
	return filepath.Join("last-good", name)
}
