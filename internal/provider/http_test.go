package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
)

func TestHTTPTakesWhatHoldsProfiles(t *testing.T) {
	// A site of several pages, one of which is the source.
	pages := map[string]http.HandlerFunc{
		"/sub/a.conf":     body([]byte(conf(1))),
		"/b.conf":         body([]byte("# a comment that is long\n\n" + conf(2))),
		"/get":            body([]byte(conf(3))),
		"/page.conf":      body([]byte("<html>sign in")),
		"/json.conf":      body([]byte(`{"error":"expired"}`)),
		"/broken.conf":    body([]byte("[Interface]\nPrivateKey = x\n")),
		"/large.conf":     body([]byte(conf(1) + strings.Repeat("#", 1<<20))),
		"/same/name.conf": body([]byte(conf(4))),
		"/name.conf":      body([]byte(conf(5))),
	}
	for _, tc := range []struct {
		name, answer string
		want         []string
	}{
		{"one profile", conf(1), []string{"+ hmn.conf " + endpoint(1)}},
		{"one profile from Windows", "\ufeff" + strings.ReplaceAll("# mine\n"+conf(1), "\n", "\r\n"), []string{"+ mine.conf " + endpoint(1)}},
		{"several profiles", "# se-1\n" + conf(1) + "# of Bob, who moved\n" + conf(2) + "\n#nl-2.conf\n\n" + conf(3) + conf(4) + "# the end\n", []string{
			"+ se-1.conf " + endpoint(1), "+ hmn-2.conf " + endpoint(2), "+ nl-2.conf " + endpoint(3), "+ hmn-4.conf " + endpoint(4),
		}},
		{"several profiles of which some are bad", conf(1) + "[Interface]\nJunk = 1\n" + conf(1) + "[interface]\n# x\n", []string{
			"+ hmn.conf " + endpoint(1), `- hmn-2.conf: line 2: unsupported profile: unknown key "Junk" in [Interface], the nearest known key is "DNS"`,
			"- hmn-3.conf: the same endpoint " + endpoint(1) + " as hmn.conf of source hmn", "- hmn-4.conf: no private key",
		}},
		{"an archive", string(makeZip(t, member{name: "a.conf", body: conf(1)})), []string{"+ a.conf " + endpoint(1)}},
		{"a packed archive", string(makeGzip(t, makeTar(t, member{name: "a.conf", body: conf(1)}))), []string{"+ a.conf " + endpoint(1)}},
		{"a list of links", "# my list\r\nsub/a.conf\r\n/b.conf?x=1\r\nHERE/get\r\n\r\nsame/name.conf\r\nname.conf\r\n", []string{
			"+ a.conf " + endpoint(1), "+ b.conf " + endpoint(2), "+ hmn-3.conf " + endpoint(3), "+ name.conf " + endpoint(4), "+ name~2.conf " + endpoint(5),
		}},
		{"a list of links of which some are bad", "/b.conf\n/none.conf\n/page.conf\n/json.conf\n/broken.conf\n/large.conf\nhttps://other.invalid/x.conf\nhttp://127.0.0.1:1/y.conf\nHERE/b.conf\n", []string{
			"+ b.conf " + endpoint(2), "- none.conf: HERE answered 404 Not Found", "- page.conf: the answer is an HTML page, not a profile",
			"- json.conf: the answer is a JSON document, not a profile: expired", "- broken.conf: line 2: PrivateKey: not a key: 1 characters, want 44 of base64",
			"- large.conf: HERE: larger than 1 MiB: not a profile", "- x.conf: a link to another site, https://other.invalid",
			"- y.conf: a link to another site, http://127.0.0.1:1", "- b.conf: the same endpoint " + endpoint(2) + " as b.conf of source hmn",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			var here string
			var bare atomic.Int32 // requests without the header or the password
			here = serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, pass, _ := r.BasicAuth()
				if r.Header.Get("X-Token") != canary || pass != "pw-"+canary {
					bare.Add(1)
				}
				if page, ok := pages[r.URL.Path]; ok {
					page(w, r)
				} else if r.URL.Path != "/list" {
					http.NotFound(w, r)
				} else {
					body([]byte(strings.ReplaceAll(tc.answer, "HERE", here)))(w, r)
				}
			})
			l, err := fetchOne(t, work, egress.Source{
				Type: egress.SourceHTTP, URL: strings.Replace(here, "//", "//ann:pw-"+canary+"@", 1) + "/list",
				HeadersFile: secretFile(t, "X-Token: "+canary),
			})
			for i, w := range tc.want {
				tc.want[i] = strings.ReplaceAll(w, "HERE", here)
			}
			check(t, work, l, err, tc.want...)
			if bare.Load() != 0 {
				t.Errorf("%d requests without what the site asks for", bare.Load())
			}
		})
	}
}

