package tunnel

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"pgregory.net/rapid"
)

func TestRequestsAreWhatTheStandardSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := echo{
			id: rapid.Uint16().Draw(t, "id"), seq: rapid.Uint16().Draw(t, "seq"),
			cookie: [8]byte(rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "cookie")), size: rapid.IntRange(smallEcho, 1500).Draw(t, "size"),
		}
		src, dst, header, protocol := netip.MustParseAddr("10.64.0.9"), netip.MustParseAddr("1.1.1.1"), headerV4, protoICMP
		if rapid.Bool().Draw(t, "v6") {
			src, dst, header, protocol = netip.MustParseAddr("fd64::9"), netip.MustParseAddr("2606:4700:4700::1111"), headerV6, protoICMPv6
		}
		p := e.request(src, dst)
		if dst.Is4() {
			h, err := ipv4.ParseHeader(p)
			if err != nil || h.TotalLen != e.size || h.Flags != ipv4.DontFragment || h.Src.String() != src.String() || h.Dst.String() != dst.String() {
				t.Fatalf("header %v: %v", h, err)
			}
			if checksum(0, p[:headerV4]) != 0 || checksum(0, p[headerV4:]) != 0 {
				t.Fatal("a checksum is wrong")
			}
		} else {
			h, err := ipv6.ParseHeader(p)
			if err != nil || h.PayloadLen != e.size-headerV6 || h.Src.String() != src.String() || h.Dst.String() != dst.String() {
				t.Fatalf("header %v: %v", h, err)
			}
			pseudo := icmp.IPv6PseudoHeader(src.AsSlice(), dst.AsSlice())
			pseudo[35] = byte(e.size - headerV6)
			pseudo[34] = byte((e.size - headerV6) >> 8)
			if checksum(0, append(pseudo, p[headerV6:]...)) != 0 {
				t.Fatal("the checksum is wrong")
			}
		}
		m, err := icmp.ParseMessage(protocol, p[header:])
		if err != nil {
			t.Fatal(err)
		}
		body, ok := m.Body.(*icmp.Echo)
		if !ok || m.Type != ipv4.ICMPTypeEcho && m.Type != ipv6.ICMPTypeEchoRequest || body.ID != int(e.id) || body.Seq != int(e.seq) {
			t.Fatalf("message %v %v", m, body)
		}
		if _, ok := parseReply(p); ok {
			t.Fatal("a request was taken for a reply")
		}
		p[header] = map[int]byte{protoICMP: 0, protoICMPv6: 129}[protocol]
		got, ok := parseReply(p)
		if !ok {
			t.Fatal("the reply was not recognized")
		}
		if diff := cmp.Diff(e, got, cmp.AllowUnexported(echo{})); diff != "" {
			t.Fatalf("reply (-want +got):\n%s", diff)
		}
	})
}

func FuzzParseReply(f *testing.F) {
	for _, dst := range []string{"1.1.1.1", "2606:4700:4700::1111"} {
		to := netip.MustParseAddr(dst)
		p := echo{id: 1, seq: 2, size: smallEcho}.request(to, to)
		f.Add(p)
		p = append([]byte(nil), p...)
		if to.Is4() {
			p[headerV4] = 0
		} else {
			p[headerV6] = 129
		}
		f.Add(p)
		f.Add(p[:30])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if e, ok := parseReply(p); ok && (e.size != len(p) || len(p) < headerV4+headerEcho+cookieSize) {
			t.Errorf("%d bytes gave %+v", len(p), e)
		}
	})
}

func TestSummarize(t *testing.T) {
	type figures struct {
		Sent, Got   int
		Avg, Jitter time.Duration
	}
	ms := time.Millisecond
	cases := []struct {
		name  string
		trips []time.Duration
		want  figures
	}{
		{"none sent", nil, figures{}},
		{"all lost", []time.Duration{lost, lost}, figures{Sent: 2}},
		{"one answer", []time.Duration{lost, 40 * ms}, figures{2, 1, 40 * ms, 0}},
		{"neighbours differ by 10 and 30", []time.Duration{40 * ms, 50 * ms, 20 * ms}, figures{3, 3, 110 * ms / 3, 20 * ms}},
		{"a loss between two is skipped", []time.Duration{40 * ms, lost, 50 * ms}, figures{3, 2, 45 * ms, 10 * ms}},
	}
	for _, c := range cases {
		var got figures
		got.Sent, got.Got, got.Avg, got.Jitter = summarize(c.trips)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestArrivalIsTheKernelsUnlessTheClockWasSet(t *testing.T) {
	now := time.Now()
	cases := []struct {
		name   string
		stamp  time.Time
		waited time.Duration
	}{
		{"the reader waited 7 ms for a core", now.Add(-7 * time.Millisecond), 7 * time.Millisecond},
		{"the wall clock was set back meanwhile", now.Add(time.Hour), 0},
		{"the wall clock was set forward meanwhile", now.Add(-time.Hour), 0},
	}
	for _, c := range cases {
		if got := now.Sub(arrival(timestampMessage(c.stamp), now)); got != c.waited {
			t.Errorf("%s: %s taken off, want %s", c.name, got, c.waited)
		}
	}
	if got := arrival(nil, now); !got.Equal(now) {
		t.Errorf("without a stamp: %s", got)
	}
}
