package dial

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReversePathIsTheGreaterOfTwo(t *testing.T) {
	for _, c := range []struct{ all, own, want string }{
		{"0", "0", "0"}, {"0", "1", "1"}, {"1", "0", "1"}, {"2", "1", "2"}, {"1", "2", "2"},
	} {
		proc := t.TempDir()
		for name, v := range map[string]string{"all": c.all, "vpn1": c.own} {
			dir := filepath.Join(proc, "sys/net/ipv4/conf", name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "rp_filter"), []byte(v+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReversePath(proc, "vpn1")
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("all %s, vpn1 %s: %d, %v; want %s", c.all, c.own, got, err, c.want)
		}
	}
	if _, err := ReversePath("", "../all"); err == nil {
		t.Error("a path was taken for an interface")
	}
}

// page serves one page and returns its address.
func page(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the list") })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// fetch gets the page by a way.
func fetch(t *testing.T, way Func, at string) (string, error) {
	t.Helper()
	tr := &http.Transport{DialContext: way}
	defer tr.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// httpProxy is a small CONNECT proxy that wants a password.
func httpProxy(t *testing.T, seen *string) string {
	t.Helper()
	return listen(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		*seen = req.Method + " " + req.Host
		if req.Header.Get("Proxy-Authorization") != "Basic dXNlcjpzZWNyZXQ=" {
			_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
			return
		}
		far, err := net.Dial("tcp", req.Host)
		if err != nil {
			_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
			return
		}
		defer far.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
		go func() { _, _ = io.Copy(far, r) }()
		_, _ = io.Copy(c, far)
	})
}

// socksProxy is a small SOCKS5 proxy (RFC 1928) without a password.
func socksProxy(t *testing.T, seen *string) string {
	t.Helper()
	return listen(t, func(c net.Conn) {
		b := make([]byte, 512)
		if _, err := io.ReadFull(c, b[:2]); err != nil {
			return
		}
		_, _ = io.ReadFull(c, b[:b[1]])
		_, _ = c.Write([]byte{5, 0})
		if _, err := io.ReadFull(c, b[:5]); err != nil {
			return
		}
		var host string
		if b[3] == 3 {
			n := int(b[4])
			_, _ = io.ReadFull(c, b[:n+2])
			host = net.JoinHostPort(string(b[:n]), fmt.Sprint(int(b[n])<<8|int(b[n+1])))
		} else {
			_, _ = io.ReadFull(c, b[5:10])
			host = net.JoinHostPort(net.IP(b[4:8]).String(), fmt.Sprint(int(b[8])<<8|int(b[9])))
		}
		*seen = host
		far, err := net.Dial("tcp", host)
		if err != nil {
			_, _ = c.Write([]byte{5, 5, 0, 1, 0, 0, 0, 0, 0, 0})
			return
		}
		defer far.Close()
		_, _ = c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		go func() { _, _ = io.Copy(far, c) }()
		_, _ = io.Copy(c, far)
	})
}

func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return l.Addr().String()
}

func TestAProxyCarriesTheDownload(t *testing.T) {
	at := page(t)
	var seen string
	for _, proxy := range []string{"http://user:secret@" + httpProxy(t, &seen), "socks5://" + socksProxy(t, &seen)} {
		way, err := Proxy(proxy, New(Options{}))
		if err != nil {
			t.Fatal(err)
		}
		seen = ""
		got, err := fetch(t, way, at)
		if err != nil || got != "the list" || !strings.HasSuffix(seen, at) {
			t.Errorf("%.6s: %q, %v; the proxy saw %q", proxy, got, err, seen)
		}
	}
}

func TestAProxyThatRefusesIsAnErrorWithoutItsPassword(t *testing.T) {
	at := page(t)
	var seen string
	way, err := Proxy("http://user:wrongsecret@"+httpProxy(t, &seen), New(Options{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = fetch(t, way, at); err == nil || !strings.Contains(err.Error(), "407") || strings.Contains(err.Error(), "wrongsecret") {
		t.Errorf("error: %v", err)
	}
	silent := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	way, err = Proxy("http://"+silent, New(Options{}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if c, err := way(ctx, "tcp", at); err == nil {
		_ = c.Close()
		t.Error("a silent proxy connected")
	}
}

func TestWhatIsNoProxyIsRefused(t *testing.T) {
	for _, bad := range []string{"", "ftp://127.0.0.1:1", "http://", "socks5://127.0.0.1:1/path", "127.0.0.1:1080", "http://user:secret@\x7f"} {
		if _, err := Proxy(bad, New(Options{})); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzAnswerToConnect(f *testing.F) {
	for _, s := range []string{"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 407 No\r\n\r\n", "", "\r\n\r\n", "HTTP/1.1 200", "SSH-2.0-x\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		a, b := net.Pipe()
		go func() {
			_, _ = bufio.NewReader(b).ReadString('\n')
			go func() { _, _ = io.Copy(io.Discard, b) }()
			_, _ = b.Write(answer)
			_ = b.Close()
		}()
		c, err := ask(a, "example.net:80", nil)
		if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.") {
			t.Errorf("%q was taken for success", answer)
		}
		if (c == nil) == (err == nil) {
			t.Errorf("connection %v, error %v", c, err)
		}
		_ = a.Close()
	})
}
