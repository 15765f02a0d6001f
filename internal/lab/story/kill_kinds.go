package story

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
	"github.com/shunt-net/shunt/internal/lab/traffic"
	"github.com/shunt-net/shunt/internal/state"
)

// killKind is a kind of run: a command, and the situation that gives it something to do.
type killKind struct {
	name    string
	args    []string
	prepare func(ctx context.Context) error
	// beside runs while the command does, and ends with ctx.
	beside func(ctx context.Context)
	calm   bool // no user sends: the situation itself has no guard that could keep them in
	slow   bool // by a timeout of the product: not for random kills
}

func refreshArgs() []string   { return []string{"egress", "refresh"} }
func rebalanceArgs() []string { return []string{"egress", "rebalance"} }
func repairArgs() []string {
	return []string{"egress", "repair", "--rounds", "3", "--interval", "20ms"}
}

// allKinds are the kinds of run in which kills happen.
func (k *killer) allKinds() []killKind {
	none := func(context.Context) error { return nil }
	kinds := []killKind{
		{name: "refresh", args: refreshArgs(), prepare: none},
		{name: "refresh that adopts pools", args: refreshArgs(), prepare: k.plainPools},
		{name: "rebalance", args: rebalanceArgs(), prepare: k.move(true, server.Alive())},
		{name: "rebalance in place", args: rebalanceArgs(), prepare: k.move(false, server.Alive())},
		{name: "rebalance rolled back", args: rebalanceArgs(), prepare: k.move(true, server.NoData())},
		{name: "rebalance in place, rolled back", args: rebalanceArgs(), prepare: k.move(false, server.NoData())},
		{name: "rebalance of a commands lane", args: rebalanceArgs(), prepare: k.moveCommands},
		{name: "repair", args: repairArgs(), prepare: k.dies(1)},
		{name: "repair, second choice", args: repairArgs(), prepare: k.dies(2)},
		{name: "repair that renews a peer", args: repairArgs(), prepare: k.loses},
		{name: "repair that renews a link", args: repairArgs(), prepare: k.falls},
		{name: "repair that mends the plane", args: repairArgs(), prepare: k.drifts},
		{name: "repair after a boot", args: repairArgs(), prepare: k.boots, calm: true},
		{name: "repair after a killed rebalance", args: repairArgs(), prepare: k.killedMove},
		{name: "repair after a killed repair", args: repairArgs(), prepare: k.killedRepair},
	}
	for _, same := range []bool{true, false} {
		var target *server.Endpoint
		kinds = append(kinds, killKind{
			name: "rebalance" + map[bool]string{true: "", false: " in place"}[same] + ", no answer", args: rebalanceArgs(), slow: true,
			prepare: func(ctx context.Context) (err error) {
				target, err = k.steer(ctx, k.nextLane(), same)
				return err
			},
			beside: func(ctx context.Context) { k.silenceOnIntent(ctx, target) },
		})
	}
	return kinds
}

// run makes the situation and does one run of the command in it.
func (k *killer) run(ctx context.Context, kind killKind, c lab.Call) (lab.Result, error) {
	if kind.calm {
		k.quiet()
	}
	if err := kind.prepare(ctx); err != nil {
		return lab.Result{}, err
	}
	beside, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if kind.beside != nil {
			kind.beside(beside)
		}
	}()
	c.Args = kind.args
	r := k.w.Run(ctx, c)
	cancel()
	<-done
	return r, ctx.Err()
}

// nextLane takes the lanes of driver wireguard in turn.
func (k *killer) nextLane() string {
	k.turn++
	return k.w.Lanes[k.turn%(len(k.w.Lanes)-1)].Name
}

// move makes the next rebalance swap one lane to an endpoint with that fault.
func (k *killer) move(same bool, fault server.Fault) func(context.Context) error {
	return func(ctx context.Context) error {
		x, err := k.steer(ctx, k.nextLane(), same)
		if err != nil {
			return err
		}
		return x.SetFault(fault)
	}
}

