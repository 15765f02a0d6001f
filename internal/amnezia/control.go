package amnezia

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shunt-net/shunt/internal/profile"
)

// Params are the parameters in use.
func (c *Codec) Params() Params { return c.settings.Load().Params }

// Configure takes a set operation of the control socket's protocol, as UAPI and the
// AmneziaWG tools write it, and returns what is left of it for the upstream device,
// which must get it next. It learns parameters, our own key and the peers; a parameter
// that is not named stays as it is. On an error nothing has changed.
func (c *Codec) Configure(set string) (rest string, err error) {
	p, known := c.Params(), change{peers: map[profile.Key]bool{}}
	var out strings.Builder
	for line := range strings.Lines(set) {
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if ok && known.current.IsZero() && ours(k) {
			if err := p.setControl(k, v); err != nil {
				return "", fmt.Errorf("amneziawg: %s: %w", k, err)
			}
			continue
		}
		if line, err = known.learn(k, v, line); err != nil {
			return "", fmt.Errorf("amneziawg: %s: %w", k, err)
		}
		out.WriteString(line)
	}
	if err := c.SetParams(p); err != nil {
		return "", err
	}
	c.apply(known)
	return out.String(), nil
}

// ParseControl reads the parameters among the lines that a control socket gives for `get`,
// those ahead of the first peer. What is not there is WireGuard's own; other keys are
// passed over.
func ParseControl(lines string) (Params, error) {
	var p Params
	for line := range strings.Lines(lines) {
		k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if k == "public_key" {
			break
		}
		if !ok || !ours(k) {
			continue
		}
		if err := p.setControl(k, v); err != nil {
			return Params{}, fmt.Errorf("amneziawg: %s: %w", k, err)
		}
	}
	return p, nil
}

// Same tells whether two sets of parameters are one for a device: what an upstream device
// never does (J packets) is left out.
func (p Params) Same(q Params) bool {
	a, errA := p.UAPI(V31)
	b, errB := q.UAPI(V31)
	return errA == nil && errB == nil && slices.Equal(a, b)
}

// change is what a set operation says of keys.
type change struct {
	current profile.Key // the peer that the lines are about; zero = the device
	self    *profile.Key
	replace bool
	peers   map[profile.Key]bool // false = removed
}

// learn reads a line that the device gets too, and returns it as the device can take it.
func (n *change) learn(k, v, line string) (string, error) {
	switch k {
	case "private_key":
		private, err := unhex(v)
		if err != nil {
			return "", err
		}
		public := private.Public()
		n.self = &public
	case "replace_peers":
		n.replace = true
	case "public_key":
		public, err := unhex(v)
		if err != nil {
			return "", err
		}
		n.current, n.peers[public] = public, true
	case "remove":
		n.peers[n.current] = false
	case "persistent_keepalive_interval":
		if low, _, two := strings.Cut(v, "-"); two { // upstream's devices know one number
			return k + "=" + low + "\n", nil
		}
	}
	return line, nil
}

func (c *Codec) apply(n change) {
	if n.self != nil {
		c.SetSelf(*n.self)
	}
	if n.replace {
		c.mu.Lock()
		for k := range c.peers {
			if !n.peers[k] {
				delete(c.peers, k)
			}
		}
		c.mu.Unlock()
	}
	for k, there := range n.peers {
		if there {
			c.AddPeer(k)
		} else {
			c.RemovePeer(k)
		}
	}
}

// ours tells whether a key of the control socket is one of AmneziaWG's.
func ours(k string) bool {
	switch k {
	case "jc", "jmin", "jmax", "itime", "header_protection_key", "content_padding_addition", "rekey_after_time",
		"rekey_timeout", "reject_after_time", "keepalive_timeout", "max_handshake_attempts", "random_trailers", "disable_cookies":
		return true
	}
	if len(k) != 2 {
		return false
	}
	most := map[byte]byte{'s': '4', 'h': '4', 'i': '5', 'j': '3'}[k[0]]
	return k[1] >= '1' && k[1] <= most
}

// setControl takes one key as the control socket writes it: an empty packet is none,
// and a key is hexadecimal.
func (p *Params) setControl(k, v string) (err error) {
	switch {
	case k == "header_protection_key":
		p.HeaderKey, err = unhex(v)
		return err
	case v == "" && len(k) == 2 && k[0] == 'i' && ours(k):
		p.I[k[1]-'1'] = Packet{}
		return nil
	case v == "" && len(k) == 2 && k[0] == 'j' && k != "jc":
		p.J[k[1]-'1'] = Packet{}
		return nil
	}
	return p.set(strings.ReplaceAll(k, "_", ""), v)
}

func unhex(s string) (k profile.Key, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(k) {
		return k, errors.New("not 32 bytes of hexadecimal digits")
	}
	copy(k[:], b)
	return k, nil
}
