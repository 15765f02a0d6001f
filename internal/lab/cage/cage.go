// Package cage runs a command in namespaces of its own (mounts, network, processes, host
// name), so that everything that it makes (interfaces, named network namespaces, UAPI
// sockets, processes, files of its work folder) is gone when it ends, however it ends.
// The host's own network namespace is never entered.
//
// Three processes are involved:
//
//	parent   Enter: makes the work folder, starts pid 1, waits, removes the work folder
//	pid 1    Init: mounts, starts the command, reaps orphans, dies with the parent
//	command  does the work; may set network namespaces up by New
//
// The parent holds the writing end of a pipe (the lifeline) and nobody else does: when it
// closes because the parent is gone, even by kill -9, pid 1 kills everything, removes the
// work folder and ends. When pid 1 is killed, the kernel kills all of its namespace.
package cage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Arg is the first argument of a program that was started as part of a cage. A program
// that calls Enter gives what follows it to Init, before doing anything else.
const Arg = "lab-child"

// prefix begins the name of each work folder.
const prefix = "shunt-lab-"

// Options say what runs in a cage.
type Options struct {
	// Command is the argv that is run inside; the first element is a path. Each argument
	// `{dir}` is replaced by the work folder. /proc/self/exe is this program.
	Command []string
	// Env is the whole environment of the command.
	Env []string
	// Temp is the folder in which the work folder is made; "" = the system's.
	Temp string
	// Stdin, Stdout and Stderr are the command's; nil = nothing. A terminal is passed on as it is.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	// Files become the descriptors 3 and up of the command.
	Files []*os.File
	// Grace is the time between asking the command to end (SIGTERM, when ctx is done) and
	// killing it; 0 = 5 s.
	Grace time.Duration
	// Started is called with the process id of pid 1 as the host sees it; may be nil.
	Started func(pid int)
}

// Enter runs a command in a new cage and returns its exit code (128 + n when a signal n
// ended it) once everything in the cage is gone. The error is not nil only if the cage
// itself could not be made.
func Enter(ctx context.Context, o Options) (int, error) {
	if len(o.Command) == 0 {
		return 0, errors.New("cage: no command")
	}
	temp := o.Temp
	if temp == "" {
		temp = os.TempDir()
	}
	sweep(temp)
	dir, release, err := workFolder(temp)
	if err != nil {
		return 0, fmt.Errorf("cage: %w", err)
	}
	defer release()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("cage: %w", err)
	}
	defer r.Close()
	defer w.Close() // the lifeline: open as long as this process lives and waits

	args := []string{Arg, "init", dir, strconv.Itoa(len(o.Files)), "--"}
	for _, a := range o.Command {
		args = append(args, strings.ReplaceAll(a, "{dir}", dir))
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Env = append(append([]string(nil), o.Env...), "SHUNT_LAB_DIR="+dir)
	if o.Stdin != nil {
		cmd.Stdin = o.Stdin
	}
	cmd.Stdout, cmd.Stderr = o.Stdout, o.Stderr
	cmd.ExtraFiles = append([]*os.File{r}, o.Files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = o.Grace
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = 5 * time.Second
	}
	restore := holdTerminal(o.Stdin)
	defer restore()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return 0, fmt.Errorf("cage: new namespaces: %w (the lab needs root)", err)
		}
		return 0, fmt.Errorf("cage: start: %w", err)
	}
	if o.Started != nil {
		o.Started(cmd.Process.Pid)
	}
	werr := cmd.Wait()
	st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return 0, fmt.Errorf("cage: wait: %w", werr)
	case st.Signaled():
		return 128 + int(st.Signal()), nil
	}
	return st.ExitStatus(), nil
}

// workFolder makes a folder that is marked as used, by a lock, as long as this process
// lives; release removes it.
func workFolder(temp string) (dir string, release func(), err error) {
	for range 3 {
		dir, err = os.MkdirTemp(temp, prefix)
		if err != nil {
			return "", nil, err
		}
		dir, err = filepath.Abs(dir)
		if err != nil {
			return "", nil, err
		}
		var f *os.File
		f, err = os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			continue // swept between the two calls
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if _, serr := os.Stat(filepath.Join(dir, ".lock")); err == nil && serr == nil {
			return dir, func() {
				_ = os.RemoveAll(dir)
				_ = f.Close()
			}, nil
		}
		_ = f.Close()
	}
	return "", nil, fmt.Errorf("work folder in %s: %w", temp, err)
}

// sweep removes work folders whose owner is gone: what is left when parent and pid 1 were
// killed at once.
func sweep(temp string) {
	dirs, err := filepath.Glob(filepath.Join(temp, prefix+"*"))
	if err != nil {
		return
	}
	for _, d := range dirs {
		f, err := os.OpenFile(filepath.Join(d, ".lock"), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) || err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(d)
		}
		_ = f.Close()
	}
}

// holdTerminal returns a function that makes this process's group the foreground one
// again: a shell inside cannot give the terminal back to a group that it cannot see.
func holdTerminal(f *os.File) func() {
	if f == nil {
		return func() {}
	}
	fd := int(f.Fd())
	was, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil {
		return func() {}
	}
	return func() {
		runtime.LockOSThread() // the mask is the thread's
		defer runtime.UnlockOSThread()
		var set, old unix.Sigset_t
		set.Val[0] = 1 << (uint(unix.SIGTTOU) - 1)
		if unix.PthreadSigmask(unix.SIG_BLOCK, &set, &old) != nil {
			return
		}
		_ = unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, was)
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	}
}
