package strategy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/provider"
)

// client is the command of a source: it fetches as its environment says, and fills its folder.
func client(ctx context.Context, profile, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || n == 0 {
		return errors.Join(err, fmt.Errorf("%s and %d bytes", resp.Status, n))
	}
	b, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(os.Getenv("SHUNT_OUT"), "a.conf"), b, 0o600)
}

// led is a fetch of such a source by a way.
func led(ctx context.Context, way dial.Func, profile, url string) error {
	dir, err := os.MkdirTemp("", "led-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	source := egress.Source{Name: "fetched", Type: egress.SourceExec, Command: []string{"/proc/self/exe", "test-way", "client", profile, url}}
	l, err := provider.Fetch(ctx, []egress.Source{source}, dir, provider.Options{DialContext: way})
	if err == nil && l.Count() != 1 {
		err = fmt.Errorf("%d profiles", l.Count())
	}
	return err
}

// What a command fetches while it is led through a tunnel is seen on the uplink as the
// tunnel's own packets only, its questions for names included.
func TestACommandThatIsLedThroughATunnelLeavesNothingElseOnTheUplink(t *testing.T) {
	if !isInside(t) {
		return
	}
	w := world(t)
	if err := w.ReachList(lab.TunnelOnly); err != nil {
		t.Fatal(err)
	}
	x := w.Endpoints()[0]
	seen := func(args ...string) (lab.Result, lab.Uplink) {
		was, err := w.Uplink()
		if err != nil {
			t.Fatal(err)
		}
		r := w.Shunt(t.Context(), args...)
		now, err := w.Uplink()
		if err != nil {
			t.Fatal(err)
		}
		return r, now.Sub(was)
	}
	r, u := seen("tunnel", w.Profile(x), x.HostPort(), "led", "http://"+lab.ListName+"/list.zip")
	if r.Code != 0 || u.List != 0 || u.Names != 0 || u.Clear != 0 || u.Tunnel == 0 {
		t.Errorf("exit code %d, outside the tunnel %+v: %s", r.Code, u, r.Stderr)
	}
	asked := 0
	for a, n := range w.Site.Requests() {
		if asked += n; w.Far.ByExit(a) != x {
			t.Errorf("the site was asked by %s", a)
		}
	}
	if asked == 0 {
		t.Error("the site was not asked")
	}
	// The same command by itself: the counters would see it.
	if r, u := seen("client", w.Profile(x), "http://"+lab.List4+"/list.zip"); r.Code == 0 || u.List == 0 {
		t.Errorf("a command that nobody leads: exit code %d, %+v", r.Code, u)
	}
}
