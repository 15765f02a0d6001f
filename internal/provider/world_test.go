package provider

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
)

// key is the base64 of a key that n alone decides.
func key(kind byte, n int) string {
	var b [32]byte
	b[0] = kind
	binary.BigEndian.PutUint64(b[8:], uint64(n))
	b[31] = 0x40
	return base64.StdEncoding.EncodeToString(b[:])
}

// conf is a profile of server n with the client key that all share.
func conf(n int) string { return confOf(n, 1, endpoint(n)) }

func endpoint(n int) string {
	return fmt.Sprintf("10.%d.%d.%d:%d", n>>16&255, n>>8&255, n&255, 1000+n%60000)
}

func confOf(server, client int, endpoint string) string {
	return fmt.Sprintf("[Interface]\nPrivateKey = %s\nAddress = 10.8.0.2/32\n[Peer]\nPublicKey = %s\nAllowedIPs = 0.0.0.0/0\nEndpoint = %s\n",
		key(8, client), key(16, server), endpoint)
}

// member is a file of an archive or folder made in a test.
type member struct {
	name string
	body string
	kind byte // of tar; 0 = a regular file
	link string
}

func makeZip(t testing.TB, members ...member) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		h.SetMode(0o644)
		switch m.kind {
		case tar.TypeSymlink:
			h.SetMode(fs.ModeSymlink | 0o777)
			m.body = m.link
		case tar.TypeChar:
			h.SetMode(fs.ModeDevice | fs.ModeCharDevice | 0o666)
		case tar.TypeFifo:
			h.SetMode(fs.ModeNamedPipe | 0o666)
		}
		f, err := w.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(m.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func makeTar(t testing.TB, members ...member) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Typeflag: m.kind, Linkname: m.link, Mode: 0o644, Size: int64(len(m.body))}
		if m.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(m.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func makeGzip(t testing.TB, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func write(t testing.TB, path, body string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// workdir is a folder below one that the test owns, so that a step out of it shows.
func workdir(t testing.TB) string { return filepath.Join(t.TempDir(), "fence", "work") }

// fetchOne fetches one source with no default left to chance.
func fetchOne(t testing.TB, work string, src egress.Source) (Listing, error) {
	t.Helper()
	src.Name = "hmn"
	return Fetch(t.Context(), []egress.Source{src}, work, Options{})
}

// summary is the listing as lines that a person would write: taken files and their
// endpoints, skipped files and their reasons.
func summary(l Listing) []string {
	var out []string
	for _, e := range l.Entries {
		out = append(out, fmt.Sprintf("+ %s %s", e.File, e.Profile.Endpoint()))
	}
	for _, s := range l.Skipped {
		out = append(out, fmt.Sprintf("- %s: %s", s.File, s.Reason))
	}
	return out
}

// checkFolder checks what must hold after every fetch: the work folder holds exactly
// the copies, with their modes, and nothing lies beside it.
func checkFolder(t testing.TB, work string, l Listing) {
	t.Helper()
	fence := filepath.Dir(work)
	want := []string{"work"}
	for _, e := range l.Entries {
		want = append(want, "work/"+e.File)
		if filepath.Join(work, e.File) != e.Path {
			t.Errorf("path of %s: %s", e.File, e.Path)
		}
		if strings.ContainsAny(e.File, "/\\\t\r\n\x00") || len(e.File) > 255 {
			t.Errorf("name %q is not fit for a list", e.File)
		}
	}
	var got []string
	err := filepath.WalkDir(fence, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == fence {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if !e.IsDir() && fi.Mode() != 0o600 {
			t.Errorf("%s has mode %s, want a file of mode 0600", path, fi.Mode())
		}
		got = append(got, strings.TrimPrefix(path, fence+"/"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files on disk (-want +got):\n%s", d)
	}
}

func check(t testing.TB, work string, l Listing, err error, want ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("fetch: %v", err)
	}
	if d := cmp.Diff(want, summary(l)); d != "" {
		t.Errorf("listing (-want +got):\n%s", d)
	}
	checkFolder(t, work, l)
}

// checkRefused checks that a source failed for that reason and left nothing.
func checkRefused(t testing.TB, work string, l Listing, err error, reason string) {
	t.Helper()
	if err == nil || len(l.Failed) != 1 || !strings.Contains(l.Failed[0].Error(), reason) || !strings.HasPrefix(l.Failed[0].Error(), "source hmn: ") {
		t.Errorf("want one failure of %q, got %v, error %v", reason, l.Failed, err)
	}
	if err != nil && !strings.Contains(err.Error(), reason) {
		t.Errorf("want the reason in the error, got %v", err)
	}
	if l.Count() != 0 {
		t.Errorf("want no entries, got %d", l.Count())
	}
	checkFolder(t, work, l)
}
