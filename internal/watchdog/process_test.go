package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
)

// job is what a watchdog of its own process does.
type job struct {
	Dir    string
	Config edge.Config
	For    time.Duration
}

// watchAs is the main function of such a process. It writes each event on a line.
func watchAs(text string) error {
	started := time.Now()
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	o, end, err := options(j.Dir, j.Config)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	o.Started, o.For = started, j.For
	o.Told = func(ev Event) {
		mu.Lock()
		defer mu.Unlock()
		line := said{Kind: ev.Kind, At: ev.At, Object: ev.Object, Text: ev.Text, Took: ev.Took}
		if ev.Result != nil {
			line.Moves = ev.Result.Moves
			for _, s := range ev.Result.Plan.Steps {
				line.Steps = append(line.Steps, string(s.Kind)+" "+s.Candidate)
			}
		}
		_ = out.Encode(line)
	}
	_, err = Run(context.Background(), o)
	return errors.Join(err, end())
}

// said is an event of another process.
type said struct {
	Kind   EventKind
	At     time.Time
	Object string
	Text   string
	Took   time.Duration
	Moves  []edge.Move
	Steps  []string
}

// process is a watchdog of its own process.
type process struct {
	*exec.Cmd
	t     *testing.T
	lines chan said
}

func (w world) process(t *testing.T, j job) *process {
	t.Helper()
	text, err := json.Marshal(j)
	must(t, err)
	cmd := exec.Command("/proc/self/exe", asWatchdog, string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	p := &process{cmd, t, make(chan said, 10_000)}
	go func() {
		defer close(p.lines)
		in := json.NewDecoder(out)
		for {
			var s said
			if in.Decode(&s) != nil {
				return
			}
			p.lines <- s
		}
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) kill() {
	if p.ProcessState == nil {
		_ = p.Process.Signal(syscall.SIGCONT)
		_ = p.Process.Kill()
		for range p.lines {
		}
		_ = p.Wait()
	}
}

func (p *process) await(what string, is func(said) bool) said {
	p.t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case s, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("the watchdog ended before: %s", what)
			}
			if is(s) {
				return s
			}
		case <-limit:
			p.t.Fatalf("not within 20 s: %s", what)
		}
	}
}
