package nft

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/edge"
)

// reloads says that the table, listed alone, loads into an empty namespace, lists equal
// there, and is what a person would write.
func (s *space) reloads(t testing.TB, want edge.Table) {
	t.Helper()
	text := s.listing()
	other := newSpace(t)
	other.nft(text)
	if d := cmp.Diff(text, other.listing()); d != "" {
		t.Errorf("loaded elsewhere it lists differently (-here +there):\n%s", d)
	}
	got, drift, err := ParseListing(text)
	if err != nil || drift != nil {
		t.Errorf("listing: drift %q, %v", drift, err)
	}
	if d := cmp.Diff(want, got, same()); d != "" {
		t.Errorf("listing (-want +got):\n%s", d)
	}
}

// clean says that a view is of a table that is as it should be and holds want.
func clean(t testing.TB, v edge.View, want edge.Table) {
	t.Helper()
	if v.Absent || v.Drift != nil || v.Error != "" {
		t.Errorf("absent %v, drift %q, error %q", v.Absent, v.Drift, v.Error)
	}
	if d := cmp.Diff(want, v.Table, same()); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

func TestTheTableIsMadeMovedAndReadBack(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r := door(s)
			if v := observe(t, r); !v.Absent || v.Took <= 0 || v.Local != (name == "local") {
				t.Errorf("an empty namespace: %+v", v)
			}
			for _, want := range []edge.Table{led(one4, one6, 1), led(two4, two6, 2), full(), {}, full(), full()} {
				clean(t, apply(t, r, want), want)
				clean(t, observe(t, r), want)
				s.reloads(t, want)
			}
		})
	}
}

// Both doors see what the other one wrote, whatever it was.
func TestWhateverIsAppliedIsRead(t *testing.T) {
	s := newSpace(t)
	local, remote := s.local(), s.remote()
	rapid.Check(t, func(rt *rapid.T) {
		want := anyTable().Draw(rt, "table")
		writer, reader := local, remote
		if rapid.Bool().Draw(rt, "by the remote door") {
			writer, reader = remote, local
		}
		clean(t, apply(t, writer, want), want)
		clean(t, observe(t, reader), want)
		if t.Failed() {
			rt.FailNow()
		}
	})
	last := full()
	apply(t, local, last)
	s.reloads(t, last)
}

func TestApplyingTwiceChangesNothing(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r := door(s)
			apply(t, r, full())
			before := s.generation()
			clean(t, apply(t, r, full()), full())
			if after := s.generation(); after != before {
				t.Errorf("%d transactions to change nothing", after-before)
			}
		})
	}
}

// A flip is one transaction and touches one element.
func TestAFlipIsOneTransaction(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r := door(s)
			v := apply(t, r, led(one4, one6, 1))
			want := led(one4, one6, 1)
			want.Targets[0].To, want.Targets[0].Claim.Epoch = at(two4, actual), 2
			if c := diff(v.Table, want); len(c) != 1 || len(c[0].add) != 1 || len(c[0].del) != 1 {
				t.Errorf("changes %+v, want one element's", c)
			}
			before := s.generation()
			v, err := r.Apply(t.Context(), v, want)
			must(t, err)
			clean(t, v, want)
			if after := s.generation(); after != before+1 {
				t.Errorf("%d transactions", after-before)
			}
		})
	}
}

// generation counts the namespace's nftables transactions.
func (s *space) generation() (n uint32) {
	s.tb.Helper()
	s.raw(func(c *mdnetlink.Conn) {
		var err error
		n, err = generation(c)
		must(s.tb, err)
	})
	return n
}

func (s *space) raw(f func(c *mdnetlink.Conn)) {
	s.tb.Helper()
	c, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, &mdnetlink.Config{NetNS: int(s.ns)})
	must(s.tb, err)
	f(c)
	must(s.tb, c.Close())
}

// dump is everything that the kernel says about another table.
func (s *space) dump(table string, sets ...string) (out []string) {
	s.tb.Helper()
	s.raw(func(c *mdnetlink.Conn) {
		ask := func(kind uint16, names ...string) {
			msgs, err := dump(c, kind, names...)
			must(s.tb, err)
			for _, m := range msgs {
				out = append(out, fmt.Sprintf("%x", body(m)))
			}
		}
		ask(unix.NFT_MSG_GETSET, table)
		ask(unix.NFT_MSG_GETRULE, table)
		for _, name := range sets {
			ask(unix.NFT_MSG_GETSETELEM, table, name)
		}
	})
	if len(out) < 3 {
		s.tb.Errorf("table %s: %d objects", table, len(out))
	}
	return out
}

