package strategy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/cage"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/tunnel"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == cage.Arg:
		os.Exit(lab.Child(os.Args[2:], nil))
	case len(os.Args) > 2 && os.Args[1] == "test-way":
		if err := goBy(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// goBy fetches by one way, in the router: `dial INTERFACE MARK URL`, or
// `tunnel PROFILE ENDPOINT HOW URL`, where HOW is part (close it), leave (die with it open)
// or led (by `client PROFILE URL`, the command of a source).
func goBy(args []string) error {
	url := args[len(args)-1]
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if args[0] == "client" {
		return client(ctx, args[1], url)
	}
	if args[0] == "dial" {
		mark, err := strconv.ParseUint(args[2], 0, 32)
		if err != nil {
			return err
		}
		_, err = get(ctx, dial.New(dial.Options{Interface: args[1], Mark: egress.Mark(mark)}), url)
		return err
	}
	began := time.Now()
	w, err := tunnel.Open(ctx, tunnel.WayOptions{
		Control: tunnel.Underlay(lab.WANInterface, 0), Targets: []netip.Addr{netip.MustParseAddr(lab.Service4a)},
	}, egress.TestTarget{Endpoint: args[2], Path: args[1]})
	if err != nil {
		return err
	}
	if args[3] == "led" {
		return errors.Join(led(ctx, w.DialContext, args[1], url), w.Close())
	}
	first, err := get(ctx, w.DialContext, url)
	if err != nil {
		return err
	}
	fmt.Printf("%d %d\n", w.Handshake().Microseconds(), first.Sub(began).Microseconds())
	if args[3] == "leave" {
		os.Exit(0)
	}
	return w.Close()
}

// get returns when the first byte of the answer was there.
func get(ctx context.Context, way dial.Func, url string) (first time.Time, err error) {
	t := &http.Transport{DialContext: way}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return first, err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return first, err
	}
	defer resp.Body.Close()
	first = time.Now()
	n, err := io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK || n == 0 {
		err = errors.Join(err, fmt.Errorf("%s and %d bytes", resp.Status, n))
	}
	return first, err
}

// isInside runs the test again inside a cage and returns false, or is true there.
func isInside(t *testing.T) bool {
	t.Helper()
	return cage.Inside(t, 2*time.Minute)
}

func world(t *testing.T) *lab.World {
	t.Helper()
	w, err := lab.Build(t.Context(), lab.WorldOptions{
		Dir: os.Getenv("SHUNT_LAB_DIR"), BinaryArg: []string{"test-way"}, Endpoints: 4, RTTs: func(int) time.Duration { return 40 * time.Millisecond },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return w
}

func in(t *testing.T, w *lab.World, argv ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Router.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out.String())
	}
}

func TestBoundAndMarkedConnectionsGoTheirWayUnlessTheKernelDropsTheAnswers(t *testing.T) {
	if !isInside(t) {
		return
	}
	w := world(t)
	if err := errors.Join(w.AddRescue(), w.ReachList(lab.RescueOnly)); err != nil {
		t.Fatal(err)
	}
	in(t, w, "ip", "rule", "add", "fwmark", "0x77", "lookup", "77")
	in(t, w, "ip", "route", "add", "default", "via", "172.31.0.2", "dev", lab.RescueInterface, "table", "77")
	const url = "http://" + lab.List4 + "/list.zip"
	for _, c := range []struct {
		name, iface, mark string
		all, own          string // rp_filter
		ok                bool
		reason            string
	}{
		{"the system's own way", "", "0", "2", "2", false, "timeout"},
		{"bound, rp_filter loose", lab.RescueInterface, "0", "2", "2", true, ""},
		{"bound, rp_filter off", lab.RescueInterface, "0", "0", "0", true, ""},
		{"marked, rp_filter loose", "", "0x77", "2", "2", true, ""},
		{"bound to what is not there", "none0", "0", "2", "2", false, "no such device"},
		// The strict ones come last: the site repeats answers that were dropped, and a filter
		// that lets them in again has the router refuse them, by its uplink.
		{"bound, rp_filter strict", lab.RescueInterface, "0", "0", "1", false, "rp_filter is 1 (strict)"},
		{"marked, rp_filter strict", "", "0x77", "1", "1", false, "rp_filter is 1 (strict)"},
	} {
		err := w.Router.Sysctl(map[string]string{"net/ipv4/conf/all/rp_filter": c.all, "net/ipv4/conf/" + lab.RescueInterface + "/rp_filter": c.own})
		if err != nil {
			t.Fatal(err)
		}
		was, err := w.Uplink()
		if err != nil {
			t.Fatal(err)
		}
		r := w.Shunt(t.Context(), "dial", c.iface, c.mark, url)
		now, err := w.Uplink()
		if err != nil {
			t.Fatal(err)
		}
		if (r.Code == 0) != c.ok || !strings.Contains(string(r.Stderr), c.reason) {
			t.Errorf("%s: code %d, %s", c.name, r.Code, r.Stderr)
		}
		if n := now.Sub(was).List; (n > 0) != (c.iface == "" && c.mark == "0") {
			t.Errorf("%s: %d packets to the site by the uplink", c.name, n)
		}
	}
}

func TestADownloadThroughATunnelLeavesNothingElseOnTheUplinkAlsoAfterwards(t *testing.T) {
	if !isInside(t) {
		return
	}
	w := world(t)
	if err := w.ReachList(lab.TunnelOnly); err != nil {
		t.Fatal(err)
	}
	const url = "http://" + lab.ListName + "/list.zip"
	// A server that heard what it did not answer says so after 10 s.
	const late = 12 * time.Second
	run := func(x *server.Endpoint, how string) (string, lab.Uplink) {
		was, err := w.Uplink()
		if err != nil {
			t.Fatal(err)
		}
		r := w.Shunt(t.Context(), "tunnel", w.Profile(x), x.HostPort(), how, url)
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(late)
		var u lab.Uplink
		for time.Now().Before(end) {
			now, err := w.Uplink()
			if err != nil {
				t.Fatal(err)
			}
			if u = now.Sub(was); u.Errors > 0 {
				break
			}
			<-time.After(50 * time.Millisecond)
		}
		return string(r.Stdout), u
	}
	text, u := run(w.Endpoints()[0], "part")
	var handshake, first int
	if _, err := fmt.Sscan(text, &handshake, &first); err != nil {
		t.Fatal(err)
	}
	t.Logf("at 40 ms of round trip: handshake %.1f ms, first byte of the list after %.1f ms, name and connection included; %d packets of the tunnel",
		float64(handshake)/1000, float64(first)/1000, u.Tunnel)
	if u.List != 0 || u.Names != 0 || u.Clear != 0 || u.Errors != 0 || u.Tunnel == 0 {
		t.Errorf("outside the tunnel: %+v", u)
	}
	for a := range w.Site.Requests() {
		if w.Far.ByExit(a) != w.Endpoints()[0] {
			t.Errorf("the site was asked by %s", a)
		}
	}
	if _, u := run(w.Endpoints()[1], "leave"); u.Errors == 0 {
		t.Error("a tunnel that is left open draws no late datagram: what comes after a closed one proves nothing")
	}
}
