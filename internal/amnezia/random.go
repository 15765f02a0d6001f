package amnezia

import (
	crypto "crypto/rand"
	"math/rand/v2"
	"sync"
)

// source is a stream of random bytes for what only has to look random, and for nonces:
// a cipher that is seeded by the system, since a system call for each packet would cost
// more than the rest of the rewriting.
type source struct {
	stream *rand.ChaCha8
	pick   *rand.Rand
}

// sources hands them out: packets are sent by many goroutines at once.
type sources struct{ pool sync.Pool }

func (s *sources) get() *source {
	if r, ok := s.pool.Get().(*source); ok {
		return r
	}
	var seed [32]byte
	_, _ = crypto.Read(seed[:]) // never fails
	c := rand.NewChaCha8(seed)
	return &source{stream: c, pick: rand.New(c)}
}

func (s *sources) put(r *source) { s.pool.Put(r) }

func (r *source) fill(b []byte) { _, _ = r.stream.Read(b) } // never fails

// below returns a number from 0 to n-1.
func (r *source) below(n int) int { return r.pick.IntN(n) }

// between returns a number of the range.
func (r *source) between(lo, hi uint32) uint32 {
	return lo + uint32(r.pick.Uint64N(uint64(hi)-uint64(lo)+1)) //nolint:gosec // at most hi
}
