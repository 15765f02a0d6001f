package tunnel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/device"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/tunnel/wgtest"
)

// tap is the wire in front of a server: it counts what a client sends there, by the form
// that plain WireGuard gives it, and hands it on.
type tap struct {
	t      *testing.T
	conn   *net.UDPConn
	server netip.AddrPort                 // handed on to; the zero value = to nobody
	answer func(initiation []byte) []byte // instead of a server's; nil = none

	mu     sync.Mutex
	all    int
	plain  map[byte]int // by type
	onward map[netip.AddrPort]*net.UDPConn
	marks  int
}

var mark = []byte("mark")

func newTap(t *testing.T, server netip.AddrPort, answer func([]byte) []byte) *tap {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	w := &tap{t: t, conn: c, server: server, answer: answer, plain: map[byte]int{}, onward: map[netip.AddrPort]*net.UDPConn{}}
	var reader sync.WaitGroup
	reader.Go(w.read)
	t.Cleanup(func() {
		_ = c.Close()
		reader.Wait()
	})
	return w
}

func (w *tap) read() {
	var back sync.WaitGroup
	defer back.Wait()
	defer func() {
		for _, c := range w.onward {
			_ = c.Close()
		}
	}()
	buf := make([]byte, 1<<16)
	for {
		n, from, err := w.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if w.count(buf[:n]); w.answer != nil && isPlain(buf[:n]) == typeInitiation {
			_, _ = w.conn.WriteToUDPAddrPort(w.answer(buf[:n]), from)
		}
		if !w.server.IsValid() {
			continue
		}
		c := w.onward[from]
		if c == nil {
			if c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(w.server)); err != nil {
				w.t.Error(err)
				return
			}
			w.onward[from] = c
			back.Go(func() {
				buf := make([]byte, 1<<16)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					_, _ = w.conn.WriteToUDPAddrPort(buf[:n], from)
				}
			})
		}
		_, _ = c.Write(buf[:n])
	}
}

// isPlain is the type of a message in plain WireGuard, 0 = it is none.
func isPlain(b []byte) byte {
	if len(b) < minMessage || b[0] == 0 || b[0] > typeTransport || !bytes.Equal(b[1:4], []byte{0, 0, 0}) {
		return 0
	}
	return b[0]
}

func (w *tap) count(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Equal(b, mark) {
		w.marks++
		return
	}
	w.all++
	if k := isPlain(b); k != 0 {
		w.plain[k]++
	}
}

// counts are what came in until now: the mark is behind it in the socket's queue.
func (w *tap) counts() (all int, plain map[byte]int) {
	w.t.Helper()
	c, err := net.Dial("udp4", w.conn.LocalAddr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	w.mu.Lock()
	was := w.marks
	w.mu.Unlock()
	if _, err := c.Write(mark); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, "the mark is read", 5*time.Second, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.marks > was
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all, w.plain
}

// tapped writes a profile of endpoint i that leads to the tap.
func (w *tap) tapped(s *wgtest.Server, i int) egress.TestTarget {
	w.t.Helper()
	at := w.conn.LocalAddr().String()
	text := strings.Replace(s.Profile(i), "Endpoint = "+s.Addr(i).String(), "Endpoint = "+at, 1)
	path := filepath.Join(w.t.TempDir(), fmt.Sprintf("tapped-%d.conf", i))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return egress.TestTarget{Endpoint: at, Path: path, Pair: fmt.Sprintf("tapped-%d", i)}
}

// The one datagram that leaves without obfuscation is what keeps a wrong profile from
// looking like a dead server. A second one, or the keepalive that ends a handshake, would
// tell a censor what the first one may not have.
func TestASilentServerGetsOneInitiationOfPlainWireGuard(t *testing.T) {
	says := func(int) []profile.KeyValue { return recorded(t, "3.1") }
	one := map[byte]int{typeInitiation: 1}
	for _, tt := range []struct {
		name   string
		served bool // a plain server is behind the wire
		cookie bool // what is there is under load
		reason string
	}{
		{name: "nobody answers", reason: ReasonNoHandshake},
		{name: "a plain server", served: true, reason: ReasonPlain},
		{name: "a plain server under load", cookie: true, reason: ReasonPlain},
	} {
		for way, parallel := range map[string]int{"straight": 64, "through the sieve": 1} {
			t.Run(tt.name+", "+way, func(t *testing.T) {
				t.Parallel()
				s, _ := serve(t, 2, wgtest.Options{Says: says})
				var taps []*tap
				var targets []egress.TestTarget
				for i := range s.Len() {
					var w *tap
					switch {
					case tt.served:
						w = newTap(t, s.Addr(i), nil)
					case tt.cookie:
						w = newTap(t, netip.AddrPort{}, cookies(t, s.Public(i)))
					default:
						w = newTap(t, netip.AddrPort{}, nil)
					}
					taps, targets = append(taps, w), append(targets, w.tapped(s, i))
				}
				c := config()
				c.Parallel = parallel
				results, err := runTest(t, t.Context(), c, targets, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i, w := range taps {
					if got := results[targets[i].Path].Reason; got != tt.reason {
						t.Errorf("endpoint %d: %q, want %q", i, got, tt.reason)
					}
					all, plain := w.counts()
					if diff := cmp.Diff(one, plain); diff != "" {
						t.Errorf("endpoint %d: messages of plain WireGuard by type (-want +got):\n%s", i, diff)
					}
					if all < 3 { // each try takes junk along
						t.Errorf("endpoint %d: %d datagrams in all: it was not tried in AmneziaWG", i, all)
					}
				}
			})
		}
	}
}

// cookies answers each initiation as a server under load does.
func cookies(t *testing.T, public [32]byte) func([]byte) []byte {
	var checker device.CookieChecker
	checker.Init(device.NoisePublicKey(public))
	return func(initiation []byte) []byte {
		m, err := checker.CreateReply(initiation, binary.LittleEndian.Uint32(initiation[4:]), []byte("from"))
		if err != nil {
			t.Error(err)
			return nil
		}
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, m); err != nil {
			t.Error(err)
		}
		return b.Bytes()
	}
}
