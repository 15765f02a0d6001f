package provider

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
)

// appList has the shape of /app/v1/relays.
var appList = `{"locations":{"se-sto":{"country":"Sweden","city":"Stockholm","latitude":59.3289,"longitude":18.0649},
"us-sea":{"country":"USA","city":"Seattle, WA","latitude":47.6,"longitude":-122.3},"ch-zrh":{"country":"Switzerland","city":"Zurich","latitude":47.3,"longitude":8.5}},
"openvpn":{"relays":[],"ports":[{"port":1194,"protocol":"udp"}]},
"wireguard":{"relays":[
` + appRelay("se-sto-wg-001", "se-sto", 1, `"active":true,"owned":true`) + `,
` + appRelay("us-sea-wg-301", "us-sea", 2, `"active":true,"owned":false`) + `,
` + appRelay("ch-zrh-wg-002", "ch-zrh", 3, `"active":true,"owned":false`) + `,
` + appRelay("se-sto-wg-009", "se-sto", 4, `"active":false,"owned":true`) + `],
"port_ranges":[[53,53],[123,123],[4000,33433],[33565,51820],[52001,60000]],"ipv4_gateway":"10.64.0.1","ipv6_gateway":"fc00:bbbb:bbbb:bb01::1"},
"bridge":{"relays":[],"shadowsocks":[]}}`

func appRelay(host, location string, n int, more string) string {
	return fmt.Sprintf(`{"hostname":%q,"location":%q,"provider":"31173","weight":100,"include_in_country":true,"ipv4_addr_in":"192.0.2.%d","ipv6_addr_in":"2001:db8::%d","public_key":%q,"features":{"lwo":{}},%s}`,
		host, location, n, n, key(16, n), more)
}

// publicList has the shape of /public/relays/wireguard/v1.
var publicList = `{"countries":[{"name":"Sweden","code":"se","cities":[{"name":"Stockholm","code":"sto","latitude":59.3,"longitude":18.0,"relays":[
{"hostname":"se1-wireguard","public_key":"` + key(16, 1) + `","ipv4_addr_in":"192.0.2.1","ipv6_addr_in":"2001:db8::1","multihop_port":3001}]},
{"name":"Gothenburg","code":"got","relays":[]}]},
{"name":"Norway","code":"no","cities":[{"name":"Oslo","code":"osl","relays":[
{"hostname":"no1-wireguard","public_key":"` + key(16, 2) + `","ipv4_addr_in":"192.0.2.2","ipv6_addr_in":"2001:db8::2","multihop_port":3002}]}]}]}`

// cacheList has the shape of the app's own cache.
var cacheList = `{"etag":"W/\"1\"","countries":[{"name":"Sweden","code":"se","cities":[{"name":"Stockholm","code":"sto","relays":[
{"hostname":"se-sto-wg-001","ipv4_addr_in":"192.0.2.1","ipv6_addr_in":null,"active":true,"owned":true,"weight":100,"endpoint_data":{"wireguard":{"public_key":"` + key(16, 1) + `","daita":false}},
"location":{"country":"Sweden","country_code":"se","city":"Stockholm","city_code":"sto"}},
{"hostname":"se-sto-ovpn-001","ipv4_addr_in":"192.0.2.9","active":true,"owned":true,"endpoint_data":"openvpn","location":{}}]}]}]}`

// ownKey is a source of type mullvad with the user's part and no list.
func ownKey(t testing.TB) egress.Source {
	t.Helper()
	return egress.Source{
		Type: egress.SourceMullvad, KeyFile: secretFile(t, key(8, 1)+"\n"),
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.64.0.2/32"), netip.MustParsePrefix("fc00::2/128")},
	}
}

