// Package tcp is TCP inside a tunnel: a user-space stack for the packets of one tunnel,
// as a client or as a server, with as much of UDP as questions to a resolver need. It is
// gVisor's, without what a short conversation does not need.
//
// The stack that wireguard-go wraps is the same one, but its end is a channel which is
// closed while a late segment may still be on its way into it: that would be a panic.
package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	protoTCP = 6
	// MinMTU6 is the least MTU, in bytes, of a stack with an IPv6 address (RFC 8200, section 5).
	MinMTU6 = 1280

	nicID = 1
	// bufferSize is how many bytes a connection may hold in each direction: a stack's own
	// default is a megabyte.
	bufferSize = 64 << 10
	// maxOpening connections may be half open at a server.
	maxOpening = 64
	// endWait is how long Close waits for the stack's goroutines.
	endWait = time.Second
)

// Stack is one end of a tunnel.
type Stack struct {
	stack *stack.Stack
	link  *link
}

// link is the stack's only interface.
type link struct {
	*channel.Endpoint // what a link has to say of itself; its queue is not used
	out               func(ip []byte)

	mu     sync.RWMutex
	closed bool
}

// WritePackets implements stack.LinkEndpoint: what the stack sends goes out at once.
func (l *link) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return 0, &tcpip.ErrClosedForSend{}
	}
	packets := list.AsSlice()
	for _, p := range packets {
		view := p.ToView()
		l.out(append([]byte(nil), view.AsSlice()...))
		view.Release()
	}
	return len(packets), nil
}

// New returns a stack with these addresses that hands each packet to out, from any of its
// goroutines and for keeps. out must not block: what it cannot take is lost. mtu is in bytes.
func New(mtu int, addresses []netip.Addr, out func(ip []byte)) (*Stack, error) {
	s := &Stack{link: &link{Endpoint: channel.New(0, uint32(mtu), ""), out: out}} //nolint:gosec // an MTU
	s.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := s.set(addresses); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Stack) set(addresses []netip.Addr) error {
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: bufferSize, Max: bufferSize}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: bufferSize, Max: bufferSize}
	err := errors.Join(
		failure("receive buffer", s.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &receive)),
		failure("send buffer", s.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &send)),
		failure("interface", s.stack.CreateNIC(nicID, s.link)),
	)
	for _, a := range addresses {
		_, family := full(netip.AddrPortFrom(a, 0))
		err = errors.Join(err, failure(a.String(), s.stack.AddProtocolAddress(nicID, tcpip.ProtocolAddress{
			Protocol: family, AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix(),
		}, stack.AddressProperties{})))
	}
	s.stack.AddRoute(tcpip.Route{Destination: header.IPv4EmptySubnet, NIC: nicID})
	s.stack.AddRoute(tcpip.Route{Destination: header.IPv6EmptySubnet, NIC: nicID})
	return err
}

// failure is the stack's error as a common one.
func failure(what string, err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tcp in a tunnel: %s: %s", what, err)
}

// full is an address as the stack wants it.
func full(a netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	family := ipv4.ProtocolNumber
	if a.Addr().Is6() {
		family = ipv6.ProtocolNumber
	}
	return tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}, family
}

// Segment says whether a whole IP packet is a TCP segment, or the first part of one.
func Segment(ip []byte) bool {
	switch {
	case len(ip) >= header.IPv4MinimumSize && ip[0]>>4 == 4:
		return ip[9] == protoTCP
	case len(ip) >= header.IPv6MinimumSize && ip[0]>>4 == 6:
		return ip[6] == protoTCP
	}
	return false
}

// Receive takes a packet that came through the tunnel; it keeps none of its bytes. What
// is neither TCP nor UDP is passed over.
func (s *Stack) Receive(ip []byte) {
	if !Packet(ip) {
		return
	}
	family := header.IPv4ProtocolNumber
	if ip[0]>>4 == 6 {
		family = header.IPv6ProtocolNumber
	}
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(ip)})
	defer p.DecRef()
	s.link.InjectInbound(family, p)
}

// Dial connects to an address through the tunnel.
func (s *Stack) Dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	address, family := full(to)
	c, err := gonet.DialContextTCP(ctx, s.stack, address, family)
	if err != nil {
		return nil, fmt.Errorf("connect to %s through the tunnel: %w", to, err)
	}
	return c, nil
}

// Serve makes the stack answer for every address at that port: each connection is handed
// to handle in a goroutine of its own. Other ports are refused.
func (s *Stack) Serve(port uint16, handle func(net.Conn)) error {
	err := errors.Join(
		failure("every address", s.stack.SetPromiscuousMode(nicID, true)),
		failure("every address", s.stack.SetSpoofing(nicID, true)),
	)
	f := tcp.NewForwarder(s.stack, bufferSize, maxOpening, func(r *tcp.ForwarderRequest) {
		if r.ID().LocalPort != port {
			r.Complete(true)
			return
		}
		var queue waiter.Queue
		ep, err := r.CreateEndpoint(&queue)
		r.Complete(err != nil)
		if err == nil {
			handle(gonet.NewTCPConn(&queue, ep))
		}
	})
	s.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, f.HandlePacket)
	return err
}

// Close resets the connections that are open and ends the stack. Then nothing more is
// handed to out.
func (s *Stack) Close() {
	ended := make(chan struct{})
	go func() {
		s.stack.Destroy()
		close(ended)
	}()
	late := time.NewTimer(endWait)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
	}
	s.link.mu.Lock()
	s.link.closed = true
	s.link.mu.Unlock()
}
