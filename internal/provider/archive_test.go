package provider

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// packers are the kinds of archive, each with a name that tells something else: the
// content decides.
func packers() map[string]func(testing.TB, ...member) []byte {
	return map[string]func(testing.TB, ...member) []byte{
		"zip.tar.gz": makeZip,
		"tar.gz.zip": func(t testing.TB, m ...member) []byte { return makeGzip(t, makeTar(t, m...)) },
		"tar.zip":    makeTar,
	}
}

func fetchArchive(t testing.TB, work string, body []byte, src egress.Source) (Listing, error) {
	t.Helper()
	src.Type = egress.SourceArchive
	src.Path = write(t, filepath.Join(t.TempDir(), "archive"), string(body))
	return fetchOne(t, work, src)
}

func TestArchiveTakesWhatItShouldAndTellsOfTheRest(t *testing.T) {
	for name, pack := range packers() {
		t.Run(name, func(t *testing.T) {
			work := workdir(t)
			body := pack(
				t,
				member{name: "./de/a.conf", body: conf(1)},
				member{name: "nl/a.conf", body: conf(2)},
				member{name: "nl/a.conf", body: conf(3)},
				member{name: "nl/./a.conf", body: conf(4)},
				member{name: `win\dows.conf`, body: conf(5)},
				member{name: "readme.txt", body: "hello"},
				member{name: "__MACOSX/._a.conf", body: "\x00\x05\x16"},
				member{name: "../slip.conf", body: conf(6)},
				member{name: "a/../../slip.conf", body: conf(6)},
				member{name: `..\slip.conf`, body: conf(6)},
				member{name: "/abs.conf", body: conf(6)},
				member{name: `C:\abs.conf`, body: conf(6)},
				member{name: "1/2/3/4/5/6/7/8/ok.conf", body: conf(7)},
				member{name: "1/2/3/4/5/6/7/8/9/deep.conf", body: conf(8)},
				member{name: "link.conf", kind: tar.TypeSymlink, link: "/etc/passwd"},
				member{name: "device.conf", kind: tar.TypeChar},
				member{name: "pipe.conf", kind: tar.TypeFifo},
				member{name: "inner.zip", body: "PK"},
				member{name: "inner.tar.gz", body: "x"},
				member{name: "big.conf", body: strings.Repeat("#", profile.MaxSize+1)},
				member{name: "broken.conf", body: "[Interface]\nMTU = x\n"},
				member{name: "copy.conf", body: conf(1)},
				member{name: "-rf \u202e\n.conf", body: conf(9)},
				member{name: strings.Repeat("n", 90) + "/" + strings.Repeat("ü", 120) + ".conf", body: conf(10)},
			)
			l, err := fetchArchive(t, work, body, egress.Source{})
			for i, s := range l.Skipped {
				l.Skipped[i].Reason, _, _ = strings.Cut(s.Reason, " but ") // only tar tells the kinds apart
			}
			check(
				t, work, l, err,
				"+ a.conf "+endpoint(1),
				"+ a~2.conf "+endpoint(2),
				"+ dows.conf "+endpoint(5),
				"+ ok.conf "+endpoint(7),
				"+ -rf __.conf "+endpoint(9),
				"+ "+strings.Repeat("ü", 100)+".conf "+endpoint(10),
				"- nl/a.conf: the archive holds this name a second time",
				"- nl/a.conf: the archive holds this name a second time",
				"- ../slip.conf: a path that leaves the folder",
				"- a/../../slip.conf: a path that leaves the folder",
				`- ..\slip.conf: a path that leaves the folder`,
				"- /abs.conf: an absolute path",
				`- C:\abs.conf: an absolute path`,
				"- 1/2/3/4/5/6/7/8/9/deep.conf: more than 8 folders deep",
				"- link.conf: not a regular file",
				"- device.conf: not a regular file",
				"- pipe.conf: not a regular file",
				"- inner.zip: an archive inside the archive is not opened",
				"- inner.tar.gz: an archive inside the archive is not opened",
				"- big.conf: larger than 1 MiB: not a profile",
				`- broken.conf: line 2: MTU: "x" is not a number`,
				"- copy.conf: the same endpoint "+endpoint(1)+" as a.conf of source hmn",
			)
		})
	}
}

