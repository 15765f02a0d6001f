package provider

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/egress"
)

// serve runs a real server on loopback for the test.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func body(b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b) }
}

// raw answers with bytes that no proper server would send.
func raw(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = buf.WriteString(text)
		_ = buf.Flush()
	}
}

func TestArchiveFromAURL(t *testing.T) {
	for name, pack := range packers() {
		t.Run(name, func(t *testing.T) {
			work := workdir(t)
			var user, pass, query atomic.Value
			b := pack(t, member{name: "a.conf", body: conf(1)}, member{name: "../b.conf", body: conf(2)})
			u := serve(t, func(w http.ResponseWriter, r *http.Request) {
				us, pa, _ := r.BasicAuth()
				user.Store(us)
				pass.Store(pa)
				query.Store(r.URL.RawQuery)
				body(b)(w, r)
			})
			u = strings.Replace(u, "http://", "http://ann:s3cret@", 1) + "/list?code=12345678"
			l, err := fetchOne(t, work, egress.Source{Type: egress.SourceArchive, URL: u})
			check(t, work, l, err, "+ a.conf "+endpoint(1), "- ../b.conf: a path that leaves the folder")
			if user.Load() != "ann" || pass.Load() != "s3cret" || query.Load() != "code=12345678" {
				t.Errorf("the server saw %v:%v?%v", user.Load(), pass.Load(), query.Load())
			}
		})
	}
}

