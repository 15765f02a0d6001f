package profile

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func genKey(t *rapid.T, label string) Key {
	var k Key
	copy(k[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, label))
	k[0] |= 1 // never zero
	return k
}

func genAddr(t *rapid.T) netip.Addr {
	if rapid.Bool().Draw(t, "v4") {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "a4")))
	}
	b := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "a16"))
	b[0] = 0x20 // no IPv4 inside
	return netip.AddrFrom16(b)
}

func genPrefixes(t *rapid.T, label string, masked bool) []netip.Prefix {
	var out []netip.Prefix
	for range rapid.IntRange(0, 3).Draw(t, label) {
		a := genAddr(t)
		p := netip.PrefixFrom(a, rapid.IntRange(0, a.BitLen()).Draw(t, "bits"))
		if masked {
			p = p.Masked()
		}
		out = append(out, p)
	}
	return out
}

// genObfuscation draws keys in any order, each once, that agree with one another.
func genObfuscation(t *rapid.T) []KeyValue {
	num := func(lo, hi int) string { return fmt.Sprint(rapid.IntRange(lo, hi).Draw(t, "n")) }
	tags := rapid.StringMatching(`(<b 0x([0-9a-f]{2}){1,20}>|<r [1-9][0-9]{0,2}>|<rc 7>|<rd 8>|<t>|<c>){1,4}`)
	all := []KeyValue{
		{"Jc", num(0, 128)},
		{"Jmin", num(0, 100)},
		{"Jmax", num(100, 1000)},
		{"S1", num(12, 200)},
		{"S2", num(12, 200)},
		{"S3", num(12, 200)},
		{"S4", num(12, 200)},
		{"H1", "10-" + num(10, 99)},
		{"H2", num(100, 199)},
		{"H3", num(200, 299)},
		{"H4", num(300, 399)},
		{"I1", tags.Draw(t, "i1")},
		{"I5", tags.Draw(t, "i5")},
		{"J2", tags.Draw(t, "j2")},
		{"Itime", num(0, 500)},
		{"RekeyAfterTime", "90-" + num(90, 150)},
		{"ContentPaddingAddition", num(0, 64)},
		{"RandomTrailers", rapid.SampledFrom([]string{"on", "off", "1"}).Draw(t, "rt")},
	}
	for i := range all {
		if all[i].Key == "Jc" || all[i].Key == "Jmin" || all[i].Key == "Jmax" {
			continue
		}
		if !rapid.Bool().Draw(t, "keep") {
			all[i].Key = ""
		}
	}
	var out []KeyValue
	for _, kv := range rapid.Permutation(all).Draw(t, "order") {
		if kv.Key != "" {
			out = append(out, kv)
		}
	}
	return out
}

