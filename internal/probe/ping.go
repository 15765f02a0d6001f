package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// hit is an answer.
type hit struct {
	seq, size int
	at        time.Time
}

// shot is one ping of a volley.
type shot struct {
	at     time.Time
	closed bool // answered or given up
}

// flight is a volley under way.
type flight struct {
	volley
	ident   ident
	sockets map[bool]*socket // by "is IPv6"
	readers sync.WaitGroup
	hits    chan hit
	shots   []shot
	open    int // not sent yet, or waited for
	out     outcome
}

// ping sends a volley and returns as soon as need answers are in or cannot come any more.
func ping(ctx context.Context, v volley) outcome {
	begun := time.Now() //nolint:forbidigo // measures a duration
	f := &flight{volley: v, sockets: map[bool]*socket{}, hits: make(chan hit, 2*max(v.n, 1)), open: v.n}
	err := f.prepare()
	if err == nil {
		err = f.fly(ctx)
	}
	for _, s := range f.sockets {
		s.close()
	}
	f.readers.Wait()
	f.out.pass = f.need > 0 && f.out.got >= f.need
	if !f.out.pass {
		f.out.err = err
	}
	f.out.took = time.Since(begun) //nolint:forbidigo // measures a duration
	return f.out
}

func (f *flight) prepare() error {
	switch {
	case f.iface == "":
		return errors.New("no interface to ping through")
	case len(f.targets) == 0:
		return errors.New("no targets to ping")
	case f.need <= 0 || f.need > f.n:
		return fmt.Errorf("%d answers of %d pings are wanted", f.need, f.n)
	}
	var random [2 + cookieSize]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	f.ident = ident{id: f.id, cookie: [cookieSize]byte(random[2:])}
	if f.id == 0 {
		f.ident.id = binary.BigEndian.Uint16(random[:])
	}
	targets := make([]netip.Addr, len(f.targets))
	for i, t := range f.targets {
		targets[i] = t.Unmap()
	}
	f.targets = targets
	for _, t := range targets {
		if f.sockets[t.Is6()] != nil {
			continue
		}
		s, err := open(f.iface, t.Is6(), f.whole)
		if err != nil {
			return err
		}
		f.sockets[t.Is6()] = s
		f.readers.Go(func() { f.read(s) })
	}
	return nil
}

// readErrors in a row mean that a socket is beyond hope.
const readErrors = 100

func (f *flight) read(s *socket) {
	buf := make([]byte, max(2048, f.payload+128))
	for failed := 0; failed < readErrors; {
		m, err := s.receive(buf)
		at := time.Now() //nolint:forbidigo // measures a duration
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil { // an ICMP error of a single destination
			failed++
			continue
		}
		seq, ok := f.ident.reply(m, s.v6, s.raw)
		if !ok {
			continue
		}
		select {
		case f.hits <- hit{seq, len(m), at}:
		default: // more answers than pings: duplicates
		}
	}
}

// fly sends, counts and gives up. The error says why no more answers can come, if anything but time does.
func (f *flight) fly(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	var failure error
	for f.out.got < f.need && f.out.got+f.open >= f.need {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case h := <-f.hits:
			f.count(h)
		case <-next.C:
			now := time.Now() //nolint:forbidigo // measures a duration
			f.giveUp(now)
			if len(f.shots) < f.n && f.due(now) <= 0 {
				err := f.shoot()
				if err != nil {
					failure = err
				}
				if certain(err) {
					return err
				}
			}
			next.Reset(f.wake())
		}
	}
	return failure
}

// due is how long the next ping has to wait: a gap after the last one that was really sent.
func (f *flight) due(now time.Time) time.Duration {
	if len(f.shots) == 0 || f.shots[len(f.shots)-1].at.IsZero() {
		return 0
	}
	return f.shots[len(f.shots)-1].at.Add(f.gap).Sub(now)
}

// wake is when there is something to do next.
func (f *flight) wake() time.Duration {
	now := time.Now() //nolint:forbidigo // measures a duration
	wait := time.Hour
	if len(f.shots) < f.n {
		wait = f.due(now)
	}
	for _, s := range f.shots {
		if !s.closed {
			wait = min(wait, s.at.Add(f.wait).Sub(now))
		}
	}
	return max(wait, 0)
}

// shoot sends the next ping. One that cannot leave is given up at once.
func (f *flight) shoot() error {
	seq := len(f.shots)
	to := f.targets[seq%len(f.targets)]
	m := f.ident.request(to.Is6(), uint16(seq), f.payload) //nolint:gosec // a handful
	at := time.Now()                                       //nolint:forbidigo // measures a duration
	// No buffer: some queue on the way was full. IPv4 hides that loss from the sender, IPv6 does not.
	err := f.sockets[to.Is6()].send(m, to)
	if errors.Is(err, unix.EPERM) {
		// Lanes often have one source address, and what is translated has to keep its way: a ping
		// whose identifier another lane's had within 30 s is dropped together with the entry of
		// that one. The next meets no entry.
		err = f.sockets[to.Is6()].send(m, to)
	}
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		f.shots = append(f.shots, shot{closed: true})
		f.open--
		return fmt.Errorf("ping %s through %s: %w", to, f.iface, err)
	}
	f.shots = append(f.shots, shot{at: at})
	f.out.sent++
	return nil
}

func (f *flight) count(h hit) {
	if h.seq >= len(f.shots) || f.shots[h.seq].closed || h.size != echoHeader+max(f.payload, cookieSize) {
		return
	}
	s := &f.shots[h.seq]
	s.closed = true
	f.open--
	f.out.got++
	if trip := max(h.at.Sub(s.at), time.Nanosecond); f.out.rtt == 0 || trip < f.out.rtt {
		f.out.rtt = trip
	}
}

// giveUp closes the pings whose time is over.
func (f *flight) giveUp(now time.Time) {
	for i := range f.shots {
		if s := &f.shots[i]; !s.closed && !now.Before(s.at.Add(f.wait)) {
			s.closed = true
			f.open--
		}
	}
}

// certain says whether an error of sending holds for every other ping of the interface as well.
func certain(err error) bool {
	for _, e := range []unix.Errno{unix.ENODEV, unix.ENXIO, unix.ENETDOWN, unix.ENOKEY} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
