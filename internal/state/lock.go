package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// BusyError says that another process, or another part of this one, kept a lock for longer
// than the caller would wait.
type BusyError struct {
	Name   string // of the lock
	Holder string // as Dir.Holder says; "" = not known
}

func (e *BusyError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("lock %s: busy", e.Name)
	}
	return fmt.Sprintf("lock %s: held by %s", e.Name, e.Holder)
}

// Lock is a lock that is held.
type Lock struct {
	file *flock.Flock
	path string
}

const lockPoll = 5 * time.Millisecond

// Lock takes the lock of that name, waiting at most wait; 0 tries once. holder tells others
// who we are, for example the command. The kernel drops the lock when we die; children never
// inherit it. The error is a *BusyError when the time is up.
//
// The file locks/NAME.lock is permanent: removing one that is held would make two holders.
func (d *Dir) Lock(ctx context.Context, name, holder string, wait time.Duration) (*Lock, error) {
	path, err := d.lockable(ctx, name)
	if err != nil {
		return nil, err
	}
	bound, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		l, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if l != nil {
			l.sign(holder)
			return l, nil
		}
		select {
		case <-bound.Done():
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("lock %s: %w", name, err)
			}
			return nil, &BusyError{Name: name, Holder: d.Holder(name)}
		case <-time.After(lockPoll):
		}
	}
}

// lockable is the path of a lock that can be taken now.
func (d *Dir) lockable(ctx context.Context, name string) (string, error) {
	if d.readOnly {
		return "", fmt.Errorf("lock %s: %w", name, ErrReadOnly)
	}
	path, err := d.lockPath(name)
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("lock %s: %w", name, err)
	}
	return path, nil
}

// tryLock returns nil without an error when someone else holds the lock.
func tryLock(path string) (*Lock, error) {
	f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(filePerm))
	ok, err := f.TryLock()
	if err != nil || !ok {
		return nil, errors.Join(err, f.Close())
	}
	// Someone may have removed the file between our open and our lock.
	ours, err := f.Stat()
	if err == nil {
		if now, err := os.Stat(path); err == nil && os.SameFile(ours, now) {
			return &Lock{file: f, path: path}, nil
		}
	}
	return nil, f.Close()
}

// sign writes who holds the lock. It helps people only, so it may fail.
func (l *Lock) sign(holder string) {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return
	}
	defer f.Close()
	head := strconv.Itoa(os.Getpid()) + " "
	if _, err := f.WriteString(head); err != nil {
		return
	}
	if fi, err := f.Stat(); err == nil { // the kernel's stamp of that write is our clock
		_, _ = f.WriteString(fi.ModTime().UTC().Format(time.RFC3339) + " " + oneLine(holder) + "\n")
	}
}

// Unlock lets the lock go. Calling it again, or on nil, does nothing.
func (l *Lock) Unlock() error {
	if l == nil || !l.file.Locked() {
		return nil
	}
	_ = os.Truncate(l.path, 0)
	if err := l.file.Unlock(); err != nil {
		return fmt.Errorf("unlock %s: %w", l.path, err)
	}
	return nil
}

// Holder says who holds the lock of that name now, for example
// "egress repair (pid 812, since 2026-01-02T03:04:05Z)"; "" = nobody. It only looks and
// never takes the lock, not for an instant, so that no one else can find it busy.
func (d *Dir) Holder(name string) string {
	path, err := d.lockPath(name)
	if err != nil {
		return ""
	}
	fi, err := os.Stat(path)
	if err != nil {
		return ""
	}
	text, _ := os.ReadFile(path)
	pid, words := parseHolder(string(text))
	holder, known := lockedBy(fi, pid)
	switch {
	case !known: // no /proc/locks here: a living signer is the best that can be said
		if pid == 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			return ""
		}
		return words
	case holder == 0:
		return ""
	case holder == pid:
		return words
	default: // not signed yet, or what a killed holder had signed
		return fmt.Sprintf("pid %d", holder)
	}
}

func parseHolder(text string) (pid int, words string) {
	head, rest, ok := strings.Cut(strings.TrimSuffix(text, "\n"), " ")
	pid, err := strconv.Atoi(head)
	if !ok || err != nil || pid <= 0 {
		return 0, ""
	}
	since, command, ok := strings.Cut(rest, " ")
	if !ok {
		return pid, fmt.Sprintf("pid %d", pid)
	}
	return pid, fmt.Sprintf("%s (pid %d, since %s)", command, pid, since)
}

// lockedBy reads from /proc/locks which process holds a flock on the file; 0 = none. On
// file systems whose device number there is another one than stat's, the signer's pid decides.
func lockedBy(fi fs.FileInfo, signer int) (pid int, known bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false
	}
	dev := uint64(st.Dev) //nolint:unconvert // 32 bits wide on some machines
	exact := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), st.Ino)
	inode := fmt.Sprintf(":%d", st.Ino)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" { // a waiter has "->" there
			continue
		}
		p, err := strconv.Atoi(f[4])
		if err == nil && (f[5] == exact || p == signer && strings.HasSuffix(f[5], inode)) {
			return p, true
		}
	}
	return 0, true
}

func (d *Dir) lockPath(name string) (string, error) {
	ok := name != "" && name[0] != '.' && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '/' || r == '\\' || r <= ' ' || r == 0x7f
	})
	if !ok {
		return "", fmt.Errorf("lock %q: want a plain name", name)
	}
	return d.Path(lockDir, name+".lock"), nil
}

// stateWait bounds the wait for one read-modify-write of another process.
const stateWait = 2 * time.Second

// underState runs one read-modify-write under the state lock.
func (d *Dir) underState(ctx context.Context, what string, do func() error) (err error) {
	l, err := d.Lock(ctx, "state", what, stateWait)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { err = errors.Join(err, l.Unlock()) }()
	return do()
}
