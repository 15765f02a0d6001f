package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

// Pings are ICMP echo requests.
type Pings struct {
	To        netip.Addr
	From      netip.Addr    // "" = the kernel's choice
	Interface string        // bound to it; "" = by route
	Count     int           // 0 = 5
	Gap       time.Duration // 0 = 20 ms
	Wait      time.Duration // after the last one; 0 = 300 ms
	Size      int           // bytes of the whole IP packet; 0 = 84
}

// Ping sends pings and returns how many were answered, and the least round trip.
func Ping(ctx context.Context, ns *cage.Namespace, p Pings) (int, time.Duration, error) {
	if p.Count == 0 {
		p.Count = 5
	}
	if p.Gap == 0 {
		p.Gap = 20 * time.Millisecond
	}
	if p.Wait == 0 {
		p.Wait = 300 * time.Millisecond
	}
	c, err := p.open(ns)
	if err != nil {
		return 0, 0, fmt.Errorf("ping %s: %w", p.To, err)
	}
	defer c.Close()
	sent := make([]time.Time, p.Count)
	id := rand.IntN(1 << 16) // one of its own: conntrack drops an id that changes its lane
	got, least := 0, time.Duration(0)
	for i := range p.Count {
		m, err := p.request(id, i)
		if err != nil {
			return got, least, fmt.Errorf("ping %s: %w", p.To, err)
		}
		sent[i] = time.Now()
		if _, err := c.WriteTo(m, &net.IPAddr{IP: p.To.AsSlice()}); err != nil {
			return got, least, fmt.Errorf("ping %s: %w", p.To, err)
		}
		until := sent[i].Add(p.Gap)
		if i == p.Count-1 {
			until = sent[i].Add(p.Wait)
		}
		for got < p.Count && ctx.Err() == nil {
			seq, ok := p.read(c, id, until)
			if !ok {
				break
			}
			if seq < p.Count && !sent[seq].IsZero() {
				if d := time.Since(sent[seq]); least == 0 || d < least {
					least = d
				}
				sent[seq] = time.Time{}
				got++
			}
		}
	}
	return got, least, ctx.Err()
}

func (p Pings) open(ns *cage.Namespace) (net.PacketConn, error) {
	network, any := "ip4:icmp", "0.0.0.0"
	if p.To.Is6() {
		network, any = "ip6:ipv6-icmp", "::"
	}
	if p.From.IsValid() {
		any = p.From.String()
	}
	var c net.PacketConn
	err := ns.Do(func() (err error) {
		c, err = (&net.ListenConfig{}).ListenPacket(context.Background(), network, any)
		if err != nil || p.Interface == "" {
			return err
		}
		rc, err := c.(*net.IPConn).SyscallConn()
		if err != nil {
			return err
		}
		var serr error
		err = rc.Control(func(fd uintptr) { serr = unix.BindToDevice(int(fd), p.Interface) })
		return errors.Join(err, serr)
	})
	return c, err
}

func (p Pings) request(id, seq int) ([]byte, error) {
	var kind icmp.Type = ipv4.ICMPTypeEcho
	header := 28
	if p.To.Is6() {
		kind, header = ipv6.ICMPTypeEchoRequest, 48
	}
	n := 56
	if p.Size > 0 {
		n = max(8, p.Size-header)
	}
	data := make([]byte, n)
	binary.BigEndian.PutUint64(data, uint64(seq)) //nolint:gosec // not negative
	return (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: seq, Data: data}}).Marshal(nil)
}

// read returns the number of the next answer to one of ours.
func (p Pings) read(c net.PacketConn, id int, until time.Time) (int, bool) {
	b := make([]byte, 65536)
	protocol := 1
	if p.To.Is6() {
		protocol = 58
	}
	_ = c.SetReadDeadline(until)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return 0, false
		}
		m, err := icmp.ParseMessage(protocol, b[:n])
		if err != nil || m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.ID == id && from.String() == p.To.String() {
			return e.Seq, true
		}
	}
}
