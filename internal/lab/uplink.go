package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/wire"
)

// CutKind is how an uplink is cut.
type CutKind int

// The ways to cut.
const (
	CutLink   CutKind = iota + 1 // the link itself: the router sees its carrier go
	CutDrop                      // the gateway drops all, in silence; the link stays up
	CutBehind                    // the gateway answers, and passes nothing on
)

// Cut cuts the router's uplink; Restore undoes it.
func (w *World) Cut(kind CutKind) error {
	if kind == CutLink {
		return w.setLink(false)
	}
	c, err := w.nft()
	if err != nil {
		return err
	}
	defer c.CloseLasting() //nolint:errcheck // flushed
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: cutTable})
	drop := nftables.ChainPolicyDrop
	hooks := map[string]*nftables.ChainHook{"in": nftables.ChainHookPrerouting, "out": nftables.ChainHookOutput}
	if kind == CutBehind {
		hooks = map[string]*nftables.ChainHook{"on": nftables.ChainHookForward}
	}
	for name, hook := range hooks {
		c.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(-300), Policy: &drop})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("isp: cut: %w", err)
	}
	return nil
}

// Restore undoes every cut.
func (w *World) Restore() error {
	c, err := w.nft()
	if err != nil {
		return err
	}
	defer c.CloseLasting() //nolint:errcheck // flushed
	// Adding first makes the deletion work whether it is there or not.
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: cutTable})
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("isp: restore: %w", err)
	}
	return w.setLink(true)
}

func (w *World) setLink(up bool) error {
	h, err := wire.Handle(w.ISP)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(ispInterface)
	if err != nil {
		return fmt.Errorf("isp: %s: %w", ispInterface, err)
	}
	set := h.LinkSetDown
	if up {
		set = h.LinkSetUp
	}
	if err := set(l); err != nil {
		return fmt.Errorf("isp: %s: %w", ispInterface, err)
	}
	return nil
}

// Leak is a packet that came out of the router and was no tunnel's.
type Leak struct {
	Time     time.Time      `json:"time"`
	Protocol int            `json:"protocol"` // IP protocol number
	From     netip.AddrPort `json:"from"`     // port 0 where there is none; for ICMP the type is To's port
	To       netip.AddrPort `json:"to"`
	Bytes    int            `json:"bytes"`
}

func (l Leak) String() string {
	return fmt.Sprintf("%s proto %d %s -> %s %d bytes", l.Time.Format("15:04:05.000"), l.Protocol, l.From, l.To, l.Bytes)
}

// Capture lists packets at the gateway: the evidence to what Uplink counts as Clear.
type Capture struct {
	fd   int
	stop chan struct{} // closed by Stop
	done chan struct{} // closed when all is read
	mu   sync.Mutex
	list []Leak
}

// captureMost bounds the list of a capture.
const captureMost = 1000

// Capture starts to list what is counted as Clear. At most 1,000 packets are kept.
func (w *World) Capture() (*Capture, error) {
	c := &Capture{stop: make(chan struct{}), done: make(chan struct{})}
	err := w.ISP.Do(func() error {
		i, err := net.InterfaceByName(ispInterface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		c.fd = fd
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000})
		all := uint16(unix.ETH_P_ALL)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: i.Index})
	})
	if err != nil {
		return nil, fmt.Errorf("isp: capture: %w", err)
	}
	go c.run()
	return c, nil
}

func (c *Capture) run() {
	defer close(c.done)
	defer unix.Close(c.fd)
	buf := make([]byte, 65536)
	for {
		n, from, err := unix.Recvfrom(c.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			select {
			case <-c.stop: // and nothing is queued any more
				return
			default:
				continue
			}
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if l, ok := parseLeak(buf[:n]); ok {
			l.Time = time.Now()
			c.mu.Lock()
			if len(c.list) < captureMost {
				c.list = append(c.list, l)
			}
			c.mu.Unlock()
		}
	}
}

// parseLeak reads the addresses of an IP packet; ok is false for what is not counted as Clear.
func parseLeak(p []byte) (l Leak, ok bool) {
	var src, dst netip.Addr
	var rest []byte
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		src, dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		l.Protocol, rest = int(p[9]), p[min(len(p), int(p[0]&15)*4):]
	case len(p) >= 40 && p[0]>>4 == 6:
		src, dst = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		l.Protocol, rest = int(p[6]), p[40:]
	default:
		return Leak{}, false // ARP
	}
	var sp, dp uint16
	switch {
	case (l.Protocol == unix.IPPROTO_UDP || l.Protocol == unix.IPPROTO_TCP) && len(rest) >= 4:
		sp, dp = be16(rest), be16(rest[2:])
	case (l.Protocol == unix.IPPROTO_ICMP || l.Protocol == unix.IPPROTO_ICMPV6) && len(rest) >= 1:
		dp = uint16(rest[0])
	case l.Protocol == 0 && len(p) >= 40: // hop-by-hop: multicast group reports
		return Leak{}, false
	}
	l.From, l.To, l.Bytes = netip.AddrPortFrom(src, sp), netip.AddrPortFrom(dst, dp), len(p)
	return l, !expected(l)
}

// expected says whether Uplink counts such a packet as something else than Clear.
func expected(l Leak) bool {
	endpoint := netip.MustParsePrefix(server.EndpointNet).Contains(l.To.Addr())
	router := l.From.Addr().String() == RouterWAN4 || l.From.Addr().String() == RouterWAN6
	kind := l.To.Port()
	switch l.Protocol {
	case unix.IPPROTO_UDP:
		return endpoint && kind >= server.FirstPort && kind < server.FirstPort+server.PortCount
	case unix.IPPROTO_ICMP:
		return router && (endpoint && kind == 3 || kind == 8 && isCheck(l.To.Addr()))
	case unix.IPPROTO_ICMPV6:
		return kind >= 130 && kind <= 136 || kind == 143 || router && kind == 128 && isCheck(l.To.Addr())
	}
	return false
}

func isCheck(a netip.Addr) bool {
	return slices.Contains([]string{Gateway4, Gateway6, Uplink4a, Uplink4b, Uplink6a, Uplink6b}, a.String())
}

// Stop ends the capture, when it has read all that is queued, and returns its list.
func (c *Capture) Stop() []Leak {
	close(c.stop)
	<-c.done
	return c.List()
}

// List is what was listed up to now.
func (c *Capture) List() []Leak {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}
