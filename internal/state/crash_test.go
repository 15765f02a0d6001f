package state

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/run"
)

// mortal is a context under which the process kills itself at the KILL_AT-th point.
func mortal() context.Context {
	left, err := strconv.Atoi(os.Getenv("KILL_AT"))
	if err != nil {
		return context.Background()
	}
	return run.WithPoints(context.Background(), func(string) {
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
	})
}

// step is one write of a pass. ack is printed when it has returned: from then on it must
// never be lost.
type step struct {
	ack string
	do  func(context.Context, *Dir) error
}

func scenario() []step {
	appendRow := func(q Quarantined) func(context.Context, *Dir) error {
		return func(ctx context.Context, d *Dir) error { return d.AppendQuarantine(ctx, q) }
	}
	b := quarantinedB()
	return []step{
		{"row A", appendRow(quarantinedA())},
		{"row B", appendRow(b)},
		{"replacement", func(ctx context.Context, d *Dir) error {
			return d.FillReplacement(ctx, b.Endpoint, b.FailedAt, "192.0.2.200:1")
		}},
		{"count", func(ctx context.Context, d *Dir) error { _, err := d.AddCount(ctx, day, 3); return err }},
		{"mode", func(ctx context.Context, d *Dir) error {
			return d.UpdateKV(ctx, func(kv *KV) { kv.SetMode(ModeSlotRepair, "vpn2", at(7)) })
		}},
		{"mode again", func(ctx context.Context, d *Dir) error {
			return d.UpdateKV(ctx, func(kv *KV) { kv.SetMode(ModeNormal, "done", at(8)) })
		}},
		{"sequence", func(ctx context.Context, d *Dir) error { _, err := d.NextSeq(ctx); return err }},
		{"json", func(ctx context.Context, d *Dir) error {
			var v map[string]int
			return d.UpdateJSON(ctx, "egress.json", &v, func() error { v = map[string]int{"misses": 2}; return nil })
		}},
	}
}

func helpScenario(dir string) error {
	d, err := Open(dir)
	if err != nil {
		return err
	}
	ctx := mortal()
	for _, s := range scenario() {
		if err := s.do(ctx, d); err != nil {
			return err
		}
		fmt.Println(s.ack)
	}
	return nil
}

// checkAcked reads everything and checks that each acknowledged step is there.
func checkAcked(t *testing.T, d *Dir, acked []string) {
	t.Helper()
	rows, errRows := d.Quarantine()
	kv, errKV := d.KV()
	n, errN := d.Count(day)
	var v map[string]int
	errJSON := d.ReadJSON("egress.json", &v)
	for _, err := range []error{errRows, errKV, errN, errJSON} {
		must(t, err)
	}
	have := func(q Quarantined) bool {
		return slices.ContainsFunc(rows, func(r Quarantined) bool { return r.key() == q.key() })
	}
	filled := slices.ContainsFunc(rows, func(r Quarantined) bool { return r.Replacement == "192.0.2.200:1" })
	seq, _, damage := d.number("sequence")
	if len(damage) > 0 {
		t.Fatal(damage)
	}
	for ack, ok := range map[string]bool{
		"row A": have(quarantinedA()), "row B": have(quarantinedB()), "replacement": filled, "count": n == 3,
		"mode": kv.Mode() != ModeUnknown, "mode again": kv.Mode() == ModeNormal, "sequence": seq == 1, "json": v["misses"] == 2,
	} {
		if slices.Contains(acked, ack) && !ok {
			t.Errorf("%s was acknowledged and is lost", ack)
		}
	}
}

func TestKilledAtEachPointNothingAcknowledgedIsLost(t *testing.T) {
	points := 0
	for n := 1; ; n++ {
		dir := t.TempDir()
		c := startHelper(t, "scenario", dir, []string{"KILL_AT=" + strconv.Itoa(n)}, nil)
		acked, killed := c.rest(t)
		d := open(t, dir)
		checkAcked(t, d, acked)

		// The next run goes on, and what the killed one left behind goes away.
		for _, s := range scenario()[:3] {
			must(t, s.do(t.Context(), d))
		}
		if _, err := d.NextSeq(t.Context()); err != nil {
			t.Errorf("killed at %d: %v", n, err)
		}
		rows, err := d.Quarantine()
		must(t, err)
		b := quarantinedB()
		b.Replacement = "192.0.2.200:1"
		if diff := cmp.Diff([]Quarantined{quarantinedA(), b}, rows); diff != "" {
			t.Errorf("killed at %d, then run again (-want +got):\n%s", n, diff)
		}
		if !killed {
			break
		}
		points++
	}
	if points < 8*2*3 { // eight writes, each with its copy, three points each
		t.Errorf("only %d points", points)
	}
	t.Logf("%d points", points)
}

