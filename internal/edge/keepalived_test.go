package edge

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"pgregory.net/rapid"
)

func TestLadder(t *testing.T) {
	for n, want := range map[int][]int{
		0: nil,
		1: {150},
		2: {150, 100},
		3: {150, 100, 50},
		4: {150, 100, 50, 25}, // a full step would be the end of it
		5: {150, 100, 50, 25, 13},
		6: {150, 100, 50, 25, 13, 7},
		7: {150, 100, 50, 25, 13, 7, 4},
		8: {150, 100, 50, 25, 13, 7, 4, 3},
		9: {150, 100, 50, 25, 13, 7, 4, 3, 2},
	} {
		got, err := Ladder(n)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%d replicas: %v (-want +got):\n%s", n, err, diff)
		}
		for i := 1; i < len(got); i++ {
			gap := got[i-1] - got[i]
			if gap <= 0 || gap >= rungWeight || got[i] < rungFloor {
				t.Errorf("%d replicas: %d below %d", n, got[i], got[i-1])
			}
		}
	}
	if _, err := Ladder(10); err == nil || !strings.Contains(err.Error(), "10 replicas, and the ladder of priorities has 9 rungs") {
		t.Errorf("a full ladder: %v", err)
	}
}

// replicas is a configuration of n machines and one service.
func keepalivedConfig(n int, vips ...string) Config {
	var c Config
	for i := range n {
		c.Replicas = append(c.Replicas, Replica{
			Name: fmt.Sprintf("core-%02d", i+1), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})},
		})
	}
	s := Service{Name: "front", Port: 25565}
	for _, v := range vips {
		s.VIP = append(s.VIP, netip.MustParseAddr(v))
	}
	c.Services = []Service{s}
	return c
}

func TestKeepalivedOfThreeReplicas(t *testing.T) {
	c := keepalivedConfig(3, "10.0.0.50", "fd00::50")
	files, err := Keepalived(c, KeepalivedOptions{Interface: "vmbr0", VRID: 77})
	if err != nil || len(files) != 3 {
		t.Fatal(err, files)
	}
	want := `# /etc/keepalived/keepalived.conf of core-02; rung 2 of 3: 150, 100, 50
global_defs {
	router_id core-02
	vrrp_version 3
	enable_script_security
	script_user root
}

# A machine without the table would answer nobody.
vrrp_script shunt_table {
	script "/usr/sbin/nft list map inet shunt_edge target4"
	interval 2
	timeout 2
	fall 2
	rise 2
	weight -60
}

vrrp_instance shunt {
	state BACKUP
	interface vmbr0
	virtual_router_id 77
	priority 100
	advert_int 0.5
	garp_master_refresh 1
	unicast_src_ip 10.0.0.2
	unicast_peer {
		10.0.0.1
		10.0.0.3
	}
	virtual_ipaddress {
		10.0.0.50
	}
	virtual_ipaddress_excluded {
		fd00::50
	}
	track_script {
		shunt_table
	}
	notify_master "/usr/local/bin/shunt edge retarget"
}
`
	if diff := cmp.Diff(want, files[1].Text); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if files[0].Priority != 150 || files[2].Priority != 50 {
		t.Errorf("priorities %d and %d", files[0].Priority, files[2].Priority)
	}
}

func TestKeepalivedSaysWhyNot(t *testing.T) {
	for name, tt := range map[string]struct {
		c    Config
		o    KeepalivedOptions
		want string
	}{
		"no replica":     {keepalivedConfig(0, "10.0.0.50"), KeepalivedOptions{}, "edge.replicas names no machine"},
		"no address":     {keepalivedConfig(2), KeepalivedOptions{}, "edge.services names no virtual address"},
		"too many":       {keepalivedConfig(10, "10.0.0.50"), KeepalivedOptions{}, "the ladder of priorities has 9 rungs"},
		"a bad id":       {keepalivedConfig(2, "10.0.0.50"), KeepalivedOptions{VRID: 256}, "virtual router id 256"},
		"an id below 0":  {keepalivedConfig(2, "10.0.0.50"), KeepalivedOptions{VRID: -1}, "virtual router id -1"},
		"nothing at all": {Config{}, KeepalivedOptions{}, "names no machine"},
	} {
		if _, err := Keepalived(tt.c, tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheRouterIDIsOfTheAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "a")))
		id := routerID([]netip.Addr{a})
		if id < 1 || id > 255 || id == 51 || id != routerID([]netip.Addr{a}) {
			t.Fatalf("%s: %d", a, id)
		}
	})
}

// What is printed has none of the traps, however many machines and addresses there are.
func TestWhatIsPrintedIsFreeOfTraps(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for _, vips := range [][]string{{"10.0.0.50"}, {"fd00::50"}, {"10.0.0.50", "fd00::50"}} {
			c := keepalivedConfig(n, vips...)
			files, err := Keepalived(c, KeepalivedOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var in []ConfigFile
			for _, f := range files {
				in = append(in, ConfigFile{Name: f.Replica + ".conf", Text: f.Text})
			}
			if found := LintKeepalived(in, c); len(found) > 0 {
				t.Errorf("%d replicas, %v: %+v", n, vips, found)
			}
		}
	}
	c := keepalivedConfig(2)
	for i := range 25 {
		c.Services[0].VIP = append(c.Services[0].VIP, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
	}
	files, err := Keepalived(c, KeepalivedOptions{})
	if err != nil || len(LintKeepalived([]ConfigFile{{"a", files[0].Text}}, c)) > 0 {
		t.Errorf("25 addresses: %v", err)
	}
	if _, after, _ := strings.Cut(files[0].Text, "virtual_ipaddress_excluded"); strings.Count(after, "10.0.1.") != 5 {
		t.Errorf("an advertisement names 20 addresses at most:\n%s", files[0].Text)
	}
}

// keepalived itself takes what is printed, where it is installed.
func TestKeepalivedTakesWhatIsPrinted(t *testing.T) {
	tool, err := exec.LookPath("keepalived")
	if err != nil || os.Getuid() != 0 {
		t.Skip("needs keepalived and root")
	}
	inNamespace(t)
	files, err := Keepalived(keepalivedConfig(8, "10.0.0.50", "fd00::50"), KeepalivedOptions{Interface: "up0"})
	if err != nil {
		t.Fatal(err)
	}
	alone := keepalivedConfig(2, "fd00::50") // no IPv6 addresses of their own: by multicast
	multicast, err := Keepalived(alone, KeepalivedOptions{Interface: "up0"})
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) string {
		file := filepath.Join(t.TempDir(), "keepalived.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), tool, "-t", "-f", file).CombinedOutput()
		if err != nil {
			return string(out) + err.Error()
		}
		return string(out)
	}
	for _, f := range slices.Concat(files, multicast) {
		if got := check(f.Text); got != "" {
			t.Errorf("%s: %s\n%s", f.Replica, got, f.Text)
		}
	}
	if got := check(strings.Replace(files[0].Text, "priority 150", "priority 150;", 1)); got == "" {
		t.Error("keepalived takes a broken file too: the test proves nothing")
	}
}

// inNamespace puts the test's thread into a network of its own with one interface.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = netns.Set(home)
		_ = space.Close()
		_ = home.Close()
	})
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "up0"}, PeerName: "up1"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}
