package knock

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/edge"
)

// village is a craft in this process with the record of what it saw.
type village struct {
	*listening
	mu     sync.Mutex
	events []string
}

func settle(t *testing.T, s craft) *village {
	t.Helper()
	v := &village{}
	s.seen = func(e string) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.events = append(v.events, e)
	}
	v.listening = listen(t, s.serve)
	return v
}

func (v *village) saw() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.events...)
}

func TestStatusPing(t *testing.T) {
	miss := func(reason string) edge.Answer {
		return edge.Answer{Outcome: edge.Miss, Answers: true, Reason: reason}
	}
	tests := map[string]struct {
		craft craft
		probe edge.Probe
		want  edge.Answer
		seen  []string // PORT is the server's
	}{
		"a whole exchange": {
			want: good(), seen: []string{"handshake -1 127.0.0.1 PORT 1", "ping"},
		},
		"under a name": {
			probe: edge.Probe{ServerName: "play.example.org"},
			want:  good(), seen: []string{"handshake -1 play.example.org PORT 1", "ping"},
		},
		"behind a proxy": {
			craft: craft{proxy: true}, probe: edge.Probe{ProxyV2: true},
			want: good(), seen: []string{"proxy local", "handshake -1 127.0.0.1 PORT 1", "ping"},
		},
		"the ping is not answered": {
			craft: craft{noPong: true},
			want:  good(), seen: []string{"handshake -1 127.0.0.1 PORT 1", "ping"},
		},
		"a status with a picture": {
			craft: craft{status: `{"favicon":"` + strings.Repeat("A", 120_000) + `","version":{"protocol":4}}`},
			want:  good(), seen: []string{"handshake -1 127.0.0.1 PORT 1", "ping"},
		},
		"a status without a version": {
			craft: craft{status: `{}`},
			want:  good(), seen: []string{"handshake -1 127.0.0.1 PORT 1", "ping"},
		},
		"no JSON":            {craft: craft{status: "hello"}, want: miss("does not speak Minecraft: the status is no JSON object")},
		"null":               {craft: craft{status: "null"}, want: miss("does not speak Minecraft: the status is no JSON object")},
		"a list":             {craft: craft{status: "[1]"}, want: miss("does not speak Minecraft: the status is no JSON object")},
		"no UTF-8":           {craft: craft{status: "\xff"}, want: miss("does not speak Minecraft: a text is not UTF-8")},
		"another packet":     {craft: craft{reply: framed(7, nil)}, want: miss("does not speak Minecraft: packet 7 instead of a status")},
		"a text beyond it":   {craft: craft{reply: framed(0, []byte{200, 1})}, want: miss("does not speak Minecraft: a packet is cut short")},
		"an empty packet":    {craft: craft{reply: []byte{0}}, want: miss("does not speak Minecraft: a packet of 0 bytes")},
		"a giant packet":     {craft: craft{reply: []byte{0xff, 0xff, 0x7f}}, want: miss("does not speak Minecraft: a packet of 2097151 bytes")},
		"a length too long":  {craft: craft{reply: []byte{0xff, 0xff, 0xff, 0x01}}, want: miss("does not speak Minecraft: a number is too long")},
		"a web server":       {craft: craft{reply: []byte("HTTP/1.1 400 Bad Request\r\n" + strings.Repeat("x", 100))}, want: miss("does not speak Minecraft: packet 84 instead of a status")},
		"a status cut short": {craft: craft{reply: []byte{100, 0, 80, '{'}}, probe: edge.Probe{Cap: 150 * time.Millisecond}, want: miss("no whole answer within 150ms")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			v := settle(t, tt.craft)
			tt.probe.Type = edge.ProbeStatusPing
			check(t, steady(t, func() edge.Answer { return New(time.Now).Probe(t.Context(), target(v.addr, tt.probe)) }), tt.want)
			if tt.seen == nil {
				return
			}
			for _, err := range v.ended(t, 1) {
				if err != nil {
					t.Errorf("for the server it ended by %v", err)
				}
			}
			for i := range tt.seen {
				tt.seen[i] = strings.ReplaceAll(tt.seen[i], "PORT", fmt.Sprint(v.addr.Port()))
			}
			if diff := cmp.Diff(tt.seen, v.saw()); diff != "" {
				t.Errorf("what the server saw (-want +got):\n%s", diff)
			}
		})
	}
}

// Without its header a server of the PROXY protocol counts an error: the test of the
// header can fail.
func TestProxyHeaderIsNeeded(t *testing.T) {
	for _, with := range []bool{true, false} {
		t.Run(fmt.Sprint(with), func(t *testing.T) {
			v := settle(t, craft{proxy: true})
			got := New(time.Now).Probe(t.Context(), target(v.addr, edge.Probe{Type: edge.ProbeStatusPing, ProxyV2: with}))
			if ends := v.ended(t, 1); (ends[0] == nil) != with || (got.Outcome == edge.Good) != with || got.Outcome == edge.Miss {
				t.Errorf("answer %+v, for the server %v", got, ends)
			}
		})
	}
}

func disconnect(v any) func(int64, []byte) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return func(int64, []byte) []byte { return framed(0, length(string(b))) }
}

