package knock

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

// facts are what an answer says, without its times.
func facts(t *testing.T, a edge.Answer) edge.Answer {
	t.Helper()
	if a.At == 0 {
		t.Error("the answer has no time")
	}
	if a.RTT < 0 || a.RTT > time.Minute {
		t.Errorf("an answer took %v", a.RTT)
	}
	a.At, a.RTT, a.Key = 0, 0, ""
	return a
}

func check(t *testing.T, got, want edge.Answer) {
	t.Helper()
	if diff := cmp.Diff(want, facts(t, got), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func good() edge.Answer {
	return edge.Answer{Outcome: edge.Good, Answers: true, Speaks: true, Accepts: true}
}

func TestTCP(t *testing.T) {
	tests := map[string]struct {
		addr func(*testing.T) netip.AddrPort
		cap  time.Duration
		want edge.Answer
	}{
		"a server that waits for us": {
			addr: func(t *testing.T) netip.AddrPort { return listen(t, untilEnd).addr },
			want: good(),
		},
		"over IPv6": {
			addr: func(t *testing.T) netip.AddrPort { return listenOn(t, "[::1]:0", untilEnd).addr },
			want: good(),
		},
		"an IPv4 address in IPv6's clothes": {
			addr: func(t *testing.T) netip.AddrPort {
				a := listen(t, untilEnd).addr
				return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
			},
			want: good(),
		},
		"a server that ends the connection at once has answered": {
			addr: func(t *testing.T) netip.AddrPort { return listen(t, func(net.Conn) error { return nil }).addr },
			want: good(),
		},
		"nobody listens": {
			addr: func(t *testing.T) netip.AddrPort { return closedPort(t) },
			want: edge.Answer{Outcome: edge.Miss, Refused: true, Reason: "connection refused"},
		},
		"no packet is answered": {
			addr: func(t *testing.T) netip.AddrPort { return deafPort(t) },
			cap:  200 * time.Millisecond,
			want: edge.Answer{Outcome: edge.Miss, Reason: "no connection within 200ms"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := New(time.Now)
			tgt := target(tt.addr(t), edge.Probe{Type: edge.ProbeTCP, Cap: tt.cap})
			check(t, steady(t, func() edge.Answer { return p.Probe(t.Context(), tgt) }), tt.want)
		})
	}
}

// steady asks again while this machine is too late to judge, which is not what a test of
// the judgement is about.
func steady(t *testing.T, ask func() edge.Answer) edge.Answer {
	t.Helper()
	for range 20 {
		if a := ask(); a.Outcome != edge.OutcomeUnknown || !strings.HasPrefix(a.Reason, "asked too late") {
			return a
		}
	}
	t.Fatal("this machine was late 20 times in a row")
	return edge.Answer{}
}

func TestAnswersOfTheKernelHere(t *testing.T) {
	tests := map[string]struct {
		err  error
		want edge.Answer
	}{
		"no descriptor is left":      {&localError{"socket", unix.EMFILE}, edge.Answer{Reason: "socket: too many open files"}},
		"no route here":              {&localError{"connect", unix.ENETUNREACH}, edge.Answer{Reason: "connect: network is unreachable"}},
		"a router knows no way":      {unix.ENETUNREACH, edge.Answer{Outcome: edge.Miss, Reason: "network is unreachable"}},
		"the neighbour is silent":    {unix.EHOSTUNREACH, edge.Answer{Outcome: edge.Miss, Reason: "no route to host"}},
		"reset while connecting":     {unix.ECONNRESET, edge.Answer{Reason: "reset while connecting"}},
		"refused is the host's word": {fmt.Errorf("x: %w", unix.ECONNREFUSED), edge.Answer{Outcome: edge.Miss, Refused: true, Reason: "connection refused"}},
		"anything else is unknown":   {errors.New("odd\nthing"), edge.Answer{Reason: "odd thing"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			k := newKnocking(edge.ProbeTarget{})
			k.connectFailed(t.Context(), tt.err)
			if diff := cmp.Diff(tt.want, k.a); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoDescriptorIsOurOwnFault(t *testing.T) {
	s := listen(t, untilEnd)
	p := start(t, "KNOCK_TEST=prober", "KNOCK_FILES=1")
	got := p.probe(t, target(s.addr, edge.Probe{Type: edge.ProbeTCP}))
	check(t, got, edge.Answer{Reason: "socket: too many open files"})
}

func TestNoneIsAlwaysGood(t *testing.T) {
	check(t, New(time.Now).Probe(t.Context(), target(netip.AddrPort{}, edge.Probe{Type: edge.ProbeNone})), good())
}

func TestUnknownTypesSayNothing(t *testing.T) {
	for _, typ := range []edge.ProbeType{edge.ProbeUnknown, "smoke"} {
		check(t, New(time.Now).Probe(t.Context(), target(netip.AddrPort{}, edge.Probe{Type: typ})), edge.Answer{Reason: "no such probe type"})
	}
}

func TestContextThatEndsEarlySaysNothing(t *testing.T) {
	hung := listen(t, untilEnd)
	for _, typ := range []edge.ProbeType{edge.ProbeTLS, edge.ProbeHTTP, edge.ProbeStatusPing} {
		t.Run(string(typ), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			got := New(time.Now).Probe(ctx, target(hung.addr, edge.Probe{Type: typ, Cap: time.Minute}))
			check(t, got, edge.Answer{Answers: true, Reason: "given up early: context deadline exceeded"})
			got = New(time.Now).Probe(ctx, target(hung.addr, edge.Probe{Type: typ, Cap: time.Minute}))
			check(t, got, edge.Answer{Reason: "given up early: context deadline exceeded"})
		})
	}
}

// A server that accepts and hangs is alive for TCP and for nobody else.
func TestServerThatStandsStill(t *testing.T) {
	p, addr := server(t, "http")
	p.stop(t)
	for _, typ := range []edge.ProbeType{edge.ProbeTLS, edge.ProbeHTTP, edge.ProbeStatusPing} {
		t.Run(string(typ), func(t *testing.T) {
			got := steady(t, func() edge.Answer {
				return New(time.Now).Probe(t.Context(), target(addr, edge.Probe{Type: typ, Cap: 150 * time.Millisecond}))
			})
			check(t, got, edge.Answer{Outcome: edge.Miss, Answers: true, Reason: "no answer within 150ms"})
		})
	}
	t.Run("tcp", func(t *testing.T) {
		check(t, New(time.Now).Probe(t.Context(), target(addr, edge.Probe{Type: edge.ProbeTCP})), good())
	})
	t.Run("awake again", func(t *testing.T) {
		p.signal(t, syscall.SIGCONT)
		check(t, New(time.Now).Probe(t.Context(), target(addr, edge.Probe{Type: edge.ProbeHTTP})), good())
	})
}

// A cap of 20 ms is kept: the silence is over soon after it.
func TestShortCap(t *testing.T) {
	hung := listen(t, untilEnd)
	began := time.Now()
	got := steady(t, func() edge.Answer {
		began = time.Now()
		return New(time.Now).Probe(t.Context(), target(hung.addr, edge.Probe{Type: edge.ProbeStatusPing, Cap: 20 * time.Millisecond}))
	})
	check(t, got, edge.Answer{Outcome: edge.Miss, Answers: true, Reason: "no answer within 20ms"})
	if took := time.Since(began); took < 20*time.Millisecond || took > 2*time.Second {
		t.Errorf("a probe with a cap of 20 ms took %v", took)
	}
}

// probe has another process ask, and waits for its answer.
func (p *process) probe(tb testing.TB, t edge.ProbeTarget) edge.Answer {
	tb.Helper()
	p.begin(tb, t)
	return p.answer(tb)
}

func (p *process) begin(tb testing.TB, t edge.ProbeTarget) {
	tb.Helper()
	if err := json.NewEncoder(p.in).Encode(t); err != nil {
		tb.Fatal(err)
	}
	if s := p.line(tb); s != "asking" {
		tb.Fatalf("the other process said %q", s)
	}
}

func (p *process) answer(tb testing.TB) edge.Answer {
	tb.Helper()
	var a edge.Answer
	if err := json.Unmarshal([]byte(p.line(tb)), &a); err != nil {
		tb.Fatal(err)
	}
	return a
}

// A prober that did not run while it waited does not blame the server.
func TestProberThatStandsStill(t *testing.T) {
	hung := listen(t, untilEnd)
	_, slow := server(t, "slow")
	const limit = 300 * time.Millisecond
	tests := map[string]struct {
		probe edge.Probe
		addr  netip.AddrPort
		rest  time.Duration // how long it stands still
		want  string        // beginning of the reason
	}{
		"beyond the cap, before a silent server":   {edge.Probe{Type: edge.ProbeTLS}, hung.addr, 2 * limit, "asked too late"},
		"beyond the cap, no connection":            {edge.Probe{Type: edge.ProbeTCP}, deafPort(t), 2 * limit, "asked too late"},
		"for half of the cap":                      {edge.Probe{Type: edge.ProbeStatusPing}, hung.addr, limit / 2, "asked too late"},
		"while a command runs":                     {edge.Probe{Type: edge.ProbeExec, Command: []string{"sleep", "60"}}, hung.addr, 2 * limit, "asked too late"},
		"the answer lies there when it comes back": {edge.Probe{Type: edge.ProbeHTTP}, slow, 2 * limit, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := start(t, "KNOCK_TEST=prober")
			tt.probe.Cap = limit
			p.begin(t, target(tt.addr, tt.probe))
			<-time.After(20 * time.Millisecond) // it may have begun or not: either way the verdict is the same
			p.stop(t)
			<-time.After(tt.rest)
			p.signal(t, syscall.SIGCONT)
			got := p.answer(t)
			if got.Outcome == edge.Miss || !strings.HasPrefix(got.Reason, tt.want) {
				t.Errorf("answer %+v of a prober that stood still", got)
			}
			// The same prober, when nothing stops it, blames who is silent.
			if tt.addr == slow {
				return
			}
			again := steady(t, func() edge.Answer { return p.probe(t, target(tt.addr, tt.probe)) })
			if again.Outcome != edge.Miss {
				t.Errorf("answer %+v of a prober that ran", again)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.Config.ErrorLog = quiet(t)
	web.StartTLS()
	t.Cleanup(web.Close)
	addr := netip.MustParseAddrPort(web.Listener.Addr().String())
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS12}
	old.StartTLS()
	t.Cleanup(old.Close)
	picky := httptest.NewUnstartedServer(http.NotFoundHandler())
	picky.TLS = &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if h.ServerName != "play.example.org" {
			return nil, errors.New("no such name")
		}
		return nil, nil
	}}
	picky.Config.ErrorLog = quiet(t)
	picky.StartTLS()
	t.Cleanup(picky.Close)
	pickyAddr := netip.MustParseAddrPort(picky.Listener.Addr().String())

	tests := map[string]struct {
		addr  netip.AddrPort
		probe edge.Probe
		want  edge.Answer
	}{
		"any certificate will do":        {addr, edge.Probe{}, good()},
		"an older version too":           {netip.MustParseAddrPort(old.Listener.Addr().String()), edge.Probe{}, good()},
		"the name is asked for":          {pickyAddr, edge.Probe{ServerName: "play.example.org"}, good()},
		"an alert is spoken, and a miss": {pickyAddr, edge.Probe{}, edge.Answer{Outcome: edge.Miss, Answers: true, Speaks: true, Reason: "refused the handshake: tls: internal error"}},
		"a certificate of nobody": {addr, edge.Probe{Verify: true}, edge.Answer{
			Outcome: edge.Miss, Answers: true, Speaks: true, Reason: "certificate: x509: certificate signed by unknown authority",
		}},
		"another protocol": {
			listen(t, func(c net.Conn) error { _, _ = fmt.Fprint(c, "220 mail.example.org\r\n"); return untilEnd(c) }).addr,
			edge.Probe{},
			edge.Answer{Outcome: edge.Miss, Answers: true, Reason: "does not speak TLS"},
		},
		"closed at accept": {
			listen(t, func(net.Conn) error { return nil }).addr,
			edge.Probe{},
			edge.Answer{Answers: true, Reason: "closed before an answer"},
		},
		"closed in the middle": {
			listen(t, func(c net.Conn) error {
				_, _ = c.Read(make([]byte, 4096))
				_, err := c.Write([]byte{22, 3, 3})
				return err
			}).addr,
			edge.Probe{},
			edge.Answer{Outcome: edge.Miss, Answers: true, Reason: "closed in the middle of an answer"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.probe.Type = edge.ProbeTLS
			check(t, New(time.Now).Probe(t.Context(), target(tt.addr, tt.probe)), tt.want)
		})
	}
}

// Whoever we leave sees the end of a connection, not a reset, also when it was still
// talking: a reset is what servers log.
func TestEveryProbeEndsPolitely(t *testing.T) {
	web := func(c net.Conn) error {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
		_, _ = io.WriteString(c, "some text")
		return untilEnd(c)
	}
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	conf := cert.TLS.Clone()
	cert.Close()
	secure := func(c net.Conn) error {
		s := tls.Server(c, conf) // it sends tickets after the handshake, which nobody reads
		if err := s.Handshake(); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, s)
		return err
	}
	craftsman := func(s craft) func(net.Conn) error { return func(c net.Conn) error { return s.serve(c) } }
	tests := map[string]struct {
		serve func(net.Conn) error
		probe edge.Probe
		conns int
	}{
		"tcp":                {untilEnd, edge.Probe{Type: edge.ProbeTCP}, 1},
		"tcp, with a banner": {func(c net.Conn) error { _, _ = io.WriteString(c, "SSH-2.0-x\r\n"); return untilEnd(c) }, edge.Probe{Type: edge.ProbeTCP}, 1},
		"tls":                {secure, edge.Probe{Type: edge.ProbeTLS}, 1},
		"http":               {web, edge.Probe{Type: edge.ProbeHTTP}, 1},
		"http, not wanted":   {web, edge.Probe{Type: edge.ProbeHTTP, Status: []string{"404"}}, 1},
		"status_ping":        {craftsman(craft{}), edge.Probe{Type: edge.ProbeStatusPing}, 1},
		"login": {
			craftsman(craft{login: func(int64, []byte) []byte { return framed(1, []byte{0, 1, 0, 1, 0}) }}),
			edge.Probe{Type: edge.ProbeStatusPing, Login: true},
			2,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := listen(t, tt.serve)
			New(time.Now).Probe(t.Context(), target(s.addr, tt.probe))
			for _, err := range s.ended(t, tt.conns) {
				if err != nil {
					t.Errorf("for the server it ended by %v", err)
				}
			}
		})
	}
}
