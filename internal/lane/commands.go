package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/amnezia"
	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/profile"
	"github.com/shunt-net/shunt/internal/run"
)

// job is one change of a lane by its commands.
type job struct {
	d    *Devices
	l    egress.Lane
	c    commands
	t    target
	file installed       // before
	next profile.Profile // as it is to be installed
	link *link           // nil = the interface is not there
	dev  *wgtypes.Device // nil = it cannot be read
	snap snapshot        // of link and dev, where both are there
}

func (d *Devices) newJob(ctx context.Context, l egress.Lane, t target) (*job, error) {
	c, err := resolve(l)
	if err != nil {
		return nil, err
	}
	if d.o.StateDir == "" || strings.ContainsAny(l.Name, "/\x00") {
		return nil, errors.New("commands: no state folder for the lane's files")
	}
	j := &job{d: d, l: l, c: c, t: t}
	j.sweep()
	if j.file, err = readInstalled(c.Installed); err != nil {
		return nil, err
	}
	j.next = j.file.merge(t.profile)
	if !t.params.Plain() { // the tools forget that obfuscation takes room
		j.next.MTU = t.params.Inside(j.next.MTU, DefaultMTU)
	}
	k, err := findLinkAddrs(l.Interface)
	switch {
	case errors.Is(err, ErrNoDevice):
		return j, nil
	case err != nil:
		return nil, err
	}
	j.link = &k
	// A device that is no plain WireGuard has no view: then the commands are trusted.
	var params amnezia.Params
	j.dev, params, err = d.readDevice(ctx, l)
	if err != nil && !errors.Is(err, ErrNoDevice) {
		return nil, err
	}
	if j.dev != nil {
		j.snap = snapshot{dev: j.dev, params: params, addrs: slices.Clone(k.addrs), mtu: k.mtu}
	}
	return j, nil
}

// sweep removes what a killed run left of files with keys: the stripped one, and the
// temporary ones that never became files.
func (j *job) sweep() {
	_ = os.Remove(j.own("stripped"))
	for _, path := range []string{j.own("stripped"), j.own("installed"), j.c.Installed} {
		dir, base := filepath.Split(path)
		left, _ := filepath.Glob(dir + "." + base + "[0-9]*")
		for _, p := range left {
			_ = os.Remove(p)
		}
	}
}

// content is the installed file of p.
func (j *job) content(p profile.Profile) []byte {
	if j.c.stripped {
		return j.strip(p, nil, true)
	}
	return p.Format()
}

// strip is strip with the full set of parameters where the commands are AmneziaWG's:
// those that a file leaves out stay as they are.
func (j *job) strip(p profile.Profile, live *wgtypes.Device, withPeers bool) []byte {
	out := strip(p, live, withPeers)
	if !j.l.Carries(egress.NeedsAmneziaWG) {
		return out
	}
	now, err := amnezia.FromProfile(p)
	if err != nil {
		return out // the operator's own file, which the tools refuse too
	}
	before := j.snap.params
	if j.dev == nil {
		before, _ = amnezia.FromProfile(j.file.own)
	}
	// Tools of an earlier generation refuse keys that they do not know.
	lines, err := now.Conf(max(amnezia.V10, now.Version(), before.Version(), j.t.params.Version()))
	if err != nil {
		return out
	}
	return bytes.Replace(out, []byte("[Interface]\n"), []byte("[Interface]\n"+strings.Join(lines, "\n")+"\n"), 1)
}

// cycles says whether the lane has to go down and up. The shipped templates never do that
// to a lane that is there: their apply changes key and peer, and we the addresses around
// it. Of a user's own apply nothing is known, so a new identity is a new interface.
func (j *job) cycles(from string) bool {
	switch {
	case j.link == nil || len(j.c.Apply) == 0:
		return true
	case j.c.Template != "" || len(j.c.Up) == 0 || len(j.c.Down) == 0:
		return false
	case j.dev != nil:
		return !speaks(j.snap.params, j.t.params) || j.dev.PrivateKey != j.t.key || !j.link.holds(j.t.addresses)
	}
	old, err := profile.ParseFile(from)
	return err != nil || old.Identity(j.d.o.Salt) != j.t.profile.Identity(j.d.o.Salt)
}

