package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// MullvadList is the relay list of a source of type mullvad that names none.
const MullvadList = "https://api.mullvad.net/app/v1/relays"

// MullvadPort is the UDP port of relays where the source names none.
const MullvadPort = 51820

// maxRelayList is the size of the largest relay list, bytes. The real one has about half
// a megabyte.
const maxRelayList = 16 << 20

// mullvad makes a profile of each relay of a list that passes the source's filters, with
// the user's own key.
func (b *batch) mullvad(ctx context.Context, src egress.Source, opts Options) error {
	key, err := readKey(src.KeyFile)
	if err != nil {
		return err
	}
	b.keep(key.Base64(), key.Hex())
	m := newMaker(src, key)
	if err := m.check(); err != nil {
		return err
	}
	raw, err := b.relayList(ctx, src, opts)
	if err != nil {
		return err
	}
	if err := b.weigh(int64(len(raw))); err != nil {
		return err
	}
	l := &relayList{see: b.see}
	l.check = func() error { return m.allowed(l.ports) }
	l.yield = func(r relay) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return b.relay(m, r)
	}
	if err := l.read(raw); err != nil {
		return fmt.Errorf("the relay list: %w", err)
	}
	m.strangers(b.skip)
	switch {
	case m.seen == 0:
		return errors.New("the relay list is empty")
	case m.taken == 0:
		return fmt.Errorf("none of the %d relays is %s", m.seen, m.wish())
	}
	return nil
}

// relayList reads the list from where the source says.
func (b *batch) relayList(ctx context.Context, src egress.Source, opts Options) ([]byte, error) {
	var f *os.File
	var size int64
	what, quote := "the file", printable
	switch {
	case src.URL != "" && src.Path != "":
		return nil, errors.New("both url and path are set")
	case src.Path != "":
		var err error
		if f, size, err = b.open(src.Path); err != nil {
			return nil, err
		}
	default:
		if src.URL == "" {
			src.URL = MullvadList
		}
		r, err := b.remote(src, opts)
		if err != nil {
			return nil, err
		}
		defer r.done()
		if f, size, _, err = b.download(ctx, r); err != nil {
			return nil, err
		}
		what, quote = "the answer", r.quote
	}
	defer f.Close()
	return b.relayText(f, size, what, quote)
}

