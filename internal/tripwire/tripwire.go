// Package tripwire learns of a server's death from the kernel instead of by asking: it
// holds one idle connection to each candidate and reads its end, and for candidates of
// this machine it listens to the kernel's word that a listening socket is gone. Either is
// a hint, no proof: Confirm asks.
package tripwire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/due"
)

// Options of a Set. The zero value is useful.
type Options struct {
	Pause     time.Duration // between the end of a connection and the next; doubled by each short life; 0 = 300ms
	Short     time.Duration // a connection that the server ends sooner had a short life; 0 = 2s
	Shorts    int           // short lives in a row until the candidate is given up; 0 = 5
	Accept    time.Duration // a server that ends its first connection sooner does so to all; 0 = 50ms
	Again     time.Duration // between two looks at a candidate that was given up; 0 = 30s
	Retry     time.Duration // longest pause between two attempts to connect; 0 = 2s
	Keepalive time.Duration // idle time after which the kernel asks the other host, whole seconds; 0 = 2s
	Silence   time.Duration // a host that does not acknowledge for so long is gone; 0 = 4s
	Crowd     time.Duration // hints so close together count as one event; 0 = 10ms
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Pause, 300*time.Millisecond)
	def(&o.Short, 2*time.Second)
	def(&o.Accept, 50*time.Millisecond)
	def(&o.Again, 30*time.Second)
	def(&o.Retry, 2*time.Second)
	def(&o.Keepalive, 2*time.Second)
	def(&o.Silence, 4*time.Second)
	def(&o.Crowd, 10*time.Millisecond)
	if o.Shorts <= 0 {
		o.Shorts = 5
	}
	return o
}

// Target is one address to watch, with what an earlier watcher learned of it.
type Target struct {
	Addr     netip.AddrPort
	Lifetime time.Duration // after which the server ends an idle connection; 0 = not known
	Short    int           // short lives in a row
	Greeting string        // written once on each connection: what its server has to hear; "" = nothing
}

// Kind says what a hint is made of.
type Kind string

// The kinds of hints. The zero value is unknown.
const (
	KindUnknown  Kind = ""
	KindClosed   Kind = "closed"   // the server ended the connection
	KindReset    Kind = "reset"    // it was reset
	KindSilent   Kind = "silent"   // the host acknowledges no more
	KindRefused  Kind = "refused"  // the next connection was refused, after one that had come about
	KindListener Kind = "listener" // the listening socket on this machine is gone
)

// Hint says that a candidate may have died.
type Hint struct {
	Addr       netip.AddrPort
	At         time.Time // when it was read, with the monotonic clock
	Kind       Kind
	Life       time.Duration // of the connection
	Expected   bool          // as this server always does it: ask, but move nothing before
	Suspicious bool          // most of the others broke at the same moment: rather our own fault
}

// State is what watches a target.
type State string

// The states. The zero value is unknown.
const (
	StateUnknown State = ""
	StateDialing State = "dialing"
	StateArmed   State = "armed"    // an idle connection stands
	StateLocal   State = "local"    // the kernel tells of the listening socket
	StateWaiting State = "waiting"  // until the next attempt
	StateGivenUp State = "given_up" // its connections never last: only polling watches it
)

// Status is how one target is watched.
type Status struct {
	Addr     netip.AddrPort `json:"addr"`
	State    State          `json:"state"`
	Lifetime time.Duration  `json:"lifetime,omitempty"` // learned; 0 = not known
	Short    int            `json:"short,omitempty"`
	Reason   string         `json:"reason,omitempty"` // why it is not watched
}

// Set watches targets until Close. One thread serves all of them.
type Set struct {
	o     Options
	hints chan Hint
	epoll int
	bell  int // eventfd: wakes the thread
	diag  *diag
	done  chan struct{}

	mu    sync.Mutex
	wires map[netip.AddrPort]*wire
	byFD  map[int32]*wire
	due   due.Queue[*wire]
	local map[netip.Addr]bool
	fresh []Hint // of the batch being served
	late  []Hint // that the channel had no room for
	// sockets that nobody watches any more, to be closed when there is nothing to tell
	dropped []int
	recent  crowd
	stood   int // wires that stand
	closed  bool
}

// room is how many hints wait for a slow reader before they cost an allocation.
const room = 1024

