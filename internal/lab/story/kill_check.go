package story

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
)

// findings collects what is wrong.
type findings struct {
	mu   sync.Mutex
	list []string
}

func (f *findings) add(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fmt.Sprintf(format, args...))
}

// recover does what comes after a kill: ordinary repairs until nothing is half done, for at
// most killRounds, then an ordinary rebalance; and looks at what they made.
func (k *killer) recover(ctx context.Context, kind killKind) []string {
	var f findings
	n := 0
	for done := false; !done && n < killRounds; n++ {
		r := k.w.Shunt(ctx, "egress", "repair")
		if r.Code != 0 && r.Code != 3 && r.Code != 4 {
			f.add("repair: exit code %d: %s", r.Code, r.Stderr)
		}
		done = len(k.halfDone()) == 0
	}
	k.rounds = max(k.rounds, n)
	for _, what := range k.halfDone() {
		f.add("after %d repairs: %s", n, what)
	}
	for _, x := range k.w.Endpoints() {
		if !x.Alive() {
			if err := x.SetFault(server.Alive()); err != nil {
				f.add("%v", err)
			}
		}
	}
	if r := k.w.Shunt(ctx, "egress", "rebalance"); r.Code != 0 {
		f.add("rebalance: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if kind.calm {
		if err := k.loud(ctx); err != nil {
			f.add("%v", err)
		}
	}
	return append(f.list, k.check(ctx)...)
}

// check looks at everything that must be so when no run is under way. It asks kernel,
// files and users, and the product nothing.
func (k *killer) check(ctx context.Context) []string {
	f := &findings{list: k.halfDone()}
	k.checkUsers(ctx, f)
	k.checkRecords(f)
	k.checkLocks(f)
	k.checkLeaks(f)
	k.checkLeftovers(f)
	return f.list
}

// halfDone is what a run has yet to settle: intents, devices that are not what their
// installed profile says, lanes without a healthy endpoint, classes that are not at home.
func (k *killer) halfDone() []string {
	f := &findings{}
	left, _ := os.ReadDir(filepath.Join(k.w.State, "intents"))
	for _, e := range left {
		if !strings.HasPrefix(e.Name(), ".") {
			f.add("intent %s is left", e.Name())
		}
	}
	by := map[*server.Endpoint]string{}
	for _, l := range k.w.Lanes {
		x, err := k.installedEndpoint(l)
		if err != nil {
			f.add("%s: %v", l.Name, err)
			continue
		}
		if err := k.checkDevice(l, x); err != nil {
			f.add("%s: %v", l.Name, err)
		}
		if by[x] != "" {
			f.add("%s and %s share %s", by[x], l.Name, x.HostPort())
		}
		by[x] = l.Name
		if !x.Alive() {
			f.add("%s carries %s, which is %s", l.Name, x.HostPort(), x.Fault())
		}
	}
	k.checkClasses(f)
	return f.list
}

// installedEndpoint is the endpoint whose profile a lane has.
func (k *killer) installedEndpoint(l lab.Lane) (*server.Endpoint, error) {
	b, err := os.ReadFile(filepath.Join(k.w.State, "lanes", l.Name+".conf"))
	if err != nil {
		return nil, err
	}
	for _, x := range k.w.Endpoints() {
		if bytes.Equal(b, x.Profile()) {
			return x, nil
		}
	}
	return nil, errors.New("its installed profile is no endpoint's")
}

// checkDevice wants a lane's device to hold one peer, the endpoint that its profile names,
// with its key and its addresses, and nothing else.
func (k *killer) checkDevice(l lab.Lane, x *server.Endpoint) error {
	d, err := k.w.Device(l.Interface)
	if err != nil {
		return err
	}
	switch {
	case len(d.Peers) != 1:
		return fmt.Errorf("its device has %d peers, its profile names %s", len(d.Peers), x.HostPort())
	case d.Peers[0].PublicKey.String() != x.PublicKey() || d.PrivateKey.String() != x.PrivateKey():
		return fmt.Errorf("its device has another peer or key than its profile, which names %s", x.HostPort())
	case d.Peers[0].Endpoint == nil || d.Peers[0].Endpoint.String() != x.HostPort() || len(d.Peers[0].AllowedIPs) != 2:
		return fmt.Errorf("its peer sends %v to %v, its profile says %s", d.Peers[0].AllowedIPs, d.Peers[0].Endpoint, x.HostPort())
	case d.Peers[0].PersistentKeepaliveInterval != 25*time.Second:
		return fmt.Errorf("its peer's keepalive is %s", d.Peers[0].PersistentKeepaliveInterval)
	}
	addrs, mtu, err := k.linkOf(l.Interface)
	switch {
	case err != nil:
		return err
	case !slices.Contains(addrs, x.Client4) || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a != x.Client4 && a != x.Client6 }):
		return fmt.Errorf("its interface has %v, its profile says %s and %s", addrs, x.Client4, x.Client6)
	case mtu != server.MTUInside:
		return fmt.Errorf("its interface has MTU %d", mtu)
	}
	if l.Name != k.w.Lanes[len(k.w.Lanes)-1].Name {
		return nil
	}
	b, err := os.ReadFile(k.installed(l))
	if err == nil && (!bytes.Contains(b, []byte("Endpoint = "+x.HostPort()+"\n")) || !bytes.Contains(b, []byte(x.PrivateKey()))) {
		err = fmt.Errorf("the file that its commands read is not of %s", x.HostPort())
	}
	return err
}

