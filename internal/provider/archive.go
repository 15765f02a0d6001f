package provider

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// maxPacked is the size of the largest archive that can unpack to less than max_bytes,
// every member stored as it is, with some room for the members' names.
func (b *batch) maxPacked() int64 { return b.maxBytes + 1<<20 + 256*int64(b.maxFiles) }

// archive reads the *.conf members of a zip or tar.gz from a path or a URL.
func (b *batch) archive(ctx context.Context, src egress.Source, opts Options) error {
	switch {
	case src.URL != "" && src.Path != "":
		return errors.New("both url and path are set")
	case src.URL == "" && src.Path == "":
		return errors.New("neither url nor path is set")
	case src.Path != "":
		f, size, err := b.open(src.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		return b.unpack(ctx, f, size, "the file", printable)
	}
	r, err := b.remote(src, opts)
	if err != nil {
		return err
	}
	defer r.done()
	f, size, _, err := b.download(ctx, r)
	if err != nil {
		return err
	}
	defer f.Close()
	return b.unpack(ctx, f, size, "the answer", r.quote)
}

// open opens a source that is one local file.
func (b *batch) open(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("file %s: %w", printable(path), cause(err))
	}
	fi, err := f.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("file %s: %w", printable(path), cause(err))
	case !fi.Mode().IsRegular():
		err = fmt.Errorf("file %s: not a regular file", printable(path))
	case fi.Size() > b.maxPacked():
		err = b.tooBig()
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, fi.Size(), nil
}

// unpack reads an archive whose kind its first bytes tell. quote makes a text of the
// far end fit for an error.
func (b *batch) unpack(ctx context.Context, f io.ReaderAt, size int64, what string, quote func(string) string) error {
	head, err := peek(f, size)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	body := io.NewSectionReader(f, 0, size)
	switch s := sniff(head); s {
	case shapeZip:
		return b.zip(ctx, body, size)
	case shapeTar:
		return b.tar(ctx, body)
	case shapeGzip:
		return b.gzip(ctx, body, quote)
	case shapeOther, shapeEmpty, shapeHTML, shapeXML, shapeJSON, shapeProfile, shapeText:
		return s.refuse(what, "an archive", head, quote)
	default:
		return s.refuse(what, "an archive", head, quote)
	}
}

// peek returns the first bytes of a source.
func peek(f io.ReaderAt, size int64) ([]byte, error) {
	head := make([]byte, min(sniffLen, size))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, cause(err)
	}
	return head, nil
}

func (b *batch) gzip(ctx context.Context, body io.Reader, quote func(string) string) error {
	gz, err := gzip.NewReader(bufio.NewReader(body))
	if err != nil {
		return damaged("gzip", err)
	}
	inner := bufio.NewReaderSize(gz, sniffLen)
	head, err := inner.Peek(sniffLen)
	if err != nil && !errors.Is(err, io.EOF) {
		return damaged("gzip", err)
	}
	switch s := sniff(head); s {
	case shapeEmpty, shapeZip, shapeGzip, shapeHTML, shapeXML, shapeJSON, shapeProfile, shapeText:
		return s.refuse("what the gzip holds", "an archive", head, quote)
	case shapeTar, shapeOther: // a tar of the old kind has no mark
	}
	return b.tar(ctx, inner)
}

// tar reads a tar and everything behind it, so that the checksum of a gzip around it
// is looked at.
func (b *batch) tar(ctx context.Context, body io.Reader) error {
	m := &meter{ctx: ctx, r: body, left: b.maxBytes + 2048*int64(b.maxMembers()), over: b.tooBig()}
	tr := tar.NewReader(m)
	seen := map[string]bool{}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && (h == nil || !errors.Is(err, tar.ErrInsecurePath)) {
			return damaged("tar", err)
		}
		if err := b.tarMember(tr, h, seen); err != nil {
			return err
		}
	}
	// Every writer ends a tar with blocks of zeros: without them it was cut between
	// two members.
	if m.zeros < 512 {
		return damaged("tar", io.ErrUnexpectedEOF)
	}
	if _, err := io.Copy(io.Discard, m); err != nil {
		return damaged("tar", err)
	}
	return nil
}

func (b *batch) tarMember(tr *tar.Reader, h *tar.Header, seen map[string]bool) error {
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return b.see()
	case tar.TypeReg:
		// Also what is not taken has to be unpacked to get past it.
		if !isConf(h.Name) || h.Size > profile.MaxSize {
			if err := b.weigh(h.Size); err != nil {
				return err
			}
		}
		return b.member(h.Name, h.Size, seen, func() ([]byte, error) { return readConf(tr) })
	}
	b.skip(h.Name, "not a regular file but "+tarKind(h.Typeflag))
	return b.see()
}

