package lane

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// kind is the form of an attribute.
type kind int

const (
	kindU16    kind = iota
	kindHeader      // a message type or a range of them: u32, text or u64, by the family's version
	kindText        // with a NUL
	kindKey         // 32 bytes
	kindSpan        // a range in a u32: the low end in the low half
	kindFlag        // u8
)

// kernelAttr is one parameter: its name on control sockets, and what it is to the module.
type kernelAttr struct {
	name string
	id   uint16
	kind kind
}

// kernelAttrs are the attributes that the module has beyond WireGuard's (its
// uapi/wireguard.h; 18 is another use of it).
func kernelAttrs() []kernelAttr {
	return []kernelAttr{
		{"jc", 9, kindU16},
		{"jmin", 10, kindU16},
		{"jmax", 11, kindU16},
		{"s1", 12, kindU16},
		{"s2", 13, kindU16},
		{"h1", 14, kindHeader},
		{"h2", 15, kindHeader},
		{"h3", 16, kindHeader},
		{"h4", 17, kindHeader},
		{"s3", 19, kindU16},
		{"s4", 20, kindU16},
		{"i1", 21, kindText},
		{"i2", 22, kindText},
		{"i3", 23, kindText},
		{"i4", 24, kindText},
		{"i5", 25, kindText},
		{"header_protection_key", 26, kindKey},
		{"content_padding_addition", 27, kindSpan},
		{"rekey_after_time", 28, kindSpan},
		{"rekey_timeout", 29, kindSpan},
		{"reject_after_time", 30, kindSpan},
		{"keepalive_timeout", 31, kindSpan},
		{"max_handshake_attempts", 32, kindSpan},
		{"random_trailers", 33, kindFlag},
		{"disable_cookies", 34, kindFlag},
	}
}

// The flags of devices and peers in WireGuard's messages.
const (
	replacePeers   = 1
	removePeer     = 1
	replaceAllowed = 2
	updateOnly     = 4
)

// encodeKernel is a change with the full set of parameters of a generation.
func encodeKernel(name string, cfg wgtypes.Config, p amnezia.Params, of amnezia.Version, family uint8) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.WGDEVICE_A_IFNAME, name)
	lines, err := p.UAPI(of)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		key, v, _ := strings.Cut(line, "=")
		if err := encodeParam(ae, key, v, family); err != nil {
			return nil, fmt.Errorf("amneziawg: %s: %w", key, err)
		}
	}
	if cfg.PrivateKey != nil {
		ae.Bytes(unix.WGDEVICE_A_PRIVATE_KEY, cfg.PrivateKey[:])
	}
	if cfg.ListenPort != nil {
		ae.Uint16(unix.WGDEVICE_A_LISTEN_PORT, uint16(*cfg.ListenPort)) //nolint:gosec // a port
	}
	if cfg.FirewallMark != nil {
		ae.Uint32(unix.WGDEVICE_A_FWMARK, uint32(*cfg.FirewallMark)) //nolint:gosec // a mark
	}
	if cfg.ReplacePeers {
		ae.Uint32(unix.WGDEVICE_A_FLAGS, replacePeers)
	}
	if len(cfg.Peers) > 0 {
		ae.Nested(unix.WGDEVICE_A_PEERS, func(list *netlink.AttributeEncoder) error {
			for i, q := range cfg.Peers {
				list.Nested(uint16(i), func(e *netlink.AttributeEncoder) error { return encodePeer(e, q, family) }) //nolint:gosec // a handful
			}
			return nil
		})
	}
	return ae.Encode()
}

func encodeParam(ae *netlink.AttributeEncoder, key, v string, family uint8) error {
	for _, a := range kernelAttrs() {
		if a.name != key {
			continue
		}
		lo, hi, err := span(v)
		switch a.kind {
		case kindText:
			ae.String(a.id, v)
			return nil
		case kindKey:
			b, err := hex.DecodeString(v)
			ae.Bytes(a.id, b)
			return err
		case kindHeader:
			if err != nil {
				return err
			}
			switch family {
			case 1:
				ae.Uint32(a.id, lo)
			case 2:
				ae.String(a.id, v)
			default:
				ae.Uint64(a.id, uint64(hi)<<32|uint64(lo))
			}
			return nil
		case kindU16, kindSpan, kindFlag:
		}
		if err != nil || hi > 65535 {
			return fmt.Errorf("%q: the kernel module takes numbers up to 65535", v)
		}
		switch a.kind { //nolint:exhaustive // the others have returned above
		case kindU16:
			ae.Uint16(a.id, uint16(lo))
		case kindFlag:
			ae.Uint8(a.id, uint8(lo)) //nolint:gosec // 0 or 1
		default:
			ae.Uint32(a.id, lo|hi<<16)
		}
		return nil
	}
	return nil // J packets and Itime: no module has them
}

