package profile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	privA = "kJFEfKpPYTL6RP4ywQ2kHnZO7JvmMXGOV1b6ZA2iWFI="
	privB = "wHtwiyt1Sw6VvIM0KyUHuD2C1nBeBu/weMj9D/WH5VY="
	pubB  = "4PraJN8Y3iUDniCOZrtjNzKTM2/m3+aVlZpF3p4J0H8=" // of privB
	pubS  = "jPgqWjjFHXvaOOp6y3Hi1/vkYJtSVkfhmy8Cze3nSAE="
	hpk   = "VIqhlD67pPfJ1HmScGiWz2ASI3n+coQDoS4z+o6I0Tw="
)

const plainConf = `[Interface]
PrivateKey = ` + privB + `
Address = 10.8.0.2/32
[Peer]
PublicKey = ` + pubS + `
AllowedIPs = 0.0.0.0/0
Endpoint = 192.0.2.7:51820
`

func mustParse(t *testing.T, s string) Profile {
	t.Helper()
	p, err := Parse("test.conf", strings.NewReader(s))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// equal compares keys as bytes: their own text hides them.
func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Transformer("hex", Key.Hex), cmpopts.EquateComparable())
}

func TestParseReadsEverySetting(t *testing.T) {
	got := mustParse(t, "\ufeff# a comment\r\n[interface]\r\nprivatekey="+privB+"\r\n"+
		"ADDRESS = 10.8.0.2/24 , fd00::2 # two\r\nAddress=10.9.0.1\r\nDNS = 10.8.0.1, 1.1.1.1 lan.example\r\nDNS =\r\n"+
		"MTU = 1380\r\nListenPort = 51000\r\nTable = off\r\nFwMark = 0x202\r\nSaveConfig = true\r\n"+
		"PostUp = iptables -A FORWARD -i %i -j ACCEPT; echo a=b\r\nPostUp = true\r\n\r\n"+
		"[PEER]\r\nPublicKey = "+pubS+"\r\nPresharedKey = "+hpk+"\r\nEndpoint = [2001:DB8::0:7]:051820\r\n"+
		"AllowedIPs = 10.1.2.3/8,::/0\r\nAllowedIPs = 192.0.2.1\r\nPersistentKeepalive = 25")
	key := func(s string) Key {
		k, err := ParseKey(s)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	want := Profile{
		PrivateKey: key(privB), MTU: 1380, ListenPort: 51000,
		DNS: []string{"10.8.0.1", "1.1.1.1", "lan.example"},
		Extra: []KeyValue{
			{"Table", "off"},
			{"FwMark", "0x202"},
			{"SaveConfig", "true"},
			{"PostUp", "iptables -A FORWARD -i %i -j ACCEPT; echo a=b"},
			{"PostUp", "true"},
		},
		Peers: []Peer{{PublicKey: key(pubS), PresharedKey: key(hpk), Endpoint: "[2001:db8::7]:51820", Keepalive: 25 * time.Second}},
	}
	gotAddr, gotAllowed := fmt.Sprint(got.Addresses), fmt.Sprint(got.Peers[0].AllowedIPs)
	got.Addresses, got.Peers[0].AllowedIPs = nil, nil
	if d := diff(want, got); d != "" {
		t.Errorf("profile (-want +got):\n%s", d)
	}
	if want := "[10.8.0.2/24 fd00::2/128 10.9.0.1/32]"; gotAddr != want {
		t.Errorf("addresses: want %s, got %s", want, gotAddr)
	}
	if want := "[10.0.0.0/8 ::/0 192.0.2.1/32]"; gotAllowed != want {
		t.Errorf("allowed: want %s, got %s", want, gotAllowed)
	}
}

func TestParseRefuses(t *testing.T) {
	in := "[Interface]\nPrivateKey = " + privB + "\n"
	peer := "[Peer]\nPublicKey = " + pubS + "\n"
	for _, tc := range []struct {
		name, text string
		line       int
		msg        string // contained
		newer      bool   // an ErrUnsupported
	}{
		{"an empty file", "", 0, "empty", false},
		{"white space and a mark alone", "\ufeff \r\n\n", 0, "empty", false},
		{"UTF-16", "\xff\xfe[\x00", 0, "UTF-16", false},
		{"a NUL byte", in + "MTU = 1\x00", 3, "NUL", false},
		{"a control character", in + "DNS = a\x1bb", 3, "control character", false},
		{"a lone carriage return inside", in + "MTU = 1280\rDNS = 1.1.1.1", 3, "control character", false},
		{"a byte that is not UTF-8", in + "DNS = \xff", 3, "UTF-8", false},
		{"a web page", "<!DOCTYPE html>\n<a href=x>", 1, "Key = value", false},
		{"a key before any section", "MTU = 1280\n" + in, 1, "before any section", false},
		{"no interface", peer, 0, "no [Interface]", false},
		{"two interfaces", in + "[Interface]\n", 3, "second [Interface]", false},
		{"two interfaces around a peer", in + peer + in, 5, "second [Interface]", false},
		{"an unknown section", in + "[Relay]\n", 3, "neither", true},
		{"an unknown key near a known one", in + "MUT = 1280\n", 3, `unknown key "MUT" in [Interface], the nearest known key is "MTU"`, true},
		{"an unknown key of a peer", in + peer + "EndPoints = 1\n", 5, `nearest known key is "Endpoint"`, true},
		{"a peer's key in the interface", in + "Endpoint = 192.0.2.1:1\n", 3, "belongs into [Peer]", false},
		{"an interface's key in a peer", in + peer + "Jc = 4\n", 5, "belongs into [Interface]", false},
		{"a key twice", in + "MTU = 1280\nmtu = 1281\n", 4, "already in line 3", false},
		{"no value", in + "MTU =\n", 3, "no value", false},
		{"an empty I2", in + "I2 =\n", 3, "no value", false},
		{"an MTU of words", in + "MTU = auto\n", 3, "not a number", false},
		{"an MTU too small", in + "MTU = 67\n", 3, "not from 68", false},
		{"a signed number", in + "ListenPort = +5\n", 3, "not a number", false},
		{"a number that overflows", in + "ListenPort = 99999999999999999999\n", 3, "not from 0", false},
		{"an address that is none", in + "Address = 10.0.0.256\n", 3, "not an address", false},
		{"a length that is none", in + "Address = 10.0.0.1/33\n", 3, "not a prefix", false},
		{"IPv4 inside IPv6", in + "Address = ::ffff:10.0.0.1\n", 3, "inside IPv6", false},
		{"a zone", in + "Address = fe80::1%eth0\n", 3, "not an address", false},
		{"a peer without its key", in + "[Peer]\nAllowedIPs = ::/0\n" + peer, 3, "without PublicKey", false},
		{"a last peer without its key", in + peer + "[Peer]\n", 5, "without PublicKey", false},
		{"a peer with a zero key", in + "[Peer]\nPublicKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n", 3, "without PublicKey", false},
		{"an endpoint without port", in + peer + "Endpoint = 192.0.2.1\n", 5, "not host:port", false},
		{"bare IPv6 as endpoint", in + peer + "Endpoint = 2001:db8::1:51820\n", 5, "neither an address", false},
		{"a half bracket", in + peer + "Endpoint = [2001:db8::1:51820\n", 5, "not [IPv6]:port", false},
		{"IPv4 in brackets", in + peer + "Endpoint = [192.0.2.1]:51820\n", 5, "not [IPv6]:port", false},
		{"an address of five numbers", in + peer + "Endpoint = 192.0.2.1.5:51820\n", 5, "neither an address", false},
		{"an address with a leading zero", in + peer + "Endpoint = 192.0.02.1:51820\n", 5, "neither an address", false},
		{"a port too high", in + peer + "Endpoint = 192.0.2.1:65536\n", 5, "port 65536 is not", false},
		{"a keepalive too long", in + peer + "PersistentKeepalive = 65536\n", 5, "not from 0", false},
		{"a keepalive range upside down", in + peer + "PersistentKeepalive = 30-22\n", 5, "upside down", false},
		{"a switch that is none", in + "RandomTrailers = maybe\n", 3, "neither on nor off", false},
		{"a header range upside down", in + "H1 = 9-5\n", 3, "upside down", false},
		{"a header that is no uint32", in + "H1 = 4294967296\n", 3, "not from 0", false},
		{"headers that overlap", in + "H1 = 5-10\nH2 = 10\n", 4, "H1 and H2 overlap", false},
		{"a header that is another's default", in + "H1 = 3\n", 3, "H1 and H3 overlap", false},
		{"junk upside down", in + "Jc = 4\nJmin = 70\nJmax = 40\n", 4, "Jmax is less", false},
		{"a header key without room", in + "HeaderProtectionKey = " + hpk + "\nS1 = 20\nS2 = 20\nS3 = 20\nS4 = 11\n", 3, "S4 must be", false},
		{"a tag that never ends", in + "I1 = <b 0xff\n", 3, "without its >", false},
		{"a tag of another generation", in + "I1 = <zz 4>\n", 3, "unknown tag", false},
		{"half a byte", in + "I1 = <b 0xfff>\n", 3, "even number", false},
		{"text outside of tags", in + "I1 = x<t>\n", 3, "outside of", false},
		{"an empty tag", in + "I1 = <>\n", 3, "empty tag", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("f.conf", strings.NewReader(tc.text))
			var se *SyntaxError
			if !errors.As(err, &se) {
				t.Fatalf("want a *SyntaxError, got %v", err)
			}
			if se.File != "f.conf" || se.Line != tc.line || !strings.Contains(se.Msg, tc.msg) {
				t.Errorf("want line %d and %q, got line %d: %s", tc.line, tc.msg, se.Line, se.Msg)
			}
			if got := errors.Is(err, ErrUnsupported); got != tc.newer {
				t.Errorf("ErrUnsupported: want %v, got %v", tc.newer, got)
			}
		})
	}
}

