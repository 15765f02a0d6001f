package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

func TestACommandFillsItsFolder(t *testing.T) {
	work := workdir(t)
	src := t.TempDir()
	write(t, filepath.Join(src, "a.conf"), conf(1))
	write(t, filepath.Join(src, "b.conf"), conf(2))
	script := fmt.Sprintf(`set -e
test -d "$SHUNT_OUT"; test -z "$(ls -A "$SHUNT_OUT")"; test -z "$SHUNT_TEST_LEAK"
mkdir "$SHUNT_OUT/sub"; cp %[1]s/a.conf "$SHUNT_OUT"; cp %[1]s/b.conf "$SHUNT_OUT/sub"
ln -s %[1]s/a.conf "$SHUNT_OUT/z.conf"; echo talk; echo more >&2`, src)
	t.Setenv("SHUNT_TEST_LEAK", "1")
	l, err := fetchOne(t, work, egress.Source{Type: egress.SourceExec, Command: sh(script)})
	check(
		t, work, l, err, "+ a.conf "+endpoint(1), "+ b.conf "+endpoint(2),
		"- z.conf: a link that leaves the folder or cannot be followed: path escapes from parent",
	)
}

func TestACommandThatFailsLeavesNothing(t *testing.T) {
	work0 := t.TempDir()
	file := write(t, filepath.Join(work0, "a.conf"), conf(1))
	for _, tc := range []struct {
		name, reason string
		src          egress.Source
	}{
		{"none", "no command", egress.Source{}},
		{"one that is not there", "shunt-no-such-command", egress.Source{Command: []string{"shunt-no-such-command"}}},
		{"a status", "exit status 3: token expired", egress.Source{Command: sh("cp " + file + ` "$SHUNT_OUT"; echo out; echo one >&2; echo token expired >&2; exit 3`)}},
		{"nothing written", "no .conf file in it", egress.Source{Command: sh("true")}},
		{"its folder removed", "folder ", egress.Source{Command: sh(`rmdir "$SHUNT_OUT"`)}},
		{"too many files", "more files than max_files: 2 allows", egress.Source{MaxFiles: 2, Command: sh(`for i in 1 2 3; do cp ` + file + ` "$SHUNT_OUT/$i.conf"; done`)}},
		{"too slow", "not done within 200ms", egress.Source{Timeout: 200 * time.Millisecond, Command: sh("sleep 60")}},
		{"too much while it runs", "larger than max_bytes: 100000 allows", egress.Source{
			MaxBytes: 100_000, Timeout: 45 * time.Second,
			Command: sh(`i=0; while :; do i=$((i+1)); head -c 20000 /dev/zero > "$SHUNT_OUT/$i.bin"; sleep 0.01; done`),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			tc.src.Type = egress.SourceExec
			begin := time.Now()
			l, err := fetchOne(t, work, tc.src)
			checkRefused(t, work, l, err, tc.reason)
			if took := time.Since(begin); took > 40*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestABackgroundChildDoesNotHoldTheFetch(t *testing.T) {
	work, dir := workdir(t), t.TempDir()
	file := write(t, filepath.Join(dir, "a.conf"), conf(1))
	pid := filepath.Join(dir, "pid")
	begin := time.Now()
	l, err := fetchOne(t, work, egress.Source{
		Type: egress.SourceExec, Timeout: 50 * time.Second,
		Command: sh(fmt.Sprintf(`cp %s "$SHUNT_OUT"; sleep 60 & echo $! > %s`, file, pid)),
	})
	b, readErr := os.ReadFile(pid)
	if readErr != nil {
		t.Fatal(readErr)
	}
	var n int
	if _, err := fmt.Sscan(strings.TrimSpace(string(b)), &n); err == nil && n > 1 {
		if p, err := os.FindProcess(n); err == nil {
			_ = p.Kill()
		}
	}
	check(t, work, l, err, "+ a.conf "+endpoint(1))
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("took %s", took)
	}
}
