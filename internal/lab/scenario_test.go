package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shunt-net/shunt/internal/lab"
)

// product stands for the product's commands in the tests of how they are run.
func product(args []string) int {
	switch args[0] {
	case "say":
		fmt.Fprintln(os.Stdout, strings.Join(args[1:], " "), os.Getenv("SHUNT_CONFIG") != "", os.Getenv("EXTRA"))
		fmt.Fprintln(os.Stderr, "aside")
		return 4
	case "eat": // 64 MiB
		b := make([]byte, 64<<20)
		for i := range b {
			b[i] = 1
		}
		<-time.After(50 * time.Millisecond)
		return int(b[len(b)-1]) - 1
	case "where":
		name, _ := os.ReadFile("/sys/class/net/wan0/ifindex")
		fmt.Fprintf(os.Stdout, `{"index": %s}`, name)
	case "hang":
		<-time.After(time.Minute)
	}
	return 0
}

// scenarios are those of the tests, which run in the child.
func scenarios() []lab.Scenario {
	return []lab.Scenario{
		{Name: "good", Summary: "figures and controls", Flags: []lab.Flag{{Name: "times", Value: "3", Usage: "samples"}}, Run: func(_ context.Context, e *lab.Env) error {
			for i := range e.Int("times") {
				e.MS("silence", time.Duration(i+1)*time.Millisecond)
			}
			e.Packets("lost", 0)
			e.Control("seen", 2, true)
			e.Say("told %d", 1)
			return nil
		}},
		{Name: "control", Run: func(_ context.Context, e *lab.Env) error {
			e.Packets("lost", 0)
			e.Control("seen", 0, false)
			return nil
		}},
		{Name: "bound", Run: func(_ context.Context, e *lab.Env) error {
			e.Want(1 > 2, "silence %d ms, at most %d", 90, 80)
			return nil
		}},
		{Name: "error", Run: func(context.Context, *lab.Env) error { return errors.New("nothing worked") }},
		{Name: "panic", Run: func(context.Context, *lab.Env) error { panic("oh") }},
		{Name: "killed", Run: func(context.Context, *lab.Env) error { return syscall.Kill(os.Getpid(), syscall.SIGKILL) }},
		{Name: "product", Run: productScenario},
		{Name: "killed with a world", Run: func(ctx context.Context, e *lab.Env) error {
			w, err := e.World(ctx, lab.WorldOptions{BinaryArg: []string{"test-lane"}, LaneCommand: func(name string) []string { return []string{strings.Replace(name, "egress", "vpn", 1), ""} }})
			if err != nil {
				return err
			}
			if _, err := w.StartLanes(ctx); err != nil {
				return err
			}
			e.Say("five lanes are up")
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}},
		{Name: "wait", Run: func(ctx context.Context, e *lab.Env) error {
			if _, err := e.World(ctx, lab.WorldOptions{}); err != nil {
				return err
			}
			e.Say("waiting")
			<-ctx.Done()
			e.Say("asked to end")
			return ctx.Err()
		}},
	}
}

// productScenario runs commands in a world's router and says what is not as it should be.
func productScenario(ctx context.Context, e *lab.Env) error {
	w, err := e.World(ctx, lab.WorldOptions{BinaryArg: []string{"test-product"}, Endpoints: 2, Settings: lab.Settings{"egress.repair.threshold": 3}})
	if err != nil {
		return err
	}
	r := w.Run(ctx, lab.Call{Args: []string{"say", "a b"}, Env: []string{"EXTRA=more"}})
	e.Want(r.Code == 4 && string(r.Stdout) == "a b true more\n" && string(r.Stderr) == "aside\n" && r.Took > 0, "say: %+v", r)
	e.Want(r.Err() != nil && strings.Contains(r.Err().Error(), "aside"), "error %v", r.Err())
	small := w.Run(ctx, lab.Call{Args: []string{"hang"}, Kill: 100 * time.Millisecond})
	e.Want(small.Code == 128+9 && small.Took < 30*time.Second, "hang: %+v", small)
	r = w.Shunt(ctx, "eat")
	e.Want(r.Err() == nil && small.PeakRSS > 0 && r.PeakRSS-small.PeakRSS > 60<<20, "eat: peak %d beside %d, %v", r.PeakRSS, small.PeakRSS, r.Err())
	var at struct{ Index int }
	e.Want(w.Shunt(ctx, "where").JSON(&at) == nil && at.Index > 0, "where: %+v", at)

	l := w.Every(ctx, 10*time.Millisecond, nil, "say", "x")
	for len(l.Results()) < 3 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	e.Want(len(l.Stop()) >= 3, "loop: %d", len(l.Results()))

	p, err := w.Start("hang", "hang")
	if err != nil {
		return err
	}
	p.Kill()
	e.Want(p.Stop() == 128+9, "stop")
	_, err = w.Start("hang", "hang") // left running: the world's end ends it
	if err != nil {
		return err
	}
	conf, err := os.ReadFile(w.Config)
	e.Want(err == nil && strings.Contains(string(conf), "threshold: 3") && strings.Contains(string(conf), "interface: vpn5"), "config %s", conf)
	if err := w.Configure(lab.Settings{"egress.repair.threshold": 4, "egress.check.tls": nil, "egress.test.tls": nil}); err != nil {
		return err
	}
	conf, err = os.ReadFile(w.Config)
	e.Want(err == nil && strings.Contains(string(conf), "threshold: 4") && !strings.Contains(string(conf), "tls"), "config %s", conf)
	if err := w.Offer(w.Endpoints()[1:]); err != nil {
		return err
	}
	files, _ := filepath.Glob(w.Sources + "/*")
	e.Want(len(files) == 1 && files[0] == w.Profile(w.Endpoints()[1]), "files %q", files)
	return nil
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes namespaces")
	}
}

