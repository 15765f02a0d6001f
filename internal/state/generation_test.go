package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func poolNames() []string { return []string{"foreign.tsv", "all.tsv", "working.tsv"} }

// poolFiles are three pools and a profile whose content names the generation.
func poolFiles(tag string) map[string][]byte {
	files := map[string][]byte{"conf/a.conf": []byte("key of " + tag), "pool.json": []byte("{}")}
	for _, name := range poolNames() {
		files[name] = []byte(tag + "\n")
	}
	return files
}

func beganOf(tag string) time.Time { return time.Unix(1767236400+int64(tag[0]), 123_456_789) }

func writeGeneration(t *testing.T, dir, tag string, keep int, keepPaths ...string) string {
	t.Helper()
	got, err := WriteGeneration(t.Context(), dir, beganOf(tag), poolFiles(tag), poolNames(), keep, keepPaths)
	must(t, err)
	return got
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	return listing(entries)
}

func TestGeneration(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pools")
	if _, err := CurrentGeneration(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before the first: %v", err)
	}
	for _, tag := range []string{"A", "B"} {
		gen := writeGeneration(t, dir, tag, 7)
		began := beganOf(tag)
		if want := filepath.Join(dir, "gen-"+strconv.FormatInt(began.UnixNano(), 10)); gen != want || gen != GenerationDir(dir, began) {
			t.Errorf("folder %s, want %s", gen, want)
		}
		if current, err := CurrentGeneration(dir); current != gen || err != nil {
			t.Errorf("current %s, %v", current, err)
		}
		for _, name := range poolNames() {
			path := filepath.Join(dir, name)
			fi, err := os.Stat(path)
			must(t, err)
			link, err := os.Lstat(path)
			must(t, err)
			target, _ := os.Readlink(path)
			if read(t, path) != tag+"\n" || target != "current/"+name {
				t.Errorf("%s -> %s holds %q", name, target, read(t, path))
			}
			if !fi.ModTime().Equal(began) || !link.ModTime().Equal(began) {
				t.Errorf("%s: mtime %v, of the link %v, want %v", name, fi.ModTime(), link.ModTime(), began)
			}
		}
		conf, err := os.Stat(filepath.Join(gen, "conf", "a.conf"))
		must(t, err)
		folder, err := os.Stat(filepath.Join(gen, "conf"))
		must(t, err)
		if conf.Mode().Perm() != 0o600 || folder.Mode().Perm() != 0o700 {
			t.Errorf("modes %v %v of keys", folder.Mode(), conf.Mode())
		}
	}
	if _, err := WriteGeneration(t.Context(), dir, beganOf("B"), poolFiles("C"), poolNames(), 7, nil); err == nil {
		t.Error("the current generation was written over")
	}
	noStrays(t, dir)
}

