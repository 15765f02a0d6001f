package lane

import (
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/profile"
)

// linkListing is the interface as a person would write it down.
func linkListing(t testing.TB, name string) string {
	t.Helper()
	k, err := findLinkAddrs(name)
	if err != nil {
		t.Fatal(err)
	}
	state := map[bool]string{true: "up", false: "down"}[k.up]
	var addrs []string
	for _, p := range k.prefixes() {
		addrs = append(addrs, p.String())
	}
	slices.Sort(addrs)
	return fmt.Sprintf("%s mtu %d addr %s", state, k.mtu, strings.Join(addrs, " "))
}

// listing is the interface and the device's configuration, as the tools of others show
// them; what lives by itself (handshakes, counters) is left out.
func listing(t testing.TB, name string) string {
	t.Helper()
	conf := strings.Split(sh(t, "wg showconf %s", name), "\n[Peer]")
	slices.Sort(conf[1:])
	return linkListing(t, name) + "\n" + regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(strings.Join(conf, "\n[Peer]"), "")
}

// forward is a second address of a server: a relay in front of it, as a provider with two
// entries for one key has.
func forward(t testing.TB, s *server) string {
	t.Helper()
	in, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	out, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = out.Close() })
	var mu sync.Mutex
	var client *net.UDPAddr
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := in.ReadFromUDP(b)
			if err != nil {
				return
			}
			mu.Lock()
			client = from
			mu.Unlock()
			_, _ = out.Write(b[:n])
		}
	}()
	go func() {
		b := make([]byte, 2048)
		for {
			n, err := out.Read(b)
			if err != nil {
				return
			}
			mu.Lock()
			to := client
			mu.Unlock()
			if to != nil {
				_, _ = in.WriteToUDP(b[:n], to)
			}
		}
	}()
	return in.LocalAddr().String()
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// flood sends full-size packets as fast as they go and counts the answers; peak is the
// greatest gauge seen.
func flood(b *testing.B, d time.Duration, gauge func() float64) (answers int64, peak float64) {
	b.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 0x202)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000})
	var n atomic.Int64
	stop := make(chan struct{})
	var done sync.WaitGroup
	for _, fn := range []func([]byte){
		func(p []byte) { _ = unix.Sendto(fd, p, 0, &unix.SockaddrInet4{Port: 7, Addr: [4]byte{10, 77, 0, 1}}) },
		func(p []byte) {
			if k, _, err := unix.Recvfrom(fd, p, 0); err == nil && k > 0 {
				n.Add(1)
			}
		},
	} {
		done.Add(1)
		go func() {
			defer done.Done()
			p := make([]byte, 1380)
			for {
				select {
				case <-stop:
					return
				default:
					fn(p)
				}
			}
		}()
	}
	for end := time.Now().Add(d); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		peak = max(peak, gauge())
	}
	close(stop)
	done.Wait()
	_ = unix.Close(fd)
	return n.Load(), peak
}

func exec1(line string) error { return exec.Command("sh", "-c", line).Run() }

// keyless fails when an error tells a key: errors end up in journals.
func keyless(t testing.TB, err error, keys ...profile.Key) {
	t.Helper()
	for _, k := range keys {
		for _, s := range []string{k.Base64(), k.Hex(), k.Public().Base64(), k.Public().Hex()} {
			if err != nil && strings.Contains(err.Error(), s) {
				t.Errorf("a key in the error %q", err)
			}
		}
	}
}