func TestHTTPRefusesWhatHoldsNone(t *testing.T) {
	for _, tc := range []struct{ name, answer, reason string }{
		{"nothing", "", "the answer is empty"},
		{"a page", "<!doctype html>", "the answer is an HTML page, not profiles"},
		{"JSON", `{"message":"expired"}`, "the answer is a JSON document, not profiles: expired"},
		{"a list in JSON", `["a.conf"]`, "the answer is a JSON document, not profiles"},
		{"a word", "Denied", "the answer is a text, not profiles: Denied"},
		{"a sentence about a file", "no such a.conf", "the answer is a text, not profiles: no such a.conf"},
		{"another scheme", "file:///etc/x.conf", "the answer is a text, not profiles"},
		{"data", "\x00\x01\x02\x03", "the answer is data of an unknown kind, not profiles"},
		{"more than allowed", strings.Repeat("#", 5000), "larger than max_bytes: 4000 allows"},
		{"too many profiles", strings.Repeat("[interface]\n", 4), "holds more files than max_files: 3 allows"},
		{"too many links", strings.Repeat("a.conf\n", 4), "holds more files than max_files: 3 allows"},
		{"links to nothing", "a.conf\n", "none of its files is usable: 1 skipped, the first is a.conf: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := workdir(t)
			u := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/" {
					http.NotFound(w, r)
					return
				}
				body([]byte(tc.answer))(w, r)
			})
			l, err := fetchOne(t, work, egress.Source{Type: egress.SourceHTTP, URL: u + "/", MaxBytes: 4000, MaxFiles: 3})
			checkRefused(t, work, l, err, tc.reason)
		})
	}
}