func TestAHardLinkOutOfATarIsNotFollowed(t *testing.T) {
	work := workdir(t)
	l, err := fetchArchive(t, work, makeTar(
		t,
		member{name: "a.conf", body: conf(1)},
		member{name: "b.conf", kind: tar.TypeLink, link: "/etc/shadow"},
		member{name: "link", kind: tar.TypeSymlink, link: "/tmp"},
		member{name: "link/c.conf", body: conf(2)},
	), egress.Source{})
	check(
		t, work, l, err, "+ a.conf "+endpoint(1), "+ c.conf "+endpoint(2),
		"- b.conf: not a regular file but a hard link", "- link: not a regular file but a symbolic link",
	)
}

func TestEveryTruncationOfAnArchiveIsRefused(t *testing.T) {
	for name, pack := range packers() {
		t.Run(name, func(t *testing.T) {
			whole := pack(t, member{name: "a.conf", body: conf(1)}, member{name: "b.conf", body: conf(2)}, member{name: "readme", body: "x"})
			step := 1
			if name == "tar.zip" {
				step = 64
			}
			least := len(whole)
			if name == "tar.zip" {
				// The second of the two blocks of zeros adds nothing.
				least -= 512
			}
			file := filepath.Join(t.TempDir(), "archive")
			work := workdir(t)
			for n := 0; n < least; n += step {
				write(t, file, string(whole[:n]))
				l, err := fetchOne(t, work, egress.Source{Type: egress.SourceArchive, Path: file})
				if err == nil || l.Count() != 0 {
					t.Fatalf("cut to %d of %d bytes: want an error, got %d entries", n, len(whole), l.Count())
				}
			}
			checkFolder(t, work, Listing{})
			write(t, file, string(whole))
			if l, err := fetchOne(t, work, egress.Source{Type: egress.SourceArchive, Path: file}); err != nil || l.Count() != 2 {
				t.Errorf("the whole one: want 2 entries, got %d, %v", l.Count(), err)
			}
		})
	}
}

