package tunnel

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/device"

	"github.com/shunt-net/shunt/internal/profile"
)

// box is a device with its two ends. One that has lost its last peer knows nothing of
// what it did and is used again: a new device costs half a megabyte of garbage, most of
// it in buffers of 64 KiB.
type box struct {
	kind   kind
	device *device.Device
	port   *port
	tun    *echoTUN
	holder atomic.Pointer[session] // gets what comes out of the tunnel
}

// kind is what cannot be changed of a device.
type kind struct {
	quiet bool // see port
	long  bool // see port
	mtu   int  // bytes
}

// shelf holds the devices of one Test that have no peer now.
type shelf struct {
	sock  *socket
	mu    sync.Mutex
	spare map[kind][]*box
}

func newShelf(s *socket) *shelf { return &shelf{sock: s, spare: map[kind][]*box{}} }

// take returns a device that is up, has that key and no peer.
func (f *shelf) take(k kind, private profile.Key) (*box, error) {
	f.mu.Lock()
	var b *box
	if n := len(f.spare[k]); n > 0 {
		b, f.spare[k] = f.spare[k][n-1], f.spare[k][:n-1]
	}
	f.mu.Unlock()
	if b == nil {
		b = &box{kind: k, port: newPort(f.sock, k.quiet)}
		b.port.long = k.long
		b.tun = newEchoTUN(k.mtu, b.receive)
		b.device = device.NewDevice(b.tun, b.port, &device.Logger{Verbosef: device.DiscardLogf, Errorf: device.DiscardLogf})
	}
	if err := errors.Join(b.device.IpcSet("private_key="+private.Hex()+"\n"), b.device.Up()); err != nil {
		b.device.Close()
		return nil, fmt.Errorf("device: %w", err)
	}
	return b, nil
}

// give takes a device back that has no peer any more.
func (f *shelf) give(b *box) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spare[b.kind] = append(f.spare[b.kind], b)
}

func (f *shelf) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, list := range f.spare {
		for _, b := range list {
			b.device.Close()
		}
	}
	clear(f.spare)
}

func (b *box) receive(ip []byte) {
	if s := b.holder.Load(); s != nil {
		s.receive(ip)
	}
}

// add makes the subject's server a peer that is reached by the route of that name; more
// is lines of the device's configuration.
func (b *box) add(s *subject, name, more string) (*device.Peer, *route, error) {
	codec, err := s.codec()
	if err != nil {
		return nil, nil, err
	}
	r := b.port.add(name, s.endpoint, codec)
	var conf strings.Builder
	fmt.Fprintf(&conf, "public_key=%s\nendpoint=%s\n", s.public.Hex(), name)
	if !s.preshared.IsZero() {
		fmt.Fprintf(&conf, "preshared_key=%s\n", s.preshared.Hex())
	}
	conf.WriteString(more)
	if err := b.device.IpcSet(conf.String()); err != nil {
		b.remove(s, name)
		return nil, nil, fmt.Errorf("device: %w", err)
	}
	p := b.device.LookupPeer(device.NoisePublicKey(s.public))
	if p == nil { // the device passes its own key over in silence
		b.remove(s, name)
		return nil, nil, errors.New("the server's key is the client's own")
	}
	return p, r, nil
}

// remove ends the session with the subject's server: when it returns, nothing more is
// sent, and what still arrives is dropped.
func (b *box) remove(s *subject, name string) {
	b.device.RemovePeer(device.NoisePublicKey(s.public))
	b.port.drop(name)
}
