package lane

import (
	"encoding/hex"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/genetlink/genltest"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
)

// No module can be loaded where these tests run: what is sent is compared with messages
// written by hand from the module's header, byte by byte, for each version of its family.

// message strips the remarks and the spaces of a message written by hand.
func message(t testing.TB, text string) []byte {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(text) {
		code, _, _ := strings.Cut(line, "//")
		b.WriteString(strings.Join(strings.Fields(code), ""))
	}
	out, err := hex.DecodeString(b.String())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func littleEndian(t testing.TB) {
	t.Helper()
	if nlenc.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the messages are written for little-endian machines")
	}
}

var (
	kernelKey  = strings.Repeat("11", 32)
	kernelPeer = strings.Repeat("22", 32)
)

func kernelConfig(t testing.TB) wgtypes.Config {
	t.Helper()
	var key, peer wgtypes.Key
	for i := range key {
		key[i], peer[i] = 0x11, 0x22
	}
	keep := 25 * time.Second
	_, all, err := net.ParseCIDR("0.0.0.0/0")
	if err != nil {
		t.Fatal(err)
	}
	return wgtypes.Config{PrivateKey: &key, ReplacePeers: true, Peers: []wgtypes.PeerConfig{{
		PublicKey: peer, Endpoint: &net.UDPAddr{IP: net.IPv4(198, 51, 100, 7), Port: 51820}, PersistentKeepaliveInterval: &keep,
		ReplaceAllowedIPs: true, AllowedIPs: []net.IPNet{*all},
	}}}
}