func TestNoErrorRepeatsAKey(t *testing.T) {
	secret := privB[:40]
	for _, tc := range []struct{ name, text string }{
		{"a colon instead of =", "[Interface]\nPrivateKey: " + privB},
		{"a bare key", "[Interface]\n" + privB},
		{"a key in a header", "[Interface]\n[" + privB + "]"},
		{"a key before any section", privB + "\n[Interface]"},
		{"a key cut short", "[Interface]\nPrivateKey = " + privB[:43]},
		{"a key with a letter too much", "[Interface]\nPrivateKey = a" + privB},
		{"a key of wrong letters", "[Interface]\nPrivateKey = " + secret + "!!!="},
		{"a key with bits too many", "[Interface]\nPrivateKey = " + privB[:42] + "Z="},
		{"a preshared key", "[Interface]\n[Peer]\nPublicKey = " + pubS + "\nPresharedKey = " + secret},
		{"a header key", "[Interface]\nHeaderProtectionKey = " + secret},
		{"a key where a tag should be", "[Interface]\nI1 = " + privB},
		{"a key where a tag's name should be", "[Interface]\nI1 = <" + privB + ">"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("f.conf", strings.NewReader(tc.text))
			var se *SyntaxError
			if !errors.As(err, &se) {
				t.Fatalf("want a *SyntaxError, got %v", err)
			}
			if strings.Contains(se.Error()+se.Hint, secret[:12]) {
				t.Errorf("the error holds the key: %v %s", err, se.Hint)
			}
		})
	}
}