// span reads 5 or 5-9.
func span(v string) (lo, hi uint32, err error) {
	low, high, two := strings.Cut(v, "-")
	if !two {
		high = low
	}
	a, err := strconv.ParseUint(low, 10, 32)
	if err != nil {
		return 0, 0, err
	}
	b, err := strconv.ParseUint(high, 10, 32)
	return uint32(a), uint32(b), err
}

func encodePeer(e *netlink.AttributeEncoder, q wgtypes.PeerConfig, family uint8) error {
	e.Bytes(unix.WGPEER_A_PUBLIC_KEY, q.PublicKey[:])
	var flags uint32
	for _, f := range []struct {
		on   bool
		flag uint32
	}{{q.Remove, removePeer}, {q.ReplaceAllowedIPs, replaceAllowed}, {q.UpdateOnly, updateOnly}} {
		if f.on {
			flags |= f.flag
		}
	}
	if flags != 0 {
		e.Uint32(unix.WGPEER_A_FLAGS, flags)
	}
	if q.PresharedKey != nil {
		e.Bytes(unix.WGPEER_A_PRESHARED_KEY, q.PresharedKey[:])
	}
	if q.Endpoint != nil {
		e.Bytes(unix.WGPEER_A_ENDPOINT, sockaddr(q.Endpoint))
	}
	if q.PersistentKeepaliveInterval != nil {
		if s := uint32(q.PersistentKeepaliveInterval.Seconds()); family >= 3 {
			e.Uint32(unix.WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, s|s<<16)
		} else {
			e.Uint16(unix.WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL, uint16(s)) //nolint:gosec // at most 65535
		}
	}
	if len(q.AllowedIPs) == 0 {
		return nil
	}
	e.Nested(unix.WGPEER_A_ALLOWEDIPS, func(list *netlink.AttributeEncoder) error {
		for i, n := range q.AllowedIPs {
			list.Nested(uint16(i), func(a *netlink.AttributeEncoder) error { //nolint:gosec // a handful
				ip, of := n.IP.To4(), uint16(unix.AF_INET)
				if ip == nil {
					ip, of = n.IP.To16(), unix.AF_INET6
				}
				ones, _ := n.Mask.Size()
				a.Uint16(unix.WGALLOWEDIP_A_FAMILY, of)
				a.Bytes(unix.WGALLOWEDIP_A_IPADDR, ip)
				a.Uint8(unix.WGALLOWEDIP_A_CIDR_MASK, uint8(ones)) //nolint:gosec // up to 128
				return nil
			})
		}
		return nil
	})
	return nil
}

// sockaddr is a struct sockaddr_in or sockaddr_in6.
func sockaddr(a *net.UDPAddr) []byte {
	if ip := a.IP.To4(); ip != nil {
		b := make([]byte, unix.SizeofSockaddrInet4)
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], uint16(a.Port)) //nolint:gosec // a port
		copy(b[4:], ip)
		return b
	}
	b := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], uint16(a.Port)) //nolint:gosec // a port
	copy(b[8:], a.IP.To16())
	return b
}

// decodeKernel reads what the module says of one device, in as many messages as it takes.
func decodeKernel(messages []genetlink.Message) (*wgtypes.Device, amnezia.Params, error) {
	d := &wgtypes.Device{Type: wgtypes.LinuxKernel}
	var params strings.Builder
	for _, m := range messages {
		ad, err := netlink.NewAttributeDecoder(m.Data)
		if err != nil {
			return nil, amnezia.Params{}, fmt.Errorf("kernel module amneziawg: %w", err)
		}
		for ad.Next() {
			switch ad.Type() {
			case unix.WGDEVICE_A_IFNAME:
				d.Name = ad.String()
			case unix.WGDEVICE_A_PRIVATE_KEY:
				copy(d.PrivateKey[:], ad.Bytes())
			case unix.WGDEVICE_A_LISTEN_PORT:
				d.ListenPort = int(ad.Uint16())
			case unix.WGDEVICE_A_FWMARK:
				d.FirewallMark = int(ad.Uint32())
			case unix.WGDEVICE_A_PEERS:
				ad.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						list.Nested(func(e *netlink.AttributeDecoder) error { return decodePeer(e, d) })
					}
					return nil
				})
			default:
				decodeParam(ad, &params)
			}
		}
		if err := ad.Err(); err != nil {
			return nil, amnezia.Params{}, fmt.Errorf("kernel module amneziawg: %w", err)
		}
	}
	d.PublicKey = d.PrivateKey.PublicKey()
	p, err := amnezia.ParseControl(params.String())
	return d, p, err
}

