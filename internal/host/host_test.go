package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netns"

	"github.com/shunt-net/shunt/internal/edge"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// enter moves the calling goroutine into a new, empty namespace for good: its thread ends with it.
func enter(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root for network namespaces")
	}
	runtime.LockOSThread()
	ns, err := netns.New()
	must(tb, err)
	tb.Cleanup(func() { _ = ns.Close() })
}

func ip(tb testing.TB, lines ...string) {
	tb.Helper()
	for _, l := range lines {
		if out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); err != nil {
			tb.Fatalf("ip %s: %v\n%s", l, err, out)
		}
	}
}

func set(tb testing.TB, key, value string) {
	tb.Helper()
	must(tb, os.WriteFile("/proc/sys/"+key, []byte(value), 0o644))
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// pair makes two ends of a cable here, up.
func pair(tb testing.TB, name string) {
	tb.Helper()
	ip(tb, "link add "+name+" type veth peer name "+name+"x", "link set "+name+" up", "link set "+name+"x up")
}

func candidates(list ...string) edge.Config {
	c := edge.Config{Services: []edge.Service{{Name: "front"}, {Name: "voice"}}}
	for i, a := range list {
		s := &c.Services[i%2]
		s.Candidates = append(s.Candidates, edge.Candidate{Addresses: addrs(a)})
	}
	return c
}

func TestLook(t *testing.T) {
	tests := map[string]struct {
		make   func(t *testing.T)
		config edge.Config
		want   edge.Host // without settings
	}{
		"nothing at all": {make: func(t *testing.T) { ip(t, "link set lo down") }},
		"addresses of interfaces that are up": {
			make: func(t *testing.T) {
				pair(t, "net0")
				ip(t, "addr add 10.0.0.2/24 dev net0", "addr add 10.0.0.50/32 dev net0", "addr add fd00::2/64 dev net0 nodad")
			},
			want: edge.Host{
				Addresses: addrs("10.0.0.2", "10.0.0.50", "127.0.0.1", "::1", "fd00::2"),
				Links:     prefixes("10.0.0.0/24", "fd00::/64"),
			},
		},
		"a virtual address on the loopback is its own and connects to nobody": {
			make: func(t *testing.T) { ip(t, "addr add 10.0.0.50/24 dev lo") },
			want: edge.Host{Addresses: addrs("10.0.0.50", "127.0.0.1", "::1")},
		},
		"an interface that is down": {
			make: func(t *testing.T) {
				pair(t, "net0")
				ip(t, "addr add 10.0.0.2/24 dev net0", "link set net0 down")
			},
			want: edge.Host{Addresses: addrs("127.0.0.1", "::1")},
		},
		"the far end of a line": {
			make: func(t *testing.T) {
				pair(t, "net0")
				ip(t, "addr add 10.0.0.2 peer 10.9.0.0/24 dev net0", "addr add 10.0.0.3 peer 10.9.1.1 dev net0")
			},
			want: edge.Host{Addresses: addrs("10.0.0.2", "10.0.0.3", "127.0.0.1", "::1"), Links: prefixes("10.9.0.0/24")},
		},
		"one network by two interfaces": {
			make: func(t *testing.T) {
				pair(t, "net0")
				pair(t, "net1")
				ip(t, "addr add 10.0.0.2/24 dev net0", "addr add 10.0.0.3/24 dev net1")
			},
			want: edge.Host{Addresses: addrs("10.0.0.2", "10.0.0.3", "127.0.0.1", "::1"), Links: prefixes("10.0.0.0/24")},
		},
		"candidates on this machine": {
			make: func(t *testing.T) {
				pair(t, "net0")
				ip(t, "addr add 10.0.0.2/24 dev net0", "addr add fd00::2/64 dev net0 nodad")
			},
			config: candidates("10.0.0.29", "fd00::2", "::ffff:10.0.0.2", "10.0.0.2", "fd00::29"),
			want: edge.Host{
				Addresses: addrs("10.0.0.2", "127.0.0.1", "::1", "fd00::2"), Links: prefixes("10.0.0.0/24", "fd00::/64"),
				Local: addrs("10.0.0.2", "fd00::2"),
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			enter(t)
			ip(t, "link set lo up")
			tt.make(t)
			s := New()
			defer s.Close()
			for _, time := range []string{"first", "second"} {
				got, err := s.Look(t.Context(), tt.config)
				must(t, err)
				got.Sysctl = nil
				if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
					t.Errorf("the %s time (-want +got):\n%s", time, diff)
				}
			}
		})
	}
}

