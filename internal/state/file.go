package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/shunt-net/shunt/internal/run"
)

// WriteFile replaces the file at path: temporary file in the same folder, fsync, rename,
// fsync of the folder. A reader sees the old content or the new one, also after a crash.
// The point "file.written" follows.
//
// Temporary files that killed writers of the same file left are taken away once they are a
// minute old, which no writer takes: there may be keys in them.
func WriteFile(ctx context.Context, path string, data []byte, perm os.FileMode) error {
	if err := replaceFile(ctx, path, data, perm, nil); err != nil {
		return err
	}
	path = throughLinks(path)
	if fi, err := os.Stat(path); err == nil {
		sweepTemp(path, fi.ModTime().Add(-time.Minute))
	}
	return nil
}

func replaceFile(ctx context.Context, path string, data []byte, perm os.FileMode, like fs.FileInfo) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	path = throughLinks(path)
	dir := filepath.Dir(path)
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(perm))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, bare(err))
	}
	if like != nil {
		if st, ok := like.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(st.Uid), int(st.Gid)) // only root may, and only root needs to
		}
	}
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(bare(err), f.Cleanup()))
	}
	run.Point(ctx, "file.prepared")
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(bare(err), f.Cleanup()))
	}
	run.Point(ctx, "file.renamed")
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("write %s: fsync of its folder: %w", path, bare(err))
	}
	run.Point(ctx, "file.written")
	return nil
}

// throughLinks follows symlinks: where the operator keeps a file elsewhere, it is replaced there.
func throughLinks(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

// sweepTemp removes what killed writers of the file left behind: temporary files last
// written before a time. A zero time means all, and is only for the holder of the lock
// under which the file is written.
func sweepTemp(path string, before time.Time) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return
	}
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "."+filepath.Base(path))
		if !ok || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}
		if fi, err := e.Info(); err == nil && (before.IsZero() || fi.ModTime().Before(before)) {
			_ = os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
}

// save writes a file of the folder and then its last good copy, each only where it differs.
// The caller holds the state lock.
func (d *Dir) save(ctx context.Context, name string, data []byte) error {
	if err := d.saveTo(ctx, d.Path(name), data); err != nil {
		return err
	}
	return d.saveTo(ctx, d.lastGood(name), data)
}

func (d *Dir) saveTo(ctx context.Context, path string, data []byte) error {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return err
	}
	path = throughLinks(path)
	sweepTemp(path, time.Time{})
	perm := os.FileMode(filePerm)
	fi, err := os.Stat(path)
	if err == nil {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
			return nil
		}
		perm = fi.Mode().Perm() // other programs read it: leave them their rights
	}
	return replaceFile(ctx, path, data, perm, fi)
}

func (d *Dir) lastGood(name string) string { return d.Path(lastGoodDir, filepath.Base(name)) }

// load reads a file of the folder. found is false when there is none and never was one. A
// missing file with a last good copy, and one that can't be read, are damage.
func (d *Dir) load(name string) (data []byte, found bool, damage *DamageError) {
	path := d.Path(name)
	data, err := os.ReadFile(path)
	switch {
	case err == nil:
		return data, true, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, true, unreadable(path, err)
	}
	if _, err := os.Lstat(d.lastGood(name)); errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	damage = unreadable(path, fs.ErrNotExist)
	damage.Msg = "is missing, though there is a last good copy"
	damage.Hint = "copy " + d.lastGood(name) + " back; if it was removed on purpose, remove the copy too"
	return nil, true, damage
}

// withCopyHint tells where the last good copy is, if there is one.
func (d *Dir) withCopyHint(name string, damage []DamageError) []DamageError {
	if _, err := os.Lstat(d.lastGood(name)); err != nil {
		return damage
	}
	for i, e := range damage {
		if !strings.Contains(e.Hint, d.lastGood(name)) {
			damage[i].Hint = strings.TrimPrefix(e.Hint+"; the last good copy is "+d.lastGood(name), "; ")
		}
	}
	return damage
}
