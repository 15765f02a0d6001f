package secret_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shunt-net/shunt/internal/secret"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path, want, fault string
	}{
		{"its owner's", file("own", "\ufeffhush\n", 0o600), "hush\n", ""},
		{"as large as may be", file("full", strings.Repeat("x", secret.Limit), 0o400), strings.Repeat("x", secret.Limit), ""},
		{"larger", file("large", strings.Repeat("x", secret.Limit+1), 0o600), "", "larger than"},
		{"the group's too", file("group", "hush", 0o640), "", "0640"},
		{"everybody's", file("world", "hush", 0o604), "", "0604"},
		{"a pipe that nobody writes to", pipe, "", "not a regular file"},
		{"a folder", dir, "", "not a regular file"},
		{"none", filepath.Join(dir, "none"), "", "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := secret.ReadFile(tt.path)
			if tt.fault == "" {
				if err != nil || string(b) != tt.want {
					t.Errorf("%d bytes, %v", len(b), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.fault) || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want %s, and neither text nor path", err, tt.fault)
			}
		})
	}
}
