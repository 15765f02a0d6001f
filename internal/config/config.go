// Package config turns the configuration file, the environment and `--set` into one
// typed, validated value. It complains in data: every fault of a file is reported at
// once, with its place and a hint, and the caller decides what that means.
package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/egress"
)

// DefaultPath is the configuration file that is read when nothing else is said.
const DefaultPath = "/etc/shunt/shunt.yaml"

// Sections of the file. SectionCommon is everything that each command needs: the file
// itself and its top-level keys.
const (
	SectionCommon   = ""
	SectionEgress   = "egress"
	SectionEdge     = "edge"
	SectionWatchdog = "watchdog"
	SectionAlerts   = "alerts"
)

// Config is the whole configuration.
type Config struct {
	StateDir string            `yaml:"state_dir" json:"state_dir"` // absolute folder
	Log      Log               `yaml:"log" json:"log"`
	Hooks    Hooks             `yaml:"hooks" json:"hooks"`
	Alerts   edge.AlertsConfig `yaml:"alerts" json:"alerts"`
	Watchdog Watchdog          `yaml:"watchdog" json:"watchdog"`
	Edge     edge.Config       `yaml:"edge" json:"edge"`
	Egress   egress.Config     `yaml:"egress" json:"egress"`

	From From `yaml:"-" json:"-"`
}

// From says which bytes a configuration was made of.
type From struct {
	File     string // that was read
	Raw      []byte // its bytes
	LastGood bool   // File is the last good copy, because the wanted file did not pass
}

// Log says how much is logged to stderr.
type Log struct {
	Level Level `yaml:"level" json:"level"`
}

// Level is a log level's word.
type Level string

// The log levels. The zero value is unknown and never valid.
const (
	LevelUnknown Level = ""
	LevelDebug   Level = "debug"
	LevelInfo    Level = "info"
	LevelWarn    Level = "warn"
	LevelError   Level = "error"
)

// Slog returns the level for log/slog; info when the word is unknown.
func (l Level) Slog() slog.Level {
	switch l {
	case LevelDebug:
		return slog.LevelDebug
	case LevelWarn:
		return slog.LevelWarn
	case LevelError:
		return slog.LevelError
	case LevelInfo, LevelUnknown:
		return slog.LevelInfo
	}
	return slog.LevelInfo
}

// Hooks are the operator's own commands.
type Hooks struct {
	OnEvent []string      `yaml:"on_event" json:"on_event"` // argv; the event is JSON on its stdin
	Timeout time.Duration `yaml:"timeout" json:"timeout"`
}

// Watchdog is what `shunt watchdog` does when its flags say nothing else.
type Watchdog struct {
	Interval time.Duration `yaml:"interval" json:"interval"` // between the beginnings of two rounds of egress, and of looks at the machine
	For      time.Duration `yaml:"for" json:"for"`           // life of one run, counted from its start
	Edge     bool          `yaml:"edge" json:"edge"`         // watch the candidates of services
	Egress   bool          `yaml:"egress" json:"egress"`     // watch the lanes
}

// Complaint is one fault of a configuration.
type Complaint struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`   // from 1; 0 = the file as a whole
	Column  int    `json:"column,omitempty"` // from 1
	Source  string `json:"source,omitempty"` // --set egress.repair.threshold, $SHUNT_STATE_DIR: instead of a file
	Section string `json:"section"`          // "" = common
	Key     string `json:"key,omitempty"`    // egress.lanes[1].table
	Msg     string `json:"msg"`
	Hint    string `json:"hint,omitempty"`
	Warning bool   `json:"warning,omitempty"` // stops no command
}

// Place is where the fault is, for example /etc/shunt/shunt.yaml:12:5.
func (c Complaint) Place() string {
	switch {
	case c.Source != "":
		return c.Source
	case c.File == "":
		return ""
	case c.Line == 0:
		return c.File
	}
	return fmt.Sprintf("%s:%d:%d", c.File, c.Line, c.Column)
}

// String is the complaint on one line, without its hint.
func (c Complaint) String() string {
	var parts []string
	for _, s := range []string{c.Place(), c.Key, c.Msg} {
		// A flag or variable that names its key need not name it twice.
		if s != "" && (s != c.Key || !strings.HasSuffix(c.Source, c.Key)) {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Blocking returns the complaints that stop a command which needs these sections
// beside the common one.
func Blocking(cs []Complaint, sections ...string) []Complaint {
	var out []Complaint
	for _, c := range cs {
		if !c.Warning && (c.Section == SectionCommon || slices.Contains(sections, c.Section)) {
			out = append(out, c)
		}
	}
	return out
}

// sectionOf returns the section that a key belongs to.
func sectionOf(path string) string {
	first, _, _ := strings.Cut(path, ".")
	first, _, _ = strings.Cut(first, "[")
	if slices.Contains(Sections(), first) {
		return first
	}
	return SectionCommon
}

// Sections returns the sections beside the common one.
func Sections() []string {
	return []string{SectionAlerts, SectionWatchdog, SectionEdge, SectionEgress}
}