func TestLogin(t *testing.T) {
	taken := func(id byte) func(int64, []byte) []byte {
		return func(int64, []byte) []byte { return framed(id, []byte{1, 2, 3}) }
	}
	refused := func(reason string) edge.Answer {
		a := good()
		a.Accepts, a.Reason = false, reason
		return a
	}
	tests := map[string]struct {
		login func(int64, []byte) []byte
		cap   time.Duration
		want  edge.Answer
	}{
		"encryption is wanted":       {login: taken(1), want: good()},
		"in at once":                 {login: taken(2), want: good()},
		"compression first":          {login: taken(3), want: good()},
		"a plugin asks":              {login: taken(4), want: good()},
		"refused, with a plain text": {login: disconnect("You are not whitelisted"), want: refused("login refused: You are not whitelisted")},
		"refused, in parts": {
			login: disconnect(map[string]any{"text": "Unable to verify\n", "extra": []any{"player ", map[string]any{"text": "details"}}}),
			want:  refused("login refused: Unable to verify player details"),
		},
		"refused, by a name":      {login: disconnect(map[string]any{"translate": "multiplayer.disconnect.server_full"}), want: refused("login refused: multiplayer.disconnect.server_full")},
		"asked too often":         {login: disconnect("Connection throttled! Please wait before reconnecting."), want: good()},
		"asked too often, a name": {login: disconnect(map[string]any{"translate": "velocity.error.logging-in-too-fast"}), want: good()},
		"closed without a word":   {login: func(int64, []byte) []byte { return nil }, want: good()},
		"a packet of nobody":      {login: taken(0x55), want: refused("login answered by packet 85")},
		"no answer":               {cap: 150 * time.Millisecond, want: refused("login: no answer within 150ms")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			v := settle(t, craft{login: tt.login})
			tgt := target(v.addr, edge.Probe{Type: edge.ProbeStatusPing, Login: true, Cap: tt.cap})
			var got edge.Answer
			for range 20 { // a machine that is late takes no answer for a refusal
				if got = New(time.Now).Probe(t.Context(), tgt); tt.cap == 0 || !got.Accepts {
					break
				}
			}
			check(t, got, tt.want)
		})
	}
}

// A server that limits logins is asked once; between two logins the last word counts.
func TestLoginsAreRare(t *testing.T) {
	v := settle(t, craft{login: disconnect("Internal error")})
	p := New(time.Now)
	tgt := target(v.addr, edge.Probe{Type: edge.ProbeStatusPing, Login: true})
	for range 5 {
		if a := p.Probe(t.Context(), tgt); a.Outcome != edge.Good || a.Accepts {
			t.Fatalf("answer %+v", a)
		}
	}
	n := 0
	for _, e := range v.saw() {
		if e == "login" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d logins within five probes", n)
	}
	other := tgt
	other.Key = "front/b/4/2"
	p.Probe(t.Context(), other)
	if got := v.saw(); got[len(got)-1] != "login" {
		t.Errorf("another key was not asked for itself: %v", got)
	}
}

func TestLoginFitsTheVersion(t *testing.T) {
	const name = "\x0bshunt_probe"
	id := strings.Repeat("\x00", 16)
	for version, want := range map[int64]string{
		767: name + id, 764: name + id, 763: name + "\x00", 761: name + "\x00", 760: name + "\x00\x00", 759: name + "\x00", 758: name, 47: name,
	} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			var got string
			v := settle(t, craft{
				status: fmt.Sprintf(`{"version":{"protocol":%d}}`, version),
				login: func(v int64, start []byte) []byte {
					if v != version {
						t.Errorf("handshake of version %d", v)
					}
					got = string(start[1:])
					return framed(2, nil)
				},
			})
			check(t, New(time.Now).Probe(t.Context(), target(v.addr, edge.Probe{Type: edge.ProbeStatusPing, Login: true})), good())
			v.ended(t, 2)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("login (-want +got):\n%s", diff)
			}
		})
	}
}

// A server that closes the fourth connection within 4 s of one address is not dead for it,
// and a player from elsewhere comes in.
func TestServerThatLimitsConnections(t *testing.T) {
	var mu sync.Mutex
	recent := map[string][]time.Time{}
	now := time.Now()
	inner := &craft{login: func(int64, []byte) []byte { return framed(1, nil) }}
	s := listen(t, func(c net.Conn) error {
		from := c.RemoteAddr().(*net.TCPAddr).IP.String()
		mu.Lock()
		var live []time.Time
		for _, at := range recent[from] {
			if now.Sub(at) < 4*time.Second {
				live = append(live, at)
			}
		}
		full := len(live) >= 3
		recent[from] = append(live, now)
		mu.Unlock()
		if full {
			return nil
		}
		return inner.serve(c)
	})
	p := New(time.Now)
	outcomes := map[edge.Outcome]int{}
	for i := range 30 {
		mu.Lock()
		now = now.Add(time.Duration(i%3) * time.Second)
		mu.Unlock()
		a := p.Probe(t.Context(), target(s.addr, edge.Probe{Type: edge.ProbeStatusPing, Login: true}))
		outcomes[a.Outcome]++
		if a.Outcome == edge.Miss || !a.Answers || a.Outcome == edge.Good && !a.Accepts {
			t.Errorf("probe %d: %+v", i, a)
		}
	}
	if outcomes[edge.Good] == 0 || outcomes[edge.OutcomeUnknown] == 0 {
		t.Errorf("outcomes %v: the server limited nobody, or everybody", outcomes)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: patient}
	c, err := d.DialContext(t.Context(), "tcp", s.addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patient)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(append(handshake(767, "play", 25565, 2), loginStart(767, "player")...)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 16)); n == 0 {
		t.Errorf("a player from elsewhere got no answer: %v", err)
	}
}
