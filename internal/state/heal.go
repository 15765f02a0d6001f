package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// cannotHeal returns the damage that a writer must not write over: what is there could not
// be read, so it could not be kept either. A missing file is none.
func cannotHeal(damage []DamageError) error {
	for _, e := range damage {
		if e.Err != nil && !errors.Is(e.Err, fs.ErrNotExist) {
			return &e
		}
	}
	return nil
}

// setDamagedAside keeps every file that damage names before something is written over it.
func setDamagedAside(ctx context.Context, damage []DamageError) error {
	var files []string
	for _, e := range damage {
		if !slices.Contains(files, e.File) {
			files = append(files, e.File)
		}
	}
	for _, f := range files {
		if err := setAside(ctx, f); err != nil {
			return fmt.Errorf("keep the damaged %s: %w", filepath.Base(f), err)
		}
	}
	return nil
}

// setAside copies a damaged file to NAME.damaged-SECOND, the second of its last change. It
// copies and never renames: at no instant is the file itself away.
func setAside(ctx context.Context, path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		return nil // nothing there to keep
	}
	if err != nil {
		return err
	}
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	base := fmt.Sprintf("%s.damaged-%d", path, fi.ModTime().Unix())
	for n, aside := 2, base; ; n++ {
		have, err := os.ReadFile(aside)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return replaceFile(ctx, aside, data, fi.Mode().Perm(), fi)
		case err == nil && bytes.Equal(have, data):
			return nil // by a run that was killed before it had replaced the file
		}
		aside = fmt.Sprintf("%s-%d", base, n)
	}
}
