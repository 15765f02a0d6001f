package provider

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

func link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func TestDirTakesWhatItShouldAndTellsOfTheRest(t *testing.T) {
	dir, work := t.TempDir(), workdir(t)
	outside := write(t, filepath.Join(t.TempDir(), "out.conf"), conf(99))
	for name, body := range map[string]string{
		"b.conf":              conf(2),
		"a.CONF":              conf(1),
		"x/y/z/deep.conf":     conf(3),
		"x/y/z/w/far.conf":    conf(4),
		"x/b.conf":            conf(5),
		"notes.txt":           conf(6),
		".hidden.conf":        conf(7),
		".git/c.conf":         conf(8),
		"x/broken.conf":       "[Interface]\nPrivateKey = " + key(8, 3)[:20] + "\n",
		"x/newer.conf":        strings.Replace(conf(9), "[Peer]", "Qq = 1\n[Peer]", 1),
		"x/page.conf":         "<html>",
		"x/zero-port.conf":    confOf(10, 1, "10.0.0.1:0"),
		"x/name.conf":         confOf(11, 1, "de.example:1"),
		"y/copy.conf":         conf(2),
		"y/same-server.conf":  confOf(2, 1, "10.0.9.9:1"),
		"y/other-key.conf":    confOf(2, 2, "10.0.9.9:2"),
		"y/big.conf":          strings.Repeat("#", profile.MaxSize+1),
		"y/awg.conf":          strings.Replace(conf(12), "[Peer]", "Jc = 4\nI1 = <b 0xff><r 4>\n[Peer]", 1),
		"y/ta\tb\nc\xff.conf": conf(13),
	} {
		write(t, filepath.Join(dir, name), body)
	}
	link(t, "x/y/z/deep.conf", filepath.Join(dir, "in.conf"))
	link(t, "../notes.txt", filepath.Join(dir, "x/up.conf"))
	link(t, outside, filepath.Join(dir, "z1.conf"))
	link(t, "../../"+filepath.Base(outside), filepath.Join(dir, "z2.conf"))
	link(t, "nowhere", filepath.Join(dir, "z3.conf"))
	link(t, "x", filepath.Join(dir, "z4"))
	link(t, filepath.Dir(outside), filepath.Join(dir, "z5"))
	if err := syscall.Mkfifo(filepath.Join(dir, "z6.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := fetchOne(t, work, egress.Source{Type: egress.SourceDir, Path: dir})
	check(
		t, work, l, err,
		"+ a.conf "+endpoint(1),
		"+ b.conf "+endpoint(2),
		"+ in.conf "+endpoint(3),
		"+ b~2.conf "+endpoint(5),
		"+ up.conf "+endpoint(6),
		"+ awg.conf "+endpoint(12),
		"+ other-key.conf 10.0.9.9:2",
		"+ ta_b_c_.conf "+endpoint(13),
		"- x/broken.conf: line 2: PrivateKey: not a key: 20 characters, want 44 of base64",
		"- x/name.conf: endpoint de.example:1: not a literal address",
		`- x/newer.conf: line 4: unsupported profile: unknown key "Qq" in [Interface], the nearest known key is "H1"`,
		"- x/page.conf: line 1: not a `Key = value` line",
		"- x/y/z/deep.conf: the same endpoint "+endpoint(3)+" as in.conf of source hmn",
		"- x/y/z/w: more than 3 folders deep",
		"- x/zero-port.conf: endpoint 10.0.0.1:0: port 0",
		"- y/big.conf: larger than 1 MiB: not a profile",
		"- y/copy.conf: the same endpoint "+endpoint(2)+" as b.conf of source hmn",
		"- y/same-server.conf: the same server key and client key as b.conf of source hmn",
		"- z1.conf: a link that leaves the folder or cannot be followed: path escapes from parent",
		"- z2.conf: a link that leaves the folder or cannot be followed: path escapes from parent",
		"- z3.conf: a link to nothing",
		"- z4: a link to a folder is not followed",
		"- z5: a link that leaves the folder or cannot be followed: path escapes from parent",
		"- z6.conf: not a regular file",
	)
	if p := l.Entries[5].Profile; !p.Obfuscated() || len(p.Obfuscation) != 2 {
		t.Errorf("want the AmneziaWG keys of awg.conf kept, got %v", p.Obfuscation)
	}
	back, err := profile.ParseFile(l.Entries[0].Path)
	if err != nil || back.Endpoint() != endpoint(1) {
		t.Errorf("the copy reads as %s, %v", back.Endpoint(), err)
	}
}

func TestDirThatYieldsNothingFails(t *testing.T) {
	plain := write(t, filepath.Join(t.TempDir(), "file"), "")
	broken := t.TempDir()
	write(t, filepath.Join(broken, "a.conf"), "")
	write(t, filepath.Join(broken, "b.conf"), "x")
	many := t.TempDir()
	for _, n := range []string{"1.conf", "2.conf", "3.conf"} {
		write(t, filepath.Join(many, n), conf(int(n[0])))
	}
	for _, tc := range []struct {
		name, reason string
		src          egress.Source
	}{
		{"no path", "no path", egress.Source{}},
		{"a missing folder", "no such file", egress.Source{Path: filepath.Join(plain + "x")}},
		{"a file", "not a directory", egress.Source{Path: plain}},
		{"an empty folder", "no .conf file in it", egress.Source{Path: t.TempDir()}},
		{"nothing that parses", "none of its files is usable: 2 skipped, the first is a.conf: the file is empty", egress.Source{Path: broken}},
		{"more files than allowed", "holds more files than max_files: 2 allows", egress.Source{Path: many, MaxFiles: 2}},
		{"more bytes than allowed", "larger than max_bytes: 500 allows", egress.Source{Path: many, MaxBytes: 500}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			tc.src.Type = egress.SourceDir
			l, err := fetchOne(t, work, tc.src)
			checkRefused(t, work, l, err, tc.reason)
		})
	}
}

func TestOneFailingSourceDoesNotHinderTheOthers(t *testing.T) {
	work, one, two := workdir(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(one, "a.conf"), conf(1))
	write(t, filepath.Join(two, "a.conf"), conf(2))
	write(t, filepath.Join(two, "b.conf"), conf(1))
	bad := t.TempDir()
	write(t, filepath.Join(bad, "a.conf"), conf(2))
	write(t, filepath.Join(bad, "b.conf"), conf(3))
	l, err := Fetch(t.Context(), []egress.Source{
		{Name: "none", Type: egress.SourceDir, Path: one + "-none"},
		{Name: "kind", Type: "rsync"},
		{Name: "one", Type: egress.SourceDir, Path: one},
		// What a source put on the shelf before it failed must not hide a later one's.
		{Name: "bad", Type: egress.SourceDir, Path: bad, MaxBytes: 300},
		{Name: "two", Type: egress.SourceDir, Path: two},
	}, work, Options{})
	// The name of the undone copy is not used again.
	check(
		t, work, l, err,
		"+ a.conf "+endpoint(1),
		"+ a~3.conf "+endpoint(2),
		"- b.conf: the same endpoint "+endpoint(1)+" as a.conf of source one",
	)
	if len(l.Failed) != 3 || !strings.HasPrefix(l.Failed[0].Error(), "source none: folder ") ||
		l.Failed[1].Error() != `source kind: unknown type "rsync"` || l.Failed[2].Error() != "source bad: larger than max_bytes: 300 allows" {
		t.Errorf("failed: %q", l.Failed)
	}
}

func TestFetchFailsWithoutAnySource(t *testing.T) {
	if _, err := Fetch(t.Context(), nil, workdir(t), Options{}); err == nil {
		t.Error("want an error without sources")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.conf"), conf(1))
	l, err := Fetch(ctx, []egress.Source{{Name: "d", Type: egress.SourceDir, Path: dir}}, workdir(t), Options{})
	if err == nil || l.Count() != 0 {
		t.Errorf("want an error after a cancel, got %d entries, %v", l.Count(), err)
	}
	file := write(t, filepath.Join(t.TempDir(), "f"), "")
	if _, err := Fetch(t.Context(), []egress.Source{{Name: "d", Type: egress.SourceDir, Path: dir}}, filepath.Join(file, "x"), Options{}); err == nil {
		t.Error("want an error where the folder cannot be made")
	}
}

func TestAFetchIntoAUsedFolderOverwritesNothing(t *testing.T) {
	dir, work := t.TempDir(), workdir(t)
	write(t, filepath.Join(dir, "a.conf"), conf(1))
	old := write(t, filepath.Join(work, "a.conf"), "old")
	l, err := fetchOne(t, work, egress.Source{Type: egress.SourceDir, Path: dir})
	if err != nil || l.Count() != 1 || l.Entries[0].File != "a~2.conf" {
		t.Errorf("want a~2.conf, got %v, %v", l.Entries, err)
	}
	if b, err := os.ReadFile(old); err != nil || string(b) != "old" {
		t.Errorf("the old file reads %q, %v", b, err)
	}
}
