package cage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Init is pid 1 of a cage: args are what follows Arg. It returns the exit code. It never
// uses os/exec, because it reaps every child that the namespace has.
func Init(args []string) int {
	if len(args) < 5 || args[0] != "init" || args[3] != "--" {
		fmt.Fprintln(os.Stderr, "shunt: error: lab-child is started by the lab only")
		return 64
	}
	n, err := strconv.Atoi(args[2])
	if err != nil || unix.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "shunt: error: lab-child is started by the lab only")
		return 64
	}
	code, err := initialize(args[1], n, args[4:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "shunt: error: lab: %v\n", err)
		return 1
	}
	return code
}

func initialize(dir string, files int, argv []string) (int, error) {
	const life = 3
	syscall.CloseOnExec(life)
	if err := mounts(dir); err != nil {
		return 0, err
	}
	if err := unix.Sethostname([]byte("shunt-lab")); err != nil {
		return 0, fmt.Errorf("host name: %w", err)
	}
	sig := make(chan os.Signal, 8)
	// SIGINT comes from the terminal to the command as well: only SIGTERM is handed on.
	signal.Notify(sig, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)

	fds := []uintptr{0, 1, 2}
	for i := range files {
		fds = append(fds, uintptr(life+1+i))
	}
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: os.Environ(), Files: fds})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	for i := range files {
		_ = unix.Close(life + 1 + i)
	}
	orphaned := make(chan struct{})
	go func() {
		f := os.NewFile(life, "lifeline")
		_, _ = io.Copy(io.Discard, f)
		close(orphaned)
	}()
	ended, gone := make(chan syscall.WaitStatus, 1), make(chan struct{})
	go reap(pid, ended, gone)
	for {
		select {
		case s := <-sig:
			if s == syscall.SIGTERM || s == syscall.SIGHUP {
				_ = unix.Kill(pid, unix.SIGTERM)
			}
		case <-orphaned:
			_ = unix.Kill(-1, unix.SIGKILL)
			<-gone
			_ = os.RemoveAll(dir) // the parent cannot do it any more
			return 1, nil
		case st := <-ended:
			_ = unix.Kill(-1, unix.SIGKILL)
			if st.Signaled() {
				return 128 + int(st.Signal()), nil
			}
			return st.ExitStatus(), nil
		}
	}
}

// reap waits for children until there are none; the status of main goes to ended.
func reap(main int, ended chan<- syscall.WaitStatus, gone chan<- struct{}) {
	defer close(gone)
	for {
		var st syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &st, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return
		case pid == main:
			ended <- st
		}
	}
}

// mounts makes the mount namespace private and gives it a /proc of the new pid namespace
// and an empty /run: named network namespaces and UAPI sockets live there and nowhere else.
func mounts(dir string) error {
	if strings.HasPrefix(dir+"/", "/run/") || strings.HasPrefix(dir+"/", "/var/run/") {
		return fmt.Errorf("work folder %s: must not be under /run", dir)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NOEXEC|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("lab", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, d := range []string{"netns", "wireguard", "lock"} {
		if err := os.Mkdir(filepath.Join("/run", d), 0o755); err != nil {
			return err
		}
	}
	if real, err := filepath.EvalSymlinks("/var/run"); err == nil && real != "/run" {
		if err := unix.Mount("/run", "/var/run", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /var/run: %w", err)
		}
	}
	return nil
}
