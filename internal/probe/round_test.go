package probe

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/egress"
)

func check(targets ...netip.Addr) egress.CheckConfig {
	return egress.CheckConfig{Targets: targets, Gap: 10 * time.Millisecond, Wait: 400 * time.Millisecond}
}

// TestPingSocketsAreClosedHere says why the other tests prove the raw path: a kernel
// gives a new namespace `1 0`, nobody.
func TestPingSocketsAreClosedHere(t *testing.T) {
	w := newWorld(t, "lane0", 1)
	b, err := os.ReadFile("/proc/sys/net/ipv4/ping_group_range")
	must(t, err)
	if got := strings.Fields(string(b)); len(got) != 2 || got[0] != "1" || got[1] != "0" {
		t.Fatalf("ping_group_range %q", b)
	}
	for _, v6 := range []bool{false, true} {
		s, err := open(w.name, v6, false)
		must(t, err)
		if !s.raw {
			t.Errorf("v6 %v: not a raw socket", v6)
		}
		s.close()
	}
	must(t, os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0o644))
	defer func() { must(t, os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("1 0"), 0o644)) }()
	for _, target := range []netip.Addr{w.host, w.v6} {
		s, err := open(w.name, target.Is6(), false)
		must(t, err)
		if s.raw {
			t.Errorf("%s: a raw socket though ping sockets are open", target)
		}
		s.close()
		r := New(Options{}).Round(t.Context(), egress.Lane{Name: "a", Interface: w.name}, check(target), 5, 5)
		if !r.Pass || r.Got != 5 || r.RTT <= 0 {
			t.Errorf("%s: %+v", target, r)
		}
	}
}

func TestRound(t *testing.T) {
	cases := []struct {
		name    string
		n, need int
		prepare func(*world)
		targets func(*world) []netip.Addr
		want    egress.Round // Took is the most it may take, 0 = any
		err     string
	}{
		{name: "all answer", n: 5, need: 5, want: egress.Round{Sent: 5, Got: 5, Pass: true}},
		{name: "three of five are enough", n: 5, need: 3, want: egress.Round{Sent: 3, Got: 3, Pass: true}},
		{name: "answers over IPv6", n: 3, need: 3, targets: func(w *world) []netip.Addr { return []netip.Addr{w.v6} }, want: egress.Round{Sent: 3, Got: 3, Pass: true}},
		{
			name: "both families in turn", n: 4, need: 4,
			targets: func(w *world) []netip.Addr { return []netip.Addr{w.v6, w.host} }, want: egress.Round{Sent: 4, Got: 4, Pass: true},
		},
		{name: "silence", n: 5, need: 3, prepare: func(w *world) { w.drop("meta l4proto icmp") }, want: egress.Round{Sent: 5, Took: 450 * time.Millisecond}},
		{
			name: "all lost on the way back", n: 5, need: 3, prepare: func(w *world) { w.dropOut("icmp type echo-reply") },
			want: egress.Round{Sent: 5, Took: 450 * time.Millisecond},
		},
		{
			name: "one target of two is silent and half is enough", n: 6, need: 3, prepare: func(w *world) { w.drop("ip daddr " + w.gate.String()) },
			targets: func(w *world) []netip.Addr { return []netip.Addr{w.gate, w.host} }, want: egress.Round{Sent: 6, Got: 3, Pass: true},
		},
		{
			name: "one target of two is silent and none may be lost", n: 6, need: 6, prepare: func(w *world) { w.drop("ip daddr " + w.gate.String()) },
			targets: func(w *world) []netip.Addr { return []netip.Addr{w.gate, w.host} }, want: egress.Round{Sent: 6, Got: 3, Took: 450 * time.Millisecond},
		},
		{
			name: "the interface is gone", n: 5, need: 3, prepare: func(w *world) { must(w.t, netlink.LinkDel(w.link)) },
			want: egress.Round{Took: 20 * time.Millisecond}, err: "no such device",
		},
		{
			name: "the link is down", n: 5, need: 3, prepare: func(w *world) { must(w.t, netlink.LinkSetDown(w.link)) },
			want: egress.Round{Took: 20 * time.Millisecond}, err: "network is",
		},
		{name: "an impossible demand", n: 2, need: 3, err: "3 answers of 2 pings"},
		{name: "no targets", n: 2, need: 1, targets: func(*world) []netip.Addr { return nil }, err: "no targets"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "lane0", 1)
			if c.prepare != nil {
				c.prepare(w)
			}
			targets := []netip.Addr{w.host}
			if c.targets != nil {
				targets = c.targets(w)
			}
			got := New(Options{}).Round(t.Context(), egress.Lane{Name: "a", Interface: w.name}, check(targets...), c.n, c.need)
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(egress.Round{}, "RTT", "Took", "Error")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (got.RTT > 0) != (got.Got > 0) {
				t.Errorf("least round trip %s of %d answers", got.RTT, got.Got)
			}
			if c.want.Took > 0 && got.Took > 2*c.want.Took { // twice: the cores are shared
				t.Errorf("took %s", got.Took)
			}
			if c.err == "" && got.Error != "" || !strings.Contains(got.Error, c.err) {
				t.Errorf("error %q, want one with %q", got.Error, c.err)
			}
			t.Logf("%+v", got)
		})
	}
}