// moveCommands does so with the lane that commands drive, with and without its own key.
func (k *killer) moveCommands(ctx context.Context) error {
	k.turn++
	_, err := k.steer(ctx, k.w.Lanes[len(k.w.Lanes)-1].Name, k.turn%2 == 0)
	return err
}

// steer lets the next rebalance move one lane, and says to where.
func (k *killer) steer(ctx context.Context, lane string, same bool) (*server.Endpoint, error) {
	now, err := carried(k.w)
	if err != nil {
		return nil, err
	}
	to, err := k.spares(ctx, 1, func(x *server.Endpoint) bool { return (x.KeyGroup == now[lane].KeyGroup) == same })
	if err != nil {
		return nil, err
	}
	names := []string{to[0].File()}
	for other, x := range now {
		if other != lane {
			names = append(names, x.File())
		}
	}
	return to[0], k.w.Configure(lab.Settings{"egress.rebalance.allow": names})
}

// spares are live endpoints that may be placed: no lane carries them, and no failure later
// than the pool's tests is on record. Where there are too few, a refresh clears them.
func (k *killer) spares(ctx context.Context, n int, fits func(*server.Endpoint) bool) ([]*server.Endpoint, error) {
	for tries := 0; ; tries++ {
		now, err := carried(k.w)
		if err != nil {
			return nil, err
		}
		out := map[string]bool{}
		for _, x := range now {
			out[x.HostPort()] = true
		}
		p, err := k.readPools()
		if err != nil {
			return nil, err
		}
		for _, q := range p.quarantine {
			out[q.Endpoint] = out[q.Endpoint] || !p.began.After(q.FailedAt.Add(time.Second))
		}
		var free []*server.Endpoint
		for _, x := range k.w.Live() {
			if !out[x.HostPort()] && p.rows[x.HostPort()] && fits(x) {
				free = append(free, x)
			}
		}
		k.rng.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		if len(free) >= n {
			return free[:n], nil
		}
		if tries == 3 {
			return nil, errors.New("there are no spare endpoints left")
		}
		if tries > 0 { // the second in which the last one failed has to pass
			lab.Sleep(ctx, time.Second)
		}
		if err := k.w.Shunt(ctx, "egress", "refresh").Err(); err != nil {
			return nil, err
		}
	}
}

// dies makes the next lane's endpoint fall silent, with one good endpoint to take its
// place, and before it so many that pass the proof and not the strict check.
func (k *killer) dies(choices int) func(context.Context) error {
	return func(ctx context.Context) error {
		k.turn++
		lane := k.w.Lanes[k.turn%len(k.w.Lanes)].Name
		to, err := k.spares(ctx, choices, func(*server.Endpoint) bool { return true })
		if err != nil {
			return err
		}
		now, err := carried(k.w)
		if err != nil {
			return err
		}
		var names []string
		for _, x := range now {
			names = append(names, x.File())
		}
		best := to[0]
		for _, x := range to {
			names = append(names, x.File())
			if x.Index < best.Index { // the round trip grows with the index, and so does the rank
				best = x
			}
		}
		if choices > 1 {
			if err := best.SetFault(server.NoData()); err != nil {
				return err
			}
		}
		if err := k.w.Configure(lab.Settings{"egress.rebalance.allow": names}); err != nil {
			return err
		}
		k.failures[now[lane].HostPort()]++
		return now[lane].SetFault(server.Silent())
	}
}

// loses takes the peer off a lane's device and changes its MTU, as a hand would.
func (k *killer) loses(ctx context.Context) error {
	name := k.w.Lane(k.nextLane()).Interface
	return errors.Join(k.configureDevice(name, wgtypes.Config{ReplacePeers: true}), k.shell(ctx, "ip link set dev "+name+" mtu 1400"))
}