// decodeParam writes a parameter as control sockets do.
func decodeParam(ad *netlink.AttributeDecoder, out *strings.Builder) {
	for _, a := range kernelAttrs() {
		if a.id != ad.Type() {
			continue
		}
		b := ad.Bytes()
		v := string(bytes.TrimRight(b, "\x00"))
		switch {
		case a.kind == kindKey:
			v = hex.EncodeToString(b)
		case a.kind == kindText || a.kind == kindHeader && len(b) != 4 && len(b) != 8:
		case len(b) == 1:
			v = strconv.Itoa(int(b[0]))
		case len(b) == 2:
			v = strconv.Itoa(int(binary.NativeEndian.Uint16(b)))
		case len(b) == 4 && a.kind == kindSpan:
			n := binary.NativeEndian.Uint32(b)
			v = amnezia.Range{Lo: n & 0xffff, Hi: n >> 16}.String()
		case len(b) == 4:
			v = strconv.FormatUint(uint64(binary.NativeEndian.Uint32(b)), 10)
		case len(b) == 8:
			n := binary.NativeEndian.Uint64(b)
			v = amnezia.Range{Lo: uint32(n), Hi: uint32(n >> 32)}.String() //nolint:gosec // its halves
		}
		fmt.Fprintf(out, "%s=%s\n", a.name, v)
	}
}

// decodePeer adds a peer, or the rest of the allowed prefixes of one that was split.
func decodePeer(e *netlink.AttributeDecoder, d *wgtypes.Device) error {
	var p wgtypes.Peer
	for e.Next() {
		switch e.Type() {
		case unix.WGPEER_A_PUBLIC_KEY:
			copy(p.PublicKey[:], e.Bytes())
		case unix.WGPEER_A_PRESHARED_KEY:
			copy(p.PresharedKey[:], e.Bytes())
		case unix.WGPEER_A_ENDPOINT:
			p.Endpoint = endpointFrom(e.Bytes())
		case unix.WGPEER_A_PERSISTENT_KEEPALIVE_INTERVAL:
			if b := e.Bytes(); len(b) >= 2 { // from 3.0 on a range, its low end first
				n := uint32(0)
				if len(b) == 2 {
					n = uint32(binary.NativeEndian.Uint16(b))
				} else if len(b) == 4 {
					n = binary.NativeEndian.Uint32(b) & 0xffff
				}
				p.PersistentKeepaliveInterval = time.Duration(n) * time.Second
			}
		case unix.WGPEER_A_LAST_HANDSHAKE_TIME:
			if b := e.Bytes(); len(b) == 16 {
				sec, nsec := int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:])) //nolint:gosec // a time
				if sec > 0 || nsec > 0 {
					p.LastHandshakeTime = time.Unix(sec, nsec)
				}
			}
		case unix.WGPEER_A_RX_BYTES:
			p.ReceiveBytes = int64(e.Uint64()) //nolint:gosec // far below
		case unix.WGPEER_A_TX_BYTES:
			p.TransmitBytes = int64(e.Uint64()) //nolint:gosec // far below
		case unix.WGPEER_A_ALLOWEDIPS:
			e.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(a *netlink.AttributeDecoder) error { return decodeAllowed(a, &p) })
				}
				return nil
			})
		}
	}
	if n := len(d.Peers); n > 0 && d.Peers[n-1].PublicKey == p.PublicKey {
		d.Peers[n-1].AllowedIPs = append(d.Peers[n-1].AllowedIPs, p.AllowedIPs...)
		return nil
	}
	d.Peers = append(d.Peers, p)
	return nil
}

func decodeAllowed(a *netlink.AttributeDecoder, p *wgtypes.Peer) error {
	var n net.IPNet
	ones := 0
	for a.Next() {
		switch a.Type() {
		case unix.WGALLOWEDIP_A_IPADDR:
			n.IP = bytes.Clone(a.Bytes())
		case unix.WGALLOWEDIP_A_CIDR_MASK:
			ones = int(a.Uint8())
		}
	}
	n.Mask = net.CIDRMask(ones, 8*len(n.IP))
	if n.IP != nil && n.Mask != nil {
		p.AllowedIPs = append(p.AllowedIPs, n)
	}
	return nil
}

func endpointFrom(b []byte) *net.UDPAddr {
	switch len(b) {
	case unix.SizeofSockaddrInet4:
		return &net.UDPAddr{IP: bytes.Clone(b[4:8]), Port: int(binary.BigEndian.Uint16(b[2:]))}
	case unix.SizeofSockaddrInet6:
		return &net.UDPAddr{IP: bytes.Clone(b[8:24]), Port: int(binary.BigEndian.Uint16(b[2:]))}
	}
	return nil
}
