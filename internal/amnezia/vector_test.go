package amnezia

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shunt-net/shunt/internal/profile"
)

func kindOf(t *testing.T, word string) Kind {
	t.Helper()
	k, ok := map[string]Kind{
		"i1": KindUnknown, "i2": KindUnknown, "i3": KindUnknown, "i4": KindUnknown, "i5": KindUnknown, "junk": KindUnknown,
		"initiation": KindInitiation, "response": KindResponse, "cookie": KindCookieReply,
		"transport": KindTransport, "keepalive": KindTransport,
	}[word]
	if !ok {
		t.Fatalf("a recorded datagram of kind %q", word)
	}
	return k
}

// codecs are the two ends of a recording.
func (r recording) codecs(t *testing.T) (client, server *Codec) {
	t.Helper()
	c, s := key(t, r.Client).Public(), key(t, r.Server).Public()
	return newCodec(t, r.params(t), c, s), newCodec(t, r.params(t), s, c)
}

func TestEachRecordedDatagramIsWhatItIs(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			client, server := r.codecs(t)
			for i, d := range r.Datagrams {
				c, left := server, 0
				if d.Dir == "server>client" {
					c = client
				}
				b, want := r.bytes(t, i), kindOf(t, d.Kind)
				before := bytes.Clone(b)
				if got := c.Classify(b); got != want {
					t.Errorf("datagram %d, %s: classified as %s", d.N, d.Kind, got)
				}
				if !bytes.Equal(b, before) {
					t.Fatalf("datagram %d: Classify changed it", d.N)
				}
				size, got := c.Decode(b, len(b), nil)
				if got != want {
					t.Errorf("datagram %d, %s: decoded as %s", d.N, d.Kind, got)
				}
				switch want {
				case KindInitiation, KindResponse:
					left = messageSizes[want-1]
				case KindTransport:
					left = len(before) - r.params(t).S[3]
				case KindUnknown, KindCookieReply, KindPlain:
				}
				if size != left {
					t.Errorf("datagram %d, %s: %d bytes came out, want %d", d.N, d.Kind, size, left)
				}
				if size > 0 && plainKind(b[:size]) != want {
					t.Errorf("datagram %d, %s: came out as %x", d.N, d.Kind, b[:16])
				}
			}
		})
	}
}

func TestEachRecordedInitiationIsAnswered(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			for i, d := range r.Datagrams {
				if d.Kind == "initiation" {
					answered(t, r, r.bytes(t, i))
				}
			}
		})
	}
}

// answered feeds an initiation to an upstream device with the server's key.
func answered(t *testing.T, r recording, initiation []byte) {
	t.Helper()
	clientKey, serverKey := key(t, r.Client), key(t, r.Server)
	n := newNetwork()
	bind, err := Wrap(n.bind(t, "server", 1), r.params(t), Options{
		Self: serverKey.Public(), Peers: []profile.Key{clientKey.Public()}, Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	e := newEnd(t, "server", "10.0.0.1", serverKey, bind)
	client := newCodec(t, r.params(t), clientKey.Public(), serverKey.Public())
	e.set("public_key=" + clientKey.Public().Hex() + "\npreshared_key=" + key(t, r.Preshared).Hex() + "\n")

	responses := func() (found int) {
		for _, f := range n.flights("server") {
			if client.Classify(f.data) == KindResponse {
				found++
			}
		}
		return found
	}
	// One bit of the message off and it is nothing, wherever it is; a byte of the prefix may change,
	// but with header protection that is the nonce.
	p := r.params(t)
	for _, at := range []int{p.S[0], p.S[0] + 40, p.S[0] + 147 - 16} {
		wrong := bytes.Clone(initiation)
		wrong[at] ^= 0x40
		if k := bind.Classify(wrong); k == KindInitiation {
			t.Errorf("an initiation with byte %d changed is still one", at)
		}
		n.inject("client", "server", wrong)
	}
	n.inject("client", "server", initiation)
	until(t, "a response", func() bool { return responses() > 0 })
	if got := responses(); got != 1 {
		t.Errorf("%d responses to one initiation", got)
	}
	if got := bind.Stats().Dropped; got != 3 {
		t.Errorf("%d datagrams dropped, want the 3 altered ones", got)
	}
}

func TestRecordedCookiesAreOpenedAndUsed(t *testing.T) {
	found := 0
	for _, r := range recordings(t) {
		client, server := r.codecs(t)
		serverKey := key(t, r.Server).Public()
		var first []byte
		for i, d := range r.Datagrams {
			b := r.bytes(t, i)
			switch d.Kind {
			case "initiation":
				var stream [transportHead]byte
				_, h := server.match(server.settings.Load(), b, &stream)
				if taken := client.peers[serverKey].taken; first != nil && !taken.at.IsZero() {
					found++
					if want := secondMAC(&taken.cookie, h); !bytes.Equal(want[:], mac2Of(h)) {
						t.Errorf("%s: the second initiation's second MAC is not what the cookie gives", r.name)
					}
				}
				first = h
				p := client.peers[serverKey]
				p.sent, p.index, p.mac = true, index(h), [macSize]byte(mac1Of(h))
			case "cookie":
				client.Decode(b, len(b), nil)
				if client.Stats().CookiesTaken != 1 {
					t.Errorf("%s: the cookie was not opened", r.name)
				}
			}
		}
	}
	if found != 2 {
		t.Errorf("%d conversations with cookies, want 2", found)
	}
}

func TestACookieIsUsedForTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := privateKey("a").Public(), privateKey("b").Public()
		p := Params{S: [4]int{20, 30, 0, 0}, H: [4]Range{{10, 10}, {20, 20}, {30, 30}, {40, 40}}}
		c := newCodec(t, p, a, b)
		c.peers[b].taken = given{cookie: [macSize]byte{1}, at: time.Now()}
		proved := func() bool {
			out, err := c.Encode(nil, message(t, initiation, b), nil)
			if err != nil || len(out) != 1 {
				t.Fatalf("%d datagrams, %v", len(out), err)
			}
			return !bytes.Equal(mac2Of(out[0]), make([]byte, macSize))
		}
		if !proved() {
			t.Error("no second MAC with a fresh cookie")
		}
		time.Sleep(119 * time.Second)
		if !proved() {
			t.Error("no second MAC after 119 s")
		}
		time.Sleep(2 * time.Second)
		if proved() {
			t.Error("a second MAC after 121 s")
		}
	})
}

// message is a message of WireGuard for the holder of a public key, of no meaning but
// with the right form and first MAC.
func message(t testing.TB, i int, to profile.Key) []byte {
	t.Helper()
	m := make([]byte, messageSizes[i])
	for k := range m {
		m[k] = byte(k)
	}
	setType(m, uint32(i+1))
	if i == initiation || i == response {
		k := mac1Key(to)
		sum := firstMAC(&k, m)
		copy(mac1Of(m), sum[:])
		clear(mac2Of(m))
	}
	return m
}
