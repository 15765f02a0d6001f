package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/config"
)

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestPrint(t *testing.T) {
	text := func(w io.Writer) { io.WriteString(w, "a < b\n") } //nolint:errcheck // print checks it
	for format, want := range map[outputFormat]string{
		outputText: "a < b\n",
		outputJSON: "{\n  \"x\": \"a < b\"\n}\n",
	} {
		a, stdout, _ := testApp()
		a.flags.Output = format
		if err := a.print(map[string]string{"x": "a < b"}, text); err != nil || stdout.String() != want {
			t.Errorf("%s: %v %q", format, err, stdout)
		}
		a.Stdout = fullDisk{}
		if a.print(map[string]string{}, text) == nil {
			t.Errorf("%s: a result that was not written is no success", format)
		}
	}
}

func TestLog(t *testing.T) {
	tests := []struct {
		name    string
		environ []string
		set     func(a *app)
		want    []string // what each line ends with
	}{
		{"by default", nil, func(*app) {}, []string{"level=INFO msg=moved lane=a", "level=WARN msg=odd"}},
		{"quiet", nil, func(a *app) { a.flags.Quiet = true }, []string{"level=WARN msg=odd"}},
		{"verbose", nil, func(a *app) { a.flags.Verbose = true }, []string{"level=DEBUG msg=looked", "level=INFO msg=moved lane=a", "level=WARN msg=odd"}},
		{"in the journal, which has the time", []string{"JOURNAL_STREAM=8:1"}, func(*app) {}, []string{"level=INFO msg=moved lane=a", "level=WARN msg=odd"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			base, _, _ := testApp()
			a := newApp(nil, io.Discard, &stderr, tt.environ, base.Now)
			tt.set(a)
			a.setLevel(slog.LevelInfo)
			a.Log.Debug("looked")
			a.Log.Info("moved", "lane", "a")
			a.Log.Warn("odd")
			got := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			if len(got) != len(tt.want) {
				t.Fatalf("got:\n%s", stderr.String())
			}
			for i, line := range got {
				if timed := strings.HasPrefix(line, "time="); timed == (tt.environ != nil) || !strings.HasSuffix(line, tt.want[i]) {
					t.Errorf("line %d: %s", i, line)
				}
			}
		})
	}
}

func TestTimersGoOnWithTheLastGoodConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "shunt.yaml")
	good := "state_dir: " + dir + "\nlog: {level: warn}\negress: {repair: {threshold: 7}}\n"
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fresh := func() (*app, *bytes.Buffer) {
		a, _, stderr := testApp()
		a.flags.Config = file
		return a, stderr
	}

	put(good)
	a, _ := fresh()
	c, err := a.load(config.SectionEgress)
	if err != nil || a.level.Level() != slog.LevelWarn {
		t.Fatal(err, a.level)
	}
	for range 2 { // the second time there is nothing to do
		if err := a.keepConfig(t.Context(), c, config.SectionEgress); err != nil {
			t.Fatal(err)
		}
	}
	kept := filepath.Join(dir, config.LastGoodName(file, config.SectionEgress))
	st, err := os.Stat(kept)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", err, st)
	}

	put("state_dir: " + dir + "\negress: {repair: {threshold: 0}}\n")
	a, stderr := fresh()
	if _, err := a.load(config.SectionEgress); classify(err, true, false).Code != exitConfig {
		t.Errorf("a command that somebody watches says it: %v", err)
	}
	c, err = a.loadOrLastGood(config.SectionEgress)
	if err != nil || c.Egress.Repair.Threshold != 7 {
		t.Fatal(err, c.Egress.Repair)
	}
	for _, want := range []string{
		"shunt: warning: " + file + ": DOES NOT PASS: going on with the last configuration that did, " + kept + "\n",
		"shunt: warning: " + file + ":2:30: egress.repair.threshold: 0 is out of range\n",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("want %q in:\n%s", want, stderr)
		}
	}
	if err := a.keepConfig(t.Context(), c, config.SectionEgress); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(kept); err != nil || string(raw) != good {
		t.Errorf("the copy was spoilt: %v\n%s", err, raw)
	}

	// A command of another section goes on with the file as it is.
	a, stderr = fresh()
	if c, err := a.load(); err != nil || c.From.LastGood || !strings.Contains(stderr.String(), "out of range") {
		t.Errorf("%v %s", err, stderr)
	}
}

func TestACopyThatCanNotBeKeptIsAWarning(t *testing.T) {
	a, _, stderr := testApp()
	c := config.Default()
	c.StateDir = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(c.StateDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.From = config.From{File: "/etc/shunt/shunt.yaml", Raw: []byte("x")}
	for range 2 {
		if err := a.keepConfig(context.Background(), c, config.SectionEgress); err != nil {
			t.Error(err)
		}
	}
	want := "shunt: warning: no copy of this configuration for runs after a bad edit: mkdir " + c.StateDir + ": not a directory\n"
	if diff := cmp.Diff(want, stderr.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.time", Value: "2023-11-14T22:13:20Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	v := buildVersion(info)
	v.Go, v.Platform = "go1.26", "linux/amd64"
	want := "shunt v1.2.3 (commit 0123456789ab, 2023-11-14T22:13:20Z, modified) go1.26 linux/amd64"
	if diff := cmp.Diff(want, v.String()); diff != "" {
		t.Error(diff)
	}
	if v := buildVersion(nil); v.Version != "(unknown)" {
		t.Error(v)
	}
}
