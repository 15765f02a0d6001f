package server

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

// ExitInterface is the name of the device through which all endpoints meet the services.
const ExitInterface = "exit0"

// exit is a kernel TUN device shared by all endpoints. Each endpoint's clients appear there
// under an address of the endpoint's own.
type exit struct {
	f  *os.File
	mu sync.RWMutex
	by map[netip.Addr]*Endpoint
}

func openExit(ns *cage.Namespace) (*exit, error) {
	x := &exit{by: map[netip.Addr]*Endpoint{}}
	err := ns.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("/dev/net/tun: %w", err)
		}
		ifr, err := unix.NewIfreq(ExitInterface)
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("make %s: %w", ExitInterface, err)
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		x.f = os.NewFile(uintptr(fd), ExitInterface)
		return nil
	})
	return x, err
}

func (x *exit) add(e *Endpoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.by[e.Exit4], x.by[e.Exit6] = e, e
}

func (x *exit) find(a netip.Addr) *Endpoint {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.by[a]
}

// run hands what the services answer to the endpoint that it is for.
func (x *exit) run() {
	buf := make([]byte, 65536)
	for {
		n, err := x.f.Read(buf)
		if err != nil {
			return
		}
		p := buf[:n]
		to, ok := target(p)
		if !ok {
			continue
		}
		e := x.find(to)
		if e == nil {
			continue // the kernel's own chatter
		}
		client := e.Client4
		if to.Is6() {
			client = e.Client6
		}
		if !e.gate.inner(p, time.Now) {
			e.count.dropped.Add(1)
			continue
		}
		if !rewrite(p, true, client) {
			continue
		}
		e.count.out.Add(1)
		e.count.outBytes.Add(uint64(n))
		e.tun.deliver(append([]byte(nil), p...))
	}
}

// inner is the tun.Device of one endpoint: what its clients send goes out by the shared
// exit under the endpoint's exit address.
type inner struct {
	e      *Endpoint
	q      chan []byte
	events chan tun.Event
	end    chan struct{}
	once   sync.Once
}

func newInner(e *Endpoint) *inner {
	// No EventUp: the device is brought up by its maker.
	return &inner{e: e, q: make(chan []byte, 1024), events: make(chan tun.Event), end: make(chan struct{})}
}

func (t *inner) deliver(p []byte) {
	select {
	case t.q <- p:
	case <-t.end:
	default: // full, as any queue may be
	}
}

// Read gives a packet to be encrypted for the client.
func (t *inner) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	select {
	case p := <-t.q:
		sizes[0] = copy(bufs[0][offset:], p)
		return 1, nil
	case <-t.end:
		return 0, os.ErrClosed
	}
}

// Write takes packets that the client sent.
func (t *inner) Write(bufs [][]byte, offset int) (int, error) {
	e := t.e
	for _, b := range bufs {
		p := b[offset:]
		if !e.gate.inner(p, time.Now) {
			e.count.dropped.Add(1)
			continue
		}
		from, ok := source(p)
		if !ok {
			continue
		}
		to := e.Exit4
		if from.Is6() {
			to = e.Exit6
		}
		if !rewrite(p, false, to) {
			continue
		}
		e.count.in.Add(1)
		e.count.inBytes.Add(uint64(len(p)))
		_, _ = e.p.exit.f.Write(p) // full or refused: lost, as in any network
	}
	return len(bufs), nil
}

// Close ends Read and the events.
func (t *inner) Close() error {
	t.once.Do(func() {
		close(t.end)
		close(t.events)
	})
	return nil
}

// File is nil: there is none.
func (t *inner) File() *os.File { return nil }

// MTU is in bytes.
func (t *inner) MTU() (int, error) { return MTUInside, nil }

// Name is for wireguard-go's log only.
func (t *inner) Name() (string, error) { return t.e.Name, nil }

// Events has none.
func (t *inner) Events() <-chan tun.Event { return t.events }

// BatchSize is one.
func (t *inner) BatchSize() int { return 1 }
