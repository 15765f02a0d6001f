package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// link is what counts of an interface.
type link struct {
	name         string
	up, loopback bool
}

// links asks for interfaces by their number. A machine may have a thousand interfaces and a
// dozen addresses: only those that have one are asked for.
type links struct {
	fd    int
	known map[int]link
}

func newLinks() (*links, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &links{fd: fd, known: map[int]link{}}, nil
}

func (l *links) close() { _ = unix.Close(l.fd) }

// get returns an interface; one that is gone meanwhile is not up.
func (l *links) get(index int) link {
	if k, ok := l.known[index]; ok {
		return k
	}
	var k link
	if name, err := nameOf(l.fd, index); err == nil {
		k.name = name
		if req, err := unix.NewIfreq(name); err == nil && unix.IoctlIfreq(l.fd, unix.SIOCGIFFLAGS, req) == nil {
			k.up, k.loopback = req.Uint16()&unix.IFF_UP != 0, req.Uint16()&unix.IFF_LOOPBACK != 0
		}
	}
	l.known[index] = k
	return k
}

func nameOf(fd, index int) (string, error) {
	req, err := unix.NewIfreq("")
	if err != nil {
		return "", err
	}
	req.SetUint32(uint32(index))
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, req); err != nil {
		return "", os.NewSyscallError("SIOCGIFNAME", err)
	}
	return req.Name(), nil
}