func TestRelaysBecomeProfiles(t *testing.T) {
	first, second, third := "+ se-sto-wg-001.conf 192.0.2.1:51820", "+ us-sea-wg-301.conf 192.0.2.2:51820", "+ ch-zrh-wg-002.conf 192.0.2.3:51820"
	idle := "- se-sto-wg-009.conf: not active, says the list"
	for _, tc := range []struct {
		name, list string
		ask        egress.Source
		want       []string
	}{
		{"all", appList, egress.Source{}, []string{first, second, third, idle}},
		{"of a country by its code", appList, egress.Source{Countries: []string{"SE"}}, []string{first, idle}},
		{"of countries by their names", appList, egress.Source{Countries: []string{"usa", "Switzerland"}}, []string{second, third}},
		{"of a city by its code", appList, egress.Source{Cities: []string{"zrh"}}, []string{third}},
		{"of a city by both codes", appList, egress.Source{Cities: []string{"ch-zrh"}}, []string{third}},
		{"of a city by its name", appList, egress.Source{Cities: []string{"seattle, wa"}}, []string{second}},
		{"owned", appList, egress.Source{Ownership: egress.OwnershipOwned}, []string{first, idle}},
		{"rented in a country", appList, egress.Source{Ownership: egress.OwnershipRented, Countries: []string{"us", "se"}}, []string{second}},
		{"any owner", appList, egress.Source{Ownership: egress.OwnershipAny, Countries: []string{"ch"}}, []string{third}},
		{"with a mistyped country", appList, egress.Source{Countries: []string{"ch", "swedn"}}, []string{third, "- countries swedn: no relay of the list is there"}},
		{"on another port", appList, egress.Source{Port: 53, Countries: []string{"ch"}}, []string{"+ ch-zrh-wg-002.conf 192.0.2.3:53"}},
		{"of the public list", publicList, egress.Source{}, []string{"+ se1-wireguard.conf 192.0.2.1:51820", "+ no1-wireguard.conf 192.0.2.2:51820"}},
		{"of the public list in a city", publicList, egress.Source{Countries: []string{"Norway"}, Cities: []string{"no-osl"}, Port: 1}, []string{"+ no1-wireguard.conf 192.0.2.2:1"}},
		{"of the app's cache", cacheList, egress.Source{Ownership: egress.OwnershipOwned}, []string{first, "- se-sto-ovpn-001.conf: not a relay of WireGuard"}},
		{"from a file with a mark", "\ufeff\n" + publicList, egress.Source{Countries: []string{"no"}}, []string{"+ no1-wireguard.conf 192.0.2.2:51820"}},
	} {
		for _, far := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, far: %v", tc.name, far), func(t *testing.T) {
				work, src := workdir(t), ownKey(t)
				src.Countries, src.Cities, src.Ownership, src.Port = tc.ask.Countries, tc.ask.Cities, tc.ask.Ownership, tc.ask.Port
				if far {
					src.URL = serve(t, body([]byte(tc.list)))
				} else {
					src.Path = write(t, t.TempDir()+"/relays.json", tc.list)
				}
				l, err := fetchOne(t, work, src)
				check(t, work, l, err, tc.want...)
			})
		}
	}
}

func TestAProfileOfARelayIsWhatAPersonWouldWrite(t *testing.T) {
	src := ownKey(t)
	src.Path, src.Countries = write(t, t.TempDir()+"/relays.json", appList), []string{"ch"}
	src.DNS = []netip.Addr{netip.MustParseAddr("10.64.0.1")}
	for allowed, addresses := range map[string][]netip.Prefix{"0.0.0.0/0, ::/0": src.Addresses, "0.0.0.0/0": src.Addresses[:1], "::/0": src.Addresses[1:]} {
		src.Addresses = addresses
		l, err := fetchOne(t, workdir(t), src)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(l.Entries[0].Path)
		var texts []string
		for _, a := range addresses {
			texts = append(texts, a.String())
		}
		want := "[Interface]\nPrivateKey = " + key(8, 1) + "\nAddress = " + strings.Join(texts, ", ") + "\nDNS = 10.64.0.1\n\n[Peer]\nPublicKey = " +
			key(16, 3) + "\nEndpoint = 192.0.2.3:51820\nAllowedIPs = " + allowed + "\n"
		if d := cmp.Diff(want, string(got)); err != nil || d != "" {
			t.Errorf("%v (-want +got):\n%s", err, d)
		}
	}
}

