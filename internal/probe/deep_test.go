package probe

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shunt-net/shunt/internal/egress"
)

// listen opens a TCP port of the far end.
func (w *world) listen() net.Listener {
	w.t.Helper()
	var l net.Listener
	w.inside(func() {
		var err error
		l, err = net.Listen("tcp4", "0.0.0.0:0")
		must(w.t, err)
	})
	w.t.Cleanup(func() { _ = l.Close() })
	return l
}

func target(to netip.Addr, l net.Listener) egress.TLSTarget {
	return egress.TLSTarget{Address: netip.AddrPortFrom(to, uint16(l.Addr().(*net.TCPAddr).Port)), ServerName: "one.one.one.one"}
}

func TestTLSTargets(t *testing.T) {
	w := newWorld(t, "lane0", 1)
	good := w.listen()
	server := &httptest.Server{Listener: good, Config: &http.Server{ReadHeaderTimeout: time.Second}}
	server.StartTLS() // with a certificate that nobody trusts, for another name
	defer server.Close()
	mute := w.listen() // the kernel takes the connection, nobody speaks
	closed := w.listen()
	must(t, closed.Close())
	plain := w.listen()
	go func() { // ends with its listener
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.0 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	w.drop("tcp dport 9")

	c := egress.CheckConfig{Targets: []netip.Addr{w.host}, TLSTimeout: 500 * time.Millisecond, FullSize: true, TLS: []egress.TLSTarget{
		target(w.host, good), target(w.host, mute), target(w.host, closed), target(w.host, plain),
		{Address: netip.AddrPortFrom(w.host, 9)},
	}}
	d := New(Options{}).Deep(t.Context(), egress.Lane{Name: "a", Interface: w.name}, c)
	wants := []string{"", "deadline exceeded", "connection refused", "does not look like a TLS handshake", "timeout"}
	for i, want := range wants {
		r := d.TLS[i]
		if r.OK != (want == "") || want == "" && r.Error != "" || !strings.Contains(r.Error, want) || r.Address != c.TLS[i].Address.String() || r.Took <= 0 {
			t.Errorf("target %d: %+v, want %q", i, r, want)
		}
	}
	if !d.FullSize {
		t.Error("the full-size packet did not come back")
	}
	if d.Took > 950*time.Millisecond {
		t.Errorf("took %s: not in parallel", d.Took)
	}
}

func TestTLSGoesThroughTheLaneAndNoOtherWay(t *testing.T) {
	lane, other := newWorld(t, "lane0", 1), newWorld(t, "lane1", 2)
	l := other.listen()
	server := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: time.Second}}
	server.StartTLS()
	defer server.Close()
	c := egress.CheckConfig{TLSTimeout: 200 * time.Millisecond, TLS: []egress.TLSTarget{target(other.host, l)}}
	p := New(Options{})
	if d := p.Deep(t.Context(), egress.Lane{Name: "b", Interface: other.name}, c); !d.TLS[0].OK {
		t.Fatalf("through its own lane: %+v", d)
	}
	if d := p.Deep(t.Context(), egress.Lane{Name: "a", Interface: lane.name}, c); d.TLS[0].OK {
		t.Errorf("through another lane: %+v", d)
	}
	if d := p.Deep(t.Context(), egress.Lane{Name: "gone", Interface: "lane9"}, c); !strings.Contains(d.TLS[0].Error, "no such device") {
		t.Errorf("through no lane: %+v", d)
	}
}

func TestFullSize(t *testing.T) {
	cases := []struct {
		name    string
		far     int // MTU of the far end; the near end has 1420
		ask     bool
		v6      bool
		prepare func(*world)
		want    bool
		least   time.Duration
		lossy   bool // small packets are lost as well
		half    bool // a packet of half the size comes back instead
	}{
		{name: "the path holds the interface's MTU", far: 1420, ask: true, want: true},
		{name: "the path holds it over IPv6", far: 1420, ask: true, v6: true, want: true},
		{name: "a smaller MTU on the path", far: 1300, ask: true, least: (fullTries-1)*fullGap + fullWait, half: true},
		{name: "a smaller MTU on the path over IPv6", far: 1300, ask: true, v6: true, least: (fullTries-1)*fullGap + fullWait, half: true},
		{name: "a choke", far: 1420, ask: true, least: 2 * ((fullTries-1)*fullGap + fullWait), prepare: func(w *world) {
			w.drop("meta length > 200")
		}},
		{name: "a smaller MTU that nobody asked for", far: 1300, want: true},
		{name: "the first one is lost", far: 1420, ask: true, want: true, least: fullGap, lossy: true, prepare: func(w *world) {
			w.drop("meta l4proto icmp icmp sequence 0")
		}},
		{name: "all but the last are lost", far: 1420, ask: true, want: true, least: (fullTries - 1) * fullGap, lossy: true, prepare: func(w *world) {
			w.drop(fmt.Sprintf("meta l4proto icmp icmp sequence < %d", fullTries-1))
		}},
		{name: "the interface is gone", far: 1420, ask: true, prepare: func(w *world) { must(w.t, netlink.LinkDel(w.link)) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "lane0", 1)
			peer, err := w.far.LinkByName("far")
			must(t, err)
			must(t, w.far.LinkSetMTU(peer, c.far))
			if c.prepare != nil {
				c.prepare(w)
			}
			conf := egress.CheckConfig{Targets: []netip.Addr{w.host}, FullSize: c.ask}
			if c.v6 {
				conf.Targets = []netip.Addr{w.v6}
			}
			if r := New(Options{}).Round(t.Context(), egress.Lane{Interface: w.name}, egress.CheckConfig{Targets: conf.Targets, Wait: time.Second}, 1, 1); c.name != "the interface is gone" && !c.lossy && !r.Pass {
				t.Fatalf("small packets do not pass: %+v", r)
			}
			d := New(Options{}).Deep(t.Context(), egress.Lane{Interface: w.name}, conf)
			if d.FullSize != c.want || d.HalfSize != c.half || len(d.TLS) != 0 {
				t.Errorf("%+v, want full size %v, half size %v", d, c.want, c.half)
			}
			if d.Took < c.least || d.Took > c.least+900*time.Millisecond {
				t.Errorf("took %s, want about %s", d.Took, c.least)
			}
		})
	}
}
