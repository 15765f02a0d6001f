package amnezia

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/shunt-net/shunt/internal/profile"
)

// generations are parameters of each one, as recorded.
func generations(t testing.TB) map[string]Params {
	t.Helper()
	out := map[string]Params{"plain": {}}
	for _, r := range recordings(t) {
		if !strings.HasSuffix(r.name, "-cookie") {
			out[r.name] = r.params(t)
		}
	}
	return out
}

// wrapped is an end behind AmneziaWG.
type wrapped struct {
	*end
	*Bind
}

func newWrapped(t testing.TB, name, addr string, inner conn.Bind, p Params, heard func(Kind, conn.Endpoint)) wrapped {
	t.Helper()
	private := privateKey(name)
	b, err := Wrap(inner, p, Options{Self: private.Public(), Now: time.Now, Heard: heard})
	if err != nil {
		t.Fatal(err)
	}
	return wrapped{newEnd(t, name, addr, private, b), b}
}

// couple are two ends that know each other; only the client knows where the other is.
func couple(t testing.TB, p Params, batch int) (client, server wrapped, n *network) {
	t.Helper()
	n = newNetwork()
	client = newWrapped(t, "client", "10.0.0.1", n.bind(t, "client", batch), p, nil)
	server = newWrapped(t, "server", "10.0.0.2", n.bind(t, "server", batch), p, nil)
	meet(client, server, "server")
	return client, server, n
}

func meet(client, server wrapped, endpoint string) {
	preshared := profile.Key{1, 2, 3}
	client.AddPeer(server.private.Public())
	server.AddPeer(client.private.Public())
	client.join(server.end, endpoint, preshared)
	server.join(client.end, "", preshared)
}

func TestEachGenerationCarriesPackets(t *testing.T) {
	for name, p := range generations(t) {
		for _, batch := range []int{1, 8} {
			t.Run(fmt.Sprintf("%s batches of %d", name, batch), func(t *testing.T) {
				client, server, n := couple(t, p, batch)
				carries(t, client, server)
				if name != "plain" {
					nothingPlain(t, client, server, n)
				}
				// The first initiation has its company, in order and before it.
				out := n.flights("client")
				company := len(p.present()) + p.Jc
				if lucky := lookalikes(t, server, out[:company]); lucky > 1 {
					t.Errorf("%d of the client's first %d datagrams pass for messages, want custom packets and junk", lucky, company)
				}
				for i, want := range p.present() {
					if got := len(out[i].data); got != want {
						t.Errorf("custom packet %d has %d bytes, want %d", i, got, want)
					}
				}
				for _, f := range out[len(p.present()) : len(p.present())+p.Jc] {
					if len(f.data) < p.Jmin || len(f.data) > p.Jmax {
						t.Errorf("junk of %d bytes, not from %d to %d", len(f.data), p.Jmin, p.Jmax)
					}
				}
				if k := server.Classify(out[len(p.present())+p.Jc].data); k != KindInitiation {
					t.Errorf("after junk comes an %s", k)
				}
			})
		}
	}
}

// lookalikes counts the datagrams that pass for messages. Junk is random: where H4 is a
// million wide, one in four thousand has a type of that range by chance, and only what
// opens a message can tell that it holds nothing. Handshakes are signed: never by chance.
func lookalikes(t testing.TB, to wrapped, company []flight) (n int) {
	t.Helper()
	for i, f := range company {
		switch k := to.Classify(f.data); k { //nolint:exhaustive // the others are wrong
		case KindUnknown:
		case KindTransport, KindCookieReply:
			n++
		default:
			t.Errorf("datagram %d is an %s, want custom packets and junk first", i, k)
		}
	}
	return n
}

// present are the sizes of the custom packets that there are.
func (p Params) present() (sizes []int) {
	for _, k := range p.I {
		if !k.IsZero() {
			n := k.Size()
			if p.Version() == V15 {
				n += 4 * strings.Count(k.String(), "<t>")
			}
			sizes = append(sizes, n)
		}
	}
	return sizes
}

func carries(t testing.TB, client, server wrapped) {
	t.Helper()
	client.sends(server.end, 84, 1)
	server.sends(client.end, 84, 2)
	for i := range byte(5) {
		client.sends(server.end, 1300, 3+i)
		server.sends(client.end, 1300, 9+i)
	}
}

