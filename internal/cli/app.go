package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// app is what every command works with: the process's surroundings and the global flags.
type app struct {
	Stdin   io.Reader
	Stdout  io.Writer // results only
	Stderr  io.Writer // error:, hint: and warning: lines, and the log
	Environ []string  // as of os.Environ
	Now     func() time.Time
	Log     *slog.Logger

	flags   globalFlags
	level   *slog.LevelVar
	started bool            // a command's own code runs: what fails before is a usage error
	said    map[string]bool // complaints of the configuration
	unkept  bool            // it was said that no copy of the configuration could be kept
}

// globalFlags are the flags of every command.
type globalFlags struct {
	Config   string
	StateDir string
	Set      []string
	Output   outputFormat
	Quiet    bool
	Verbose  bool
}

func newApp(stdin io.Reader, stdout, stderr io.Writer, environ []string, now func() time.Time) *app {
	a := &app{
		Stdin: stdin, Stdout: stdout, Stderr: stderr, Environ: environ, Now: now, level: new(slog.LevelVar), said: map[string]bool{},
	}
	a.flags.Output = outputText
	a.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: a.level, ReplaceAttr: a.attr}))
	return a
}

// attr leaves the time to the journal where that is what reads stderr.
func (a *app) attr(groups []string, at slog.Attr) slog.Attr {
	if len(groups) == 0 && at.Key == slog.TimeKey && a.Env("JOURNAL_STREAM") != "" {
		return slog.Attr{}
	}
	return at
}

// Env returns a variable's value, "" when it is not set.
func (a *app) Env(name string) string {
	for _, kv := range a.Environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// setLevel applies the configured level under -q and -v.
func (a *app) setLevel(configured slog.Level) {
	switch {
	case a.flags.Quiet:
		a.level.Set(slog.LevelWarn)
	case a.flags.Verbose:
		a.level.Set(slog.LevelDebug)
	default:
		a.level.Set(configured)
	}
}

// print writes a command's one result to stdout: v as JSON, or what text writes.
func (a *app) print(v any, text func(w io.Writer)) error {
	w := bufio.NewWriter(a.Stdout)
	switch a.flags.Output {
	case outputJSON:
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	case outputText:
		text(w)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	return nil
}

// warnf writes a warning to stderr.
func (a *app) warnf(format string, args ...any) { a.lines("warning", fmt.Sprintf(format, args...)) }

// hintf writes a hint to stderr.
func (a *app) hintf(format string, args ...any) { a.lines("hint", fmt.Sprintf(format, args...)) }

// lines writes a text to stderr, each of its lines by what it is.
func (a *app) lines(word, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		fmt.Fprintf(a.Stderr, "shunt: %s: %s\n", word, line)
	}
}

// outputFormat is the value of --output.
type outputFormat string

const (
	outputText outputFormat = "text"
	outputJSON outputFormat = "json"
)

// String is the flag's value.
func (o *outputFormat) String() string { return string(*o) }

// Type is what help calls the flag's value.
func (o *outputFormat) Type() string { return "text|json" }

// Set reads the flag's value.
func (o *outputFormat) Set(s string) error {
	switch f := outputFormat(s); f {
	case outputText, outputJSON:
		*o = f
		return nil
	}
	return fmt.Errorf("want text or json")
}