func TestOddTablesOfOthers(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			s.run("iptables-nft -t nat -A PREROUTING -p tcp --dport 8080 -m comment --comment theirs -j REDIRECT --to-ports 80")
			s.run("iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -m limit --limit 5/s -j ACCEPT")
			s.nft(`table inet odd {
				map ring {
					typeof jhash ip saddr . tcp sport mod 8 seed 0x1 : ip daddr
					size 8
					elements = { 0 : 10.0.0.1, 1 : 10.0.0.2 }
				}
				chain prerouting {
					type nat hook prerouting priority dstnat; policy accept;
					ip daddr 10.98.0.1 dnat ip to jhash ip saddr . tcp sport mod 8 seed 0x1 map @ring
				}
			}`)
			theirs, odd := s.run("iptables-nft-save"), s.dump("odd", "ring")
			r := door(s)
			for _, want := range []edge.Table{full(), led(two4, two6, 9), full()} {
				clean(t, apply(t, r, want), want)
				clean(t, observe(t, r), want)
				s.reloads(t, want)
			}
			s.nft("delete chain " + tableTitle[len("table "):] + " input")
			if v := observe(t, r); v.Drift == nil {
				t.Error("a missing chain is not noticed")
			}
			clean(t, apply(t, r, full()), full())
			undated := func(text string) (out []string) {
				for line := range strings.Lines(text) {
					if !strings.HasPrefix(line, "#") {
						out = append(out, line)
					}
				}
				return out
			}
			if d := cmp.Diff(undated(theirs), undated(s.run("iptables-nft-save"))); d != "" {
				t.Errorf("iptables' tables changed:\n%s", d)
			}
			if d := cmp.Diff(odd, s.dump("odd", "ring")); d != "" {
				t.Errorf("the odd table changed:\n%s", d)
			}
		})
	}
}

func TestDriftIsMendedAtOnce(t *testing.T) {
	faults := map[string]string{
		"a rule is gone":          "flush chain inet shunt_edge forward",
		"a rule too many":         "add rule inet shunt_edge forward counter accept",
		"another rule":            "flush chain inet shunt_edge forward; add rule inet shunt_edge forward accept; add rule inet shunt_edge forward accept",
		"a chain is gone":         "delete chain inet shunt_edge postrouting",
		"a chain too many":        "add chain inet shunt_edge mine",
		"another policy":          "add chain inet shunt_edge input { policy drop; }",
		"a set too many":          "add set inet shunt_edge mine { type ipv4_addr; }",
		"it sleeps":               "add table inet shunt_edge { flags dormant; }",
		"an element of others":    "add element inet shunt_edge service4 { 10.1.1.1 . sctp . 5 }",
		"a lease for ever":        "add element inet shunt_edge lease { 0x17 comment \"core-09 config a opinion b\" }",
		"only the table is there": "delete table inet shunt_edge; add table inet shunt_edge",
	}
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r := door(s)
			for fault, script := range faults {
				apply(t, r, full())
				s.nft(script + "\n")
				v := observe(t, r)
				if v.Drift == nil && !strings.Contains(fault, "sctp") && v.Table.Equal(full()) {
					t.Errorf("%s: not noticed", fault)
				}
				before := s.generation()
				v, err := r.Apply(t.Context(), v, full())
				must(t, err)
				clean(t, v, full())
				if n := s.generation() - before; n != 1 {
					t.Errorf("%s: mended by %d transactions", fault, n)
				}
				clean(t, observe(t, r), full())
				s.reloads(t, full())
			}
		})
	}
}

// A table that an earlier version made is made anew, by whatever way it is reached: here one
// that kept a candidate's odd packets from the machine itself.
func TestATableOfAnEarlierVersionIsReplaced(t *testing.T) {
	now := Text(full())
	begin, end := strings.Index(now, "\tchain resets {"), strings.LastIndex(now, "}")
	earlier := strings.TrimRight(now[:begin], "\n")
	earlier = strings.TrimSuffix(earlier, "\t}") +
		"\t\tct state invalid ip saddr . meta l4proto . th sport @backend4 counter drop\n" +
		"\t\tct state invalid ip6 saddr . meta l4proto . th sport @backend6 counter drop\n\t}\n" + now[end:]
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			s.nft(earlier)
			r := door(s)
			v := observe(t, r)
			if len(v.Drift) == 0 || !v.Table.Equal(full()) {
				t.Errorf("drift %q, table %+v", v.Drift, v.Table)
			}
			before := s.generation()
			v, err := r.Apply(t.Context(), v, full())
			must(t, err)
			clean(t, v, full())
			if n := s.generation() - before; n != 1 {
				t.Errorf("replaced by %d transactions", n)
			}
			clean(t, observe(t, r), full())
			s.reloads(t, full())
		})
	}
}

