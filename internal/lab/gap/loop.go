package gap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// open is a connection under way.
type open struct {
	fd       int
	start    time.Time
	until    time.Time // when it is given up
	answered bool      // connected, waits for the answer
}

// loop is the client's thread: it opens a connection at each tick of an absolute timer and
// follows all of them, until ctx ends and none is left. Nothing else runs on the thread.
func (c *Client) loop(ctx context.Context) error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	defer unix.Close(ep)
	tick, err := ticker(ep, c.o.Every)
	if err != nil {
		return err
	}
	defer unix.Close(tick)
	under := map[int]*open{}
	defer func() {
		for fd := range under {
			_ = unix.Close(fd)
		}
	}()
	began, total := time.Now(), int64(0)
	var events [64]unix.EpollEvent
	for ctx.Err() == nil || len(under) > 0 {
		n, err := unix.EpollWait(ep, events[:], 50)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) != tick {
				c.follow(ep, under, under[int(e.Fd)])
				continue
			}
			now := time.Now()
			due := began.Add(time.Duration(total+1) * c.o.Every)
			total += ticks(tick)
			if late := now.Sub(due); late > stalled {
				c.stall(Stall{At: due, For: late})
			}
			c.expire(under, now)
			if ctx.Err() == nil {
				c.open(ep, under)
			}
		}
	}
	return nil
}

// ticker is a descriptor that becomes readable at each interval of one absolute clock.
func ticker(ep int, every time.Duration) (int, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("timer: %w", err)
	}
	ts := unix.NsecToTimespec(every.Nanoseconds())
	err = unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: ts, Value: ts}, nil)
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}) //nolint:gosec // a descriptor
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, fmt.Errorf("timer: %w", err)
	}
	return fd, nil
}

// ticks is how often the timer has passed since the last look.
func ticks(fd int) int64 {
	var b [8]byte
	if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
		return 0
	}
	return int64(binary.NativeEndian.Uint64(b[:])) //nolint:gosec // a count
}

// open begins a connection.
func (c *Client) open(ep int, under map[int]*open) {
	start := time.Now()
	fd, err := connect(c.o.To)
	if err != nil {
		c.note(Conn{Start: start, Done: time.Now(), Fault: fault(err)})
		return
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)}); err != nil { //nolint:gosec // a descriptor
		_ = unix.Close(fd)
		c.note(Conn{Start: start, Done: time.Now(), Fault: NoSocket})
		return
	}
	under[fd] = &open{fd: fd, start: start, until: start.Add(c.o.Connect)}
}

// connect begins a connection without waiting. It ends with a reset, so that its port is
// free at once.
func connect(to netip.AddrPort) (int, error) {
	family := unix.AF_INET
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port())}
	if to.Addr().Is4() {
		sa.(*unix.SockaddrInet4).Addr = to.Addr().As4()
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err == nil {
		err = unix.Connect(fd, sa)
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// follow looks at a connection of which there is news.
func (c *Client) follow(ep int, under map[int]*open, x *open) {
	if x == nil {
		return
	}
	if !x.answered {
		if n, err := unix.GetsockoptInt(x.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || n != 0 {
			c.end(under, x, "", fault(unix.Errno(n)))
			return
		}
		x.answered, x.until = true, time.Now().Add(c.o.Answer)
		if err := unix.EpollCtl(ep, unix.EPOLL_CTL_MOD, x.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(x.fd)}); err != nil { //nolint:gosec // a descriptor
			c.end(under, x, "", NoSocket)
		}
		return
	}
	var b [64]byte
	n, err := unix.Read(x.fd, b[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
	case err != nil:
		c.end(under, x, "", fault(err))
	case n == 0:
		c.end(under, x, "", Closed)
	default:
		c.end(under, x, strings.TrimSpace(string(b[:n])), None)
	}
}

func (c *Client) end(under map[int]*open, x *open, who string, f Fault) {
	now := time.Now()
	_ = unix.Close(x.fd)
	delete(under, x.fd)
	c.note(Conn{Start: x.start, Done: now, Who: who, Fault: f})
}

// expire gives up what took too long.
func (c *Client) expire(under map[int]*open, now time.Time) {
	for _, x := range under {
		if now.After(x.until) {
			c.end(under, x, "", Timeout)
		}
	}
}

// fault is the word for an error of a socket.
func fault(err error) Fault {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Refused
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return Reset
	case errors.Is(err, unix.ETIMEDOUT):
		return Timeout
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return NoRoute
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENOBUFS):
		return NoSocket
	}
	return Other
}
