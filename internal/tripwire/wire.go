package tripwire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/due"
)

// wire is how one target is watched. Only the holder of the set's mutex touches it.
type wire struct {
	due.Entry // of the next thing to do
	addr      netip.AddrPort
	greeting  string
	fd        int // -1 = none
	state     State
	since     time.Time     // a connection stands
	habit     habit         // of the server
	lived     time.Duration // what the server ended last, until it is known whether it died
	proven    bool          // a connection came about since the last refusal
	fails     int           // attempts in a row that came to nothing
	reason    string
}

// connect begins to watch: by the kernel's word where the socket listens on this machine,
// else by a connection.
func (s *Set) connect(w *wire, now time.Time) {
	if s.listensHere(w) {
		return
	}
	fd, err := dial(w.addr, s.o)
	if err != nil {
		s.failed(w, now, err)
		return
	}
	if err := s.watch(fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP); err != nil {
		_ = unix.Close(fd)
		s.failed(w, now, fmt.Errorf("epoll: %w", err))
		return
	}
	w.fd = fd
	s.byFD[int32(fd)] = w
	s.become(w, StateDialing, "")
	s.due.Set(w, now.Add(s.o.Silence))
}

// listensHere leaves the wire to the kernel's word where it can be had.
func (s *Set) listensHere(w *wire) bool {
	if s.diag == nil || !s.isLocal(w.addr.Addr()) {
		return false
	}
	if here, err := s.diag.listens(w.addr); err != nil || !here {
		return false // another namespace's, behind a translated address
	}
	s.become(w, StateLocal, "")
	w.fails, w.lived, w.proven = 0, 0, true
	s.due.Remove(w)
	return true
}

// happened serves what the kernel says of a wire's socket.
func (s *Set) happened(w *wire, now time.Time) {
	if w.state == StateDialing {
		if err := pending(w.fd); errors.Is(err, errPending) {
			return
		} else if err != nil {
			s.drop(w)
			s.failed(w, now, err)
			return
		}
		s.connected(w, now)
	}
	if w.state != StateArmed {
		return
	}
	if kind, broken := drain(w.fd); broken {
		s.broken(w, kind, now)
	}
}

func (s *Set) connected(w *wire, now time.Time) {
	if s.listensHere(w) { // only just
		s.drop(w)
		return
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(w.fd)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_MOD, w.fd, &ev); err != nil {
		s.drop(w)
		s.failed(w, now, fmt.Errorf("epoll: %w", err))
		return
	}
	if w.greeting != "" {
		_, _ = unix.Write(w.fd, []byte(w.greeting)) // one that fails is heard of in a moment
	}
	if w.lived > 0 {
		w.habit.livedOn(w.lived, s.o)
	}
	w.since, w.fails, w.lived, w.proven = now, 0, 0, true
	s.become(w, StateArmed, "")
	s.mature(w, now)
}

// mature does what the age of a connection asks for and sets when to look again.
func (s *Set) mature(w *wire, now time.Time) {
	age := now.Sub(w.since)
	if age >= s.o.Short {
		w.habit.lasted()
	}
	renew := w.habit.renew()
	switch {
	case renew > 0 && age >= renew:
		w.habit.lasted()
		s.drop(w)
		s.connect(w, now)
	case age < s.o.Short && (renew == 0 || s.o.Short < renew):
		s.due.Set(w, w.since.Add(s.o.Short))
	case renew > 0:
		s.due.Set(w, w.since.Add(renew))
	default:
		s.due.Remove(w)
	}
}

// broken turns the end of a connection, or of a listener, into a hint.
func (s *Set) broken(w *wire, kind Kind, now time.Time) {
	hint := Hint{Addr: w.addr, At: now, Kind: kind}
	stood := s.stood
	if kind == KindListener {
		s.wait(w, now.Add(s.o.Pause), string(kind))
	} else {
		hint.Life = now.Sub(w.since)
		looked := w.habit.short >= s.o.Shorts // it had been given up, and nothing has changed
		hint.Expected = w.habit.ended(hint.Life, s.o)
		w.lived = hint.Life
		s.drop(w)
		if w.habit.short >= s.o.Shorts {
			s.giveUp(w, now)
		} else {
			s.wait(w, now.Add(min(s.o.Pause<<min(w.habit.short, 10), s.o.Again)), string(kind))
		}
		if looked {
			return
		}
	}
	if !hint.Expected {
		s.recent.add(now, stood)
	}
	s.fresh = append(s.fresh, hint)
}

