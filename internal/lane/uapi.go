package lane

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// amneziaDir is where AmneziaWG's own userspace devices have their control sockets. The
// lane service's is in socketDir, where the tools of WireGuard see its peers.
const amneziaDir = "/var/run/amneziawg"

// newAmneziaWay is the way to a device that can be given AmneziaWG's parameters: a control
// socket where one is there, else the kernel module.
func newAmneziaWay(name string, limit time.Duration) way {
	for _, dir := range []string{amneziaDir, socketDir} {
		path := dir + "/" + name + ".sock"
		if _, err := os.Stat(path); err == nil {
			return &uapi{path: path, limit: limit}
		}
	}
	return openKernel(limit)
}

// uapi is a userspace device behind its control socket.
type uapi struct {
	path  string
	limit time.Duration
	of    amnezia.Version // the device's generation, once it took a set
}

func (u *uapi) close() {}

// call sends one operation and returns the lines of the answer, without errno.
func (u *uapi) call(op string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), u.limit)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", u.path)
	if errors.Is(err, syscall.ECONNREFUSED) { // a killed daemon leaves its socket behind
		err = os.ErrNotExist
	}
	if err != nil {
		return "", fmt.Errorf("control socket: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(u.limit)) //nolint:forbidigo // the connection's own clock
	if _, err := c.Write([]byte(op)); err != nil {
		return "", fmt.Errorf("control socket: %w", err)
	}
	text, err := block(bufio.NewReader(c))
	if err != nil {
		return "", fmt.Errorf("control socket: %w", err)
	}
	i := strings.LastIndex(text, "errno=")
	if i < 0 {
		return "", errors.New("control socket: an answer without errno")
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text[i+len("errno="):]), 10, 64)
	if err != nil {
		return "", errors.New("control socket: errno is no number")
	}
	if n != 0 {
		return "", refusal(n)
	}
	return text[:i], nil
}

// refusal is the errno of an answer.
type refusal int64

func (r refusal) Error() string {
	return "refused: " + syscall.Errno(max(r, -r)).Error() //nolint:gosec // small
}

func (u *uapi) device(string) (*wgtypes.Device, amnezia.Params, error) {
	text, err := u.call("get=1\n\n")
	if err != nil {
		return nil, amnezia.Params{}, err
	}
	p, err := amnezia.ParseControl(text)
	if err != nil {
		return nil, amnezia.Params{}, err
	}
	dev, err := parseDevice(text)
	return dev, p, err
}

// configure writes the parameters ahead of all else: a device that refuses one has not
// touched its peers. Of which generation it is, only that tells.
func (u *uapi) configure(_ string, cfg wgtypes.Config, p amnezia.Params) error {
	var last error
	for _, g := range generations() {
		if u.of != amnezia.VersionUnknown && g > u.of {
			continue
		}
		lines, err := p.UAPI(g)
		if err != nil {
			if last == nil {
				last = err
			}
			break
		}
		_, last = u.call("set=1\n" + strings.Join(lines, "\n") + "\n" + configLines(cfg) + "\n")
		var r refusal
		if last == nil {
			u.of = g
			return nil
		}
		if !errors.As(last, &r) || int64(r) != ipc.IpcErrorInvalid || u.of == g {
			return last
		}
	}
	return fmt.Errorf("the device takes no parameters of AmneziaWG, or not these: %w", last)
}

// configLines is a change in the control socket's protocol.
func configLines(cfg wgtypes.Config) string {
	var b strings.Builder
	add := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	if cfg.PrivateKey != nil {
		add("private_key=%s", hex.EncodeToString(cfg.PrivateKey[:]))
	}
	if cfg.ListenPort != nil {
		add("listen_port=%d", *cfg.ListenPort)
	}
	if cfg.FirewallMark != nil {
		add("fwmark=%d", *cfg.FirewallMark)
	}
	if cfg.ReplacePeers {
		add("replace_peers=true")
	}
	for _, p := range cfg.Peers {
		add("public_key=%s", hex.EncodeToString(p.PublicKey[:]))
		if p.Remove {
			add("remove=true")
		}
		if p.UpdateOnly {
			add("update_only=true")
		}
		if p.PresharedKey != nil {
			add("preshared_key=%s", hex.EncodeToString(p.PresharedKey[:]))
		}
		if p.Endpoint != nil {
			add("endpoint=%s", p.Endpoint)
		}
		if p.PersistentKeepaliveInterval != nil {
			add("persistent_keepalive_interval=%d", int(p.PersistentKeepaliveInterval.Seconds()))
		}
		if p.ReplaceAllowedIPs {
			add("replace_allowed_ips=true")
		}
		for _, a := range p.AllowedIPs {
			add("allowed_ip=%s", a.String())
		}
	}
	return b.String()
}

// parseDevice reads what a device says of itself.
func parseDevice(text string) (*wgtypes.Device, error) {
	d := &wgtypes.Device{Type: wgtypes.Userspace}
	var p *wgtypes.Peer
	var sec int64
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			return nil, errors.New("control socket: a line without =")
		}
		var err error
		switch {
		case k == "public_key":
			d.Peers = append(d.Peers, wgtypes.Peer{})
			p, sec = &d.Peers[len(d.Peers)-1], 0
			err = parseHex(&p.PublicKey, v)
		case p != nil:
			sec, err = parsePeer(p, k, v, sec)
		case k == "private_key":
			err = parseHex(&d.PrivateKey, v)
		case k == "listen_port":
			d.ListenPort, err = strconv.Atoi(v)
		case k == "fwmark":
			d.FirewallMark, err = strconv.Atoi(v)
		}
		if err != nil {
			return nil, fmt.Errorf("control socket: %s: not what it should be", k) // the value may be a key
		}
	}
	d.PublicKey = d.PrivateKey.PublicKey()
	return d, nil
}

// parsePeer reads one line of a peer. sec is the last handshake's time as far as it is known.
func parsePeer(p *wgtypes.Peer, k, v string, sec int64) (int64, error) {
	var err error
	switch k {
	case "preshared_key":
		err = parseHex(&p.PresharedKey, v)
	case "endpoint":
		p.Endpoint, err = net.ResolveUDPAddr("udp", v) // a literal: nothing is looked up
	case "last_handshake_time_sec":
		sec, err = strconv.ParseInt(v, 10, 64)
	case "last_handshake_time_nsec":
		var nsec int64
		if nsec, err = strconv.ParseInt(v, 10, 64); sec > 0 || nsec > 0 {
			p.LastHandshakeTime = time.Unix(sec, nsec)
		}
	case "rx_bytes":
		p.ReceiveBytes, err = strconv.ParseInt(v, 10, 64)
	case "tx_bytes":
		p.TransmitBytes, err = strconv.ParseInt(v, 10, 64)
	case "persistent_keepalive_interval":
		low, _, _ := strings.Cut(v, "-") // a range from 3.0 on
		var n int
		n, err = strconv.Atoi(low)
		p.PersistentKeepaliveInterval = time.Duration(n) * time.Second
	case "allowed_ip":
		var n *net.IPNet
		if _, n, err = net.ParseCIDR(v); err == nil {
			p.AllowedIPs = append(p.AllowedIPs, *n)
		}
	}
	return sec, err
}

func parseHex(k *wgtypes.Key, v string) error {
	b, err := hex.DecodeString(v)
	if err != nil || len(b) != len(k) {
		return errors.New("not a key")
	}
	copy(k[:], b)
	return nil
}
