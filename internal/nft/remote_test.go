package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/edge"
	"github.com/shunt-net/shunt/internal/run"
)

// wrapped is a replica whose transport is a shell script that ends in an nft: "$@" is the
// command. Each start writes its process number into a file.
func (s *space) wrapped(script string) (r edge.Replicated, starts func() []int) {
	s.tb.Helper()
	file := filepath.Join(s.tb.TempDir(), "starts")
	r = s.remote("sh", "-c", fmt.Sprintf("echo $$ >>%s\n%s", file, script), "sh")
	return r, func() (pids []int) {
		b, _ := os.ReadFile(file)
		for f := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(f)
			must(s.tb, err)
			pids = append(pids, pid)
		}
		return pids
	}
}

func TestOneProcessForAllExchanges(t *testing.T) {
	s := newSpace(t)
	r, starts := s.wrapped(`sleep 0.1; exec "$@"`)
	begin := time.Now()
	v := apply(t, r, led(one4, one6, 1))
	if took := time.Since(begin); took < 100*time.Millisecond {
		t.Errorf("the start took %v: it was not slow", took)
	}
	for n := range uint64(20) {
		var err error
		v, err = r.Apply(t.Context(), v, led(two4, two6, n))
		must(t, err)
		observe(t, r)
	}
	if pids := starts(); len(pids) != 1 {
		t.Errorf("started %d times", len(pids))
	}
	pid := starts()[0]
	must(t, r.Close())
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("after Close the process is still there: %v", err)
	}
	clean(t, observe(t, r), led(two4, two6, 19)) // it opens itself again
}

func TestStartedAgainWhenItDied(t *testing.T) {
	s := newSpace(t)
	r, starts := s.wrapped(`exec "$@"`)
	apply(t, r, led(one4, one6, 1))
	for n := 1; n <= 3; n++ {
		must(t, syscall.Kill(starts()[n-1], syscall.SIGKILL))
		want := led(two4, two6, uint64(n))
		clean(t, apply(t, r, want), want)
		if pids := starts(); len(pids) != n+1 {
			t.Errorf("started %d times, want %d", len(pids), n+1)
		}
	}
}

// An nft remembers all that it was told; it is replaced before that is too much, and the
// new one starts while nobody waits.
func TestReplacedBeforeItRemembersTooMuch(t *testing.T) {
	s := newSpace(t)
	r, starts := s.wrapped(`exec "$@"`)
	r.(*replica).door.(*remote).most = 2000
	for n := range uint64(40) {
		want := led(two4, two6, n)
		clean(t, apply(t, r, want), want)
	}
	if pids := starts(); len(pids) < 3 || len(pids) > 40 {
		t.Errorf("started %d times", len(pids))
	}
}

func TestATransportThatHangs(t *testing.T) {
	scripts := map[string]string{
		"from the beginning":         `exec sleep 100`,
		"it reads and does nothing":  `while read -r x; do :; done`,
		"it is deaf to signals":      `trap '' TERM INT HUP; while :; do sleep 0.1; done`,
		"its child holds the pipes":  `setsid sleep 3 & exec sleep 100`,
		"it answers half":            `printf 'table inet shunt_edge {\n\tmap tar'; exec sleep 100`,
		"it says other things":       `while :; do echo still alive; sleep 0.02; done`,
		"it never stops to say them": `exec yes "still alive"`,
	}
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			hung, _ := s.wrapped(script)
			for _, ask := range []func(context.Context) error{
				func(ctx context.Context) error { _, err := hung.Observe(ctx); return err },
				func(ctx context.Context) error {
					_, err := hung.Apply(ctx, edge.View{}, many(200, 1)) // more than a pipe holds
					return err
				},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				begin := time.Now()
				err := ask(ctx)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%v, want a deadline's", err)
				}
				if err != nil && !strings.Contains(err.Error(), "core-02") {
					t.Errorf("%v does not name the replica", err)
				}
				if took := time.Since(begin); took > 3*time.Second {
					t.Errorf("it took %v", took)
				}
			}
			must(t, hung.Close())
		})
	}
}

