package dial

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/proxy"
)

const (
	// proxyWait bounds the conversation with a proxy before it connects.
	proxyWait = 15 * time.Second
	// headMax bounds what an HTTP proxy may answer, in bytes.
	headMax = 16 << 10
)

// Proxy returns the way through a proxy: http://[user:password@]host:port (CONNECT) or
// socks5://…. The proxy itself is connected to by forward. Names are handed to the proxy,
// which resolves them.
func Proxy(address string, forward Func) (Func, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the proxy is not http://host:port or socks5://host:port") // the text may hold a password
	}
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
		return connect(net.JoinHostPort(u.Hostname(), port), u.User, forward), nil
	case "socks5", "socks5h":
		if port == "" {
			port = "1080"
		}
		return socks(net.JoinHostPort(u.Hostname(), port), u.User, forward)
	}
	return nil, fmt.Errorf("a proxy of kind %q: want http or socks5", u.Scheme)
}

// forwarder is a Func as package proxy wants it.
type forwarder Func

// Dial is never called: package proxy prefers DialContext.
func (f forwarder) Dial(network, address string) (net.Conn, error) {
	return f(context.Background(), network, address)
}

// DialContext calls the function.
func (f forwarder) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

func socks(at string, user *url.Userinfo, forward Func) (Func, error) {
	var auth *proxy.Auth
	if user != nil {
		password, _ := user.Password()
		auth = &proxy.Auth{User: user.Username(), Password: password}
	}
	d, err := proxy.SOCKS5("tcp", at, auth, forwarder(forward))
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", at, err)
	}
	cd, ok := d.(proxy.ContextDialer)
	if !ok {
		return nil, fmt.Errorf("proxy %s: cannot be bounded", at)
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, proxyWait)
		defer cancel()
		c, err := cd.DialContext(ctx, network, address)
		if err != nil {
			return nil, fmt.Errorf("through proxy %s: %w", at, err)
		}
		return c, nil
	}, nil
}

func connect(at string, user *url.Userinfo, forward Func) Func {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if !strings.HasPrefix(network, "tcp") {
			return nil, fmt.Errorf("through proxy %s: %s: only tcp", at, network)
		}
		ctx, cancel := context.WithTimeout(ctx, proxyWait)
		defer cancel()
		c, err := forward(ctx, "tcp", at)
		if err != nil {
			return nil, fmt.Errorf("proxy %s: %w", at, err)
		}
		stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
		t, err := ask(c, address, user)
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = c.Close() // it is of no use
			return nil, fmt.Errorf("through proxy %s: %w", at, err)
		}
		return t, nil
	}
}

// ask sends CONNECT (RFC 9110, section 9.3.6) and reads the answer.
func ask(c net.Conn, address string, user *url.Userinfo) (net.Conn, error) {
	if strings.ContainsAny(address, " \r\n") {
		return nil, fmt.Errorf("%q is no address", address)
	}
	req := "CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n"
	if user != nil {
		password, _ := user.Password()
		req += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, req+"\r\n"); err != nil {
		return nil, err
	}
	r := bufio.NewReader(c)
	status, left := "", headMax
	for {
		line, err := r.ReadSlice('\n')
		if left -= len(line); err != nil || left < 0 {
			return nil, fmt.Errorf("no answer to CONNECT: %w", errors.Join(err, tooLong(left)))
		}
		text := strings.TrimRight(string(line), "\r\n")
		if status == "" {
			status = text
		} else if text == "" {
			break
		}
	}
	if f := strings.Fields(status); len(f) < 2 || !strings.HasPrefix(f[0], "HTTP/1.") || len(f[1]) != 3 || f[1][0] != '2' {
		return nil, fmt.Errorf("the proxy answered %.80q", status)
	}
	return &tail{c, r}, nil
}

func tooLong(left int) error {
	if left < 0 {
		return errors.New("its head does not end")
	}
	return nil
}

// tail is a connection whose first bytes were read with the proxy's answer.
type tail struct {
	net.Conn
	r *bufio.Reader
}

func (t *tail) Read(b []byte) (int, error) { return t.r.Read(b) }

// CloseWrite tells the far end that nothing more follows.
func (t *tail) CloseWrite() error {
	if half, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
