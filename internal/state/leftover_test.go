package state

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Intents and profiles are written under locks that state does not know, so that a writer
// can't tell a killed one's temporary file from that of one that is alive: but by its age.
func TestWriteFileTakesAwayWhatKilledWritersLeft(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{
		".lane.conf123": 2 * time.Minute, ".lane.conf456": 5 * time.Second, // one that is alive
		".lane.conf.bak1": time.Hour, ".lane.conf": time.Hour, "lane.conf7": time.Hour, ".other.conf1": time.Hour,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := WriteFile(t.Context(), filepath.Join(dir, "lane.conf"), []byte("new"), 0o600); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		want := []string{".lane.conf", ".lane.conf.bak1", ".lane.conf456", ".other.conf1", "lane.conf", "lane.conf7"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("files (-want +got):\n%s", diff)
		}
	}
}
