package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/state"
)

// loadOptions are what the global flags say about the configuration.
func (a *app) loadOptions(sections ...string) config.Options {
	return config.Options{
		Path: a.flags.Config, Set: a.flags.Set, StateDir: a.flags.StateDir, Env: a.Environ, Sections: sections,
	}
}

// seldomGC lets the heap grow to five times what lives, where that is bounded: a long file is
// a tree of many small parts that all live until it is read, and a run of a tenth of a second
// ends before its garbage matters. What it returns makes it as it was.
func seldomGC() (usual func()) {
	const percent = 400
	was := debug.SetGCPercent(percent)
	return func() { debug.SetGCPercent(was) }
}

// load reads the configuration for a command that needs these sections. Faults elsewhere
// are warnings.
func (a *app) load(sections ...string) (config.Config, error) {
	return a.loadWith(a.loadOptions(sections...))
}

// loadOrLastGood is load for runs that nobody watches: where the file does not pass, the
// last configuration that did, as far as the first of these sections goes, is used, loudly.
func (a *app) loadOrLastGood(sections ...string) (config.Config, error) {
	o := a.loadOptions(sections...)
	o.LastGood = config.LastGoodName(config.File(o), sections[0])
	return a.loadWith(o)
}

// loadToRun is load for a pass. One that acts takes the last good configuration where it must,
// and keeps one that passes for later runs. fit refuses what no such pass can work with; nil
// = anything.
func (a *app) loadToRun(ctx context.Context, section string, acts bool, fit func(config.Config) error) (config.Config, error) {
	load := a.load
	if acts {
		load = a.loadOrLastGood
	}
	c, err := load(section)
	if err == nil && fit != nil {
		err = fit(c)
	}
	if err == nil && acts {
		err = a.keepConfig(ctx, c, section)
	}
	return c, err
}

func (a *app) loadWith(o config.Options) (config.Config, error) {
	c, complaints, err := a.loadQuiet(o)
	if err == nil {
		a.say(complaints, o.Sections...)
	}
	return c, err
}

// loadQuiet loads, and returns what it has to say without saying it.
func (a *app) loadQuiet(o config.Options) (config.Config, []config.Complaint, error) {
	usual := seldomGC()
	c, complaints, err := config.Load(o)
	usual()
	if err != nil {
		return c, nil, a.unreadable(err)
	}
	if bad := config.Blocking(complaints, o.Sections...); len(bad) > 0 {
		return c, nil, &configError{Complaints: bad}
	}
	a.setLevel(c.Log.Level.Slog())
	return c, complaints, nil
}

// say writes warnings out, each once. Advice about a section that the command does not read is
// left to those that do; a fault of it is said.
func (a *app) say(complaints []config.Complaint, sections ...string) {
	for _, w := range complaints {
		advice := w.Warning && slices.Contains([]string{config.SectionEdge, config.SectionEgress}, w.Section)
		if advice && len(sections) > 0 && !slices.Contains(sections, w.Section) {
			continue
		}
		text := w.String()
		if a.said[text] {
			continue
		}
		a.said[text] = true
		a.warnf("%s", text)
		if w.Hint != "" {
			a.hintf("%s", w.Hint)
		}
	}
}

// loadParts is loadOrLastGood for a run of several parts that can do without each other:
// section is what all of them need, and of gives the configuration of a part. The file is
// read once, unless a part of it does not pass; say writes its warnings out.
func (a *app) loadParts(section string) (c config.Config, of func(part string) (config.Config, error), say func(), err error) {
	o := a.loadOptions(section)
	o.LastGood = config.LastGoodName(config.File(o), section)
	c, complaints, err := a.loadQuiet(o)
	if err != nil {
		return c, nil, nil, err
	}
	return c, func(part string) (config.Config, error) {
		if !c.From.LastGood && len(config.Blocking(complaints, part)) == 0 {
			return c, nil
		}
		return a.loadOrLastGood(part)
	}, func() { a.say(complaints) }, nil
}

// unreadable is a configuration file that could not be read.
func (a *app) unreadable(err error) error {
	hint := "run it as root, or let this user read the file"
	if config.Missing(err) {
		hint = "`shunt config reference` writes a file to begin with; --config names another one"
	}
	return &exitError{Code: exitConfig, Err: err, Hint: hint}
}

// keepConfig saves the file that passed as the last good copy of a section. Commands that
// change things call it after load. A disk that does not take the copy is a warning: what moves
// traffic needs none. Who may not write to the state folder at all is told so.
func (a *app) keepConfig(ctx context.Context, c config.Config, section string) error {
	err := writeLastGood(ctx, c, section)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return fmt.Errorf("state folder: %w", err)
	case !a.unkept:
		a.unkept = true
		a.warnf("no copy of this configuration for runs after a bad edit: %s", err)
	}
	return nil
}

// writeLastGood writes the copy, and leaves one alone that is the same already.
func writeLastGood(ctx context.Context, c config.Config, section string) error {
	if c.From.LastGood {
		return nil
	}
	path := filepath.Join(c.StateDir, config.LastGoodName(c.From.File, section))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, c.From.Raw) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return state.WriteFile(ctx, path, c.From.Raw, 0o600)
}
