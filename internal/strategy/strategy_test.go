package strategy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/dial"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/state"
	"github.com/shunt-net/shunt/internal/tunnel/wgtest"
)

// strategies that look into dir and find that no source can be reached.
func strategies(dir string, reach func(context.Context, dial.Func) error) *Strategies {
	return New(Options{
		Config: egress.RecoveryConfig{
			Dir: dir, Timeout: 2 * time.Second, Parallel: 4,
			Order: []egress.PoolName{egress.PoolNameForeign, egress.PoolNameAll, egress.PoolNameWorking},
		},
		Test: egress.TestConfig{HandshakeTimeout: time.Second}, Lanes: []string{"vpn1"}, Reach: reach, Now: time.Now,
		Describe: func(path string) (egress.Description, error) {
			return egress.Description{}, errors.New("no profile " + path)
		},
		Busy: func(context.Context) func(string) bool { return func(string) bool { return false } },
	})
}

func unreachable(context.Context, dial.Func) error { return errors.New("no way") }

func write(t *testing.T, dir, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// folder is a temporary one that only we can write.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func names(l []one) (out []string) {
	for _, x := range l {
		out = append(out, x.name)
	}
	return out
}

func TestStrategiesRunInNameOrderAndTheLastWinnerFirst(t *testing.T) {
	dir := folder(t)
	for _, n := range []string{"90-lte", "05-first", "15-between", "README.md", ".hidden", "50-old.dpkg-old", "60-backup~"} {
		write(t, dir, n, "#!/bin/sh\n", 0o755)
	}
	s := strategies(dir, unreachable)
	want := []string{"05-first", LastKnownPool, "15-between", Uplink, "90-lte"}
	if diff := cmp.Diff(want, names(s.list(""))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	want = []string{"90-lte", "05-first", LastKnownPool, "15-between", Uplink}
	if diff := cmp.Diff(want, names(s.list("90-lte"))); diff != "" {
		t.Errorf("after a win, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{LastKnownPool, Uplink}, names(strategies(filepath.Join(dir, "none"), unreachable).list("gone"))); diff != "" {
		t.Errorf("without a folder, -want +got:\n%s", diff)
	}
}

func TestOnlyWhatRootAloneCanWriteIsRun(t *testing.T) {
	dir := folder(t)
	write(t, dir, "30-group", "#!/bin/sh\n", 0o775)
	write(t, dir, "31-world", "#!/bin/sh\n", 0o757)
	write(t, dir, "32-plain", "text", 0o644)
	write(t, dir, "33-owner", "#!/bin/sh\n", 0o755)
	if err := os.Mkdir(filepath.Join(dir, "34-folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"30-group": "written by others", "31-world": "written by others", "32-plain": "not executable",
		"33-owner": "belongs to user 12345", "34-folder": "not a file",
	}
	if os.Getuid() != 0 {
		delete(want, "33-owner")
	} else if err := os.Chown(filepath.Join(dir, "33-owner"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	s := strategies(dir, unreachable)
	res, err := s.Recover(t.Context(), egress.RecoveryInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range res.Tried {
		if w, ok := want[x.Strategy]; ok && !strings.Contains(x.Reason, w) {
			t.Errorf("%s: %q, want %q in it", x.Strategy, x.Reason, w)
		}
		delete(want, x.Strategy)
	}
	if len(want) > 0 {
		t.Errorf("not in the record: %v", want)
	}
	write(t, dir, "40-good", "#!/bin/sh\n", 0o755)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	got := s.list("")
	if diff := cmp.Diff([]string{dir, LastKnownPool, Uplink}, sortedNames(got)); diff != "" {
		t.Errorf("from a folder that anybody can write, -want +got:\n%s", diff)
	}
}

func sortedNames(l []one) []string { // a path sorts after digits
	out := names(l)
	if len(out) == 3 && strings.HasPrefix(out[0], "/") {
		return out
	}
	return append(out[len(out)-1:], out[:len(out)-1]...)
}

func TestABuiltInIsTurnedOffByAnEmptyFileAndReplacedByAnExecutable(t *testing.T) {
	dir := folder(t)
	write(t, dir, LastKnownPool, "", 0o644)
	if err := os.Symlink(os.DevNull, filepath.Join(dir, Uplink)); err != nil {
		t.Fatal(err)
	}
	asked := 0
	s := strategies(dir, func(context.Context, dial.Func) error { asked++; return nil })
	res, err := s.Recover(t.Context(), egress.RecoveryInput{})
	if err != nil || res.Success || asked != 0 || len(res.Tried) != 2 || !strings.Contains(res.Tried[0].Reason+res.Tried[1].Reason, "turned off") {
		t.Errorf("%+v, %v", res, err)
	}
	write(t, dir, LastKnownPool, `#!/bin/sh
echo '{"success": true, "proxy": "socks5://u:secret@127.0.0.1:1", "hmn_access_ok": true}'
`, 0o755)
	res, err = s.Recover(t.Context(), egress.RecoveryInput{})
	if err != nil || !res.Success || res.Strategy != LastKnownPool || strings.Contains(res.Proxy, "secret") || asked != 1 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestADryRunRunsNothing(t *testing.T) {
	dir := folder(t)
	mark := filepath.Join(t.TempDir(), "ran")
	write(t, dir, "01-touch", "#!/bin/sh\n: > "+mark+"\n", 0o755)
	s := strategies(dir, func(context.Context, dial.Func) error { t.Error("a source was asked"); return nil })
	pools := []egress.Pool{{Name: egress.PoolAll, Rows: []egress.Row{{Endpoint: "192.0.2.1:1"}, {Endpoint: "192.0.2.2:1"}}}}
	res, err := s.Recover(t.Context(), egress.RecoveryInput{DryRun: true, Pools: pools, Quarantine: []state.Quarantined{{Endpoint: "192.0.2.1:1"}}})
	if err != nil || res.Success || len(res.Tried) != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	if !strings.Contains(res.Tried[1].Reason, "2 endpoints") || !strings.Contains(res.Tried[1].Reason, "192.0.2.2:1 first") {
		t.Errorf("reason: %s", res.Tried[1].Reason)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the executable ran")
	}
}

func TestCandidatesComeInTheOrderOfThePoolsOnceEachAndQuarantinedOnesLast(t *testing.T) {
	row := func(e string) egress.Row { return egress.Row{Endpoint: e} }
	in := egress.RecoveryInput{
		Pools: []egress.Pool{
			{Name: egress.PoolSources, Rows: []egress.Row{row("own"), row("a")}},
			{Name: egress.PoolWorking, Rows: []egress.Row{row("w"), row("a")}},
			{Name: egress.PoolAll, Rows: []egress.Row{row("a"), row("h")}},
			{Name: egress.PoolForeign, Rows: []egress.Row{row("q"), row("a"), row("b")}},
		},
		Quarantine: []state.Quarantined{{Endpoint: "q"}, {Endpoint: "w"}},
	}
	for _, c := range []struct {
		order []egress.PoolName
		want  string
	}{
		{[]egress.PoolName{egress.PoolNameForeign, egress.PoolNameAll, egress.PoolNameWorking}, "a b h own q w"},
		{[]egress.PoolName{egress.PoolNameWorking}, "a own w"},
		{nil, "own a"},
	} {
		s := strategies("/nonexistent", unreachable)
		s.o.Config.Order = c.order
		var got []string
		for _, x := range s.candidates(in) {
			got = append(got, x.row.Endpoint)
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%v: %s, want %s", c.order, g, c.want)
		}
	}
}

// pool is a pool of a test server's endpoints, each with a pair named after it.
func pool(t *testing.T, s *wgtest.Server) ([]egress.Pool, func(string) (egress.Description, error)) {
	t.Helper()
	paths, err := s.WriteProfiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := egress.Pool{Name: egress.PoolForeign}
	by := map[string]egress.Description{}
	for i, path := range paths {
		e := s.Addr(i).String()
		p.Rows = append(p.Rows, egress.Row{Rank: i + 1, Endpoint: e, Path: path})
		by[path] = egress.Description{Endpoint: e, Pair: "pair " + e}
	}
	return []egress.Pool{p}, func(path string) (egress.Description, error) { return by[path], nil }
}

func TestTheFirstTunnelWithAccessWinsAndAPairOfALaneIsNeverTouched(t *testing.T) {
	srv, err := wgtest.Start(6, wgtest.Options{OwnKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	for i := range 2 {
		srv.SetBehaviour(i, wgtest.Behaviour{Silent: true})
	}
	s := strategies(folder(t), func(ctx context.Context, way dial.Func) error {
		c, err := way(ctx, "tcp", "203.0.113.7:443")
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	in := egress.RecoveryInput{}
	in.Pools, s.o.Describe = pool(t, srv)
	in.Interfaces = []egress.RecoveryInterface{{Lane: "egress1", Pair: "pair " + srv.Addr(2).String()}}
	s.o.Busy = func(context.Context) func(string) bool {
		return func(p string) bool { return p == "pair "+srv.Addr(3).String() }
	}
	res, err := s.Recover(t.Context(), in)
	if err != nil || !res.Success || res.Strategy != LastKnownPool || !res.AccessOK {
		t.Fatalf("%+v, %v", res, err)
	}
	way, ok := res.Access.(dial.Func)
	if !ok {
		t.Fatalf("access is %T", res.Access)
	}
	c, err := way(t.Context(), "tcp", "203.0.113.7:443")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := res.Close(); err != nil {
		t.Error(err)
	}
	if c, err := way(t.Context(), "tcp", "203.0.113.7:443"); err == nil {
		_ = c.Close()
		t.Error("a closed way connects")
	}
	for _, i := range []int{2, 3} {
		if n := srv.Initiations(i); n != 0 {
			t.Errorf("the pair of a lane was tried: %d initiations at endpoint %d", n, i)
		}
	}
	if srv.Initiations(0) == 0 {
		t.Error("the first row was not tried")
	}
}

func TestAWayIsCutOffWhenALaneTakesItsPair(t *testing.T) {
	srv, err := wgtest.Start(1, wgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	taken := make(chan struct{})
	s := strategies(folder(t), func(context.Context, dial.Func) error { return nil })
	in := egress.RecoveryInput{}
	in.Pools, s.o.Describe = pool(t, srv)
	s.o.Busy = func(context.Context) func(string) bool {
		return func(string) bool {
			select {
			case <-taken:
				return true
			default:
				return false
			}
		}
	}
	res, err := s.Recover(t.Context(), in)
	if err != nil || !res.Success {
		t.Fatalf("%+v, %v", res, err)
	}
	way, _ := res.Access.(dial.Func)
	close(taken)
	deadline := time.Now().Add(2 * time.Second)
	for {
		c, err := way(t.Context(), "tcp", "203.0.113.7:443")
		if err != nil {
			break
		}
		_ = c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the way outlives a lane's taking its pair")
		}
	}
	if err := res.Close(); err != nil {
		t.Error(err)
	}
}

func FuzzAnswerOfAStrategy(f *testing.F) {
	for _, s := range []string{
		`{"success": true, "recovery_iface": "wg0", "hmn_access_ok": true}`, `{"success": false, "hmn_access_ok": false, "reason": "no"}`,
		`{"success": true}`, `{} {}`, "", "null", `{"success": 1}`, `{"success": true, "hmn_access_ok": true}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parse(b)
		if err == nil && (a.Success == nil || !*a.Success || a.AccessOK == nil || !*a.AccessOK || a.Interface == "" && a.Proxy == "") {
			t.Errorf("%q was taken for access", b)
		}
	})
}
