package knock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// goodbye bounds the wait for the other side's end of a connection, so that it is not
// reset while the server still writes.
const goodbye = 20 * time.Millisecond

// localError is this machine's own refusal, which says nothing of the candidate.
type localError struct {
	what string
	err  error
}

func (e *localError) Error() string { return e.what + ": " + e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// The net package would cost three times as much for each connection, mostly for what a
// probe of one known address does not need.

// open begins a connection and reports whether it stands already, as it nearly always does
// on this host. The caller closes fd.
func open(to netip.AddrPort) (fd int, stands bool, err error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return -1, false, &localError{"socket", err}
	}
	err = unix.Connect(fd, sockaddr(to))
	switch {
	case err == nil:
		return fd, true, nil
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EINTR):
		stands, err = connected(fd)
	case errors.Is(err, unix.ECONNREFUSED):
	default: // at once: the packet was never sent
		err = &localError{"connect", err}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, false, err
	}
	return fd, stands, nil
}

// connected looks how a connection that was begun has come out; false = it is under way.
func connected(fd int) (bool, error) {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return false, &localError{"connect", err}
	}
	if code != 0 {
		return false, unix.Errno(code)
	}
	_, err = unix.Getpeername(fd)
	return err == nil, nil
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if zone := to.Addr().Zone(); zone != "" {
		if i, err := net.InterfaceByName(zone); err == nil {
			sa.ZoneId = uint32(i.Index)
		}
	}
	return sa
}

// conn is a connection under the runtime's poller. It implements net.Conn.
type conn struct {
	*os.File
	peer netip.AddrPort
	end  time.Time // of the probe
	got  int64     // bytes read
	stop func() bool
}

// dial makes a connection that is bound by the deadline and by ctx for all it does.
func dial(ctx context.Context, to netip.AddrPort, deadline time.Time) (*conn, error) {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	fd, stands, err := open(to)
	if err != nil {
		return nil, err
	}
	c := &conn{File: os.NewFile(uintptr(fd), "probe"), peer: to, end: deadline}
	if err := c.SetDeadline(deadline); err != nil {
		return nil, errors.Join(&localError{"socket", err}, c.File.Close())
	}
	c.stop = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if !stands {
		if err := c.await(); err != nil {
			_ = c.drop()
			return nil, err
		}
	}
	return c, nil
}

// await waits until the connection stands. A last look follows the deadline: a process
// that was late finds what the kernel did meanwhile.
func (c *conn) await() error {
	raw, err := c.SyscallConn()
	if err != nil {
		return &localError{"socket", err}
	}
	var out error
	err = raw.Write(func(fd uintptr) bool {
		ok, err := connected(int(fd))
		out = err
		return ok || err != nil
	})
	if err == nil {
		return out
	}
	var stands bool
	if e := raw.Control(func(fd uintptr) { stands, out = connected(int(fd)) }); e != nil {
		return &localError{"socket", e}
	}
	if stands || out != nil {
		return out
	}
	return err
}

// Read implements io.Reader. Like await, it looks once more when the time is up.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.File.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if raw, e := c.SyscallConn(); e == nil {
			_ = raw.Control(func(fd uintptr) {
				if m, _, e := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); e == nil && m > 0 {
					n, err = m, nil
				}
			})
		}
	}
	c.got += int64(n)
	return n, err
}

// LocalAddr is for net.Conn.
func (c *conn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr is for net.Conn.
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.peer) }

// Close ends the connection as the protocol has it: our end first, then what the server
// still says is read until its end, for a moment. Closing with bytes unread, or before the
// server has spoken, would send a reset, which servers log.
func (c *conn) Close() error {
	end := earlier(c.end, clock().Add(goodbye))
	raw, err := c.SyscallConn()
	if err != nil {
		return c.drop()
	}
	_ = raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
	if err == nil && c.SetReadDeadline(end) == nil {
		var b [2048]byte
		for range 64 {
			if _, err := c.File.Read(b[:]); err != nil {
				break
			}
		}
	}
	return c.drop()
}

// drop ends the connection at once.
func (c *conn) drop() error {
	c.stop()
	if err := c.File.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
