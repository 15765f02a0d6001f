package tunnel

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shunt-net/shunt/internal/egress"
	"github.com/shunt-net/shunt/internal/tunnel/wgtest"
)

// TestMain lets the test binary be the server of a benchmark, in a process of its own,
// so that the tester's memory and processor time are counted alone.
func TestMain(m *testing.M) {
	if dir := os.Getenv("WGTEST_SERVE"); dir != "" {
		if err := serveProfiles(dir); err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func serveProfiles(dir string) error {
	n, err := strconv.Atoi(os.Getenv("WGTEST_COUNT"))
	if err != nil {
		return err
	}
	rtt, err := time.ParseDuration(os.Getenv("WGTEST_RTT"))
	if err != nil {
		return err
	}
	behave := halfSilent
	if os.Getenv("WGTEST_LIVE") != "" {
		behave = nil
	}
	s, err := wgtest.Start(n, wgtest.Options{RTT: rtt, Behave: behave, OwnKeys: os.Getenv("WGTEST_OWNKEYS") != ""})
	if err != nil {
		return err
	}
	if _, err := s.WriteProfiles(dir); err != nil {
		return err
	}
	for i := range n {
		fmt.Fprintln(os.Stdout, s.Addr(i))
	}
	fmt.Fprintln(os.Stdout, "ready")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent goes
	return s.Close()
}

func halfSilent(i int) wgtest.Behaviour { return wgtest.Behaviour{Silent: i%2 == 1} }

// apart runs the server in a child process and returns a target for each endpoint.
func apart(b *testing.B, n int, rtt time.Duration, env ...string) []egress.TestTarget {
	b.Helper()
	dir := b.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "WGTEST_SERVE="+dir, fmt.Sprintf("WGTEST_COUNT=%d", n), "WGTEST_RTT="+rtt.String()), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	var targets []egress.TestTarget
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		i := len(targets)
		targets = append(targets, egress.TestTarget{
			Endpoint: lines.Text(), Path: fmt.Sprintf("%s/test-%04d.conf", dir, i), Pair: fmt.Sprintf("pair-%d", i),
		})
	}
	if len(targets) != n {
		b.Fatalf("%d of %d endpoints: %v", len(targets), n, lines.Err())
	}
	return targets
}

// BenchmarkHalfDead tests pools of which every second endpoint is silent. Wall time per
// pool is the benchmark's own figure; beside it the processor time of this process and
// its peak of resident memory, with the server in another process or in this one.
func BenchmarkHalfDead(b *testing.B) {
	cases := []struct {
		n       int
		rtt     time.Duration
		inside  bool   // the server is in this process
		ownKeys string // "1" = each profile has a client key of its own
	}{
		{n: 50},
		{n: 200},
		{n: 500},
		{n: 1000},
		{n: 1000, rtt: 50 * time.Millisecond},
		{n: 1000, rtt: 50 * time.Millisecond, ownKeys: "1"},
		{n: 1000, inside: true},
	}
	for _, c := range cases {
		name := fmt.Sprintf("n=%d/rtt=%s", c.n, c.rtt)
		if c.inside {
			name += "/with-server"
		}
		if c.ownKeys != "" {
			name += "/own-keys"
		}
		b.Run(name, func(b *testing.B) {
			var targets []egress.TestTarget
			if c.inside {
				_, targets = serve(b, c.n, wgtest.Options{RTT: c.rtt, Behave: halfSilent})
			} else {
				targets = apart(b, c.n, c.rtt, "WGTEST_OWNKEYS="+c.ownKeys)
			}
			benchmark(b, benchConfig(), targets, c.n/2, c.rtt)
		})
	}
}

// BenchmarkLive tests pools of which every endpoint lives, with a TLS handshake for each
// and without; the servers and what answers TLS behind them are in another process.
func BenchmarkLive(b *testing.B) {
	for _, rtt := range []time.Duration{0, 30 * time.Millisecond} {
		for _, list := range [][]egress.TLSTarget{nil, hosts(false)} {
			b.Run(fmt.Sprintf("n=200/rtt=%s/tls=%v", rtt, list != nil), func(b *testing.B) {
				c := benchConfig()
				c.FullSize, c.TLS = true, list
				benchmark(b, c, apart(b, 200, rtt, "WGTEST_LIVE=1"), 200, rtt)
			})
		}
	}
}

func benchConfig() egress.TestConfig {
	return egress.TestConfig{
		Parallel: 200, Rate: 500, HandshakeTimeout: 2 * time.Second, Pings: 3, PingTimeout: time.Second,
		Targets: []netip.Addr{netip.MustParseAddr("10.64.0.1")},
	}
}

func benchmark(b *testing.B, conf egress.TestConfig, targets []egress.TestTarget, live int, rtt time.Duration) {
	var averages []time.Duration
	reasons := map[string]int{}
	resetPeak(b)
	cpu := cpuTime(b)
	for b.Loop() {
		b.StopTimer() // one pool is tested per process; the garbage of the last one must not count
		debug.FreeOSMemory()
		b.StartTimer()
		averages = averages[:0]
		clear(reasons)
		err := New(Options{Now: time.Now}).Test(b.Context(), conf, targets, nil, func(r egress.TestResult) {
			reasons[r.Reason]++
			if r.Reason == "" {
				averages = append(averages, r.Avg)
			}
		})
		if err != nil {
			b.Fatal(err)
		}
		if len(averages) != live {
			b.Fatalf("%d of %d live endpoints passed: %v", len(averages), live, reasons)
		}
	}
	slices.Sort(averages)
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/pool")
	b.ReportMetric((cpuTime(b)-cpu).Seconds()/float64(b.N), "cpu-s/pool")
	b.ReportMetric(float64(len(targets))*60*float64(b.N)/b.Elapsed().Seconds(), "endpoints/min")
	b.ReportMetric(peakMB(b), "peak-MB")
	b.ReportMetric(float64((averages[len(averages)/2]-rtt).Microseconds())/1000, "p50-ms-over-rtt")
	b.ReportMetric(float64((averages[len(averages)*99/100]-rtt).Microseconds())/1000, "p99-ms-over-rtt")
	b.ReportMetric(0, "ns/op")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// resetPeak makes the kernel's high-water mark of resident memory begin anew.
func resetPeak(b *testing.B) {
	b.Helper()
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		b.Fatal(err)
	}
}

// peakMB is the high-water mark of resident memory in MB.
func peakMB(b *testing.B) float64 {
	b.Helper()
	s, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(s), "VmHWM:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		b.Fatal(err)
	}
	return float64(kb) / 1024
}
