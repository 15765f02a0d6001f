package tunnel

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/tunnel/tcp"
)

const (
	// pingGap is the time between two pings of a tunnel, as in a lane's own check.
	pingGap = 20 * time.Millisecond
	// fullCount full-size pings are sent at once: together they exceed the 4 KiB after
	// which the shortest-tempered of the known choking middleboxes steps in.
	fullCount = 4
	// lost stands for the round trip of a ping without an answer.
	lost = -1
)

// session is one tunnel: a device of its own with one server.
type session struct {
	box    *box
	peer   *device.Peer
	route  *route
	subj   *subject
	id     uint16
	cookie [cookieSize]byte
	sent   int // pings so far; the next one's sequence number
	got    chan reply
	handed atomic.Int64 // packets that the device was given
	stack  atomic.Pointer[tcp.Stack]
	spoilt bool // the device may still hold a packet of this session
}

type reply struct {
	seq, size int
	at        time.Time
}

// serverName is the name of the only route of a session's device.
const serverName = "server"

// open makes the tunnel. Nothing is sent yet.
func (r *round) open(s *subject) (*session, error) { return r.openAs(kind{mtu: s.mtu}, s) }

func (r *round) openAs(k kind, s *subject) (*session, error) {
	b, err := r.shelf.take(k, s.private)
	if err != nil {
		return nil, err
	}
	t := &session{box: b, subj: s, got: make(chan reply, 64)}
	var random [cookieSize + 2]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	copy(t.cookie[:], random[:])
	t.id = binary.BigEndian.Uint16(random[cookieSize:])
	b.holder.Store(t)
	if t.peer, t.route, err = b.add(s, serverName, "allowed_ip=0.0.0.0/0\nallowed_ip=::/0\n"); err != nil {
		b.device.Close()
		return nil, err
	}
	return t, nil
}

// close ends the session. The device is used again unless the session was broken off or
// a packet may still be on its way through the device.
func (r *round) close(ctx context.Context, t *session) {
	t.box.remove(t.subj, serverName)
	t.box.holder.Store(nil)
	if ctx.Err() != nil || t.spoilt {
		t.box.device.Close()
		return
	}
	r.shelf.give(t.box)
}

// send hands a packet to the tunnel; it is lost when there is no room.
func (t *session) send(ip []byte) {
	if t.box.tun.send(ip) {
		t.handed.Add(1)
	}
}

// receive gets what comes out of the tunnel.
func (t *session) receive(ip []byte) {
	if s := t.stack.Load(); s != nil && tcp.Packet(ip) {
		s.Receive(ip)
		return
	}
	e, ok := parseReply(ip)
	if !ok || e.id != t.id || e.cookie != t.cookie {
		return
	}
	select {
	case t.got <- reply{int(e.seq), e.size, t.route.gotAt()}:
	default:
	}
}

// through takes a subject through a tunnel of its own and returns the reason for which
// it fails. initiated is when the sieve's last initiation left; zero = there was none.
func (r *round) through(ctx context.Context, s *subject, res *egress.TestResult, initiated time.Time) string {
	if !initiated.IsZero() && run.Pause(ctx, sameKeyGap-time.Since(initiated)) != nil { //nolint:forbidigo // measures a duration
		return ReasonUntested
	}
	t, err := r.open(s)
	if err != nil {
		return ReasonUnsupported + ": " + err.Error()
	}
	defer r.close(ctx, t)
	took := r.handshake(ctx, t.peer, t.route, r.c.HandshakeTimeout)
	if took == 0 && r.answersPlain(ctx, t.peer, t.route) {
		return ReasonPlain
	}
	if took == 0 {
		return ReasonNoHandshake
	}
	if res.Handshake == 0 {
		res.Handshake = took
	}
	if r.c.Pings > 0 {
		trips := t.ping(ctx, r.c.Pings, smallEcho, pingGap, r.c.PingTimeout)
		res.Sent, res.Got, res.Avg, res.Jitter = summarize(trips)
	}
	if res.Got == 0 && r.c.Pings > 0 {
		return ReasonNoAnswer
	}
	full := ""
	if r.c.FullSize {
		full = t.full(ctx, r.c.PingTimeout)
		res.FullSize = full == ""
	}
	if res.Got < res.Sent {
		return ReasonLoss
	}
	if full != "" {
		return full
	}
	return r.data(ctx, t)
}

// full returns why packets of the tunnel's MTU do not pass; "" = they do. Losses that a
// second try makes good are forgiven: loss is the small pings' to judge.
func (t *session) full(ctx context.Context, timeout time.Duration) string {
	if len(t.subj.pings) == 0 {
		return ""
	}
	_, got, _, _ := summarize(t.ping(ctx, fullCount, t.subj.mtu, 0, timeout))
	switch {
	case got == fullCount:
		return ""
	case got > 0:
		if _, again, _, _ := summarize(t.ping(ctx, 2, t.subj.mtu, pingGap, timeout)); again > 0 {
			return ""
		}
		return ReasonChoked
	}
	if _, small, _, _ := summarize(t.ping(ctx, 2, smallEcho, pingGap, timeout)); small > 0 {
		return ReasonMTU
	}
	return ReasonChoked
}

// ping sends n echo requests, gap apart, to the targets in turn, and returns each one's
// round trip (lost = no answer within timeout) as soon as all are known.
func (t *session) ping(ctx context.Context, n, size int, gap, timeout time.Duration) []time.Duration {
	trips := make([]time.Duration, n)
	for i := range trips {
		trips[i] = lost
	}
	first, sent, open := t.sent, 0, n
	next := time.NewTimer(0)
	defer next.Stop()
	for open > 0 {
		select {
		case <-ctx.Done():
			return trips
		case <-next.C:
			if sent == n { // the time of the last one is over
				return trips
			}
			p := t.subj.pings[t.sent%len(t.subj.pings)]
			e := echo{id: t.id, seq: uint16(t.sent), cookie: t.cookie, size: size} //nolint:gosec // a handful
			t.send(e.request(p.from, p.to))
			t.sent++
			if sent++; sent < n {
				next.Reset(gap)
			} else {
				next.Reset(timeout)
			}
		case a := <-t.got:
			i := a.seq - first
			if i < 0 || i >= n || trips[i] != lost || a.size != size {
				continue
			}
			left := t.route.sentAt(a.seq)
			if trip := a.at.Sub(left); !left.IsZero() && trip <= timeout {
				trips[i] = max(trip, time.Nanosecond)
				open--
			}
		}
	}
	return trips
}

// summarize counts the pings and their answers and gives the mean of the round trips
// and the mean difference of neighbouring ones.
func summarize(trips []time.Duration) (sent, got int, avg, jitter time.Duration) {
	var sum, diff time.Duration
	last := time.Duration(lost)
	for _, t := range trips {
		if t == lost {
			continue
		}
		if last != lost {
			diff += (t - last).Abs()
		}
		got, sum, last = got+1, sum+t, t
	}
	if got > 0 {
		avg = sum / time.Duration(got)
	}
	if got > 1 {
		jitter = diff / time.Duration(got-1)
	}
	return len(trips), got, avg, jitter
}