func TestGenerationPrune(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pools")
	var gens []string
	for _, tag := range strings.Split("ABCDEF", "") {
		gens = append(gens, writeGeneration(t, dir, tag, 7))
	}
	// A is named through the folder itself, B through a symlink from elsewhere.
	elsewhere := filepath.Join(t.TempDir(), "lane.conf")
	must(t, os.Symlink(filepath.Join(gens[1], "conf", "a.conf"), elsewhere))
	must(t, os.Mkdir(filepath.Join(dir, ".gen-5.partial"), 0o700))
	must(t, os.Mkdir(filepath.Join(dir, "gen-mine"), 0o700))
	gens = append(gens, writeGeneration(t, dir, "G", 3, filepath.Join(gens[0], "conf", "a.conf"), elsewhere))

	var want []string
	for _, i := range []int{0, 1, 4, 5, 6} {
		want = append(want, filepath.Base(gens[i]))
	}
	want = append([]string{"all.tsv", "current", "foreign.tsv"}, append(want, "gen-mine", "working.tsv")...)
	if diff := cmp.Diff(want, names(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	// The clock went back: the current one has the least number and stays all the same.
	old := writeGeneration(t, dir, "0", 1)
	if diff := cmp.Diff([]string{"all.tsv", "current", "foreign.tsv", filepath.Base(old), "gen-mine", "working.tsv"}, names(t, dir)); diff != "" {
		t.Errorf("left after the clock went back (-want +got):\n%s", diff)
	}
}

func TestGenerationRefusesNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pools")
	for what, tt := range map[string]struct {
		files  map[string][]byte
		mtimes []string
	}{
		"outside":          {map[string][]byte{"a": nil, "../x": nil}, []string{"a"}},
		"absolute":         {map[string][]byte{"a": nil, "/x": nil}, []string{"a"}},
		"hidden":           {map[string][]byte{"a": nil, ".x": nil}, []string{"a"}},
		"unclean":          {map[string][]byte{"a": nil, "x//y": nil}, []string{"a"}},
		"no pool file":     {map[string][]byte{"a": nil}, nil},
		"not among them":   {map[string][]byte{"a": nil}, []string{"b"}},
		"pool in a folder": {map[string][]byte{"c/a": nil}, []string{"c/a"}},
		"current":          {map[string][]byte{"current": nil}, []string{"current"}},
		"like a folder":    {map[string][]byte{"gen-1": nil}, []string{"gen-1"}},
	} {
		if _, err := WriteGeneration(t.Context(), dir, at(5), tt.files, tt.mtimes, 1, nil); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("something was written: %v", names(t, dir))
	}
}

func TestGenerationTakesOverPlainFiles(t *testing.T) {
	dir := t.TempDir()
	old := at(1767000000)
	for _, name := range poolNames()[:2] {
		write(t, filepath.Join(dir, name), "old\n")
		must(t, os.Chtimes(filepath.Join(dir, name), old, old))
	}
	gen := writeGeneration(t, dir, "A", 7)
	for _, name := range poolNames() {
		if got := read(t, filepath.Join(dir, name)); got != "A\n" {
			t.Errorf("%s holds %q", name, got)
		}
	}
	adopted := GenerationDir(dir, old)
	if fi, err := os.Stat(filepath.Join(adopted, "all.tsv")); err != nil || !fi.ModTime().Equal(old) || read(t, filepath.Join(adopted, "all.tsv")) != "old\n" {
		t.Errorf("the old files are not kept: %v, %v", names(t, dir), err)
	}
	// Someone replaces one of three by a plain file again.
	must(t, os.Remove(filepath.Join(dir, "all.tsv")))
	write(t, filepath.Join(dir, "all.tsv"), "by hand\n")
	next := writeGeneration(t, dir, "B", 7)
	if read(t, filepath.Join(dir, "all.tsv")) != "B\n" || next == gen {
		t.Errorf("all.tsv holds %q", read(t, filepath.Join(dir, "all.tsv")))
	}
}

// helpGeneration writes generation TAG and may die at a point.
func helpGeneration(dir string) error {
	tag := os.Getenv("TAG")
	_, err := WriteGeneration(mortal(), dir, beganOf(tag), poolFiles(tag), poolNames(), 1, nil)
	if err == nil {
		fmt.Println("done")
	}
	return err
}

// tags returns what the three names hold; "" = missing. The first is also checked for mtime.
func tags(t *testing.T, dir string) string {
	t.Helper()
	var got []string
	for _, name := range poolNames() {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		tag := strings.TrimSpace(string(b))
		got = append(got, tag)
		if fi, err := os.Stat(filepath.Join(dir, name)); err == nil && !fi.ModTime().Equal(beganOf(tag)) {
			t.Errorf("%s of %s has mtime %v", name, tag, fi.ModTime())
		}
	}
	return strings.Join(got, " ")
}

func TestKilledGenerationIsAllOrNothing(t *testing.T) {
	plain := func(t *testing.T, dir string) {
		must(t, os.MkdirAll(dir, 0o750))
		for _, name := range poolNames() {
			write(t, filepath.Join(dir, name), "A\n")
			must(t, os.Chtimes(filepath.Join(dir, name), beganOf("A"), beganOf("A")))
		}
	}
	for name, tt := range map[string]struct {
		before func(*testing.T, string)
		old    string
	}{
		"the first":             {func(*testing.T, string) {}, "  "},
		"after another":         {func(t *testing.T, dir string) { writeGeneration(t, dir, "A", 7) }, "A A A"},
		"in place of old files": {plain, "A A A"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]int{}
			for n := 1; ; n++ {
				dir := filepath.Join(t.TempDir(), "pools")
				tt.before(t, dir)
				c := startHelper(t, "generation", dir, []string{"TAG=B", "KILL_AT=" + strconv.Itoa(n)}, nil)
				lines, killed := c.rest(t)
				got := tags(t, dir)
				seen[got]++
				if got != tt.old && got != "B B B" || len(lines) > 0 && got != "B B B" {
					t.Errorf("killed at %d, %d acknowledged: the names hold %q", n, len(lines), got)
				}
				writeGeneration(t, dir, "C", 1)
				if got := tags(t, dir); got != "C C C" {
					t.Errorf("after the next run: %q", got)
				}
				noStrays(t, dir)
				gens, err := filepath.Glob(filepath.Join(dir, "gen-*"))
				must(t, err)
				if len(gens) != 1 {
					t.Errorf("left: %v", gens)
				}
				if !killed {
					break
				}
			}
			if seen[tt.old] == 0 || seen["B B B"] == 0 {
				t.Errorf("states seen: %v", seen)
			}
			t.Logf("states seen: %v", seen)
		})
	}
}

func TestReaderSeesOneGeneration(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pools")
	writeGeneration(t, dir, "A", 99)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	reads := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			gen, err := CurrentGeneration(dir)
			if err != nil {
				t.Error(err)
				return
			}
			got := map[string]bool{}
			for _, name := range poolNames() {
				b, err := os.ReadFile(filepath.Join(gen, name))
				if err != nil {
					t.Error(err)
				}
				got[string(b)] = true
			}
			if len(got) != 1 {
				t.Errorf("one reader saw %v", got)
			}
			reads++
		}
	})
	for _, tag := range strings.Split("BCDEFGHIJKLMNOP", "") {
		writeGeneration(t, dir, tag, 99)
	}
	close(stop)
	wg.Wait()
	if reads == 0 {
		t.Error("nothing was read")
	}
}
