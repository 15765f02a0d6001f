package flow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	batchSize = 16 << 10 // bytes of requests that are sent at once
	readSize  = 64 << 10 // bytes; the kernel lists in pieces as large as the reader takes
)

// socket is a netlink socket to netfilter.
type socket struct {
	file *os.File
	conn syscall.RawConn
	seq  uint32
	buf  []byte
}

func open() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("netlink socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = unix.Close(fd) // nothing was written
		return nil, os.NewSyscallError("netlink bind", err)
	}
	s := &socket{file: os.NewFile(uintptr(fd), "netfilter"), buf: make([]byte, readSize)}
	if s.conn, err = s.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *socket) close() error { return s.file.Close() }

// until ends all waiting at t.
func (s *socket) until(t time.Time) error { return s.file.SetDeadline(t) }

// request is one message to conntrack.
type request struct {
	kind, flags uint16
	family      uint8
	attrs       []byte
}

func (r request) append(b []byte, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+header+len(r.attrs)))
	b = binary.NativeEndian.AppendUint16(b, subsystem|r.kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|r.flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	// The version is what makes kernels before 6.11 look at the family.
	b = append(b, r.family, 1, 0, 0)
	return append(b, r.attrs...)
}

// do sends one request and calls entry for each message of its answer. The error is the
// kernel's unix.Errno, or it comes from the socket or from entry.
func (s *socket) do(r request, entry func(body []byte) error) error {
	s.seq++
	if err := s.send(r.append(nil, s.seq)); err != nil {
		return err
	}
	return s.receive(s.seq, func(_ uint32, errno unix.Errno) error { return fail(errno) }, entry)
}

// all sends requests, many at a time, and calls done for each one that failed. Only the last
// of those that are sent at once is acknowledged when it succeeds.
func (s *socket) all(list []request, failed func(i int, errno unix.Errno) error) error {
	for begin := 0; begin < len(list); {
		first := s.seq + 1
		var b []byte
		end := begin
		for ; end < len(list) && len(b) < batchSize; end++ {
			r := list[end]
			if end+1 == len(list) || len(b)+unix.NLMSG_HDRLEN+header+len(r.attrs) >= batchSize {
				r.flags |= unix.NLM_F_ACK
			}
			s.seq++
			b = r.append(b, s.seq)
		}
		if err := s.send(b); err != nil {
			return err
		}
		err := s.receive(s.seq, func(seq uint32, errno unix.Errno) error {
			if i := begin + int(seq-first); errno != 0 && i >= begin && i < end {
				return failed(i, errno)
			}
			return nil
		}, nil)
		if err != nil {
			return err
		}
		begin = end
	}
	return nil
}

func fail(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func (s *socket) send(b []byte) error {
	var err error
	if e := s.conn.Write(func(fd uintptr) bool {
		err = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return err != unix.EAGAIN
	}); e != nil {
		return e
	}
	return os.NewSyscallError("netlink send", err)
}

// receive reads up to the end of the answer to request last. A request's end is told to
// ended, with the kernel's error.
func (s *socket) receive(last uint32, ended func(seq uint32, errno unix.Errno) error, entry func([]byte) error) error {
	for {
		var n int
		var from unix.Sockaddr
		var err error
		if e := s.conn.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), s.buf, 0)
			return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
		}); e != nil {
			return e
		}
		if err != nil {
			return os.NewSyscallError("netlink receive", err)
		}
		if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 {
			continue // not the kernel
		}
		done, err := s.read(s.buf[:n], last, ended, entry)
		if done || err != nil {
			return err
		}
	}
}

// read goes through the messages of one datagram.
func (s *socket) read(b []byte, last uint32, ended func(uint32, unix.Errno) error, entry func([]byte) error) (bool, error) {
	for len(b) > 0 {
		if len(b) < unix.NLMSG_HDRLEN {
			return false, errShort
		}
		size, kind, seq := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:])
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return false, errShort
		}
		body := b[unix.NLMSG_HDRLEN:size]
		b = b[min((size+3)&^3, len(b)):]
		switch kind {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			var errno unix.Errno
			if len(body) >= 4 {
				errno = unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
			}
			if err := ended(seq, errno); err != nil {
				return false, err
			}
			if seq == last {
				return true, nil
			}
		case unix.NLMSG_NOOP, unix.NLMSG_OVERRUN:
			return false, fmt.Errorf("netlink message of type %d", kind)
		default:
			if entry == nil || seq != last {
				continue
			}
			if err := entry(body); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}
