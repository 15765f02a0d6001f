package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// build makes the binary with everything that is linked into it.
func build(tb testing.TB) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("builds the program")
	}
	bin := filepath.Join(tb.TempDir(), "shunt")
	out, err := exec.CommandContext(tb.Context(), "go", "build", "-o", bin, ".").CombinedOutput()
	if err != nil {
		tb.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

func help(tb testing.TB, bin string) {
	tb.Helper()
	if out, err := exec.CommandContext(tb.Context(), bin, "--help").CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
}

// A package with a heavy init slows every run of every timer. The goal is 25 ms; the
// bound leaves room for a busy machine, and the best of many runs counts.
func TestStartUp(t *testing.T) {
	const bound = 60 * time.Millisecond
	bin := build(t)
	best := time.Hour
	for range 20 {
		begun := time.Now()
		help(t, bin)
		best = min(best, time.Since(begun))
	}
	t.Logf("shunt --help: %v", best)
	if best > bound {
		t.Errorf("shunt --help takes %v, want %v at most: GODEBUG=inittrace=1 names the package", best, bound)
	}
}

func BenchmarkStartUp(b *testing.B) {
	bin := build(b)
	for b.Loop() {
		help(b, bin)
	}
}
