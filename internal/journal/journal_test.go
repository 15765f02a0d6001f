package journal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shunt-net/shunt/internal/run"
	"github.com/shunt-net/shunt/internal/state"
)

const helperVar = "JOURNAL_TEST_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperVar); dir != "" {
		if err := appendForEver(dir, os.Getenv("RUN")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// appendForEver appends numbered events, COUNT of them, and prints each number once it is kept.
func appendForEver(dir, runID string) error {
	d, err := state.Open(dir)
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(os.Getenv("COUNT"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	if os.Getenv("KILL") != "" {
		ctx = run.WithPoints(ctx, func(name string) {
			if name == "journal.appended" {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		})
	}
	for i := range count {
		if err := Append(ctx, d, Event{Time: at(1), Kind: "count", Run: runID, Seq: uint64(i + 1)}); err != nil {
			return err
		}
		fmt.Println(runID, i+1)
	}
	return nil
}

func helper(t *testing.T, dir, runID string, env ...string) (cmd *exec.Cmd, out *bufio.Scanner) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append([]string{helperVar + "=" + dir, "RUN=" + runID}, env...)
	pipe, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return cmd, bufio.NewScanner(pipe)
}

func at(sec int64) time.Time { return time.Unix(sec, 0).UTC() }

func open(t *testing.T) *state.Dir {
	t.Helper()
	d, err := state.Open(t.TempDir())
	must(t, err)
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func swapEvent() Event {
	return Event{
		Time: at(1767236400), Command: "egress repair", Run: "r7", Seq: 42, Kind: "swap", Object: "vpn2",
		From: "192.0.2.1:1", To: "192.0.2.2:2", Reason: "choked",
		Figures: map[string]float64{"swap": 53.5, "lost_packets": 0}, Plan: json.RawMessage(`{"steps":["a\nb"]}`),
	}
}

func TestAppendWritesOneLineEach(t *testing.T) {
	d := open(t)
	ev := swapEvent()
	ev.Plan = json.RawMessage("{\n  \"steps\": [\"a\\nb\"]\n}")
	ev.Figures["nothing"], ev.Figures["everything"] = math.NaN(), math.Inf(1)
	var points []string
	ctx := run.WithPoints(t.Context(), func(name string) { points = append(points, name) })
	must(t, Append(ctx, d))
	must(t, Append(ctx, d, ev, Event{Time: at(5).In(time.FixedZone("MSK", 10800)), Kind: "mode", From: "normal", To: "direct_failopen", Reason: "line\nbreak"}))
	want := `{"time":"2026-01-01T03:00:00Z","command":"egress repair","run":"r7","seq":42,"kind":"swap","object":"vpn2",` +
		`"from":"192.0.2.1:1","to":"192.0.2.2:2","reason":"choked","figures":{"lost_packets":0,"swap":53.5},"plan":{"steps":["a\nb"]}}` + "\n" +
		`{"time":"1970-01-01T03:00:05+03:00","command":"","run":"","kind":"mode","from":"normal","to":"direct_failopen","reason":"line\nbreak"}` + "\n"
	got, err := os.ReadFile(d.Path(File))
	must(t, err)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	events, damage := Read(d, Filter{Kinds: []string{"swap"}})
	if diff := cmp.Diff([]Event{swapEvent()}, events); diff != "" || len(damage) > 0 {
		t.Errorf("damage %v, events (-want +got):\n%s", damage, diff)
	}
	if diff := cmp.Diff([]string{"journal.appended"}, points); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
	for name, bad := range map[string]Event{
		"no time": {Kind: "mode"}, "no kind": {Time: at(1)}, "plan that is no JSON": {Time: at(1), Kind: "plan", Plan: []byte("{")},
	} {
		if err := Append(t.Context(), d, swapEvent(), bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if again, _ := os.ReadFile(d.Path(File)); !bytes.Equal(again, got) {
		t.Error("a refused append wrote something")
	}
}

func TestTornLineSpoilsNoOther(t *testing.T) {
	d := open(t)
	must(t, Append(t.Context(), d, swapEvent()))
	whole, err := os.ReadFile(d.Path(File))
	must(t, err)
	must(t, os.WriteFile(d.Path(File), append(whole, whole[:40]...), 0o640))
	must(t, Append(t.Context(), d, swapEvent()))
	for name, readAll := range map[string]func() ([]Event, []state.DamageError){
		"Read": func() ([]Event, []state.DamageError) { return Read(d, Filter{}) },
		"Tail": func() ([]Event, []state.DamageError) { return Tail(d, 9) },
	} {
		events, damage := readAll()
		if diff := cmp.Diff([]Event{swapEvent(), swapEvent()}, events); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if len(damage) != 1 || damage[0].Line != 2 || damage[0].File != d.Path(File) || damage[0].Hint == "" {
			t.Errorf("%s: damage %+v, want line 2", name, damage)
		}
	}
}

func TestBadLinesArePassedOver(t *testing.T) {
	good := `{"time":"2026-01-01T03:00:00Z","kind":"mode"}`
	text := strings.Join([]string{
		"\xef\xbb\xbf" + good, good + "\r", "", "not json", `{"kind":"mode"}`, `{"time":"2026-01-01T03:00:00Z"}`, "[]",
		"\x00\x00\x00", `{"time":"yesterday","kind":"mode"}`, good + "x", good, `{"time":"2026-01-0`,
	}, "\n")
	events, damage := Parse("j", strings.NewReader(text), Filter{})
	var lines []int
	for _, e := range damage {
		lines = append(lines, e.Line)
	}
	if diff := cmp.Diff([]int{1, 4, 5, 6, 7, 8, 9, 10, 12}, lines); diff != "" {
		t.Errorf("lines with damage (-want +got):\n%s", diff)
	}
	if len(events) != 2 { // CR is white space to JSON
		t.Errorf("%d events, want 2", len(events))
	}
}

func TestFilter(t *testing.T) {
	ev := swapEvent()
	for name, tt := range map[string]struct {
		f    Filter
		want bool
	}{
		"nothing asked":  {Filter{}, true},
		"kind among two": {Filter{Kinds: []string{"mode", "swap"}}, true},
		"other kind":     {Filter{Kinds: []string{"mode"}}, false},
		"object":         {Filter{Object: "vpn2"}, true},
		"other object":   {Filter{Object: "vpn3"}, false},
		"run":            {Filter{Run: "r7"}, true},
		"other run":      {Filter{Run: "r8"}, false},
		"since now":      {Filter{Since: ev.Time}, true},
		"since later":    {Filter{Since: ev.Time.Add(1)}, false},
		"until now":      {Filter{Until: ev.Time}, false},
		"until later":    {Filter{Until: ev.Time.Add(1)}, true},
		"one of two":     {Filter{Object: "vpn2", Run: "r8"}, false},
	} {
		if got := tt.f.Match(ev); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestMissingAndUnreadable(t *testing.T) {
	d := open(t)
	events, damage := Read(d, Filter{})
	tail, worse := Tail(d, 5)
	if len(events)+len(damage)+len(tail)+len(worse) > 0 {
		t.Errorf("of nothing: %v %v %v %v", events, damage, tail, worse)
	}
	must(t, os.Mkdir(d.Path(File), 0o750))
	if _, damage := Read(d, Filter{}); len(damage) != 1 {
		t.Errorf("a folder: %v", damage)
	}
	if err := Append(t.Context(), d, swapEvent()); err == nil {
		t.Error("appended to a folder")
	}
	reader, err := state.OpenRead(d.Path())
	must(t, err)
	if err := Append(t.Context(), reader, swapEvent()); err == nil {
		t.Error("appended through a folder opened for reading")
	}
}

func TestTailEqualsTheEndOfRead(t *testing.T) {
	d := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		var b bytes.Buffer
		lines := rapid.IntRange(0, 20).Draw(rt, "lines")
		for i := range lines {
			size := rapid.SampledFrom([]int{0, 10, 10, 10, 3000, 70_000}).Draw(rt, "size")
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				b.WriteString("torn" + strings.Repeat("x", size))
			case 1: // an empty line
			default:
				fmt.Fprintf(&b, `{"time":"2026-01-01T03:00:00Z","kind":"count","seq":%d,"reason":"%s"}`, i+1, strings.Repeat("r", size))
			}
			if i < lines-1 || rapid.Bool().Draw(rt, "ended") {
				b.WriteByte('\n')
			}
		}
		must(t, os.WriteFile(d.Path(File), b.Bytes(), 0o640))
		all, damage := Read(d, Filter{})
		n := rapid.IntRange(0, 25).Draw(rt, "n")
		got, worse := Tail(d, n)
		if diff := cmp.Diff(all[max(0, len(all)-n):], got, cmp.Transformer("seq", func(e Event) uint64 { return e.Seq })); len(got) != min(n, len(all)) || len(got) > 0 && diff != "" {
			rt.Fatalf("%d of %d events (-want +got):\n%s", len(got), len(all), diff)
		}
		if n > len(all) && len(worse) != len(damage) {
			rt.Fatalf("%d complaints, want %d", len(worse), len(damage))
		}
		last := len(damage) - len(worse)
		for i, e := range worse {
			if e.Line != damage[last+i].Line {
				rt.Fatalf("complaint %d about line %d, want %d", i, e.Line, damage[last+i].Line)
			}
		}
	})
}

func TestTailReadsOnlyTheEnd(t *testing.T) {
	d := open(t)
	f, err := os.Create(d.Path(File))
	must(t, err)
	// A terabyte that no one has written: reading it would take minutes.
	_, err = f.WriteAt([]byte("\n"+`{"time":"2026-01-01T03:00:00Z","kind":"mode"}`+"\n"), 1<<40)
	must(t, err)
	must(t, f.Close())
	events, damage := Tail(d, 1)
	if len(events) != 1 || len(damage) > 0 {
		t.Errorf("events %v, damage %v", events, damage)
	}
}

func TestProcessesAppendTogether(t *testing.T) {
	d := open(t)
	var cmds []*exec.Cmd
	for i := range 3 {
		cmd, _ := helper(t, d.Path(), strconv.Itoa(i), "COUNT=30")
		cmds = append(cmds, cmd)
	}
	for _, cmd := range cmds {
		must(t, cmd.Wait())
	}
	events, damage := Read(d, Filter{})
	next := map[string]uint64{}
	for _, ev := range events {
		if next[ev.Run]++; ev.Seq != next[ev.Run] {
			t.Errorf("run %s: number %d, want %d", ev.Run, ev.Seq, next[ev.Run])
		}
	}
	if len(events) != 90 || len(damage) > 0 {
		t.Errorf("%d events, damage %v", len(events), damage)
	}
}

func TestKilledNothingAcknowledgedIsLost(t *testing.T) {
	d := open(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	var acked []string
	kills := 0
	for round := range 30 {
		env := []string{"COUNT=1000000"}
		if round%3 == 0 { // dies by itself, before it can say so
			env = append(env, "KILL=1")
		}
		cmd, out := helper(t, d.Path(), "r"+strconv.Itoa(round), env...)
		if out.Scan() {
			acked = append(acked, out.Text())
		}
		timer := time.AfterFunc(time.Duration(rng.IntN(20000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
		for out.Scan() {
			acked = append(acked, out.Text())
		}
		if err := cmd.Wait(); err != nil {
			kills++
		}
		timer.Stop()
	}
	events, damage := Read(d, Filter{})
	have := map[string]bool{}
	for _, ev := range events {
		have[fmt.Sprintf("%s %d", ev.Run, ev.Seq)] = true
	}
	for _, a := range acked {
		if !have[a] {
			t.Errorf("%s was acknowledged and is lost", a)
		}
	}
	if len(damage) > 0 || kills != 30 || len(acked) == 0 {
		t.Errorf("damage %v, %d kills, %d acknowledged", damage, kills, len(acked))
	}
	t.Logf("%d acknowledged, %d in the journal", len(acked), len(events))
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"", "\n", `{"time":"2026-01-01T03:00:00Z","kind":"mode"}` + "\n", `{"time":"2026-01-01T03:00:00Z","kind":"mode","figures":{"a":1e3},"plan":[1]}`,
		"x\n{}\n", "\x00\n", "\xef\xbb\xbf{}\r\n", `{"time":"2026-01-01T03:00:00+03:00","kind":"a","seq":-1}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		events, damage := Parse("j", strings.NewReader(text), Filter{})
		lines := 0
		for _, l := range strings.Split(text, "\n") {
			if l != "" {
				lines++
			}
		}
		if len(events)+len(damage) != lines {
			t.Errorf("%d events and %d complaints about %d lines", len(events), len(damage), lines)
		}
		if len(events) == 0 {
			return
		}
		b, err := encode(events)
		if err != nil {
			t.Fatalf("read but not writable: %v", err)
		}
		again, worse := Parse("j", bytes.NewReader(b), Filter{})
		if len(again) != len(events) || len(worse) > 0 {
			t.Errorf("written again: %d of %d events, %v", len(again), len(events), worse)
		}
	})
}
