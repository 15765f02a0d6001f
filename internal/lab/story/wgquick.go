package story

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/lab"
	"github.com/shunt-net/shunt/internal/lab/server"
)

// wgQuick is a lane that the router's admin keeps with the tools of wireguard-tools: a
// table of its own, a rule for one user, translation on both ways out, and no leak guard.
type wgQuick struct {
	w     *lab.World
	dir   string
	user  netip.Addr
	class uint8
}

const (
	wgQuickInterface = "wgq0"
	wgQuickTable     = "299"
	// wgQuickClass is of no lane of shunt's.
	wgQuickClass = 2
	wgQuickUser  = lab.Users - 1
)

// newWGQuick prepares the lane: rule, translation, and the program that wg-quick starts
// where the kernel has no WireGuard (it serves the device with shunt's own lane service,
// under a configuration of its own).
func newWGQuick(ctx context.Context, w *lab.World) (*wgQuick, error) {
	q := &wgQuick{w: w, dir: filepath.Join(w.Dir, "wgquick"), user: lab.User4(wgQuickUser), class: wgQuickClass}
	if err := os.MkdirAll(filepath.Join(q.dir, "state"), 0o750); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	conf := fmt.Sprintf("state_dir: %s/state\negress:\n  lanes:\n    - {name: %s, interface: %s, table: %s, mark: 0x299}\n",
		q.dir, wgQuickInterface, wgQuickInterface, wgQuickTable)
	script := fmt.Sprintf(`#!/bin/sh
# What wg-quick calls in place of wireguard-go: waits for the end of the last device, and
# returns when the new one answers (asking it before it does makes wg remove its socket).
cd %[1]s || exit 1
while [ -s pid ] && kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.002; done
: >device.log
SHUNT_CONFIG=%[1]s/shunt.yaml setsid %[2]s lane run "$1" >>device.log 2>&1 </dev/null &
echo $! >pid
i=0
until grep -q state=ready device.log; do
	i=$((i + 1)); [ $i -lt 1000 ] || exit 1
	sleep 0.005
done
`, q.dir, exe)
	nat := fmt.Sprintf("table ip admin {\n\tchain out {\n\t\ttype nat hook postrouting priority srcnat;\n\t\tip saddr %s oifname { %q, %q } masquerade\n\t}\n}\n",
		q.user, wgQuickInterface, lab.WANInterface)
	for name, text := range map[string]string{"shunt.yaml": conf, "nat.nft": nat} {
		if err := os.WriteFile(filepath.Join(q.dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(q.device(), []byte(script), 0o755); err != nil { //nolint:gosec // a program
		return nil, err
	}
	if err := q.run(ctx, "nft", "-f", filepath.Join(q.dir, "nat.nft")); err != nil {
		return nil, err
	}
	return q, q.run(ctx, "ip", "rule", "add", "pref", "100", "from", q.user.String(), "lookup", wgQuickTable)
}

func (q *wgQuick) device() string { return filepath.Join(q.dir, "userspace") }

func (q *wgQuick) conf() string { return filepath.Join(q.dir, wgQuickInterface+".conf") }

// up installs an endpoint's profile and brings the interface up.
func (q *wgQuick) up(ctx context.Context, x *server.Endpoint) error {
	lines := strings.Split(string(x.Profile()), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "DNS") }) // the router asks nobody
	lines = slices.Insert(lines, 1, "Table = "+wgQuickTable)
	if err := os.WriteFile(q.conf(), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		return err
	}
	return q.run(ctx, "wg-quick", "up", q.conf())
}

func (q *wgQuick) down(ctx context.Context) error { return q.run(ctx, "wg-quick", "down", q.conf()) }

// run runs an admin's command in the router.
func (q *wgQuick) run(ctx context.Context, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // fixed words
	cmd.Env = append(q.w.Environ(), "WG_QUICK_USERSPACE_IMPLEMENTATION="+q.device())
	cmd.WaitDelay = time.Second
	log, err := os.OpenFile(filepath.Join(q.w.Logs, "wg-quick.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := q.w.Router.Start(cmd); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	if err := cmd.Wait(); err != nil {
		b, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, b[max(0, len(b)-600):])
	}
	return nil
}
