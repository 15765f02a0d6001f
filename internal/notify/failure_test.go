package notify

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/secret"
)

const token = "T0kenOfOurs"

// What goes wrong is said, how often it was tried is counted, and no secret is told.
func TestFailures(t *testing.T) {
	status := func(code int) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", r.URL.String())
			http.Error(w, "no "+r.URL.String()+" "+r.Header.Get("Authorization"), code)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	_ = l.Close()
	mute := httptest.NewUnstartedServer(nil)
	mute.Config.ErrorLog = log.New(io.Discard, "", 0)
	mute.StartTLS()
	t.Cleanup(mute.Close)
	sh := func(s string) edge.AlertTarget {
		return edge.AlertTarget{Type: edge.AlertCommand, Command: []string{"/bin/sh", "-c", s, token}}
	}
	hook := func(u string) edge.AlertTarget { return edge.AlertTarget{Type: edge.AlertWebhook, URL: u} }
	service := func(u string) edge.AlertTarget { return edge.AlertTarget{Type: edge.AlertService, URL: u} }
	open := secretFile(t, "http://x/"+token)
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		answer func(int, http.ResponseWriter, *http.Request)
		target edge.AlertTarget // HOST is the site's
		want   string           // "" = delivered
		tries  int
	}{
		"once more helps": {
			answer: func(n int, w http.ResponseWriter, r *http.Request) {
				if n < 3 {
					status(503)(n, w, r)
				}
			},
			target: hook("http://HOST/" + token), tries: 3,
		},
		"a sick site":             {status(500), hook("http://HOST/" + token), "answered status 500", 3},
		"too often":               {status(429), hook("http://HOST/" + token), "answered status 429", 3},
		"not allowed":             {status(401), hook("http://user:" + token + "@HOST/"), "answered status 401", 1},
		"moved, and not followed": {status(307), hook("http://HOST/" + token), "answered status 307", 1},
		"nobody listens":          {nil, hook("http://" + nobody + "/" + token), "connection refused", 0},
		"no such name":            {nil, hook("http://" + token + ".invalid/"), "its name can't be looked up", 0},
		"no TLS there":            {nil, hook("https://HOST/" + token), "does not speak TLS", 0},
		"a certificate of nobody": {nil, hook(mute.URL + "/" + token), "its certificate is not valid", 0},
		"no address":              {nil, hook("http://[" + token), "its url is not an address that can be posted to", 0},
		"another scheme":          {nil, hook("ftp://HOST/" + token), "its url is not an address that can be posted to", 0},
		"too slow": {
			func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			edge.AlertTarget{Type: edge.AlertWebhook, URL: "http://HOST/" + token, Timeout: 100 * time.Millisecond},
			"no answer in time", 3,
		},
		"a file that is missing": {nil, edge.AlertTarget{Type: edge.AlertWebhook, URLFile: "/no/such"}, "url_file /no/such: no such file or directory", 0},
		"a file for all to read": {nil, edge.AlertTarget{Type: edge.AlertWebhook, URLFile: open}, "url_file " + open + ": its mode 0640 lets others than its owner use it: make it 0600", 0},
		"no header":              {nil, edge.AlertTarget{Type: edge.AlertWebhook, URL: "http://HOST/", HeadersFile: "HEADERS"}, "headers_file HEADERS: line 2 is not `Name: value`", 0},
		"a command fails":        {nil, sh("echo $0 >&2; echo $0; exit 3"), "command /bin/sh: exit status 3", 0},
		"a command is missing":   {nil, edge.AlertTarget{Type: edge.AlertCommand, Command: []string{"/no/such", token}}, "command /no/such: fork/exec /no/such: no such file or directory", 0},
		"a command without end":  {nil, edge.AlertTarget{Type: edge.AlertCommand, Command: []string{"sleep", "60"}, Timeout: 100 * time.Millisecond}, "command sleep: did not end in time", 0},
		"no type":                {nil, edge.AlertTarget{}, "no such type of target", 0},
		"a service that is sick": {status(500), service("ntfy://x:" + token + "@HOST/topic?scheme=http"), "answered status 500", 3},
		"a service that refuses": {status(403), service("gotify://HOST/" + gotify() + "?disabletls=yes"), "answered status 403", 1},
		"a generic one refuses":  {status(403), service("generic+http://HOST/" + token), "answered status 403", 1},
		"a service is not there": {nil, service("ntfy://x:" + token + "@" + nobody + "/topic?scheme=http"), "connection refused", 0},
		"a generic is not there": {nil, service("generic+http://" + nobody + "/" + token), "connection refused", 0},
		"no such service":        {nil, service("smoke://" + token), "its url names no known notification service", 0},
		"no URL of a service":    {nil, service("telegram://" + token), "its url is not understood", 0},
		"no URL at all":          {nil, service("://" + token), "its url is not understood", 0},
		"a service that is slow": {
			func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			edge.AlertTarget{Type: edge.AlertService, URL: "ntfy://x:" + token + "@HOST/topic?scheme=http", Timeout: 100 * time.Millisecond},
			"no answer in time", 3,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := serveSite(t, tt.answer)
			tt.target.Name = "x"
			tt.target.URL = strings.ReplaceAll(tt.target.URL, "HOST", strings.TrimPrefix(s.URL, "http://"))
			if tt.target.HeadersFile != "" {
				tt.target.HeadersFile = secretFile(t, "A: b\n"+token+"\n")
				tt.want = strings.ReplaceAll(tt.want, "HEADERS", tt.target.HeadersFile)
			}
			n := hasty(edge.AlertsConfig{Targets: []edge.AlertTarget{tt.target}}, newClock().now)
			n.Alert(move())
			err := closed(t, n)
			want := "<nil>"
			if tt.want != "" {
				want = "alert target x: 1 not delivered: " + tt.want
			}
			if diff := cmp.Diff(want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), token) {
				t.Errorf("a secret is told: %v", err)
			}
			if got := len(s.got()); got != tt.tries {
				t.Errorf("tried %d times, want %d", got, tt.tries)
			}
		})
	}
}

