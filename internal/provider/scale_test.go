package provider

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
)

// manyProfiles is a zip of n profiles with as many client keys, and one duplicate of each tenth.
func manyProfiles(t testing.TB, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "many.zip")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := zip.NewWriter(f)
	for i := range n {
		m, err := w.Create(fmt.Sprintf("c%d/server.conf", i))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(m, confOf(i, i/10, endpoint(i-i%10/9))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAHundredThousandProfilesStayWithinBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 100,000 files")
	}
	const n = 100_000
	src := egress.Source{Name: "hmn", Type: egress.SourceArchive, Path: manyProfiles(t, n), Timeout: 5 * time.Minute}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin := time.Now()
	l, err := Fetch(t.Context(), []egress.Source{src}, workdir(t), Options{})
	took := time.Since(begin)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if err != nil || l.Count() != n*9/10 || len(l.Skipped) != n/10 {
		t.Fatalf("want %d entries and %d skipped, got %d and %d, %v", n*9/10, n/10, l.Count(), len(l.Skipped), err)
	}
	held := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d profiles in %s, %d MB held, %d MB from the system", n, took.Round(time.Millisecond), held>>20, (after.Sys-before.Sys)>>20)
	if held > 256<<20 {
		t.Errorf("holds %d MB, want at most 256", held>>20)
	}
	if last := l.Entries[len(l.Entries)-1].File; last != fmt.Sprintf("server~%d.conf", l.Count()) {
		t.Errorf("the last copy is %s", last)
	}
	runtime.KeepAlive(l)
}

func BenchmarkFetch(b *testing.B) {
	path := manyProfiles(b, 1000)
	for b.Loop() {
		l, err := Fetch(b.Context(), []egress.Source{{Name: "hmn", Type: egress.SourceArchive, Path: path}}, workdir(b), Options{})
		if err != nil || l.Count() != 900 {
			b.Fatal(l.Count(), err)
		}
	}
}
