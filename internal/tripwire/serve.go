package tripwire

import (
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

// round serves one batch; it reports that the set is closed.
func (s *Set) round(events []unix.EpollEvent, now time.Time) (closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	for i := range events {
		switch fd := int(events[i].Fd); {
		case fd == s.bell:
			var count [8]byte
			_, _ = unix.Read(s.bell, count[:])
		case s.diag != nil && fd == s.diag.events:
			s.listenersGone(now)
		default:
			// A socket that this batch closed already is in the table no more; its number
			// is given out again only below.
			if w, ok := s.byFD[events[i].Fd]; ok {
				s.happened(w, now)
			}
		}
	}
	s.tell()
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