// nothingPlain makes sure that the wire shows no message as WireGuard writes it, and
// that each datagram is what the other end takes it for.
func nothingPlain(t testing.TB, client, server wrapped, n *network) {
	t.Helper()
	for _, way := range []struct {
		from string
		to   wrapped
	}{{"client", server}, {"server", client}} {
		kinds := map[Kind]int{}
		for _, f := range n.flights(way.from) {
			if k := plainKind(f.data); k != KindUnknown {
				t.Errorf("%s sent %d bytes that look like WireGuard's %s", way.from, len(f.data), k)
			}
			kinds[way.to.Classify(f.data)]++
		}
		if kinds[KindTransport] == 0 || kinds[KindPlain] != 0 {
			t.Errorf("%s sent %v", way.from, kinds)
		}
	}
}

func TestTheServerBeginsHandshakesToo(t *testing.T) {
	for name, p := range generations(t) {
		t.Run(name, func(t *testing.T) {
			client, server, n := couple(t, p, 4)
			server.set("public_key=" + client.private.Public().Hex() + "\nendpoint=client\n")
			server.sends(client.end, 84, 1)
			client.sends(server.end, 1300, 2)
			if name == "plain" {
				return
			}
			if got := server.Stats().Initiations; got != 1 {
				t.Errorf("%d initiations of the server", got)
			}
			company := p.Jc + len(p.present())
			lucky := lookalikes(t, client, n.flights("server")[:company])
			if got := int(client.Stats().Dropped); got != company-lucky || lucky > 1 {
				t.Errorf("the client dropped %d datagrams, want junk and custom packets: %d", got, company-lucky)
			}
			nothingPlain(t, client, server, n)
		})
	}
}

func TestRealSocketsAndASecondHandshake(t *testing.T) {
	for name, p := range generations(t) {
		t.Run(name, func(t *testing.T) {
			client := newWrapped(t, "client", "10.0.0.1", conn.NewDefaultBind(), p, nil)
			server := newWrapped(t, "server", "10.0.0.2", conn.NewDefaultBind(), p, nil)
			meet(client, server, fmt.Sprintf("127.0.0.1:%d", port(t, server.end)))
			carries(t, client, server)
			// Many at once: the default bind joins datagrams of one size.
			var wg sync.WaitGroup
			wg.Go(func() {
				for range 200 {
					<-server.tun.Inbound
				}
			})
			for i := range 200 {
				client.tun.Outbound <- packet(client.addr, server.addr, 1300, byte(i))
			}
			wg.Wait()
			renew(t, client.end, server.end)
			carries(t, client, server)
			if got := client.Stats().Initiations; name != "plain" && got != 2 {
				t.Errorf("%d initiations, want one of each handshake", got)
			}
		})
	}
}

// renew makes a begin a new handshake with b. A device takes no two initiations of one
// key within 20 ms, nor two whose timestamps are the same when cut to 17 ms.
func renew(t testing.TB, a, b *end) {
	t.Helper()
	<-time.After(40 * time.Millisecond)
	a.peer(b).ExpireCurrentKeypairs()
	if err := a.peer(b).SendHandshakeInitiation(false); err != nil {
		t.Fatal(err)
	}
}

func port(t testing.TB, e *end) int {
	t.Helper()
	conf, err := e.dev.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(conf, "listen_port=")
	var n int
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("no port in %q", conf)
	}
	return n
}

func TestALoadedServerWantsItsCookieBack(t *testing.T) {
	for name, p := range generations(t) {
		if name == "plain" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			client, server, n := couple(t, p, 1)
			defer flood(t, n, p, server.private.Public())()
			until(t, "a handshake with a cookie", func() bool {
				renew(t, client.end, server.end)
				for range 20 {
					if client.Stats().CookiesTaken > 0 && shookHands(t, client.end) {
						return true
					}
					<-time.After(5 * time.Millisecond)
				}
				return false
			})
			if server.Stats().CookiesGiven == 0 {
				t.Error("the server counts no cookie")
			}
			client.sends(server.end, 1300, 1)
			server.sends(client.end, 1300, 2)
			proved := 0
			for _, f := range n.flights("client") {
				var stream [transportHead]byte
				if i, h := server.match(server.settings.Load(), f.data, &stream); i == initiation && typeOf(mac2Of(h)) != 0 {
					proved++
				}
			}
			if proved == 0 {
				t.Error("no initiation with a second MAC")
			}
		})
	}
}

// shookHands tells whether an end has had a handshake.
func shookHands(t testing.TB, e *end) bool {
	t.Helper()
	conf, err := e.dev.IpcGet()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(conf, "last_handshake_time_sec=") && !strings.Contains(conf, "last_handshake_time_sec=0\n")
}

