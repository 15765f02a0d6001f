package knock

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

func TestParity(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	const secret = "s3cret-of-the-forwarding"
	one, same, other := file("one", secret), file("same", secret), file("other", "another"+secret)
	big := file("big", strings.Repeat("x", parityLimit+1))
	whole := file("whole", strings.Repeat("x", parityLimit))
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	s, o := sum(secret)[:12], sum("another" + secret)[:12]
	path := func(name, path string) edge.ParityMember { return edge.ParityMember{Name: name, Path: path} }
	command := func(name string, argv ...string) edge.ParityMember {
		return edge.ParityMember{Name: name, Command: argv}
	}
	hashes := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	tests := map[string]struct {
		group edge.ParityGroup
		want  edge.Parity
	}{
		"files that are equal": {
			edge.ParityGroup{Members: []edge.ParityMember{path("a", one), path("b", same)}},
			edge.Parity{Equal: true, Hashes: hashes("a", s, "b", s)},
		},
		"a file and what a command prints": {
			edge.ParityGroup{Members: []edge.ParityMember{path("a", one), command("b", "cat", same)}},
			edge.Parity{Equal: true, Hashes: hashes("a", s, "b", s)},
		},
		"one differs": {
			edge.ParityGroup{Members: []edge.ParityMember{path("a", one), path("b", same), command("c", "cat", other)}},
			edge.Parity{Hashes: hashes("a", s, "b", s, "c", o)},
		},
		"as the reference says": {
			edge.ParityGroup{Reference: strings.ToUpper(sum(secret)), Members: []edge.ParityMember{path("a", one)}},
			edge.Parity{Equal: true, Hashes: hashes("a", s)},
		},
		"equal, but not to the reference": {
			edge.ParityGroup{Reference: sum("old"), Members: []edge.ParityMember{path("a", one), path("b", same)}},
			edge.Parity{Hashes: hashes("a", s, "b", s)},
		},
		"some can't be read": {
			edge.ParityGroup{Members: []edge.ParityMember{
				path("a", one), path("gone", filepath.Join(dir, "none")), path("folder", dir), path("fifo", pipe), path("big", big),
				command("sick", "/bin/sh", "-c", "cat "+one+"; cat "+one+" >&2; exit 4"), command("wide", "head", "-c", "16777217", "/dev/zero"),
				command("none", "/no/such"),
				{Name: "empty"},
			}},
			edge.Parity{Equal: true, Hashes: hashes("a", s), Errors: map[string]string{
				"gone": "no such file or directory", "folder": "not a regular file", "fifo": "not a regular file", "big": "more than 16 MiB",
				"sick": "command /bin/sh: exit status 4", "wide": "command head: more than 16 MiB",
				"none":  "command /no/such: fork/exec /no/such: no such file or directory",
				"empty": "exactly one of path and command is needed",
			}},
		},
		"none can be read": {
			edge.ParityGroup{Members: []edge.ParityMember{path("a", filepath.Join(dir, "none"))}},
			edge.Parity{Errors: map[string]string{"a": "no such file or directory"}},
		},
		"one takes too long": {
			edge.ParityGroup{Timeout: 500 * time.Millisecond, Members: []edge.ParityMember{path("a", one), command("slow", "sleep", "60")}},
			edge.Parity{Equal: true, Hashes: hashes("a", s), Errors: map[string]string{"slow": "command sleep: not ended in time: context deadline exceeded"}},
		},
		"just small enough": {
			edge.ParityGroup{Members: []edge.ParityMember{path("a", whole), command("b", "cat", whole)}},
			edge.Parity{Equal: true, Hashes: hashes("a", sum(strings.Repeat("x", parityLimit))[:12], "b", sum(strings.Repeat("x", parityLimit))[:12])},
		},
		"empty ones": {
			edge.ParityGroup{Members: []edge.ParityMember{command("a", "true"), command("b", "true")}},
			edge.Parity{Equal: true, Hashes: hashes("a", "e3b0c44298fc", "b", "e3b0c44298fc")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := New(func() time.Time { return time.Unix(1_700_000_000, 0) })
			got := p.Parity(t.Context(), tt.group)
			tt.want.At = 1_700_000_000
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("parity (-want +got):\n%s", diff)
			}
			b, err := json.Marshal(got)
			if err != nil || strings.Contains(string(b), "s3cret") || strings.Contains(string(b), sum(secret)) {
				t.Errorf("content, or a whole hash, is told: %s, %v", b, err)
			}
		})
	}
}

func TestParityAsTheDomainWantsIt(t *testing.T) {
	e := edge.Env{Prober: New(time.Now), Parity: New(time.Now).Parity}
	if got := e.Parity(t.Context(), edge.ParityGroup{}); got.Equal || got.At == 0 {
		t.Errorf("parity of nobody %+v", got)
	}
}