// swapCommands makes the lane carry t by its commands, or puts everything back.
func (d *Devices) swapCommands(ctx context.Context, l egress.Lane, from string, t target) (egress.SwapReport, error) {
	r := egress.SwapReport{Method: methodCommands}
	j, err := d.newJob(ctx, l, t)
	if err != nil {
		return r, err
	}
	if err := j.save(ctx); err != nil {
		return r, err
	}
	begin := d.o.Now()
	cycle := j.cycles(from)
	if cycle {
		err = j.cycle(ctx)
	} else {
		err = j.apply(ctx)
	}
	if err == nil {
		err = j.answered(ctx)
	}
	if err == nil {
		r.Handshake = d.o.Now().Sub(begin)
		return r, nil
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*j.timeout())
	defer cancel()
	undo := j.undoApply
	if cycle {
		undo = j.undoCycle
	}
	return r, failed(err, undo(back))
}

// save keeps the installed file under the state folder: a run that is killed between here
// and its end leaves the operator's lines there.
func (j *job) save(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(j.own("installed")), 0o700); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	if !j.file.was {
		return nil
	}
	return put(ctx, j.own("installed"), j.file.data, "lane.saved")
}

// own is a file of this lane under the state folder.
func (j *job) own(kind string) string {
	return filepath.Join(j.d.o.StateDir, "lanes", j.l.Name+"."+kind)
}

func (j *job) install(ctx context.Context) error {
	if j.file.path == "" {
		return nil
	}
	return put(ctx, j.file.path, j.content(j.next), "lane.installed")
}

// cycle makes the interface anew. Down still reads the old file, up the new one.
func (j *job) cycle(ctx context.Context) error {
	if j.link != nil {
		if err := j.run(ctx, j.c.Down, nil); err != nil {
			return err
		}
	}
	if err := j.install(ctx); err != nil {
		return err
	}
	if len(j.c.Up) == 0 {
		return j.run(ctx, j.c.Apply, j.strip(j.next, nil, true))
	}
	return j.run(ctx, j.c.Up, nil)
}

// apply installs the new file and runs the lane's apply. Addresses, which a shipped
// template leaves alone, are changed around it, new ones first.
func (j *job) apply(ctx context.Context) error {
	p := j.next
	ours := j.c.Template != "" && len(p.Addresses) > 0
	addrs := wanted(unique(p.Addresses))
	if ours {
		if err := j.link.addAddrs(ctx, addrs); err != nil {
			return err
		}
	}
	if err := j.install(ctx); err != nil {
		return err
	}
	if j.dev != nil && len(p.Peers) > 0 && has(j.dev, wgtypes.Key(p.Peers[0].PublicKey)) && usesStripped(j.c.Apply) {
		// wg syncconf would only change the endpoint of the live peer, and a late reply of
		// the old address roams it back: the peer goes first, and still with the old key
		// (see replace).
		bare := p
		bare.PrivateKey = profile.Key(j.dev.PrivateKey)
		if err := j.run(ctx, j.c.Apply, j.strip(bare, j.dev, false)); err != nil {
			return err
		}
	}
	if err := j.run(ctx, j.c.Apply, j.strip(p, j.dev, true)); err != nil {
		return err
	}
	if ours {
		if err := j.link.dropAddrs(ctx, addrs); err != nil {
			return err
		}
		return j.link.setMTU(ctx, p.MTU)
	}
	return nil
}

// answered waits for the handshake where the device can be read.
func (j *job) answered(ctx context.Context) error {
	if _, err := findLink(j.l.Interface); err != nil {
		return fmt.Errorf("after the commands: %w", err)
	}
	c, err := j.d.open(j.l)
	if err != nil {
		return err
	}
	defer c.close()
	c.want = j.t.params
	now, err := c.read(ctx)
	switch {
	case errors.Is(err, ErrNoDevice) && j.dev == nil:
		return nil
	case err != nil:
		return err
	}
	if now.PrivateKey != j.t.key || !carries(now, j.t.server) {
		return fmt.Errorf("interface %s: the commands left another peer on it", j.l.Interface)
	}
	again := wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: j.t.server, Remove: true}, j.t.kicked()}}
	if j.t.keepalive == 0 { // nothing has begun a handshake yet
		if err := c.set(ctx, again); err != nil {
			return err
		}
		run.Point(ctx, "lane.peer-added")
	}
	if err := j.d.awaitHandshake(ctx, c, j.t.server, again); err != nil {
		return fmt.Errorf("endpoint %s: %w", j.t.endpoint, err)
	}
	return j.d.calm(ctx, c, j.t)
}