// The far end knows the secrets: it may put them anywhere into its answer.
func TestHeadersNeverComeOut(t *testing.T) {
	secrets := []string{canary, "b4s1c-p4ssw0rd"}
	headers := "Authorization: Bearer " + canary + "\nCookie: sid=" + secrets[1] + "; lang=en\n"
	line := canary + " " + secrets[1] + "\n"
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		}
	}
	closed := "http://127.0.0.1:1/"
	for _, tc := range []struct {
		name string
		h    http.HandlerFunc
	}{
		{"a status", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"message":"%s %s is not good"}`, r.Header.Get("Authorization"), r.Header.Get("Cookie"))
		}},
		{"a text", body([]byte(line))},
		{"a JSON error", body([]byte(`{"error":"` + strings.TrimSpace(line) + `"}`))},
		{"a relay list that is none", body([]byte(`{"wireguard":{"relays":"` + canary + `"}}`))},
		{"a broken answer", raw("GARBAGE " + line + "\r\n\r\n")},
		{"a redirect", redirect(closed + canary + "?" + canary)},
		{"a redirect that does not parse", redirect("http://b%zz/" + canary)},
		{"a link", body([]byte(canary + ".conf\nhttp://" + canary + ".invalid/" + canary + ".conf\n"))},
		{"a profile", body([]byte("# " + canary + "\n[Interface]\n" + canary + " = " + secrets[1] + "\n"))},
		{"a good profile", body([]byte("# " + canary + "\n" + conf(1) + "# " + secrets[1] + "\n" + conf(1)))},
		{"an archive", body(makeZip(t, member{name: canary + ".conf", body: conf(1)}, member{name: "x/" + canary + ".zip", body: "x"}))},
		{"a damaged archive", body(makeZip(t, member{name: canary + ".conf", body: conf(1)})[:60])},
		{"an encrypted archive", body(encrypted(makeZip(t, member{name: canary + ".conf", body: conf(1)})))},
		{"a damaged member", body([]byte(strings.Replace(string(makeTar(t, member{name: canary + ".conf", body: conf(1)})), "ustar", "ustaa", 1)))},
		{"relays", body([]byte(`{"wireguard":{"relays":[{"hostname":"` + canary + `","public_key":"` + canary + `"},{"hostname":5,"location":"` + canary + `"},
			{"hostname":"` + secrets[1] + `","ipv4_addr_in":"10.0.0.1","public_key":"` + key(16, 1) + `"}]}}`))},
	} {
		for _, kind := range []egress.SourceType{egress.SourceHTTP, egress.SourceArchive, egress.SourceMullvad} {
			t.Run(tc.name+" to "+string(kind), func(t *testing.T) {
				src := ownKey(t)
				src.Type, src.URL, src.HeadersFile = kind, serve(t, tc.h), secretFile(t, headers)
				l, err := fetchOne(t, workdir(t), src)
				said := fmt.Sprint(err, l.Failed, summary(l), l.Skipped)
				for _, e := range l.Entries {
					said += e.Path
				}
				for _, s := range append(secrets, key(8, 1)) {
					if strings.Contains(said, s) {
						t.Errorf("%s is in %s", s, said)
					}
				}
			})
		}
	}
}

// encrypted marks the first member of a zip as encrypted.
func encrypted(zip []byte) []byte {
	zip[bytes.Index(zip, []byte("PK\x01\x02"))+8] |= 1
	return zip
}

func TestHeadersGoToTheirOwnSiteOnly(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]string{}
	record := func(name string, next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			seen[name] = fmt.Sprint(r.Header.Get("Authorization"), r.Header.Get("X-Token"), r.Header.Get("Cookie"))
			mu.Unlock()
			next(w, r)
		}
	}
	away := serve(t, record("away", body(makeZip(t, member{name: "a.conf", body: conf(1)}))))
	sameHost := serve(t, record("another port", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, away, http.StatusFound) }))
	home := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			record("home", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/moved", http.StatusFound) })(w, r)
			return
		}
		record("home, moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, sameHost, http.StatusFound) })(w, r)
	})
	for _, kind := range []egress.SourceType{egress.SourceArchive, egress.SourceHTTP} {
		clear(seen)
		work := workdir(t)
		l, err := fetchOne(t, work, egress.Source{Type: kind, URL: home, HeadersFile: secretFile(t, "Authorization: a\nX-Token: b\nCookie: c=d\n")})
		check(t, work, l, err, "+ a.conf "+endpoint(1))
		want := map[string]string{"home": "abc=d", "home, moved": "abc=d", "another port": "", "away": ""}
		if d := cmp.Diff(want, seen); d != "" {
			t.Errorf("%s (-want +got):\n%s", kind, d)
		}
	}
}

func TestAFileOfHeadersThatIsNotPrivateStopsTheRequest(t *testing.T) {
	var asked atomic.Int32
	u := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	path := secretFile(t, "X-Token: "+canary)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []egress.SourceType{egress.SourceHTTP, egress.SourceArchive, egress.SourceMullvad} {
		src := ownKey(t)
		src.Type, src.URL, src.HeadersFile = kind, u, path
		work := workdir(t)
		l, err := fetchOne(t, work, src)
		checkRefused(t, work, l, err, "its mode 0644 lets others than its owner use it")
	}
	if asked.Load() != 0 {
		t.Errorf("the site was asked %d times", asked.Load())
	}
}

// With a dialer of the caller's, names are its business: what it is handed is the name, and
// the system's resolver is not asked.
func TestNamesAreResolvedByTheDialerAlone(t *testing.T) {
	old := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = old })
	var lookups atomic.Int32
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		lookups.Add(1)
		return nil, errors.New("no system resolver here")
	}}
	home := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Host + r.URL.Path {
		case "list.invalid/":
			http.Redirect(w, r, "http://moved.invalid:8080/list", http.StatusFound)
		case "moved.invalid:8080/list":
			body([]byte("a.conf\nhttp://moved.invalid:8080/b.conf\n"))(w, r)
		case "zip.invalid/":
			body(makeZip(t, member{name: "a.conf", body: conf(1)}))(w, r)
		case "relays.invalid/":
			body([]byte(appList))(w, r)
		default:
			w.Header().Set("Connection", "close")
			body([]byte(conf(len(r.URL.Path))))(w, r)
		}
	})
	for _, tc := range []struct {
		kind egress.SourceType
		url  string
		want []string
	}{
		{egress.SourceArchive, "http://zip.invalid/", []string{"zip.invalid:80"}},
		{egress.SourceHTTP, "http://list.invalid/", []string{"list.invalid:80", "moved.invalid:8080", "moved.invalid:8080"}},
		{egress.SourceMullvad, "http://relays.invalid/", []string{"relays.invalid:80"}},
		{egress.SourceMullvad, "", []string{"api.mullvad.net:443"}},
	} {
		var mu sync.Mutex
		var asked []string
		opts := Options{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			asked = append(asked, addr)
			mu.Unlock()
			if strings.HasSuffix(addr, ":443") {
				return nil, errors.New("enough is known")
			}
			return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(home, "http://"))
		}}
		src := ownKey(t)
		src.Name, src.Type, src.URL, src.Timeout = "hmn", tc.kind, tc.url, 10*time.Second
		l, err := Fetch(t.Context(), []egress.Source{src}, workdir(t), opts)
		if (err != nil) != (tc.url == "") {
			t.Errorf("%s %s: %v %v", tc.kind, tc.url, err, summary(l))
		}
		// A connection may be dialled while another becomes free: one dial more is no fault.
		mu.Lock()
		got := slices.Clone(asked)
		mu.Unlock()
		if d := cmp.Diff(slices.Compact(slices.Clone(tc.want)), slices.Compact(got)); d != "" {
			t.Errorf("%s: asked of the dialer (-want +got):\n%s", tc.kind, d)
		}
	}
	if lookups.Load() != 0 {
		t.Errorf("the system's resolver was asked %d times", lookups.Load())
	}
	// The same without a dialer does ask it: the test can fail.
	src := egress.Source{Name: "hmn", Type: egress.SourceHTTP, URL: "http://list.invalid/"}
	if _, err := Fetch(t.Context(), []egress.Source{src}, workdir(t), Options{}); err == nil || lookups.Load() == 0 {
		t.Errorf("want a failed lookup, got %v after %d", err, lookups.Load())
	}
}