// installed is the file that the commands of a lane read.
func (k *killer) installed(l lab.Lane) string { return filepath.Join(k.w.Dir, l.Interface+".conf") }

func (k *killer) intent(lane string) (it egress.Intent, ok bool) {
	b, err := os.ReadFile(filepath.Join(k.w.State, "intents", lane+".json"))
	return it, err == nil && json.Unmarshal(b, &it) == nil
}

// checkUsers lets a new flow of each class find its way: out by the endpoint that its own
// lane's profile names.
func (k *killer) checkUsers(ctx context.Context, f *findings) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, l := range k.w.Lanes {
		wg.Go(func() {
			x, err := k.installedEndpoint(l)
			if err != nil {
				return // told already
			}
			u, err := k.fresh(ctx, l.Name)
			if err != nil {
				f.add("users of %s: %v", l.Name, err)
				return
			}
			defer u.Stop(200 * time.Millisecond)
			p, err := u.WaitAny(ctx, time.Time{})
			if err != nil {
				f.add("users of %s: no answer", l.Name)
			} else if via := k.w.Far.ByExit(p.Exit); via != x {
				f.add("users of %s go out as %s, its profile names %s", l.Name, p.Exit, x.HostPort())
			}
		})
	}
	wg.Wait()
}

// checkLocks takes every lock that there is.
func (k *killer) checkLocks(f *findings) {
	files, _ := filepath.Glob(filepath.Join(k.w.State, "locks", "*.lock"))
	if len(files) == 0 {
		f.add("there are no locks")
	}
	for _, name := range files {
		l, err := os.Open(name)
		if err != nil {
			f.add("%v", err)
			continue
		}
		if err := unix.Flock(int(l.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.add("lock %s is held: %v", filepath.Base(name), err)
		}
		_ = l.Close()
	}
}

// checkLeaks compares the gateway's counters with the last look.
func (k *killer) checkLeaks(f *findings) {
	now, err := k.w.Uplink()
	if err != nil {
		f.add("%v", err)
		return
	}
	if d := now.Sub(k.base); d.Clear+d.Users+d.Marked > 0 {
		seen := k.capture.List()
		f.add("%d packets left in clear, %d of users, %d numbered ones; the last: %v", d.Clear, d.Users, d.Marked, seen[max(0, len(seen)-5):])
	}
	k.base = now
}

// checkLeftovers looks for temporary files and folders of writers that were killed. The next
// writer of the same takes them away once they are a minute old: keys do not pile up. The
// folder that a refresh fetches into goes at once.
func (k *killer) checkLeftovers(f *findings) {
	var dirs []string
	_ = filepath.WalkDir(k.w.State, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && !strings.HasPrefix(d.Name(), "gen-") {
			dirs = append(dirs, path)
		}
		return nil
	})
	fetched := 0
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				continue
			}
			if strings.HasPrefix(e.Name(), ".fetch-") {
				fetched++
			}
			left, err := e.Info()
			if err != nil || e.IsDir() { // a half written generation goes with the next whole refresh
				continue
			}
			file, err := os.Stat(filepath.Join(dir, strings.TrimRight(e.Name()[1:], "0123456789")))
			if err == nil && file.ModTime().Sub(left.ModTime()) > time.Minute+time.Second {
				f.add("%s is left, and its file was written %s after it", filepath.Join(dir, e.Name()), file.ModTime().Sub(left.ModTime()))
			}
		}
	}
	if fetched > 1 {
		f.add("%d fetched lists are left beside the pools", fetched)
	}
}

// shellIn runs a script in the router.
func shellIn(ctx context.Context, w *lab.World, script string) error {
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Env = w.Environ()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.Router.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out.String())
	}
	return nil
}
