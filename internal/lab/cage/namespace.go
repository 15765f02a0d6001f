package cage

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// folder holds the named network namespaces, where iproute2 looks for them too.
const folder = "/run/netns"

// Namespace is a network namespace with a mount namespace in which /sys shows it.
type Namespace struct {
	Name     string
	net, mnt int
}

// New makes a network namespace for each name; loopback is not up yet. It works only in a
// cage: the names are visible in this mount namespace alone.
func New(names ...string) ([]*Namespace, error) {
	var all []*Namespace
	fail := func(err error) ([]*Namespace, error) {
		for _, n := range all {
			_ = n.Close()
		}
		return nil, err
	}
	for _, name := range names {
		n := &Namespace{Name: name, net: -1, mnt: -1}
		all = append(all, n)
		if err := onThread(n.create); err != nil {
			return fail(fmt.Errorf("network namespace %s: %w", name, err))
		}
	}
	for _, n := range all { // afterwards, so that each sees the names of all
		if err := onThread(n.createMounts); err != nil {
			return fail(fmt.Errorf("network namespace %s: %w", n.Name, err))
		}
	}
	return all, nil
}

// onThread runs f on a thread that ends with it, because f changes it for good.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		var err error
		defer func() { done <- err }()
		err = errors.New("goroutine ended early") // stands if f calls Goexit
		err = f()
	}()
	return <-done
}

func (n *Namespace) create() error {
	path := filepath.Join(folder, n.Name)
	if err := os.WriteFile(path, nil, 0o444); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("name it: %w", err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n.net = fd
	return nil
}

func (n *Namespace) createMounts() error {
	if err := unix.Setns(n.net, unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	_ = unix.Unmount("/sys", unix.MNT_DETACH) // not there is as good
	if err := unix.Mount(n.Name, "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	fd, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n.mnt = fd
	return nil
}

// Close removes the name. The namespace itself ends with its last socket and process.
func (n *Namespace) Close() error {
	path := filepath.Join(folder, n.Name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	err = errors.Join(err, os.Remove(path))
	for _, fd := range []int{n.net, n.mnt} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	n.net, n.mnt = -1, -1
	return err
}

// FD is the descriptor of the network namespace, valid until Close.
func (n *Namespace) FD() int { return n.net }

// Path is the file that names the namespace.
func (n *Namespace) Path() string { return filepath.Join(folder, n.Name) }

// Do runs f on a thread inside the namespace. Sockets that f makes stay in it; goroutines
// that f starts do not run in it.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(n.net, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", n.Name, err)
		}
		return f()
	})
}

// Start starts cmd inside the namespace, with its /sys. The caller waits for it as usual.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil { // else setns refuses
			return err
		}
		if err := unix.Setns(n.mnt, unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("enter %s: %w", n.Name, err)
		}
		if err := unix.Setns(n.net, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", n.Name, err)
		}
		return cmd.Start()
	})
}

// Sysctl writes a setting of the namespace, for example ("net.ipv4.ip_forward", "1"),
// given as a path below /proc/sys with slashes.
func (n *Namespace) Sysctl(settings map[string]string) error {
	return n.Do(func() error {
		for k, v := range settings {
			if err := os.WriteFile(filepath.Join("/proc/sys", k), []byte(v), 0o644); err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
		}
		return nil
	})
}
