package lane

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	wgdevice "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/shunt-net/shunt/internal/profile"
)

// server is a WireGuard server whose inner network is in memory: it answers each UDP
// packet with the same one, tagged.
type server struct {
	name string
	key  profile.Key
	port int
	dev  *wgdevice.Device
}

func newServer(tb testing.TB, name string, delayed time.Duration) *server {
	return newServerBehind(tb, name, newDelay(conn.NewDefaultBind(), delayed))
}

func newServerBehind(tb testing.TB, name string, bind conn.Bind) *server {
	tb.Helper()
	s := &server{name: name, key: testKey(name)}
	s.dev = wgdevice.NewDevice(newEcho(name[len(name)-1]), bind, wgdevice.NewLogger(wgdevice.LogLevelSilent, ""))
	tb.Cleanup(s.dev.Close)
	s.set(tb, "private_key=%s\nlisten_port=0\n", s.key.Hex())
	if err := s.dev.Up(); err != nil {
		tb.Fatal(err)
	}
	got, err := s.dev.IpcGet()
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(got, "listen_port=")
	if _, err := fmt.Sscanf(rest, "%d", &s.port); err != nil {
		tb.Fatal(err)
	}
	return s
}

func (s *server) set(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if err := s.dev.IpcSet(fmt.Sprintf(format, args...)); err != nil {
		tb.Fatal(err)
	}
}

// knows makes the server accept a client.
func (s *server) knows(tb testing.TB, client profile.Key, psk profile.Key, addr string) *server {
	tb.Helper()
	s.set(tb, "public_key=%s\npreshared_key=%s\nreplace_allowed_ips=true\nallowed_ip=%s\n", client.Public().Hex(), psk.Hex(), addr)
	return s
}

func (s *server) endpoint() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// echo is the server's tun.
type echo struct {
	tag    byte
	back   chan []byte
	events chan tun.Event
	once   sync.Once
	closed chan struct{}
}

func newEcho(tag byte) *echo {
	e := &echo{tag: tag, back: make(chan []byte, 4096), events: make(chan tun.Event, 1), closed: make(chan struct{})}
	e.events <- tun.EventUp
	return e
}

func (e *echo) File() *os.File           { return nil }
func (e *echo) MTU() (int, error)        { return 1420, nil }
func (e *echo) Name() (string, error)    { return "echo", nil }
func (e *echo) Events() <-chan tun.Event { return e.events }
func (e *echo) BatchSize() int           { return 1 }

func (e *echo) Close() error {
	e.once.Do(func() { close(e.closed); close(e.events) })
	return nil
}

func (e *echo) Read(bufs [][]byte, sizes []int, offset int) (int, error) {
	select {
	case p := <-e.back:
		sizes[0] = copy(bufs[0][offset:], p)
		return 1, nil
	case <-e.closed:
		return 0, os.ErrClosed
	}
}

func (e *echo) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		p := append([]byte(nil), b[offset:]...)
		if len(p) < 37 || p[0] != 0x45 || p[9] != unix.IPPROTO_UDP {
			continue
		}
		src, dst := [4]byte(p[12:16]), [4]byte(p[16:20])
		copy(p[12:16], dst[:])
		copy(p[16:20], src[:])
		sp, dp := [2]byte(p[20:22]), [2]byte(p[22:24])
		copy(p[20:22], dp[:])
		copy(p[22:24], sp[:])
		p[26], p[27] = 0, 0 // no checksum: the tag changes it
		p[36] = e.tag
		select {
		case e.back <- p:
		default:
		}
	}
	return len(bufs), nil
}
