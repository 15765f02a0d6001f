package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/shunt-net/shunt/internal/profile"
)

func tooDeep(n int) string { return fmt.Sprintf("more than %d folders deep", n) }

// dir reads the *.conf files of a folder and of the folders in it, in the order of
// their names. Links are followed to files that lie in the folder too.
func (b *batch) dir(ctx context.Context, folder string) error {
	if folder == "" {
		return errors.New("no path")
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return fmt.Errorf("folder %s: %w", printable(folder), cause(err))
	}
	defer root.Close()
	return b.folder(ctx, root, ".", 0)
}

func (b *batch) folder(ctx context.Context, root *os.Root, at string, depth int) error {
	list, err := b.readDir(ctx, root, at)
	if err != nil {
		return err
	}
	for _, e := range list {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		name := path.Join(at, e.Name())
		switch {
		case e.Name()[0] == '.':
		case e.IsDir() && depth == dirDepth:
			b.skip(name, tooDeep(dirDepth))
		case e.IsDir():
			err = b.folder(ctx, root, name, depth+1)
		case e.Type()&fs.ModeSymlink != 0:
			err = b.link(root, name)
		case isConf(name) && !e.Type().IsRegular():
			b.skip(name, "not a regular file")
		case isConf(name):
			err = b.file(root, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readDir lists a folder by name. Only of the top one a failure is the source's.
func (b *batch) readDir(ctx context.Context, root *os.Root, at string) ([]fs.DirEntry, error) {
	f, err := root.Open(at)
	if err != nil {
		return nil, b.unreadable(at, err)
	}
	defer f.Close()
	var list []fs.DirEntry
	for {
		part, err := f.ReadDir(1024)
		for _, e := range part {
			if err := b.see(); err != nil {
				return nil, err
			}
			list = append(list, e)
		}
		switch {
		case errors.Is(err, io.EOF):
			slices.SortFunc(list, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
			return list, nil
		case err != nil:
			return nil, b.unreadable(at, err)
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
}

func (b *batch) unreadable(at string, err error) error {
	if at == "." {
		return fmt.Errorf("folder: %w", cause(err))
	}
	b.skip(at, cause(err).Error())
	return nil
}

func (b *batch) link(root *os.Root, name string) error {
	fi, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.skip(name, "a link to nothing")
	case err != nil:
		b.skip(name, "a link that leaves the folder or cannot be followed: "+cause(err).Error())
	case fi.IsDir():
		b.skip(name, "a link to a folder is not followed")
	case isConf(name) && !fi.Mode().IsRegular():
		b.skip(name, "not a regular file")
	case isConf(name):
		return b.file(root, name)
	}
	return nil
}

func (b *batch) file(root *os.Root, name string) error {
	if err := b.seeConf(); err != nil {
		return err
	}
	// Not blocking: the name may have become a pipe since it was listed.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		b.skip(name, cause(err).Error())
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		b.skip(name, "not a regular file")
		return nil
	}
	data, err := readConf(f)
	if err != nil {
		b.skip(name, cause(err).Error())
		return nil
	}
	return b.add(name, data)
}

var errLarge = errors.New("larger than 1 MiB: not a profile")

// readConf reads what can be a profile, or fails with errLarge.
func readConf(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, profile.MaxSize+1))
	if err == nil && len(data) > profile.MaxSize {
		err = errLarge
	}
	return data, err
}

// cause drops the operation and the path that the caller's text already has.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// archiveName reports whether a member looks like an archive itself.
func archiveName(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst":
		return true
	}
	return false
}
