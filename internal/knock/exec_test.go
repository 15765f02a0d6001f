package knock

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/edge"
)

func TestExec(t *testing.T) {
	addr := netip.MustParseAddrPort("10.0.0.29:25565")
	sh := func(s string) []string { return []string{"/bin/sh", "-c", s} }
	miss := func(reason string) edge.Answer { return edge.Answer{Outcome: edge.Miss, Reason: reason} }
	tests := map[string]struct {
		argv []string
		cap  time.Duration
		want edge.Answer
	}{
		"status 0":                    {argv: []string{"true"}, want: good()},
		"another status":              {argv: []string{"false"}, want: miss("status 1")},
		"the last line is the reason": {argv: sh("echo asked; echo 'no\x1b[0m database' >&2; exit 3"), want: miss("status 3: no [0m database")},
		"what is asked for is filled in": {
			argv: []string{"test", "{address}:{port}/{candidate}/{other}", "=", "10.0.0.29:25565/a/{other}"}, want: good(),
		},
		"no shell sees it":      {argv: []string{"test", "{candidate};false", "=", "a;false"}, want: good()},
		"no such command":       {argv: []string{"/no/such"}, want: edge.Answer{Reason: "command /no/such: fork/exec /no/such: no such file or directory"}},
		"no command":            {want: edge.Answer{Reason: "command: no name"}},
		"a signal of another":   {argv: sh("kill -9 $$"), want: edge.Answer{Reason: "ended by signal 9"}},
		"no end within the cap": {argv: []string{"sleep", "60"}, cap: 100 * time.Millisecond, want: miss("no end within 100ms")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tgt := target(addr, edge.Probe{Type: edge.ProbeExec, Command: tt.argv, Cap: tt.cap})
			check(t, steady(t, func() edge.Answer { return New(time.Now).Probe(t.Context(), tgt) }), tt.want)
		})
	}
}

func TestExecLeavesNobodyBehind(t *testing.T) {
	for name, script := range map[string]string{
		"polite": `sleep 100 & echo $! >%s; wait`,
		"deaf":   `trap '' TERM; sleep 100 & echo $! >%s; while :; do wait; done`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pid")
			argv := []string{"/bin/sh", "-c", fmt.Sprintf(script, file)}
			began := time.Now()
			a := New(time.Now).Probe(t.Context(), target(netip.AddrPort{}, edge.Probe{Type: edge.ProbeExec, Command: argv, Cap: 300 * time.Millisecond}))
			if took := time.Since(began); a.Outcome == edge.Good || took > 3*time.Second {
				t.Errorf("answer %+v after %v", a, took)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil {
				t.Fatal(err)
			}
			poll(t, "the command's child to end", func() bool {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				return err != nil || strings.Contains(string(b), ") Z ")
			})
		})
	}
}

func TestExecThatIsCalledOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	a := New(time.Now).Probe(ctx, target(netip.AddrPort{}, edge.Probe{Type: edge.ProbeExec, Command: []string{"sleep", "60"}, Cap: time.Minute}))
	if diff := cmp.Diff(edge.Answer{Reason: "given up early: context canceled"}, facts(t, a)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}
