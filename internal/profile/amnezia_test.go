package profile

import (
	"strings"
	"testing"
)

func TestEveryGenerationOfAmneziaWGIsKept(t *testing.T) {
	for _, tc := range []struct{ name, keys string }{
		{"1.0", "Jc = 4\nJmin = 40\nJmax = 70\nS1 = 15\nS2 = 68\nH1 = 1457312\nH2 = 99331\nH3 = 777123\nH4 = 4294967295"},
		{"1.5", "Jc = 3\nJmin = 0\nJmax = 0\nS1 = 1\nS2 = 2\nS3 = 3\nS4 = 4\nI1 = <b 0xC7ff00><c><t><r 40><wt 100>\nI2 = <t>\nI3 = <r 1>\nJ1 = <b 0x01>\nJ2 = <r 3>\nJ3 = <c>\nItime = 120"},
		{"2.0", "H1 = 100000-900000\nH2 = 1000000-1900000\nH3 = 2000000-2900000\nH4 = 3000000-3900000\nI1 = <b 0xc70000000108ce1bf31eec7d>  <r 40><t>\nI5 = <rc 12><rd 8>"},
		{"3.0", "S1 = 16\nS2 = 68\nS3 = 33\nS4 = 21\nHeaderProtectionKey = " + hpk + "\nContentPaddingAddition = 32\nRekeyAfterTime = 100-140\nRekeyTimeout = 5\nRejectAfterTime = 180\nKeepaliveTimeout = 8-12\nMaxHandshakeAttempts = 18"},
		{"3.1", "RandomTrailers = on\nDisableCookies = true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := mustParse(t, strings.Replace(plainConf, "[Peer]", tc.keys+"\n[Peer]", 1))
			var got []string
			for _, kv := range p.Obfuscation {
				got = append(got, kv.Key+" = "+kv.Value)
			}
			if s := strings.Join(got, "\n"); s != tc.keys {
				t.Errorf("want\n%s\ngot\n%s", tc.keys, s)
			}
			if !p.Obfuscated() {
				t.Error("want Obfuscated")
			}
			if !strings.Contains(string(p.Format()), tc.keys) {
				t.Errorf("Format lost a key:\n%s", p.Format())
			}
		})
	}
}

func TestAmneziaWGSpellingIsMadeCanonical(t *testing.T) {
	p := mustParse(t, strings.Replace(plainConf, "[Peer]", "JC=4\njmin = 1\nJMAX = 9\ni1=<b 0xab>\nrandomTRAILERS = on\n[Peer]", 1))
	want := []KeyValue{{"Jc", "4"}, {"Jmin", "1"}, {"Jmax", "9"}, {"I1", "<b 0xab>"}, {"RandomTrailers", "on"}}
	if d := diff(want, p.Obfuscation); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestObfuscated(t *testing.T) {
	iface := func(s string) string { return strings.Replace(plainConf, "[Peer]", s+"\n[Peer]", 1) }
	for _, tc := range []struct {
		name, text string
		want       bool
	}{
		{"plain", plainConf, false},
		{"all at their defaults", iface("Jc = 0\nJmin = 50\nJmax = 1000\nS1 = 0\nS2 = 0\nS3 = 0\nS4 = 0\nH1 = 1\nH2 = 2\nH3 = 3\nH4 = 4\nRandomTrailers = off\nDisableCookies = no\nContentPaddingAddition = 0"), false},
		{"junk alone", iface("Jc = 1"), true},
		{"two headers exchanged", iface("H1 = 2\nH2 = 1"), true},
		{"a custom packet", iface("I3 = <r 4>"), true},
		{"a range of one other value", iface("H4 = 9-9"), true},
		{"cookies off", iface("DisableCookies = on"), true},
		{"a keepalive range", plainConf + "PersistentKeepalive = 22-30\n", true},
		{"advanced security", plainConf + "AdvancedSecurity = on\n", true},
		{"advanced security off", plainConf + "AdvancedSecurity = off\n", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := mustParse(t, tc.text).Obfuscated(); got != tc.want {
				t.Errorf("want %v, got %v", tc.want, got)
			}
		})
	}
}
