package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/shunt-net/shunt/internal/profile"
)

// relay is one server of a relay list. Pointers are nil where the list does not say.
type relay struct {
	Hostname  string          `json:"hostname"`
	Location  json.RawMessage `json:"location"` // "se-sto", or an object in the app's own cache
	Active    *bool           `json:"active"`
	Owned     *bool           `json:"owned"`
	IPv4      string          `json:"ipv4_addr_in"`
	IPv6      string          `json:"ipv6_addr_in"`
	PublicKey string          `json:"public_key"`
	Endpoint  json.RawMessage `json:"endpoint_data"` // only in the app's own cache

	place place
	fault string // why it cannot be read; "" = it can
}

// place is where a relay stands: codes and names, "" where the list does not say.
type place struct{ country, city, countryName, cityName string }

var errNotRelays = errors.New("no relays where a list has them")

// portRange is one range of UDP ports that relays listen on, both ends included.
type portRange [2]int

// relayList reads a relay list of Mullvad in the shape of /app/v1/relays (a flat list and
// the places beside it), in that of /public/relays/wireguard/v1 (relays inside cities
// inside countries), or in that of the app's own cache, which is nearly the latter.
type relayList struct {
	see    func() error      // counts whatever costs memory
	yield  func(relay) error // takes each relay, in the order of the list
	places map[string]place  // by code
	ports  []portRange       // known before the first relay is yielded
	check  func() error      // is asked once the ports are known
}

