// Package traffic is the users of a lab world: flows with a class (DSCP) of their own that
// know for each packet when it left, when its answer came and through which exit.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/server"
)

// Options are what a flow looks like.
type Options struct {
	From  netip.Addr     // the user's address
	To    netip.AddrPort // a service of the world; port 0 = the usual one of that kind of flow
	DSCP  uint8          // class, 0 to 63
	Every time.Duration  // between packets or messages; 0 = 10 ms
	Size  int            // bytes of payload; 0 = 100, at least server.StampSize
	ID    uint32         // carried in each packet
}

func (o Options) full(port uint16) Options {
	if o.To.Port() == 0 {
		o.To = netip.AddrPortFrom(o.To.Addr(), port)
	}
	if o.Every <= 0 {
		o.Every = 10 * time.Millisecond
	}
	if o.Size == 0 {
		o.Size = 100
	}
	o.Size = max(o.Size, server.StampSize)
	return o
}

// control sets the class on a socket before it is connected.
func (o Options) control(_, _ string, c syscall.RawConn) error {
	var err error
	cerr := c.Control(func(fd uintptr) {
		if o.To.Addr().Is6() {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(o.DSCP)<<2)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, int(o.DSCP)<<2)
		}
	})
	return errors.Join(cerr, err)
}

// dial connects inside a namespace.
func (o Options) dial(ctx context.Context, ns *cage.Namespace, network string) (net.Conn, error) {
	d := net.Dialer{Control: o.control}
	d.SetMultipathTCP(false)
	if o.From.IsValid() {
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.From, 0))
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(o.From, 0))
		}
	}
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = d.DialContext(ctx, network, o.To.String()) // a literal address: no other goroutine dials
		return err
	})
	return c, err
}

// Packet is one numbered packet of a UDP flow.
type Packet struct {
	Seq  uint64
	Sent time.Time
	Got  time.Time  // of the first answer; zero = none
	Exit netip.Addr // the source address that the service saw
}

// RTT is the time to the answer; 0 = none.
func (p Packet) RTT() time.Duration {
	if p.Got.IsZero() {
		return 0
	}
	return p.Got.Sub(p.Sent)
}

// UDP is a running flow of numbered packets to the UDP echo.
type UDP struct {
	o    Options
	c    net.Conn
	stop context.CancelFunc
	sent chan struct{} // closed when the sender has ended

	mu      sync.Mutex
	packets []Packet
	errs    int // writes that failed
	late    time.Duration
	dups    int
	reorder int
	top     uint64        // highest answered so far, plus one
	news    chan struct{} // closed and renewed at each answer
}

// StartUDP starts a flow. It sends until ctx is done or Stop is called.
func StartUDP(ctx context.Context, ns *cage.Namespace, o Options) (*UDP, error) {
	o = o.full(server.EchoPort)
	c, err := o.dial(ctx, ns, "udp")
	if err != nil {
		return nil, fmt.Errorf("flow to %s: %w", o.To, err)
	}
	if u, ok := c.(*net.UDPConn); ok {
		_ = u.SetReadBuffer(1 << 20)
	}
	ctx, cancel := context.WithCancel(ctx)
	u := &UDP{o: o, c: c, stop: cancel, sent: make(chan struct{}), news: make(chan struct{})}
	go u.receive()
	go u.send(ctx)
	return u, nil
}

func (u *UDP) send(ctx context.Context) {
	defer close(u.sent)
	b := make([]byte, u.o.Size)
	for next := time.Now(); ctx.Err() == nil; next = next.Add(u.o.Every) {
		now := time.Now()
		if d := next.Sub(now); d > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(d):
			}
			now = time.Now()
		}
		late := now.Sub(next)
		if late > 100*time.Millisecond {
			next = now // a stall of this machine: no burst after it
		}
		u.mu.Lock()
		u.late = max(u.late, late)
		seq := uint64(len(u.packets))
		u.packets = append(u.packets, Packet{Seq: seq, Sent: now})
		u.mu.Unlock()
		server.Stamp{Flow: u.o.ID, Seq: seq, Sent: now.UnixNano()}.Put(b)
		if _, err := u.c.Write(b); err != nil {
			u.mu.Lock()
			u.errs++
			u.mu.Unlock()
		}
	}
}

func (u *UDP) receive() {
	b := make([]byte, 65536)
	for {
		n, err := u.c.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier packet
		}
		now := time.Now()
		s, ok := server.ReadStamp(b[:n])
		if !ok || s.Flow != u.o.ID {
			continue
		}
		u.note(s, now)
	}
}

func (u *UDP) note(s server.Stamp, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s.Seq >= uint64(len(u.packets)) {
		return
	}
	p := &u.packets[s.Seq]
	if !p.Got.IsZero() {
		u.dups++
		return
	}
	p.Got, p.Exit = now, s.Seen.Addr()
	if s.Seq+1 < u.top {
		u.reorder++
	}
	u.top = max(u.top, s.Seq+1)
	close(u.news)
	u.news = make(chan struct{})
}

// Result is what has happened up to now.
func (u *UDP) Result() Result {
	u.mu.Lock()
	defer u.mu.Unlock()
	return Result{Packets: slices.Clone(u.packets), Errors: u.errs, Duplicates: u.dups, Reordered: u.reorder, Late: u.late}
}

// Stop ends the sending, waits up to grace for the last answers, and returns all.
func (u *UDP) Stop(grace time.Duration) Result {
	u.stop()
	<-u.sent
	end := time.After(grace)
	for {
		u.mu.Lock()
		all, news := u.answered(), u.news
		u.mu.Unlock()
		if !all {
			select {
			case <-news:
				continue
			case <-end:
			}
		}
		_ = u.c.Close()
		return u.Result()
	}
}

// answered says whether the packets of the last two seconds all have their answers.
func (u *UDP) answered() bool {
	for i := len(u.packets) - 1; i >= 0 && time.Since(u.packets[i].Sent) < 2*time.Second; i-- {
		if u.packets[i].Got.IsZero() {
			return false
		}
	}
	return true
}

// Wait returns the first answer that pleases ok, looking at packets sent after that time;
// the error is ctx's.
func (u *UDP) Wait(ctx context.Context, after time.Time, ok func(Packet) bool) (Packet, error) {
	for {
		u.mu.Lock()
		news := u.news
		i, _ := slices.BinarySearchFunc(u.packets, after, func(p Packet, t time.Time) int { return p.Sent.Compare(t) })
		for _, p := range u.packets[i:] {
			if !p.Got.IsZero() && ok(p) {
				u.mu.Unlock()
				return p, nil
			}
		}
		u.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return Packet{}, fmt.Errorf("flow %d to %s: no such answer: %w", u.o.ID, u.o.To, context.Cause(ctx))
		}
	}
}

// WaitAny returns the first answer to a packet sent after that time.
func (u *UDP) WaitAny(ctx context.Context, after time.Time) (Packet, error) {
	return u.Wait(ctx, after, func(Packet) bool { return true })
}

// WaitVia is Wait for an answer through an exit.
func (u *UDP) WaitVia(ctx context.Context, after time.Time, exit netip.Addr) (Packet, error) {
	return u.Wait(ctx, after, func(p Packet) bool { return p.Exit == exit })
}

// WaitOther is Wait for an answer through any exit but this one.
func (u *UDP) WaitOther(ctx context.Context, after time.Time, exit netip.Addr) (Packet, error) {
	return u.Wait(ctx, after, func(p Packet) bool { return p.Exit != exit })
}