func TestArchiveBombsAreRefused(t *testing.T) {
	zeros := strings.Repeat("\x00", 900<<10)
	var big, many, junk []member
	big = append(big, member{name: "good.conf", body: conf(1)})
	for i := range 40 {
		big = append(big, member{name: fmt.Sprintf("%d.conf", i), body: zeros})
		many = append(many, member{name: fmt.Sprintf("%d.conf", i), body: conf(i)})
	}
	for i := range 1100 {
		junk = append(junk, member{name: fmt.Sprintf("%d.txt", i)})
	}
	junk = append(junk, member{name: "a.conf", body: conf(1)})
	for name, pack := range packers() {
		for _, tc := range []struct {
			name, reason string
			members      []member
			src          egress.Source
		}{
			{"bytes", "larger than max_bytes: 10000000 allows", big, egress.Source{MaxBytes: 10_000_000}},
			{"files", "more files than max_files: 39 allows", many, egress.Source{MaxFiles: 39}},
			{"members that are no profiles", "more files than max_files: 10 allows", junk, egress.Source{MaxFiles: 10}},
		} {
			t.Run(name+" of too many "+tc.name, func(t *testing.T) {
				work := workdir(t)
				l, err := fetchArchive(t, work, pack(t, tc.members...), tc.src)
				checkRefused(t, work, l, err, tc.reason)
				if len(l.Skipped) > 100 {
					t.Errorf("%d lines about a refused archive", len(l.Skipped))
				}
			})
		}
	}
	t.Run("gzip of one huge other member", func(t *testing.T) {
		work := workdir(t)
		body := makeGzip(t, makeTar(t, member{name: "a.conf", body: conf(1)}, member{name: "x.bin", body: strings.Repeat("\x00", 30<<20)}))
		l, err := fetchArchive(t, work, body, egress.Source{MaxBytes: 20 << 20})
		checkRefused(t, work, l, err, "larger than max_bytes")
	})
	t.Run("gzip of zeros behind the tar", func(t *testing.T) {
		work := workdir(t)
		body := makeGzip(t, append(makeTar(t, member{name: "a.conf", body: conf(1)}), make([]byte, 30<<20)...))
		l, err := fetchArchive(t, work, body, egress.Source{MaxBytes: 1 << 20, MaxFiles: 1})
		checkRefused(t, work, l, err, "larger than max_bytes")
	})
	t.Run("a zip whose directory lies about a size", func(t *testing.T) {
		work := workdir(t)
		body := makeZip(t, member{name: "a.conf", body: zeros + zeros})
		at := bytes.LastIndex(body, []byte("PK\x01\x02"))
		binary.LittleEndian.PutUint32(body[at+24:], 100)
		l, err := fetchArchive(t, work, body, egress.Source{})
		checkRefused(t, work, l, err, "the archive is")
	})
	t.Run("a directory that is never read in, for it is too long", func(t *testing.T) {
		work := workdir(t)
		// Without an end mark it would be called damaged as soon as it is opened.
		l, err := fetchArchive(t, work, []byte("PK\x03\x04"+strings.Repeat("PK\x01\x02", 1100)), egress.Source{MaxFiles: 10})
		checkRefused(t, work, l, err, "more files than max_files: 10 allows")
	})
	t.Run("a file larger than any archive allowed", func(t *testing.T) {
		work := workdir(t)
		l, err := fetchArchive(t, work, append([]byte("PK\x03\x04"), make([]byte, 3<<20)...), egress.Source{MaxBytes: 1 << 20, MaxFiles: 1})
		checkRefused(t, work, l, err, "larger than max_bytes")
	})
}

func TestMarksAreCountedAcrossReads(t *testing.T) {
	text := strings.Repeat("PPK\x01\x02K\x01PK\x01", 20_000) + "PK\x01\x02"
	want := strings.Count(text, "PK\x01\x02")
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(text), "by the byte": iotest.OneByteReader(strings.NewReader(text)), "with the end": iotest.DataErrReader(strings.NewReader(text)),
	} {
		if got, err := countMarks(t.Context(), r); err != nil || got != want {
			t.Errorf("%s: want %d, got %d, %v", name, want, got, err)
		}
	}
}

