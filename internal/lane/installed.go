package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

// installed is the file that a lane's commands read, before a change.
type installed struct {
	path string // "" = the commands read none
	data []byte
	was  bool // it existed
	own  profile.Profile
}

// readInstalled reads and parses the installed file. One that does not parse is an error:
// the operator's own lines in it would be lost.
func readInstalled(path string) (installed, error) {
	f := installed{path: path}
	if path == "" {
		return f, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("installed file: %w", err)
	}
	f.data, f.was = data, true
	if f.own, err = profile.Parse(path, bytes.NewReader(data)); err != nil {
		return f, fmt.Errorf("installed file: %w", err)
	}
	return f, nil
}

// merge is p as it is installed. What belongs to this router and not to the tunnel stays
// that of the installed file: hooks, DNS, table and mark. So a provider's file never gets
// a command run as root, nor a resolver or a default route put into this machine.
func (f installed) merge(p profile.Profile) profile.Profile {
	p.DNS, p.Extra = f.own.DNS, append([]profile.KeyValue(nil), f.own.Extra...)
	if _, ok := extra(p, "Table"); !ok {
		// wg-quick's default would take the router's own default route.
		p.Extra = append(p.Extra, profile.KeyValue{Key: "Table", Value: "off"})
	}
	if p.ListenPort == 0 {
		p.ListenPort = f.own.ListenPort
	}
	if p.MTU == 0 {
		p.MTU = f.own.MTU
	}
	return p
}

func extra(p profile.Profile, key string) (string, bool) {
	for _, kv := range p.Extra {
		if strings.EqualFold(kv.Key, key) {
			return kv.Value, true
		}
	}
	return "", false
}

// strip is p as `wg setconf` and `wg syncconf` read it. Both set the listen port and the
// mark to zero where the file says none, so those of a live device are written down.
func strip(p profile.Profile, live *wgtypes.Device, withPeers bool) []byte {
	var b bytes.Buffer
	port, mark := p.ListenPort, ""
	if m, ok := extra(p, "FwMark"); ok {
		mark = m
	}
	if live != nil {
		if port == 0 {
			port = live.ListenPort
		}
		if mark == "" && live.FirewallMark != 0 {
			mark = strconv.Itoa(live.FirewallMark)
		}
	}
	fmt.Fprintf(&b, "[Interface]\nPrivateKey = %s\n", p.PrivateKey.Base64())
	if port != 0 {
		fmt.Fprintf(&b, "ListenPort = %d\n", port)
	}
	if mark != "" {
		fmt.Fprintf(&b, "FwMark = %s\n", mark)
	}
	if !withPeers {
		return b.Bytes()
	}
	for _, q := range p.Peers {
		fmt.Fprintf(&b, "\n[Peer]\nPublicKey = %s\n", q.PublicKey.Base64())
		if !q.PresharedKey.IsZero() {
			fmt.Fprintf(&b, "PresharedKey = %s\n", q.PresharedKey.Base64())
		}
		if q.Endpoint != "" {
			fmt.Fprintf(&b, "Endpoint = %s\n", q.Endpoint)
		}
		if len(q.AllowedIPs) > 0 {
			list := make([]string, 0, len(q.AllowedIPs))
			for _, a := range q.AllowedIPs {
				list = append(list, a.String())
			}
			fmt.Fprintf(&b, "AllowedIPs = %s\n", strings.Join(list, ", "))
		}
		if q.Keepalive > 0 {
			fmt.Fprintf(&b, "PersistentKeepalive = %d\n", q.Keepalive/time.Second)
		}
	}
	return b.Bytes()
}

// put writes a file with keys in it, 0600, so that it is the old or the new one after
// any crash.
func put(ctx context.Context, path string, data []byte, point string) error {
	if err := state.WriteFile(ctx, path, data, 0o600); err != nil {
		return err
	}
	run.Point(ctx, point)
	return nil
}

// putBack makes the installed file what it was.
func (f installed) putBack(ctx context.Context) error {
	switch {
	case f.path == "":
		return nil
	case f.was:
		return put(ctx, f.path, f.data, "lane.installed")
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("installed file: %w", err)
	}
	run.Point(ctx, "lane.installed")
	return nil
}
