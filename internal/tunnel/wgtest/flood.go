package wgtest

import (
	"crypto/rand"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/blake2s"
)

// Flood sends endpoint i bursts of initiations that only fail after costly work, so
// that it thinks itself under load and wants its cookie from everybody. It goes on
// until stop is called.
func (s *Server) Flood(i int) (stop func()) {
	e := s.endpoints[i]
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(e.addr))
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
			e.flooder.Store(uint32(a.Port)) //nolint:gosec // a port
		}
		key := blake2s.Sum256(append([]byte("mac1----"), e.public[:]...))
		for {
			for range 400 {
				_, _ = c.Write(forged(key))
			}
			select {
			case <-end:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	return sync.OnceFunc(func() { close(end); wg.Wait() })
}

// forged is an initiation of random bytes whose first MAC is right.
func forged(key [32]byte) []byte {
	m := make([]byte, 148)
	_, _ = rand.Read(m) // never fails (crypto/rand)
	m[0], m[1], m[2], m[3] = 1, 0, 0, 0
	h, err := blake2s.New128(key[:])
	if err != nil {
		panic(err) // only a key that is too long fails
	}
	h.Write(m[:116])
	h.Sum(m[:116])
	clear(m[132:])
	return m
}
