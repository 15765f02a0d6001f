package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/shunt-net/shunt/internal/lab/cage"
)

// Request says what to run.
type Request struct {
	Scenario string
	Runs     int               // 0 = 1; each has a cage of its own
	Flags    map[string]string // by name; the others have their defaults
	Story    io.Writer         // where the story and what goes wrong is told; nil = nowhere
	Env      []string          // environment of the cage; a shell needs TERM
	Temp     string            // folder in which work folders are made; "" = the system's
	Keep     string            // folder that gets a copy of each work folder; "" = none
	Stdin    *os.File          // of a shell
	Stdout   io.Writer         // of a shell
}

// job is what a child is told, as JSON in its arguments.
type job struct {
	Scenario string            `json:"scenario,omitempty"`
	Flags    map[string]string `json:"flags,omitempty"`
	Keep     string            `json:"keep,omitempty"`
}

// ErrUnknown says that there is no scenario, or no flag, of a name.
var ErrUnknown = errors.New("unknown")

// Run plays a scenario, each run in a cage of its own, and reports. The error is not nil
// only where the lab itself failed; a scenario that did not hold is a report that is not ok.
// When ctx ends, the present run is ended and cleaned up after, and the error is ctx's.
func Run(ctx context.Context, all []Scenario, r Request) (Report, error) {
	s, err := find(all, r.Scenario)
	if err != nil {
		return Report{}, err
	}
	flags, err := s.flags(r.Flags)
	if err != nil {
		return Report{}, err
	}
	var runs []outcome
	for range max(1, r.Runs) {
		o, err := r.once(ctx, s, job{Scenario: s.Name, Flags: flags, Keep: r.Keep})
		if err != nil {
			return merge(s.Name, runs), fmt.Errorf("lab: %s: %w", s.Name, err)
		}
		runs = append(runs, o)
	}
	return merge(s.Name, runs), nil
}

func find(all []Scenario, name string) (Scenario, error) {
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return Scenario{}, fmt.Errorf("lab: scenario %q: %w", name, ErrUnknown)
}

// flags are the scenario's flags with what was given.
func (s Scenario) flags(given map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for _, f := range s.Flags {
		out[f.Name] = f.Value
	}
	for k, v := range given {
		if _, ok := out[k]; !ok {
			return nil, fmt.Errorf("lab: scenario %s: flag --%s: %w", s.Name, k, ErrUnknown)
		}
		out[k] = v
	}
	return out, nil
}

// once does one run in a cage.
func (r Request) once(ctx context.Context, s Scenario, j job) (outcome, error) {
	arg, err := json.Marshal(j)
	if err != nil {
		return outcome{}, err
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return outcome{}, err
	}
	defer pr.Close()
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(pr)
		got <- b
	}()
	o := cage.Options{
		Command: []string{"/proc/self/exe", cage.Arg, "run", "{dir}", string(arg)},
		Env:     r.Env, Temp: r.Temp, Stdout: r.Story, Stderr: r.Story, Files: []*os.File{pw},
	}
	if s.Outside {
		end, err := letOut(&o)
		if err != nil {
			return outcome{}, err
		}
		defer end()
	}
	code, err := cage.Enter(ctx, o)
	_ = pw.Close()
	b := <-got
	if err != nil {
		return outcome{}, err
	}
	if ctx.Err() != nil {
		return outcome{}, context.Cause(ctx)
	}
	var out outcome
	if err := json.Unmarshal(b, &out); err != nil {
		return outcome{Problems: []string{fmt.Sprintf("the run ended with exit code %d and no result", code)}}, nil
	}
	return out, nil
}

// Shell builds a world and opens a shell in its router. It returns the shell's exit code.
func Shell(ctx context.Context, r Request) (int, error) {
	arg, err := json.Marshal(job{Flags: r.Flags})
	if err != nil {
		return 0, err
	}
	return cage.Enter(ctx, cage.Options{
		Command: []string{"/proc/self/exe", cage.Arg, "shell", "{dir}", string(arg)},
		Env:     r.Env, Temp: r.Temp, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Story,
	})
}

// Child is what a program does whose first argument is cage.Arg: args are those after it.
// It returns the exit code.
func Child(args []string, all []Scenario) int {
	if len(args) == 0 || args[0] == "init" {
		return cage.Init(args)
	}
	fail := func(err error) int {
		fmt.Fprintf(os.Stderr, "shunt: error: %v\n", err)
		return 1
	}
	if len(args) != 3 {
		return fail(errors.New("lab-child is started by the lab only"))
	}
	var j job
	if err := json.Unmarshal([]byte(args[2]), &j); err != nil {
		return fail(fmt.Errorf("lab-child: %w", err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch args[0] {
	case "run":
		if err := child(ctx, args[1], j, all); err != nil {
			return fail(err)
		}
		return 0
	case "shell":
		code, err := shell(ctx, args[1], j)
		if err != nil {
			return fail(err)
		}
		return code
	}
	return fail(fmt.Errorf("lab-child: %q: %w", args[0], ErrUnknown))
}

// labNice is the nice value of a scenario and all that it starts.
const labNice = -10

// child plays a scenario once and writes the outcome to descriptor 3.
func child(ctx context.Context, dir string, j job, all []Scenario) error {
	s, err := find(all, j.Scenario)
	if err != nil {
		return err
	}
	out := os.NewFile(3, "outcome")
	if out == nil {
		return errors.New("lab-child: descriptor 3 is closed")
	}
	syscall.CloseOnExec(3)
	defer out.Close()
	// What else the machine does should not be measured; without the right to, it is.
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, labNice)
	e := &Env{Dir: dir, flags: j.Flags, say: os.Stderr, began: time.Now()}
	if s.Outside {
		e.out = newOutside(os.NewFile(4, "outside"))
	}
	if err := e.play(ctx, s); err != nil {
		e.Problem("%v", err)
	}
	if err := e.close(); err != nil {
		e.Problem("taking the world down: %v", err)
	}
	if j.Keep != "" {
		if err := keep(dir, filepath.Join(j.Keep, filepath.Base(dir))); err != nil {
			e.Problem("keeping %s: %v", dir, err)
		}
	}
	return json.NewEncoder(out).Encode(e.outcome())
}

// play runs a scenario; a panic is an error like another, so that the rest is still done.
func (e *Env) play(ctx context.Context, s Scenario) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return s.Run(ctx, e)
}

// keep copies the files of a work folder.
func keep(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // the user's folder
		return err
	}
	return exec.Command("cp", "-a", from, to).Run() //nolint:gosec,noctx // fixed words, local files
}