func genProfile(t *rapid.T) Profile {
	p := Profile{
		Addresses:   genPrefixes(t, "addresses", false),
		DNS:         rapid.SliceOfN(rapid.StringMatching(`[a-z0-9.]{1,12}`), 0, 3).Draw(t, "dns"),
		ListenPort:  rapid.IntRange(0, 65535).Draw(t, "port"),
		Obfuscation: genObfuscation(t),
	}
	if rapid.Bool().Draw(t, "private") {
		p.PrivateKey = genKey(t, "priv")
	}
	if rapid.Bool().Draw(t, "mtu") {
		p.MTU = rapid.IntRange(68, 65535).Draw(t, "bytes")
	}
	for range rapid.IntRange(0, 2).Draw(t, "hooks") {
		p.Extra = append(p.Extra, KeyValue{"PostUp", rapid.StringMatching(`[a-z]+( [a-z=;"'$]{1,9}){0,3}`).Draw(t, "hook")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "peers") {
		peer := Peer{PublicKey: genKey(t, "pub"), AllowedIPs: genPrefixes(t, "allowed", true)}
		if rapid.Bool().Draw(t, "psk") {
			peer.PresharedKey = genKey(t, "pskey")
		}
		switch rapid.IntRange(0, 2).Draw(t, "endpoint") {
		case 1:
			peer.Endpoint = netip.AddrPortFrom(genAddr(t), rapid.Uint16().Draw(t, "ep")).String()
		case 2:
			peer.Endpoint = rapid.StringMatching(`[a-z][a-z0-9-]{0,8}(\.[a-z0-9-]{1,5}){0,3}:([1-9][0-9]{0,3})`).Draw(t, "host")
		}
		keep := rapid.IntRange(0, 65535).Draw(t, "keepalive")
		peer.Keepalive = time.Duration(keep) * time.Second
		if rapid.Bool().Draw(t, "ranged") {
			peer.Obfuscation = append(peer.Obfuscation, KeyValue{"PersistentKeepalive", fmt.Sprintf("%d-65535", keep)})
		}
		if rapid.Bool().Draw(t, "advanced") {
			peer.Obfuscation = append(peer.Obfuscation, KeyValue{"AdvancedSecurity", "on"})
		}
		p.Peers = append(p.Peers, peer)
	}
	return p
}

func same(want, got Profile) bool {
	return slices.Equal(plainly(want), plainly(got))
}

// plainly shows the keys too, so that a difference in them counts.
func plainly(p Profile) []string {
	out := []string{p.PrivateKey.Hex(), fmt.Sprintf("%v %q %d %d %q %q", p.Addresses, p.DNS, p.MTU, p.ListenPort, p.Obfuscation, p.Extra)}
	for _, q := range p.Peers {
		out = append(out, q.PublicKey.Hex(), q.PresharedKey.Hex(), fmt.Sprintf("%q %v %s %q", q.Endpoint, q.AllowedIPs, q.Keepalive, q.Obfuscation))
	}
	return out
}

func TestFormatThenParseIsTheSameProfile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genProfile(t)
		text := want.Format()
		got, err := Parse("p.conf", bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !same(want, got) {
			t.Fatalf("want %q\ngot  %q\n%s", plainly(want), plainly(got), text)
		}
		// What an editor on another system does to a file must not matter.
		mangled := "\ufeff"
		for line := range strings.Lines(string(text)) {
			mangled += strings.Replace(strings.TrimSuffix(line, "\n"), " = ", "=\t ", 1) + " # c\r\n"
		}
		if got, err = Parse("p.conf", strings.NewReader(mangled)); err != nil || !same(want, got) {
			t.Fatalf("as mangled: %v\nwant %q\ngot  %q", err, plainly(want), plainly(got))
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(plainConf))
	f.Add([]byte("\ufeff" + strings.ReplaceAll(plainConf, "\n", "\r\n")))
	f.Add([]byte(strings.Replace(plainConf, "[Peer]", "Jc = 4\nJmin = 40\nJmax = 70\nH1 = 100-900\nI1 = <b 0xc7><r 40><t>\nHeaderProtectionKey = "+hpk+"\nS1=12\nS2=12\nS3=12\nS4=12\n[Peer]", 1)))
	f.Add([]byte(plainConf + "PersistentKeepalive = 22-30\nAdvancedSecurity = on\n[Peer]\nPublicKey = " + privA + "\nEndpoint = [fe80::1%e]:0\n"))
	f.Add([]byte("[Interface]\nPostUp = a = b ; c\nDNS = ,,\n"))
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse("fuzz.conf", bytes.NewReader(b))
		if err != nil {
			var se *SyntaxError
			if !errors.As(err, &se) || se.Msg == "" {
				t.Fatalf("want a *SyntaxError with a message, got %#v", err)
			}
			return
		}
		text := p.Format()
		again, err := Parse("again.conf", bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%v\nfrom %q\nto   %q", err, b, text)
		}
		if !same(p, again) {
			t.Fatalf("want %q\ngot  %q", plainly(p), plainly(again))
		}
		_ = p.Describe([]byte("salt"))
	})
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("p.conf", strings.NewReader(plainConf)); err != nil {
			b.Fatal(err)
		}
	}
}
