package tcp_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/tunnel/tcp"
)

const port = 443

var (
	inner4 = netip.MustParseAddr("10.64.0.9")
	inner6 = netip.MustParseAddr("fd64::9")
)

// ends are a client and a server that repeats what it gets, with nothing between them.
func ends(t *testing.T, mtu int) (client *tcp.Stack, out *atomic.Int64) {
	t.Helper()
	out = new(atomic.Int64)
	var c, s *tcp.Stack
	toServer, toClient := make(chan []byte, 64), make(chan []byte, 64)
	queue := func(q chan []byte) func([]byte) {
		return func(ip []byte) {
			if len(ip) > mtu {
				t.Errorf("a packet of %d bytes, the MTU is %d", len(ip), mtu)
			}
			select {
			case q <- ip:
			default:
			}
		}
	}
	send := queue(toServer)
	c, err := tcp.New(mtu, []netip.Addr{inner4, inner6}, func(ip []byte) { out.Add(1); send(ip) })
	if err != nil {
		t.Fatal(err)
	}
	s, err = tcp.New(mtu, nil, queue(toClient))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(port, func(n net.Conn) { _, _ = io.Copy(n, n); _ = n.Close() }); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	carry := func(q chan []byte, to *tcp.Stack) {
		for {
			select {
			case ip := <-q:
				to.Receive(ip)
			case <-stop:
				return
			}
		}
	}
	go carry(toServer, s)
	go carry(toClient, c)
	t.Cleanup(func() { s.Close(); close(stop) })
	return c, out
}

func TestBytesComeBack(t *testing.T) {
	for _, to := range []string{"1.1.1.1:443", "[2620:fe::fe]:443"} {
		client, out := ends(t, tcp.MinMTU6)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := client.Dial(ctx, netip.MustParseAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		sent := make([]byte, 300<<10) // more than the buffers hold
		for i := range sent {
			sent[i] = byte(i >> 8)
		}
		go func() { _, _ = c.Write(sent) }()
		got := make([]byte, len(sent))
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != string(sent) {
			t.Errorf("%s: error %v, equal %v", to, err, string(got) == string(sent))
		}
		begun := time.Now()
		client.Close() // with the connection open
		if d := time.Since(begun); d > 500*time.Millisecond {
			t.Errorf("%s: closing took %s", to, d)
		}
		if _, err := c.Read(got); err == nil {
			t.Errorf("%s: a connection outlived its stack", to)
		}
		quiet := out.Load()
		_, _ = c.Write(sent)
		_ = c.Close()
		if _, err := client.Dial(ctx, netip.MustParseAddrPort(to)); err == nil {
			t.Errorf("%s: a closed stack connects", to)
		}
		if n := out.Load(); n != quiet {
			t.Errorf("%s: %d packets left after the end", to, n-quiet)
		}
	}
}

func TestRefusedAndUnansweredConnections(t *testing.T) {
	client, _ := ends(t, 1420)
	defer client.Close()
	if _, err := client.Dial(t.Context(), netip.MustParseAddrPort("1.1.1.1:80")); err == nil {
		t.Error("a port that nobody serves: want an error")
	}
	deaf, err := tcp.New(1420, []netip.Addr{inner4}, func([]byte) {})
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := deaf.Dial(ctx, netip.MustParseAddrPort("1.1.1.1:443")); ctx.Err() == nil {
		t.Errorf("returned %v before its time", err)
	}
	if _, err := deaf.Dial(t.Context(), netip.MustParseAddrPort("[2620:fe::fe]:443")); err == nil {
		t.Error("a family without an address: want an error")
	}
}

func TestNothingIsLeftOfMany(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 200 {
		s, err := tcp.New(1420, []netip.Addr{inner4}, func([]byte) {})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _ = s.Dial(ctx, netip.MustParseAddrPort("1.1.1.1:443"))
		s.Close()
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(3 * time.Second); runtime.NumGoroutine() > before; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

// A server inside a tunnel may send anything.
func FuzzReceive(f *testing.F) {
	var syn []byte
	seed, err := tcp.New(1420, []netip.Addr{inner4}, func(ip []byte) {
		if syn == nil {
			syn = ip
		}
	})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.Context(), 50*time.Millisecond)
	defer cancel()
	_, _ = seed.Dial(ctx, netip.MustParseAddrPort("1.1.1.1:443"))
	seed.Close()
	if !tcp.Segment(syn) {
		f.Fatalf("% x is no segment", syn)
	}
	back := append([]byte(nil), syn...)
	copy(back[12:], syn[16:20])
	copy(back[16:], syn[12:16])
	f.Add(syn)
	f.Add(back)
	f.Add(back[:21])
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 20, 6, 64}, make([]byte, 52)...))
	s, err := tcp.New(1420, []netip.Addr{inner4, inner6}, func([]byte) {})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	f.Fuzz(func(_ *testing.T, ip []byte) { s.Receive(ip) })
}
