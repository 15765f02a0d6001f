package knock

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

const (
	bodyLimit   = 64 << 10         // of an HTTP answer, searched
	answerLimit = 64<<10 + 256<<10 // of an HTTP answer with its header
	interims    = 8                // 1xx answers before the real one
)

// tls asks for a handshake.
func (k *knocking) tls(ctx context.Context) {
	c := k.connect(ctx)
	if c == nil {
		return
	}
	defer c.Close()
	if t := k.handshake(ctx, c); t != nil {
		k.heard()
		k.good()
		_ = t.CloseWrite()
	}
}

// handshake makes TLS of a connection, or judges why not.
func (k *knocking) handshake(ctx context.Context, c *conn) *tls.Conn {
	if hello := k.target.Probe.Greeting(); hello != "" {
		if _, err := c.Write([]byte(hello)); err != nil {
			k.talkFailed(ctx, err, false)
			return nil
		}
	}
	name := k.target.Probe.ServerName
	if name == "" {
		name = k.target.Addr.Addr().Unmap().WithZone("").String()
	}
	t := tls.Client(c, &tls.Config{
		ServerName:         name,
		InsecureSkipVerify: !k.target.Probe.Verify, // the question is whether it speaks; `verify: true` asks for more
		MinVersion:         tls.VersionTLS10,       // an old server is no dead one
	})
	// The deadline of the connection bounds it and follows ctx.
	err := t.HandshakeContext(context.WithoutCancel(ctx))
	if err == nil {
		return t
	}
	k.handshakeFailed(ctx, err, c.got > 0)
	return nil
}

func (k *knocking) handshakeFailed(ctx context.Context, err error, begun bool) {
	var (
		notTLS tls.RecordHeaderError
		cert   *tls.CertificateVerificationError
		remote *net.OpError
	)
	switch {
	case errors.As(err, &notTLS):
		k.miss("does not speak TLS")
	case errors.As(err, &cert):
		k.a.Speaks = true
		k.miss(clean("certificate: " + cert.Err.Error()))
	case errors.As(err, &remote) && remote.Op == "remote error":
		k.a.Speaks = true
		k.miss(clean("refused the handshake: " + remote.Err.Error()))
	default:
		k.talkFailed(ctx, err, begun)
	}
}

// http asks for one page and judges its status and, when wanted, its body.
func (k *knocking) http(ctx context.Context) {
	req, err := k.request(ctx)
	if err != nil {
		k.unknown(clean(err.Error()))
		return
	}
	c := k.connect(ctx)
	if c == nil {
		return
	}
	defer c.Close()
	var rw io.ReadWriter = c
	var first []byte
	if k.target.Probe.TLS {
		t := k.handshake(ctx, c)
		if t == nil {
			return
		}
		defer func() { _ = t.CloseWrite() }()
		rw = t
	} else {
		first = []byte(k.target.Probe.Greeting())
	}
	begun := c.got
	out := bytes.NewBuffer(first)
	err = req.Write(out)
	if err == nil {
		_, err = rw.Write(out.Bytes())
	}
	if err != nil {
		k.talkFailed(ctx, err, false)
		return
	}
	k.page(ctx, req, rw, func() bool { return c.got > begun })
}

func (k *knocking) request(ctx context.Context) (*http.Request, error) {
	p := k.target.Probe
	path := p.Path
	if path == "" {
		path = "/"
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	u.Scheme, u.Host = "http", net.JoinHostPort(k.target.Addr.Addr().Unmap().WithZone("").String(), strconv.Itoa(int(k.target.Addr.Port())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if p.ServerName != "" {
		req.Host = p.ServerName
	}
	req.Close = true
	req.Header.Set("User-Agent", "shunt")
	return req, nil
}

// page reads the answer and judges it.
func (k *knocking) page(ctx context.Context, req *http.Request, r io.Reader, begun func() bool) {
	in := bufio.NewReader(io.LimitReader(r, answerLimit))
	resp, err := http.ReadResponse(in, req)
	for n := 0; err == nil && resp.StatusCode/100 == 1 && resp.StatusCode != http.StatusSwitchingProtocols && n < interims; n++ {
		resp, err = http.ReadResponse(in, req)
	}
	if err != nil {
		k.talkFailed(ctx, err, begun())
		return
	}
	// The body is not closed: that would read all of it, and some have no end.
	k.heard()
	k.a.Speaks = true
	if !wanted(k.target.Probe.Status, resp.StatusCode) {
		k.miss("status " + strconv.Itoa(resp.StatusCode))
		return
	}
	if k.target.Probe.Body == "" {
		k.good()
		return
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, bodyLimit))
	switch {
	case bytes.Contains(body, []byte(k.target.Probe.Body)):
		k.good()
	case err != nil:
		k.talkFailed(ctx, err, true)
	default:
		k.miss(fmt.Sprintf("status %d, but the wanted text is not in the first %d bytes", resp.StatusCode, len(body)))
	}
}

// wanted says whether a status is in one of the ranges, 200-399 when there are none.
func wanted(ranges []string, status int) bool {
	if len(ranges) == 0 {
		return status >= 200 && status <= 399
	}
	for _, r := range ranges {
		low, high, ranged := strings.Cut(r, "-")
		a, err := strconv.Atoi(strings.TrimSpace(low))
		if err != nil {
			continue
		}
		b := a
		if ranged {
			if b, err = strconv.Atoi(strings.TrimSpace(high)); err != nil {
				continue
			}
		}
		if a <= status && status <= b {
			return true
		}
	}
	return false
}
