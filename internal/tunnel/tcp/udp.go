package tcp

import (
	"fmt"
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

const protoUDP = 17

// Packet says whether a whole IP packet is one for a stack: a TCP segment, or a UDP
// datagram, which is how resolvers answer.
func Packet(ip []byte) bool {
	switch {
	case len(ip) >= header.IPv4MinimumSize && ip[0]>>4 == 4:
		return ip[9] == protoTCP || ip[9] == protoUDP
	case len(ip) >= header.IPv6MinimumSize && ip[0]>>4 == 6:
		return ip[6] == protoTCP || ip[6] == protoUDP
	}
	return false
}

// DialUDP opens a socket for datagrams to and from an address through the tunnel.
func (s *Stack) DialUDP(to netip.AddrPort) (net.Conn, error) {
	address, family := full(to)
	c, err := gonet.DialUDP(s.stack, nil, &address, family)
	if err != nil {
		return nil, fmt.Errorf("datagrams to %s through the tunnel: %w", to, err)
	}
	return c, nil
}
