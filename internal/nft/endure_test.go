package nft

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

// Services come and go a thousand times, sets in use are emptied and filled: each commit applies.
func TestAThousandTimesThereAndGone(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r := door(s)
			v := observe(t, r)
			states := []edge.Table{full(), {}, led(two4, two6, 3), led("", "", 0)}
			for n := range 1000 {
				want := states[n%len(states)]
				next, err := r.Apply(t.Context(), v, want)
				if err != nil {
					t.Fatalf("cycle %d: %v", n, err)
				}
				if next.Drift != nil || !next.Table.Equal(want) {
					t.Fatalf("cycle %d: %+v", n, next)
				}
				v = next
			}
			s.reloads(t, states[len(states)-1])
		})
	}
}

// What is read back is what was wanted each time, also by the other way.
func TestFiveHundredReplacements(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r, other := door(s), s.local()
			v := observe(t, r)
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 0))
			for n := range 500 {
				want := many(1+random.IntN(6), random.Uint64())
				for i := range want.Targets {
					want.Targets[i].To = want.Backends[i%2+len(want.Backends)/2*btoi(want.Targets[i].To.Addr().Is6())].Addr
				}
				next, err := r.Apply(t.Context(), v, want)
				if err != nil || !next.Table.Equal(want) {
					t.Fatalf("seed %d, replacement %d: %+v, %v", seed, n, next, err)
				}
				v = next
				if n%10 == 0 {
					clean(t, observe(t, other), want)
				}
			}
			s.reloads(t, v.Table)
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Large tables go in chunks, and in one transaction.
func TestLargeTables(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r := door(s)
			v := apply(t, r, edge.Table{})
			for i, want := range []edge.Table{many(1000, 1), many(1000, 2), {}} {
				before := s.generation()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				next, err := r.Apply(ctx, v, want)
				cancel()
				if err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				if n := s.generation() - before; n != 1 {
					t.Errorf("step %d: %d transactions", i, n)
				}
				clean(t, next, want)
				v = next
			}
			// A load of all of it, read by the other way.
			must(t, r.Close())
			s.nft("delete table inet shunt_edge\n")
			clean(t, apply(t, r, many(1000, 3)), many(1000, 3))
			clean(t, observe(t, s.local()), many(1000, 3))
		})
	}
}

// The child of TestKilled: it applies tables one after the other until it is killed.
const childVar = "SHUNT_NFT_TEST_CHILD"

func TestKilledChild(t *testing.T) {
	f := strings.Fields(os.Getenv(childVar))
	if len(f) != 3 {
		t.Skip("only as a child")
	}
	door, namespace, point := f[0], f[1], f[2]
	r := Local(Options{Namespace: namespace})
	if door == "remote" {
		r = Remote("core-02", []string{"nsenter", "--net=" + namespace, "nft", "-i"}, Options{})
	}
	ctx := run.WithPoints(t.Context(), func(name string) {
		if name == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	for n := uint64(1); ; n++ {
		v, err := r.Observe(ctx)
		must(t, err)
		if v, err = r.Apply(ctx, v, many(40, 2*n)); err == nil {
			_, err = r.Apply(ctx, v, many(60, 2*n+1))
		}
		must(t, err)
	}
}

// Killed in the middle of an apply, the table is the one from before or the one from after,
// and the next run makes it what it should be, with nothing left over.
func TestKilled(t *testing.T) {
	for name, door := range doors() {
		for _, point := range []string{"edge.loaded", "edge.moved", "anywhere"} {
			t.Run(name+" at "+point, func(t *testing.T) {
				times := 1
				if point == "anywhere" {
					times = 12
				}
				s := newSpace(t)
				for range times {
					killed(t, s, name, point)
					v := observe(t, s.local())
					if !v.Absent {
						n := len(v.Table.Services) / 2
						if n != 40 && n != 60 || v.Drift != nil {
							t.Fatalf("half a table: %d services, drift %q", n, v.Drift)
						}
						clean(t, v, many(n, v.Table.Targets[0].Claim.Epoch))
					}
					want := many(3, 1)
					clean(t, apply(t, door(s), want), want)
					clean(t, observe(t, s.local()), want)
					if list := s.run("nft list tables"); list != tableTitle+"\n" {
						t.Errorf("tables left:\n%s", list)
					}
				}
				s.reloads(t, many(3, 1))
			})
		}
	}
}

func killed(t *testing.T, s *space, door, point string) {
	t.Helper()
	if point == "edge.loaded" {
		s.nft("add table inet shunt_edge; delete table inet shunt_edge\n")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", childVar, door, s.path(), point))
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	if point == "anywhere" {
		before := s.generation()
		eventually(t, "the child to be at work", func() bool { return s.generation() > before+2 })
		<-time.After(time.Duration(rand.IntN(20_000)) * time.Microsecond)
		must(t, cmd.Process.Kill())
	}
	timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed at %s: %v\n%s", point, err, out)
	}
	// What it left at work ends by itself.
	eventually(t, "quiet", func() bool {
		before := s.generation()
		<-time.After(30 * time.Millisecond)
		return s.generation() == before
	})
}