// undoApply puts file, addresses and device back: by the commands, and where the device
// then still differs, directly. So a command that fails again matters only where the
// device cannot be read.
func (j *job) undoApply(ctx context.Context) error {
	err := j.file.putBack(ctx)
	var errRun error
	if j.file.was {
		errRun = j.run(ctx, j.c.Apply, j.strip(j.file.own, j.dev, true))
	}
	if j.dev == nil {
		return errors.Join(err, errRun)
	}
	c, errOpen := j.d.open(j.l)
	if errOpen != nil {
		return errors.Join(err, errOpen)
	}
	defer c.close()
	now, errLink := findLinkAddrs(j.l.Interface)
	if errLink != nil {
		return errors.Join(err, errLink)
	}
	return errors.Join(err, j.snap.restore(ctx, c, &now))
}

// undoCycle makes the interface anew with the old file.
func (j *job) undoCycle(ctx context.Context) error {
	if _, err := findLink(j.l.Interface); err == nil && len(j.c.Down) > 0 {
		// Down may fail on a half-made interface; up tells whether that matters.
		_ = j.run(ctx, j.c.Down, nil)
	}
	if err := j.file.putBack(ctx); err != nil {
		return err
	}
	if j.link == nil {
		return nil // it was not there before
	}
	return j.run(ctx, j.c.Up, nil)
}

func (j *job) timeout() time.Duration {
	if j.c.Timeout > 0 {
		return j.c.Timeout
	}
	return j.d.o.CommandTimeout
}

// run runs one command. stripped is the content of the file that {stripped} names; it is
// there only while the command runs.
func (j *job) run(ctx context.Context, argv []string, stripped []byte) error {
	if usesStripped(argv) {
		if err := put(ctx, j.own("stripped"), stripped, "lane.stripped"); err != nil {
			return err
		}
		defer os.Remove(j.own("stripped"))
	}
	r := strings.NewReplacer("{interface}", j.l.Interface, "{lane}", j.l.Name, "{config}", j.t.path,
		"{installed}", j.file.path, "{stripped}", j.own("stripped"))
	args := make([]string, 0, len(argv))
	for _, a := range argv {
		args = append(args, r.Replace(a))
	}
	if _, err := run.Command(ctx, args, run.Options{Timeout: j.timeout()}); err != nil {
		return err
	}
	run.Point(ctx, "lane.command")
	return nil
}

// settleCommands makes file and device hold exactly t.
func (d *Devices) settleCommands(ctx context.Context, l egress.Lane, t target, renew bool) error {
	j, err := d.newJob(ctx, l, t)
	if err != nil {
		return err
	}
	stale := j.file.path != "" && (!j.file.was || !bytes.Equal(j.file.data, j.content(j.next)))
	if stale {
		if err := j.save(ctx); err != nil {
			return err
		}
	}
	differs := j.dev == nil && (stale || renew)
	if j.dev != nil {
		_, differs, _ = t.differences(j.dev, false)
		differs = differs || !speaks(j.snap.params, t.params)
	}
	switch {
	case j.link == nil, differs && j.cycles(j.file.path):
		err = j.cycle(ctx)
	case differs:
		err = j.apply(ctx)
	case stale:
		err = j.install(ctx)
	}
	if err != nil {
		return err
	}
	if _, err := findLink(l.Interface); err != nil {
		return fmt.Errorf("after the commands: %w", err)
	}
	// What the commands leave undone, and addresses and a renewal, are done directly where
	// the device can be read.
	err = d.settleDevice(ctx, l, t, renew)
	if errors.Is(err, ErrNoDevice) && j.dev == nil {
		return nil
	}
	return err
}