// One that hangs after it worked is replaced, and no other replica waits for it.
func TestAHungReplicaHoldsNobodyUp(t *testing.T) {
	s := newSpace(t)
	hung, starts := s.wrapped(`exec "$@"`)
	other := s.remote()
	v := apply(t, hung, led(one4, one6, 1))
	must(t, syscall.Kill(starts()[0], syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	done := make(chan error, 2)
	for range 2 { // the second one waits for its turn, and also no longer than its context
		go func() {
			_, err := hung.Apply(ctx, v, led(two4, two6, 2))
			done <- err
		}()
	}
	n := 0
	for ctx.Err() == nil {
		if v := observe(t, other); len(v.Table.Targets) == 4 {
			n++
		}
	}
	if n < 5 {
		t.Errorf("another replica was looked at %d times meanwhile", n)
	}
	for range 2 {
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline's", err)
		}
	}
	clean(t, observe(t, other), led(one4, one6, 1))
	clean(t, apply(t, hung, led(two4, two6, 2)), led(two4, two6, 2))
}

func TestNoiseIsTolerated(t *testing.T) {
	for name, script := range map[string]string{
		"a banner":                `echo 'Last login: Mon { from 10.0.0.1 }'; echo 'Warning: permanently added' >&2; exec "$@"`,
		"a long one":              `seq 20000; seq 20000 >&2; exec "$@"`,
		"without a last newline":  `printf 'motd '; printf 'motd ' >&2; exec "$@"`,
		"a table in it":           `echo 'table inet shunt_edge {'; exec "$@"`,
		"binary":                  `head -c 5000 /dev/urandom; head -c 5000 /dev/urandom >&2; exec "$@"`,
		"both streams in one":     `exec "$@" 2>&1`,
		"no stderr":               `exec "$@" 2>/dev/null`,
		"stderr that comes late":  `"$@" 2>&1 >&3 3>&- | while read -r x; do sleep 0.02; echo "$x" >&2; done`,
		"answers in small pieces": `"$@" | dd bs=7 status=none`,
		"a terminal's line ends":  `"$@" | sed -u 's/$/\r/'`,
		"the commands are echoed": `tee /dev/fd/3 | "$@"`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			r, _ := s.wrapped("exec 3>&1\n" + script)
			if name == "no stderr" { // then a missing table is not told from a failure
				if v, err := r.Observe(t.Context()); err == nil {
					t.Errorf("nothing was said, yet %+v", v)
				}
				apply(t, s.local(), full())
			} else if v := observe(t, r); !v.Absent {
				t.Errorf("no table, yet %+v", v)
			}
			for n := range uint64(3) {
				for _, want := range []edge.Table{led(one4, one6, n), led(two4, two6, n), many(30, n)} {
					clean(t, apply(t, r, want), want)
					clean(t, observe(t, s.local()), want)
				}
			}
		})
	}
}

func TestErrorsSayWhy(t *testing.T) {
	s := newSpace(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for name, c := range map[string]struct {
		argv []string
		want string
		code int
	}{
		"refused":          {[]string{"sh", "-c", `echo "root@core-02: Permission denied (publickey)." >&2; exit 255`}, "Permission denied (publickey)", 255},
		"on stdout":        {[]string{"sh", "-c", `echo "no such host"; exit 3`}, "no such host", 3},
		"no nft there":     {[]string{"sh", "-c", `exec no-such-nft -i`}, "no-such-nft", 127},
		"it just ends":     {[]string{"true"}, "exit status 0", 0},
		"no such command":  {[]string{"no-such-transport"}, "no-such-transport", 0},
		"no command":       {nil, "no name", 0},
		"no rights there":  {[]string{"nsenter", "--net=" + s.path(), "setpriv", "--reuid=65534", "--clear-groups", "nft", "-i"}, "Operation not permitted", 0},
		"another language": {[]string{"sh"}, "not found", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := Remote("core-02", c.argv, Options{})
			ctx, cancel := context.WithTimeout(ctx, 700*time.Millisecond)
			defer cancel()
			v, err := r.Observe(ctx)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "core-02") {
				t.Fatalf("%v, want one that says %q", err, c.want)
			}
			if v.Error != err.Error() || v.Replica != "core-02" {
				t.Errorf("view %+v", v)
			}
			var exit *run.ExitError
			if c.code != 0 && (!errors.As(err, &exit) || exit.Code != c.code) {
				t.Errorf("%v, want exit status %d", err, c.code)
			}
			must(t, r.Close())
		})
	}
}

