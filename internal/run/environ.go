package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// environment is what a command sees: a fixed search path and an English C locale, so that
// its words do not depend on who called us, and what the caller adds.
func environment(extra []string) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
	}
	for _, e := range extra {
		name, _, _ := strings.Cut(e, "=")
		env = dropName(env, name)
		env = append(env, e)
	}
	return env
}

func dropName(env []string, name string) []string {
	kept := env[:0]
	for _, e := range env {
		if n, _, _ := strings.Cut(e, "="); n != name {
			kept = append(kept, e)
		}
	}
	return kept
}

// lookPath finds a command in the PATH that it will see itself. exec.LookPath would search
// ours, which under cron and systemd differ.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, e := range env {
		list, ok := strings.CutPrefix(e, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if !filepath.IsAbs(dir) {
				continue
			}
			p := filepath.Join(dir, name)
			if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
				return p, nil
			}
		}
		return "", fmt.Errorf("%w (PATH=%s)", exec.ErrNotFound, list)
	}
	return "", exec.ErrNotFound
}
