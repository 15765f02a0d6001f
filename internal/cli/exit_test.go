package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/state"
)

func testApp() (a *app, stdout, stderr *bytes.Buffer) {
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	now := func() time.Time { return time.Unix(1700000000, 0).UTC() }
	return newApp(strings.NewReader(""), stdout, stderr, nil, now), stdout, stderr
}

func TestEveryErrorHasItsCode(t *testing.T) {
	held := &exitError{Code: exitHeld, Err: errors.New("the uplink is down"), Hint: "wait"}
	tests := []struct {
		name        string
		err         error
		beforeStart bool
		interrupted bool
		code        int
		stderr      string
	}{
		{"none", nil, false, false, 0, ""},
		{"none, though a signal came", nil, false, true, 0, ""},
		{"a failure", errors.New("no lane left"), false, false, 1, "shunt: error: no lane left\n"},
		{"a command's own code", fmt.Errorf("repair: %w", held), false, false, 4, "shunt: error: the uplink is down\nshunt: hint: wait\n"},
		{"a code without words", &exitError{Code: exitPending}, false, false, 5, ""},
		{"partly applied", &exitError{Code: exitPartly, Err: errors.New("2 of 5")}, false, false, 3, "shunt: error: 2 of 5\n"},
		{"a usage error", usageError("see --help", "no lane %q", "x"), false, false, 64, "shunt: error: no lane \"x\"\nshunt: hint: see --help\n"},
		{"an error of cobra's own", errors.New("required flag"), true, false, 64, "shunt: error: required flag\nshunt: hint: see shunt --help\n"},
		{
			"a busy lock", fmt.Errorf("repair: %w", &state.BusyError{Name: "watchdog", Holder: "pid 7"}), false, false, 75,
			"shunt: error: repair: " + (&state.BusyError{Name: "watchdog", Holder: "pid 7"}).Error() + "\nshunt: hint: nothing is lost: the next run sees the same and does it\n",
		},
		{"damage", fmt.Errorf("repair: %w", &state.DamageError{File: "/s/q.tsv", Line: 3, Msg: "cut off", Hint: "mend it"}), false, false, 78, "shunt: error: repair: /s/q.tsv:3: cut off\nshunt: hint: mend it\n"},
		{"no permission", fmt.Errorf("state: %w", fs.ErrPermission), false, false, 1, "shunt: error: state: permission denied\nshunt: hint: run it as root\n"},
		{
			"a configuration that does not pass", &configError{[]config.Complaint{{File: "f", Line: 1, Column: 2, Msg: "a", Hint: "h"}, {Source: "--set x", Msg: "b"}}}, false, false, 78,
			"shunt: error: f:1:2: a\nshunt: hint: h\nshunt: error: --set x: b\n",
		},
		{"flags alone that do not pass", &configError{[]config.Complaint{{Source: "--set x", Msg: "b"}}}, false, false, 64, "shunt: error: --set x: b\n"},
		{"interrupted", fmt.Errorf("refresh: %w", context.Canceled), false, true, 130, "shunt: error: interrupted: refresh: context canceled\n"},
		{"a child that died of the interruption", errors.New("signal: terminated"), false, true, 130, "shunt: error: interrupted: signal: terminated\n"},
		{"held back, and a signal came", held, false, true, 4, "shunt: error: the uplink is down\nshunt: hint: wait\n"},
		{"partly applied because of a signal", &exitError{Code: exitPartly, Err: context.Canceled}, false, true, 130, "shunt: error: interrupted: context canceled\n"},
		{"cancelled by ourselves", context.Canceled, false, false, 1, "shunt: error: context canceled\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, stdout, stderr := testApp()
			if code := a.report(classify(tt.err, !tt.beforeStart, tt.interrupted)); code != tt.code {
				t.Errorf("code %d, want %d", code, tt.code)
			}
			if diff := cmp.Diff(tt.stderr, stderr.String()); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout is for results: %s", stdout)
			}
		})
	}
}

func TestASignalEndsACommandWith130(t *testing.T) {
	a, _, _ := testApp()
	ctx, cancel := context.WithCancel(t.Context())
	root := newRootCommand(a)
	root.AddCommand(&cobra.Command{Use: "wait", RunE: func(cmd *cobra.Command, _ []string) error {
		cancel()
		<-cmd.Context().Done()
		return cmd.Context().Err()
	}})
	if code := a.execute(ctx, root, []string{"wait"}); code != exitInterrupted {
		t.Errorf("code %d", code)
	}
}

func TestPanicsAreNotSwallowed(t *testing.T) {
	a, _, _ := testApp()
	root := newRootCommand(a)
	root.AddCommand(&cobra.Command{Use: "fall", RunE: func(*cobra.Command, []string) error { panic("boom") }})
	defer func() {
		if recover() == nil {
			t.Error("the panic is gone")
		}
	}()
	a.execute(t.Context(), root, []string{"fall"})
}

// Commands written for this tree: everything that the tree promises of each of them.
func TestTheTree(t *testing.T) {
	a, _, _ := testApp()
	root := newRootCommand(a)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: Short is one phrase without a full stop: %q", c.CommandPath(), c.Short)
		}
		if c.Run != nil || c.RunE == nil {
			t.Errorf("%s: only RunE is watched", c.CommandPath())
		}
		if c.PersistentPreRunE != nil && c.HasParent() {
			t.Errorf("%s: hides the root's PersistentPreRunE", c.CommandPath())
		}
		if c.Args == nil && c.Name() != "help" && !strings.Contains(c.Use, "…") {
			t.Errorf("%s: says nothing about its arguments", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
}
