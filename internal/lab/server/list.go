package server

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// List is the provider's web site: an archive of profiles at /list.zip, and a resolver
// inside the tunnels that knows its name.
type List struct {
	mu      sync.Mutex
	archive []byte
	from    map[netip.Addr]int // requests by who asked
	asked   map[netip.Addr]int // questions to the resolver, likewise
}

// ServeList opens the site at port 80 of an address, and the resolver, which knows name
// and nothing else, at port 53 of another.
func (p *Provider) ServeList(site, resolver netip.Addr, name string) (*List, error) {
	l := &List{from: map[netip.Addr]int{}, asked: map[netip.Addr]int{}}
	if err := l.Offer(p.all); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /list.zip", l.answer)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	if err := p.serveTCP(netip.AddrPortFrom(site, HTTPPort), func(c net.Conn) {
		one := &oneConn{c: c, done: make(chan struct{})}
		_ = s.Serve(one) // ends with the connection
		<-one.done
	}); err != nil {
		return nil, fmt.Errorf("provider: list: %w", err)
	}
	c, err := p.listenUDP(netip.AddrPortFrom(resolver, 53))
	if err != nil {
		return nil, fmt.Errorf("provider: resolver: %w", err)
	}
	p.svc.keep(c)
	go l.resolve(c, name, site)
	return l, nil
}

// Offer makes the archive hold the profiles of exactly these endpoints.
func (l *List) Offer(es []*Endpoint) error {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, e := range es {
		f, err := z.Create(e.File())
		if err == nil {
			_, err = f.Write(e.Profile())
		}
		if err != nil {
			return fmt.Errorf("provider: list: %w", err)
		}
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("provider: list: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.archive = b.Bytes()
	return nil
}

// Requests counts who asked for the list, by address: an exit's, or the router's own.
func (l *List) Requests() map[netip.Addr]int { return l.counts(l.from) }

// Questions counts who asked the resolver, likewise.
func (l *List) Questions() map[netip.Addr]int { return l.counts(l.asked) }

func (l *List) counts(m map[netip.Addr]int) map[netip.Addr]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[netip.Addr]int{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

func (l *List) answer(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	if a, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		l.from[a.Addr().Unmap()]++
	}
	body := l.archive
	l.mu.Unlock()
	w.Header().Set("Content-Type", "application/zip")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// resolve answers questions for the address of the name.
func (l *List) resolve(c *net.UDPConn, name string, site netip.Addr) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		l.asked[from.Addr().Unmap()]++
		l.mu.Unlock()
		if out, err := reply(buf[:n], name, site); err == nil {
			_, _ = c.WriteToUDPAddrPort(out, from)
		}
	}
}

func reply(q []byte, name string, site netip.Addr) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(q); err != nil {
		return nil, err
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	for _, x := range m.Questions {
		switch {
		case x.Name.String() != name+".":
			m.RCode = dnsmessage.RCodeNameError
		case x.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: x.Name, Class: dnsmessage.ClassINET, TTL: 60},
				Body:   &dnsmessage.AResource{A: site.As4()},
			})
		}
	}
	return m.Pack()
}

// oneConn is a listener of one connection that is there already.
type oneConn struct {
	c    net.Conn
	once sync.Once
	end  sync.Once
	done chan struct{}
}

func (o *oneConn) Accept() (c net.Conn, err error) {
	o.once.Do(func() { c = ended{o.c, o} })
	if c != nil {
		return c, nil
	}
	<-o.done
	return nil, net.ErrClosed
}

func (o *oneConn) Close() error   { return nil }
func (o *oneConn) Addr() net.Addr { return o.c.LocalAddr() }

// ended tells the listener of its end.
type ended struct {
	net.Conn
	o *oneConn
}

func (e ended) Close() error {
	defer e.o.end.Do(func() { close(e.o.done) })
	return e.Conn.Close()
}