func TestBadRelaysAreSkipped(t *testing.T) {
	relay := func(host string, n int, more string) string {
		return fmt.Sprintf(`{"hostname":%q,"public_key":%q,"ipv4_addr_in":"192.0.2.%d"%s}`, host, key(16, n), n, more)
	}
	list := `{"wireguard":{"relays":[` + strings.Join([]string{
		relay("good", 1, ""),
		relay("../../etc/cron.d/evil", 2, ""),
		relay("a\tb\nc/d\u202e", 3, ""),
		relay(strings.Repeat("x", 300), 4, ""),
		relay(".hidden", 5, ""),
		relay("", 6, ""),
		`5`, `null`, `"x"`,
		`{"hostname":7}`,
		`{"hostname":"key","public_key":"` + canary + `","ipv4_addr_in":"192.0.2.1"}`,
		`{"hostname":"zero","public_key":"` + strings.Repeat("A", 43) + `=","ipv4_addr_in":"192.0.2.1"}`,
		`{"hostname":"name","public_key":"` + key(16, 9) + `","ipv4_addr_in":"relay.example"}`,
		`{"hostname":"family","public_key":"` + key(16, 9) + `","ipv4_addr_in":"2001:db8::1"}`,
		`{"hostname":"none","public_key":"` + key(16, 9) + `"}`,
		`{"hostname":"six","public_key":"` + key(16, 7) + `","ipv6_addr_in":"2001:db8::7"}`,
		`{"hostname":"multicast","public_key":"` + key(16, 9) + `","ipv4_addr_in":"224.0.0.1"}`,
		relay("good", 1, `,"location":"xx-yy"`),
		relay("Good", 8, `,"active":false`),
		relay("good", 10, ""),
	}, ",") + `]}}`
	work, src := workdir(t), ownKey(t)
	src.URL = serve(t, body([]byte(list)))
	l, err := fetchOne(t, work, src)
	check(t, work, l, err,
		"+ good.conf 192.0.2.1:51820", "+ _.._.._etc_cron.d_evil.conf 192.0.2.2:51820", "+ a_b_c_d_.conf 192.0.2.3:51820",
		"+ "+strings.Repeat("x", 200)+".conf 192.0.2.4:51820", "+ _.hidden.conf 192.0.2.5:51820",
		"+ six.conf [2001:db8::7]:51820", "+ good~2.conf 192.0.2.10:51820",
		"- relay 6: no hostname", "- relay 7: of type number, want an object", "- relay 8: no hostname", "- relay 9: of type string, want an object",
		"- relay 10: hostname: of type number, want string",
		"- key.conf: public_key: not a key: 13 characters, want 44 of base64", "- zero.conf: public_key: all zero",
		"- name.conf: ipv4_addr_in: not an address of its kind", "- family.conf: ipv4_addr_in: not an address of its kind", "- none.conf: no address",
		"- multicast.conf: endpoint 224.0.0.1:51820: not a unicast address",
		"- good.conf: the same endpoint 192.0.2.1:51820 as good.conf of source hmn", "- Good.conf: not active, says the list",
	)
}

