package lane

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// flow is a numbered stream of UDP packets through the lane of mark 0x202.
type flow struct {
	tb   testing.TB
	fd   int
	mu   sync.Mutex
	sent []time.Time
	got  []answer // by number
	stop chan struct{}
	done sync.WaitGroup
}

type answer struct {
	at  time.Time
	tag byte
}

func startFlow(tb testing.TB, gap time.Duration) *flow {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	for opt, v := range map[int]int{unix.SO_MARK: 0x202} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, v); err != nil {
			tb.Fatal(err)
		}
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000})
	f := &flow{tb: tb, fd: fd, stop: make(chan struct{})}
	f.done.Add(2)
	go f.receive()
	go f.send(gap)
	tb.Cleanup(f.end)
	return f
}

func (f *flow) send(gap time.Duration) {
	defer f.done.Done()
	tick := time.NewTicker(gap)
	defer tick.Stop()
	to := &unix.SockaddrInet4{Port: 7, Addr: [4]byte{10, 77, 0, 1}}
	b := make([]byte, 100)
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
		}
		f.mu.Lock()
		binary.BigEndian.PutUint64(b, uint64(len(f.sent)))
		f.sent = append(f.sent, time.Now())
		f.got = append(f.got, answer{})
		f.mu.Unlock()
		_ = unix.Sendto(f.fd, b, 0, to)
	}
}

func (f *flow) receive() {
	defer f.done.Done()
	b := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(f.fd, b, 0)
		if err != nil {
			select {
			case <-f.stop:
				return
			default:
				continue
			}
		}
		if n < 9 {
			continue
		}
		f.mu.Lock()
		if i := binary.BigEndian.Uint64(b); i < uint64(len(f.got)) && f.got[i].at.IsZero() {
			f.got[i] = answer{time.Now(), b[8]}
		}
		f.mu.Unlock()
	}
}

func (f *flow) end() {
	select {
	case <-f.stop:
		return
	default:
	}
	close(f.stop)
	f.done.Wait()
	_ = unix.Close(f.fd)
}

// answers is how many answers came since the packet numbered from, and the last one's tag.
func (f *flow) answers(from int) (n int, tag byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.got[min(from, len(f.got)):] {
		if !a.at.IsZero() {
			n++
			tag = a.tag
		}
	}
	return n, tag
}

func (f *flow) number() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent)
}

// flows waits until the lane carries packets that are sent from now on, from that server.
func (f *flow) flows(s *server) {
	f.tb.Helper()
	from := f.number()
	eventually(f.tb, "traffic through "+s.name, 8*time.Second, func() bool {
		n, tag := f.answers(from)
		return n > 5 && tag == s.name[len(s.name)-1]
	})
}

// silence is the longest time without an answer around the packets numbered from and on,
// and how many of them were lost; the flow runs on until their answers are in or late.
func (f *flow) silence(from int) (longest time.Duration, lost int) {
	f.tb.Helper()
	end := f.number()
	eventually(f.tb, "the flow runs on", 5*time.Second, func() bool { return f.number() > end+150 })
	f.mu.Lock()
	defer f.mu.Unlock()
	var last time.Time
	for i := max(0, from-50); i < end; i++ {
		at := f.got[i].at
		if at.IsZero() {
			if i >= from {
				lost++
			}
			continue
		}
		if !last.IsZero() {
			longest = max(longest, at.Sub(last))
		}
		if at.After(last) { // at the seam a late answer of the old tunnel may follow
			last = at
		}
	}
	return longest, lost
}
