package story_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
)

// site is a provider's web site on the router's own loopback; what it answers can be changed.
type site struct {
	url    string
	answer atomic.Pointer[http.HandlerFunc]
	asked  atomic.Int32
}

func (p place) site() *site {
	p.t.Helper()
	s := &site{}
	var l net.Listener
	err := p.Router.Do(func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		(*s.answer.Load())(w, r)
	})}
	go func() { _ = srv.Serve(l) }()
	p.t.Cleanup(func() { _ = srv.Close() })
	s.url = "http://" + l.Addr().String() + "/list.zip"
	return s
}

func (s *site) says(code int, kind string, body []byte) {
	f := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(code)
		_, _ = w.Write(body)
	})
	s.answer.Store(&f)
}

func archive(t *testing.T, list []*server.Endpoint) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, x := range list {
		f, err := z.Create(x.File())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(x.Profile()); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// everything is each file of a folder with its content, mode, time and, of a link, where it leads.
func (p place) everything(dir string) map[string]string {
	p.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		fi, err := os.Lstat(path)
		if err != nil {
			return err
		}
		what := ""
		if fi.Mode()&fs.ModeSymlink != 0 {
			what, err = os.Readlink(path)
		} else {
			var b []byte
			b, err = os.ReadFile(path)
			what = fmt.Sprintf("%x", sha256.Sum256(b))
		}
		out[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%s %s %s", fi.Mode(), fi.ModTime(), what)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// Whatever a site answers in place of its list, the pools stay as they are to the last byte,
// the run says so by its exit code and why, and no lane and no mode changes.
func TestABadAnswerLeavesThePoolsAsTheyAre(t *testing.T) {
	if !isInside(t) {
		return
	}
	p := build(t, lab.WorldOptions{Lanes: 2, Endpoints: 10})
	p.tell()
	s := p.site()
	source := map[string]any{"name": "site", "type": "archive", "url": s.url, "timeout": "2s"}
	if err := p.Configure(lab.Settings{"egress.sources": []any{source}, "egress.recovery.on_refresh": false}); err != nil {
		t.Fatal(err)
	}
	all := archive(t, p.Endpoints())
	s.says(200, "application/zip", all)
	for _, c := range []string{"refresh", "rebalance", "repair"} {
		if r := p.shunt("egress", c); r.Code != 0 {
			t.Fatal(r.Err())
		}
	}
	pools := filepath.Join(p.State, "pools")
	before, first, second := p.everything(pools), p.carries(one), p.carries("egress2")
	page := []byte("<!DOCTYPE html><html><body>Please log in</body></html>")
	cut := append(append([]byte(nil), all[:len(all)-len(all)/3]...), make([]byte, len(all)/3)...)
	for _, c := range []struct {
		name, kind string
		code       int
		body       []byte
		reason     string
	}{
		{"four of ten", "application/zip", 200, archive(t, p.Endpoints()[:4]), "list_too_small"},
		{"none", "application/zip", 200, archive(t, nil), "no_list"},
		{"a list without its last third", "application/zip", 200, all[:len(all)-len(all)/3], "no_list"},
		{"a list whose end is zeros", "application/zip", 200, cut, "no_list"},
		{"a page", "text/html", 200, page, "HTML"},
		{"a page that says it is a list", "application/zip", 200, page, "HTML"},
		{"nothing", "application/zip", 200, nil, "empty"},
		{"an error", "text/plain", 503, []byte("come back later"), "503"},
		{"an error with the list", "application/zip", 500, all, "500"},
	} {
		was := s.asked.Load()
		s.says(c.code, c.kind, c.body)
		r := p.Shunt(t.Context(), "egress", "refresh")
		if said := string(r.Stdout) + string(r.Stderr); r.Code != 4 || !strings.Contains(said, c.reason) {
			t.Errorf("%s: exit code %d, want 4 and %q: %s", c.name, r.Code, c.reason, said)
		}
		if s.asked.Load() == was {
			t.Errorf("%s: the site was not asked", c.name)
		}
		if d := cmp.Diff(before, p.everything(pools)); d != "" {
			t.Errorf("%s: the pools changed (-before +after):\n%s", c.name, d)
		}
		p.shunt("egress", "rebalance")
		p.shunt("egress", "repair")
		if p.carries(one) != first || p.carries("egress2") != second {
			t.Errorf("%s: a lane changed", c.name)
		}
		kv, err := os.ReadFile(filepath.Join(p.State, "state.kv"))
		if err != nil || !strings.Contains(string(kv), "last_refresh_rc=4\n") || !strings.Contains(string(kv), "mode=normal\n") {
			t.Errorf("%s: state.kv: %s %v", c.name, kv, err)
		}
	}
	// The operator's word takes the small one; and a whole one changes the pools again.
	s.says(200, "application/zip", archive(t, p.Endpoints()[:4]))
	p.shunt("egress", "refresh", "--accept-small")
	if p.strictRank(p.Endpoints()[0]) == 0 || p.strictRank(p.Endpoints()[9]) != 0 {
		t.Error("the small list was not taken, by --accept-small")
	}
	s.says(200, "application/zip", all)
	p.shunt("egress", "refresh")
	if p.strictRank(p.Endpoints()[9]) == 0 {
		t.Error("a whole list was not taken")
	}
}
