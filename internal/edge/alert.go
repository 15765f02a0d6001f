package edge

import "time"

// AlertsConfig is the `alerts:` section of the configuration file: who is told what the
// machine did, and how often.
type AlertsConfig struct {
	MinGap  time.Duration `yaml:"min_gap" json:"min_gap"` // between two alerts of one kind about one object to one target; 0 = no limit; default 30s
	Targets []AlertTarget `yaml:"targets" json:"targets,omitempty"`
}

// AlertTarget is one place that alerts go to. URLs and headers hold secrets: they are never
// printed, logged or put into an error.
type AlertTarget struct {
	Name        string        `yaml:"name" json:"name"`                           // ops; unique
	Type        AlertType     `yaml:"type" json:"type"`                           // webhook | command | service
	URL         string        `yaml:"url" json:"-"`                               // webhook: http(s); service: discord://token@id, ntfy://host/topic …
	URLFile     string        `yaml:"url_file" json:"url_file,omitempty"`         // absolute; its first line is the URL; exactly one of url and url_file
	HeadersFile string        `yaml:"headers_file" json:"headers_file,omitempty"` // webhook; absolute; `Name: value` lines, # comments
	Command     []string      `yaml:"command" json:"command,omitempty"`           // command: argv, gets the alert as one JSON object on stdin
	Timeout     time.Duration `yaml:"timeout" json:"timeout"`                     // of one delivery; default 10s
	Events      []string      `yaml:"events" json:"events,omitempty"`             // kinds with * for any text: edge.*, mode; empty = every kind
	Level       AlertLevel    `yaml:"level" json:"level"`                         // least level that is sent; default info
}

// AlertType says how a target is reached.
type AlertType string

// The alert types. The zero value is unknown and never valid.
const (
	AlertTypeUnknown AlertType = ""
	AlertWebhook     AlertType = "webhook" // HTTP POST of the alert as JSON
	AlertCommand     AlertType = "command" // a program that reads the alert as JSON
	AlertService     AlertType = "service" // a notification service, named by its URL's scheme
)

// AlertLevel is how much an alert matters.
type AlertLevel string

// The levels, rising. The zero value is not said, which is info.
const (
	LevelUnknown  AlertLevel = ""
	LevelInfo     AlertLevel = "info"
	LevelWarning  AlertLevel = "warning"
	LevelCritical AlertLevel = "critical"
)

// Defaults of the alerts' keys.
const (
	DefaultAlertMinGap  = 30 * time.Second
	DefaultAlertTimeout = 10 * time.Second
)