// Another machine has the address too: the kernel says so after a moment, and it is not ours.
func TestAnAddressThatIsTakenIsNotItsOwn(t *testing.T) {
	enter(t)
	ip(t, "link set lo up")
	// Both ends are up first: an address that is added before is not tried out.
	pair(t, "net0")
	ip(t, "addr add fd00::50/64 dev net0x nodad", "addr add fd00::50/64 dev net0")
	s := New()
	defer s.Close()
	for end := time.Now().Add(10 * time.Second); ; {
		out, err := exec.Command("ip", "-6", "addr", "show", "dev", "net0").Output()
		must(t, err)
		got, err := s.Look(t.Context(), edge.Config{})
		must(t, err)
		if strings.Contains(string(out), "dadfailed") {
			ip(t, "addr del fd00::50/64 dev net0x") // else the other end has it
			got, err = s.Look(t.Context(), edge.Config{})
			must(t, err)
			if diff := cmp.Diff([]string{"127.0.0.1", "::1"}, text(got.Addresses)); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the kernel found no duplicate:\n%s", out)
		}
	}
}

func text(list []netip.Addr) (out []string) {
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}

func TestSettings(t *testing.T) {
	enter(t)
	ip(t, "link set lo up")
	pair(t, "net0")
	pair(t, "net1") // has no address of its own
	ip(t, "link set net0 name eth0.7", "link set eth0.7 up", "addr add 10.0.0.2/24 dev eth0.7")
	want := map[string]int{
		"net/ipv4/ip_forward": 1, "net/ipv6/conf/all/forwarding": 1,
		"net/netfilter/nf_conntrack_tcp_loose": 0, "net/netfilter/nf_conntrack_tcp_be_liberal": 1,
		"net/ipv4/conf/all/rp_filter": 2, "net/ipv4/conf/all/arp_ignore": 1, "net/ipv4/conf/all/arp_announce": 2,
		"net/ipv4/conf/eth0.7/rp_filter": 1, "net/ipv4/conf/eth0.7/arp_ignore": 8, "net/ipv4/conf/eth0.7/arp_announce": 1,
		"net/ipv4/conf/lo/rp_filter": 0, "net/ipv4/conf/lo/arp_ignore": 2, "net/ipv4/conf/lo/arp_announce": 0,
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} { // they reset others
		set(t, key, fmt.Sprint(want[key]))
	}
	for key, v := range want {
		set(t, key, fmt.Sprint(v))
	}
	s := New()
	defer s.Close()
	got, err := s.Look(t.Context(), edge.Config{})
	must(t, err)
	if diff := cmp.Diff(want, got.Sysctl); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestACancelledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New().Look(ctx, edge.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A machine with containers has hundreds of interfaces that have no address.
func BenchmarkLook(b *testing.B) {
	enter(b)
	ip(b, "link set lo up")
	for i := range 200 {
		pair(b, fmt.Sprintf("c%d", i))
	}
	for i := range 20 {
		ip(b, fmt.Sprintf("addr add 10.%d.0.1/24 dev c%d", i, i))
	}
	s := New()
	defer s.Close()
	for b.Loop() {
		h, err := s.Look(b.Context(), edge.Config{})
		if err != nil || len(h.Addresses) != 22 {
			b.Fatal(len(h.Addresses), err)
		}
	}
}