// relayText returns a body that is JSON and may be a relay list.
func (b *batch) relayText(f io.ReaderAt, size int64, what string, quote func(string) string) ([]byte, error) {
	head, err := peek(f, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if s := sniff(head); s != shapeJSON {
		return nil, s.refuse(what, "a relay list", head, quote)
	}
	if size > maxRelayList {
		return nil, fmt.Errorf("%s has %d bytes, and no relay list has more than %d", what, size, maxRelayList)
	}
	// A short answer may be a provider's error.
	if msg := jsonMessage(head); msg != "" {
		return nil, shapeJSON.refuse(what, "a relay list", head, quote)
	}
	return b.whole(f, size)
}

// relay takes one relay of the list.
func (b *batch) relay(m *maker, r relay) error {
	m.seen++
	if !m.wants(r.place) {
		return nil
	}
	// By now it is one of those that the user asked for: whatever is wrong with it is
	// said.
	file := r.file()
	if r.Hostname == "" {
		file = fmt.Sprintf("relay %d", m.seen)
		r.fault = cmp.Or(r.fault, "no hostname")
	}
	if r.fault != "" {
		b.skip(file, r.fault)
		m.taken++
		return nil
	}
	if reason := m.unlike(r); reason != "" {
		if reason != unwanted {
			b.skip(file, reason)
			m.taken++
		}
		return nil
	}
	m.taken++
	if err := b.seeConf(); err != nil {
		return err
	}
	peer, err := r.peer(m.port)
	if err != nil {
		b.skip(file, err.Error())
		return nil
	}
	return b.add(file, m.profile(peer))
}

// maker turns relays into profiles.
type maker struct {
	src   egress.Source
	port  uint16
	base  profile.Profile
	nets  []netip.Prefix  // what goes into the tunnel
	met   map[string]bool // words of the filters that some relay has
	seen  int             // relays of the list
	taken int             // relays that the filters let through
}

func newMaker(src egress.Source, key profile.Key) *maker {
	m := &maker{src: src, port: MullvadPort, met: map[string]bool{}}
	m.base = profile.Profile{PrivateKey: key, Addresses: src.Addresses}
	for _, d := range src.DNS {
		m.base.DNS = append(m.base.DNS, d.String())
	}
	var v4, v6 bool
	for _, a := range src.Addresses {
		v4, v6 = v4 || a.Addr().Is4(), v6 || a.Addr().Is6()
	}
	if v4 {
		m.nets = append(m.nets, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	}
	if v6 {
		m.nets = append(m.nets, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	if src.Port > 0 && src.Port <= 65535 {
		m.port = uint16(src.Port)
	}
	return m
}

// check judges what the configuration's own check has judged too.
func (m *maker) check() error {
	switch s := m.src; {
	case len(s.Addresses) == 0:
		return errors.New("no addresses")
	case slices.ContainsFunc(s.Addresses, func(p netip.Prefix) bool { return !p.IsValid() }):
		return errors.New("one of its addresses is not valid")
	case slices.ContainsFunc(s.DNS, func(a netip.Addr) bool { return !a.IsValid() }):
		return errors.New("one of its dns addresses is not valid")
	case s.Port < 0 || s.Port > 65535:
		return fmt.Errorf("port %d is out of range", s.Port)
	}
	switch m.src.Ownership {
	case egress.OwnershipUnknown, egress.OwnershipAny, egress.OwnershipOwned, egress.OwnershipRented:
		return nil
	}
	return fmt.Errorf("unknown ownership %q", m.src.Ownership)
}

// allowed judges the port; a list without ranges allows any.
func (m *maker) allowed(ports []portRange) error {
	if len(ports) == 0 || slices.ContainsFunc(ports, func(r portRange) bool { return r[0] <= int(m.port) && int(m.port) <= r[1] }) {
		return nil
	}
	var say []string
	for _, r := range ports[:min(len(ports), 12)] {
		say = append(say, fmt.Sprintf("%d-%d", r[0], r[1]))
	}
	return fmt.Errorf("it does not allow port %d, but %s", m.port, strings.Join(say, ", "))
}

// wants reports whether the filters let a place through.
func (m *maker) wants(p place) bool {
	country := m.any("countries", m.src.Countries, p.country, p.countryName)
	city := m.any("cities", m.src.Cities, p.city, p.country+"-"+p.city, p.cityName)
	return country && city
}

// any reports whether one of the words is one of the names; no words mean all.
func (m *maker) any(key string, words []string, names ...string) bool {
	found := len(words) == 0
	for _, w := range words {
		if w != "" && slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, w) }) {
			m.met[key+" "+w] = true
			found = true
		}
	}
	return found
}

// unwanted is the reason that needs no saying.
const unwanted = "unwanted"

// unlike says why a relay is not one of those asked for; "" = it is one.
func (m *maker) unlike(r relay) string {
	switch m.src.Ownership {
	case egress.OwnershipOwned, egress.OwnershipRented:
		if r.Owned == nil {
			return "the list does not say who owns it"
		}
		if *r.Owned != (m.src.Ownership == egress.OwnershipOwned) {
			return unwanted
		}
	case egress.OwnershipUnknown, egress.OwnershipAny:
	}
	// The list that does not say names only those that are active.
	if r.Active != nil && !*r.Active {
		return "not active, says the list"
	}
	return ""
}

// strangers reports words of the filters that no relay has: they are mistyped, or the
// provider has left that place.
func (m *maker) strangers(skip func(file, reason string)) {
	for _, f := range []struct {
		key   string
		words []string
	}{{"countries", m.src.Countries}, {"cities", m.src.Cities}} {
		for _, w := range f.words {
			if !m.met[f.key+" "+w] {
				skip(f.key+" "+w, "no relay of the list is there")
			}
		}
	}
}

// wish is what the filters ask for.
func (m *maker) wish() string {
	var out []string
	if m.src.Ownership == egress.OwnershipOwned || m.src.Ownership == egress.OwnershipRented {
		out = append(out, string(m.src.Ownership))
	}
	if len(m.src.Countries) > 0 {
		out = append(out, "in the countries "+strings.Join(m.src.Countries, ", "))
	}
	if len(m.src.Cities) > 0 {
		out = append(out, "in the cities "+strings.Join(m.src.Cities, ", "))
	}
	return printable(strings.Join(out, " and "))
}

// profile is the file for one relay.
func (m *maker) profile(peer profile.Peer) []byte {
	p := m.base
	peer.AllowedIPs = m.nets
	p.Peers = []profile.Peer{peer}
	return p.Format()
}