func TestKilledWhileHealingLosesNoRow(t *testing.T) {
	original := header + rowA + rowB
	for name, damaged := range map[string]string{
		"CRLF":           strings.ReplaceAll(original, "\n", "\r\n"),
		"truncated":      original[:len(original)-30],
		"NUL":            header + rowA + "\x00\x00\x00",
		"nothing at all": "",
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				dir := t.TempDir()
				d := open(t, dir)
				write(t, d.Path("last-good", "quarantine.tsv"), original)
				write(t, d.Path("quarantine.tsv"), damaged)
				c := startHelper(t, "loop", dir, []string{"KILL_AT=" + strconv.Itoa(n), "ROUNDS=1"}, nil)
				_, killed := c.rest(t)
				rows, _ := d.QuarantineUnion()
				for _, q := range []Quarantined{quarantinedA(), quarantinedB()} {
					if !slices.ContainsFunc(rows, func(r Quarantined) bool { return r.key() == q.key() }) {
						t.Errorf("killed at %d: %s is lost", n, q.Endpoint)
					}
				}
				must(t, d.AppendQuarantine(t.Context(), quarantinedC()))
				rows, err := d.Quarantine()
				must(t, err)
				if len(rows) < 3 {
					t.Errorf("killed at %d: %d rows after the next run", n, len(rows))
				}
				wantAside(t, d.Path("quarantine.tsv"), damaged)
				if !killed {
					return
				}
			}
		})
	}
}

// helpLoop appends rows, each an endpoint of its own, and says each when it is kept.
func helpLoop(dir string) error {
	d, err := Open(dir)
	if err != nil {
		return err
	}
	rounds, err := strconv.Atoi(os.Getenv("ROUNDS"))
	if err != nil {
		return err
	}
	first, _ := strconv.Atoi(os.Getenv("FIRST"))
	ctx := mortal()
	for i := range rounds {
		q := quarantinedC()
		q.Endpoint = fmt.Sprintf("10.0.%d.%d:%d", (first+i)/250, (first+i)%250+1, os.Getpid()%60000+1)
		if err := d.AppendQuarantine(ctx, q); err != nil {
			return err
		}
		if err := d.UpdateKV(ctx, func(kv *KV) { kv.Set(KeyReason, q.Endpoint) }); err != nil {
			return err
		}
		fmt.Println(q.Endpoint)
	}
	return nil
}

func TestKilledAtRandomInstantsNothingAcknowledgedIsLost(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var acked []string
	kills := 0
	for round := range 40 {
		c := startHelper(t, "loop", dir, []string{"ROUNDS=100000", "FIRST=" + strconv.Itoa(round*300)}, nil)
		if round%4 > 0 { // else it may die before its first row, or while it opens the folder
			first, _ := c.line()
			acked = append(acked, first)
		}
		timer := time.AfterFunc(time.Duration(rng.IntN(30000))*time.Microsecond, func() { _ = c.Process.Kill() })
		lines, killed := c.rest(t)
		timer.Stop()
		if killed {
			kills++
		}
		acked = append(acked, lines...)
		rows, err := d.Quarantine()
		must(t, err)
		_, err = d.KV()
		must(t, err)
		have := map[string]bool{}
		for _, q := range rows {
			have[q.Endpoint] = true
		}
		for _, a := range acked {
			if !have[a] {
				t.Fatalf("round %d: %s was acknowledged and is lost", round, a)
			}
		}
	}
	if kills == 0 || len(acked) == 0 {
		t.Errorf("%d kills, %d acknowledged: the test shows nothing", kills, len(acked))
	}
	t.Logf("%d kills, %d rows acknowledged", kills, len(acked))
	must(t, d.AppendQuarantine(t.Context(), quarantinedA()))
	must(t, d.UpdateKV(t.Context(), func(kv *KV) { kv.Set("last", "round") }))
	noStrays(t, dir)
}

// helpStranger is someone without rights: it prints what each call says.
func helpStranger(dir string) error {
	d := &Dir{path: dir}
	ctx := context.Background()
	_, errOpen := Open(os.Getenv("LOCKED"))
	_, errRows := d.Quarantine()
	rows, damage := d.QuarantineUnion()
	_, errKV := d.KV()
	_, errCount := d.Count(day)
	_, errSeq := d.NextSeq(ctx)
	var v map[string]int
	_, _, errPool := ReadPool(dir + "/pool.tsv")
	for _, err := range []error{
		errOpen, errRows, errKV, errCount, errSeq, d.ReadJSON("egress.json", &v), errPool,
		d.AppendQuarantine(ctx, quarantinedC()),
		d.UpdateKV(ctx, func(kv *KV) { kv.Set(KeyReason, "stranger") }),
		d.UpdateJSON(ctx, "egress.json", &v, func() error { return nil }),
	} {
		hint := ""
		if e, ok := asDamage(err); ok && e.Hint != "" && e.Line == 0 {
			hint = " (hint)"
		}
		fmt.Printf("%v%s\n", err, hint)
	}
	fmt.Println(len(rows), "rows,", len(damage), "complaints")
	return nil
}