func TestAnswersThatAreNoArchiveAreRefused(t *testing.T) {
	z := string(makeZip(t, member{name: "a.conf", body: conf(1)}, member{name: "b.conf", body: conf(2)}))
	for _, tc := range []struct {
		name, reason string
		h            http.HandlerFunc
	}{
		{"a web page", "source hmn: the answer is an HTML page, not an archive", body([]byte("<!doctype html><html><title>Sign in</title>"))},
		{"a web page called a zip", "the answer is an HTML page, not an archive", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/zip")
			body([]byte("\ufeff\n<html>"))(w, r)
		}},
		{"an XML document", "the answer is an XML document, not an archive", body([]byte("<?xml version='1.0'?><Error/>"))},
		{"nothing", "the answer is empty", body(nil)},
		{"a JSON error", "the answer is a JSON document, not an archive: subscription expired", body([]byte(`{"error":{"code":7,"message":"subscription expired"}}`))},
		{"JSON of another kind", "the answer is a JSON document, not an archive", body([]byte(`[1,2]`))},
		{"a word", "the answer is a text, not an archive: Wrong code", body([]byte("Wrong code\nBye"))},
		{"a status", "answered 403 Forbidden: no such code", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"message":"no such code"}`))
		}},
		{"a zip with a failing status", "answered 500 Internal Server Error", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			body([]byte(z))(w, r)
		}},
		{"no content", "answered 204 No Content", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
		{"a part", "answered 206 Partial Content", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPartialContent) }},
		{
			"less than was announced", fmt.Sprintf("the answer ended after %d of %d bytes", len(z), len(z)+9),
			raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(z)+9, z)),
		},
		{"a chunk cut off", "the answer ended early", raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nPK\x03\x04")},
		{"an archive cut off without a length", "the archive is truncated", raw("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + z[:len(z)-30])},
		{"more than allowed, announced", "larger than max_bytes: 1000 allows", raw("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nPK")},
		{"more than allowed, not announced", "larger than max_bytes: 1000 allows", func(w http.ResponseWriter, r *http.Request) {
			buf := make([]byte, 64<<10)
			copy(buf, "PK\x03\x04")
			for r.Context().Err() == nil {
				if _, err := w.Write(buf); err != nil {
					return
				}
			}
		}},
		{"no HTTP", "malformed HTTP response", raw("SSH-2.0-OpenSSH\r\n\r\n")},
		{"a redirect without end", "more than 5 redirects", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusFound) }},
		{"a redirect to another scheme", "unsupported protocol scheme", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			l, err := fetchOne(t, work, egress.Source{Type: egress.SourceArchive, URL: serve(t, tc.h), MaxBytes: 1000, MaxFiles: 10})
			checkRefused(t, work, l, err, tc.reason)
		})
	}
}

func TestASilentServerIsLeftAtTheDeadline(t *testing.T) {
	for _, tc := range []struct {
		name  string
		begin string
	}{{"before its header", ""}, {"within its body", "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nPK"}} {
		t.Run(tc.name, func(t *testing.T) {
			gone := make(chan struct{})
			u := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				c, buf, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = buf.WriteString(tc.begin)
				_ = buf.Flush()
				<-gone
			})
			t.Cleanup(func() { close(gone) }) // runs before the server's Close
			work := workdir(t)
			l, err := fetchOne(t, work, egress.Source{Type: egress.SourceArchive, URL: u, Timeout: 150 * time.Millisecond})
			checkRefused(t, work, l, err, "not done within 150ms")
		})
	}
}

func TestARedirectTellsTheNextSiteNothing(t *testing.T) {
	z := makeZip(t, member{name: "a.conf", body: conf(1)})
	var referer, auth atomic.Value
	next := serve(t, func(w http.ResponseWriter, r *http.Request) {
		referer.Store(r.Header.Get("Referer"))
		auth.Store(r.Header.Get("Authorization"))
		body(z)(w, r)
	})
	// Another name for loopback makes it another site.
	next = strings.Replace(next, "127.0.0.1", "localhost", 1)
	first := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, next, http.StatusFound) })
	work := workdir(t)
	l, err := fetchOne(t, work, egress.Source{Type: egress.SourceArchive, URL: strings.Replace(first, "//", "//ann:s3cret@", 1) + "/?code=12345678"})
	check(t, work, l, err, "+ a.conf "+endpoint(1))
	if referer.Load() != "" || auth.Load() != "" {
		t.Errorf("the next site saw Referer %q, Authorization %q", referer.Load(), auth.Load())
	}
}

func TestARedirectFromHTTPSToHTTPIsRefused(t *testing.T) {
	plain := serve(t, body(makeZip(t, member{name: "a.conf", body: conf(1)})))
	s := httptest.NewTLSServer(http.RedirectHandler(plain, http.StatusFound))
	defer s.Close()
	client, done := newClient(Options{})
	defer done()
	client.Transport = s.Client().Transport // trusts the test's certificate
	resp, err := client.Get(s.URL)
	if err == nil {
		resp.Body.Close()
		t.Fatal("want an error")
	}
	if !strings.Contains(err.Error(), "a redirect from https to http") {
		t.Errorf("got %v", err)
	}
}

func TestTheDialerThatIsPassedIsUsed(t *testing.T) {
	u := serve(t, body(makeZip(t, member{name: "a.conf", body: conf(1)})))
	real := strings.TrimPrefix(u, "http://")
	var asked atomic.Value
	opts := Options{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		asked.Store(addr)
		var d net.Dialer
		return d.DialContext(ctx, network, real)
	}}
	work := workdir(t)
	l, err := Fetch(t.Context(), []egress.Source{{Name: "hmn", Type: egress.SourceArchive, URL: "http://api.provider.example/list"}}, work, opts)
	check(t, work, l, err, "+ a.conf "+endpoint(1))
	if asked.Load() != "api.provider.example:80" {
		t.Errorf("the dialer was asked for %v", asked.Load())
	}
}

func TestCredentialsNeverReachAnError(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := "http://" + closed.Addr().String()
	closed.Close()
	for _, tc := range []struct{ name, base string }{
		{"connection refused", refused},
		{"a bad port", "http://127.0.0.1:99999"},
		{"a bad escape", "http://127.0.0.1/%zz"},
		{"another scheme", "ftp://127.0.0.1"},
		{"a status that repeats them", serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			us, pa, _ := r.BasicAuth()
			fmt.Fprintf(w, `{"message":"%s / %s may not get %s%s?%s"}`, us, pa, r.Host, r.URL.Path, r.URL.RawQuery)
		})},
		{"a text that repeats them", serve(t, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "bad code %s for http://x:y@z/%s", r.URL.Query().Get("code"), r.URL.RawQuery)
		})},
		{"a page", serve(t, body([]byte("<html>")))},
		{"a redirect that does not parse", serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://b%zz/?"+r.URL.RawQuery)
			w.WriteHeader(http.StatusFound)
		})},
		{"a redirect to nowhere with a secret of its own", serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, strings.Replace(refused, "//", "//ann:s3cret%2Fpw@", 1)+"/?sig=12345678-abc", http.StatusFound)
		})},
		{"a broken answer", serve(t, raw("GARBAGE ann s3cret/pw 12345678-abc\r\n\r\n"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			u := strings.Replace(tc.base, "://", "://ann:s3cret%2Fpw@", 1) + "?code=12345678-abc"
			l, err := fetchOne(t, work, egress.Source{Type: egress.SourceArchive, URL: u})
			if err == nil || len(l.Failed) != 1 {
				t.Fatalf("want a failure, got %v", err)
			}
			for _, secret := range []string{"ann", "s3cret", "12345678"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q is in %v", secret, err)
				}
			}
		})
	}
}

func TestQuoterHidesTheSecretsOfOtherURLsToo(t *testing.T) {
	quote := quoter(&url.URL{Scheme: "https", Host: "h.example"})
	for text, want := range map[string]string{
		`Get "https://bob:hunter2@cdn.example/f?sig=zzz": EOF`: `Get "https://cdn.example/f?(hidden)": EOF`,
		"see https://hunter2@cdn.example now":                  "see https://cdn.example now",
		`parse "/f?sig=zz z": no`:                              `parse "/f?(hidden) z": no`,
		"is the code right?":                                   "is the code right?",
		"mail ann@example.org":                                 "mail ann@example.org",
		"two\r\nlines\tand a \x1b[31mcolour":                   "two__lines_and a _[31mcolour",
	} {
		if got := quote(text); got != want {
			t.Errorf("%q\nwant %q\ngot  %q", text, want, got)
		}
	}
	if got := quote(strings.Repeat("ü", 999)); len(got) > maxText {
		t.Errorf("want at most %d bytes, got %d", maxText, len(got))
	}
}

func TestQuoterHidesWhateverTheURLKeepsSecret(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[A-Za-z0-9+/=_%-]{6,24}`)
		user, pass, value := "u"+word.Draw(t, "user"), "p"+word.Draw(t, "pass"), "v"+word.Draw(t, "value")
		u := &url.URL{Scheme: "https", Host: "h.example", User: url.UserPassword(user, pass), RawQuery: url.Values{"k": {value}}.Encode()}
		got := quoter(u)(fmt.Sprintf("Get %q: user %s, password %s, k is %s or %s", u, user, pass, value, url.QueryEscape(value)))
		for _, s := range []string{user, pass, value, url.QueryEscape(value)} {
			if strings.Contains(got, s) {
				t.Fatalf("%q is in %q", s, got)
			}
		}
	})
}