func TestRelayListsAreRefused(t *testing.T) {
	good := appList
	for _, tc := range []struct {
		name, list, reason string
		spoil              func(*egress.Source)
	}{
		{"a page", "<html>", "the answer is an HTML page, not a relay list", nil},
		{"nothing", "", "the answer is empty", nil},
		{"an error", `{"code":"THROTTLED","error":"too many requests"}`, "the answer is a JSON document, not a relay list: too many requests", nil},
		{"an archive", string(makeZip(t, member{name: "a.conf", body: conf(1)})), "the answer is a zip, not a relay list", nil},
		{"a list cut off", good[:len(good)-40], "the relay list: the JSON is truncated or damaged at byte", nil},
		{"a list of names", `["a"]`, "the relay list: of type array, want an object", nil},
		{"another document", `{"relays":[]}`, "the relay list: no relays where a list has them", nil},
		{"no relays", `{"wireguard":{"relays":[]}}`, "the relay list is empty", nil},
		{"relays of another kind", `{"wireguard":{"relays":"x"}}`, "the relay list: no relays where a list has them", nil},
		{"a closed port", good, "it does not allow port 52000, but 53-53, 123-123, 4000-33433", func(s *egress.Source) { s.Port = 52000 }},
		{"a port out of range", good, "port 70000 is out of range", func(s *egress.Source) { s.Port = 70000 }},
		{"no addresses", good, "no addresses", func(s *egress.Source) { s.Addresses = nil }},
		{"no key", good, "no key_file", func(s *egress.Source) { s.KeyFile = "" }},
		{"no such key", good, "key_file /none: no such file", func(s *egress.Source) { s.KeyFile = "/none" }},
		{"filters that nothing passes", good, "none of the 4 relays is owned and in the countries xx and in the cities yy", func(s *egress.Source) {
			s.Ownership, s.Countries, s.Cities = egress.OwnershipOwned, []string{"xx"}, []string{"yy"}
		}},
		{"no word on owners", publicList, "none of its files is usable: 2 skipped, the first is se1-wireguard.conf: the list does not say who owns it", func(s *egress.Source) { s.Ownership = egress.OwnershipRented }},
		{"a mistyped owner", good, `unknown ownership "own"`, func(s *egress.Source) { s.Ownership = "own" }},
		{"more relays than allowed", good, "holds more files than max_files: 2 allows", func(s *egress.Source) { s.MaxFiles = 2 }},
		{"more bytes than allowed", good, "larger than max_bytes: 500 allows", func(s *egress.Source) { s.MaxBytes = 500 }},
		{"very many tiny relays", `{"wireguard":{"relays":[` + strings.Repeat("{},", 2000) + `{}]}}`, "holds more files than max_files: 2 allows", func(s *egress.Source) { s.MaxFiles = 2 }},
		{"very many tiny places", `{"locations":{` + strings.Repeat(`"":{},`, 2000) + `"":{}}}`, "holds more files than max_files: 2 allows", func(s *egress.Source) { s.MaxFiles = 2 }},
		{"very many tiny ranges", `{"wireguard":{"port_ranges":[` + strings.Repeat(`[],`, 2000) + `[]]}}`, "holds more files than max_files: 2 allows", func(s *egress.Source) { s.MaxFiles = 2 }},
		{"a deep document", `{"wireguard":` + strings.Repeat("[", 20000), "the relay list: the JSON is truncated or damaged at byte", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work, src := workdir(t), ownKey(t)
			src.URL = serve(t, body([]byte(tc.list)))
			if tc.spoil != nil {
				tc.spoil(&src)
			}
			l, err := fetchOne(t, work, src)
			checkRefused(t, work, l, err, tc.reason)
			if strings.Contains(fmt.Sprint(err), key(8, 1)) {
				t.Errorf("the private key is in %v", err)
			}
		})
	}
}

func FuzzRelayList(f *testing.F) {
	for _, s := range []string{
		appList, publicList, cacheList, `{}`, `[]`, `null`, `{"wireguard":{"relays":[null,5,{"hostname":{}}],"port_ranges":[[1],["x"],[1,2,3]]}}`,
		`{"countries":[{"cities":[{"relays":[{"hostname":"../x\u0000","location":{},"endpoint_data":{"wireguard":5}}]}]}]}`,
		`{"locations":{"a":5,"":{}},"wireguard":{"relays":[{"location":"a"}]}}`, `{"wireguard":{"relays":[{"public_key":`,
	} {
		f.Add([]byte(s))
	}
	private, err := profile.ParseKey(key(8, 1))
	if err != nil {
		f.Fatal(err)
	}
	errEnough := errors.New("enough")
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := newMaker(egress.Source{Addresses: []netip.Prefix{netip.MustParsePrefix("10.64.0.2/32")}, Countries: []string{"se"}}, private)
		seen := 0
		l := &relayList{check: func() error { return nil }, see: func() error {
			if seen++; seen > 1000 {
				return errEnough
			}
			return nil
		}}
		l.yield = func(r relay) error {
			m.wants(r.place)
			stem := fileStem(r.file())
			if stem == "" || stem[0] == '.' || strings.ContainsAny(stem, "/\\\x00 \t\n") || len(stem) > maxName+1 {
				t.Errorf("host %q becomes the file %q", r.Hostname, stem)
			}
			if strings.ContainsAny(r.fault, "\r\n\x00") {
				t.Errorf("fault %q is not one line", r.fault)
			}
			peer, err := r.peer(MullvadPort)
			if err != nil {
				if strings.ContainsAny(err.Error(), "\r\n\x00") {
					t.Errorf("error %q is not one line", err)
				}
				return nil
			}
			// A relay that is taken makes a profile that reads back to the same server.
			p, err := profile.Parse("x", strings.NewReader(string(m.profile(peer))))
			if err != nil || p.Peers[0].PublicKey != peer.PublicKey || p.Endpoint() != peer.Endpoint {
				t.Errorf("%v: %+v, want %+v", err, p, peer)
			}
			return nil
		}
		if err := l.read(raw); err != nil && strings.ContainsAny(err.Error(), "\r\n\x00") {
			t.Errorf("error %q is not one line", err)
		}
	})
}
