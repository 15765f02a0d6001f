package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/state"
)

// The exit codes. Units list 4 and 75 as success; 2 belongs to Go's panics.
const (
	exitDone        = 0   // done, or nothing to do
	exitFailed      = 1   // failed
	exitPartly      = 3   // partly applied, or replicas disagree
	exitHeld        = 4   // held back by a guard
	exitPending     = 5   // changes pending (dry run with --exit-code)
	exitUsage       = 64  // wrong command line
	exitBusy        = 75  // a lock is busy
	exitConfig      = 78  // wrong configuration
	exitInterrupted = 130 // SIGINT or SIGTERM
)

// exitError ends a command with a code other than 1.
type exitError struct {
	Code int
	Err  error  // nil = nothing is said: the result says it
	Hint string // "" = none
}

func (e *exitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *exitError) Unwrap() error { return e.Err }

// usageError is a command line that no run can make right.
func usageError(hint, format string, args ...any) error {
	return &exitError{Code: exitUsage, Err: fmt.Errorf(format, args...), Hint: hint}
}

// configError is a configuration that does not pass.
type configError struct {
	Complaints []config.Complaint // that stop the command; never empty
}

func (e *configError) Error() string { return e.Complaints[0].String() }

// code is 78, or 64 when the command line alone is to blame.
func (e *configError) code() int {
	for _, c := range e.Complaints {
		if len(c.Source) < 2 || c.Source[:2] != "--" {
			return exitConfig
		}
	}
	return exitUsage
}

// classify gives every error its code and hint.
func classify(err error, started, interrupted bool) *exitError {
	var (
		exit   *exitError
		cfg    *configError
		busy   *state.BusyError
		damage *state.DamageError
		plain  state.DamageError
	)
	switch {
	case err == nil:
		return &exitError{Code: exitDone}
	case interrupted && (errors.Is(err, context.Canceled) || !errors.As(err, &exit)):
		return &exitError{Code: exitInterrupted, Err: fmt.Errorf("interrupted: %w", err)}
	case errors.As(err, &exit) && exit.Err != nil && len(parts(err)) > 1:
		return &exitError{Code: exit.Code, Err: err, Hint: exit.Hint}
	case errors.As(err, &exit):
		return exit
	case errors.As(err, &cfg):
		return &exitError{Code: cfg.code(), Err: err}
	case errors.As(err, &busy):
		return &exitError{Code: exitBusy, Err: err, Hint: "nothing is lost: the next run sees the same and does it"}
	case errors.As(err, &damage):
		return &exitError{Code: exitConfig, Err: err, Hint: damage.Hint}
	case errors.As(err, &plain):
		return &exitError{Code: exitConfig, Err: err, Hint: plain.Hint}
	case !started:
		return &exitError{Code: exitUsage, Err: err, Hint: "see shunt --help"}
	case errors.Is(err, fs.ErrPermission):
		return &exitError{Code: exitFailed, Err: err, Hint: "run it as root"}
	}
	return &exitError{Code: exitFailed, Err: err}
}

// report writes the error and hint lines and returns the code.
func (a *app) report(e *exitError) int {
	seen := map[string]bool{}
	for _, err := range parts(e.Err) {
		var cfg *configError
		if !errors.As(err, &cfg) {
			if text := err.Error(); !seen[text] { // two parts of a run may meet one and the same
				seen[text] = true
				a.lines("error", text)
			}
			continue
		}
		for _, c := range cfg.Complaints {
			if text := c.String(); !seen[text] {
				seen[text] = true
				a.lines("error", text)
				if c.Hint != "" {
					a.hintf("%s", c.Hint)
				}
			}
		}
	}
	if e.Hint != "" {
		a.hintf("%s", e.Hint)
	}
	return e.Code
}

// parts are the errors that one was joined of; nil has none.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) // what is wrapped stays together with its wrapping
	if !ok {
		return []error{err}
	}
	texts := make([]string, 0, 2)
	for _, one := range joined.Unwrap() {
		texts = append(texts, one.Error())
	}
	if err.Error() != strings.Join(texts, "\n") { // fmt.Errorf with several %w says more than they do
		return []error{err}
	}
	var out []error
	for _, one := range joined.Unwrap() {
		out = append(out, parts(one)...)
	}
	return out
}