// A stale view is no harm: what it does not know is found out.
func TestAppliesOnWhatOthersChangedMeanwhile(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r, other := door(s), s.local()
			stale := apply(t, r, led(one4, one6, 1))
			apply(t, other, led("", "", 0))
			for _, meanwhile := range []string{"delete table inet shunt_edge", "flush map inet shunt_edge target4", ""} {
				if meanwhile != "" {
					s.nft(meanwhile + "\n")
				}
				v, err := r.Apply(t.Context(), stale, led(two4, two6, 2))
				must(t, err)
				clean(t, v, led(two4, two6, 2))
			}
		})
	}
}

func TestLeasesRunOut(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			r := door(newSpace(t))
			want := edge.Table{Leases: []edge.Lease{
				{Node: "core-01", Config: "a", Opinion: "b", Left: 1200 * time.Millisecond},
				{Node: "core-02", Config: "a", Opinion: "b", Left: 30 * time.Second},
			}}
			v := apply(t, r, want)
			clean(t, v, want)
			for i, l := range v.Table.Leases {
				if l.Left <= 0 || l.Left > want.Leases[i].Left {
					t.Errorf("%s has %v left", l.Node, l.Left)
				}
			}
			eventually(t, "the lease to run out", func() bool { return len(observe(t, r).Table.Leases) == 1 })
			v, err := r.Apply(t.Context(), v, edge.Table{Leases: want.Leases[1:]}) // with a view that still has it
			must(t, err)
			clean(t, v, edge.Table{Leases: want.Leases[1:]})
			// Renewed in one transaction, and only when that is longer than what is left.
			want.Leases[1].Left = 40 * time.Second
			if v, err = r.Apply(t.Context(), v, edge.Table{Leases: want.Leases[1:]}); err != nil || v.Table.Leases[0].Left <= 30*time.Second {
				t.Errorf("renewed: %+v, %v", v.Table.Leases, err)
			}
			if c := diff(v.Table, v.Table); c != nil {
				t.Errorf("a lease as it is needs %+v", c)
			}
		})
	}
}

// Others' transactions cut into each read; leases tick meanwhile.
func TestReadsWhileOthersWrite(t *testing.T) {
	s := newSpace(t)
	r := s.local()
	apply(t, r, full())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		other := s.local()
		v, err := other.Observe(context.Background())
		for n := uint64(1); err == nil && ctx.Err() == nil; n++ {
			want := full()
			want.Nodes[0].Claim.Epoch = n
			v, err = other.Apply(context.Background(), v, want)
		}
		if err != nil {
			t.Error(err)
		}
	}()
	for range 300 {
		v, err := r.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Table.Targets) != 4 || len(v.Table.Nodes) != 1 || len(v.Table.Leases) > 2 || v.Drift != nil {
			t.Fatalf("half a table: %+v", v)
		}
	}
	stop()
	<-done
}

// The sum of rules that is compiled in belongs to this version of the rules. Where it does
// not fit nft or the kernel, nft itself is asked.
func TestTheKnownSumIsRight(t *testing.T) {
	s := newSpace(t)
	s.nft(Text(full()))
	l := &local{o: Options{Namespace: s.path()}, known: map[uint64]bool{}}
	f, err := l.look(t.Context())
	must(t, err)
	if f.drift != nil || len(l.known) != 1 {
		t.Errorf("drift %q, learnt %v", f.drift, l.known)
	}
	if version, _ := os.ReadFile("/proc/sys/kernel/osrelease"); !l.known[knownSum] &&
		strings.HasPrefix(string(version), "6.") && strings.Contains(s.run("nft --version"), "v1.0.6") {
		t.Errorf("the sum is now another: %v", l.known)
	}
	s.nft("flush chain inet shunt_edge forward; add rule inet shunt_edge forward accept; add rule inet shunt_edge forward accept\n")
	if f, err = l.look(t.Context()); err != nil || f.drift == nil {
		t.Errorf("other rules: drift %q, %v", f.drift, err)
	}
}
