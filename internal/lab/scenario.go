package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Scenario is a story that is played in a world of its own and measured.
type Scenario struct {
	Name    string // egress-day
	Summary string // one line
	Flags   []Flag
	Outside bool // Env.Outside works
	Run     func(ctx context.Context, e *Env) error
}

// Flag is a setting of a scenario.
type Flag struct {
	Name  string // endpoints
	Value string // default
	Usage string
}

// Env is what a scenario's run has. A run's error and each problem make the report not ok.
type Env struct {
	Figures
	Dir    string // the work folder, gone after the run
	Binary string // the product; "" = this program

	flags map[string]string
	say   io.Writer
	began time.Time

	mu       sync.Mutex
	controls map[string]Control
	problems []string
	world    *World
	out      *outsideConn // nil = none
}

// World builds the run's world, in the run's work folder. It is closed after the run; a
// second call closes the first world.
func (e *Env) World(ctx context.Context, o WorldOptions) (*World, error) {
	if err := e.close(); err != nil {
		return nil, err
	}
	if o.Dir == "" {
		o.Dir = e.Dir
	}
	if o.Binary == "" {
		o.Binary = e.Binary
	}
	w, err := Build(ctx, o)
	e.world = w
	return w, err
}

func (e *Env) close() error {
	if e.world == nil {
		return nil
	}
	err := e.world.Close()
	e.world = nil
	return err
}

// Say tells the story, a line at a time, with the time since the run began.
func (e *Env) Say(format string, args ...any) {
	if e.say == nil {
		return
	}
	_, _ = fmt.Fprintf(e.say, "%8.3fs  %s\n", time.Since(e.began).Seconds(), fmt.Sprintf(format, args...))
}

// Problem makes the run not ok and says why.
func (e *Env) Problem(format string, args ...any) {
	p := fmt.Sprintf(format, args...)
	e.mu.Lock()
	e.problems = append(e.problems, p)
	e.mu.Unlock()
	e.Say("PROBLEM: %s", p)
}

// Problems are those that were noted up to now.
func (e *Env) Problems() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.problems)
}

// Want notes a problem where a bound is broken, and returns ok.
func (e *Env) Want(ok bool, format string, args ...any) bool {
	if !ok {
		e.Problem(format, args...)
	}
	return ok
}

// Control notes what must have been seen; where ok is false the run is not ok.
func (e *Env) Control(name string, value float64, ok bool) {
	e.mu.Lock()
	if e.controls == nil {
		e.controls = map[string]Control{}
	}
	e.controls[name] = Control{Value: value, OK: ok}
	e.mu.Unlock()
	if !ok {
		e.Problem("control %s is missing (%g)", name, value)
	}
}

// Flag is the text of a flag.
func (e *Env) Flag(name string) string { return e.flags[name] }

// Int is a flag's number.
func (e *Env) Int(name string) int {
	n, err := strconv.Atoi(e.flags[name])
	if err != nil {
		e.Problem("--%s %q is no number", name, e.flags[name])
	}
	return n
}

// Float is a flag's number.
func (e *Env) Float(name string) float64 {
	n, err := strconv.ParseFloat(e.flags[name], 64)
	if err != nil {
		e.Problem("--%s %q is no number", name, e.flags[name])
	}
	return n
}

// Bool is a flag that is true or false.
func (e *Env) Bool(name string) bool {
	b, err := strconv.ParseBool(e.flags[name])
	if err != nil {
		e.Problem("--%s %q is neither true nor false", name, e.flags[name])
	}
	return b
}

// Duration is a flag's duration.
func (e *Env) Duration(name string) time.Duration {
	d, err := time.ParseDuration(e.flags[name])
	if err != nil {
		e.Problem("--%s %q is no duration", name, e.flags[name])
	}
	return d
}

// outcome is what the run gave.
func (e *Env) outcome() outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Figures.mu.Lock()
	defer e.Figures.mu.Unlock()
	return outcome{Samples: e.by, Controls: e.controls, Problems: e.problems}
}