func TestWhatTheKernelModuleIsTold(t *testing.T) {
	littleEndian(t)
	head := "09000200 76706e3100 000000 // 9 bytes, 2 = name: vpn1 and a NUL, padded\n"
	tail := func(keepalive string, size int) string {
		return "24000300 " + kernelKey + " // 3 = private key\n" +
			"08000500 01000000 // 5 = flags: replace the peers\n" +
			hex.EncodeToString([]byte{byte(size + 8), 0, 8, 0x80}) + " // 8 = peers, nested\n" +
			hex.EncodeToString([]byte{byte(size + 4), 0, 0, 0x80}) + " // the first\n" +
			"24000100 " + kernelPeer + " // 1 = public key\n" +
			"08000300 02000000 // 3 = flags: replace the allowed prefixes\n" +
			"14000400 0200 ca6c c6336407 0000000000000000 // 4 = endpoint: AF_INET, port 51820, 198.51.100.7\n" +
			keepalive +
			"20000980 1c000080 06000100 0200 0000 08000200 00000000 05000300 00 000000 // 9 = allowed: AF_INET, 0.0.0.0, /0\n"
	}
	plainTail := tail("06000500 1900 0000 // 5 = keepalive: 25\n", 36+8+20+8+32)
	for _, tt := range []struct {
		name   string
		params amnezia.Params
		of     amnezia.Version
		family uint8
		want   string
	}{
		{
			"1.0: message types are numbers",
			amnezia.Params{Jc: 4, Jmin: 40, Jmax: 70, S: [4]int{15, 18}, H: [4]amnezia.Range{{Lo: 0x01020304, Hi: 0x01020304}}},
			amnezia.V10, 1,
			"06000900 0400 0000 06000a00 2800 0000 06000b00 4600 0000 // jc jmin jmax\n" +
				"06000c00 0f00 0000 06000d00 1200 0000 // s1 s2\n" +
				"08000e00 04030201 08000f00 02000000 08001000 03000000 08001100 04000000 // h1 to h4\n" + plainTail,
		},
		{
			"2.0: message types are text",
			amnezia.Params{Jc: 1, Jmin: 8, Jmax: 9, S: [4]int{0, 0, 0, 21}, H: [4]amnezia.Range{{Lo: 5, Hi: 9}}},
			amnezia.V20, 2,
			"06000900 0100 0000 06000a00 0800 0000 06000b00 0900 0000 // jc jmin jmax\n" +
				"06000c00 0000 0000 06000d00 0000 0000 06001300 0000 0000 06001400 1500 0000 // s1 to s4\n" +
				"08000e00 352d3900 06000f00 3200 0000 06001000 3300 0000 06001100 3400 0000 // h1 = 5-9, h2 to h4\n" +
				"05001500 00 000000 05001600 00 000000 05001700 00 000000 05001800 00 000000 05001900 00 000000 // i1 to i5: none\n" + plainTail,
		},
		{
			"3.1: message types are pairs, the keepalive too",
			amnezia.Params{
				H: [4]amnezia.Range{{Lo: 5, Hi: 9}}, RekeyTimeout: amnezia.Range{Lo: 5, Hi: 6}, Trailers: true,
			},
			amnezia.V31, 3,
			"06000900 0000 0000 06000a00 0000 0000 06000b00 0000 0000 // jc jmin jmax\n" +
				"06000c00 0000 0000 06000d00 0000 0000 06001300 0000 0000 06001400 0000 0000 // s1 to s4\n" +
				"0c000e00 05000000 09000000 0c000f00 02000000 02000000 0c001000 03000000 03000000 0c001100 04000000 04000000 // h1 to h4\n" +
				"05001500 00 000000 05001600 00 000000 05001700 00 000000 05001800 00 000000 05001900 00 000000 // i1 to i5: none\n" +
				"24001a00 " + strings.Repeat("00", 32) + " // header protection: off\n" +
				"08001b00 00000000 08001c00 00000000 08001d00 05000600 08001e00 00000000 08001f00 00000000 08002000 00000000 // padding, timers\n" +
				"05002100 01 000000 05002200 00 000000 // trailers, cookies\n" +
				tail("08000500 19001900 // 5 = keepalive: 25 to 25\n", 36+8+20+8+32),
		},
	} {
		got, err := encodeKernel("vpn1", kernelConfig(t), tt.params, tt.of, tt.family)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(hex.EncodeToString(message(t, head+tt.want)), hex.EncodeToString(got)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestWhatTheKernelModuleSaysIsRead(t *testing.T) {
	littleEndian(t)
	first := message(t, `
		06000600 6cca 0000 08000700 99000000              // port 51820, mark 0x99
		09000200 76706e3100 000000                        // vpn1
		24000300 `+kernelKey+`
		06000900 0400 0000 06000a00 2800 0000 06000b00 4600 0000
		06001400 1500 0000                                // s4
		0c000e00 05000000 09000000                        // h1 = 5-9
		0a001500 3c7220383e00 0000                        // i1 = <r 8>
		08001d00 05000600                                 // rekey_timeout = 5-6
		05002100 01 000000                                // trailers
		94000880 90000080                                 // peers, the first
		24000100 `+kernelPeer+`
		14000400 0200 ca6c c6336407 0000000000000000
		14000600 00f1536500000000 0500000000000000        // 1700000000 s, 5 ns
		0c000700 0900000000000000 0c000800 0700000000000000
		08000500 16001e00                                 // keepalive 22-30
		20000980 1c000080 06000100 0200 0000 08000200 00000000 05000300 00 000000
	`)
	// The rest of the same peer, in a message of its own.
	second := message(t, `
		58000880 54000080
		24000100 `+kernelPeer+`
		2c000980 28000080 06000100 0a00 0000 14000200 20010db8000000000000000000000000 05000300 20 000000
	`)
	dev, p, err := decodeKernel([]genetlink.Message{{Data: first}, {Data: second}})
	if err != nil {
		t.Fatal(err)
	}
	if len(dev.Peers) != 1 {
		t.Fatalf("%d peers", len(dev.Peers))
	}
	q := dev.Peers[0]
	got := []any{
		dev.Name, dev.ListenPort, dev.FirewallMark, q.Endpoint.String(), q.LastHandshakeTime.UnixNano(), q.ReceiveBytes, q.TransmitBytes,
		q.PersistentKeepaliveInterval, len(q.AllowedIPs), q.AllowedIPs[len(q.AllowedIPs)-1].String(),
		p.Jc, p.S[3], p.H[0], p.I[0].String(), p.RekeyTimeout, p.Trailers,
	}
	want := []any{
		"vpn1", 51820, 0x99, "198.51.100.7:51820", int64(1700000000_000000005), int64(9), int64(7), 22 * time.Second, 2, "2001:db8::/32",
		4, 21,
		amnezia.Range{Lo: 5, Hi: 9},
		"<r 8>",
		amnezia.Range{Lo: 5, Hi: 6},
		true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// What is told to the module is what it would say, for parameters of each generation.
func TestParametersComeBackFromTheKernel(t *testing.T) {
	for _, v := range versions() {
		p := paramsOf(t, v)
		for family, of := range map[uint8]amnezia.Version{1: amnezia.V15, 2: amnezia.V20, 3: amnezia.V31} {
			if p.Version() > of {
				continue
			}
			b, err := encodeKernel("vpn1", kernelConfig(t), p, of, family)
			if err != nil {
				t.Fatalf("%s, family %d: %v", v, family, err)
			}
			_, got, err := decodeKernel([]genetlink.Message{{Data: b}})
			if err != nil || !got.Same(p) {
				t.Errorf("%s, family %d: it came back as something else (%v)", v, family, err)
			}
		}
	}
}

// fakeModule answers as a module does.
func fakeModule(t testing.TB, version uint8, answer genltest.Func) *kernel {
	t.Helper()
	k := newKernel(genltest.Dial(genltest.ServeFamily(genetlink.Family{ID: 33, Version: version, Name: kernelFamily}, answer)))
	t.Cleanup(k.close)
	return k
}

func TestTheGenerationOfTheModuleIsFound(t *testing.T) {
	var sizes []int
	k := fakeModule(t, 3, func(m genetlink.Message, _ netlink.Message) ([]genetlink.Message, error) {
		if m.Header.Version == 0 { // the test library's word for the end of an answer
			return nil, nil
		}
		if m.Header.Command != unix.WG_CMD_SET_DEVICE || m.Header.Version != 3 {
			t.Errorf("header %+v", m.Header)
		}
		sizes = append(sizes, len(m.Data))
		if len(sizes) == 1 { // a module of 3.0 knows no trailers
			return nil, genltest.Error(int(unix.EINVAL))
		}
		return nil, nil
	})
	for range 2 {
		if err := k.configure("vpn1", kernelConfig(t), paramsOf(t, "3.0")); err != nil {
			t.Fatal(err)
		}
	}
	if len(sizes) != 3 || sizes[1] != sizes[0]-16 || sizes[2] != sizes[1] {
		t.Errorf("messages of %v bytes: want 3.1, then 3.0 twice", sizes)
	}
	if err := k.configure("vpn1", kernelConfig(t), paramsOf(t, "3.1")); err == nil {
		t.Error("a module of 3.0 takes 3.1")
	}
}

func TestNoModuleAndNoDeviceAreNotThere(t *testing.T) {
	gone := newKernel(genltest.Dial(func(genetlink.Message, netlink.Message) ([]genetlink.Message, error) {
		return nil, genltest.Error(int(unix.ENOENT))
	}))
	defer gone.close()
	none := fakeModule(t, 2, func(genetlink.Message, netlink.Message) ([]genetlink.Message, error) {
		return nil, genltest.Error(int(unix.ENODEV))
	})
	for name, k := range map[string]*kernel{"no module": gone, "no device": none} {
		if err := k.configure("vpn1", wgtypes.Config{}, amnezia.Params{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := gone.device("vpn1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no module: %v", err)
	}
}

func FuzzDecodeKernel(f *testing.F) {
	f.Add([]byte{6, 0, 9, 0, 4, 0, 0, 0})
	f.Add([]byte{8, 0, 8, 0x80, 4, 0, 0, 0x80})
	f.Add([]byte{12, 0, 14, 0, 5, 0, 0, 0, 9, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		dev, _, err := decodeKernel([]genetlink.Message{{Data: b}})
		if dev == nil && err == nil {
			t.Error("nothing at all")
		}
	})
}
