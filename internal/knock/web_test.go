package knock

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

func pages(t *testing.T) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "all is well") })
	mux.HandleFunc("/sick", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no database", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/sick", http.StatusFound) })
	mux.HandleFunc("/hints", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("/host", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "host=%s query=%s agent=%s", r.Host, r.URL.RawQuery, r.UserAgent())
	})
	mux.HandleFunc("/chunks", func(w http.ResponseWriter, _ *http.Request) {
		for _, s := range []string{"all is", " well", " in parts"} {
			fmt.Fprint(w, s)
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("/far", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", bodyLimit), "all is well")
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	return mux
}

func TestHTTP(t *testing.T) {
	plain := httptest.NewServer(pages(t))
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(pages(t))
	secure.Config.ErrorLog = quiet(t)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	addr, addrTLS := netip.MustParseAddrPort(plain.Listener.Addr().String()), netip.MustParseAddrPort(secure.Listener.Addr().String())
	miss := func(reason string) edge.Answer {
		return edge.Answer{Outcome: edge.Miss, Answers: true, Speaks: true, Reason: reason}
	}
	says := func(s string) netip.AddrPort {
		return listen(t, func(c net.Conn) error {
			_, _ = c.Read(make([]byte, 4096))
			_, err := io.WriteString(c, s)
			return err
		}).addr
	}
	tests := map[string]struct {
		addr  netip.AddrPort
		probe edge.Probe
		want  edge.Answer
	}{
		"a page":                               {addr, edge.Probe{Path: "/healthz"}, good()},
		"no path is the first page":            {addr, edge.Probe{}, miss("status 404")},
		"a sick server":                        {addr, edge.Probe{Path: "/sick"}, miss("status 503")},
		"that status was wanted":               {addr, edge.Probe{Path: "/sick", Status: []string{"200", "500-599"}}, good()},
		"another one was":                      {addr, edge.Probe{Path: "/healthz", Status: []string{"204"}}, miss("status 200")},
		"a redirect is good, and not followed": {addr, edge.Probe{Path: "/moved"}, good()},
		"hints before the answer":              {addr, edge.Probe{Path: "/hints", Status: []string{"204"}}, good()},
		"a body without end":                   {addr, edge.Probe{Path: "/endless"}, good()},
		"the text is there":                    {addr, edge.Probe{Path: "/healthz", Body: "is well"}, good()},
		"the text is there, in parts":          {addr, edge.Probe{Path: "/chunks", Body: "all is well in"}, good()},
		"the text is missing":                  {addr, edge.Probe{Path: "/healthz", Body: "is ill"}, miss("status 200, but the wanted text is not in the first 12 bytes")},
		"the text comes too late":              {addr, edge.Probe{Path: "/far", Body: "well"}, miss("status 200, but the wanted text is not in the first 65536 bytes")},
		"the text never comes": {
			addr,
			edge.Probe{Path: "/endless", Body: "well", Cap: 100 * time.Millisecond},
			miss("no whole answer within 100ms"),
		},
		"the host is the address": {addr, edge.Probe{Path: "/host?a=b", Body: "host=" + addr.String() + " query=a=b agent=shunt"}, good()},
		"the host is the name":    {addr, edge.Probe{Path: "/host", ServerName: "play.example.org", Body: "host=play.example.org "}, good()},
		"over TLS":                {addrTLS, edge.Probe{Path: "/healthz", TLS: true, Body: "well"}, good()},
		"over TLS, sick":          {addrTLS, edge.Probe{Path: "/sick", TLS: true}, miss("status 503")},
		"TLS was forgotten":       {addrTLS, edge.Probe{Path: "/healthz"}, miss("status 400")},
		"TLS is not spoken":       {addr, edge.Probe{TLS: true}, edge.Answer{Outcome: edge.Miss, Answers: true, Reason: "does not speak TLS"}},
		"the certificate must be valid": {
			addrTLS,
			edge.Probe{Path: "/healthz", TLS: true, Verify: true},
			miss("certificate: x509: certificate signed by unknown authority"),
		},
		"another protocol": {
			says("SSH-2.0-dropbear\r\n"),
			edge.Probe{},
			edge.Answer{Outcome: edge.Miss, Answers: true, Reason: `malformed HTTP response "SSH-2.0-dropbear"`},
		},
		"cut short":        {says("HTTP/1.1 200"), edge.Probe{}, edge.Answer{Outcome: edge.Miss, Answers: true, Reason: "closed in the middle of an answer"}},
		"closed at accept": {says(""), edge.Probe{}, edge.Answer{Answers: true, Reason: "closed before an answer"}},
		"reset at accept": {
			listen(t, func(c net.Conn) error { return c.(*net.TCPConn).SetLinger(0) }).addr,
			edge.Probe{},
			edge.Answer{Answers: true, Reason: "closed before an answer"},
		},
		"a header without end": {
			says("HTTP/1.1 200 OK\r\n" + strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 400)),
			edge.Probe{},
			edge.Answer{Outcome: edge.Miss, Answers: true, Reason: "closed in the middle of an answer"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.probe.Type = edge.ProbeHTTP
			check(t, steady(t, func() edge.Answer { return New(time.Now).Probe(t.Context(), target(tt.addr, tt.probe)) }), tt.want)
		})
	}
}

func TestWanted(t *testing.T) {
	tests := map[string]struct {
		ranges []string
		in     []int
		out    []int
	}{
		"none is the usual one": {nil, []int{200, 204, 399}, []int{199, 400, 503}},
		"one":                   {[]string{"204"}, []int{204}, []int{200, 203, 205}},
		"several":               {[]string{"200", "300-302"}, []int{200, 300, 302}, []int{201, 299, 303}},
		"nonsense fits nothing": {[]string{"ok", "2xx", "200-", "-299"}, nil, []int{200, 0, 299}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, s := range tt.in {
				if !wanted(tt.ranges, s) {
					t.Errorf("%d is not in %v", s, tt.ranges)
				}
			}
			for _, s := range tt.out {
				if wanted(tt.ranges, s) {
					t.Errorf("%d is in %v", s, tt.ranges)
				}
			}
		})
	}
}
