package lab_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
)

func TestUplinkIsCutAndCounted(t *testing.T) {
	if !isInside(t) {
		return
	}
	w := build(t, lab.WorldOptions{IPv6: true})
	plain(t, w, 1)
	direct := func(to string) int {
		n, _, err := traffic.Ping(t.Context(), w.Router, traffic.Pings{To: addr(to), Count: 3, Gap: 2 * time.Millisecond, Wait: 100 * time.Millisecond})
		if err != nil {
			n = -1
		}
		return n
	}
	for name, kind := range map[string]lab.CutKind{"by its link": lab.CutLink, "by a silent gateway": lab.CutDrop} {
		t.Run(name, func(t *testing.T) {
			for _, to := range []string{lab.Gateway4, lab.Uplink4a, lab.Gateway6, lab.Uplink6b} {
				if n := direct(to); n != 3 {
					t.Errorf("before: %d of 3 pings to %s", n, to)
				}
			}
			if err := w.Cut(kind); err != nil {
				t.Fatal(err)
			}
			for _, to := range []string{lab.Gateway4, lab.Uplink4a, lab.Gateway6, lab.Uplink6b} {
				if n := direct(to); n > 0 {
					t.Errorf("cut: %d of 3 pings to %s", n, to)
				}
			}
			if n := pings(t, w, "vpn1", 5, 0); n != 0 {
				t.Errorf("cut: %d pings through the lane", n)
			}
			if carrier := strings.Contains(sh(t, w, "cat /sys/class/net/wan0/operstate"), "up"); carrier != (kind == lab.CutDrop) {
				t.Errorf("carrier %t", carrier)
			}
			for range 2 { // restoring what is whole is fine
				if err := w.Restore(); err != nil {
					t.Fatal(err)
				}
			}
			for _, to := range []string{lab.Gateway4, lab.Uplink4a, lab.Gateway6, lab.Uplink6b} {
				poll(t, "ping to "+to, func() bool { return direct(to) == 3 })
			}
			poll(t, "the lane", func() bool { return pings(t, w, "vpn1", 5, 0) == 5 })
		})
	}
	t.Run("what leaves in clear is counted and listed", func(t *testing.T) {
		capture, err := w.Capture()
		if err != nil {
			t.Fatal(err)
		}
		before, _ := w.Uplink()
		direct(lab.Service4a) // 3 in clear, the router's own
		direct(lab.Uplink4a)  // 3 checks
		// User 5 has no lane: 1 flow in clear under its own address.
		u, err := traffic.StartUDP(t.Context(), w.LAN, traffic.Options{From: lab.User4(5), To: netip.AddrPortFrom(addr(lab.Service4a), 0), Every: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		poll(t, "20 packets", func() bool { return u.Result().Sent() >= 20 })
		n := uint64(u.Stop(0).Sent())
		poll(t, "the counters", func() bool {
			now, err := w.Uplink()
			d := now.Sub(before)
			return err == nil && d.Clear == 3+n && d.Users == n && d.Marked == n && d.Checks == 3
		})
		list := capture.Stop()
		if len(list) != int(n)+3 {
			t.Errorf("%d packets listed, want %d: %v", len(list), n+3, list)
		}
		for _, l := range list {
			if l.To.Addr() != addr(lab.Service4a) || (l.Protocol == 17 && (l.From.Addr() != lab.User4(5) || l.To.Port() != server.EchoPort || l.Bytes != 128)) {
				t.Errorf("listed %s", l)
			}
		}
	})
	t.Run("masqueraded users are known by their marks", func(t *testing.T) {
		sh(t, w, `nft 'add rule inet t post oifname "wan0" masquerade'`)
		before, _ := w.Uplink()
		u, err := traffic.StartUDP(t.Context(), w.LAN, traffic.Options{From: lab.User4(6), To: netip.AddrPortFrom(addr(lab.Service4a), 0)})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := u.WaitAny(within(t, 20*time.Second), time.Time{}); err != nil || p.Exit != addr(lab.RouterWAN4) {
			t.Errorf("exit %s, %v; want the router's own address", p.Exit, err)
		}
		n := uint64(u.Stop(0).Sent())
		now, _ := w.Uplink()
		if d := now.Sub(before); d.Users != 0 || d.Marked != n || d.Clear != n {
			t.Errorf("counted %+v, want %d marked and in clear", d, n)
		}
	})
}

func TestAWorldOfAThousandComesAndGoes(t *testing.T) {
	if !isInside(t) {
		return
	}
	for range 2 { // the second finds nothing of the first in its way
		w := build(t, lab.WorldOptions{Endpoints: 1000, Dead: 500})
		if live := len(w.Live()); live != 500 {
			t.Errorf("%d live, want 500", live)
		}
		files, err := filepath.Glob(w.Sources + "/*.conf")
		if err != nil || len(files) != 1000 {
			t.Errorf("%d profiles, want 1000", len(files))
		}
		began := time.Now()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("1000 endpoints, half of them dead: up in %s, down in %s", w.Took, time.Since(began))
		if w.Took > time.Minute {
			t.Errorf("took %s", w.Took)
		}
		os.RemoveAll(w.Dir)
	}
	w := build(t, lab.WorldOptions{})
	t.Logf("12 endpoints: up in %s", w.Took)
}
