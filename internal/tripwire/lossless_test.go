package tripwire

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// house is one server of the far end that this process itself is.
type house struct {
	ln    net.Listener
	addr  netip.AddrPort
	mu    sync.Mutex
	conns []net.Conn
	ended int // connections that we closed
}

func (w world) houses(t *testing.T, n int) (all []*house, leave func()) {
	t.Helper()
	must(t, w.far.Do(func() error {
		for range n {
			ln, err := net.Listen("tcp", far4+":0")
			if err != nil {
				return err
			}
			all = append(all, &house{ln: ln, addr: ln.Addr().(*net.TCPAddr).AddrPort()})
		}
		return nil
	}))
	for _, h := range all {
		go func() {
			for {
				c, err := h.ln.Accept()
				if err != nil {
					return
				}
				h.mu.Lock()
				h.conns = append(h.conns, c)
				h.mu.Unlock()
			}
		}()
	}
	return all, func() {
		for _, h := range all {
			_ = h.ln.Close()
			h.hangUp(false)
		}
	}
}

// holds counts the connections that stand.
func (h *house) holds() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns)
}

// hangUp ends the connections that stand, with a reset where the caller wants one.
func (h *house) hangUp(reset bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		if reset {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		_ = c.Close()
		h.ended++
	}
	h.conns = nil
}

// No hint is lost between Arm and the reader: as many connections as servers end, so many
// hints come, each after the one before it, however late they are read and whatever is
// armed meanwhile.
func TestNoHintIsLost(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(r *rapid.T) {
		all, leave := w.houses(t, 12)
		defer leave()
		s, err := New(Options{Pause: time.Millisecond, Again: 2 * time.Millisecond, Shorts: 1 << 30})
		must(t, err)
		defer s.Close()
		var list []Target
		for _, h := range all {
			list = append(list, Target{Addr: h.addr, Short: 1}) // else a life may be learned, and the end be ours
		}
		s.Arm(list)
		read := map[netip.AddrPort]int{}
		last := time.Time{}
		take := func(hints []Hint) {
			for _, h := range hints {
				if h.At.Before(last) {
					t.Errorf("a hint of %v after one of %v", h.At, last)
				}
				last = h.At
				read[h.Addr]++
			}
		}
		for range rapid.IntRange(1, 6).Draw(r, "rounds") {
			eventually(t, "all stand", func() bool {
				for _, h := range all {
					if h.holds() == 0 {
						return false
					}
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.stood == len(all)
			})
			for i, h := range all {
				switch rapid.IntRange(0, 3).Draw(r, "what") {
				case 0:
					h.hangUp(false)
				case 1:
					h.hangUp(true)
				case 2:
					s.Arm(append(list[i:len(list):len(list)], list[:i]...))
				}
			}
			if rapid.Bool().Draw(r, "read") {
				take(pendingHints(s))
			}
		}
		eventually(t, "as many hints as ends", func() bool {
			take(pendingHints(s))
			sum, want := 0, 0
			for _, h := range all {
				h.mu.Lock()
				want += h.ended
				h.mu.Unlock()
				sum += read[h.addr]
			}
			return sum >= want
		})
		for _, h := range all {
			if read[h.addr] != h.ended {
				t.Errorf("%s: %d hints of %d ends", h.addr, read[h.addr], h.ended)
			}
		}
	})
}

// The kernel throws news away when nobody reads it in time: then everything is looked at.
func TestLostNewsOfListenersIsMadeUpFor(t *testing.T) {
	w := newWorld(t)
	addr := addrPort("10.79.0.1", 8031)
	srv := w.start(t, true, "holds", addr.String())
	s := newSet(t, Options{})
	must(t, unix.SetsockoptInt(s.diag.events, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	s.Arm(targets(addr))
	becomes(t, s, addr, StateLocal)
	func() {
		s.mu.Lock() // nobody reads
		defer s.mu.Unlock()
		for range 200 {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			must(t, ln.Close())
		}
		srv.kill()
	}()
	if h := next(t, s); h.Addr != addr || h.Kind != KindListener {
		t.Errorf("hint %+v", h)
	}
}

// Where the kernel has no socket diagnosis, a connection does.
func TestWithoutDiagnosisLocalServersGetAConnection(t *testing.T) {
	w := newWorld(t)
	addr := addrPort("10.79.0.1", 8032)
	srv := w.start(t, true, "holds", addr.String())
	s := newSet(t, Options{})
	s.mu.Lock()
	s.diag.close()
	s.diag = nil
	s.mu.Unlock()
	s.Arm(targets(addr))
	becomes(t, s, addr, StateArmed)
	srv.shoot()
	if h := next(t, s); h.Kind != KindClosed && h.Kind != KindReset {
		t.Errorf("hint %+v", h)
	}
}

func TestWhoListens(t *testing.T) {
	w := newWorld(t)
	w.start(t, true, "holds", "10.79.0.1:8041")
	w.start(t, true, "holds", ":8042") // both families
	w.start(t, true, "holds", "0.0.0.0:8043")
	w.start(t, true, "holds", "[::1]:8044")
	w.start(t, false, "holds", ":8045")
	d, err := openDiag()
	must(t, err)
	defer d.close()
	for addr, want := range map[string]bool{
		"10.79.0.1:8041": true, "127.0.0.1:8041": false, "10.79.0.1:8040": false,
		"10.79.0.1:8042": true, "127.0.0.1:8042": true, "[::1]:8042": true, "[fd79::1]:8042": true,
		"10.79.0.1:8043": true,
		"[::1]:8044":     true, "127.0.0.1:8044": false, "[fd79::1]:8044": false,
		"10.79.0.2:8045": false,
	} {
		got, err := d.listens(netip.MustParseAddrPort(addr))
		if err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", addr, got, err, want)
		}
	}
}

func FuzzParseDestroyed(f *testing.F) {
	message := func(port, peer byte) []byte {
		b := make([]byte, diagSize)
		b[0], b[4], b[portAt+1], b[peerAt+1] = diagSize, typeByFamily, port, peer
		return b
	}
	f.Add(message(80, 0))
	f.Add(append(message(80, 0), message(81, 9)...))
	f.Add(message(80, 0)[:30])
	f.Add([]byte{16, 0, 0, 0, 2, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if ports := parseDestroyed(b); len(ports) > len(b)/diagSize {
			t.Errorf("%d ports in %d bytes", len(ports), len(b))
		}
		if here, mine, err := answer(b, 1); here && (!mine || err != nil) {
			t.Errorf("here %v, mine %v, %v", here, mine, err)
		}
	})
}
