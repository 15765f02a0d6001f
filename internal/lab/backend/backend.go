// Package backend is the server that the edge's worlds have as candidates. Each is a
// process of its own, so that kill -9 of it is what the death of a real server is: its
// listener and connections are closed by the kernel, in the kernel's order.
package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Arg is the first argument of a program that was started as a server. Such a program
// gives what follows it to Main, before doing anything else.
const Arg = "lab-backend"

// Ready is the line that a server writes to its output once it listens.
const Ready = "listening"

// Options say what a server does. By default it writes its name on each connection that it
// accepts, and then sends back whatever comes.
type Options struct {
	Name  string `json:"name"`  // a
	Port  int    `json:"port"`  // 80
	Ports int    `json:"ports"` // how many ports of TCP it listens on, from Port on; 0 = 1
	UDP   bool   `json:"udp"`   // also answer datagrams by NAME: and what came
	Kind  Kind   `json:"kind"`  // what it speaks on TCP
	Proxy bool   `json:"proxy"` // each connection must begin with a PROXY header, of version 1 or 2

	Idle     time.Duration `json:"idle"`     // close connections that were silent for so long; 0 = never
	Recycle  time.Duration `json:"recycle"`  // close all connections each time, as workers that end do; 0 = never
	Throttle int           `json:"throttle"` // connections of one address in ThrottleFor; more are closed at once; 0 = any number
	Window   time.Duration `json:"window"`   // of Throttle
	Reject   bool          `json:"reject"`   // Status: turn every login away
	Ballast  int           `json:"ballast"`  // MiB of memory that it has touched
}

// Kind is what a server speaks.
type Kind string

// The kinds. The zero value is Echo.
const (
	Echo   Kind = ""       // its name, then what came
	HTTP   Kind = "http"   // any request: 200 and its name
	Status Kind = "status" // Minecraft's server list ping, and logins
	Silent Kind = "silent" // accepts and says nothing
)

// Args are the arguments that make this program such a server.
func (o Options) Args() []string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // plain fields only
	}
	return []string{Arg, string(b)}
}

// Main is the server's process. It ends with SIGTERM, and returns the exit code.
func Main(args []string, out io.Writer) int {
	var o Options
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &o) != nil {
		fmt.Fprintln(os.Stderr, "shunt: error: lab-backend is started by the lab only")
		return 64
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := Serve(ctx, o, out); err != nil {
		fmt.Fprintf(os.Stderr, "shunt: error: server %s: %v\n", o.Name, err)
		return 1
	}
	return 0
}

// Serve listens on all addresses of this namespace until ctx ends. Complaints about what
// clients sent go to out, a line each.
func Serve(ctx context.Context, o Options, out io.Writer) error {
	s := newServer(o, out)
	var lc net.ListenConfig
	var all []net.Listener
	for i := range max(1, o.Ports) {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(o.Port+i)))
		if err != nil {
			return err
		}
		defer l.Close()
		all = append(all, l)
	}
	if o.UDP {
		addr := net.JoinHostPort("", strconv.Itoa(o.Port))
		for _, network := range []string{"udp4", "udp6"} { // apart, so that answers leave from where the question came to
			p, err := lc.ListenPacket(ctx, network, addr)
			if err != nil {
				return err
			}
			context.AfterFunc(ctx, func() { _ = p.Close() })
			go s.datagrams(p)
		}
	}
	fmt.Fprintln(out, Ready)
	s.accept(ctx, all...)
	return nil
}

// server is one server at work.
type server struct {
	o       Options
	out     io.Writer
	ballast []byte

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	seen  map[string][]time.Time // when an address connected
}

func newServer(o Options, out io.Writer) *server {
	s := &server{o: o, out: out, conns: map[net.Conn]struct{}{}, seen: map[string][]time.Time{}, ballast: make([]byte, o.Ballast<<20)}
	for i := 0; i < len(s.ballast); i += os.Getpagesize() {
		s.ballast[i] = 1
	}
	return s
}

// accept serves listeners until ctx ends.
func (s *server) accept(ctx context.Context, all ...net.Listener) {
	if s.o.Recycle > 0 {
		go s.recycle(ctx)
	}
	var wg sync.WaitGroup
	for _, l := range all {
		context.AfterFunc(ctx, func() { _ = l.Close() })
		wg.Go(func() {
			for {
				c, err := l.Accept()
				switch {
				case errors.Is(err, net.ErrClosed):
					return
				case err == nil:
					go s.serve(c)
				}
			}
		})
	}
	wg.Wait()
}

// complain tells that a client did what it should not.
func (s *server) complain(c net.Conn, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "complaint: %s: %v\n", c.RemoteAddr(), err)
}

func (s *server) serve(c net.Conn) {
	defer c.Close()
	if s.throttled(c) {
		return
	}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	r := &idle{Conn: c, limit: s.o.Idle}
	if s.o.Proxy {
		if err := skipProxyHeader(r); err != nil {
			s.complain(c, err)
			return
		}
	}
	switch s.o.Kind {
	case Echo:
		if _, err := io.WriteString(c, s.o.Name+"\n"); err == nil {
			_, _ = io.Copy(c, r)
		}
	case HTTP:
		s.http(r)
	case Status:
		if err := s.status(r); err != nil {
			s.complain(c, err)
		}
	case Silent:
		_, _ = io.Copy(io.Discard, r)
	}
}

// throttled says whether an address has connected too often of late.
func (s *server) throttled(c net.Conn) bool {
	if s.o.Throttle == 0 {
		return false
	}
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	s.mu.Lock()
	defer s.mu.Unlock()
	var recent []time.Time
	for _, t := range s.seen[host] {
		if time.Since(t) < s.o.Window {
			recent = append(recent, t)
		}
	}
	s.seen[host] = append(recent, time.Now())
	return len(recent) >= s.o.Throttle
}

// recycle ends all connections again and again, as a server does whose workers are
// replaced: the listener stays.
func (s *server) recycle(ctx context.Context) {
	t := time.NewTicker(s.o.Recycle)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.mu.Lock()
		for c := range s.conns {
			_ = c.Close()
		}
		s.mu.Unlock()
	}
}

func (s *server) datagrams(p net.PacketConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := p.ReadFrom(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // a client's port that is closed by now
			continue
		}
		_, _ = p.WriteTo(append([]byte(s.o.Name+":"), b[:n]...), from)
	}
}

// idle ends a connection's reads after a silence.
type idle struct {
	net.Conn
	limit time.Duration
}

// Read waits for the next bytes, no longer than the limit.
func (i *idle) Read(b []byte) (int, error) {
	if i.limit > 0 {
		if err := i.SetReadDeadline(time.Now().Add(i.limit)); err != nil {
			return 0, err
		}
	}
	return i.Conn.Read(b)
}