// flood keeps a server busy with initiations that are right but for the sender.
func flood(t testing.TB, n *network, p Params, server profile.Key) (stop func()) {
	t.Helper()
	p.Jc, p.I = 0, [5]Packet{}
	c := newCodec(t, p, privateKey("flood").Public(), server)
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			m := message(t, initiation, server)
			m[4], m[5], m[6] = byte(i), byte(i>>8), byte(i>>16)
			k := mac1Key(server)
			sum := firstMAC(&k, m)
			copy(mac1Of(m), sum[:])
			out, err := c.Encode(nil, m, nil)
			if err != nil || len(out) != 1 {
				t.Errorf("flood: %d datagrams, %v", len(out), err)
				return
			}
			n.inject("flood", "server", out[0])
			if i%400 != 399 {
				continue
			}
			select {
			case <-end:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return func() { close(end); wg.Wait() }
}

func TestAPlainPeerIsToldApart(t *testing.T) {
	var mu sync.Mutex
	var heard []Kind
	p := generations(t)["2.0"]
	n := newNetwork()
	server := newWrapped(t, "server", "10.0.0.2", n.bind(t, "server", 1), p, func(k Kind, from conn.Endpoint) {
		mu.Lock()
		defer mu.Unlock()
		if from.DstToString() != "client" {
			t.Errorf("heard of %s", from.DstToString())
		}
		heard = append(heard, k)
	})
	client := newEnd(t, "client", "10.0.0.1", privateKey("client"), n.bind(t, "client", 1))
	server.AddPeer(client.private.Public())
	server.join(client, "", profile.Key{})
	client.join(server.end, "server", profile.Key{})
	renew(t, client, server.end)
	until(t, "a plain initiation", func() bool { return server.Stats().Plain == 1 })
	until(t, "word of it", func() bool { mu.Lock(); defer mu.Unlock(); return len(heard) == 1 })
	mu.Lock()
	if !errors.Is(heard[0].Err(), ErrPlainPeer) {
		t.Errorf("heard %s, want %v", heard[0], ErrPlainPeer)
	}
	mu.Unlock()
	if out := n.flights("server"); len(out) != 0 {
		t.Errorf("the server answered a plain initiation with %d datagrams", len(out))
	}
	// One that takes the other's key for its own is noise, not a plain peer.
	if k := server.Classify(message(t, initiation, client.private.Public())); k != KindUnknown || k.Err() != nil {
		t.Errorf("a plain initiation for somebody else is %s", k)
	}
	// With the parameters taken off the same two get on.
	if err := server.SetParams(Params{}); err != nil {
		t.Fatal(err)
	}
	client.sends(server.end, 84, 1)
}

func TestAPeerMustBeAddedBeforeItsHandshake(t *testing.T) {
	p := generations(t)["3.1"]
	n := newNetwork()
	client := newWrapped(t, "client", "10.0.0.1", n.bind(t, "client", 2), p, nil)
	server := newWrapped(t, "server", "10.0.0.2", n.bind(t, "server", 2), p, nil)
	client.join(server.end, "server", profile.Key{})
	server.join(client.end, "", profile.Key{})
	client.peer(server.end).ExpireCurrentKeypairs()
	if err := client.peer(server.end).SendHandshakeInitiation(false); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("want %v, got %v", ErrUnknownPeer, err)
	}
	if got := len(n.flights("client")); got != 0 {
		t.Errorf("%d datagrams left for a peer that was not added", got)
	}
	client.AddPeer(server.private.Public())
	server.AddPeer(client.private.Public())
	renew(t, client.end, server.end)
	client.sends(server.end, 100, 1)
	client.RemovePeer(server.private.Public())
	client.peer(server.end).ExpireCurrentKeypairs()
	if err := client.peer(server.end).SendHandshakeInitiation(false); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("after its removal: want %v, got %v", ErrUnknownPeer, err)
	}
}

// deaf is a bind that must not be touched.
type deaf struct {
	conn.Bind
	t *testing.T
}

func (d deaf) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	d.t.Error("opened")
	return nil, 0, net.ErrClosed
}

func (d deaf) Send([][]byte, conn.Endpoint) error {
	d.t.Error("sent")
	return net.ErrClosed
}

func TestWrongParametersAreRefusedBeforeAnythingIsSent(t *testing.T) {
	for name, p := range wrongParams() {
		if b, err := Wrap(deaf{t: t}, p, Options{Now: time.Now}); err == nil || b != nil {
			t.Errorf("%s: no error", name)
		}
	}
	client, server, _ := couple(t, generations(t)["1.0"], 1)
	for name, p := range wrongParams() {
		if err := client.SetParams(p); err == nil {
			t.Errorf("%s: SetParams took them", name)
		}
	}
	carries(t, client, server)
	if _, err := Wrap(deaf{t: t}, Params{}, Options{}); err == nil {
		t.Error("a wrap without a clock")
	}
}