func tarKind(t byte) string {
	switch t {
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a named pipe"
	}
	return "of an unknown kind"
}

func (b *batch) zip(ctx context.Context, body *io.SectionReader, size int64) error {
	// The reader makes an object of every entry of the directory before any can be
	// counted, so count their marks first.
	n, err := countMarks(ctx, io.NewSectionReader(body, 0, size))
	if err != nil {
		return err
	}
	if n > b.maxMembers() {
		return b.tooMany()
	}
	zr, err := zip.NewReader(body, size)
	if err != nil && (zr == nil || !errors.Is(err, zip.ErrInsecurePath)) {
		return damaged("zip", err)
	}
	seen := map[string]bool{}
	for _, f := range zr.File {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := b.zipMember(f, seen); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) zipMember(f *zip.File, seen map[string]bool) error {
	const encrypted = 1
	mode := f.Mode()
	switch {
	case mode.IsDir():
		return b.see()
	case mode&fs.ModeSymlink != 0:
		b.skip(f.Name, "not a regular file but a symbolic link")
		return b.see()
	case !mode.IsRegular():
		b.skip(f.Name, "not a regular file")
		return b.see()
	case f.Flags&encrypted != 0 && isConf(f.Name):
		return fmt.Errorf("the zip is encrypted (%s)", printable(f.Name))
	}
	size := int64(min(f.UncompressedSize64, 1<<62))
	return b.member(f.Name, size, seen, func() ([]byte, error) {
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return readConf(r)
	})
}

// member takes one regular member of an archive. A name that may not be used, or a
// size no profile has, is skipped; a body that does not unpack spoils the archive.
func (b *batch) member(name string, size int64, seen map[string]bool, read func() ([]byte, error)) error {
	if err := b.see(); err != nil {
		return err
	}
	clean, reason := memberPath(name)
	switch {
	case reason != "":
		b.skip(name, reason)
		return nil
	case archiveName(clean):
		b.skip(clean, "an archive inside the archive is not opened")
		return nil
	case !isConf(clean):
		return nil
	}
	if err := b.seeConf(); err != nil {
		return err
	}
	switch {
	case seen[clean]:
		b.skip(clean, "the archive holds this name a second time")
		return nil
	case size > profile.MaxSize:
		b.skip(clean, errLarge.Error())
		return nil
	}
	seen[clean] = true
	data, err := read()
	switch {
	case errors.Is(err, errLarge):
		b.skip(clean, err.Error())
		return b.weigh(int64(len(data)))
	case errors.Is(err, zip.ErrAlgorithm):
		b.skip(clean, "packed by an unknown method")
		return nil
	case err != nil:
		return damaged(printable(clean), err)
	}
	return b.add(clean, data)
}

// overError is a limit that a meter hit: not the archive's damage.
type overError struct{ error }

// damaged says what is wrong with an archive's bytes.
func damaged(what string, err error) error {
	var over overError
	var corrupt flate.CorruptInputError
	switch {
	case errors.As(err, &over):
		return over.error
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return fmt.Errorf("the archive is truncated (%s)", what)
	case errors.Is(err, zip.ErrFormat):
		return fmt.Errorf("the archive is truncated or damaged (%s: its directory is missing)", what)
	case errors.Is(err, zip.ErrChecksum), errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader),
		errors.Is(err, tar.ErrHeader), errors.As(err, &corrupt):
		return fmt.Errorf("the archive is damaged (%s: %s)", what, strings.TrimPrefix(err.Error(), what+": "))
	}
	return fmt.Errorf("the archive cannot be read (%s: %w)", what, cause(err))
}

// meter passes a stream on until a limit or the context's end, and counts the zero
// bytes at its end.
type meter struct {
	ctx   context.Context //nolint:containedctx // a reader has no other way to see it
	r     io.Reader
	left  int64
	over  error
	zeros int64
}

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	if m.left -= int64(n); m.left < 0 {
		return 0, overError{m.over}
	}
	if tail := int64(n - len(bytes.TrimRight(p[:n], "\x00"))); tail == int64(n) {
		m.zeros += tail
	} else {
		m.zeros = tail
	}
	return n, err
}

// countMarks counts the marks of a zip's directory entries in a stream.
func countMarks(ctx context.Context, r io.Reader) (int, error) {
	mark := []byte("PK\x01\x02")
	buf := make([]byte, 64<<10)
	n, kept := 0, 0
	for {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		got, err := r.Read(buf[kept:])
		n += bytes.Count(buf[:kept+got], mark)
		// A mark may lie across two reads; three bytes cannot hold a whole one.
		keep := min(3, kept+got)
		copy(buf, buf[kept+got-keep:kept+got])
		kept = keep
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return 0, fmt.Errorf("the archive cannot be read: %w", cause(err))
		}
	}
}
