package traffic

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/server"
)

// TCP is a long-lived connection to the TCP echo that sends a message at each interval.
type TCP struct {
	o    Options
	c    net.Conn
	stop context.CancelFunc
	done chan struct{} // closed when the connection has ended

	mu sync.Mutex
	r  TCPResult
	at time.Time // of the last echo
}

// TCPResult is the record of a TCP flow.
type TCPResult struct {
	Sent, Echoed int           // messages
	Stall        time.Duration // the longest time between two echoes
	StallAt      time.Time     // when it began
	Ended        time.Time     // when the connection broke; zero = never
	Reset        bool          // by RST, as opposed to silence or a proper end
	Err          error         // what broke it
}

// StartTCP connects and starts to send.
func StartTCP(ctx context.Context, ns *cage.Namespace, o Options) (*TCP, error) {
	o = o.full(server.EchoPort)
	dctx, cancelDial := context.WithTimeout(ctx, 5*time.Second)
	defer cancelDial()
	c, err := o.dial(dctx, ns, "tcp")
	if err != nil {
		return nil, fmt.Errorf("flow to %s: %w", o.To, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &TCP{o: o, c: c, stop: cancel, done: make(chan struct{}), at: time.Now()}
	var wg sync.WaitGroup
	wg.Go(func() { t.send(ctx) })
	wg.Go(t.receive)
	go func() {
		wg.Wait()
		_ = c.Close()
		close(t.done)
	}()
	return t, nil
}

func (t *TCP) send(ctx context.Context) {
	b := make([]byte, t.o.Size)
	tick := time.NewTicker(t.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = t.c.SetReadDeadline(time.Now())
			return
		case <-tick.C:
		}
		t.mu.Lock()
		seq, ended := t.r.Sent, !t.r.Ended.IsZero()
		if !ended {
			t.r.Sent++
		}
		t.mu.Unlock()
		if ended {
			return
		}
		server.Stamp{Flow: t.o.ID, Seq: uint64(seq), Sent: time.Now().UnixNano()}.Put(b) //nolint:gosec // not negative
		_ = t.c.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := t.c.Write(b); err != nil && !errors.Is(err, syscall.EAGAIN) && !isTimeout(err) {
			t.broke(err)
			_ = t.c.SetReadDeadline(time.Now())
			return
		}
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func (t *TCP) receive() {
	b := make([]byte, t.o.Size)
	for {
		_, err := io.ReadFull(t.c, b)
		now := time.Now()
		if err != nil {
			if !isTimeout(err) {
				t.broke(err)
			}
			return
		}
		t.mu.Lock()
		t.r.Echoed++
		if d := now.Sub(t.at); d > t.r.Stall {
			t.r.Stall, t.r.StallAt = d, t.at
		}
		t.at = now
		t.mu.Unlock()
	}
}

func (t *TCP) broke(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.r.Ended.IsZero() {
		t.r.Ended, t.r.Err = time.Now(), err
		t.r.Reset = errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	}
}

// Result is what has happened up to now; a stall that still lasts is in it.
func (t *TCP) Result() TCPResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.r
	if d := time.Since(t.at); r.Ended.IsZero() && d > r.Stall {
		r.Stall, r.StallAt = d, t.at
	}
	return r
}

// Done is closed when the connection has broken or was stopped.
func (t *TCP) Done() <-chan struct{} { return t.done }

// Stop ends the connection.
func (t *TCP) Stop() TCPResult {
	r := t.Result()
	t.stop()
	<-t.done
	return r
}

// Bulk is a download as fast as the way allows.
type Bulk struct {
	c    net.Conn
	n    atomic.Int64
	done chan struct{}
}

// StartBulk connects to the TCP source and reads.
func StartBulk(ctx context.Context, ns *cage.Namespace, o Options) (*Bulk, error) {
	o = o.full(server.SourcePort)
	c, err := o.dial(ctx, ns, "tcp")
	if err != nil {
		return nil, fmt.Errorf("download from %s: %w", o.To, err)
	}
	b := &Bulk{c: c, done: make(chan struct{})}
	end := context.AfterFunc(ctx, func() { _ = c.Close() })
	go func() {
		defer close(b.done)
		defer end()
		buf := make([]byte, 256<<10)
		for {
			n, err := c.Read(buf)
			b.n.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	return b, nil
}

// Bytes is how much has come.
func (b *Bulk) Bytes() int64 { return b.n.Load() }

// Stop ends the download.
func (b *Bulk) Stop() int64 {
	_ = b.c.Close()
	<-b.done
	return b.Bytes()
}

// Exit asks the world once, by HTTP, through which exit a user's class goes now.
func Exit(ctx context.Context, ns *cage.Namespace, o Options) (netip.Addr, error) {
	o = o.full(server.HTTPPort)
	c, err := o.dial(ctx, ns, "tcp")
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w", o.To, err)
	}
	defer c.Close()
	if d, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(d)
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: %w", o.To, err)
	}
	last := ""
	for s := bufio.NewScanner(c); s.Scan(); {
		last = s.Text()
	}
	a, err := netip.ParseAddr(strings.TrimSpace(last))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask %s: answer %q: %w", o.To, last, err)
	}
	return a, nil
}

// Handshake does one TLS handshake from a user and returns how long it took, connecting included.
func Handshake(ctx context.Context, ns *cage.Namespace, o Options, conf *tls.Config) (time.Duration, error) {
	o = o.full(server.TLSPort)
	began := time.Now()
	c, err := o.dial(ctx, ns, "tcp")
	if err != nil {
		return 0, fmt.Errorf("tls to %s: %w", o.To, err)
	}
	defer c.Close()
	if err := tls.Client(c, conf).HandshakeContext(ctx); err != nil {
		return 0, fmt.Errorf("tls to %s: %w", o.To, err)
	}
	return time.Since(began), nil
}
