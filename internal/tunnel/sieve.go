package tunnel

import (
	"context"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/device"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/profile"
)

const (
	// retryAfter is when an initiation without an answer is repeated; the protocol's own
	// timer waits 5 s. From the third try on each wait is twice as long: an answer to a
	// try that was given up counts no more, so a slower path gets through later.
	retryAfter = time.Second
	// sameKeyGap keeps two initiations of one key apart: a server drops the second one
	// within 20 ms, and one whose timestamp, cut to 17 ms, is not later.
	sameKeyGap = 40 * time.Millisecond
)

// sieve holds one device per client key; each has many servers as peers and only does handshakes.
type sieve struct {
	shelf *shelf
	uses  map[profile.Key]int
	mu    sync.Mutex
	now   map[profile.Key]*sieveDevice
}

type sieveDevice struct {
	*box
	users int
	next  int
}

func newSieve(f *shelf, uses map[profile.Key]int) *sieve {
	return &sieve{shelf: f, uses: uses, now: map[profile.Key]*sieveDevice{}}
}

// weight is what a subject takes of the room for waiters, at most all of it.
func (v *sieve) weight(s *subject, parallel int) int64 {
	if v.uses[s.private] > 1 {
		return 1
	}
	return int64(min(loneDevice, parallel*waitersPerTunnel))
}

// acquire returns the device of the key, and a name for a new peer of it.
func (v *sieve) acquire(private profile.Key) (*sieveDevice, string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.now[private]
	if d == nil {
		b, err := v.shelf.take(kind{quiet: true, mtu: DefaultMTU}, private)
		if err != nil {
			return nil, "", err
		}
		d = &sieveDevice{box: b}
		v.now[private] = d
	}
	d.users++
	d.next++
	return d, strconv.Itoa(d.next), nil
}

// release lets the device go with its last user: where each profile has a key of its
// own, that is after its only handshake.
func (v *sieve) release(private profile.Key, d *sieveDevice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.users--; d.users == 0 {
		delete(v.now, private)
		v.shelf.give(d.box)
	}
}

// sift does the handshake of one subject in the sieve. took is 0 when none came about;
// initiated is when the last initiation left.
func (r *round) sift(ctx context.Context, s *subject) (took time.Duration, initiated time.Time, err error) {
	d, name, err := r.sieve.acquire(s.private)
	if err != nil {
		return 0, time.Time{}, err
	}
	defer r.sieve.release(s.private, d)
	peer, rt, err := d.add(s, name, "")
	if err != nil {
		return 0, time.Time{}, err
	}
	defer d.remove(s, name)
	took = r.handshake(ctx, peer, rt, r.c.HandshakeTimeout)
	if took == 0 && r.answersPlain(ctx, peer, rt) {
		return 0, rt.initiatedAt(), amnezia.ErrPlainPeer
	}
	return took, rt.initiatedAt(), nil
}

// plainWait bounds the one try in plain WireGuard.
const plainWait = 500 * time.Millisecond

// answersPlain tells whether a server that kept silent in AmneziaWG answers WireGuard
// itself: then the profile is wrong for it, and not the way to it. Nothing but one
// initiation is sent without obfuscation: it is not repeated, and neither the keepalive
// that ends a handshake nor a second initiation for a cookie follows.
func (r *round) answersPlain(ctx context.Context, p *device.Peer, rt *route) bool {
	if rt.codec == nil || ctx.Err() != nil {
		return false
	}
	if err := rt.codec.SetParams(amnezia.Params{}); err != nil {
		return false
	}
	rt.mute.Store(true)
	p.ExpireCurrentKeypairs()
	select {
	case <-rt.cookie: // of the server's own kind: it asked for one before
	default:
	}
	_ = p.SendHandshakeInitiation(false) // an error of sending is a try without an answer
	end := time.NewTimer(min(plainWait, r.c.HandshakeTimeout))
	defer end.Stop()
	for spared := false; ; {
		select {
		case <-rt.up:
			return true
		case <-rt.cookie: // it is under load, and understood
			return true
		case <-ctx.Done():
			return false
		case <-end.C:
			if spared || !rt.pending() { // see handshake
				return false
			}
			spared = true
			end.Reset(retryAfter)
		}
	}
}

// handshake begins a handshake and repeats it until it is done, the time is up or ctx
// ends; it returns the round trip of the try that worked, 0 = none did.
func (r *round) handshake(ctx context.Context, p *device.Peer, rt *route, timeout time.Duration) time.Duration {
	interval := min(retryAfter, max(timeout/2, sameKeyGap))
	end := time.NewTimer(timeout)
	defer end.Stop()
	again := time.NewTimer(interval)
	defer again.Stop()
	var turn *rate.Reservation // of the next try
	defer func() {
		if turn != nil {
			turn.Cancel()
		}
	}()
	// On starved cores an answer may wait here for longer than it was on its way; to
	// begin anew, or to give up, would throw it away. One that is not genuine delays but once.
	spared := false
	spare := func(t *time.Timer) bool {
		if spared || !rt.pending() {
			return false
		}
		spared = true
		t.Reset(retryAfter)
		return true
	}
	_ = p.SendHandshakeInitiation(false) // an error of sending is a try without an answer
	for tries := 1; ; {
		select {
		case took := <-rt.up:
			return took
		case <-ctx.Done():
			return 0
		case <-end.C:
			if !spare(end) {
				return 0
			}
		case <-rt.cookie:
			if turn == nil {
				again.Reset(sameKeyGap)
			}
		case <-again.C:
			if turn == nil {
				if turn = r.again.Reserve(); turn.Delay() > 0 {
					again.Reset(turn.Delay())
					continue
				}
			}
			turn = nil
			if spare(again) {
				continue
			}
			renew(p)
			if tries++; tries > 2 {
				interval *= 2
			}
			again.Reset(interval)
		}
	}
}

// renew makes a peer begin a handshake now. The session is forgotten, not the peer: the
// peer holds the server's cookie.
func renew(p *device.Peer) {
	p.ExpireCurrentKeypairs()
	_ = p.SendHandshakeInitiation(true) // an error of sending is a try without an answer
}