func request(t *testing.T, name string, story *bytes.Buffer) lab.Request {
	t.Helper()
	return lab.Request{Scenario: name, Story: story, Temp: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")}}
}

func TestReports(t *testing.T) {
	needRoot(t)
	for _, c := range []struct {
		name  string
		runs  int
		flags map[string]string
		want  string
	}{
		{"good", 2, map[string]string{"times": "4"}, `{"scenario": "good", "ok": true, "runs": 2, "figures": {
			"silence": {"unit": "ms", "median": 2.5, "p99": 4, "max": 4}, "lost": {"unit": "packets", "median": 0, "p99": 0, "max": 0}},
			"controls": {"seen": {"value": 2, "ok": true}}}`},
		{"control", 1, nil, `{"scenario": "control", "ok": false, "runs": 1, "figures": {"lost": {"unit": "packets", "median": 0, "p99": 0, "max": 0}},
			"controls": {"seen": {"value": 0, "ok": false}}, "problems": ["control seen is missing (0)"]}`},
		{"bound", 2, nil, `{"scenario": "bound", "ok": false, "runs": 2, "figures": {}, "problems": ["run 1: silence 90 ms, at most 80", "run 2: silence 90 ms, at most 80"]}`},
		{"error", 1, nil, `{"scenario": "error", "ok": false, "runs": 1, "figures": {}, "problems": ["nothing worked"]}`},
		{"killed", 1, nil, `{"scenario": "killed", "ok": false, "runs": 1, "figures": {}, "problems": ["the run ended with exit code 137 and no result"]}`},
		{"product", 1, nil, `{"scenario": "product", "ok": true, "runs": 1, "figures": {}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var story, out bytes.Buffer
			r := request(t, c.name, &story)
			r.Runs, r.Flags = c.runs, c.flags
			rep, err := lab.Run(t.Context(), scenarios(), r)
			if err != nil {
				t.Fatal(err)
			}
			if err := rep.JSON(&out); err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := errors.Join(json.Unmarshal(out.Bytes(), &got), json.Unmarshal([]byte(c.want), &want)); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got)\n%s\n%s", d, story.String())
			}
			if left, _ := filepath.Glob(r.Temp + "/*"); len(left) > 0 {
				t.Errorf("left %q", left)
			}
		})
	}
}

func TestAKilledWorldLeavesNothing(t *testing.T) {
	needRoot(t)
	links := func() string {
		all, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(all)
	}
	before := links()
	for range 2 {
		var story bytes.Buffer
		r := request(t, "killed with a world", &story)
		rep, err := lab.Run(t.Context(), scenarios(), r)
		if err != nil || rep.OK || !strings.Contains(story.String(), "five lanes are up") {
			t.Fatalf("%+v, %v, %s", rep, err, story.String())
		}
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, f := range files {
			if b, _ := os.ReadFile(f); bytes.Contains(b, []byte(r.Temp)) { // SHUNT_LAB_DIR is below it
				t.Errorf("%s is alive", f)
			}
		}
		left, _ := filepath.Glob(r.Temp + "/*")
		sockets, _ := filepath.Glob("/run/wireguard/vpn[1-5].sock")
		if len(left)+len(sockets) > 0 {
			t.Errorf("left %q %q", left, sockets)
		}
		if now := links(); now != before {
			t.Errorf("interfaces were %s, are %s", before, now)
		}
	}
}

func TestAPanicIsAProblemAndTheWorldIsTakenDown(t *testing.T) {
	needRoot(t)
	var story bytes.Buffer
	rep, err := lab.Run(t.Context(), scenarios(), request(t, "panic", &story))
	if err != nil || rep.OK || len(rep.Problems) != 1 || !strings.HasPrefix(rep.Problems[0], "panic: oh\n") {
		t.Errorf("%+v, %v", rep, err)
	}
}

func TestUnknownNames(t *testing.T) {
	t.Parallel()
	if _, err := lab.Run(t.Context(), scenarios(), lab.Request{Scenario: "nosuch"}); !errors.Is(err, lab.ErrUnknown) {
		t.Errorf("scenario: %v", err)
	}
	if _, err := lab.Run(t.Context(), scenarios(), lab.Request{Scenario: "good", Flags: map[string]string{"time": "1"}}); !errors.Is(err, lab.ErrUnknown) {
		t.Errorf("flag: %v", err)
	}
}

func TestARunEndsInOrderWhenAskedTo(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var story bytes.Buffer
	r := request(t, "wait", &story)
	r.Story = writer(func(b []byte) {
		story.Write(b)
		if bytes.Contains(b, []byte("waiting")) {
			cancel()
		}
	})
	_, err := lab.Run(ctx, scenarios(), r)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(story.String(), "asked to end") {
		t.Errorf("the scenario was not asked: %s", story.String())
	}
	if left, _ := filepath.Glob(r.Temp + "/*"); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

func TestTheShellIsInTheRouter(t *testing.T) {
	needRoot(t)
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	fmt.Fprintln(out, "ls /sys/class/net; echo $TERM; type -t shunt; in-lan ip -br addr show dev eth0 | head -1; exit 3")
	out.Close()
	var got, story bytes.Buffer
	r := request(t, "", &story)
	r.Env = append(r.Env, "TERM=vt100")
	r.Stdin, r.Stdout, r.Flags = in, &got, map[string]string{"start": "false"}
	code, err := lab.Shell(t.Context(), r)
	if err != nil || code != 3 {
		t.Errorf("code %d, %v\n%s", code, err, story.String())
	}
	for _, want := range []string{"lan0\n", "wan0\n", "vt100\n", "file\n", "10.20.0.2/24"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("no %q in %q", want, got.String())
		}
	}
}
