package amnezia

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/shunt-net/shunt/internal/profile"
)

// patience bounds every wait of the tests.
const patience = 10 * time.Second

// recording is one conversation of the reference implementation with itself.
type recording struct {
	name      string
	Version   string            `json:"version"`
	Client    string            `json:"client_private_key"`
	Server    string            `json:"server_private_key"`
	Preshared string            `json:"preshared_key"`
	Conf      map[string]string `json:"conf"`
	Datagrams []struct {
		N    int    `json:"n"`
		Dir  string `json:"dir"`
		Kind string `json:"kind"`
		Hex  string `json:"hex"`
	} `json:"datagrams"`
}

func recordings(t testing.TB) []recording {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) != 10 {
		t.Fatalf("%d recordings, want 10 (%v)", len(files), err)
	}
	var out []recording
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		r := recording{name: strings.TrimSuffix(filepath.Base(f), ".json")}
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, r)
	}
	return out
}

func (r recording) params(t testing.TB) Params {
	t.Helper()
	var p profile.Profile
	for k, v := range r.Conf {
		p.Obfuscation = append(p.Obfuscation, profile.KeyValue{Key: k, Value: v})
	}
	out, err := FromProfile(p)
	if err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	return out
}

func (r recording) bytes(t testing.TB, i int) []byte {
	t.Helper()
	b, err := hex.DecodeString(r.Datagrams[i].Hex)
	if err != nil {
		t.Fatalf("%s: datagram %d: %v", r.name, i, err)
	}
	return b
}