// New makes an empty Set. The sockets belong to the network namespace of the process.
func New(o Options) (*Set, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("tripwire: epoll: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tripwire: eventfd: %w", err), unix.Close(ep))
	}
	s := &Set{
		o: o.withDefaults(), hints: make(chan Hint, room), epoll: ep, bell: bell, done: make(chan struct{}),
		wires: map[netip.AddrPort]*wire{}, byFD: map[int32]*wire{}, local: map[netip.Addr]bool{},
	}
	if err := s.watch(bell, unix.EPOLLIN); err != nil {
		return nil, errors.Join(fmt.Errorf("tripwire: epoll: %w", err), unix.Close(bell), unix.Close(ep))
	}
	// Without sock_diag (a kernel may lack it) candidates of this machine get a connection like all others.
	if d, err := openDiag(); err == nil {
		if s.watch(d.events, unix.EPOLLIN) == nil {
			s.diag = d
		} else {
			d.close()
		}
	}
	go s.serve()
	return s, nil
}

// Hints is where hints arrive, in order and without loss however slow the reader is. It is
// closed by Close.
func (s *Set) Hints() <-chan Hint { return s.hints }

// Arm makes the set watch exactly these targets: new ones are connected to at once, those
// that are no longer named are let go, and nothing happens to the others. Targets of one
// address share one connection.
func (s *Set) Arm(targets []Target) {
	local := localAddresses()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.local = local
	named := make(map[netip.AddrPort]bool, len(targets))
	now := clock()
	for _, t := range targets {
		addr := netip.AddrPortFrom(t.Addr.Addr().Unmap(), t.Addr.Port())
		if !addr.IsValid() || named[addr] {
			continue
		}
		named[addr] = true
		if w, ok := s.wires[addr]; ok {
			w.greeting = t.Greeting
			if w.state == StateLocal && !s.isLocal(addr.Addr()) { // the address has moved away
				s.wait(w, now, "")
			}
			continue
		}
		w := &wire{addr: addr, greeting: t.Greeting, fd: -1, state: StateWaiting, habit: habit{learned: t.Lifetime, short: max(0, t.Short)}}
		s.wires[addr] = w
		if w.habit.short >= s.o.Shorts {
			s.giveUp(w, now)
			continue
		}
		s.wait(w, now, "")
	}
	for addr, w := range s.wires {
		if !named[addr] {
			s.drop(w)
			s.become(w, StateUnknown, "")
			s.due.Remove(w)
			delete(s.wires, addr)
		}
	}
	s.sweep()
	s.ring()
}

// Died says that the end of a target's connection was its server's death, so that it is no
// habit: one that crashes again and again is watched on.
func (s *Set) Died(addr netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.wires[netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())]
	if !ok || w.lived == 0 {
		return
	}
	w.habit.died(w.lived, s.o)
	w.lived = 0
	if w.state == StateGivenUp && w.habit.short < s.o.Shorts {
		s.wait(w, clock().Add(s.o.Pause), "its server died")
		s.ring()
	}
}

// Status tells how each target is watched, sorted by address.
func (s *Set) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Status, 0, len(s.wires))
	for _, w := range s.wires {
		list = append(list, Status{Addr: w.addr, State: w.state, Lifetime: w.habit.learned, Short: w.habit.short, Reason: w.reason})
	}
	slices.SortFunc(list, func(a, b Status) int { return a.Addr.Compare(b.Addr) })
	return list
}

// Crowd reports whether most of what was watched broke together around that moment. A hint
// of the first instant does not know of those that follow: ask again before the last
// candidate goes.
func (s *Set) Crowd(at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.recent.most(at, s.o.Crowd)
}

// Close ends all connections and closes the channel of hints.
func (s *Set) Close() {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.ring()
	s.mu.Unlock()
	<-s.done
	if !first {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.wires {
		s.drop(w)
	}
	s.sweep()
	clear(s.wires)
	_ = unix.Close(s.bell)
	_ = unix.Close(s.epoll)
	if s.diag != nil {
		s.diag.close()
	}
	s.bell, s.epoll = -1, -1
	close(s.hints)
}

// ring wakes the thread.
func (s *Set) ring() {
	if s.bell >= 0 {
		_, _ = unix.Write(s.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // a full counter has woken it already
	}
}

func (s *Set) watch(fd int, events uint32) error {
	return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func (s *Set) isLocal(a netip.Addr) bool { return a.IsLoopback() || s.local[a.WithZone("")] }

// localAddresses are this namespace's own. Not knowing them only means a connection where
// none would be needed.
func localAddresses() map[netip.Addr]bool {
	found := map[netip.Addr]bool{}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return found
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				found[ip.Unmap()] = true
			}
		}
	}
	return found
}

// clock is read where a moment is stamped, never to decide what day it is.
func clock() time.Time {
	return time.Now() //nolint:forbidigo // measures durations: lives, pauses and the moment of a hint
}