// failed plans another attempt. A refusal is a hint when a connection had come about
// before: it can be the first sign of a death in a moment when none stood.
func (s *Set) failed(w *wire, now time.Time, err error) {
	if w.lived > 0 {
		w.habit.died(w.lived, s.o)
		w.lived = 0
	}
	pause := min(s.o.Pause<<min(w.fails, 10), s.o.Retry)
	w.fails++
	s.wait(w, now.Add(pause), err.Error())
	if w.proven && errors.Is(err, unix.ECONNREFUSED) {
		w.proven = false
		s.recent.add(now, s.stood+1)
		s.fresh = append(s.fresh, Hint{Addr: w.addr, At: now, Kind: KindRefused})
	}
}

func (s *Set) giveUp(w *wire, now time.Time) {
	s.become(w, StateGivenUp, fmt.Sprintf("ends idle connections at once, %d times in a row: only polled", w.habit.short))
	s.due.Set(w, now.Add(s.o.Again))
}

func (s *Set) wait(w *wire, until time.Time, reason string) {
	s.become(w, StateWaiting, reason)
	s.due.Set(w, until)
}

// become keeps count of the wires that stand.
func (s *Set) become(w *wire, state State, reason string) {
	if w.state.stands() {
		s.stood--
	}
	if state.stands() {
		s.stood++
	}
	w.state, w.reason = state, reason
}

func (s State) stands() bool { return s == StateArmed || s == StateLocal }

// drop lets the wire's socket go, if it has one; the next sweep closes it.
func (s *Set) drop(w *wire) {
	if w.fd < 0 {
		return
	}
	delete(s.byFD, int32(w.fd))
	s.dropped = append(s.dropped, w.fd)
	w.fd = -1
}

// dial begins a connection and returns its socket.
func dial(to netip.AddrPort, o Options) (int, error) {
	fd, err := socket(to)
	if err != nil {
		return -1, err
	}
	for _, opt := range []struct{ level, name, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(o.Keepalive)},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 2},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(o.Silence.Milliseconds())},
	} {
		if err := unix.SetsockoptInt(fd, opt.level, opt.name, opt.value); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("keepalive: %w", err)
		}
	}
	if err := begin(fd, to); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func seconds(d time.Duration) int { return max(1, int(d.Round(time.Second)/time.Second)) }

// socket makes a TCP socket of the address's family that never blocks.
func socket(to netip.AddrPort) (int, error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	return fd, nil
}

// begin sends the first packet. An error here is nearly always one of this machine.
func begin(fd int, to netip.AddrPort) error {
	err := unix.Connect(fd, sockaddr(to))
	if err == nil || errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		return nil
	}
	return fmt.Errorf("connect: %w", err)
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if zone := to.Addr().Zone(); zone != "" {
		if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			sa.ZoneId = uint32(n)
		} else if i, err := net.InterfaceByName(zone); err == nil {
			sa.ZoneId = uint32(i.Index)
		}
	}
	return sa
}

var errPending = errors.New("not connected yet")

// pending says how a connection that was begun stands: nil = it has come about.
func pending(fd int) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("connect: %w", unix.Errno(code))
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return errPending
	}
	return nil
}

// drain throws away what the server says and reports the end of the connection.
func drain(fd int) (Kind, bool) {
	var buf [4096]byte
	for range 16 { // the rest comes with the next event: no talker holds up the others
		n, _, err := unix.Recvfrom(fd, buf[:], 0)
		switch {
		case n > 0:
		case err == nil:
			return KindClosed, true
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return KindUnknown, false
		case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
			return KindReset, true
		default: // ETIMEDOUT of keepalive, EHOSTUNREACH of a router
			return KindSilent, true
		}
	}
	return KindUnknown, false
}
