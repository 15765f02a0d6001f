package state

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

// Wait takes the lock of that name like Lock, but sleeps in the kernel until its holder
// lets go: it has the lock within a millisecond of that, while Lock looks every few
// milliseconds. Waiters come one after another. It waits as long as ctx lasts; when a
// deadline of ctx ends it the error is a *BusyError, when ctx is cancelled it wraps
// context.Canceled.
//
// The kernel offers no way to call a waiter back. One whose ctx has ended stays behind as a
// sleeping thread; when its turn comes it lets go at once and is gone.
func (d *Dir) Wait(ctx context.Context, name, holder string) (*Lock, error) {
	path, err := d.lockable(ctx, name)
	if err != nil {
		return nil, err
	}
	taken := make(chan waited)
	go func() {
		l, err := blockLock(path)
		select {
		case taken <- waited{l, err}:
		case <-ctx.Done():
			_ = l.Unlock() // nobody wants it any more
		}
	}()
	select {
	case w := <-taken:
		if w.err != nil {
			return nil, fmt.Errorf("lock %s: %w", name, w.err)
		}
		w.lock.sign(holder)
		return w.lock, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, &BusyError{Name: name, Holder: d.Holder(name)}
		}
		return nil, fmt.Errorf("lock %s: %w", name, ctx.Err())
	}
}

type waited struct {
	lock *Lock
	err  error
}

// blockLock sleeps until the lock is ours.
func blockLock(path string) (*Lock, error) {
	for {
		f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(filePerm))
		if err := f.Lock(); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		// Someone may have removed the file while we slept.
		ours, err := f.Stat()
		if err == nil {
			if now, err := os.Stat(path); err == nil && os.SameFile(ours, now) {
				return &Lock{file: f, path: path}, nil
			}
		}
		if cerr := f.Close(); err != nil || cerr != nil {
			return nil, errors.Join(err, cerr)
		}
	}
}
