package server

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The ports of the services on each service address.
const (
	EchoPort   = 7   // UDP and TCP: what came in goes back
	SinkPort   = 9   // TCP: reads and keeps silent
	SourcePort = 19  // TCP: sends as fast as it is read
	HTTPPort   = 80  // TCP: answers any request with the address that it came from
	TLSPort    = 443 // TCP: TLS with a certificate of the world's own, then echo
)

// Stamp is the head of a numbered packet; the UDP echo fills in what it saw.
type Stamp struct {
	Flow uint32
	Seq  uint64
	Sent int64          // the sender's own, not read here
	Seen netip.AddrPort // where the packet came from, as the service saw it
}

// StampSize is the least size of a numbered packet, in bytes.
const StampSize = 8 + 4 + 8 + 8 + 16 + 2

// Magic begins each numbered packet, so that it can be recognised in clear on any wire.
const Magic = "SHUNTLAB"

// Put writes the stamp to the head of b.
func (s Stamp) Put(b []byte) {
	copy(b, Magic)
	binary.BigEndian.PutUint32(b[8:], s.Flow)
	binary.BigEndian.PutUint64(b[12:], s.Seq)
	binary.BigEndian.PutUint64(b[20:], uint64(s.Sent)) //nolint:gosec // bits are bits
	a := s.Seen.Addr().As16()
	copy(b[28:], a[:])
	binary.BigEndian.PutUint16(b[44:], s.Seen.Port())
}

// ReadStamp reads the head of b; ok is false if it is not a numbered packet.
func ReadStamp(b []byte) (s Stamp, ok bool) {
	if len(b) < StampSize || string(b[:8]) != Magic {
		return Stamp{}, false
	}
	s.Flow = binary.BigEndian.Uint32(b[8:])
	s.Seq = binary.BigEndian.Uint64(b[12:])
	s.Sent = int64(binary.BigEndian.Uint64(b[20:])) //nolint:gosec // bits are bits
	a := netip.AddrFrom16([16]byte(b[28:44])).Unmap()
	s.Seen = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[44:]))
	return s, true
}

// services are the sockets behind the endpoints.
type services struct {
	mu      sync.Mutex
	closers []io.Closer
	closed  bool
	tls     *tls.Config
}

// Serve opens the services on each of the addresses, which must be the namespace's own,
// and returns the certificate (PEM) that names and addresses are served under.
func (p *Provider) Serve(addrs []netip.Addr, names []string) ([]byte, error) {
	cert, pemCert, err := certificate(addrs, names)
	if err != nil {
		return nil, fmt.Errorf("provider: certificate: %w", err)
	}
	p.svc = &services{tls: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}}
	for _, a := range addrs {
		if err := p.serveUDP(a); err != nil {
			return nil, fmt.Errorf("provider: %w", err)
		}
		for port, f := range map[uint16]func(net.Conn){
			EchoPort: echo, SinkPort: sink, SourcePort: flood, HTTPPort: whoami, TLSPort: p.svc.secure,
		} {
			if err := p.serveTCP(netip.AddrPortFrom(a, port), f); err != nil {
				return nil, fmt.Errorf("provider: %w", err)
			}
		}
	}
	return pemCert, nil
}

// keep notes what must be closed at the end; false means that the end has come.
func (s *services) keep(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	s.closers = append(s.closers, c)
	return true
}

func (s *services) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, c := range s.closers {
		_ = c.Close()
	}
}

// serveUDP answers numbered packets with the address that they came from filled in, and
// any other with "ADDRESS:PORT COUNT TEXT".
func (p *Provider) serveUDP(a netip.Addr) error {
	c, err := p.listenUDP(netip.AddrPortFrom(a, EchoPort))
	if err != nil {
		return err
	}
	p.svc.keep(c)
	_ = c.SetReadBuffer(1 << 20)
	go func() {
		buf := make([]byte, 65536)
		var count uint64
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				if p.svc.done() {
					return
				}
				continue // an ICMP error of an earlier answer
			}
			count++
			from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			out := buf[:n]
			if s, ok := ReadStamp(out); ok {
				s.Seen = from
				s.Put(out)
			} else {
				out = fmt.Appendf(nil, "%s %d %s", from, count, out)
			}
			_, _ = c.WriteToUDPAddrPort(out, from)
		}
	}()
	return nil
}

func (s *services) done() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (p *Provider) serveTCP(a netip.AddrPort, f func(net.Conn)) error {
	var l net.Listener
	err := p.ns.Do(func() (err error) {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp", a.String())
		return err
	})
	if err != nil {
		return err
	}
	p.svc.keep(l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if p.svc.keep(c) {
					f(c)
					p.svc.forget(c)
				}
				_ = c.Close()
			}()
		}
	}()
	return nil
}

// forget lets a connection go that has ended.
func (s *services) forget(c io.Closer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range s.closers {
		if k == c {
			s.closers = append(s.closers[:i], s.closers[i+1:]...)
			return
		}
	}
}

func echo(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

func sink(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func flood(c net.Conn) {
	b := make([]byte, 64<<10)
	for {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

// whoami reads one HTTP request and answers with the client's address.
func whoami(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	r := bufio.NewReader(io.LimitReader(c, 16<<10))
	for {
		l, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if l == "\r\n" || l == "\n" {
			break
		}
	}
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", len(host)+1, host)
}

func (s *services) secure(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	t := tls.Server(c, s.tls)
	if t.HandshakeContext(context.Background()) == nil {
		echo(t)
	}
}

// certificate makes a certificate that is its own authority.
func certificate(addrs []netip.Addr, names []string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "shunt lab"},
		NotBefore: now.Add(-24 * time.Hour), NotAfter: now.Add(100 * 365 * 24 * time.Hour), DNSNames: names,
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, a := range addrs {
		t.IPAddresses = append(t.IPAddresses, a.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
