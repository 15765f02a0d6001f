package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ShellFlags are the flags of a shell's world.
func ShellFlags() []Flag {
	return []Flag{
		{"lanes", "5", "number of lanes"},
		{"endpoints", "12", "number of endpoints"},
		{"dead", "0", "how many of them are silent"},
		{"rtt", "10ms", "round trip of the first endpoint; each further one has 1 ms more"},
		{"start", "true", "start the services of the lanes"},
	}
}

// shell builds a world and runs an interactive shell in its router.
func shell(ctx context.Context, dir string, j job) (int, error) {
	flags, err := Scenario{Name: "shell", Flags: ShellFlags()}.flags(j.Flags)
	if err != nil {
		return 0, err
	}
	o := WorldOptions{Dir: dir, IPv6: true, RTTStep: time.Millisecond}
	for name, to := range map[string]*int{"lanes": &o.Lanes, "endpoints": &o.Endpoints, "dead": &o.Dead} {
		if *to, err = strconv.Atoi(flags[name]); err != nil {
			return 0, fmt.Errorf("lab: shell: --%s %q is no number", name, flags[name])
		}
	}
	if o.RTT, err = time.ParseDuration(flags["rtt"]); err != nil {
		return 0, fmt.Errorf("lab: shell: --rtt %q is no duration", flags["rtt"])
	}
	w, err := Build(ctx, o)
	if err != nil {
		return 0, err
	}
	defer w.Close()
	if flags["start"] == "true" {
		if _, err := w.StartLanes(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "shunt: error: %v\n", err)
		}
	}
	return w.Shell(ctx)
}

// Shell opens an interactive shell in the router, on the terminal of this process, and
// returns its exit code.
func (w *World) Shell(ctx context.Context) (int, error) {
	rc, err := w.shellFiles()
	if err != nil {
		return 0, fmt.Errorf("lab: shell: %w", err)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		return 0, fmt.Errorf("lab: shell: %w", err)
	}
	cmd := exec.CommandContext(ctx, bash, "--rcfile", rc, "-i") //nolint:gosec // found by its name
	cmd.Env, cmd.Dir = append(w.Environ(), "TERM="+term()), w.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Kill() }
	if err := w.Router.Start(cmd); err != nil {
		return 0, fmt.Errorf("lab: shell: %w", err)
	}
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		return 0, fmt.Errorf("lab: shell: %w", err)
	}
	return exitCode(cmd.ProcessState), nil
}

// term is the terminal's type, which reached this process by Request.Env.
func term() string {
	for _, kv := range os.Environ() {
		if v, ok := strings.CutPrefix(kv, "TERM="); ok {
			return v
		}
	}
	return "dumb"
}

// shellFiles makes bin/shunt and the shell's rc file, and returns the latter.
func (w *World) shellFiles() (string, error) {
	exe, err := filepath.EvalSymlinks(w.o.Binary)
	if err != nil {
		return "", err
	}
	link := filepath.Join(w.Dir, "bin", "shunt")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := os.Symlink(exe, link); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "PS1='[lab router %d lanes, %d endpoints] \\w\\$ '\n", len(w.Lanes), len(w.Endpoints()))
	b.WriteString("unset HISTFILE\n")
	for _, ns := range []string{"lan", "isp", "provider"} {
		fmt.Fprintf(&b, "in-%[1]s() { ip netns exec %[1]s \"$@\"; }\n", ns)
	}
	fmt.Fprintf(&b, "cat <<'END'\nThis is the router of a lab world; it ends with this shell.\n")
	fmt.Fprintf(&b, "  shunt …                       the product; its configuration is %s\n", w.Config)
	fmt.Fprintf(&b, "  in-lan | in-isp | in-provider COMMAND\n")
	fmt.Fprintf(&b, "  users  %s … (class by lane:", User4(0))
	for _, l := range w.Lanes {
		fmt.Fprintf(&b, " %s=%s", l.Name, l.DSCP)
	}
	fmt.Fprintf(&b, ")\n  services  %s, %s: ping, UDP and TCP echo 7, HTTP 80 (says the exit), TLS 443\nEND\n", Service4a, Service4b)
	rc := filepath.Join(w.Dir, "bashrc")
	return rc, os.WriteFile(rc, []byte(b.String()), 0o600)
}
