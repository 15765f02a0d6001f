// Package secret reads files that hold secrets.
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Limit bounds such a file, in bytes.
const Limit = 64 << 10

// ReadFile reads a small regular file that only its owner may use, without a byte order
// mark. No error repeats what is in it, nor its path, which the caller names.
func ReadFile(path string) ([]byte, error) {
	b, err := read(path)
	var p *fs.PathError
	if errors.As(err, &p) {
		return nil, p.Err
	}
	return b, err
}

func read(path string) ([]byte, error) {
	// What is no regular file, a pipe say, must not make the run hang.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case fi.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("its mode %04o lets others than its owner use it: make it 0600", fi.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, Limit+1))
	if err != nil {
		return nil, err
	}
	if len(b) > Limit {
		return nil, fmt.Errorf("larger than %d bytes", Limit)
	}
	return bytes.TrimPrefix(b, []byte("\ufeff")), nil
}
