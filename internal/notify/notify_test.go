package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/edge"
)

// post is one request that a site got.
type post struct {
	Method, Path, Host string
	Header             http.Header
	Body               string
}

// site is a web site that records what it gets.
type site struct {
	*httptest.Server
	mu    sync.Mutex
	posts []post
}

func serveSite(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *site {
	t.Helper()
	s := &site{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading a post: %v", err)
		}
		s.mu.Lock()
		s.posts = append(s.posts, post{r.Method, r.URL.Path, r.Host, r.Header.Clone(), string(b)})
		n := len(s.posts)
		s.mu.Unlock()
		if answer != nil {
			answer(n, w, r)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *site) got() []post {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]post(nil), s.posts...)
}

// texts are the texts of the alerts that a site got, with what came of others.
func (s *site) texts(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, p := range s.got() {
		var m message
		if err := json.Unmarshal([]byte(p.Body), &m); err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s muted=%d dropped=%d", m.Text, m.Muted, m.Dropped))
	}
	return out
}

// hasty makes a notifier that does not pause between attempts.
func hasty(c edge.AlertsConfig, now func() time.Time) *Notifier {
	n := New(c, now)
	for _, t := range n.targets {
		t.pauses = [attempts - 1]time.Duration{time.Millisecond, time.Millisecond}
	}
	return n
}

// clock is set by hand.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func closed(t *testing.T, n *Notifier) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return n.Close(ctx)
}

func secretFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func move() edge.Alert {
	return edge.Alert{
		Kind: "edge.move", Object: "front", Level: "warning", Text: "front leads to proxy-02",
		Figures: map[string]float64{"commit": 2.5, "reached": 3}, At: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC),
	}
}

