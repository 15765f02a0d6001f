package profile

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Format writes the canonical form, which Parse reads back to an equal profile. The
// texts of DNS, Extra and Obfuscation are written as they are: what Parse yields is
// safe, anything else must not hold line breaks or `#`.
func (p Profile) Format() []byte {
	var b bytes.Buffer
	put := func(k, v string) { fmt.Fprintf(&b, "%s = %s\n", k, v) }
	b.WriteString("[Interface]\n")
	if !p.PrivateKey.IsZero() {
		put("PrivateKey", p.PrivateKey.Base64())
	}
	if len(p.Addresses) > 0 {
		put("Address", join(p.Addresses))
	}
	if len(p.DNS) > 0 {
		put("DNS", strings.Join(p.DNS, ", "))
	}
	if p.MTU != 0 {
		put("MTU", strconv.Itoa(p.MTU))
	}
	if p.ListenPort != 0 {
		put("ListenPort", strconv.Itoa(p.ListenPort))
	}
	for _, kv := range p.Obfuscation {
		put(kv.Key, kv.Value)
	}
	for _, kv := range p.Extra {
		put(kv.Key, kv.Value)
	}
	for _, peer := range p.Peers {
		b.WriteString("\n[Peer]\n")
		put("PublicKey", peer.PublicKey.Base64())
		if !peer.PresharedKey.IsZero() {
			put("PresharedKey", peer.PresharedKey.Base64())
		}
		if peer.Endpoint != "" {
			put("Endpoint", peer.Endpoint)
		}
		if len(peer.AllowedIPs) > 0 {
			put("AllowedIPs", join(peer.AllowedIPs))
		}
		ranged := false
		for _, kv := range peer.Obfuscation {
			ranged = ranged || kv.Key == "PersistentKeepalive"
			put(kv.Key, kv.Value)
		}
		if peer.Keepalive > 0 && !ranged {
			put("PersistentKeepalive", strconv.FormatInt(int64(peer.Keepalive/time.Second), 10))
		}
	}
	return b.Bytes()
}

func join[T fmt.Stringer](list []T) string {
	s := make([]string, len(list))
	for i, v := range list {
		s[i] = v.String()
	}
	return strings.Join(s, ", ")
}
