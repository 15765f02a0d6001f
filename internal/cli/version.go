package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			v := buildVersion(info)
			return a.print(v, func(w io.Writer) { fmt.Fprintln(w, v) })
		},
	}
}

// versionInfo is what `version` prints.
type versionInfo struct {
	Version  string `json:"version"` // v1.2.3, or (devel)
	Commit   string `json:"commit,omitempty"`
	Time     string `json:"time,omitempty"` // of the commit, RFC 3339
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"` // linux/amd64
}

// String is the version on one line.
func (v versionInfo) String() string {
	s := "shunt " + v.Version
	if v.Commit != "" {
		s += fmt.Sprintf(" (commit %.12s, %s", v.Commit, v.Time)
		if v.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return fmt.Sprintf("%s %s %s", s, v.Go, v.Platform)
}

func buildVersion(info *debug.BuildInfo) versionInfo {
	v := versionInfo{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
