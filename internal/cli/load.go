package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

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
	c, _, err := a.loadSaying(o)
	return c, err
}

// loadSaying loads, writes the warnings out, and returns all complaints too.
func (a *app) loadSaying(o config.Options) (config.Config, []config.Complaint, error) {
	usual := seldomGC()
	c, complaints, err := config.Load(o)
	usual()
	if err != nil {
		return c, nil, a.unreadable(err)
	}
	if bad := config.Blocking(complaints, o.Sections...); len(bad) > 0 {
		return c, nil, &configError{Complaints: bad}
	}
	for _, w := range complaints {
		a.warnf("%s", w)
		if w.Hint != "" {
			a.hintf("%s", w.Hint)
		}
	}
	a.setLevel(c.Log.Level.Slog())
	return c, complaints, nil
}

// loadParts is loadOrLastGood for a run of several parts that can do without each other:
// section is what all of them need, and of gives the configuration of a part. The file is
// read, and its warnings are said, once, unless a part of it does not pass.
func (a *app) loadParts(section string) (c config.Config, of func(part string) (config.Config, error), err error) {
	o := a.loadOptions(section)
	o.LastGood = config.LastGoodName(config.File(o), section)
	c, complaints, err := a.loadSaying(o)
	if err != nil {
		return c, nil, err
	}
	return c, func(part string) (config.Config, error) {
		if !c.From.LastGood && len(config.Blocking(complaints, part)) == 0 {
			return c, nil
		}
		return a.loadOrLastGood(part)
	}, nil
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
// change things call it after load; a copy that is the same already is left alone.
func (a *app) keepConfig(ctx context.Context, c config.Config, section string) error {
	if c.From.LastGood {
		return nil
	}
	path := filepath.Join(c.StateDir, config.LastGoodName(c.From.File, section))
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, c.From.Raw) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("last good configuration: %w", err)
	}
	if err := state.WriteFile(ctx, path, c.From.Raw, 0o600); err != nil {
		return fmt.Errorf("last good configuration: %w", err)
	}
	return nil
}