func TestDamagedArchivesAreRefused(t *testing.T) {
	flip := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[at] ^= 0x40
		return b
	}
	stored := func() []byte {
		var buf bytes.Buffer
		w := zip.NewWriter(&buf)
		f, err := w.CreateHeader(&zip.FileHeader{Name: "a.conf", Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(f, conf(1)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}()
	encrypted := bytes.Clone(stored)
	encrypted[bytes.LastIndex(encrypted, []byte("PK\x01\x02"))+8] |= 1
	method := bytes.Clone(stored)
	method[bytes.LastIndex(method, []byte("PK\x01\x02"))+10] = 99
	gz := makeGzip(t, makeTar(t, member{name: "a.conf", body: conf(1)}))
	nested := makeGzip(t, gz)
	for _, tc := range []struct {
		name, reason string
		body         []byte
	}{
		{"an empty file", "the file is empty", nil},
		{"white space", "the file is empty", []byte("\r\n \n")},
		{"a web page", "the file is an HTML page, not an archive", []byte("\n<!DOCTYPE html><html>")},
		{"a profile", "the file is a single profile, not an archive", []byte("# x\n" + conf(1))},
		{"noise", "the file is data of an unknown kind, not an archive", []byte("\x7fELF\x02\x01\x01")},
		{"zeros", "the file is data of an unknown kind, not an archive", make([]byte, 5000)},
		{"a zip with a byte flipped", "the archive is damaged (a.conf: zip: checksum error)", flip(stored, bytes.Index(stored, []byte("10.8.0.2")))},
		{"a gzip with its checksum flipped", "the archive is damaged (gzip: invalid checksum)", flip(gz, len(gz)-6)},
		{"an encrypted zip", "the zip is encrypted (a.conf)", encrypted},
		{"a zip of an unknown method", "a.conf: packed by an unknown method", method},
		{"a gzip of a page", "what the gzip holds is an HTML page, not an archive", makeGzip(t, []byte("<html>"))},
		{"a gzip of a gzip", "what the gzip holds is a gzip, not an archive", nested},
		{"a gzip of nothing", "what the gzip holds is empty", makeGzip(t, nil)},
		{"a gzip of noise", "the archive is damaged (tar: archive/tar: invalid tar header)", makeGzip(t, bytes.Repeat([]byte{1, 2, 3}, 999))},
		{"a zip of nothing", "no .conf file in it", makeZip(t)},
		{"a tar.gz of nothing", "no .conf file in it", makeGzip(t, makeTar(t))},
		{"a zip of read-me files", "no .conf file in it", makeZip(t, member{name: "a.txt", body: "x"})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			l, err := fetchArchive(t, work, tc.body, egress.Source{})
			checkRefused(t, work, l, err, tc.reason)
		})
	}
}

func TestArchivePathIsChecked(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		src          egress.Source
	}{
		{"nothing set", "neither url nor path is set", egress.Source{}},
		{"both set", "both url and path are set", egress.Source{Path: "x", URL: "http://x/"}},
		{"a folder", "not a regular file", egress.Source{Path: t.TempDir()}},
		{"a missing file", "no such file", egress.Source{Path: filepath.Join(t.TempDir(), "x")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			tc.src.Type = egress.SourceArchive
			l, err := fetchOne(t, work, tc.src)
			checkRefused(t, work, l, err, tc.reason)
		})
	}
}

// FuzzArchive looks for bytes that crash the reader, get past its bounds or out of its folder.
func FuzzArchive(f *testing.F) {
	for _, pack := range packers() {
		f.Add(pack(f, member{name: "a.conf", body: conf(1)}, member{name: "../b.conf", body: conf(2)}, member{name: "d/c.txt", body: "x"}))
	}
	f.Add([]byte("<html>"))
	f.Add([]byte(`{"error":"x"}`))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if t.Context().Err() != nil || len(b) > 1<<20 {
			return
		}
		work := workdir(t)
		l, err := fetchArchive(t, work, b, egress.Source{MaxBytes: 2 << 20, MaxFiles: 50})
		checkFolder(t, work, l)
		if (err == nil) != (l.Count() > 0) || l.Count() > 50 {
			t.Fatalf("%d entries and error %v", l.Count(), err)
		}
		for _, e := range l.Entries {
			if p, err := profile.ParseFile(e.Path); err != nil || p.Endpoint() != e.Profile.Endpoint() {
				t.Fatalf("the copy %s reads as %s, %v", e.Path, p.Endpoint(), err)
			}
		}
	})
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"a.conf", "../a.conf", `..\a`, "/a", "C:/a", "a\tb\n.conf", ".conf", " .conf", strings.Repeat("ü", 300), "a/..", "\xff\x00", "...conf"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		stem := fileStem(s)
		if stem == "" || stem[0] == '.' || len(stem) > maxName || strings.TrimSpace(stem) != stem || strings.ContainsAny(stem, "/\\\x00\t\r\n") {
			t.Errorf("%q gives the name %q", s, stem)
		}
		if printable(stem) != stem {
			t.Errorf("%q gives %q, which is not printable", s, stem)
		}
		if clean, reason := memberPath(s); reason == "" && !filepath.IsLocal(clean) {
			t.Errorf("%q passes as %q", s, clean)
		}
	})
}
