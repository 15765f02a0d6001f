package rings_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// verifyUnits runs systemd-analyze over copies of the units in which the product's
// binary is one that exists here, and returns what it complains about.
func verifyUnits(t *testing.T, edit func(name, text string) string) string {
	t.Helper()
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze on this host; make test installs it")
	}
	files, err := filepath.Glob(filepath.Join(root, "systemd", "*.*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no units found: %v", err)
	}
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(f)
		// A template is verified as an instance of it.
		name = strings.Replace(name, "@.", "@egress1.", 1)
		copied := filepath.Join(dir, name)
		body := edit(name, strings.ReplaceAll(string(text), "/usr/local/bin/shunt", "/bin/true"))
		if err := os.WriteFile(copied, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, copied)
	}
	out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput()
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

func TestUnitsAreCleanForSystemd(t *testing.T) {
	t.Parallel()
	if got := verifyUnits(t, func(_, text string) string { return text }); got != "" {
		t.Error(got)
	}
}

func TestAMisspelledUnitSettingIsFound(t *testing.T) {
	t.Parallel()
	got := verifyUnits(t, func(_, text string) string {
		return strings.ReplaceAll(text, "SuccessExitStatus=", "SucessExitStatus=")
	})
	if !strings.Contains(got, "SucessExitStatus") {
		t.Errorf("systemd-analyze did not complain about an unknown key: %q", got)
	}
}

// TestUnitsKeepTheContractOfExitCodes reads what systemd-analyze does not know: which
// codes of ours are no failure, and that a rebalance waits for the refresh.
func TestUnitsKeepTheContractOfExitCodes(t *testing.T) {
	t.Parallel()
	tests := []struct{ unit, line string }{
		{"shunt-egress-refresh.service", "SuccessExitStatus=4 75 130"},
		{"shunt-egress-rebalance.service", "SuccessExitStatus=4 75 130"},
		{"shunt-egress-repair.service", "SuccessExitStatus=4 75 130"},
		{"shunt-egress-plane.service", "SuccessExitStatus=4 75 130"},
		{"shunt-edge-retarget.service", "SuccessExitStatus=4 75 130"},
		{"shunt-watchdog@.service", "SuccessExitStatus=4 75 130"},
		{"shunt-watchdog-a.timer", "OnCalendar=*-*-* *:00/2:00"},
		{"shunt-watchdog-b.timer", "OnCalendar=*-*-* *:01/2:00"},
		{"shunt-watchdog-a.timer", "Unit=shunt-watchdog@a.service"},
		{"shunt-watchdog-b.timer", "Unit=shunt-watchdog@b.service"},
		{"shunt-egress-plane.service", "Before=network-pre.target shutdown.target"},
		{"shunt-egress-rebalance.service", "After=network-online.target shunt-egress-plane.service shunt-egress-refresh.service"},
		{"shunt-egress-rebalance.timer", "After=shunt-egress-refresh.timer"},
		{"shunt-egress-refresh.timer", "OnCalendar=*-*-* 04:20:00"},
		{"shunt-egress-rebalance.timer", "OnCalendar=*-*-* 04:40:00"},
	}
	for _, tt := range tests {
		t.Run(tt.unit+" has "+tt.line, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join(root, "systemd", tt.unit))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), "\n"+tt.line+"\n") {
				t.Errorf("the line is missing")
			}
		})
	}
}
