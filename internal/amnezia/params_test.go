package amnezia

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/profile"
)

const headerKey = "QVFkSEEj31+P4a1qm7lMpfzNXlzhZXezNK5cNQURBHg="

func conf(keys string) profile.Profile {
	var p profile.Profile
	for line := range strings.SplitSeq(keys, "\n") {
		if k, v, ok := strings.Cut(line, "="); ok {
			p.Obfuscation = append(p.Obfuscation, profile.KeyValue{Key: strings.TrimSpace(k), Value: strings.TrimSpace(v)})
		}
	}
	return p
}

func TestTheLeastGeneration(t *testing.T) {
	for _, tc := range []struct {
		name, keys string
		want       Version
	}{
		{"nothing", "", WireGuard},
		{"all at their defaults", "Jc=0\nJmin=50\nJmax=1000\nS1=0\nS4=0\nH1=1\nH2=0\nH4=4\nRandomTrailers=off\nDisableCookies=no\nContentPaddingAddition=0", WireGuard},
		{"junk", "Jc=1\nJmin=5\nJmax=5", V10},
		{"prefixes", "S1=15\nS2=68", V10},
		{"types", "H1=5\nH2=6\nH3=7\nH4=4294967295", V10},
		{"custom packets", "I1=<b 0xff><t>\nI2=<r 9>", V15},
		{"the packets that ended with 1.5", "I1=<b 0xff><wt 50>\nJ1=<c>\nItime=60", V15},
		{"a prefix of transport", "S4=9", V15},
		{"a prefix of cookies", "S3=9", V15},
		{"custom packets with a gap", "I1=<t>\nI3=<t>", V20},
		{"digits", "I1=<rd 8>", V20},
		{"ranges of types", "H1=10-20", V20},
		{"a range of one type", "H1=10-10", V10},
		{"header protection", "S1=12\nS2=12\nS3=12\nS4=12\nHeaderProtectionKey=" + headerKey, V30},
		{"padding", "ContentPaddingAddition=1-32", V30},
		{"a timer", "RekeyTimeout=4-6", V30},
		{"trailers", "RandomTrailers=on", V31},
		{"no cookies", "DisableCookies=true", V31},
	} {
		p, err := FromProfile(conf(tc.keys))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := p.Version(); got != tc.want || p.Plain() != (tc.want == WireGuard) {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	p, err := FromProfile(profile.Profile{Peers: []profile.Peer{{Obfuscation: []profile.KeyValue{{Key: "AdvancedSecurity", Value: "on"}, {Key: "PersistentKeepalive", Value: "22-30"}}}}})
	if err != nil || p.Version() != V30 || p.Keepalive != (Range{22, 30}) {
		t.Errorf("a keepalive range: %s %v %v", p.Version(), p.Keepalive, err)
	}
}

func TestTheRecordingsNeedTheirGeneration(t *testing.T) {
	for _, r := range recordings(t) {
		want := strings.SplitN(r.name, "-", 2)[0]
		if got := r.params(t).Version().String(); got != want {
			t.Errorf("%s: %s", r.name, got)
		}
		// As a file it says the same.
		text := "[Interface]\nPrivateKey = " + r.Client + "\n"
		for k, v := range r.Conf {
			text += k + " = " + v + "\n"
		}
		parsed, err := profile.Parse(r.name, strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := FromProfile(parsed)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(r.params(t), p, cmp.AllowUnexported(Packet{}, tag{}), cmp.Comparer(func(a, b profile.Key) bool { return a == b })); d != "" {
			t.Errorf("%s: (-want +got)\n%s", r.name, d)
		}
	}
}

func TestWrongProfilesAreRefused(t *testing.T) {
	for _, tc := range []struct{ name, keys, want string }{
		{"junk upside down", "Jc=3\nJmin=50\nJmax=40", "jmax 40 is less than jmin 50"},
		{"junk without a number", "Jc=3\nJmin=x", `Jmin: "x" is not a number`},
		{"too much junk", "Jc=129\nJmin=1\nJmax=2", "jc is 129"},
		{"junk beyond a datagram", "Jc=1\nJmin=1\nJmax=65508", "Jmax: "},
		{"a prefix beyond a datagram", "S4=65507", "s4 is 65507"},
		{"a prefix of less than nothing", "S4=-1", "S4: "},
		{"initiation and response of one size", "S1=10\nS2=66", "s1 and s2 give two messages one size, 158 bytes"},
		{"response and cookie of one size", "S2=10\nS3=38", "s2 and s3 give"},
		{"cookie and keepalive of one size", "S4=32", "s3 and s4 give"},
		{"types that overlap", "H1=10-20\nH3=15", "h1 and h3 overlap"},
		{"a type that is another's default", "H1=4", "h1 and h4 overlap"},
		{"two types exchanged in the first generation", "H1=2\nH2=1", "h1 = 2 means 1 to devices of 1.0"},
		{"types upside down", "H1=20-10", "H1: the range is upside down"},
		{"a type too large", "H1=4294967296", "H1: "},
		{"header protection without room", "S1=12\nS2=12\nS3=12\nS4=11\nHeaderProtectionKey=" + headerKey, "s4 is 11, header protection needs at least 12"},
		{"a key that is none", "HeaderProtectionKey=abc", "HeaderProtectionKey: not a key"},
		{"a packet without tags", "I1= ", "I1: no tag"},
		{"a packet with an unknown tag", "I1=<x 3>", "I1: unknown tag"},
		{"a packet beyond a datagram", "I1=<r 65000><r 508>", "I1: more than 65507 bytes"},
		{"what ended with 1.5 beside 2.0", "H1=10-20\nJ1=<t>", "ended with 1.5, the rest needs 2.0"},
		{"a wait beside 3.1", "I1=<wt 5>\nRandomTrailers=on", "ended with 1.5, the rest needs 3.1"},
		{"a switch that is neither", "RandomTrailers=maybe", "neither on nor off"},
		{"a key of no generation", "S5=3", "no key of any generation"},
		{"a key of no generation, long", "Entropy=3", "no key of any generation"},
		{"an itime of years", "Itime=99999999", "itime is longer than a day"},
	} {
		_, err := FromProfile(conf(tc.keys))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), headerKey) {
			t.Errorf("%s: the error holds the key", tc.name)
		}
		if un := errors.Is(err, profile.ErrUnsupported); un != (strings.Contains(tc.want, "no key of") || strings.Contains(tc.want, "ended with")) {
			t.Errorf("%s: unsupported is %v", tc.name, un)
		}
	}
}

// wrongParams are parameters made by hand that no profile leads to, or not to these.
func wrongParams() map[string]Params {
	return map[string]Params{
		"negative junk":                     {Jc: -1},
		"junk upside down":                  {Jc: 1, Jmin: 9, Jmax: 8},
		"junk of negative sizes":            {Jmin: -5},
		"a negative prefix":                 {S: [4]int{-1}},
		"two messages of one size":          {S: [4]int{0, 56}},
		"no room for the nonce":             {HeaderKey: profile.Key{1}},
		"types that overlap":                {H: [4]Range{{5, 9}, {7, 8}}},
		"a range upside down":               {H: [4]Range{{9, 8}}},
		"exchanged types in old devices":    {H: [4]Range{{2, 2}, {1, 1}}},
		"what no one generation has at all": {Itime: Range{5, 5}, Trailers: true},
	}
}

func TestSizesMayBeEqualWhereTypesTellMessagesApart(t *testing.T) {
	p, err := FromProfile(conf("S1=10\nS2=66\nH1=10-20\nH2=30-40"))
	if err != nil {
		t.Fatal(err)
	}
	client, server, _ := couple(t, p, 1)
	carries(t, client, server)
}

func TestTheTunnelsMTU(t *testing.T) {
	if got := (Params{S: [4]int{1, 2, 3, 21}}).MTU(1420); got != 1399 {
		t.Errorf("got %d", got)
	}
	if got := (Params{}).MTU(1280); got != 1280 {
		t.Errorf("got %d", got)
	}
}

func TestTheControlSocketGetsTheFullSet(t *testing.T) {
	p, err := FromProfile(conf("Jc=4\nJmin=40\nJmax=70\nS1=15\nH1=100-200\nI2=<rc 12><rd 8>\nRekeyTimeout=4-6\nDisableCookies=on"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"jc=4", "jmin=40", "jmax=70", "s1=15", "s2=0", "s3=0", "s4=0", "h1=100-200", "h2=2", "h3=3", "h4=4",
		"i1=", "i2=<rc 12><rd 8>", "i3=", "i4=", "i5=",
		"header_protection_key=" + strings.Repeat("0", 64), "content_padding_addition=0", "rekey_after_time=0", "rekey_timeout=4-6",
		"reject_after_time=0", "keepalive_timeout=0", "max_handshake_attempts=0", "random_trailers=0", "disable_cookies=1",
	}
	got, err := p.UAPI(V31)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error("(-want +got)\n" + d)
	}
	for v := VersionUnknown; v <= V30; v++ {
		if _, err := p.UAPI(v); err == nil {
			t.Errorf("a device of %s takes what needs 3.1", v)
		}
	}
	// Each generation gets every key that it has, and none that it would refuse.
	for v, n := range map[Version]int{V10: 9, V15: 20, V20: 16, V30: 23, V31: 25} {
		got, err := Params{}.UAPI(v)
		if err != nil || len(got) != n {
			t.Errorf("%s: %d keys, want %d (%v)", v, len(got), n, err)
		}
		if junk := slices.Contains(got, "jc=0"); junk != (v != V20) {
			t.Errorf("%s: %q", v, got[:3])
		}
	}
	if _, err := (Params{Jc: -1}).UAPI(V31); err == nil {
		t.Error("wrong parameters were written")
	}
	secret, err := Params{S: [4]int{12, 12, 12, 12}, HeaderKey: key(t, headerKey)}.UAPI(V30)
	if err != nil || !slices.Contains(secret, "header_protection_key="+key(t, headerKey).Hex()) {
		t.Errorf("no header protection key: %v", err)
	}
}

func TestCustomPackets(t *testing.T) {
	now := time.Unix(0x01020304, 0)
	s := new(sources)
	for _, tc := range []struct {
		text string
		v    Version
		want string // as a pattern: ? any byte, d a digit, l a letter
	}{
		{"<b 0xC7ff>", V20, "\xc7\xff"},
		{"<b c7><t>", V20, "\xc7\x01\x02\x03\x04"},
		{"<t>", V15, "\x00\x00\x00\x00\x01\x02\x03\x04"},
		{" <r 3>  <rd 2><rc 2> ", V20, "???ddll"},
		{"<c>", V15, "\x00\x00\x00\x00\x00\x00\x00\x07"},
		{"<wt 100><b 0x01><wr 5>", V15, "\x01"},
		{"<r 0>", V20, ""},
	} {
		p, err := ParsePacket(tc.text)
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
			continue
		}
		got := p.render(s.get(), tc.v, now, 7)
		fits := len(got) == len(tc.want)
		for i := 0; fits && i < len(got); i++ {
			switch w := tc.want[i]; w {
			case '?':
			case 'd':
				fits = got[i] >= '0' && got[i] <= '9'
			case 'l':
				fits = strings.IndexByte(letters, got[i]) >= 0
			default:
				fits = got[i] == w
			}
		}
		if !fits {
			t.Errorf("%s: %x, want %x", tc.text, got, tc.want)
		}
	}
	for _, text := range []string{"", "  ", "x", "<", "<b>", "<b 0x1>", "<b 0xzz>", "<r>", "<r -1>", "<r 1 2>", "<t 4>", "<q>", "<>", "<r 65508>", "<t> x"} {
		if p, err := ParsePacket(text); err == nil {
			t.Errorf("%q gives %d bytes", text, p.Size())
		}
	}
}