// What nft refuses changes nothing, and the error names the command.
func TestAFailedTransactionChangesNothing(t *testing.T) {
	for name, script := range map[string]string{
		"a move":  `sed -u 's/add element inet shunt_edge always4/add element inet shunt_edge nowhere/' | "$@"`,
		"a load":  `sed -u '/^add table/s/$/; add rule inet shunt_edge nowhere accept/' | "$@"`,
		"the end": `sed -u '/^delete element/s/$/; add rule inet shunt_edge nowhere accept/' | "$@"`,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t)
			apply(t, s.local(), led(one4, one6, 1))
			if name == "a load" {
				s.nft("add chain inet shunt_edge mine\n")
			}
			before := s.listing()
			r, _ := s.wrapped(script)
			v := observe(t, r)
			want := led(two4, two6, 2)
			want.Always = []edge.Endpoint{{Protocol: edge.TCP, Addr: at(two4, actual)}}
			_, err := r.Apply(t.Context(), v, want)
			if err == nil || !strings.Contains(err.Error(), "nft: ") || !strings.Contains(err.Error(), "shunt_edge") {
				t.Errorf("%v, want nft's own", err)
			}
			if after := s.listing(); after != before {
				t.Errorf("before:\n%safter:\n%s", before, after)
			}
		})
	}
}

// A line of many pieces does nothing before its last piece is there.
func TestACutLineDoesNothing(t *testing.T) {
	s := newSpace(t)
	apply(t, s.local(), many(40, 1))
	before := s.listing()
	parts := pieces(commands(diff(many(40, 1), many(40, 2))) + "\n")
	if len(parts) < 4 {
		t.Fatalf("only %d pieces", len(parts))
	}
	for n := range parts {
		s.do(func() { s.cmd(strings.Join(parts[:n], ""), "nft", "-i") })
		if s.listing() != before {
			t.Fatalf("%d of %d pieces changed the table", n, len(parts))
		}
	}
	s.do(func() { s.cmd(strings.Join(parts, ""), "nft", "-i") })
	clean(t, observe(t, s.local()), many(40, 2))

	// Cut elsewhere, no element is half done and at most one is missing.
	whole := strings.Join(parts, "")
	for i := range 40 {
		apply(t, s.local(), many(40, 1))
		at := 1 + i*len(whole)/40
		s.do(func() { _, _ = s.try(whole[:at], "nft", "-i") })
		v := observe(t, s.local())
		if v.Drift != nil || len(v.Table.Targets) < 2*40-1 {
			t.Errorf("cut at %d: drift %q, %d targets", at, v.Drift, len(v.Table.Targets))
		}
	}
}

// No nft of this machine writes what it was told into a file.
func TestNoHistoryIsWritten(t *testing.T) {
	for argv0, want := range map[string]int{"nft": 1, "/usr/sbin/nft": 1, "ip": 1, "nsenter": 1, "ssh": 0, "kubectl": 0} {
		if got := home([]string{argv0}); len(got) != want {
			t.Errorf("%s: %q", argv0, got)
		}
	}
}

func TestContextsThatAreOver(t *testing.T) {
	for name, door := range doors() {
		t.Run(name, func(t *testing.T) {
			r := door(newSpace(t))
			apply(t, r, led(one4, one6, 1))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := r.Observe(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			if _, err := r.Apply(ctx, edge.View{Absent: true}, full()); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			clean(t, observe(t, r), led(one4, one6, 1))
		})
	}
}