func TestAStrictRoundEndsWithItsFirstLoss(t *testing.T) {
	w := newWorld(t, "lane0", 1)
	w.drop("meta l4proto icmp")
	c := check(w.host)
	c.Gap, c.Wait = 100*time.Millisecond, 50*time.Millisecond
	r := New(Options{}).Round(t.Context(), egress.Lane{Interface: w.name}, c, 50, 50)
	if r.Sent != 1 || r.Pass {
		t.Errorf("%+v: one lost ping is the verdict", r)
	}
}

func TestARoundWithoutARouteIsCertainAtOnce(t *testing.T) {
	w := newWorld(t, "lane0", 1)
	w.drop("meta l4proto icmp")
	must(t, netlink.LinkSetDown(w.link))
	must(t, netlink.LinkSetUp(w.link)) // routes and v6 addresses of the interface are gone
	list, err := netlink.AddrList(w.link, netlink.FAMILY_V6)
	must(t, err)
	for _, a := range list {
		must(t, netlink.AddrDel(w.link, &a))
	}
	must(t, netlink.RouteAdd(&netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: netlink.NewIPNet(w.v6.AsSlice())}))
	defer func() {
		must(t, netlink.RouteDel(&netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: netlink.NewIPNet(w.v6.AsSlice())}))
	}()
	c := check(w.v6)
	c.Wait = 5 * time.Second
	r := New(Options{}).Round(t.Context(), egress.Lane{Interface: w.name}, c, 5, 1)
	if r.Pass || r.Error == "" || r.Took > time.Second {
		t.Errorf("%+v", r)
	}
}