func TestAKeyIsNeverPrinted(t *testing.T) {
	p := mustParse(t, plainConf)
	js, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	raw := fmt.Sprintf("%d", [32]byte(p.PrivateKey))[1:20]
	printed := []string{p.PrivateKey.String(), string(js)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%o", "%t"} {
		printed = append(printed, fmt.Sprintf(verb, p), fmt.Sprintf(verb, p.PrivateKey), fmt.Sprintf(verb, &p.PrivateKey))
	}
	for _, s := range printed {
		if strings.Contains(s, privB[:12]) || strings.Contains(s, p.PrivateKey.Hex()[:12]) || strings.Contains(s, raw) {
			t.Errorf("holds the key: %s", s)
		}
		if !strings.Contains(s, "(hidden)") {
			t.Errorf("want (hidden) in %s", s)
		}
	}
}

func TestPublicKeyIsTheOneThatOthersDerive(t *testing.T) {
	k, err := ParseKey(privB)
	if err != nil {
		t.Fatal(err)
	}
	if got := k.Public().Base64(); got != pubB {
		t.Errorf("want %s, got %s", pubB, got)
	}
	if got := (Key{}).Public(); !got.IsZero() {
		t.Errorf("want zero for a zero key, got %s", got.Hex())
	}
}

func TestEndpointAddr(t *testing.T) {
	for _, tc := range []struct{ name, text, canon, want, reason string }{
		{"IPv4", "192.0.2.7:51820", "192.0.2.7:51820", "192.0.2.7:51820", ""},
		{"loopback for labs", "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1", ""},
		{"IPv6 in long form", "[2001:0DB8:0:0::1]:9", "[2001:db8::1]:9", "[2001:db8::1]:9", ""},
		{"IPv4 inside IPv6", "[::ffff:192.0.2.7]:9", "192.0.2.7:9", "192.0.2.7:9", ""},
		{"a name", "DE-1.Provider.Example:443", "de-1.provider.example:443", "", "not a literal"},
		{"port 0", "192.0.2.7:0", "192.0.2.7:0", "", "port 0"},
		{"a zone", "[fe80::1%eth0]:9", "[fe80::1%eth0]:9", "", "zone"},
		{"no address at all", "0.0.0.0:9", "0.0.0.0:9", "", "unspecified"},
		{"multicast", "224.0.0.1:9", "224.0.0.1:9", "", "unicast"},
		{"broadcast", "255.255.255.255:9", "255.255.255.255:9", "", "unicast"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := mustParse(t, strings.Replace(plainConf, "192.0.2.7:51820", tc.text, 1))
			if p.Endpoint() != tc.canon {
				t.Errorf("endpoint: want %s, got %s", tc.canon, p.Endpoint())
			}
			ap, err := p.EndpointAddr()
			switch {
			case tc.reason == "" && (err != nil || ap.String() != tc.want):
				t.Errorf("want %s, got %s, %v", tc.want, ap, err)
			case tc.reason != "" && (err == nil || !strings.Contains(err.Error(), tc.reason)):
				t.Errorf("want an error of %q, got %s, %v", tc.reason, ap, err)
			}
		})
	}
}