// gotify is a token of the form that Gotify wants.
func gotify() string { return "A" + strings.Repeat("x", 14-len(token)) + token }

func TestExplainForgetsWhatItIsNot(t *testing.T) {
	for _, err := range []error{
		&url.Error{Op: "Post", URL: "https://x/" + token, Err: errors.New("odd " + token)},
		fmt.Errorf("posting to https://x/%s: %w", token, errors.New("something else")),
		errors.New("telegram: bot" + token + " got 404 not found"),
	} {
		if f := explain(err); strings.Contains(f.what, token) || f.what == "" {
			t.Errorf("%v is told as %q", err, f.what)
		}
	}
}

func TestHeaders(t *testing.T) {
	tests := map[string]struct {
		text string
		want http.Header
		err  string
	}{
		"none":                    {"", http.Header{}, ""},
		"comments":                {"# a: b\n\n  # c\n", http.Header{}, ""},
		"some":                    {"a: b\nA: c:d\r\nX-Y:e\n", http.Header{"A": {"b", "c:d"}, "X-Y": {"e"}}, ""},
		"a mark of the beginning": {"\ufeffa: b", http.Header{"A": {"b"}}, ""},
		"no colon":                {"a: b\nsecret", nil, "line 2 is not `Name: value`"},
		"no name":                 {": b", nil, "line 1 is not `Name: value`"},
		"a name of two":           {"a b: c", nil, "line 1 is not `Name: value`"},
		"a control":               {"a: b\x00c", nil, "line 1 is not `Name: value`"},
		"too many":                {strings.Repeat("a: b\n", headerLimit+1), nil, "more than 64 headers"},
		"too long":                {strings.Repeat("#", secret.Limit+1), nil, "larger than 65536 bytes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := secretFile(t, tt.text)
			got, err := headers(path)
			want := "<nil>"
			if tt.err != "" {
				want = "headers_file " + path + ": " + tt.err
			}
			if diff := cmp.Diff(want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := headers(filepath.Dir(secretFile(t, ""))); err == nil || !strings.HasSuffix(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

// FuzzHeaders: what is taken can be sent, and what is not is not repeated.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{"", "a: b", "Authorization: Bearer x\r\n#\n", "a", ": ", "a:\x00", "ä: b", "a: ä"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "h")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := headers(path)
		if err != nil {
			return
		}
		var b strings.Builder
		if err := h.Write(&b); err != nil {
			t.Fatal(err)
		}
		n := 0
		for name, values := range h {
			n += len(values)
			if name == "" || strings.ContainsAny(name, " \r\n:") {
				t.Errorf("a header %q", name)
			}
		}
		if lines := strings.Count(b.String(), "\r\n"); lines != n {
			t.Errorf("%d headers have %d lines", n, lines)
		}
	})
}