func TestARoundEndsWithItsContext(t *testing.T) {
	w := newWorld(t, "lane0", 1)
	w.drop("meta l4proto icmp")
	c := check(w.host)
	c.Wait = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	goroutines := runtime.NumGoroutine()
	r := New(Options{}).Round(ctx, egress.Lane{Name: "a", Interface: w.name}, c, 5, 3)
	if r.Pass || r.Took > time.Second || !strings.Contains(r.Error, "lane a: context deadline exceeded") {
		t.Errorf("%+v", r)
	}
	eventually(t, "its goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// Another pinger on the host uses the same id and the same sequence numbers, and gets
// its answers; ours are all lost on the way, so none of its may count as ours.
func TestAnotherPingersAnswersAreNotOurs(t *testing.T) {
	w := newWorld(t, "lane0", 1)
	w.drop("meta l4proto icmp ip length 84") // only our size
	ours := ident{id: 4711, cookie: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}}
	other := ident{id: ours.id, cookie: [8]byte{8, 7, 6, 5, 4, 3, 2, 1}}

	s, err := open(w.name, false, false)
	must(t, err)
	defer s.close()
	var pinger sync.WaitGroup
	for seq := range uint16(5) {
		must(t, s.send(other.request(false, seq, 100), w.host))
	}
	answered := make(chan int, 16)
	pinger.Go(func() { // the same socket sees the answers, as the other pinger would
		buf := make([]byte, 2048)
		for n := 0; n < 5; {
			m, err := s.receive(buf)
			if err != nil {
				return
			}
			if _, ok := ours.reply(m, false, true); ok {
				t.Error("another's answer was taken for ours")
			}
			if seq, ok := other.reply(m, false, true); ok {
				answered <- seq
				n++
			}
		}
	})
	pinger.Wait()
	if len(answered) != 5 {
		t.Fatalf("the other pinger got %d answers, so nothing was tested", len(answered))
	}
	for range 3 { // and with the whole machinery, while the other goes on
		for seq := range uint16(5) {
			must(t, s.send(other.request(false, seq, 100), w.host))
		}
		if r := New(Options{}).Round(t.Context(), egress.Lane{Interface: w.name}, check(w.host), 5, 1); r.Got != 0 || r.Sent != 5 {
			t.Errorf("%+v", r)
		}
	}
	if w.dropped("t") != "15" {
		t.Errorf("%s of 15 pings of ours were lost", w.dropped("t"))
	}
}

func TestReceivedBytesAreReadAroundTheRound(t *testing.T) {
	w := newWorld(t, "lane0", 1)
	var n int64
	p := New(Options{Rx: func(_ context.Context, l egress.Lane) (int64, error) {
		n += 100
		if l.Name == "gone" {
			return 0, os.ErrNotExist
		}
		return n, nil
	}})
	r := p.Round(t.Context(), egress.Lane{Name: "a", Interface: w.name}, check(w.host), 1, 1)
	if r.RxBefore != 100 || r.RxAfter != 200 {
		t.Errorf("%+v", r)
	}
	r = p.Round(t.Context(), egress.Lane{Name: "gone", Interface: w.name}, check(w.host), 1, 1)
	if r.RxBefore != 0 || r.RxAfter != 0 || !r.Pass {
		t.Errorf("%+v", r)
	}
}

func TestOnlyOurOwnReplyIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		i := ident{id: rapid.Uint16().Draw(t, "id"), cookie: [8]byte(rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "cookie"))}
		seq, v6 := rapid.Uint16().Draw(t, "seq"), rapid.Bool().Draw(t, "v6")
		m := i.request(v6, seq, rapid.IntRange(0, 1500).Draw(t, "payload"))
		if !v6 && checksum(m) != 0 {
			t.Fatal("the checksum is wrong")
		}
		if _, ok := i.reply(m, v6, true); ok {
			t.Fatal("a request was taken for a reply")
		}
		m[0] = map[bool]byte{false: typeReplyV4, true: typeReplyV6}[v6]
		if got, ok := i.reply(m, v6, true); !ok || got != int(seq) {
			t.Fatalf("sequence %d, %v, want %d", got, ok, seq)
		}
		binary.BigEndian.PutUint16(m[4:], i.id+1)
		if _, ok := i.reply(m, v6, true); ok {
			t.Fatal("another id on a raw socket")
		}
		if _, ok := i.reply(m, v6, false); !ok {
			t.Fatal("a ping socket's id is the kernel's own")
		}
		m[echoHeader+rapid.IntRange(0, 7).Draw(t, "byte")] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		if _, ok := i.reply(m, v6, false); ok {
			t.Fatal("another cookie")
		}
	})
}

func FuzzReply(f *testing.F) {
	i := ident{id: 7, cookie: [8]byte{1, 2, 3}}
	f.Add(i.request(false, 3, 56), false, true)
	f.Add(i.request(true, 3, 0), true, false)
	f.Add([]byte{0, 0}, false, true)
	f.Fuzz(func(t *testing.T, m []byte, v6, raw bool) {
		if seq, ok := i.reply(m, v6, raw); ok && (seq < 0 || seq > 0xffff || len(m) < 16) {
			t.Errorf("%x: %d", m, seq)
		}
	})
}