func TestDescribeGivesTheReason(t *testing.T) {
	peer := "[Peer]\nPublicKey = " + privA + "\nEndpoint = 192.0.2.9:1\n"
	for _, tc := range []struct{ name, text, reason string }{
		{"a plain profile", plainConf, ""},
		{"no private key", strings.Replace(plainConf, "PrivateKey = "+privB, "", 1), "no private key"},
		{"no address", strings.Replace(plainConf, "Address = 10.8.0.2/32", "", 1), "no address"},
		{"two peers", plainConf + peer, "2 peers, want exactly one"},
		{"no peer", plainConf[:strings.Index(plainConf, "[Peer]")], "0 peers, want exactly one"},
		{"no endpoint", strings.Replace(plainConf, "Endpoint = 192.0.2.7:51820", "", 1), "no endpoint"},
		{"a name", strings.Replace(plainConf, "192.0.2.7", "a.example", 1), "endpoint a.example:51820: not a literal address"},
		{"obfuscated: some driver carries it", strings.Replace(plainConf, "[Peer]", "Jc = 4\n[Peer]", 1), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "p.conf")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := Describe(path, []byte("salt"))
			if err != nil || d.Reason != tc.reason {
				t.Errorf("want reason %q, got %q, %v", tc.reason, d.Reason, err)
			}
		})
	}
	if _, err := Describe(filepath.Join(t.TempDir(), "none.conf"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: want os.ErrNotExist, got %v", err)
	}
}

func TestFingerprints(t *testing.T) {
	salt := []byte("salt")
	base := mustParse(t, plainConf)
	edit := func(pairs ...string) Profile { return mustParse(t, strings.NewReplacer(pairs...).Replace(plainConf)) }
	for _, tc := range []struct {
		name               string
		p                  Profile
		samePair, sameSelf bool
	}{
		{"another endpoint of the same server", edit("192.0.2.7", "192.0.2.8"), true, true},
		{"another server", edit(pubS, privA), false, true},
		{"another client key", edit(privB, privA), false, false},
		{"another address", edit("10.8.0.2/32", "10.8.0.3/32"), true, false},
		{"the address twice", edit("10.8.0.2/32", "10.8.0.2, 10.8.0.2/32"), true, true},
		{"another MTU", edit("[Peer]", "MTU = 1280\n[Peer]"), true, true},
		{"obfuscation", edit("[Peer]", "S1 = 20\n[Peer]"), true, false},
		{"obfuscation at its defaults", edit("[Peer]", "Jc = 0\nJmin = 40\nJmax = 70\nS1 = 0\nH1 = 1\nH2 = 2-2\nH3=0\nH4 = 4\n[Peer]"), true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.p.Pair(salt) == base.Pair(salt); got != tc.samePair {
				t.Errorf("same pair: want %v, got %v", tc.samePair, got)
			}
			if got := tc.p.Identity(salt) == base.Identity(salt); got != tc.sameSelf {
				t.Errorf("same identity: want %v, got %v", tc.sameSelf, got)
			}
		})
	}
	two := edit("10.8.0.2/32", "10.8.0.2/32, fd00::2/128")
	owt := edit("10.8.0.2/32", "fd00::2/128, 10.8.0.2/32")
	if two.Identity(salt) != owt.Identity(salt) {
		t.Error("the order of addresses must not matter")
	}
	if base.Pair(salt) == base.Pair([]byte("other")) || base.Identity(salt) == base.Identity([]byte("other")) {
		t.Error("the salt must matter")
	}
	if got := base.Pair(salt); len(got) != 16 || got != PairOf(salt, base.Peers[0].PublicKey, base.PrivateKey.Public()) {
		t.Errorf("want 16 hexadecimal digits equal to PairOf, got %s", got)
	}
	if none := (Profile{}); none.Pair(salt) != "" || none.Identity(salt) != "" {
		t.Error("a profile without keys has no fingerprints")
	}
}
