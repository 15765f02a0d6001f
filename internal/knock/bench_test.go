package knock

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shunt-net/shunt/internal/edge"
)

func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sweep asks one server n times, 64 at once, as a round over as many candidates does.
func sweep(p *Prober, t edge.ProbeTarget, n int, heard func(edge.Answer)) {
	places := make(chan struct{}, 64)
	var wg sync.WaitGroup
	for range n {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			heard(p.Probe(context.Background(), t))
		})
	}
	wg.Wait()
}

func BenchmarkSweep(b *testing.B) {
	for _, kind := range []struct {
		name, server string
		probe        edge.Probe
		n            int
	}{
		{"tcp", "sink", edge.Probe{Type: edge.ProbeTCP}, 4000},
		{"status_ping", "minecraft", edge.Probe{Type: edge.ProbeStatusPing}, 1000},
		{"http", "http", edge.Probe{Type: edge.ProbeHTTP}, 1000},
	} {
		b.Run(kind.name, func(b *testing.B) {
			_, addr := server(b, kind.server)
			p, t := New(time.Now), target(addr, kind.probe)
			runtime.GC()
			before := cpu(b)
			for b.Loop() {
				sweep(p, t, kind.n, func(a edge.Answer) {
					if a.Outcome != edge.Good {
						b.Errorf("answer %+v", a)
					}
				})
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N*kind.n), "cpu-us/probe")
		})
	}
}

// A round over 4,000 candidates is cheap. The bound is far above the 120 ms that were measured.
func TestSweepIsCheap(t *testing.T) {
	_, addr := server(t, "sink")
	p, tgt := New(time.Now), target(addr, edge.Probe{Type: edge.ProbeTCP})
	before := cpu(t)
	sweep(p, tgt, 4000, func(a edge.Answer) {
		if a.Outcome != edge.Good {
			t.Errorf("answer %+v", a)
		}
	})
	used := cpu(t) - before
	t.Logf("4000 probes used %v of CPU", used)
	if used > 2*time.Second {
		t.Errorf("4000 probes used %v of CPU", used)
	}
}
