package wgtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shunt-net/shunt/internal/tunnel/tcp"
)

const (
	tlsPort   = 443
	innerMTU  = 1420             // bytes
	tlsBounds = 10 * time.Second // of one conversation
)

// web is the TLS hosts behind one endpoint. Most endpoints are never asked for TCP, so
// their stack is made for the first segment.
type web struct {
	conf   func() (*tls.Config, error)
	refuse []netip.Addr
	deaf   []netip.Addr
	begun  atomic.Int64 // handshakes

	mu     sync.Mutex
	stack  *tcp.Stack
	closed bool
}

// receive takes a segment; out gets what the hosts answer.
func (w *web) receive(ip []byte, out func(ip []byte)) {
	if slices.Contains(w.deaf, destination(ip)) {
		return
	}
	w.mu.Lock()
	if w.stack == nil && !w.closed {
		w.start(out)
	}
	s := w.stack
	w.mu.Unlock()
	if s != nil {
		s.Receive(ip)
	}
}

// destination is where a segment goes.
func destination(ip []byte) netip.Addr {
	b := ip[24:40]
	if ip[0]>>4 == 4 {
		b = ip[16:20]
	}
	a, _ := netip.AddrFromSlice(b) // 4 or 16 bytes
	return a
}

func (w *web) start(out func(ip []byte)) {
	s, err := tcp.New(innerMTU, nil, out)
	if err != nil {
		return // the client notices
	}
	if err := s.Serve(tlsPort, w.serve); err != nil {
		s.Close()
		return
	}
	w.stack = s
}

// serve does one handshake and waits for the client to go.
func (w *web) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	if a, ok := c.LocalAddr().(*net.TCPAddr); ok && slices.Contains(w.refuse, a.AddrPort().Addr().Unmap()) {
		return
	}
	conf, err := w.conf()
	if err != nil {
		return
	}
	_ = c.SetDeadline(time.Now().Add(tlsBounds)) //nolint:forbidigo // measures a duration
	conf = conf.Clone()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		w.begun.Add(1)
		return nil, nil // the same configuration
	}
	_, _ = tls.Server(c, conf).Read(make([]byte, 1)) // the client may be gone before its last message is read
}

func (w *web) close() {
	w.mu.Lock()
	s := w.stack
	w.stack, w.closed = nil, true
	w.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// certified is a server's configuration with a certificate that nobody trusts.
func certified() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "wgtest"}, NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, nil
}
