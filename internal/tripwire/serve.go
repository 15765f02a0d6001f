package tripwire

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// stride is how many attempts to connect are begun between two looks at the sockets, so
// that arming thousands delays no hint.
const stride = 64

// serve is the set's thread: it sleeps in the kernel until a socket or the schedule wants
// something. It never waits for the reader of hints.
func (s *Set) serve() {
	defer close(s.done)
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(s.epoll, events, s.patience())
		if err != nil { // EINTR: a signal came
			n = 0
		}
		if s.round(events[:n], clock()) {
			return
		}
	}
}

// round serves one batch; it reports that the set is closed. What broke is told before
// anything else is done about it: closing a socket sends packets, and takes as long.
func (s *Set) round(events []unix.EpollEvent, now time.Time) (closed bool) {
	if s.hear(events, now) {
		runtime.Gosched() // to the reader, on this very thread: waking another takes longer than all it does
	}
	return s.tidy(now)
}

// hear finds out what broke and tells it; it reports whether there was anything to tell.
func (s *Set) hear(events []unix.EpollEvent, now time.Time) (told bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	for i := range events {
		switch fd := int(events[i].Fd); {
		case fd == s.bell:
			var count [8]byte
			_, _ = unix.Read(s.bell, count[:])
		case s.diag != nil && fd == s.diag.events:
			s.listenersGone(now)
		default:
			// A socket that this batch let go already is in the table no more; its number
			// is given out again only when it has been closed.
			if w, ok := s.byFD[events[i].Fd]; ok {
				s.happened(w, now)
			}
		}
	}
	told = len(s.fresh) > 0
	s.tell()
	return told
}

// tidy closes what was let go and does what is due; it reports that the set is closed.
func (s *Set) tidy(now time.Time) (closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	defer s.sweep()
	for range stride {
		w, ok := s.due.First()
		if !ok || w.When().After(now) {
			break
		}
		switch w.state {
		case StateArmed:
			s.mature(w, now)
		case StateDialing:
			s.drop(w)
			s.failed(w, now, unix.ETIMEDOUT)
		case StateUnknown, StateLocal, StateWaiting, StateGivenUp:
			s.connect(w, now)
		}
	}
	s.tell()
	return false
}

// sweep closes the sockets that were let go.
func (s *Set) sweep() {
	for _, fd := range s.dropped {
		_ = unix.Close(fd) // nothing was written, and epoll forgets it
	}
	s.dropped = s.dropped[:0]
}

// listenersGone looks which listening sockets of this machine are missing after the kernel
// said that some socket is gone.
func (s *Set) listenersGone(now time.Time) {
	ports, all := s.diag.destroyed()
	for _, w := range s.wires {
		if w.state != StateLocal || !all && !ports[w.addr.Port()] {
			continue
		}
		// One of several listeners on one port may go: the kernel says whether another takes the connections.
		if here, err := s.diag.listens(w.addr); err == nil && !here {
			s.broken(w, KindListener, now)
		}
	}
}

// tell hands fresh hints to the reader, or keeps them until it has room.
func (s *Set) tell() {
	if len(s.fresh) == 0 && len(s.late) == 0 {
		return
	}
	for i := range s.fresh {
		h := &s.fresh[i]
		h.Suspicious = !h.Expected && s.recent.most(h.At, s.o.Crowd)
	}
	s.late = append(s.late, s.fresh...)
	s.fresh = s.fresh[:0]
	sent := 0
	for _, h := range s.late {
		select {
		case s.hints <- h:
			sent++
			continue
		default:
		}
		break
	}
	s.late = append(s.late[:0], s.late[sent:]...)
}

// patience is how long the thread may sleep, in milliseconds; -1 = until something happens.
func (s *Set) patience() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.due.First()
	switch {
	case s.closed:
		return 0
	case len(s.late) > 0:
		return 1
	case !ok:
		return -1
	}
	left := first.When().Sub(clock())
	return int(min(max(0, left+time.Millisecond-1), time.Hour) / time.Millisecond)
}