func (l *relayList) read(raw []byte) error {
	var doc struct {
		Locations json.RawMessage `json:"locations"`
		WireGuard struct {
			Relays json.RawMessage `json:"relays"`
			Ports  json.RawMessage `json:"port_ranges"`
		} `json:"wireguard"`
		Countries json.RawMessage `json:"countries"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return jsonFault(err)
	}
	l.places = map[string]place{}
	if err := l.readPorts(doc.WireGuard.Ports); err != nil {
		return err
	}
	if err := l.readPlaces(doc.Locations); err != nil {
		return err
	}
	if err := l.check(); err != nil {
		return err
	}
	switch {
	case len(doc.WireGuard.Relays) > 0:
		return l.readRelays(doc.WireGuard.Relays, place{})
	case len(doc.Countries) > 0:
		return l.readCountries(doc.Countries)
	}
	return errNotRelays
}

func (l *relayList) readPorts(raw json.RawMessage) error {
	return elements(raw, func(dec *json.Decoder) error {
		var p []int
		if err := decode(dec, &p); err != nil || len(p) != 2 {
			return l.see() // a range of another form allows nothing
		}
		l.ports = append(l.ports, portRange{p[0], p[1]})
		return l.see()
	})
}

func (l *relayList) readPlaces(raw json.RawMessage) error {
	return members(raw, func(code string, dec *json.Decoder) error {
		var v struct{ Country, City string }
		if err := decode(dec, &v); err == nil {
			country, city, _ := strings.Cut(code, "-")
			l.places[code] = place{country: country, city: city, countryName: v.Country, cityName: v.City}
		}
		return l.see()
	})
}

func (l *relayList) readCountries(raw json.RawMessage) error {
	return elements(raw, func(dec *json.Decoder) error {
		var c struct {
			Name, Code string
			Cities     json.RawMessage
		}
		if err := decode(dec, &c); err != nil {
			return err
		}
		if err := l.see(); err != nil {
			return err
		}
		return elements(c.Cities, func(dec *json.Decoder) error {
			var t struct {
				Name, Code string
				Relays     json.RawMessage
			}
			if err := decode(dec, &t); err != nil {
				return err
			}
			if err := l.see(); err != nil {
				return err
			}
			return l.readRelays(t.Relays, place{country: c.Code, city: t.Code, countryName: c.Name, cityName: t.Name})
		})
	})
}

// readRelays yields the relays of one list; at is where they stand, if that is known.
func (l *relayList) readRelays(raw json.RawMessage, at place) error {
	return elements(raw, func(dec *json.Decoder) error {
		var r relay
		if err := decode(dec, &r); err != nil {
			r.fault = err.Error()
		}
		if err := l.see(); err != nil {
			return err
		}
		r.place = at
		if at == (place{}) {
			r.place = l.placeOf(r.Location)
		}
		r.openEndpoint()
		return l.yield(r)
	})
}

func (l *relayList) placeOf(raw json.RawMessage) place {
	var code string
	if json.Unmarshal(raw, &code) != nil {
		return place{}
	}
	if p, ok := l.places[code]; ok {
		return p
	}
	country, city, _ := strings.Cut(code, "-")
	return place{country: country, city: city}
}

// openEndpoint finds the key where the app's own cache has it.
func (r *relay) openEndpoint() {
	if r.PublicKey != "" || len(r.Endpoint) == 0 {
		return
	}
	var e struct {
		WireGuard struct {
			PublicKey string `json:"public_key"`
		} `json:"wireguard"`
	}
	if json.Unmarshal(r.Endpoint, &e) != nil || e.WireGuard.PublicKey == "" {
		r.fault = "not a relay of WireGuard"
		return
	}
	r.PublicKey = e.WireGuard.PublicKey
}

// peer is the relay as a profile has it.
func (r *relay) peer(port uint16) (profile.Peer, error) {
	key, err := profile.ParseKey(r.PublicKey)
	switch {
	case err != nil:
		return profile.Peer{}, fmt.Errorf("public_key: %w", err)
	case key.IsZero():
		return profile.Peer{}, errors.New("public_key: all zero")
	}
	text, name := r.IPv4, "ipv4_addr_in"
	if text == "" {
		text, name = r.IPv6, "ipv6_addr_in"
	}
	if text == "" {
		return profile.Peer{}, errors.New("no address")
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Is4() != (name == "ipv4_addr_in") || addr.Is4In6() || addr.Zone() != "" {
		return profile.Peer{}, fmt.Errorf("%s: not an address of its kind", name)
	}
	return profile.Peer{PublicKey: key, Endpoint: netip.AddrPortFrom(addr, port).String()}, nil
}

// file is the name of the relay's profile: letters, digits and ._- of its host name.
func (r *relay) file() string {
	name := strings.Map(func(c rune) rune {
		if c < 0x80 && (c == '-' || c == '.' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
			return c
		}
		return '_'
	}, shorten(r.Hostname, maxName))
	return name + ".conf"
}

// elements calls take for each element of a list, which it decodes. Nothing but one
// element is in memory at a time, however small the list's elements are.
func elements(raw json.RawMessage, take func(*json.Decoder) error) error {
	dec, err := begin(raw, '[')
	for dec != nil && err == nil && dec.More() {
		err = take(dec)
	}
	return err
}

// members calls take for each member of an object, whose value it decodes.
func members(raw json.RawMessage, take func(string, *json.Decoder) error) error {
	dec, err := begin(raw, '{')
	for dec != nil && err == nil && dec.More() {
		var name json.Token
		if name, err = dec.Token(); err == nil {
			text, _ := name.(string)
			err = take(text, dec)
		}
	}
	return err
}

// begin goes behind the bracket; what is absent or null has no decoder.
func begin(raw json.RawMessage, bracket json.Delim) (*json.Decoder, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != bracket {
		return nil, errNotRelays
	}
	return dec, nil
}

// decode reads one value. One of the wrong type is an error, and is behind the decoder all
// the same.
func decode(dec *json.Decoder, v any) error {
	if err := dec.Decode(v); err != nil {
		return jsonFault(err)
	}
	return nil
}

// jsonFault is an error of the JSON library without the text that it quotes.
func jsonFault(err error) error {
	var typ *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &typ):
		kind, _, _ := strings.Cut(typ.Value, " ") // what follows is the value
		if typ.Field == "" {
			return fmt.Errorf("of type %s, want an object", kind)
		}
		return fmt.Errorf("%s: of type %s, want %s", typ.Field, kind, typ.Type.Kind())
	case errors.As(err, &syntax):
		return fmt.Errorf("the JSON is truncated or damaged at byte %d", syntax.Offset)
	}
	return errors.New("the JSON is damaged")
}
