// Package state keeps what can't be observed again in flat files that other programs may
// read: each is replaced atomically, has a last good copy and complains by file and line.
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrReadOnly is returned by every method that writes when the Dir came from OpenRead.
var ErrReadOnly = errors.New("state folder was opened for reading only")

const (
	lockDir     = "locks"
	lastGoodDir = "last-good"
	counterDir  = "fail-counter"
	dirPerm     = 0o750
	filePerm    = 0o640
)

// Dir is a state folder.
type Dir struct {
	path     string
	readOnly bool
}

// Open returns the state folder at path for reading and writing. Where it does not exist it
// is made with mode 0750, as are its subfolders. Without the right to write the error is
// a *DamageError that wraps fs.ErrPermission.
func Open(path string) (*Dir, error) {
	d := &Dir{path: path}
	for _, p := range []string{path, d.Path(lockDir), d.Path(lastGoodDir), d.Path(counterDir)} {
		if err := makeDir(p); err != nil {
			return nil, err
		}
		const rights = unix.R_OK | unix.W_OK | unix.X_OK
		if err := unix.Faccessat(unix.AT_FDCWD, p, rights, unix.AT_EACCESS); err != nil {
			return nil, folderError(p, "cannot be written: "+err.Error(), err)
		}
	}
	return d, nil
}

// OpenRead returns the state folder at path for reading only; nothing is created or
// written. A missing folder is an error that wraps fs.ErrNotExist.
func OpenRead(path string) (*Dir, error) {
	if fi, err := os.Stat(path); err != nil {
		return nil, folderError(path, bare(err).Error(), err)
	} else if !fi.IsDir() {
		return nil, folderError(path, "is not a folder", unix.ENOTDIR)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return nil, folderError(path, "cannot be read: "+err.Error(), err)
	}
	return &Dir{path: path, readOnly: true}, nil
}

// Path returns the path of something inside the folder.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// ReadOnly reports whether the folder was opened by OpenRead.
func (d *Dir) ReadOnly() bool { return d.readOnly }

// makeDir makes a folder that outlives a power cut. One that exists is left as it is.
func makeDir(path string) error {
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		return nil
	}
	if err := os.MkdirAll(path, dirPerm); err != nil {
		return folderError(path, "cannot be made: "+bare(err).Error(), err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return folderError(path, "cannot be made durable: "+bare(err).Error(), err)
	}
	return nil
}

func folderError(path, msg string, err error) *DamageError {
	e := &DamageError{File: path, Msg: msg, Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Hint = fmt.Sprintf("we are uid %d: run as the user that owns the state folder, usually root", os.Geteuid())
	case errors.Is(err, fs.ErrNotExist):
		e.Hint = "nothing has run here yet, or state_dir names another folder"
	}
	return e
}

// syncDir makes the names inside a folder durable.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}
