package backend

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// journal is what a server complains of.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// begin starts a server on a free port of the loopback.
func begin(t *testing.T, o Options) (addr string, complaints *journal) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	go newServer(o, j).accept(t.Context(), l)
	return l.Addr().String(), j
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// ended says whether a connection was closed by the server, rather than timed out.
func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

func TestAServerSaysItsNameAndEchoes(t *testing.T) {
	t.Parallel()
	addr, _ := begin(t, Options{Name: "a"})
	c := dial(t, addr)
	r := bufio.NewReader(c)
	if got, err := r.ReadString('\n'); got != "a\n" {
		t.Fatalf("it said %q, %v", got, err)
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.ReadString('\n'); got != "hello\n" {
		t.Errorf("it sent back %q, %v", got, err)
	}
}

func TestConnectionsThatAServerEnds(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"silent ones":             {Name: "a", Idle: 50 * time.Millisecond},
		"all, as workers go":      {Name: "a", Recycle: 50 * time.Millisecond},
		"silent ones that it had": {Name: "a", Kind: Silent, Idle: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, _ := begin(t, o)
			if _, err := io.Copy(io.Discard, dial(t, addr)); err != nil && !ended(err) {
				t.Errorf("the connection did not end: %v", err)
			}
			dial(t, addr) // the listener is still there
		})
	}
}

func TestAThrottleClosesWhatComesTooOften(t *testing.T) {
	t.Parallel()
	addr, _ := begin(t, Options{Name: "a", Throttle: 3, Window: time.Minute})
	var got []bool
	for range 4 {
		_, err := bufio.NewReader(dial(t, addr)).ReadString('\n')
		got = append(got, err == nil)
	}
	if want := []bool{true, true, true, false}; !slices.Equal(got, want) {
		t.Errorf("answered %v, want %v", got, want)
	}
}

func TestPROXYHeaders(t *testing.T) {
	t.Parallel()
	local := proxySignature + "\x20\x00\x00\x00"
	ipv4 := proxySignature + "\x21\x11\x00\x0c" + strings.Repeat("x", 12)
	for name, c := range map[string]struct {
		head string
		good bool
	}{
		"version 2, LOCAL":         {local, true},
		"version 2 with addresses": {ipv4, true},
		"version 1":                {"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", true},
		"none":                     {"GET / HTTP/1.0\r\n\r\n", false},
		"another version":          {proxySignature + "\x10\x00\x00\x00", false},
		"version 1 without an end": {"PROXY " + strings.Repeat("x", 200), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, complaints := begin(t, Options{Name: "a", Proxy: true})
			conn := dial(t, addr)
			if _, err := io.WriteString(conn, c.head); err != nil {
				t.Fatal(err)
			}
			got, err := bufio.NewReader(conn).ReadString('\n')
			switch {
			case c.good && (got != "a\n" || complaints.String() != ""):
				t.Errorf("it said %q, %v, and complained %q", got, err, complaints)
			case !c.good && (!ended(err) || !strings.Contains(complaints.String(), "complaint: ")):
				t.Errorf("it said %q, %v, and complained %q", got, err, complaints)
			}
		})
	}
}

func TestAnHTTPServerSaysItsName(t *testing.T) {
	t.Parallel()
	addr, _ := begin(t, Options{Name: "a", Kind: HTTP})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/any", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); string(b) != "a\n" || resp.StatusCode != http.StatusOK {
		t.Errorf("it said %d %q, %v", resp.StatusCode, b, err)
	}
}

// shake is a handshake that asks for what comes next.
func shake(next byte) []byte {
	b := binary.AppendUvarint(nil, 765)
	b = append(b, text("localhost")...)
	return append(b, 0, 80, next)
}

func TestAStatusExchange(t *testing.T) {
	t.Parallel()
	addr, complaints := begin(t, Options{Name: "a", Kind: Status})
	c := dial(t, addr)
	for _, err := range []error{
		writePacket(c, packetHandshake, shake(nextStatus)), writePacket(c, packetRequest, nil),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	br := bufio.NewReader(c)
	id, p, err := readPacket(br)
	if err != nil || id != packetRequest || !strings.Contains(p.String(), `"text":"a"`) {
		t.Fatalf("answer %d %q, %v", id, p, err)
	}
	if err := writePacket(c, packetPing, []byte("12345678")); err != nil {
		t.Fatal(err)
	}
	if id, p, err := readPacket(br); err != nil || id != packetPing || p.String() != "12345678" {
		t.Errorf("pong %d %q, %v", id, p, err)
	}
	if complaints.String() != "" {
		t.Errorf("it complained %q", complaints)
	}
}

func TestLogins(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reject bool
		id     uint64
	}{"are taken": {false, packetEncryption}, "are turned away": {true, packetDisconnect}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, _ := begin(t, Options{Name: "a", Kind: Status, Reject: c.reject})
			conn := dial(t, addr)
			for _, err := range []error{
				writePacket(conn, packetHandshake, shake(nextLogin)), writePacket(conn, 0, append(text("probe"), make([]byte, 16)...)),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if id, p, err := readPacket(bufio.NewReader(conn)); err != nil || id != c.id {
				t.Errorf("answer %d %q, %v; want packet %d", id, p, err, c.id)
			}
		})
	}
}

func TestAClientThatStopsHalfWayIsComplainedOf(t *testing.T) {
	t.Parallel()
	addr, complaints := begin(t, Options{Name: "a", Kind: Status})
	quiet, torn := dial(t, addr), dial(t, addr)
	_ = quiet.Close()
	if err := writePacket(torn, packetHandshake, shake(nextStatus)); err != nil {
		t.Fatal(err)
	}
	_ = torn.Close()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(complaints.String(), "status request"); {
		if time.Now().After(end) {
			t.Fatal("no complaint")
		}
	}
	if n := strings.Count(complaints.String(), "complaint: "); n != 1 {
		t.Errorf("%d complaints, want 1: %s", n, complaints)
	}
}

func FuzzReadPacket(f *testing.F) {
	f.Add([]byte{1, 0})
	f.Add(shake(nextStatus))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, p, err := readPacket(bufio.NewReader(bytes.NewReader(b)))
		if err == nil && p.Len() > len(b) {
			t.Errorf("%d bytes out of %d", p.Len(), len(b))
		}
	})
}

// TestAServerListensOnSeveralPorts takes a range that nobody else here uses.
func TestAServerListensOnSeveralPorts(t *testing.T) {
	const first, n = 18461, 3
	j := &journal{}
	served := make(chan error, 1)
	go func() { served <- Serve(t.Context(), Options{Name: "a", Port: first, Ports: n}, j) }()
	end := time.Now().Add(20 * time.Second)
	for !strings.Contains(j.String(), Ready) {
		select {
		case err := <-served:
			t.Skipf("a port of the range is taken: %v", err)
		case <-time.After(time.Millisecond):
			if time.Now().After(end) {
				t.Fatal("it does not listen")
			}
		}
	}
	for i := range n {
		c := dial(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i)))
		if line, err := bufio.NewReader(c).ReadString('\n'); line != "a\n" {
			t.Errorf("port %d says %q, %v", first+i, line, err)
		}
	}
}
