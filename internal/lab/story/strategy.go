package story

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/shunt-net/shunt/internal/config"
	"github.com/shunt-net/shunt/internal/lab"
)

// strategyScenario drops executables into the folder of strategies: bad ones, which must
// harm nothing, and a good one, which must be all that it takes.
func strategyScenario() lab.Scenario {
	return lab.Scenario{
		Name:    "egress-strategy",
		Summary: "executables in strategies.d: ones that hang, print rubbish, lie or anybody could write harm nothing; a good one is used with no other change",
		Run:     playStrategy,
	}
}

const (
	strategyTimeout = 3 * time.Second
	goodStrategy    = "90-lte"
)

// badStrategies are scripts and the word that must be in the reason of each.
func badStrategies() []struct{ name, script, reason string } {
	const head = "#!/bin/sh\ncat >/dev/null\n"
	says := func(more string) string {
		return head + `echo '{"success": true, "recovery_strategy": "x", ` + more + `"hmn_access_ok": true}'` + "\n"
	}
	return []struct{ name, script, reason string }{
		{"01-hangs", "#!/bin/sh\ntrap '' TERM\nsleep 1000 &\nsleep 1000\n", "not done within"},
		{"02-rubbish", head + "head -c 3000 /dev/urandom\n", "JSON"},
		{"03-no-such", says(`"recovery_iface": "wg-none", `), "does not exist"},
		{"04-lane", says(`"recovery_iface": "vpn2", `), "is a lane"},
		{"05-no-access", says(`"recovery_iface": "` + lab.LANInterface + `", `), "has none"},
		{"06-anybodys", says(`"recovery_iface": "` + lab.RescueInterface + `", `), "written by others"},
		{"07-dead-proxy", says(`"proxy": "socks5://127.0.0.1:9", `), "has none"},
		{"08-fails", head + "exit 3\n", "exit status 3"},
	}
}

func playStrategy(ctx context.Context, e *lab.Env) error {
	w, err := morning(ctx, e, lab.WorldOptions{RTT: 10 * time.Millisecond, RTTStep: time.Millisecond})
	if err != nil {
		return err
	}
	if err := w.AddRescue(); err != nil {
		return err
	}
	if err := w.ReachList(lab.RescueOnly); err != nil {
		return err
	}
	if err := w.Configure(lab.Settings{
		"egress.sources": []any{lab.ListSource(false)}, "egress.recovery.timeout": strategyTimeout.String(),
	}); err != nil {
		return err
	}
	for _, b := range badStrategies() {
		perm := os.FileMode(0o755)
		if strings.HasSuffix(b.name, "anybodys") {
			perm = 0o777
		}
		if err := w.Strategy(b.name, b.script, perm); err != nil {
			return err
		}
	}
	crowd, err := users(ctx, w)
	if err != nil {
		return err
	}
	before, err := w.Uplink()
	if err != nil {
		return err
	}
	if err := onlyBad(ctx, e, w); err != nil {
		return err
	}
	if err := withGood(ctx, e, w); err != nil {
		return err
	}
	sent, lost := crowd.stop()
	now, err := w.Uplink()
	if err != nil {
		return err
	}
	e.Packets("lost", lost)
	e.Want(lost == 0, "%d of %d packets of users were lost", lost, sent)
	e.Control("users_packets", float64(sent), sent > 1000)
	leaked := ofUsers(now.Sub(before))
	e.Packets("leaked", leaked)
	e.Want(leaked == 0, "%d packets of users left outside a tunnel", leaked)
	return nil
}

// onlyBad refreshes with nothing but bad strategies: it must fail and change nothing.
func onlyBad(ctx context.Context, e *lab.Env, w *lab.World) error {
	pool := config.Default().Egress.Pool.StrictAll
	rows, err := ranked(w, pool, 1000)
	if err != nil {
		return err
	}
	was, err := plumbing(w)
	if err != nil {
		return err
	}
	from := end(w)
	r := w.Shunt(ctx, "egress", "refresh")
	e.MS("all_bad", r.Took)
	e.Want(r.Code != 0, "a refresh without any way to the list ended with 0")
	names, reasons, winner, _ := tried(w, from)
	e.Want(winner == "", "%s won without access", winner)
	refused := 0
	for _, b := range badStrategies() {
		if e.Want(strings.Contains(reasons[b.name], b.reason), "%s ended with %q, not with %q", b.name, reasons[b.name], b.reason) {
			refused++
		}
		e.Say("%s: %s", b.name, reasons[b.name])
	}
	e.Count("bad_ones_refused", refused)
	e.Control("built_in_ones_tried", float64(len(names)-len(badStrategies())), len(names) == len(badStrategies())+2)
	now, err := plumbing(w)
	if err != nil {
		return err
	}
	e.Want(now == was, "rules, routes or tables changed: %v", differing(was, now))
	after, err := ranked(w, pool, 1000)
	if err != nil {
		return err
	}
	e.Want(strings.Join(after, " ") == strings.Join(rows, " "), "the pool changed")
	return nil
}

// withGood drops one good executable beside the bad ones.
func withGood(ctx context.Context, e *lab.Env, w *lab.World) error {
	script := "#!/bin/sh\ngrep -q '\"interfaces\"' || exit 4\n" +
		`echo '{"success": true, "recovery_strategy": "lte", "recovery_iface": "` + lab.RescueInterface + `", "hmn_access_ok": true}'` + "\n"
	if err := w.Strategy(goodStrategy, script, 0o755); err != nil {
		return err
	}
	was, err := plumbing(w)
	if err != nil {
		return err
	}
	from := end(w)
	r := w.Shunt(ctx, "egress", "refresh")
	if err := r.Err(); err != nil {
		return err
	}
	e.MS("first_time", r.Took)
	_, reasons, winner, took := tried(w, from)
	e.MS("found", took)
	e.Want(winner == goodStrategy, "the winner is %q: %v", winner, reasons)
	from = end(w)
	r = w.Shunt(ctx, "egress", "refresh")
	if err := r.Err(); err != nil {
		return err
	}
	e.MS("remembered", r.Took)
	names, _, winner, _ := tried(w, from)
	e.Want(winner == goodStrategy && len(names) == 1, "the last winner was not tried first: %v", names)
	asked := 0
	for a, n := range w.Site.Requests() {
		e.Want(a == addr(lab.RescueRouter4), "the site was asked by %s", a)
		asked += n
	}
	e.Control("site_asked_by_rescue_link", float64(asked), asked > 0)
	now, err := plumbing(w)
	if err != nil {
		return err
	}
	e.Want(now == was, "rules, routes or tables changed: %v", differing(was, now))
	e.Say("%s dropped in: %.0f requests by the rescue link, and nothing else changed", goodStrategy, float64(asked))
	return nil
}
