package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

// answers asks on all four ways and wants the name from each; seen is what the candidate
// may take the client for ("" = the address of the asker).
func (w *world) answers(s *space, want string, seen ...string) {
	w.tb.Helper()
	for network, to := range paths() {
		name, from, err := s.ask(network, to)
		if err != nil || name != want {
			w.tb.Errorf("%s: answered by %q, %v; want %s", network, name, err, want)
		} else if !slices.Contains(seen, from.String()) {
			w.tb.Errorf("%s: %s saw %s, want one of %s", network, name, from, seen)
		}
	}
}

func TestFlipsAreSeenByRealConnections(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := door(w.space)
			apply(t, r, led(one4, one6, 1))
			w.answers(w.client, "one", client4, client6)
			old := map[string]*conn{}
			for _, network := range []string{"tcp4", "tcp6"} {
				c, err := w.client.dial(network, paths()[network], time.Second)
				must(t, err)
				defer func() { _ = c.Close() }()
				old[network] = c
			}
			// Each family on its own, then both.
			apply(t, r, led(two4, one6, 2))
			if name, _, err := w.client.ask("tcp4", paths()["tcp4"]); name != "two" {
				t.Errorf("IPv4 moved, yet %q answers, %v", name, err)
			}
			if name, _, err := w.client.ask("udp6", paths()["udp6"]); name != "one" {
				t.Errorf("IPv6 did not move, yet %q answers, %v", name, err)
			}
			apply(t, r, led(two4, two6, 3))
			w.answers(w.client, "two", client4, client6)
			for network, c := range old {
				if err := c.echo("still here"); err != nil {
					t.Errorf("%s: a connection from before: %v", network, err)
				}
			}
			apply(t, r, led("", "", 4))
			for network, to := range paths() {
				if name, _, err := w.client.ask(network, to); err == nil {
					t.Errorf("%s: without a target %q answers", network, name)
				}
			}
		})
	}
}

// The port is rewritten for the service only: who asks a candidate directly is left alone.
func TestPortsAreRewrittenForTheServiceOnly(t *testing.T) {
	w := newWorld(t)
	apply(t, w.local(), led(one4, one6, 1))
	for network, direct := range map[string]string{"tcp4": at(two4, actual).String(), "udp6": at(two6, actual).String()} {
		if name, from, err := w.client.ask(network, direct); name != "two" || from.String() != client4 && from.String() != client6 {
			t.Errorf("%s to a candidate: %q, seen as %s, %v", network, name, from, err)
		}
	}
	if name, _, err := w.client.ask("tcp4", at(one4, public).String()); err == nil {
		t.Errorf("the candidate answers on the service's port: %q", name)
	}
	if name, _, err := w.client.ask("tcp4", at(vip4, actual).String()); err == nil {
		t.Errorf("the virtual address answers on the candidate's port: %q", name)
	}
}

// A replica that does not hold the address touches neither its own traffic nor what passes.
func TestWithoutTheAddressNothingHappens(t *testing.T) {
	w := newWorld(t)
	apply(t, w.local(), led(one4, one6, 1))
	w.yield()
	w.hold(w.two) // another machine has it, and answers it itself
	w.serve(w.two, "holder", public, vip4, vip6)
	w.run("ip route add " + vip4 + " via " + two4)
	w.run("ip -6 route add " + vip6 + " via " + two6)
	w.answers(w.client, "holder", client4, client6)
	w.answers(w.space, "holder", router4, "fd20::1")
	w.answers(w.one, "holder", one4, one6)
}

func TestHairpin(t *testing.T) {
	w := newWorld(t)
	neighbour := newSpace(t)
	w.link("b3", "br0", neighbour, "", "10.20.0.13/24 fd20::13/64", router4+" fd20::1")
	w.settled(neighbour)
	r := w.local()
	apply(t, r, led(one4, one6, 1))
	ours := []string{router4, "fd20::1"}
	w.answers(neighbour, "one", ours...)         // in the candidate's subnet
	w.answers(w.one, "one", ours...)             // the candidate itself
	w.answers(w.two, "one", ours...)             // the other candidate
	w.answers(w.space, "one", ours...)           // the holder
	w.answers(w.client, "one", client4, client6) // nobody else is hidden
	for name, direct := range map[string]string{"one": at(one4, actual).String(), "two": at(two6, actual).String()} {
		for _, from := range []*space{neighbour, w.client} {
			network := "tcp4"
			if strings.HasPrefix(direct, "[") {
				network = "tcp6"
			}
			got, seen, err := from.ask(network, direct)
			if got != name || seen == netip.MustParseAddr(router4) || seen == netip.MustParseAddr("fd20::1") {
				t.Errorf("directly to %s: %q, seen as %s, %v", name, got, seen, err)
			}
		}
	}
	// Each of them follows a flip.
	apply(t, r, led(two4, two6, 2))
	for _, s := range []*space{neighbour, w.one, w.two, w.space} {
		w.answers(s, "two", ours...)
	}
}

