package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/run"
)

// led runs a command that has no way to the world but one: it is in a network namespace
// of its own, in which there is nothing but a proxy, and what the proxy connects to is
// connected to by that way. Where there can be no such namespace the command is not run:
// whatever it fetched could have come beside the way.
func led(ctx context.Context, argv []string, o run.Options, way dialFunc) error {
	g := newGate(ctx, way)
	return apart(func() error {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
		if err != nil {
			return err
		}
		// Tools read the one or the other; curl takes HTTP_PROXY for a header of a request.
		address := "http://" + l.Addr().String()
		env := []string{"SHUNT_PROXY=" + address}
		for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
			env = append(env, name+"="+address)
		}
		o.Env = append(slices.Clone(o.Env), env...)
		defer g.serve(l)()
		_, err = run.Command(ctx, argv, o)
		return g.explain(err)
	})
}

// apart calls f on a thread that is in a network namespace of its own, and so are the
// children that f starts. Sockets that f opens stay in it, wherever they are used.
func apart(f func() error) error {
	done := make(chan error, 1)
	go spare(func() {
		err := errors.New("goroutine ended early") // stands if f calls Goexit
		defer func() { done <- err }()
		if err = alone(); err == nil {
			err = f()
		}
	})
	return <-done
}

// spare calls f on a thread that the runtime ends afterwards.
func spare(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f() // never unlocked
		return
	}
	// The first thread cannot be ended, and its namespace is what /proc/self/net shows to
	// all others. While it is held here, the next goroutine has another one.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		spare(f)
	}()
	<-ended
	runtime.UnlockOSThread()
}

// alone puts this thread into a new network namespace whose loopback is up.
func alone() error {
	fail := func(err error) error {
		return fmt.Errorf("the command cannot be led by the way that was found: network namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fail(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fail(err)
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fail(err)
	}
	return nil
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// gate is an HTTP proxy (CONNECT, and plain requests) whose connections go by one way.
type gate struct {
	way     dialFunc
	ctx     context.Context //nolint:containedctx // the gate's own life: ends when it is closed
	cancel  context.CancelFunc
	forward *httputil.ReverseProxy

	mu     sync.Mutex
	closed bool
	asked  bool  // for any connection
	failed error // the last connection that did not come about
	open   sync.WaitGroup
}

func newGate(ctx context.Context, way dialFunc) *gate {
	g := &gate{way: way}
	g.ctx, g.cancel = context.WithCancel(ctx)
	g.forward = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.Host = r.In.Host },
		Transport:     &http.Transport{DialContext: g.dial, DisableKeepAlives: true, DisableCompression: true},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	return g
}

// serve answers at l until the returned function is called. When that returns, nothing of
// the gate uses the way any more.
func (g *gate) serve(l net.Listener) (closing func()) {
	s := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // ends with Close
	}()
	return func() {
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		g.cancel()
		_ = s.Close() // what is open is of no use any more
		<-ended
		g.open.Wait()
	}
}

// ServeHTTP leads one request.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.open.Add(1)
	g.mu.Unlock()
	defer g.open.Done()
	switch {
	case r.Method == http.MethodConnect:
		g.connect(w, r)
	case r.URL.Scheme == "http" && r.URL.Host != "":
		g.forward.ServeHTTP(w, r)
	default:
		http.Error(w, "this is a proxy", http.StatusBadRequest)
	}
}

// dial connects by the way.
func (g *gate) dial(ctx context.Context, network, address string) (net.Conn, error) {
	// A transport goes on dialling for a request that is over.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	c, err := g.way(ctx, network, address)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = true
	if err != nil {
		g.failed = err
		return nil, err
	}
	return c, nil
}

func (g *gate) connect(w http.ResponseWriter, r *http.Request) {
	if _, _, err := net.SplitHostPort(r.Host); err != nil {
		http.Error(w, "CONNECT wants host:port", http.StatusBadRequest)
		return
	}
	far, err := g.dial(r.Context(), "tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer far.Close()
	near, head, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer near.Close()
	defer context.AfterFunc(g.ctx, func() {
		_ = near.Close()
		_ = far.Close()
	})()
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(far, head.Reader) // how it broke off is for the two ends to see
		closeWrite(far)
	})
	_, _ = io.Copy(near, far)
	closeWrite(near)
	up.Wait()
}

// explain adds to a command's failure what the gate knows of it.
func (g *gate) explain(err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var exit *run.ExitError
	switch {
	case !errors.As(err, &exit):
		return err
	case g.failed != nil:
		return fmt.Errorf("%w (by the way that was found: %w)", err, g.failed)
	case !g.asked:
		return fmt.Errorf("%w (it asked nothing of the proxy in its environment, and has no other way)", err)
	}
	return err
}

// counted is a connection that counts what it receives.
type counted struct {
	net.Conn
	n *atomic.Int64
}

// Read reads and counts.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// closeWrite tells the other end that nothing more follows, where a connection can. One that
// cannot is closed with its twin.
func closeWrite(c net.Conn) {
	if k, ok := c.(*counted); ok {
		c = k.Conn
	}
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the other end has gone already
	}
}