func TestWebhook(t *testing.T) {
	s := serveSite(t, nil)
	n := New(edge.AlertsConfig{Targets: []edge.AlertTarget{{
		Name: "site", Type: edge.AlertWebhook, URLFile: secretFile(t, s.URL+"/hook\nnot this\n"),
		HeadersFile: secretFile(t, "# ours\n\nAuthorization: Bearer s3cret:x\r\nx-team: edge\nHost: hooks.example\n"),
	}}}, newClock().now)
	n.Alert(move())
	if err := closed(t, n); err != nil {
		t.Fatal(err)
	}
	got := s.got()
	for i := range got {
		for _, h := range []string{"Accept-Encoding", "Content-Length", "Connection"} {
			got[i].Header.Del(h)
		}
	}
	want := []post{{
		"POST", "/hook", "hooks.example",
		http.Header{
			"Authorization": {"Bearer s3cret:x"}, "X-Team": {"edge"}, "Content-Type": {"application/json"}, "User-Agent": {"shunt"},
		},
		`{"kind":"edge.move","object":"front","level":"warning","text":"front leads to proxy-02","figures":{"commit":2.5,"reached":3},"at":"2026-12-01T12:00:00Z"}` + "\n",
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("posts (-want +got):\n%s", diff)
	}
}

func TestCommand(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	n := New(edge.AlertsConfig{Targets: []edge.AlertTarget{
		{Name: "pager", Type: edge.AlertCommand, Command: []string{"/bin/sh", "-c", "cat >>" + out}},
	}}, newClock().now)
	a := move()
	a.Level, a.At, a.Figures = "", time.Time{}, map[string]float64{"nan": math.NaN(), "inf": math.Inf(1), "ms": 1}
	n.Alert(a)
	a.Figures["ms"] = 2 // the caller's map is the caller's
	if err := closed(t, n); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kind":"edge.move","object":"front","level":"info","text":"front leads to proxy-02","figures":{"ms":1},"at":"2026-12-01T12:00:00Z"}` + "\n"
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
}

func TestService(t *testing.T) {
	s := serveSite(t, func(_ int, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
	host := strings.TrimPrefix(s.URL, "http://")
	n := New(edge.AlertsConfig{Targets: []edge.AlertTarget{
		{Name: "phone", Type: edge.AlertService, URL: "ntfy://user:pass@" + host + "/our-edge?scheme=http"},
	}}, newClock().now)
	n.Alert(move())
	if err := closed(t, n); err != nil {
		t.Fatal(err)
	}
	got := s.got()
	if len(got) != 1 || got[0].Path != "/our-edge" || got[0].Header.Get("Authorization") == "" {
		t.Fatalf("posts %+v", got)
	}
	want := "shunt: warning: edge.move front: front leads to proxy-02\ncommit 2.5, reached 3"
	if diff := cmp.Diff(want, got[0].Body); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestWhoIsTold(t *testing.T) {
	tests := map[string]struct {
		events []string
		level  edge.AlertLevel
		want   string // of the kinds and levels below
	}{
		"everything":         {nil, "", "edge.move/info edge.last_resort/critical mode/warning"},
		"from warning on":    {nil, edge.LevelWarning, "edge.last_resort/critical mode/warning"},
		"critical only":      {nil, edge.LevelCritical, "edge.last_resort/critical"},
		"the edge":           {[]string{"edge.*"}, edge.LevelInfo, "edge.move/info edge.last_resort/critical"},
		"two kinds":          {[]string{"mode", "*.move"}, "", "edge.move/info mode/warning"},
		"no such kind":       {[]string{"edge"}, "", ""},
		"a pattern is wrong": {[]string{"[", "mode"}, "", "mode/warning"},
		"the edge, in need":  {[]string{"edge.*"}, edge.LevelCritical, "edge.last_resort/critical"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := serveSite(t, nil)
			n := New(edge.AlertsConfig{Targets: []edge.AlertTarget{
				{Name: "site", Type: edge.AlertWebhook, URL: s.URL, Events: tt.events, Level: tt.level},
			}}, newClock().now)
			for _, a := range []edge.Alert{{Kind: "edge.move", Level: "info"}, {Kind: "edge.last_resort", Level: "critical"}, {Kind: "mode", Level: "warning"}} {
				n.Alert(a)
			}
			if err := closed(t, n); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range s.got() {
				var m message
				if err := json.Unmarshal([]byte(p.Body), &m); err != nil {
					t.Fatal(err)
				}
				got = append(got, m.Kind+"/"+m.Level)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMinGap(t *testing.T) {
	s := serveSite(t, nil)
	c := newClock()
	n := New(edge.AlertsConfig{MinGap: 30 * time.Second, Targets: []edge.AlertTarget{{Name: "site", Type: edge.AlertWebhook, URL: s.URL}}}, c.now)
	say := func(after time.Duration, kind, object, text string) {
		c.add(after)
		n.Alert(edge.Alert{Kind: kind, Object: object, Text: text})
	}
	say(0, "edge.move", "front", "1")
	say(time.Second, "edge.move", "front", "2, too soon")
	say(0, "edge.move", "voice", "3, of another")
	say(0, "edge.parity", "front", "4, of another kind")
	say(28*time.Second, "edge.move", "front", "5, too soon")
	say(time.Second, "edge.move", "front", "6, again")
	say(time.Second, "edge.move", "front", "7, too soon")
	say(time.Second, "edge.move", "front", "8, too soon, and the last")
	say(-time.Hour, "edge.move", "voice", "9, the clock was set back")
	if err := closed(t, n); err != nil {
		t.Fatal(err)
	}
	n.Alert(edge.Alert{Kind: "mode", Text: "after the end"})
	if err := closed(t, n); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"1 muted=0 dropped=0", "3, of another muted=0 dropped=0", "4, of another kind muted=0 dropped=0",
		"6, again muted=2 dropped=0", "9, the clock was set back muted=0 dropped=0", "8, too soon, and the last muted=1 dropped=0",
	}
	if diff := cmp.Diff(want, s.texts(t)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// Whatever comes when, each alert is told or counted, and no two of one key come within
// the gap, but for the last at the end.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newClock()
		gap := time.Duration(rapid.IntRange(0, 20).Draw(rt, "gap")) * time.Second
		n := New(edge.AlertsConfig{MinGap: gap, Targets: []edge.AlertTarget{{Name: "x"}}}, c.now)
		x := n.targets[0]
		x.running = true // nobody takes from the queue
		offered, sent := map[string]int{}, map[string]int{}
		at := map[string]time.Time{}
		for range rapid.IntRange(0, queueLimit).Draw(rt, "alerts") {
			c.add(time.Duration(rapid.IntRange(0, 8).Draw(rt, "pause")) * time.Second)
			object := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "object")
			offered[object]++
			n.Alert(edge.Alert{Kind: "k", Object: object})
		}
		for _, m := range x.queue {
			if last, ok := at[m.Object]; ok && m.At.Sub(last) < gap {
				rt.Fatalf("%s twice within %v", m.Object, m.At.Sub(last))
			}
			at[m.Object] = m.At
		}
		for _, m := range append(x.queue, x.untold()...) {
			sent[m.Object] += 1 + m.Muted
		}
		if diff := cmp.Diff(offered, sent); diff != "" {
			rt.Fatalf("told or counted (-offered +told):\n%s", diff)
		}
	})
}

func TestManyKeysAreBounded(t *testing.T) {
	c := newClock()
	n := New(edge.AlertsConfig{MinGap: time.Minute, Targets: []edge.AlertTarget{{Name: "x"}}}, c.now)
	x := n.targets[0]
	x.running = true
	for i := range 5 * gatesLimit {
		n.Alert(edge.Alert{Kind: "k", Object: fmt.Sprint(i)})
		if len(x.gates) > gatesLimit || len(x.queue) > queueLimit {
			t.Fatalf("%d keys, %d in the queue", len(x.gates), len(x.queue))
		}
	}
}

// A target that hangs keeps neither the caller nor another target waiting; when its queue
// is full, what matters least goes first, and it says how many.
func TestTargetThatHangs(t *testing.T) {
	release := make(chan struct{})
	hung := serveSite(t, func(n int, _ http.ResponseWriter, r *http.Request) {
		if n == 1 {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	})
	fine := serveSite(t, nil)
	n := New(edge.AlertsConfig{Targets: []edge.AlertTarget{
		{Name: "hung", Type: edge.AlertWebhook, URL: hung.URL, Timeout: time.Minute},
		{Name: "fine", Type: edge.AlertWebhook, URL: fine.URL, Level: edge.LevelCritical},
	}}, newClock().now)
	n.Alert(edge.Alert{Kind: "mode", Text: "first"})
	poll(t, "the first to arrive", func() bool { return len(hung.got()) == 1 })
	began := time.Now()
	n.Alert(edge.Alert{Kind: "mode", Level: "critical", Text: "matters"})
	for i := range 10_000 {
		n.Alert(edge.Alert{Kind: "mode", Text: fmt.Sprint(i)})
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("10,000 alerts took the caller %v", took)
	}
	poll(t, "the other target", func() bool { return len(fine.got()) == 1 })
	close(release)
	err := closed(t, n)
	if want := "alert target hung: 9901 not delivered: its queue was full"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	got := hung.texts(t)
	if len(got) != 1+queueLimit || got[1] != "matters muted=0 dropped=9901" || got[len(got)-1] != "9999 muted=0 dropped=0" {
		t.Errorf("%d told: %q … %q", len(got), got[:3], got[len(got)-1])
	}
}

func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-limit.C:
			t.Fatalf("waited 10 s for %s", what)
		case <-tick.C:
		}
	}
}

// Close ends soon after its context, whatever the targets do.
func TestCloseIsBounded(t *testing.T) {
	hang := func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	s := serveSite(t, hang)
	host := strings.TrimPrefix(s.URL, "http://")
	n := New(edge.AlertsConfig{Targets: []edge.AlertTarget{
		{Name: "hook", Type: edge.AlertWebhook, URL: s.URL, Timeout: time.Minute},
		{Name: "program", Type: edge.AlertCommand, Command: []string{"/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"}, Timeout: time.Minute},
		{Name: "service", Type: edge.AlertService, URL: "ntfy://" + host + "/topic?scheme=http", Timeout: time.Minute},
	}}, newClock().now)
	n.Alert(edge.Alert{Kind: "mode", Text: "1"})
	n.Alert(edge.Alert{Kind: "mode", Text: "2"})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := n.Close(ctx)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("closing took %v", took)
	}
	want := `alert target hook: 2 not delivered: given up
alert target program: 2 not delivered: command /bin/sh: stopped: context canceled
alert target service: 2 not delivered: given up`
	if diff := cmp.Diff(want, fmt.Sprint(err)); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	if again := n.Close(t.Context()); !errors.Is(again, err) && again.Error() != err.Error() {
		t.Errorf("closing again: %v", again)
	}
}

func TestClosingNothing(t *testing.T) {
	for name, c := range map[string]edge.AlertsConfig{
		"no targets": {}, "nobody was told": {Targets: []edge.AlertTarget{{Name: "x", Type: edge.AlertCommand, Command: []string{"false"}}}},
	} {
		n := New(c, time.Now)
		if err := n.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManyCallers(t *testing.T) {
	s := serveSite(t, nil)
	n := New(edge.AlertsConfig{MinGap: time.Millisecond, Targets: []edge.AlertTarget{
		{Name: "a", Type: edge.AlertWebhook, URL: s.URL}, {Name: "b", Type: edge.AlertWebhook, URL: s.URL},
	}}, time.Now)
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for range 50 {
				n.Alert(edge.Alert{Kind: "k", Object: fmt.Sprint(i), Figures: map[string]float64{"x": 1}})
			}
		})
	}
	work.Go(func() { _ = closed(t, n) })
	work.Wait()
}