// falls takes a lane's interface down.
func (k *killer) falls(ctx context.Context) error {
	return k.shell(ctx, "ip link set dev "+k.w.Lane(k.nextLane()).Interface+" down")
}

func (k *killer) configureDevice(name string, c wgtypes.Config) error {
	return k.w.Router.Do(func() error {
		client, err := wgctrl.New()
		if err != nil {
			return err
		}
		defer client.Close()
		return client.ConfigureDevice(name, c)
	})
}

// drifts changes what the static part of the user plane should be, and takes a route away.
func (k *killer) drifts(ctx context.Context) error {
	k.drift++
	err := k.w.Configure(lab.Settings{"egress.plane.rule_pref": 20000 + 1000*(k.drift%2), "egress.plane.clamp_mss": (k.drift+1)/2%2 == 0})
	if err != nil {
		return err
	}
	l := k.w.Lane(k.nextLane())
	return k.shell(ctx, fmt.Sprintf("ip route del default dev %s table %d", l.Interface, l.Table))
}

// boots takes the whole user plane away. Nothing guards users then, so none sends.
func (k *killer) boots(ctx context.Context) error {
	return k.w.Shunt(ctx, "egress", "plane", "--remove").Err()
}

// killedMove leaves a swap half done, so that the run that is killed next is the one that
// settles it.
func (k *killer) killedMove(ctx context.Context) error {
	kind := killKind{args: rebalanceArgs(), prepare: k.move(k.turn%3 > 0, server.Alive())}
	return k.killFirst(ctx, kind, "intent.written", "lane.peer-added", "lane.peer-moved", "lane.replaced", "lane.installed")
}

// killedRepair does so with a repair.
func (k *killer) killedRepair(ctx context.Context) error {
	kind := killKind{args: repairArgs(), prepare: k.dies(1)}
	return k.killFirst(ctx, kind, "intent.written", "count.added", "quarantine.appended", "lane.peer-moved", "lane.installed")
}

func (k *killer) killFirst(ctx context.Context, kind killKind, points ...string) error {
	k.turn++
	_, err := k.run(ctx, kind, lab.Call{Env: []string{"SHUNT_KILL_AT=" + points[k.turn%len(points)] + ":1"}})
	return err
}

// silenceOnIntent makes an endpoint fall silent when a swap to it begins: after its proof.
func (k *killer) silenceOnIntent(ctx context.Context, x *server.Endpoint) {
	for ctx.Err() == nil {
		for _, l := range k.w.Lanes {
			if it, ok := k.intent(l.Name); ok && it.To == x.HostPort() {
				if err := x.SetFault(server.Silent()); err != nil {
					k.e.Problem("%s: %v", x.HostPort(), err)
				}
				return
			}
		}
		lab.Sleep(ctx, 200*time.Microsecond)
	}
}

// plainPools puts plain files in the place of the pools' symlinks, as a script of the
// operator would that copies the folder.
func (k *killer) plainPools(context.Context) error {
	for _, name := range poolNames() {
		path := filepath.Join(k.w.State, "pools", name)
		rows, mtime, err := state.ReadPool(path)
		if err != nil {
			return err
		}
		tmp := path + ".copy"
		if err := os.WriteFile(tmp, state.FormatPool(rows), 0o640); err != nil { //nolint:gosec // as the product's own
			return err
		}
		if err := os.Chtimes(tmp, mtime, mtime); err != nil {
			return err
		}
		if err := os.Rename(tmp, path); err != nil {
			return err
		}
	}
	return nil
}

// shell runs a script in the router.
func (k *killer) shell(ctx context.Context, script string) error {
	return shellIn(ctx, k.w, script)
}

// fresh starts a new flow of each lane's user.
func (k *killer) fresh(ctx context.Context, lane string) (*traffic.UDP, error) {
	return k.w.UDP(ctx, lane, traffic.Options{Every: 10 * time.Millisecond})
}