func key(t testing.TB, base64 string) profile.Key {
	t.Helper()
	if base64 == "" {
		return profile.Key{}
	}
	k, err := profile.ParseKey(base64)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// privateKey is a key of its own for each name.
func privateKey(name string) (k profile.Key) {
	copy(k[:], name)
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

func newCodec(t testing.TB, p Params, self profile.Key, peers ...profile.Key) *Codec {
	t.Helper()
	c, err := NewCodec(p, Options{Self: self, Peers: peers, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// network joins memory binds by their names.
type network struct {
	mu    sync.Mutex
	binds map[string]*memory
	log   []flight
}

type flight struct {
	from, to string
	data     []byte
}

// memory is a conn.Bind without a socket.
type memory struct {
	net   *network
	name  string
	batch int
	t     testing.TB

	mu     sync.Mutex
	in     chan flight
	closed chan struct{}
}

type spot string

func (p spot) ClearSrc()           {}
func (p spot) SrcToString() string { return "" }
func (p spot) DstToString() string { return string(p) }
func (p spot) DstToBytes() []byte  { return []byte(p) }
func (p spot) DstIP() netip.Addr   { return netip.Addr{} }
func (p spot) SrcIP() netip.Addr   { return netip.Addr{} }

func newNetwork() *network { return &network{binds: map[string]*memory{}} }

func (n *network) bind(t testing.TB, name string, batch int) *memory {
	m := &memory{net: n, name: name, batch: batch, t: t}
	n.mu.Lock()
	n.binds[name] = m
	n.mu.Unlock()
	return m
}

// flights are the datagrams that have left name so far.
func (n *network) flights(name string) (out []flight) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.log {
		if f.from == name {
			out = append(out, f)
		}
	}
	return out
}

// inject puts a datagram before the bind of that name.
func (n *network) inject(from, to string, data []byte) {
	n.mu.Lock()
	b := n.binds[to]
	n.log = append(n.log, flight{from, to, data})
	n.mu.Unlock()
	if b == nil {
		return
	}
	b.mu.Lock()
	in := b.in
	b.mu.Unlock()
	select {
	case in <- flight{from, to, data}:
	default: // closed, or full like any queue of a network
	}
}

func (m *memory) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, closed := make(chan flight, 4096), make(chan struct{})
	m.in, m.closed = in, closed
	receive := func(bufs [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		take := func(i int, f flight) { sizes[i], from[i] = copy(bufs[i], f.data), spot(f.from) }
		select {
		case f := <-in:
			take(0, f)
		case <-closed:
			return 0, net.ErrClosed
		}
		for n := 1; n < m.batch; n++ {
			select {
			case f := <-in:
				take(n, f)
			default:
				return n, nil
			}
		}
		return m.batch, nil
	}
	return []conn.ReceiveFunc{receive}, port, nil
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.in != nil {
		close(m.closed)
		m.in = nil
	}
	return nil
}

func (m *memory) SetMark(uint32) error { return nil }
func (m *memory) BatchSize() int       { return m.batch }

func (m *memory) ParseEndpoint(s string) (conn.Endpoint, error) { return spot(s), nil }

func (m *memory) Send(bufs [][]byte, to conn.Endpoint) error {
	if len(bufs) > m.batch {
		m.t.Errorf("%s was given %d datagrams at once, takes %d", m.name, len(bufs), m.batch)
	}
	for _, b := range bufs {
		m.net.inject(m.name, to.DstToString(), bytes.Clone(b))
	}
	return nil
}

// end is one end of a tunnel: an upstream device.
type end struct {
	t       testing.TB
	name    string
	private profile.Key
	addr    netip.Addr
	tun     *tuntest.ChannelTUN
	dev     *device.Device
	bind    conn.Bind
}

// newEnd starts a device; conf is more of its configuration.
func newEnd(t testing.TB, name, addr string, private profile.Key, bind conn.Bind) *end {
	t.Helper()
	e := &end{t: t, name: name, private: private, addr: netip.MustParseAddr(addr), tun: tuntest.NewChannelTUN(), bind: bind}
	quiet := &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf}
	e.dev = device.NewDevice(e.tun.TUN(), bind, quiet)
	t.Cleanup(e.dev.Close)
	e.set("private_key=" + private.Hex() + "\n")
	if err := e.dev.Up(); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *end) set(conf string) {
	e.t.Helper()
	if err := e.dev.IpcSet(conf); err != nil {
		e.t.Fatalf("%s: %v", e.name, err)
	}
}

// join makes o a peer, reached at endpoint unless it is empty.
func (e *end) join(o *end, endpoint string, preshared profile.Key) {
	e.t.Helper()
	conf := fmt.Sprintf("public_key=%s\npreshared_key=%s\nallowed_ip=%s/32\n", o.private.Public().Hex(), preshared.Hex(), o.addr)
	if endpoint != "" {
		conf += "endpoint=" + endpoint + "\n"
	}
	e.set(conf)
}

// peer is the device's idea of o.
func (e *end) peer(o *end) *device.Peer {
	return e.dev.LookupPeer(device.NoisePublicKey(o.private.Public()))
}

// packet is an IPv4 packet of that size whose content tells it from others.
func packet(from, to netip.Addr, size int, mark byte) []byte {
	p := slices.Concat(tuntest.Ping(to, from), bytes.Repeat([]byte{mark}, size))[:size]
	p[2], p[3] = byte(size>>8), byte(size)
	return p
}

// sends tells whether a packet of that size comes out at the other end as it went in.
func (e *end) sends(o *end, size int, mark byte) {
	e.t.Helper()
	want := packet(e.addr, o.addr, size, mark)
	limit := time.After(patience)
	select {
	case e.tun.Outbound <- want:
	case <-limit:
		e.t.Fatalf("%s takes no packet", e.name)
	}
	select {
	case got := <-o.tun.Inbound:
		if !bytes.Equal(got, want) {
			e.t.Fatalf("%s to %s: %d bytes came out changed: %x", e.name, o.name, size, got)
		}
	case <-limit:
		e.t.Fatalf("%s to %s: a packet of %d bytes was lost", e.name, o.name, size)
	}
}

// until polls a condition.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		<-time.After(2 * time.Millisecond)
	}
}