func TestAlways(t *testing.T) {
	w := newWorld(t)
	table := led(one4, one6, 1)
	for _, p := range []edge.Protocol{edge.TCP, edge.UDP} {
		for _, a := range []string{one4, one6} {
			table.Always = append(table.Always, edge.Endpoint{Protocol: p, Addr: at(a, actual)})
		}
	}
	table, err := canonical(table)
	must(t, err)
	r := w.local()
	apply(t, r, table)
	w.answers(w.client, "one", router4, "fd20::1")
	for i := range table.Targets { // to one that does not ask for it
		to := two4
		if table.Targets[i].From.Addr.Addr().Is6() {
			to = two6
		}
		table.Targets[i].To = at(to, actual)
	}
	apply(t, r, table)
	w.answers(w.client, "two", client4, client6)
}

// The node table answers the replica's own addresses, also where it is not the holder.
func TestNodeTable(t *testing.T) {
	w := newWorld(t)
	table := led(two4, two6, 1)
	for _, p := range []edge.Protocol{edge.TCP, edge.UDP} {
		for own, to := range map[string]string{"10.10.0.1": one4, "fd10::1": one6} {
			from := edge.Endpoint{Protocol: p, Addr: at(own, public)}
			table.Nodes = append(table.Nodes, edge.Element{From: from, To: at(to, actual)})
			table.Services = append(table.Services, from)
			table.Addresses = append(table.Addresses, from.Addr.Addr())
		}
	}
	table, err := canonical(table)
	must(t, err)
	apply(t, w.local(), table)
	for _, holder := range []bool{true, false} {
		if !holder {
			w.yield()
		}
		for network, to := range map[string]string{
			"tcp4": at("10.10.0.1", public).String(), "udp4": at("10.10.0.1", public).String(),
			"tcp6": at("fd10::1", public).String(), "udp6": at("fd10::1", public).String(),
		} {
			name, seen, err := w.client.ask(network, to)
			if name != "one" || seen.String() != client4 && seen.String() != client6 {
				t.Errorf("holder %v, %s: %q, seen as %s, %v", holder, network, name, seen, err)
			}
		}
	}
}

// The transport protocol is found behind extension headers.
func TestDestinationOptions(t *testing.T) {
	w := newWorld(t)
	apply(t, w.local(), led(one4, one6, 1))
	w.nft("table ip6 seen { chain forward { type filter hook forward priority 10; exthdr dst exists counter; }; }")
	options := func(fd int) error {
		const padN = 1
		return unix.SetsockoptString(fd, unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, string([]byte{0, 0, padN, 4, 0, 0, 0, 0}))
	}
	for _, network := range []string{"tcp6", "udp6"} {
		c, err := w.client.dial(network, paths()[network], time.Second, options)
		if err != nil {
			t.Errorf("%s: %v", network, err)
			continue
		}
		if c.name != "one" || c.seen.String() != client6 {
			t.Errorf("%s: answered by %s, which saw %s", network, c.name, c.seen)
		}
		if network == "tcp6" {
			must(t, c.echo("behind options"))
		}
		must(t, c.Close())
	}
	if list := w.run("nft list table ip6 seen"); strings.Contains(list, "packets 0 ") {
		t.Errorf("the packets had no such header:\n%s", list)
	}
}

// Who connects while the table is moved is answered by the old or the new one. Where the whole
// table is made anew the kernel changes its hooks one after another, and a packet that comes
// between them may meet none: who asks again is answered.
func TestNoConnectionMissesAnElement(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := door(w.space)
			v := apply(t, r, led(one4, one6, 1))
			var asked, made atomic.Int64 // made is odd while the table is made anew
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for network, to := range paths() {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						before := made.Load()
						name, _, err := w.client.ask(network, to)
						if err != nil && (before%2 == 1 || made.Load() != before) {
							name, _, err = w.client.ask(network, to)
						}
						if err != nil || name == "" {
							t.Errorf("%s: %q, %v", network, name, err)
							return
						}
						asked.Add(1)
					}
				})
			}
			for n := uint64(2); n < 200 || asked.Load() < 400 && !t.Failed() && n < 20000; n++ {
				to4, to6 := one4, one6
				if n%2 == 0 {
					to4, to6 = two4, two6
				}
				anew := int64(0)
				if n%20 == 0 {
					v.Drift, anew = []string{"somebody was here"}, 1 // all of the table is made anew
				}
				made.Add(anew)
				var err error
				v, err = r.Apply(t.Context(), v, led(to4, to6, n))
				made.Add(anew)
				if err != nil {
					t.Error(err)
					break
				}
			}
			close(stop)
			wg.Wait()
			if asked.Load() < 100 {
				t.Errorf("only %d connections", asked.Load())
			}
			t.Log(fmt.Sprint(asked.Load()), "connections")
		})
	}
}
